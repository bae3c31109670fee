"""Delta streams: which columns name the vector and the operation, and when chains are compacted.

`model.deltas` defines what a delta does; `outputs/vectors` keeps chains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import pydantic
from pydantic import StrictBool, StrictInt, model_validator

from tidemill.config.schema import SECTION, ColumnName, is_column
from tidemill.config.values import ByteSize, PositiveDuration, wrong
from tidemill.model.time import HOUR, MINUTE

MIB: Final = 1 << 20
DELTA_ID: Final = "delta_id"  # the identity of a delta, unless another one is declared
Count = Annotated[StrictInt, pydantic.Field(ge=1, le=10**6)]


class Vector(pydantic.BaseModel):
    """Where a delta names its vector and its operation. Every vector has the same dimension."""

    model_config = SECTION

    dimension: Annotated[StrictInt, pydantic.Field(ge=1, le=65_536)]
    id: ColumnName = "vector_id"
    op: ColumnName = "op"
    values: ColumnName = "values"
    indices: ColumnName = "indices"
    # What is done with deltas that make a component infinite or NaN.
    overflow: Literal["warn", "quarantine"] = "warn"

    @property
    def stays_finite(self) -> bool:
        """Whether deltas that would make a component infinite or NaN are left out."""
        return self.overflow == "quarantine"


class CompactionSettings(pydantic.BaseModel):
    """When the chain of a vector is compacted, and what is kept of it."""

    model_config = SECTION

    strategy: Literal["full_merge", "tiered_merge", "time_boundary", "adaptive"] = "tiered_merge"
    keep_recent: Annotated[StrictInt, pydantic.Field(ge=0, le=10**6)] = 10  # for tiered_merge
    interval: PositiveDuration = HOUR  # for time_boundary
    delta_threshold: Count = 100  # pending deltas of a vector
    time_threshold: PositiveDuration = MINUTE  # age of the oldest one
    max_chain_length: Count = 1000  # then it is compacted in any case
    background: StrictBool = True  # by the daemon; `tidemill compact` always compacts
    memory: Annotated[ByteSize, pydantic.Field(ge=MIB)] | None = None  # null: engine.compaction_memory

    @model_validator(mode="after")
    def _limits_fit(self) -> CompactionSettings:
        if self.max_chain_length < self.delta_threshold:
            raise wrong("max_chain_length is less than delta_threshold", "make it as large, or larger")
        if self.strategy == "tiered_merge" and self.keep_recent >= self.max_chain_length:
            raise wrong("keep_recent is not less than max_chain_length", "keep fewer, or allow longer chains")
        return self


def with_implied(data: Mapping[str, object]) -> dict[str, object]:
    """The declaration of a delta stream with the columns that it implies.

    These are the columns of `vector`, `delta_id` if it is the identity, and if there is no schema at all also
    those that other sections name. A name that cannot be a column is reported by its own section.
    """
    out = dict(data)
    out.setdefault("identity", DELTA_ID)
    schema = out.get("schema")
    fields: dict[str, object] = {}
    if "schema" not in out:
        names = out["identity"]
        for name in names if isinstance(names, list | tuple) else (names,):
            fields |= _field(name, "string", required=True)
        fields |= _field(_inside(out, "event_time", "column"), "any", required=False)
        tenant = out.get("tenant")
        named = tenant if isinstance(tenant, str) else _inside(out, "tenant", "column")
        fields |= _field(named, "string", required=True)
    elif not isinstance(schema, Mapping):
        return out
    elif out["identity"] == DELTA_ID:
        fields |= _field(DELTA_ID, "string", required=True)
    for key, kind in (("id", "any"), ("op", "string"), ("values", "array"), ("indices", "array")):
        name = _inside(out, "vector", key)
        default = Vector.model_fields[key].default
        fields |= _field(name if is_column(name) else default, kind, required=key in ("id", "op"))
    out["schema"] = {**fields, **schema} if isinstance(schema, Mapping) else fields
    return out


def _field(name: object, kind: str, *, required: bool) -> dict[str, object]:
    return {str(name): {"type": kind, "required": required}} if is_column(name) else {}


def _inside(data: Mapping[str, object], section: str, key: str) -> object:
    found = data.get(section)
    return found.get(key) if isinstance(found, Mapping) else None
