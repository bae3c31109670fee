"""The state of a warehouse on a Redis server, which several machines share: every method one act of a script.

It never holds a fact that the warehouse does not also hold, and keeps none in memory; threads and processes
may use the same prefix of the same server side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tidemill.model.errors import InputError
from tidemill.model.gateway import Receipt
from tidemill.model.levels import BASE
from tidemill.model.slices import NewSlice, SliceEntry, SliceStatus, set_hash
from tidemill.model.tiles import BaseTile, TileState
from tidemill.model.time import Interval
from tidemill.model.windows import Build, Dataset, Judged, Member, OutboxEvent, Phase, Window, WindowKey
from tidemill.state import phases, redis_windows
from tidemill.state.protocol import NO_PROGRESS, BatchRecord, ClockState, Progress, Retraction, TileBuild
from tidemill.state.redis_dump import dump_heard
from tidemill.state.redis_link import Link, Store
from tidemill.state.redis_rows import (
    base_tiles_heard,
    batch_said,
    clocks_heard,
    entries_heard,
    entry_heard,
    entry_said,
    event_heard,
    event_said,
    items,
    json_row,
    kept_heard,
    number,
    ordered,
    pairs,
    progress_heard,
    receipt_heard,
    receipt_said,
    text,
    texts,
    tile_heard,
    tiles_said,
    wanted_said,
    windows_heard,
)
from tidemill.state.rows import TOTALS

AT_ONCE: Final = 1000  # rows of the ledger that `restore` sends in one piece
RECEIPTS: Final = 5000  # that are kept or dropped in one piece: nobody else is served meanwhile


class RedisState:
    """`State` on Redis. `target` says which one: the current one of a prefix, or the one being recovered."""

    def __init__(self, link: Link, target: str = "current") -> None:
        self._link = link
        self._store = Store(link, target)

    def enter(self, new: NewSlice) -> SliceEntry:
        return self.enter_all([new])[0]

    def enter_all(self, news: Sequence[NewSlice]) -> list[SliceEntry]:
        rows = [entry_said(SliceEntry(seq=0, slice=new)) for new in news]
        return entries_heard(self._store.act("enter", rows=rows)[0]) if rows else []

    def landings(self) -> int:
        return number(self._store.look("landings")[0])

    def slice(self, id_or_prefix: str) -> SliceEntry | None:
        prefix = id_or_prefix.strip().lower()
        if not prefix:
            raise InputError("a slice is named by its id", hint="give the id, or the first characters of it")
        entries = entries_heard(self._store.look("slice", prefix=prefix)[0])
        if not entries or entries[0].id == prefix:
            return entries[0] if entries else None
        if len(entries) > 1:
            names = ", ".join(entry.id[: len(prefix) + 8] for entry in entries)
            raise InputError(f"several slice ids start with {prefix!r}", hint=f"give more of one: {names}")
        return entries[0]

    def slice_at(self, seq: int) -> SliceEntry | None:
        (row,) = self._store.look("slice_at", seq=str(seq))
        return None if row is None else entry_heard(row)

    def slices(
        self,
        stream: str | None = None,
        status: SliceStatus | None = None,
        *,
        newest: bool = False,
        limit: int | None = None,
        before: int | None = None,
    ) -> list[SliceEntry]:
        upto = str(before) if before is not None else None
        wanted = _given(stream=stream, status=status.value if status else None, before=upto)
        return entries_heard(self._store.look("slices", **wanted, newest=newest, limit=_limit(limit))[0])

    def pending(self, stream: str, max_bytes: int) -> list[SliceEntry]:
        return entries_heard(self._store.look("pending", stream=stream, max_bytes=str(max_bytes))[0])

    def totals(self, stream: str) -> Mapping[str, int]:
        found = pairs(self._store.look("totals", stream=stream)[0])
        return dict.fromkeys(TOTALS, 0) | {name: int(value) for name, value in found.items()}

    def apply_batch(self, record: BatchRecord) -> bool:
        return number(self._store.act("apply_batch", **batch_said(record))[0]) == 1

    def has_batch(self, stream: str, batch: str) -> bool:
        return number(self._store.look("has_batch", stream=stream, batch=batch)[0]) == 1

    def clocks(self, stream: str) -> list[ClockState]:
        return clocks_heard(self._store.look("clocks", stream=stream)[0])

    def progress(self, stream: str) -> Progress:
        return progress_heard(self._store.look("progress", stream=stream)[0])

    # -- streaming windows

    def marks(self, stream: str) -> Mapping[str, str]:
        return pairs(self._store.look("marks", stream=stream)[0])

    def set_mark(
        self, stream: str, window: str, mark: str | None, events: Sequence[OutboxEvent] = ()
    ) -> None:
        said = [event_said(event) for event in events]
        self._store.act("set_mark", stream=stream, window=window, **_given(mark=mark), events=said)

    def runs(self, stream: str) -> list[str]:
        return texts(self._store.look("runs", stream=stream)[0])

    def replace_runs(self, stream: str, old: Sequence[str], new: Sequence[str]) -> bool:
        (done,) = self._store.act("replace_runs", stream=stream, old=list(old), new=list(new))
        return number(done) == 1

    def stale_tiles(self, stream: str) -> list[BaseTile]:
        return base_tiles_heard(BASE.name, *self._store.look("stale_tiles", stream=stream))

    def base_tile(self, stream: str, start: int) -> BaseTile | None:
        found = base_tiles_heard(
            BASE.name, *self._store.look("base_tile", stream=stream, start=ordered(start))
        )
        return found[0] if found else None

    def tiles(self, stream: str, level: str, span: Interval | None = None) -> list[TileState]:
        starts, rows = self._store.look("tiles", stream=stream, level=level, **_within(span))
        return [tile_heard(level, start, row) for start, row in zip(texts(starts), items(rows), strict=True)]

    def tile_counts(self, stream: str) -> Mapping[str, int]:
        found = pairs(self._store.look("tile_counts", stream=stream)[0])
        return {level: int(count) for level, count in found.items()}

    def touch_tiles(self, stream: str, tiles: Mapping[int, frozenset[str]]) -> None:
        self._store.act("touch_tiles", **wanted_said(stream, tiles))

    def apply_tiles(self, stream: str, version: int, builds: Iterable[TileBuild]) -> None:
        built = list(builds)
        for build in built:
            whole = build.key.level != BASE.name or build.hash == set_hash(build.slices)
            assert whole, f"5s tile {build.key.start}: hash is not that of its slices"
        self._store.act("apply_tiles", **tiles_said(stream, version, built))

    def table_versions(self, stream: str) -> Mapping[str, int]:
        found = pairs(self._store.look("table_versions", stream=stream)[0])
        return {table: int(version) for table, version in found.items()}

    def saw(self, stream: str, versions: Mapping[str, int]) -> None:
        said = {table: str(version) for table, version in versions.items()}
        self._store.act("saw", stream=stream, versions=said)

    # -- retractions

    def retractions(self) -> int:
        return number(self._store.look("retractions")[0])

    def apply_retraction(
        self,
        act: Retraction,
        clocks: Sequence[ClockState],
        raw_version: int,
        quarantine_version: int,
        progress: Progress = NO_PROGRESS,
    ) -> bool:
        return redis_windows.retract(self._store, act, clocks, raw_version, quarantine_version, progress)

    # -- slices that failed

    def failing(self, stream: str, now: int, declared: str, limit: int) -> list[SliceEntry]:
        ask = {"stream": stream, "now": ordered(now), "declared": declared, "limit": limit}
        return entries_heard(self._store.look("failing", **ask)[0])

    def postpone(self, slice_id: str, error: str, retry_at: int) -> None:
        self._store.act("postpone", id=slice_id, error=error, retry_at=ordered(retry_at))

    def send_again(self, slice_ids: Sequence[str]) -> list[SliceEntry]:
        return entries_heard(self._store.act("send_again", ids=list(slice_ids))[0]) if slice_ids else []

    def hasten(self, stream: str) -> int:
        return number(self._store.act("hasten", stream=stream)[0])

    # -- windows

    def span(self, stream: str) -> int | None:
        (found,) = self._store.look("span", stream=stream)
        return None if found is None else number(found)

    def lay_out(self, stream: str, span: int) -> None:
        assert span > 0, span
        self._store.act("lay_out", stream=stream, span=str(span))

    def forget_windows(self, stream: str, before: int) -> int:
        return redis_windows.forget(self._store, stream, before)

    def unlaid(self, stream: str, limit: int) -> list[SliceEntry]:
        return entries_heard(self._store.look("unlaid", stream=stream, limit=limit)[0]) if limit else []

    def lay(self, stream: str, windows: Mapping[str, Iterable[int]]) -> None:
        redis_windows.lay(self._store, stream, windows)

    def due(self, stream: str, now: int, limit: int) -> list[tuple[Window, list[Member]]]:
        if not limit:
            return []
        seen = windows_heard(*self._store.look("due", stream=stream, now=ordered(now), limit=limit))
        return [(found.kept.window, found.members()) for found in seen]

    def judge(self, judged: Sequence[Judged]) -> list[WindowKey]:
        return redis_windows.judge(self._store, judged)

    def window(self, key: WindowKey) -> tuple[Window, list[Member]] | None:
        for found in redis_windows.these(self._store, [key]):
            if found.kept.window.key == key:
                return found.kept.window, found.members()
        return None

    def windows(
        self,
        stream: str | None = None,
        phase: Phase | None = None,
        span: Interval | None = None,
        *,
        newest: bool = False,
        limit: int | None = None,
    ) -> list[Window]:
        wanted = _given(stream=stream, phase=phase.value if phase else None) | _within(span)
        (rows,) = self._store.look("windows", **wanted, newest=newest, limit=_limit(limit))
        return [kept_heard(json_row(row)).window for row in items(rows)]

    def window_counts(self, stream: str) -> Mapping[Phase, int]:
        found = pairs(self._store.look("window_counts", stream=stream)[0])
        return {Phase(phase): int(count) for phase, count in found.items()}

    def member_counts(self, keys: Sequence[WindowKey]) -> Mapping[WindowKey, tuple[int, int, int]]:
        windows = [[key.stream, ordered(key.start), str(key.span)] for key in keys]
        (found,) = self._store.look("member_counts", windows=windows)
        counts: dict[WindowKey, tuple[int, int, int]] = {}
        for key, reply in zip(keys, items(found), strict=True):
            desired, observed, ignored = map(number, items(reply))
            counts[key] = (desired, observed, ignored)
        return counts

    def windows_of(self, slice_id: str) -> list[tuple[Window, Member]]:
        seen = windows_heard(*self._store.look("windows_of", id=slice_id))
        return [(found.kept.window, found.members()[0]) for found in seen]

    def force(self, keys: Sequence[WindowKey], trigger: str, *, reopen: bool = False) -> list[WindowKey]:
        return redis_windows.force(self._store, keys, trigger, reopen=reopen)

    # -- the queue

    def take(
        self, owner: str, now: int, lease_until: int, limit: int, streams: Sequence[str] | None = None
    ) -> list[Build]:
        return redis_windows.take(self._store, owner, now, lease_until, limit, streams)

    def renew(self, owner: str, keys: Sequence[WindowKey], lease_until: int) -> list[WindowKey]:
        return redis_windows.renew(self._store, owner, keys, lease_until)

    def complete(self, build: Build, dataset: Dataset, now: int, events: Sequence[OutboxEvent] = ()) -> bool:
        return self.complete_all([(build, dataset, events)], now)[0]

    def complete_all(
        self, done: Sequence[tuple[Build, Dataset, Sequence[OutboxEvent]]], now: int
    ) -> list[bool]:
        return redis_windows.complete_all(self._store, done, now)

    def fail(self, build: Build, error: str, not_before: int, tries: int) -> bool:
        return redis_windows.fail(self._store, build, error, not_before, tries)

    def release(self, owner: str) -> int:
        return redis_windows.settle(self._store, "held", {"owner": owner}, phases.released)

    def retry(self, stream: str, start: int | None = None) -> int:
        ask = _given(stream=stream, start=None if start is None else ordered(start))
        return redis_windows.settle(self._store, "failed", ask, phases.retried)

    def queue_length(self, stream: str | None = None) -> int:
        return number(self._store.look("queue_length", **_given(stream=stream))[0])

    def observe(self, datasets: Sequence[Dataset], events: Sequence[OutboxEvent]) -> None:
        redis_windows.observe(self._store, datasets, events)

    # -- the outbox

    def outbox(self, after: int = 0, limit: int = 1000, stream: str | None = None) -> list[OutboxEvent]:
        (found,) = self._store.look("outbox", **_given(stream=stream), after=str(after), limit=limit)
        return [event_heard(event) for event in items(found)]

    def delivered(self, sink: str) -> int:
        (found,) = self._store.look("delivered", sink=sink)
        return 0 if found is None else number(found)

    def set_delivered(self, sink: str, seq: int) -> None:
        self._store.act("set_delivered", sink=sink, seq=str(seq))

    # -- receipts

    def keep_receipts(self, receipts: Sequence[Receipt], until: int) -> None:
        for first in range(0, len(receipts), RECEIPTS):
            said = [[receipt.id, receipt_said(receipt)] for receipt in receipts[first : first + RECEIPTS]]
            self._store.act("keep_receipts", receipts=said, until=ordered(until))

    def receipt(self, id: str) -> Receipt | None:
        (found,) = self._store.look("receipt", id=id)
        return None if found is None else receipt_heard(found)

    def drop_receipts(self, before: int) -> int:
        dropped = 0
        while True:
            piece = number(self._store.act("drop_receipts", before=ordered(before), limit=RECEIPTS)[0])
            dropped += piece
            if piece < RECEIPTS:
                return dropped

    # -- all of it

    def restore(self, entries: Sequence[SliceEntry], records: Sequence[BatchRecord]) -> None:
        """Out of sight, piece by piece; then it takes the place of the empty one at once. What a crash
        leaves of it nobody reaches; the next `recover` deletes it."""
        rows = [entry_said(entry) for entry in sorted(entries, key=lambda entry: entry.seq)]
        said = [batch_said(record) for record in records]
        generation = text(self._store.act("draft")[0])
        draft = Store(self._link, f"={generation}")
        for piece in _pieces(rows):
            draft.act("fill", rows=piece)
        for record in said:
            draft.act("apply_batch", **record)
        self._store.act("adopt", generation=generation)

    def dump(self) -> dict[str, list[dict[str, object]]]:
        return dump_heard(self._store.look("dump")[0])

    def close(self) -> None:
        self._link.close()


def _given(**wanted: str | None) -> dict[str, object]:
    return {name: value for name, value in wanted.items() if value is not None}


def _limit(limit: int | None) -> int:
    return -1 if limit is None else limit


def _within(span: Interval | None) -> dict[str, object]:
    """Ends of a range of starts, as sorted sets are asked for it."""
    if span is None:
        return {"low": "-", "high": "+"}
    return {"low": f"[{ordered(span.start)}", "high": f"({ordered(span.end)}"}


def _pieces(rows: Sequence[dict[str, str]]) -> Iterator[Sequence[dict[str, str]]]:
    for first in range(0, len(rows), AT_ONCE):
        yield rows[first : first + AT_ONCE]
