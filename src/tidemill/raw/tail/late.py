"""Late rows: how late each was, and what each declared window did with it.

A row is late if its event time is at or before the watermark it met, which is recorded with it; nothing is
decided here. Raw and rollups hold late rows like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidemill.model.errors import StorageError
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.streaming import Close, Fate, LateBy, LatePolicy, WindowSpec
from tidemill.raw.tail.offsets import Feed
from tidemill.raw.tail.rows import INSTANT, LATE, TailRows, TailScope

_READ: Final = pa.schema(
    [
        pa.field("tenant", pa.string()),
        pa.field("event_time", INSTANT),
        pa.field("event_id", pa.string()),
        pa.field("event_type", pa.string()),
        pa.field("arrival", INSTANT),
        pa.field("watermark", INSTANT),  # that it met
        pa.field("slice", pa.string()),
        pa.field("line", pa.int64()),
    ]
)
LATE_ROWS: Final = pa.schema(
    [
        *_READ,
        pa.field("lateness", pa.int64()),  # microseconds that it was behind the watermark
        # For each declared window; `start` of the first that it counts in, if windows are on a grid.
        pa.field(
            "done",
            pa.list_(pa.struct([("window", pa.string()), ("fate", pa.string()), ("start", INSTANT)])),
        ),
    ]
)
_NEWEST_FIRST: Final = "seq DESC, line"

Place = tuple[int, int]  # of a row: the offset of its slice, and its line


@dataclass(frozen=True, slots=True)
class LateTotals:
    """How many rows came late, and what was done with them: by window, by fate."""

    rows: int
    dropped: int  # that a window left out; for a stream without windows all, since ordered output has none
    windows: Mapping[str, Mapping[Fate, int]] = field(default_factory=dict)


def late_rows(
    feed: Feed,
    *,
    since: int | None = None,
    limit: int | None = None,
    tenant: str | None = None,
    after: Place | None = None,
) -> pa.Table:
    """Late rows with the schema `LATE_ROWS`, newest slice first; `since`: by arrival; `after`: those after
    this row."""
    entries = _late(feed, since, None if tenant is not None else limit, after)
    found = [_READ.append(pa.field("seq", pa.int64())).empty_table()]
    with TailRows(feed) as raw:
        raw.refresh()
        scope = _scope(entries, _NEWEST_FIRST, tenant, limit, after)
        found.extend(pa.Table.from_batches([batch]) for batch in raw.rows(scope, _READ))
    rows = pa.concat_tables(found).select(_READ.names).combine_chunks()
    times = rows.column("event_time").cast(pa.int64()).to_pylist()
    watermarks = rows.column("watermark").cast(pa.int64()).to_pylist()
    pairs = list(zip(times, watermarks, strict=True))
    done = [[_done(spec, time, at) for spec in feed.stream.window_specs] for time, at in pairs]
    lateness = [at - time for time, at in pairs]
    columns = [*rows.columns, pa.array(lateness, pa.int64()), pa.array(done, LATE_ROWS.field("done").type)]
    return pa.Table.from_arrays(columns, schema=LATE_ROWS)


def late_totals(feed: Feed, *, since: int | None = None, tenant: str | None = None) -> LateTotals:
    """Totals of all late rows that `late_rows` would list. From the ledger, where that is enough."""
    specs = feed.stream.window_specs
    entries = _late(feed, since, None)
    if tenant is None and not any(_by_row(spec) for spec in specs):
        rows = sum(entry.counts.late for entry in entries)
        alike = {spec.name: spec.fate(0, 0) for spec in specs}
        dropped = rows if not alike or any(not fate.used for fate in alike.values()) else 0
        return LateTotals(rows, dropped, {name: {fate: rows} if rows else {} for name, fate in alike.items()})
    conditions = [pair for spec in specs for pair in _conditions(spec).items()]
    unused = " OR ".join(sql for fate, sql in conditions if not fate.used) or str(not specs).lower()
    all_sql = (unused, *(sql for _, sql in conditions))
    sums = ["count(*)", *(f"count(*) FILTER ({sql})" for sql in all_sql)]
    with TailRows(feed) as raw:
        raw.refresh()
        rows, dropped, *counted = raw.numbers(_scope(entries, "seq", tenant, None), sums)
    counts = iter(counted)
    found = {spec.name: {fate: next(counts) for fate in _conditions(spec)} for spec in specs}
    reported = {name: {fate: n for fate, n in condition.items() if n} for name, condition in found.items()}
    return LateTotals(rows, dropped, reported)


class LateCounts:
    """`late_totals` of streams, computed again only if the number of late rows changed."""

    def __init__(self, feed: Callable[[str], Feed]) -> None:
        self._feed = feed
        self._known: dict[str, tuple[int, LateTotals]] = {}

    def of(self, stream: str, rows: int) -> LateTotals:
        """The totals of a stream with so many late rows."""
        known = self._known.get(stream)
        if known is None or known[0] != rows:
            known = self._known[stream] = rows, self._count(stream, rows)
        return known[1]

    def _count(self, stream: str, rows: int) -> LateTotals:
        feed = self._feed(stream)
        if rows:
            try:
                return late_totals(feed)
            except StorageError:  # raw is damaged, which is reported elsewhere
                return LateTotals(rows, rows)
        return LateTotals(0, 0, {spec.name: {} for spec in feed.stream.window_specs})


def _by_row(spec: WindowSpec) -> bool:
    """Whether late rows can have different fates."""
    bounded = spec.late is LatePolicy.REEMIT or spec.late_by is LateBy.WINDOW
    return spec.close is Close.WATERMARK and bounded


def _conditions(spec: WindowSpec) -> Mapping[Fate, str]:
    """The condition of each fate of a late row: `WindowSpec.fate` in SQL."""
    if not _by_row(spec):
        return {spec.fate(0, 0): "true"}
    time, watermark = "epoch_us(raw.event_time)", "epoch_us(raw.watermark)"
    if spec.late_by is LateBy.ROW:
        in_time = f"{watermark} - {time} <= {spec.max_lateness:d}"
        return {Fate.REEMITTED: in_time, Fate.TOO_LATE: f"NOT ({in_time})"}
    return _conditions_by_window(spec, time, watermark)


def _conditions_by_window(spec: WindowSpec, time: str, watermark: str) -> Mapping[Fate, str]:
    last = f"({time} + {spec.gap:d})"
    step = spec.step or spec.gap
    if spec.kind.by_time:
        last = f"({time} - {_modulo(time, step)} + {spec.size:d})"
    is_open = f"{last} > {watermark}"
    if spec.late is not LatePolicy.REEMIT:
        return {Fate.ON_TIME: is_open, spec.fate(0, 2 * spec.last_end(0)): f"NOT ({is_open})"}
    horizon = f"({watermark} - {spec.max_lateness:d})"
    # the newest end at or before the watermark
    ended = f"({watermark} - {_modulo(f'({watermark} - {last})', step)})"
    again = f"CASE WHEN {is_open} THEN {ended} > greatest({time}, {horizon}) ELSE {last} > {horizon} END"
    return {
        Fate.REEMITTED: again,
        Fate.ON_TIME: f"{is_open} AND NOT ({again})",
        Fate.TOO_LATE: f"NOT ({is_open}) AND NOT ({again})",
    }


def _modulo(number: str, by: int) -> str:
    """Never below zero, as in Python."""
    return f"((({number}) % {by:d} + {by:d}) % {by:d})"


def _late(
    feed: Feed, since: int | None, limit: int | None, after: Place | None = None
) -> Sequence[SliceEntry]:
    """Slices with late rows, newest first; no more than needed for `limit` rows after `after`."""
    entries: list[SliceEntry] = []
    rows = 0
    for entry in feed.state.slices(feed.stream.name, SliceStatus.ACCEPTED, newest=True):
        if limit is not None and rows >= limit:
            break
        if after is not None and entry.seq > after[0]:
            continue
        if entry.counts.late and (since is None or entry.slice.arrival >= since):
            entries.append(entry)
            rows += entry.counts.late if after is None or entry.seq < after[0] else 0
    return entries


def _scope(
    entries: Sequence[SliceEntry],
    order: str,
    tenant: str | None,
    limit: int | None,
    after_row: Place | None = None,
) -> TailScope:
    seqs = {entry.id: entry.seq for entry in entries}
    starts = [entry.observed.start for entry in entries if entry.observed is not None]
    watermarks = [entry.watermark for entry in entries if entry.watermark is not None]
    after = min(starts) - 1 if starts else None
    where = LATE
    if after_row is not None:
        seq, line = after_row
        where = f"{LATE} AND (seq < {seq:d} OR (seq = {seq:d} AND line > {line:d}))"
    return TailScope(seqs, where, order, after, max(watermarks, default=None), tenant, limit)


def _done(spec: WindowSpec, event_time: int, met: int) -> dict[str, object]:
    fate = spec.fate(event_time, met)
    start = None
    if fate.used and spec.kind.by_time:
        windows = spec.windows_at(spec.counts_at(event_time, met))
        ended = met - spec.max_lateness if spec.some_windows else event_time
        start = next(window.start for window in windows if window.end > ended)
    return {"window": spec.name, "fate": fate.value, "start": start}
