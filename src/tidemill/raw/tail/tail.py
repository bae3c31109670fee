"""A stream as it comes: its rows in order of event time, or of arrival, with its watermarks between them.

In order of event time it is a pure function of the ledger: on-time rows by (event time, ledger offset, line),
interrupted by watermarks. After a watermark no row at or before it comes, and watermarks never go back. Late
rows are not in it; `late` has them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from tidemill.eventtime.ordering import Watermark
from tidemill.model.completeness import PUT_BACK, Missing, damaged
from tidemill.model.errors import BusyError
from tidemill.model.slices import SliceEntry, row_groups
from tidemill.model.time import format_instant
from tidemill.raw.tail.offsets import AcceptedOffsets, Feed, StreamWatermark
from tidemill.raw.tail.rows import BY_ARRIVAL, BY_TIME, ON_TIME, ROWS, TailRows, TailScope, of_slices

log = logging.getLogger(__name__)

Item: TypeAlias = pa.RecordBatch | Watermark | Missing
SORTED_ROWS: Final = 1_000_000  # of slices that are brought into the order of arrival at once


def tail(
    feed: Feed,
    *,
    ordered: bool,
    follow: bool,
    stop: threading.Event,
    wait: Callable[[], object],
    since: int | None = None,
    limit: int | None = None,
    tenant: str | None = None,
    flush: bool = True,
) -> Iterator[Item]:
    """Rows (`ROWS`, in small batches) and watermarks of a stream, from its beginning.

    `since`: only rows that happened then or later; not `ordered`: that arrived. With `follow` it goes on with
    what is accepted, calling `wait` between two looks, until `stop` is set or `limit` rows came. At the end
    of an ordered one the rows that are still buffered come out in order, unless `flush` is False; no
    watermark follows them. A warning about parts of raw that are lost for good comes first.
    """
    left = limit
    for one in feed.lost():
        if not ordered or since is None or one.span.end > since:
            yield damaged(one.span, "raw", PUT_BACK)
    with TailRows(feed) as raw:
        follower: _Follower = (
            _ByTime(feed, raw, since, tenant) if ordered else _ByArrival(feed, raw, since, tenant)
        )
        while left != 0:
            last = not follow or stop.is_set()
            for item in _items(follower, left, follow=follow, last=last, flush=flush):
                yield item
                if isinstance(item, pa.RecordBatch) and left is not None:
                    left -= item.num_rows
                    if not left:
                        return
            if last:
                return
            wait()


class _Follower(Protocol):
    def new_items(self, limit: int | None, *, live: bool) -> Iterator[Item]: ...
    def buffered_items(self, limit: int | None) -> Iterator[Item]: ...


def _items(
    follower: _Follower, limit: int | None, *, follow: bool, last: bool, flush: bool
) -> Iterator[Item]:
    reported = 0
    try:
        for item in _at_most(follower.new_items(limit, live=not last), limit):
            yield item
            reported += item.num_rows if isinstance(item, pa.RecordBatch) else 0
    except BusyError as error:
        if not follow:
            raise
        log.info("%s", error)  # a retraction: continue once it is finished
        return
    if last and flush:
        left = None if limit is None else limit - reported
        yield from _at_most(follower.buffered_items(left), left)


def _at_most(items: Iterable[Item], limit: int | None) -> Iterator[Item]:
    left = limit
    for item in items:
        if left is not None and isinstance(item, pa.RecordBatch):
            item = item.slice(0, left)
            left -= item.num_rows
        yield item
        if left == 0:
            return


class _ByTime:
    """On-time rows in order of event time."""

    def __init__(self, feed: Feed, raw: TailRows, since: int | None, tenant: str | None) -> None:
        self._raw = raw
        self._tenant = tenant
        self._offsets = AcceptedOffsets(feed)
        self._watermark = StreamWatermark(feed)
        self._at = since - 1 if since is not None else None  # rows up to here were returned
        self._last_reported: int | None = None

    def new_items(self, limit: int | None, *, live: bool) -> Iterator[Item]:
        self._offsets.check()
        now = self._watermark.current(live=live)
        new = self._offsets.newly_accepted()
        self._raw.refresh()
        self._warn(new)
        watermarks = {entry.watermark for entry in new} | ({now} if self._offsets.seqs else set())
        cuts = sorted(at for at in watermarks if at is not None and (self._at is None or at > self._at))
        if not cuts:
            return
        for item in _cut(self._rows(cuts[-1], limit), "event_time", [(at, at) for at in cuts]):
            if isinstance(item, Watermark):
                self._at = self._last_reported = item.at
            yield item

    def buffered_items(self, limit: int | None) -> Iterator[Item]:
        return _cut(self._rows(None, limit), "event_time", [])

    def _rows(self, upto: int | None, limit: int | None) -> Iterator[pa.RecordBatch]:
        scope = TailScope(self._offsets.seqs, ON_TIME, BY_TIME, self._at, upto, self._tenant, limit)
        return self._raw.rows(scope, piecewise=True)

    def _warn(self, new: Sequence[SliceEntry]) -> None:
        """This happens only if a landing paused between reading the clock and noting itself, or a retraction
        moved the watermark back."""
        for entry in new if self._last_reported is not None else ():
            assert self._last_reported is not None
            older = entry.observed is not None and entry.observed.start <= self._last_reported
            if older and (entry.watermark is None or entry.watermark < self._last_reported):
                reported = format_instant(self._last_reported)
                log.warning(
                    "rows up to %s are left out: their watermark was sent",
                    reported,
                    extra={"slice": entry.id},
                )


class _ByArrival:
    """All rows, late ones too, slice by slice."""

    def __init__(self, feed: Feed, raw: TailRows, since: int | None, tenant: str | None) -> None:
        self._raw = raw
        self._since = since
        self._tenant = tenant
        self._offsets = AcceptedOffsets(feed)
        self._watermark = StreamWatermark(feed)
        self._at: int | None = None
        self._seq = 0  # slices up to here were returned

    def new_items(self, limit: int | None, *, live: bool) -> Iterator[Item]:
        self._offsets.check()
        now = self._watermark.current(live=live)
        found = self._offsets.newly_accepted()
        self._raw.refresh()
        new = [entry for entry in found if entry.seq > self._seq and self._is_in_scope(entry)]
        left = limit
        for entries in row_groups(new, SORTED_ROWS):
            for item in _cut(self._rows(entries, left), "seq", list(self._moves(entries))):
                if isinstance(item, pa.RecordBatch) and left is not None:
                    left -= item.num_rows
                yield item
            self._seq = entries[-1].seq
        if now is not None and self._offsets.seqs and (self._at is None or now > self._at):
            self._at = now
            yield Watermark(now)

    def buffered_items(self, limit: int | None) -> Iterator[Item]:
        return iter(())

    def _is_in_scope(self, entry: SliceEntry) -> bool:
        return self._since is None or entry.slice.arrival >= self._since

    def _rows(self, entries: Sequence[SliceEntry], limit: int | None) -> Iterator[pa.RecordBatch]:
        seqs = {entry.id: entry.seq for entry in entries if entry.counts.accepted}
        after, upto = of_slices([entry.observed for entry in entries])
        return self._raw.rows(TailScope(seqs, "true", BY_ARRIVAL, after, upto, self._tenant, limit))

    def _moves(self, entries: Sequence[SliceEntry]) -> Iterator[tuple[int, int]]:
        """Watermarks and when they move: each comes before the rows of the first slice that met it."""
        for entry in entries:
            if entry.watermark is not None and (self._at is None or entry.watermark > self._at):
                self._at = entry.watermark
                yield entry.seq - 1, entry.watermark


def _cut(batches: Iterable[pa.RecordBatch], key: str, cuts: Sequence[tuple[int, int]]) -> Iterator[Item]:
    """Rows in order of `key`; each watermark after the last row whose key does not exceed it."""
    left = deque(cuts)
    for batch in batches:
        keys = batch.column(key).view(pa.int64()).to_numpy()
        done = 0
        while left and keys[-1] > left[0][0]:
            offset, at = left.popleft()
            upto = int(np.searchsorted(keys, offset, "right"))
            if upto > done:
                yield _piece(batch, done, upto)
            yield Watermark(at)
            done = upto
        if done < batch.num_rows:
            yield _piece(batch, done, batch.num_rows)
    for _, at in left:
        yield Watermark(at)


def _piece(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    return batch.slice(start, end - start).select(ROWS.names)
