"""Raw manifests of request/response feeds, as declared: where they are, and what of a feed is never mixed.

What stands in a manifest is read elsewhere; nothing here looks at a file.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import pydantic
from pydantic import AfterValidator, model_validator

from tidemill.config.quantities import wrong
from tidemill.config.schema import SECTION

MAX_MANIFESTS: Final = 256  # patterns: each is looked up in every round
Fact = Literal["source", "kind", "symbol", "interval", "limit"]


def _pattern(value: str) -> str:
    if not value.strip() or "\0" in value or "://" in value:
        raise wrong(f"{value!r} names no files", "write a path or a glob, relative to this file or absolute")
    return value


Pattern = Annotated[str, AfterValidator(_pattern)]


class Manifests(pydantic.BaseModel):
    """A list stands for its files."""

    model_config = SECTION

    files: Annotated[tuple[Pattern, ...], pydantic.Field(max_length=MAX_MANIFESTS)] = ()
    partition_by: tuple[Fact, ...] = ()  # slices that differ in one of these are never packed together

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: object) -> object:
        if isinstance(data, list | tuple):
            return {"files": data}
        if isinstance(data, dict):
            return data
        raise wrong(
            "is neither a list nor a section", "write [PATH, …] or {files: [PATH, …], partition_by: […]}"
        )
