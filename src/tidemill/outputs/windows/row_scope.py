"""Rows of streaming windows between kernels: their columns, which are in scope, and the files they are in.

Types only; `raw_reader` and `extract` read and write them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidemill.config.stream import Stream
from tidemill.formats.declared_columns import declared_column
from tidemill.model.streaming import WindowSpec
from tidemill.model.time import Interval
from tidemill.outputs.windows.keys import Key
from tidemill.outputs.windows.row_group_cache import RowGroups
from tidemill.outputs.windows.unfit import UnfitValues

AT: Final = "at"  # int64: the instant it counts at (`WindowSpec.counts_at`)
TIME: Final = "time"  # int64: its event time
SEQ: Final = "seq"  # int64: ledger offset of its slice
LINE: Final = "line"  # int64
NAME: Final = "name"  # dictionary<int32, string>: `SliceEntry.name` of its slice
LATE: Final = "late"  # bool
BYTES: Final = "bytes"  # int64: of its payload
TENANT: Final = "tenant"  # dictionary<int32, string>
PAST: Final = "past"  # int64, of `WindowSpec.some_windows`: windows that end by then do not count the row
FIELD: Final = "f."  # prefix of the columns of `WindowSpec.columns`, typed as `windows.columns` has them

_CODED: Final = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True)
class RowPosition:
    """What the ledger says of a slice."""

    seq: int
    name: str


@dataclass(frozen=True, slots=True)
class RowScope:
    """Which used rows a fold needs. `span` and `starts` are half-open, sorted and disjoint."""

    span: Interval  # the instants they count at
    starts: Sequence[Interval] | None = None  # by_time: rows of windows that start in one of these
    again: Mapping[Key, int] | None = None  # others: only rows of these keys, each from that instant on …
    since: int | None = None  # … and with `again` rows of all keys that count at or after this instant
    # `close: complete`: of the rows in an aggregation window, only those whose slice (id) it was built from;
    # no other rows. Disjoint, sorted
    slices: Mapping[Interval, frozenset[str]] | None = None


@dataclass(frozen=True, slots=True)
class ExtractUnit:
    spec: WindowSpec
    stream: Stream
    parts: Sequence[str]  # absolute paths of raw parts
    ledger: Mapping[str, RowPosition]  # by slice id; rows of other slices are left out
    scope: RowScope
    cuts: Sequence[int] = ()  # by_time: bucket i holds windows that start in [cuts[i-1], cuts[i])
    buckets: int = 1  # others: by a hash of the key
    folder: str = ""
    name: str = ""  # prefix of the files, different for every unit
    shared: RowGroups = field(default_factory=lambda: RowGroups(limit=0))  # what windows of the stream share


@dataclass(frozen=True, slots=True)
class Extracted:
    """Files of one unit: Arrow IPC, rows in no particular order; none for a bucket without rows."""

    files: Mapping[int, str] = field(default_factory=dict)  # bucket -> path
    rows: int = 0
    unfit: frozenset[UnfitValues] = frozenset()  # values that its rows lack


def field_type(stream: Stream, column: str) -> pa.DataType:
    """The type of a field once it is read from payloads."""
    return declared_column(stream, column).arrow


def row_schema(spec: WindowSpec, stream: Stream) -> pa.Schema:
    return pa.schema(
        [
            pa.field(AT, pa.int64()),
            pa.field(TIME, pa.int64()),
            pa.field(SEQ, pa.int64()),
            pa.field(LINE, pa.int64()),
            pa.field(NAME, _CODED),
            pa.field(LATE, pa.bool_()),
            pa.field(BYTES, pa.int64()),
            pa.field(TENANT, _CODED),
            *([pa.field(PAST, pa.int64())] if spec.some_windows else []),
            *(pa.field(FIELD + column, field_type(stream, column)) for column in spec.columns),
        ]
    )
