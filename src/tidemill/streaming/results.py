"""The table of a window's results: its schema, what stands in it, and what a fresh computation changes about that.

Append-only: a result that changed is a row with the next revision, one that is gone is a row that says so. What stands
is, for each (window_id, group), the row with the highest revision, unless it is withdrawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidemill.config.stream import Stream
from tidemill.lake.table import Table
from tidemill.model.streaming import Trigger, WindowSpec
from tidemill.model.time import Interval
from tidemill.streaming.rows import Key


def results_schema(spec: WindowSpec, stream: Stream) -> pa.Schema:
    """window_id, start, end (timestamps), tenant, the group's columns (by `model.names.column_name`), revision, rows,
    late_rows, first_time, last_time, bytes, trigger, watermark (of the stream when it came out), hash, slices, supersedes
    (list of window ids), superseded_by, withdrawn, batch (number of the commit), then the aggregates by name."""
    raise NotImplementedError


def results_table(warehouse: Path, spec: WindowSpec, stream: Stream) -> Table:
    """`windows/<stream>/<window>`, made when it is not there."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Scope:
    """Which standing results a fresh computation answers for."""

    starts: Sequence[Interval] | None = None  # by_time: windows that start in one of these
    since: Mapping[Key, int] | None = None  # others: windows of these keys that start at that instant or after it
    whole: bool = False  # all of them


def standing(spec: WindowSpec, stream: Stream, parts: Sequence[str], scope: Scope) -> pa.Table:
    """What stands in these parts of the results table and lies in the scope (withdrawn ones too, so that their
    revision goes on), in the schema of the table."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Changes:
    table: pa.Table  # rows to append, by (start, tenant, window_id, group)
    results: int  # of them, results
    withdrawn: int  # and results taken back


def changes(
    spec: WindowSpec,
    stream: Stream,
    fresh: pa.Table,
    held: pa.Table,
    *,
    watermark: int | None,
    batch: int,
    trigger: Trigger,
) -> Changes:
    """Rows to append so that what stands in the scope is what `fresh` (see `aggregate.fresh_schema`) has as closed.

    A fresh result whose hash is the standing one's, and that is not withdrawn, changes nothing. `trigger` is why a first
    revision comes out; a later one has `late` or `retraction` (when a slice left, told by fewer rows or slices), or
    `trigger` again when what stood had come out by `stop`. What stands and is not fresh is withdrawn, unless its window
    is among the fresh ones that are still open (it came out by a stop and goes on). A withdrawn result is superseded by
    the fresh window of the same tenant and key that overlaps it, if there is one, which names it in `supersedes`.
    """
    raise NotImplementedError


def current(table: pa.Table) -> pa.Table:
    """Of rows of the results table, those that stand."""
    raise NotImplementedError
