"""Which windows rows belong to: vectorised assigners for every kind, without Spark or any I/O.

Rows come in order of (at, seq, line). The same rows always give the same windows, whatever was asked before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.model.predicates import Predicate
from tidemill.model.streaming import WindowKind, WindowSpec
from tidemill.records.arrays import Ints, Mask
from tidemill.records.arrow import one
from tidemill.records.conditions import holds
from tidemill.streaming.codes import codes, combined, integers, spans, stable_order
from tidemill.streaming.wanted import AT, FIELD, TENANT


@dataclass(frozen=True, slots=True)
class Assigned:
    """Pairs (row, window), by window and then by row; and the windows, each of one tenant and one key."""

    row: Ints  # index into the rows; a row is in several sliding windows, or in none
    window: Ints  # number of the window
    start: Ints  # per window
    end: Ints
    ordinal: Ints  # among windows of the same tenant and key that begin at the same instant, from 0
    head: Ints  # per window: index of its first row, which has its tenant and key
    closed: Mask  # per window: it comes out now


def assign(spec: WindowSpec, rows: pa.Table, watermark: int | None, *, flush: bool) -> Assigned:
    """All windows of these rows, oldest first (by start, then by their first row).

    Closed: by_time and session when their end (of a session: last row + gap) is at or before the watermark;
    count when it has its rows; state when the row that emits came. In windows of kinds that are not by_time
    there are only rows that count at or before the watermark. With `flush` every row counts and every
    window is closed.
    """
    at = integers(rows.column(AT))
    if spec.kind.by_time:
        return _on_grid(spec, rows, at, watermark, flush)
    if not flush:
        released = 0 if watermark is None else int(np.searchsorted(at, watermark, "right"))
        rows, at = rows.slice(0, released), at[:released]
    keys = _keys(rows, at, spec.key)
    match spec.kind:
        case WindowKind.SESSION:
            found = _sessions(keys, spec, watermark)
        case WindowKind.COUNT:
            found = _counts(keys, spec.count)
        case _:
            found = _states(spec, rows, keys)
    return _numbered(keys, found, flush)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Rows of one key after another, each key's in order."""

    order: Ints  # indices into the rows
    at: Ints  # in that order
    begins: Mask  # the first row of a key
    first: Ints  # per row of that order: place of the first row of its key


@dataclass(frozen=True, slots=True)
class _Found:
    """Windows that follow from the rows: half-open spans of places in `_Keys.order`, in that order."""

    first: Ints
    stop: Ints
    end: Ints  # the instant
    closed: Mask


def _keys(rows: pa.Table, at: Ints, key: tuple[str, ...]) -> _Keys:
    parts = [codes(rows.column(TENANT)), *(codes(rows.column(FIELD + name)) for name in key)]
    whole = combined(parts, at.size)
    order = stable_order(whole.values, whole.size)
    begins = _changes(whole.values[order] if whole.size > 1 else whole.values)
    first = np.maximum.accumulate(np.where(begins, np.arange(at.size), 0))
    return _Keys(order, at[order] if whole.size > 1 else at, begins, first)


def _changes(values: Ints) -> Mask:
    """True at the first of each run of equal values."""
    changed = np.ones(values.size, np.bool_)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def _stops(first: Ints, total: int) -> Ints:
    """Where runs end that begin at `first` and leave no gap."""
    return np.append(first[1:], total) if first.size else first


def _sessions(keys: _Keys, spec: WindowSpec, watermark: int | None) -> _Found:
    begins = keys.begins.copy()
    begins[1:] |= np.diff(keys.at) >= spec.apart
    first = np.flatnonzero(begins)
    stop = _stops(first, keys.at.size)
    end = keys.at[stop - 1] + spec.gap
    closed = end <= watermark if watermark is not None else np.zeros(end.size, np.bool_)
    return _Found(first, stop, end, closed)


def _counts(keys: _Keys, count: int) -> _Found:
    first = np.flatnonzero((np.arange(keys.at.size) - keys.first) % count == 0)
    stop = _stops(first, keys.at.size)
    return _Found(first, stop, keys.at[stop - 1] + 1, stop - first == count)


def _states(spec: WindowSpec, rows: pa.Table, keys: _Keys) -> _Found:
    """After a row that emits, nothing is open, whatever was before: so each stretch up to such a row stands
    for itself, and its window begins with the first row in it that opens."""
    assert spec.open is not None, spec.name
    assert spec.emit is not None, spec.name
    opens = np.flatnonzero(_holding(spec.open, rows)[keys.order])
    emits = _holding(spec.emit, rows)[keys.order]
    begins = keys.begins.copy()
    begins[1:] |= emits[:-1]
    stretch = np.flatnonzero(begins)
    stop = _stops(stretch, keys.at.size)
    place = np.searchsorted(opens, stretch)
    first = np.append(opens, keys.at.size)[place]
    there = first < stop
    first, stop = first[there], stop[there]
    return _Found(first, stop, keys.at[stop - 1] + 1, emits[stop - 1])


def _holding(condition: Predicate, rows: pa.Table) -> Mask:
    return holds(condition, lambda field: (one(rows.column(FIELD + field)), 0))


def _numbered(keys: _Keys, found: _Found, flush: bool) -> Assigned:
    start = keys.at[found.first]
    places = np.arange(start.size)
    anew = _changes(start) | _changes(keys.first[found.first])
    ordinal = places - np.maximum.accumulate(np.where(anew, places, 0))
    head = keys.order[found.first]
    oldest_first = np.argsort(head)  # rows are in order of time, and so are windows by their first row
    lengths = (found.stop - found.first)[oldest_first]
    return Assigned(
        row=keys.order[spans(found.first[oldest_first], lengths)],
        window=np.repeat(places, lengths),
        start=start[oldest_first],
        end=found.end[oldest_first],
        ordinal=ordinal[oldest_first],
        head=head[oldest_first],
        closed=np.ones(start.size, np.bool_) if flush else found.closed[oldest_first],
    )


def _on_grid(spec: WindowSpec, rows: pa.Table, at: Ints, watermark: int | None, flush: bool) -> Assigned:
    """Rows of one tenant are in order of time, so that each window is a span of them. Rows are first in their
    newest window, then in the one a step older, and so on: a window is what it has in all of these rounds."""
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
        else:  # rows of a run that come too late for a window that old are its last ones
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
        anew = np.flatnonzero(_changes(start) | _changes(tenant[begin]))
        last = _stops(anew, start.size) - 1
        begin, stop, start = begin[anew], stop[last], start[anew]
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
