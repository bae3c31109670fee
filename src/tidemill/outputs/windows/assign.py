"""Assigns rows to windows: vectorised assigners for every kind, without Spark or any I/O.

Rows are sorted by (at, seq, line). Equal rows always give equal windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.formats.conditions import holds
from tidemill.model.conditions.declared import DeclaredCondition
from tidemill.model.streaming import WindowKind, WindowSpec
from tidemill.outputs.windows.codes import codes, combined, integers, spans, stable_order
from tidemill.outputs.windows.numba_loops import reaches, state_spans
from tidemill.outputs.windows.row_scope import AT, FIELD, PAST, TENANT

_PAIRS: Final = 1 << 22  # pairs of a row and a window that are held at once, if each row has a window


@dataclass(frozen=True, slots=True)
class Assigned:
    """Pairs (row, window), by window and then by row; and the windows, each of one tenant and one key."""

    row: Ints  # index of a row; a row is in several sliding windows, or in none
    window: Ints  # number of the window
    start: Ints  # per window
    end: Ints
    ordinal: Ints  # among windows of the same tenant and key that begin at the same instant, from 0
    head: Ints  # per window: index of a row that has its tenant and key
    closed: Mask  # per window: it is published now


def assign(spec: WindowSpec, rows: pa.Table, watermark: int | None, *, flush: bool) -> Assigned:
    """All windows of these rows, oldest first (by start, then by their first row).

    Closed: by_time and session when their end (of a session: last row + gap) is at or before the watermark;
    count when it has its rows; state when the row that emits arrived; one for each row when the watermark has
    reached the last instant that it looks ahead to. Windows of kinds that are not by_time contain only rows
    that count at or before the watermark. With `flush` every row counts and every window is closed.
    """
    at = integers(rows.column(AT))
    if spec.kind.by_time:
        found = _on_grid(spec, rows, at, watermark, flush)
        return _without_past(found, integers(rows.column(PAST))) if spec.some_windows else found
    keys, windows = _find_windows(spec, rows, watermark, flush)
    return _paired(keys, windows)


def assign_in_pieces(
    spec: WindowSpec, rows: pa.Table, watermark: int | None, since: Ints | None, *, flush: bool
) -> Iterator[Assigned]:
    """The same windows, some at a time: windows for each row can contain so many rows that the pairs do not
    fit in memory. Only those that start at or after `since` of their row."""
    if spec.kind is not WindowKind.PER_ROW:
        yield assign(spec, rows, watermark, flush=flush)
        return
    keys, windows = _find_windows(spec, rows, watermark, flush)
    if since is not None:
        windows = windows.take(np.flatnonzero(windows.start >= since[windows.head]))
    piece = (np.cumsum(windows.lengths) - windows.lengths) // _PAIRS
    cuts = [*np.flatnonzero(_changes(piece)).tolist(), piece.size]
    for first, stop in pairwise(cuts):
        yield _paired(keys, windows.take(np.arange(first, stop)))


def _find_windows(
    spec: WindowSpec, rows: pa.Table, watermark: int | None, flush: bool
) -> tuple[_KeyRuns, _Windows]:
    at = integers(rows.column(AT))
    if not flush:
        released = 0 if watermark is None else int(np.searchsorted(at, watermark, "right"))
        rows, at = rows.slice(0, released), at[:released]
    keys = _keys(rows, at, spec.key)
    match spec.kind:
        case WindowKind.SESSION:
            found = _sessions(keys, spec, watermark)
        case WindowKind.COUNT:
            found = _counts(keys, spec.count)
        case WindowKind.PER_ROW:
            found = _per_row(keys, spec, watermark)
        case _:
            found = _states(spec, rows, keys)
    return keys, _numbered(keys, found, flush)


@dataclass(frozen=True, slots=True)
class _KeyRuns:
    """Rows sorted by key, those of each key in order."""

    order: Ints  # indices into the rows
    at: Ints  # in that order
    begins: Mask  # the first row of a key
    first: Ints  # per row in that order: position of the first row of its key


@dataclass(frozen=True, slots=True)
class _FoundWindows:
    """Windows that follow from the rows: half-open spans of positions in `_Keys.order`, sorted."""

    first: Ints
    stop: Ints
    start: Ints  # the instants
    end: Ints
    closed: Mask
    head: Ints  # position of the row that the window belongs to: its first one, or the one that it is for


@dataclass(frozen=True, slots=True)
class _Windows:
    """The same, numbered, oldest first."""

    first: Ints  # position in `_Keys.order`
    lengths: Ints
    start: Ints
    end: Ints
    ordinal: Ints
    head: Ints  # index into the rows
    closed: Mask

    def take(self, which: Ints) -> _Windows:
        return _Windows(*(getattr(self, field.name)[which] for field in fields(self)))


def _keys(rows: pa.Table, at: Ints, key: tuple[str, ...]) -> _KeyRuns:
    parts = [codes(rows.column(TENANT)), *(codes(rows.column(FIELD + name)) for name in key)]
    whole = combined(parts, at.size)
    order = stable_order(whole.values, whole.size)
    begins = _changes(whole.values[order] if whole.size > 1 else whole.values)
    first = np.maximum.accumulate(np.where(begins, np.arange(at.size), 0))
    return _KeyRuns(order, at[order] if whole.size > 1 else at, begins, first)


def _changes(values: Ints) -> Mask:
    """True at the first of each run of equal values."""
    changed = np.ones(values.size, np.bool_)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def _stops(first: Ints, total: int) -> Ints:
    """Where runs that begin at `first` and have no gap end."""
    return np.append(first[1:], total) if first.size else first


def _sessions(keys: _KeyRuns, spec: WindowSpec, watermark: int | None) -> _FoundWindows:
    begins = keys.begins.copy()
    begins[1:] |= np.diff(keys.at) >= spec.apart
    first = np.flatnonzero(begins)
    stop = _stops(first, keys.at.size)
    end = keys.at[stop - 1] + spec.gap
    return _FoundWindows(first, stop, keys.at[first], end, _reached(end, watermark), first)


def _reached(instants: Ints, watermark: int | None) -> Mask:
    """Which instants the watermark has reached."""
    return instants <= watermark if watermark is not None else np.zeros(instants.size, np.bool_)


def _counts(keys: _KeyRuns, count: int) -> _FoundWindows:
    first = np.flatnonzero((np.arange(keys.at.size) - keys.first) % count == 0)
    stop = _stops(first, keys.at.size)
    return _by_rows(keys, first, stop, stop - first == count)


def _by_rows(keys: _KeyRuns, first: Ints, stop: Ints, closed: Mask) -> _FoundWindows:
    """Windows that end with their last row."""
    return _FoundWindows(first, stop, keys.at[first], keys.at[stop - 1] + 1, closed, first)


def _per_row(keys: _KeyRuns, spec: WindowSpec, watermark: int | None) -> _FoundWindows:
    first, stop = reaches(keys.at, keys.first, spec.size, spec.lookahead)
    last = keys.at + spec.lookahead
    rows = np.arange(keys.at.size)
    return _FoundWindows(first, stop, keys.at - spec.size, last + 1, _reached(last, watermark), rows)


def _states(spec: WindowSpec, rows: pa.Table, keys: _KeyRuns) -> _FoundWindows:
    assert spec.open is not None, spec.name
    assert spec.emit is not None, spec.name
    opens, emits = (_holding(condition, rows)[keys.order] for condition in (spec.open, spec.emit))
    first, stop = state_spans(opens, emits, keys.begins, on_open=spec.emit_on_open)
    ended = emits[stop - 1]
    if not spec.emit_on_open:
        ended &= stop - first > 1
    return _by_rows(keys, first, stop, ended)


def _holding(condition: DeclaredCondition, rows: pa.Table) -> Mask:
    return holds(condition.condition, lambda field: (one(rows.column(FIELD + field)), 0))


def _numbered(keys: _KeyRuns, found: _FoundWindows, flush: bool) -> _Windows:
    positions = np.arange(found.start.size)
    again = _changes(found.start) | _changes(keys.first[found.head])
    ordinal = positions - np.maximum.accumulate(np.where(again, positions, 0))
    head = keys.order[found.head]
    closed = np.ones(head.size, np.bool_) if flush else found.closed
    windows = _Windows(found.first, found.stop - found.first, found.start, found.end, ordinal, head, closed)
    return windows.take(np.argsort(head))  # rows are sorted by time, and so are windows by their rows


def _paired(keys: _KeyRuns, windows: _Windows) -> Assigned:
    return Assigned(
        row=keys.order[spans(windows.first, windows.lengths)],
        window=np.repeat(np.arange(windows.start.size), windows.lengths),
        start=windows.start,
        end=windows.end,
        ordinal=windows.ordinal,
        head=windows.head,
        closed=windows.closed,
    )


def _on_grid(spec: WindowSpec, rows: pa.Table, at: Ints, watermark: int | None, flush: bool) -> Assigned:
    """Windows on a grid. Rows of one tenant are sorted by time, so each window is a span of them. Rows are
    assigned to their newest window first, then to the one a step older, and so on."""
    tenants = codes(rows.column(TENANT))
    order = stable_order(tenants.values, tenants.size)
    tenant = tenants.values[order] if tenants.size > 1 else tenants.values
    at = at[order] if tenants.size > 1 else at
    newest = at - at % spec.step
    runs = np.flatnonzero(_changes(newest) | _changes(tenant))
    stops = _stops(runs, at.size)
    begin, stop, start = [], [], []
    for back in range(-(-spec.size // spec.step)):
        starts = newest[runs] - back * spec.step
        if (back + 1) * spec.step <= spec.size:
            reached = stops
        else:  # rows of a run that are too late for such an old window are its last ones
            inside = np.concatenate(([0], np.cumsum(at < newest + (spec.size - back * spec.step))))
            reached = runs + inside[stops] - inside[runs]
        there = reached > runs
        begin.append(runs[there])
        stop.append(reached[there])
        start.append(starts[there])
    return _merged(
        spec,
        order,
        tenant,
        (np.concatenate(begin), np.concatenate(stop), np.concatenate(start)),
        watermark,
        flush,
    )


def _without_past(found: Assigned, past: Ints) -> Assigned:
    """Without the pairs of a row and a window that had ended before the row arrived."""
    keep = found.end[found.window] > past[found.row]
    if keep.all():
        return found
    row = found.row[keep]
    windows, first, window = np.unique(found.window[keep], return_index=True, return_inverse=True)
    return Assigned(
        row=row,
        window=window.astype(np.int64),
        start=found.start[windows],
        end=found.end[windows],
        ordinal=found.ordinal[windows],
        head=row[first],
        closed=found.closed[windows],
    )


def _merged(
    spec: WindowSpec,
    order: Ints,
    tenant: Ints,
    spans_found: tuple[Ints, Ints, Ints],
    watermark: int | None,
    flush: bool,
) -> Assigned:
    begin, stop, start = spans_found
    if spec.size > spec.step:
        sort = np.lexsort((begin, start, tenant[begin]))
        begin, stop, start = begin[sort], stop[sort], start[sort]
        again = np.flatnonzero(_changes(start) | _changes(tenant[begin]))
        last = _stops(again, start.size) - 1
        begin, stop, start = begin[again], stop[last], start[again]
    head = order[begin]
    oldest_first = np.lexsort((head, start))
    lengths = (stop - begin)[oldest_first]
    start = start[oldest_first]
    end = start + spec.size
    if flush:
        closed = np.ones(start.size, np.bool_)
    else:
        closed = end <= watermark if watermark is not None else np.zeros(start.size, np.bool_)
    return Assigned(
        row=order[spans(begin[oldest_first], lengths)],
        window=np.repeat(np.arange(start.size), lengths),
        start=start,
        end=end,
        ordinal=np.zeros(start.size, np.int64),
        head=head[oldest_first],
        closed=closed,
    )
