"""The folding kernel: the rows of one bucket in, the changes of its results out as a staged part.

Everything follows from the rows and the current results; the driver commits. Rows of windows that stay open
are written beside the table, for the next fold to continue from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidemill.config.stream import Stream
from tidemill.formats.arrays import Ints, Mask
from tidemill.model.names import column_name
from tidemill.model.streaming import Trigger, WindowKind, WindowSpec
from tidemill.model.time import Interval
from tidemill.outputs.windows.aggregate import GROUP, aggregate, fresh_schema
from tidemill.outputs.windows.announce import Announced, announcements
from tidemill.outputs.windows.assign import Assigned, assign, assign_in_pieces
from tidemill.outputs.windows.extract import AT, FIELD, LINE, SEQ, TENANT, row_schema, rows_of
from tidemill.outputs.windows.keys import Key, bucket_of, key_codes
from tidemill.outputs.windows.open_sessions import (
    SessionParts,
    carries_sums,
    finished,
    first_starts,
    merged,
    parts_of,
    read_parts,
    write_parts,
)
from tidemill.outputs.windows.results import (
    ResultScope,
    ResultsFooter,
    changes,
    current_results,
    known,
    write_results,
)
from tidemill.outputs.windows.unfit import UnfitValues
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.checksums import read_arrow, write_arrow
from tidemill.storage.tables.parts import StagedPart

_LEAST = -(2**63)


@dataclass(frozen=True, slots=True)
class FoldUnit:
    """One bucket: windows of the grid that start in `starts`, or the keys of one hash."""

    spec: WindowSpec
    stream: Stream
    fingerprint: str
    files: Sequence[str]  # extracted rows
    held: Sequence[str]  # parts of the results table that may hold current results
    watermark: int | None
    flush: bool
    trigger: Trigger
    batch: int
    folder: str  # staging, where the part is written
    name: str
    starts: Sequence[Interval] = ()  # by_time: the windows this unit computes …
    only: Sequence[Interval] | None = None  # … and those that may be published; None: by the watermark
    bucket: int = 0
    buckets: int = 1
    carried: Sequence[str] = ()  # files with rows of open windows, of all buckets
    again: Mapping[Key, int] = field(
        default_factory=dict
    )  # computed again from there on: carried rows are void
    whole: bool = False  # not by_time: all keys are computed again
    gone: bool = False  # slices may have gone since the results were computed
    floor: int | None = None  # windows for a row that start before this are already published
    sealed: int | None = None  # what begins before this instant does not change
    unfit: frozenset[UnfitValues] = frozenset()  # values that the extracted rows lack
    open_file: str | None = None  # where rows of open windows are written; None: not needed


@dataclass(frozen=True, slots=True)
class FoldedResults:
    part: StagedPart | None
    results: int
    withdrawn: int
    carried: str | None
    unsettled: int | None  # the least start of an open window that has results
    announced: Sequence[Announced]
    unfit: frozenset[UnfitValues] = frozenset()


def fold(unit: FoldUnit) -> Iterator[FoldedResults]:
    rows, opened = rows_in(unit), opened_in(unit)
    held = held_by(unit, rows, opened)
    sessions = None if opened is None else _with_opened(unit, rows, opened, flush=unit.flush)
    found = changes(
        unit.spec,
        unit.stream,
        computed(unit, rows, sessions),
        held,
        watermark=unit.watermark,
        batch=unit.batch,
        trigger=unit.trigger,
        again=unit.gone,
    )
    if opened is not None and unit.flush:  # a stop publishes sessions; they are still carried as open
        sessions = _with_opened(unit, rows, opened, flush=False)
    carried, starts = _carry(unit, rows, sessions)
    part = None
    if found.table.num_rows:
        footer = ResultsFooter(unit.spec.stream, unit.spec.name, unit.fingerprint, (unit.batch,))
        part = write_results(warehouse_path(unit.folder), unit.name, unit.spec, found, footer)
    unsettled = _unsettled(unit, [held, found.table], starts)
    yield FoldedResults(
        part,
        found.results,
        found.withdrawn,
        carried,
        unsettled,
        announcements(unit.spec, found.table),
        unit.unfit,
    )


def computed(unit: FoldUnit, rows: pa.Table, sessions: SessionParts | None = None) -> pa.Table:
    """The results of these rows that the bucket computes, as `aggregate` gives them; from `sessions` if their
    aggregates so far are carried."""
    if sessions is not None:
        return finished(unit.spec, unit.stream, sessions, hashed=unit.whole)
    since = _floors(unit, rows) if unit.spec.kind is WindowKind.PER_ROW else None
    found = assign_in_pieces(unit.spec, rows, unit.watermark, since, flush=unit.flush)
    tables = [aggregate(unit.spec, unit.stream, rows, assigned) for assigned in found]
    fresh = pa.concat_tables([fresh_schema(unit.spec, unit.stream).empty_table(), *tables]).combine_chunks()
    if not unit.spec.kind.by_time:
        return fresh
    only = unit.only if unit.only is not None else unit.starts
    return fresh.filter(pa.array(_inside(fresh.column("start").to_numpy(), only)))


def _with_opened(unit: FoldUnit, rows: pa.Table, opened: SessionParts, *, flush: bool) -> SessionParts:
    """Sessions so far: those that were open, and those of the rows."""
    assigned = assign(unit.spec, rows, unit.watermark, flush=flush)
    new = parts_of(unit.spec, unit.stream, rows, assigned)
    return merged(unit.spec, opened, new, unit.watermark, flush=flush)


def opened_in(unit: FoldUnit) -> SessionParts | None:
    """The open sessions of the bucket so far; None if rows are carried instead."""
    if not carries_sums(unit.spec):
        return None
    found = read_parts(unit.spec, unit.stream, unit.carried)
    if not found.table.num_rows:
        return found
    codes, values = key_codes([found.table.column(name) for name in _named(unit.spec)])
    return found.filter(_own_keys(unit, [(str(key[0]), tuple(key[1:])) for key in values])[codes])


def _named(spec: WindowSpec) -> list[str]:
    """Columns of results that identify the key of a window."""
    return ["tenant", *(GROUP + name for name in spec.key)]


def _own_keys(unit: FoldUnit, keys: Sequence[Key]) -> Mask:
    """Keys of the bucket that are not disturbed."""
    own = [bucket_of(key, unit.buckets) == unit.bucket and key not in unit.again for key in keys]
    return np.array(own, np.bool_)


def _floors(unit: FoldUnit, rows: pa.Table) -> Ints:
    """For each row, the start of the first window of its key that is computed: all rows of those are
    present."""
    low = unit.sealed if unit.whole else unit.floor
    codes, keys = _keys(unit.spec, rows)
    of_keys = [unit.again.get(key, _LEAST if low is None else low) for key in keys]
    floors: Ints = np.array(of_keys, np.int64)[codes]
    return floors


def rows_in(unit: FoldUnit) -> pa.Table:
    rows = rows_of(unit.spec, unit.stream, unit.files)
    if unit.whole and unit.sealed is not None and unit.spec.kind.one_after_another:
        rows = _behind_sealed(unit, rows, unit.sealed)
    if carries_sums(unit.spec):
        return rows
    kept = [table for table in map(read_arrow, unit.carried) if table.num_rows]
    if not kept:
        return rows
    old = pa.concat_tables(kept).cast(row_schema(unit.spec, unit.stream))
    codes, keys = _keys(unit.spec, old)
    old = old.filter(pa.array(_own_keys(unit, keys)[codes]))
    both = pa.concat_tables([old, rows]).unify_dictionaries().combine_chunks()
    return both.sort_by([(AT, "ascending"), (SEQ, "ascending"), (LINE, "ascending")])


def _behind_sealed(unit: FoldUnit, rows: pa.Table, sealed: int) -> pa.Table:
    """Without the rows of windows that began before raw expired, and continued."""
    held = known(current_results(unit.spec, unit.stream, unit.held, ResultScope(whole=True)))
    start, end = (held.column(name).cast(pa.int64()).to_numpy() for name in ("start", "end"))
    held = held.filter(pa.array((start < sealed) & (end > sealed)))
    if not held.num_rows or not rows.num_rows:
        return rows
    columns = [held.column("tenant"), *(held.column(column_name(name)) for name in unit.spec.key)]
    codes, values = key_codes(columns)
    ends: dict[Key, int] = {}
    for code, last in zip(codes.tolist(), held.column("end").cast(pa.int64()).to_pylist(), strict=True):
        key = (str(values[code][0]), tuple(values[code][1:]))
        ends[key] = max(last, ends.get(key, last))
    own, keys = _keys(unit.spec, rows)
    floors = np.array([ends.get(key, sealed) for key in keys], np.int64)
    return rows.filter(pa.array(rows.column(AT).to_numpy() >= floors[own]))


def _keys(spec: WindowSpec, rows: pa.Table) -> tuple[np.ndarray, list[Key]]:
    codes, found = key_codes([rows.column(TENANT), *(rows.column(FIELD + name) for name in spec.key)])
    return codes, [(str(values[0]), tuple(values[1:])) for values in found]


def held_by(unit: FoldUnit, rows: pa.Table, opened: SessionParts | None = None) -> pa.Table:
    """The current results of what this bucket computes."""
    spec = unit.spec
    if spec.kind.by_time:
        return current_results(spec, unit.stream, unit.held, ResultScope(starts=unit.starts))
    if not unit.whole:
        return current_results(spec, unit.stream, unit.held, ResultScope(since=_since(unit, rows, opened)))
    held = current_results(spec, unit.stream, unit.held, ResultScope(whole=True))
    if unit.sealed is not None:
        starts = held.column("start").cast(pa.int64()).to_numpy()
        held = held.filter(pa.array(starts >= unit.sealed))
    if unit.buckets == 1 or not held.num_rows:
        return held
    codes, keys = key_codes([held.column("tenant"), *(held.column(column_name(name)) for name in spec.key)])
    own = [bucket_of((str(k[0]), tuple(k[1:])), unit.buckets) == unit.bucket for k in keys]
    return held.filter(pa.array(np.array(own, np.bool_)[codes]))


def _since(unit: FoldUnit, rows: pa.Table, opened: SessionParts | None) -> dict[Key, int]:
    """Where the computation of each key begins: with its first row, or where it was disturbed."""
    codes, keys = _keys(unit.spec, rows)
    first = np.full(len(keys), -1, np.int64)
    first[codes[::-1]] = rows.column(AT).to_numpy()[::-1]
    since = dict(zip(keys, first.tolist(), strict=True))
    if unit.spec.kind is WindowKind.PER_ROW:
        since = dict.fromkeys(keys, _LEAST if unit.floor is None else unit.floor)
    if opened is not None and opened.table.num_rows:
        since |= first_starts(unit.spec, opened.table)
    for key, at in unit.again.items():
        if bucket_of(key, unit.buckets) == unit.bucket:
            since[key] = min(at, since.get(key, at))
    return since


def _carry(unit: FoldUnit, rows: pa.Table, sessions: SessionParts | None) -> tuple[str | None, Ints]:
    """Rows of windows that are open at the watermark, even if a stop published them, and the starts of those;
    for `sessions` their aggregates so far in place of their rows."""
    if unit.open_file is None:
        return None, np.empty(0, np.int64)
    if unit.spec.kind is WindowKind.PER_ROW:
        return _carry_reach(unit, rows)
    if sessions is not None:
        return _carry_sums(unit, sessions)
    assigned = assign(unit.spec, rows, unit.watermark, flush=False)
    kept = np.sort(assigned.row[_kept(unit.spec, rows, assigned)[assigned.window]])
    if not kept.size:
        return None, np.empty(0, np.int64)
    write_arrow(warehouse_path(unit.open_file), rows.take(pa.array(kept)))
    return unit.open_file, assigned.start[~assigned.closed]


def _carry_sums(unit: FoldUnit, sessions: SessionParts) -> tuple[str | None, Ints]:
    found = sessions.filter(~np.asarray(sessions.table.column("closed").to_numpy(), np.bool_))
    if not found.table.num_rows or unit.open_file is None:
        return None, np.empty(0, np.int64)
    write_parts(warehouse_path(unit.open_file), found)
    return unit.open_file, found.table.column("start").to_numpy()


def _carry_reach(unit: FoldUnit, rows: pa.Table) -> tuple[str | None, Ints]:
    """For windows for each row: the rows that unpublished windows look back to."""
    nothing = np.empty(0, np.int64)
    if unit.watermark is None or unit.open_file is None:
        return None, nothing
    at = rows.column(AT).to_numpy()
    kept = np.flatnonzero((at > unit.watermark - unit.spec.reach) & (at <= unit.watermark))
    if not kept.size:
        return None, nothing
    write_arrow(warehouse_path(unit.open_file), rows.take(pa.array(kept)))
    return unit.open_file, at[at > unit.watermark - unit.spec.lookahead] - unit.spec.size


def _kept(spec: WindowSpec, rows: pa.Table, assigned: Assigned) -> Mask:
    """Windows whose rows are carried: open ones, and earlier ones of the same key and instant, which the
    numbering of the open one depends on."""
    opened = ~assigned.closed
    if not (opened & (assigned.ordinal > 0)).any():
        return opened
    codes, _ = _keys(spec, rows)
    begun = np.stack([codes[assigned.head], assigned.start], axis=1)
    _, which = np.unique(begun, axis=0, return_inverse=True)
    kept: Mask = np.isin(which, which[opened])
    return kept


def _unsettled(unit: FoldUnit, tables: Sequence[pa.Table], opened: Ints) -> int | None:
    """Where results begin that a later fold must check although nothing disturbs them: of open windows, and
    of what a stop published from rows after the watermark."""
    found: list[int] = []
    for table in tables:
        starts = table.column("start").cast(pa.int64()).to_numpy()
        concerned = np.isin(starts, opened)
        if unit.watermark is not None:
            concerned |= starts > unit.watermark - unit.spec.opens_after
        found += starts[concerned].tolist()
    return min(found, default=None)


def _inside(starts: np.ndarray, intervals: Sequence[Interval]) -> np.ndarray:
    """Whether each lies in one of the sorted, disjoint intervals."""
    if not intervals:
        return np.zeros(starts.size, np.bool_)
    lows = np.array([interval.start for interval in intervals], np.int64)
    highs = np.array([interval.end for interval in intervals], np.int64)
    at = np.searchsorted(lows, starts, "right") - 1
    inside: np.ndarray = (at >= 0) & (starts < highs[np.maximum(at, 0)])
    return inside
