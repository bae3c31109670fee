"""The table of a window's results: its schema, current results, and the changes of a new computation.

Append-only: a result that changed is a row with the next revision, one that is gone is a row that says so.
The current result of each (window_id, group) is the row with the highest revision, unless it is withdrawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.config.stream import Stream
from tidemill.formats.arrays import Ints, Mask
from tidemill.model.names import column_name
from tidemill.model.streaming import Trigger, WindowSpec
from tidemill.model.time import Interval
from tidemill.outputs.windows.aggregate import value_type
from tidemill.outputs.windows.codes import ranked
from tidemill.outputs.windows.keys import Key, key_codes
from tidemill.outputs.windows.revisions import NOTHING, Revising
from tidemill.outputs.windows.row_scope import field_type
from tidemill.outputs.windows.window_ids import id_words, newest
from tidemill.storage import layout
from tidemill.storage.tables.footers import Footer, items_in, number_in, text_in
from tidemill.storage.tables.parts import StagedPart, open_part, write_part
from tidemill.storage.tables.table import Table

STATS: Final = ("start", "end", "tenant", "batch")
_INSTANT: Final = pa.timestamp("us", tz="UTC")
_DICTIONARY: Final = ("tenant", "trigger", "hash")
_ROW_GROUP: Final = 32_768  # current results are found by the statistics of row groups
_LEAST, _MOST = -(2**63), 2**63 - 1


def group_columns(spec: WindowSpec) -> list[str]:
    """The columns that distinguish results of one instant, besides the tenant (which may be among them)."""
    names = [column_name(column) for column in spec.grouped_by]
    return [name for name in names if name != "tenant"]


def results_schema(spec: WindowSpec, stream: Stream) -> pa.Schema:
    """window_id, start, end (timestamps), tenant, the group's columns (by `model.names.column_name`),
    revision, rows, late_rows, first_time, last_time, bytes, trigger, watermark (of the stream when it was
    published), hash, slices, supersedes (list of window ids), superseded_by, withdrawn, batch (number of the
    commit), then the aggregates by name."""
    groups = {column_name(column): field_type(stream, column) for column in spec.grouped_by}
    return pa.schema(
        [
            pa.field("window_id", pa.string()),
            pa.field("start", _INSTANT),
            pa.field("end", _INSTANT),
            pa.field("tenant", pa.string()),
            *(pa.field(name, groups[name]) for name in group_columns(spec)),
            pa.field("revision", pa.int64()),
            pa.field("rows", pa.int64()),
            pa.field("late_rows", pa.int64()),
            pa.field("first_time", _INSTANT),
            pa.field("last_time", _INSTANT),
            pa.field("bytes", pa.int64()),
            pa.field("trigger", pa.string()),
            pa.field("watermark", _INSTANT),
            pa.field("hash", pa.string()),
            pa.field("slices", pa.int64()),
            pa.field("supersedes", pa.list_(pa.string())),
            pa.field("superseded_by", pa.string()),
            pa.field("withdrawn", pa.bool_()),
            pa.field("batch", pa.int64()),
            *(pa.field(aggregate.name, value_type(aggregate)) for aggregate in spec.aggregates),
        ]
    )


def results_table(warehouse: Path, spec: WindowSpec, stream: Stream) -> Table:
    """The table `windows/<stream>/<window>`, created if it does not exist."""
    return Table.open(
        layout.results(warehouse, spec.stream, spec.name),
        schema=results_schema(spec, stream),
        name=f"{spec.stream}_{spec.name}",
        description=f"results of the {spec.kind} window {spec.name} of {spec.stream}, every revision",
    )


@dataclass(frozen=True, slots=True)
class ResultsFooter:
    """The footer of a part."""

    stream: str
    window: str
    fingerprint: str  # of the declaration that it was made for
    batches: tuple[int, ...]  # numbers of the commits of its rows; one, unless it was merged
    merged: bool = False

    def to_footer(self) -> dict[str, object]:
        of = {"batches": list(self.batches)} if self.merged else {"batch": self.batches[0]}
        return {
            "kind": "results",
            "stream": self.stream,
            "window": self.window,
            "fingerprint": self.fingerprint,
            **of,
        }

    @staticmethod
    def from_footer(footer: Footer) -> ResultsFooter:
        """Read a footer. A part without a fingerprint counts as made for another declaration."""
        merged = "batches" in footer
        batches = items_in(footer, "batches") if merged else [number_in(footer, "batch")]
        return ResultsFooter(
            stream=text_in(footer, "stream", ""),
            window=text_in(footer, "window", ""),
            fingerprint=text_in(footer, "fingerprint", ""),
            batches=tuple(int(str(batch)) for batch in batches),
            merged=merged,
        )


# -- current results


@dataclass(frozen=True, slots=True)
class ResultScope:
    """Which current results a new computation replaces."""

    starts: Sequence[Interval] | None = None  # by_time: windows that start in one of these
    since: Mapping[Key, int] | None = (
        None  # others: windows of these keys that start at or after that instant
    )
    whole: bool = False  # all of them

    def may_hold(self, first: int, last: int) -> bool:
        """Whether a window that starts between these, both included, can be in it."""
        if self.whole:
            return True
        by_start = any(span.start <= last and span.end > first for span in self.starts or ())
        return by_start or last >= min((self.since or {}).values(), default=_MOST)


def current_results(spec: WindowSpec, stream: Stream, parts: Sequence[str], scope: ResultScope) -> pa.Table:
    """The newest rows in these parts that lie in the scope (withdrawn ones too, so that their revision
    continues), in the schema of the table."""
    schema = results_schema(spec, stream)
    found = [schema.empty_table()]
    for path in parts:
        with open_part(path) as file:
            for group in range(file.num_row_groups):
                if scope.may_hold(*_starts(file, group)):
                    table = shaped(file.read_row_group(group, use_threads=False), schema)
                    inside = _inside(spec, table, scope)
                    found.append(table if inside.all() else table.filter(pa.array(inside)))
    return newest(pa.concat_tables(found).combine_chunks(), group_columns(spec))


def _inside(spec: WindowSpec, table: pa.Table, scope: ResultScope) -> Mask:
    if scope.whole:
        return np.ones(table.num_rows, np.bool_)
    start = _ints(table.column("start"))
    inside = np.zeros(table.num_rows, np.bool_)
    if scope.starts:
        lows = np.array([span.start for span in scope.starts], np.int64)
        ends = np.array([span.end for span in scope.starts], np.int64)
        at = np.searchsorted(lows, start, "right") - 1
        inside |= (at >= 0) & (start < ends[at])
    if scope.since and table.num_rows:
        columns = [table.column(name) for name in ("tenant", *map(column_name, spec.key))]
        codes, keys = key_codes(columns)
        floors = [scope.since.get((str(key[0]), key[1:]), _MOST) for key in keys]
        inside |= start >= np.array(floors, np.int64)[codes]
    return inside


def shaped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows of a part in the types of the table."""
    return pa.Table.from_arrays([table.column(kept.name).cast(kept.type) for kept in schema], schema=schema)


def _starts(file: pq.ParquetFile, group: int) -> tuple[int, int]:
    position = file.schema_arrow.get_field_index("start")
    stats = file.metadata.row_group(group).column(position).statistics
    if stats is None or not stats.has_min_max:
        return _LEAST, _MOST
    return stats.min_raw, stats.max_raw


def current(table: pa.Table) -> pa.Table:
    """The current results among rows of the results table, by (start, tenant, window_id, group)."""
    names = table.column_names
    group = names[names.index("tenant") + 1 : names.index("revision")]
    found = newest(table, group)
    return in_order(found.filter(pc.invert(found.column("withdrawn"))), group)


def known(table: pa.Table) -> pa.Table:
    """The newest row of each window and group that exists, whether or not it meets the condition on
    results."""
    names = table.column_names
    found = newest(table, names[names.index("tenant") + 1 : names.index("revision")])
    return found.filter(pc.not_equal(found.column("hash"), NOTHING))


def in_order(table: pa.Table, group: Sequence[str]) -> pa.Table:
    """Sorted by (start, tenant, window_id, group), nulls first."""
    keys: list[Ints | Mask] = []
    for name in ("start", "tenant", "window_id", *group):
        if name == "window_id":
            keys += id_words(table.column(name))
        else:
            values = ranked(table.column(name))
            keys += [values.values] if values.valid is None else [values.valid, values.values]
    return table.take(pa.array(np.lexsort(keys[::-1])))


# -- what changes


@dataclass(frozen=True, slots=True)
class Changes:
    table: pa.Table  # rows to append, by (start, tenant, window_id, group)
    results: int  # how many of them are results
    withdrawn: int  # and how many are withdrawn; the rest never met the condition on results


def changes(
    spec: WindowSpec,
    stream: Stream,
    fresh: pa.Table,
    held: pa.Table,
    *,
    watermark: int | None,
    batch: int,
    trigger: Trigger,
    again: bool = False,
) -> Changes:
    """Rows to append so that the current results in the scope are the closed ones of `fresh`
    (`fresh_schema`).

    A fresh result with the hash of the current one, which is not withdrawn, changes nothing. `trigger` is why
    a first revision is published; a later one has `late` or `retraction` (if a slice left, recognised by
    fewer rows or slices), or `trigger` again if the current one was published by `stop`. A current result
    that is not fresh is withdrawn, unless its window is fresh and still open and it was published by a stop;
    if everything is computed `again`, since slices may have gone, only what the open window still holds
    stays. A withdrawn result is superseded by the fresh window of the same tenant and key that overlaps it,
    if there is one, which names it in `supersedes`; windows of the grid replace nothing.
    """
    schema = results_schema(spec, stream)
    revising = Revising(spec, schema, group_columns(spec), fresh, held, trigger, watermark, again=again)
    results, withdrawn = revising.results(), revising.withdrawn()
    table = pa.concat_tables([results, withdrawn])
    constants = {
        "watermark": pa.array([watermark], pa.int64()).cast(_INSTANT),
        "batch": pa.array([batch], pa.int64()),
    }
    same: Ints = np.zeros(table.num_rows, np.int64)
    for name, value in constants.items():
        table = table.set_column(schema.get_field_index(name), schema.field(name), value.take(pa.array(same)))
    table = in_order(table.combine_chunks(), group_columns(spec))
    gone = _mask(table.column("withdrawn"))
    hidden = _mask(pc.equal(table.column("trigger"), Trigger.HAVING.value))
    return Changes(table, int(np.count_nonzero(~gone)), int(np.count_nonzero(gone & ~hidden)))


def write_results(
    folder: Path, name: str, spec: WindowSpec, found: Changes, footer: ResultsFooter
) -> StagedPart:
    """Write the changes as a staged part of the results table."""
    return write_part(
        folder,
        name,
        found.table,
        partition={},
        footer=footer.to_footer(),
        stats_columns=STATS,
        row_group_rows=_ROW_GROUP,
        dictionary=(*_DICTIONARY, *group_columns(spec)),
    )


def _mask(column: pa.ChunkedArray) -> Mask:
    values: Mask = np.asarray(column.to_numpy(), np.bool_)
    return values


def _ints(column: pa.ChunkedArray) -> Ints:
    values: Ints = column.cast(pa.int64()).to_numpy()
    return values
