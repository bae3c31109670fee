"""What queries of a stream do unless they say otherwise: by which clock, and at the ends of their span."""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import model_validator

from tidemill.config.quantities import TimeZone
from tidemill.config.schema import SECTION


class QueryDefaults(pydantic.BaseModel):
    """Each is what a query does that lacks the clause of the same name."""

    model_config = SECTION

    timezone: TimeZone | None = None  # None: UTC, and cells aligned to the epoch
    week_start: Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] = (
        "monday"
    )
    edges: Literal["include", "exclude", "null"] = "include"

    @model_validator(mode="before")
    @classmethod
    def _null_is_a_word_here(cls, data: object) -> object:
        """YAML reads `edges: null` as nothing at all."""
        if isinstance(data, dict) and "edges" in data and data["edges"] is None:
            return {**data, "edges": "null"}
        return data
