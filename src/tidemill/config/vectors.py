"""Streams of deltas: which columns say what is done to which vector, and when chains of them are compacted.

What a delta does is defined in `model.deltas`; how chains are kept, in the room `chains`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import StrictBool, StrictInt, model_validator

from tidemill.config.quantities import PositiveDuration, wrong
from tidemill.config.schema import SECTION, ColumnName
from tidemill.model.time import HOUR, MINUTE

Count = Annotated[StrictInt, pydantic.Field(ge=1, le=10**6)]


class Vector(pydantic.BaseModel):
    """Where a delta says which vector it changes, and how. Every vector has the same dimension."""

    model_config = SECTION

    dimension: Annotated[StrictInt, pydantic.Field(ge=1, le=65_536)]
    id: ColumnName = "vector_id"
    op: ColumnName = "op"
    values: ColumnName = "values"
    indices: ColumnName = "indices"


class Compaction(pydantic.BaseModel):
    """When the chain of a vector is compacted, and what stays of it."""

    model_config = SECTION

    strategy: Literal["full_merge", "tiered_merge", "time_boundary", "adaptive"] = "tiered_merge"
    keep_recent: Annotated[StrictInt, pydantic.Field(ge=0, le=10**6)] = 10  # of tiered_merge
    interval: PositiveDuration = HOUR  # of time_boundary
    delta_threshold: Count = 100  # pending deltas of a vector
    time_threshold: PositiveDuration = MINUTE  # age of the oldest one
    max_chain_length: Count = 1000  # then it is compacted whatever else is said
    background: StrictBool = True  # by the daemon; `tidemill compact` does it in any case

    @model_validator(mode="after")
    def _limits_fit(self) -> Compaction:
        if self.max_chain_length < self.delta_threshold:
            raise wrong("max_chain_length is less than delta_threshold", "make it as large, or larger")
        if self.strategy == "tiered_merge" and self.keep_recent >= self.max_chain_length:
            raise wrong("keep_recent is not less than max_chain_length", "keep fewer, or allow longer chains")
        return self
