"""Streaming windows of a stream as declared in `tidemill.yaml`, and the flat `WindowSpec` made of one.

A window checks only itself here; whether its columns exist and suit their use is checked in `checks_windowing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic
from pydantic import StrictInt, model_validator

from tidemill.config.quantities import PositiveDuration, wrong
from tidemill.config.schema import SECTION
from tidemill.model.predicates import Predicate
from tidemill.model.streaming import Aggregate, Close, LatePolicy, WindowKind, WindowSpec

if TYPE_CHECKING:
    from tidemill.config.stream import Stream

KindName = Literal["tumbling", "fixed", "sliding", "session", "count", "state"]


class LateRows(pydantic.BaseModel):
    """What becomes of rows at or before the watermark they met: `discard`, `next_window`, or
    `{policy: reemit, max_lateness: 1h}`."""

    model_config = SECTION

    policy: Literal["discard", "next_window", "reemit"] = "discard"
    max_lateness: PositiveDuration | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: object) -> object:
        return {"policy": data} if isinstance(data, str) else data


class WindowDeclaration(pydantic.BaseModel):
    """A streaming window. Which of size, step, gap, n, open, emit and key it has depends on its kind."""

    model_config = SECTION

    kind: KindName
    size: PositiveDuration | None = None
    step: PositiveDuration | None = None
    gap: PositiveDuration | None = None
    n: Annotated[StrictInt, pydantic.Field(ge=1)] | None = None
    open: str | None = None
    emit: str | None = None
    key: tuple[str, ...] = ()
    group_by: tuple[str, ...] = ()
    aggregates: Mapping[str, str] = {"rows_counted": "count"}
    close: Literal["watermark", "complete"] = "watermark"
    late: LateRows = LateRows()
