"""Late rows: how late each was, and what each declared window did with it.

A row is late when its event time is at or before the watermark it met, which is on record with it; so
nothing here is decided, it is only told. Raw and rollups hold late rows like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidemill.following.places import Feed
from tidemill.following.raw import INSTANT, LATE, Raw, Wanted
from tidemill.model.errors import StorageError
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.streaming import Close, Fate, LatePolicy, WindowSpec

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
        pa.field(  # for each declared window; `start` of the first that it counts in, if they lie on a grid
            "done",
            pa.list_(pa.struct([("window", pa.string()), ("fate", pa.string()), ("start", INSTANT)])),
        ),
    ]
)
_NEWEST_FIRST: Final = "seq DESC, line"

Place = tuple[int, int]  # of a row: that of its slice in the ledger, and its line


@dataclass(frozen=True, slots=True)
class LateTotals:
    """How many rows came late, and what became of them: by window, by fate."""

    rows: int
    windows: Mapping[str, Mapping[Fate, int]] = field(default_factory=dict)


def late_rows(
    feed: Feed,
    *,
    since: int | None = None,
    limit: int | None = None,
    tenant: str | None = None,
    after: Place | None = None,
) -> pa.Table:
    """Late rows of `LATE_ROWS`, those of the newest slice first; `since`: that arrived then or later;
    `after`: those behind this one."""
    entries = _late(feed, since, None if tenant is not None else limit, after)
    found = [_READ.append(pa.field("seq", pa.int64())).empty_table()]
    with Raw(feed) as raw:
        raw.look()
        wanted = _wanted(entries, _NEWEST_FIRST, tenant, limit, after)
        found.extend(pa.Table.from_batches([batch]) for batch in raw.rows(wanted, _READ))
    rows = pa.concat_tables(found).select(_READ.names).combine_chunks()
    times = rows.column("event_time").cast(pa.int64()).to_pylist()
    met = rows.column("watermark").cast(pa.int64()).to_pylist()
    pairs = list(zip(times, met, strict=True))
    done = [[_done(spec, time, at) for spec in feed.stream.window_specs] for time, at in pairs]
    lateness = [at - time for time, at in pairs]
    columns = [*rows.columns, pa.array(lateness, pa.int64()), pa.array(done, LATE_ROWS.field("done").type)]
    return pa.Table.from_arrays(columns, schema=LATE_ROWS)


def late_totals(feed: Feed, *, since: int | None = None, tenant: str | None = None) -> LateTotals:
    """Of all late rows that `late_rows` would list. From the ledger, where that can tell."""
    specs = feed.stream.window_specs
    entries = _late(feed, since, None)
    if tenant is None and not any(_is_bounded(spec) for spec in specs):
        rows = sum(entry.counts.late for entry in entries)
        in_time = dict.fromkeys((spec.name for spec in specs), rows)
    else:
        # Fates differ from row to row only by whether they came within `max_lateness`.
        sums = [
            "count(*)",
            *(
                "count(*) FILTER (epoch_us(raw.watermark) - epoch_us(raw.event_time)"
                f" <= {spec.max_lateness:d})"
                for spec in specs
            ),
        ]
        with Raw(feed) as raw:
            raw.look()
            rows, *counted = raw.numbers(_wanted(entries, "seq", tenant, None), sums)
        in_time = {spec.name: count for spec, count in zip(specs, counted, strict=True)}
    return LateTotals(rows, {spec.name: _fates(spec, rows, in_time[spec.name]) for spec in specs})


def dropped_rows(totals: LateTotals) -> int:
    """Late rows that a window left out; of a stream without any, all: ordered output has none of them.

    What one window drops, one that waits less drops, too, so that the most of any is all that were."""
    if not totals.windows:
        return totals.rows
    return max(sum(n for fate, n in of.items() if not fate.used) for of in totals.windows.values())


class LateCounts:
    """`late_totals` of streams, looked up again only when there are more late rows, or fewer."""

    def __init__(self, feed: Callable[[str], Feed]) -> None:
        self._feed = feed
        self._known: dict[str, tuple[int, LateTotals]] = {}

    def of(self, stream: str, rows: int) -> LateTotals:
        """Of a stream with so many late rows."""
        known = self._known.get(stream)
        if known is None or known[0] != rows:
            known = self._known[stream] = rows, self._look(stream, rows)
        return known[1]

    def _look(self, stream: str, rows: int) -> LateTotals:
        feed = self._feed(stream)
        if rows:
            try:
                return late_totals(feed)
            except StorageError:  # raw is damaged: whoever looks at the stream is told so elsewhere
                return LateTotals(rows)
        return LateTotals(0, {spec.name: {} for spec in feed.stream.window_specs})


def _is_bounded(spec: WindowSpec) -> bool:
    return spec.close is Close.WATERMARK and spec.late is LatePolicy.REEMIT


def _fates(spec: WindowSpec, rows: int, in_time: int) -> Mapping[Fate, int]:
    if _is_bounded(spec):
        found = {Fate.REEMITTED: in_time, Fate.TOO_LATE: rows - in_time}
    else:
        found = {spec.fate(0, 0): rows}
    return {fate: count for fate, count in found.items() if count}


def _late(
    feed: Feed, since: int | None, limit: int | None, after: Place | None = None
) -> Sequence[SliceEntry]:
    """Slices with late rows, newest first; no more than it takes to have `limit` rows behind `after`."""
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


def _wanted(
    entries: Sequence[SliceEntry],
    order: str,
    tenant: str | None,
    limit: int | None,
    after_row: Place | None = None,
) -> Wanted:
    seqs = {entry.id: entry.seq for entry in entries}
    starts = [entry.observed.start for entry in entries if entry.observed is not None]
    met = [entry.watermark for entry in entries if entry.watermark is not None]
    after = min(starts) - 1 if starts else None
    where = LATE
    if after_row is not None:
        seq, line = after_row
        where = f"{LATE} AND (seq < {seq:d} OR (seq = {seq:d} AND line > {line:d}))"
    return Wanted(seqs, where, order, after, max(met, default=None), tenant, limit)


def _done(spec: WindowSpec, event_time: int, met: int) -> dict[str, object]:
    fate = spec.fate(event_time, met)
    start = None
    if fate.used and spec.kind.by_time:
        start = spec.windows_at(spec.counts_at(event_time, met))[0].start
    return {"window": spec.name, "fate": fate.value, "start": start}
