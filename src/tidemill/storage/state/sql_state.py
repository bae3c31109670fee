"""The state of a warehouse in SQL: every method is one transaction of a database, SQLite or PostgreSQL.

It records nothing that the warehouse does not also have, and caches nothing in memory: any number of threads
and processes may use the same database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

from tidemill.model.errors import InputError, StorageError
from tidemill.model.levels import BASE, BaseTile, TileState
from tidemill.model.slices import CountedAs, NewSlice, Reject, SliceEntry, SliceStatus
from tidemill.model.time import MAX_INSTANT, Interval
from tidemill.model.windows import (
    Build,
    Dataset,
    Member,
    MemberCounts,
    OutboxEvent,
    Window,
    WindowKey,
)
from tidemill.storage.layout import LANDINGS
from tidemill.storage.leases import HeldLeases, current_leases
from tidemill.storage.log_chain import LogHead
from tidemill.storage.state import (
    damages_sql,
    failed_slices_sql,
    leases_sql,
    ledger_sql,
    outbox_sql,
    overview_sql,
    progress_sql,
    queue_sql,
    receipts_sql,
    retractions_sql,
    windows_sql,
)
from tidemill.storage.state.database import EVERY, Connection, Database
from tidemill.storage.state.dump import dump
from tidemill.storage.state.lease_rules import Granted
from tidemill.storage.state.ledger_sql import ENTRY, TILE
from tidemill.storage.state.protocol import (
    BatchRecord,
    TileBuild,
)
from tidemill.storage.state.rows import TOTALS, from_row

P = ParamSpec("P")
R = TypeVar("R")

LOGGED: Final = "('landings', 'retried')"  # totals that count lines of the landing log
ALL_TIME: Final = (Interval(-(1 << 62), 1 << 62),)
_WINDOWS_AT_ONCE: Final = 2000  # rows read in one transaction
# written as in the partial index, so that the index is used
STALE: Final = f"level = '{BASE.name}' AND desired IS NOT hash"


def _reads(act: Callable[Concatenate[Connection, P], R]) -> Callable[Concatenate[SqlState, P], R]:
    """The method that calls a function of the SQL modules in a transaction that reads."""

    @wraps(act)
    def method(state: SqlState, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with state._database.read() as db:
            return act(db, *args, **kwargs)

    return method


def _writes(act: Callable[Concatenate[Connection, P], R]) -> Callable[Concatenate[SqlState, P], R]:
    """The same in a transaction that writes."""

    @wraps(act)
    def method(state: SqlState, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with state._write() as db:
            return act(db, *args, **kwargs)

    return method


class SqlState:
    """`State` on a database. Most acts are one function of a SQL module in a transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def enter(self, new: NewSlice) -> SliceEntry:
        return self.enter_all([new])[0]

    def enter_all(self, news: Sequence[NewSlice], head: LogHead | None = None) -> list[SliceEntry]:
        with self._write() as db:
            if head is not None:
                damages_sql.set_head(db, LANDINGS, head)
            return [ledger_sql.enter(db, new) for new in news]

    def landings(self) -> int:
        with self._read() as db:
            total = db.execute(f"SELECT coalesce(sum(value), 0) FROM totals WHERE name IN {LOGGED}")
            return int(total.fetchone()[0])

    def slice(self, id_or_prefix: str) -> SliceEntry | None:
        prefix = id_or_prefix.strip().lower()
        if not prefix:
            raise InputError("the id of the slice is empty", hint="name the id, or its first characters")
        with self._read() as db:
            found = db.execute(
                f"SELECT {ENTRY} FROM slices WHERE id >= ? AND id < ? ORDER BY id LIMIT 5",
                (prefix, prefix + "\U0010ffff"),
            ).fetchall()
        entries = [from_row(row) for row in found]
        if not entries or entries[0].id == prefix:
            return entries[0] if entries else None
        if len(entries) > 1:
            names = ", ".join(entry.id[: len(prefix) + 8] for entry in entries)
            raise InputError(f"several slice ids start with {prefix!r}", hint=f"give more of one: {names}")
        return entries[0]

    def slice_at(self, seq: int) -> SliceEntry | None:
        with self._read() as db:
            row = db.execute(f"SELECT {ENTRY} FROM slices WHERE seq = ?", (seq,)).fetchone()
        return from_row(row) if row else None

    def slices(
        self,
        stream: str | None = None,
        status: SliceStatus | None = None,
        *,
        newest: bool = False,
        limit: int | None = None,
        before: int | None = None,
        after: int | None = None,
        outcome: CountedAs | None = None,
        reason: Reject | None = None,
    ) -> list[SliceEntry]:
        conditions: dict[str, str | int | None] = {
            "stream = ?": stream,
            "status = ?": status.value if status else None,
            "seq < ?": before,
            "seq > ?": after,
            "rejects LIKE ?": f'%"{reason.value}":%' if reason else None,
        }
        used = {term: value for term, value in conditions.items() if value is not None}
        where = " AND ".join([*used, *([f"{outcome.value} > 0"] if outcome else [])]) or "true"
        order = "DESC" if newest else "ASC"
        with self._read() as db:
            rows = db.execute(
                f"SELECT {ENTRY} FROM slices WHERE {where} ORDER BY seq {order} LIMIT ?",
                (*used.values(), EVERY if limit is None else limit),
            ).fetchall()
        return [from_row(row) for row in rows]

    last_arrival = _reads(ledger_sql.last_arrival)
    offset_at = _reads(overview_sql.offset_at)
    slice_glances = _reads(overview_sql.slices)
    covered = _reads(overview_sql.covered)

    def pending(self, stream: str, max_bytes: int) -> list[SliceEntry]:
        taken: list[SliceEntry] = []
        with self._read() as db:
            rows = db.execute(
                f"SELECT {ENTRY} FROM slices WHERE stream = ? AND status = 'pending' ORDER BY seq", (stream,)
            )
            for row in rows:
                entry = from_row(row)
                max_bytes -= entry.slice.size
                if taken and max_bytes < 0:
                    break
                taken.append(entry)
        return taken

    def totals(self, stream: str) -> Mapping[str, int]:
        with self._read() as db:
            rows = db.execute("SELECT name, value FROM totals WHERE stream = ?", (stream,)).fetchall()
        return dict.fromkeys(TOTALS, 0) | dict(rows)

    apply_batch = _writes(ledger_sql.apply_batch)
    has_batch = _reads(ledger_sql.has_batch)
    clocks = _reads(progress_sql.clocks)
    progress = _reads(progress_sql.progress)

    # -- streaming windows

    checkpoints = _reads(progress_sql.checkpoints)

    def set_checkpoint(
        self, stream: str, window: str, checkpoint: str | None, events: Sequence[OutboxEvent] = ()
    ) -> None:
        with self._write() as db:
            progress_sql.set_checkpoint(db, stream, window, checkpoint)
            outbox_sql.enter(db, events)

    runs = _reads(ledger_sql.runs)

    def replace_runs(self, stream: str, old: Sequence[str], new: Sequence[str]) -> bool:
        with self._write() as db:
            present = ledger_sql.runs(db, stream)
            gone = set(old)
            if not gone <= set(present):
                return False
            offset = next((i for i, name in enumerate(present) if name in gone), len(present))
            kept = [name for name in present[offset:] if name not in gone]
            db.execute("DELETE FROM runs WHERE stream = ? AND place >= ?", (stream, offset))
            ledger_sql.append_runs(db, stream, offset, [*new, *kept])
            return True

    def table_versions(self, stream: str) -> Mapping[str, int]:
        with self._read() as db:
            rows = db.execute("SELECT part_of, version FROM versions WHERE stream = ?", (stream,)).fetchall()
        return dict(rows)

    def record_seen(self, stream: str, versions: Mapping[str, int]) -> None:
        with self._write() as db:
            for table, version in versions.items():
                ledger_sql.record_version(db, stream, table, version)

    def forget_versions(self, stream: str, tables: Collection[str]) -> None:
        with self._write() as db:
            for table in tables:
                db.execute("DELETE FROM versions WHERE stream = ? AND part_of = ?", (stream, table))

    def stale_tiles(self, stream: str) -> list[BaseTile]:
        with self._read() as db:
            rows = db.execute(
                f"SELECT {TILE} FROM tiles INDEXED BY tiles_stale WHERE {STALE} AND stream = ?"
                " ORDER BY start",
                (stream,),
            ).fetchall()
            return ledger_sql.base_tiles(db, stream, rows)

    def base_tiles(self, stream: str, starts: Collection[int]) -> list[BaseTile]:
        with self._read() as db:
            rows = db.execute(
                f"SELECT {TILE} FROM json_each(?) j CROSS JOIN tiles t"
                " ON t.stream = ? AND t.level = ? AND t.start = CAST(j.value AS bigint) ORDER BY t.start",
                (json.dumps(sorted(starts)), stream, BASE.name),
            ).fetchall()
            return ledger_sql.base_tiles(db, stream, rows)

    def tiles(
        self, stream: str, level: str, spans: Interval | Sequence[Interval] | None = None
    ) -> list[TileState]:
        chosen = ALL_TIME if spans is None else [spans] if isinstance(spans, Interval) else spans
        with self._read() as db:
            rows = db.execute(
                f"SELECT DISTINCT {TILE} FROM json_each(?) j CROSS JOIN tiles t"
                " ON t.stream = ? AND t.level = ?"
                " AND t.start >= CAST(j.value ->> 0 AS bigint) AND t.start < CAST(j.value ->> 1 AS bigint)"
                " WHERE t.hash IS NOT NULL ORDER BY t.start",
                (json.dumps([(span.start, span.end) for span in chosen]), stream, level),
            ).fetchall()
        return [ledger_sql.tile_state(row) for row in rows]

    def tile_counts(self, stream: str) -> Mapping[str, int]:
        with self._read() as db:
            return dict(
                db.execute(
                    "SELECT level, count(*) FROM tiles WHERE stream = ? AND hash IS NOT NULL GROUP BY level",
                    (stream,),
                ).fetchall()
            )

    touch_tiles = _writes(ledger_sql.want)
    leave_tiles = _writes(ledger_sql.leave_tiles)
    lose_tiles = _writes(ledger_sql.lose_tiles)

    def miss_tiles(self, stream: str, level: str, starts: Collection[int]) -> None:
        with self._write() as db:
            ledger_sql.miss_tiles(db, stream, [(level, start) for start in sorted(starts)])

    def apply_tiles(
        self, stream: str, version: int, builds: Iterable[TileBuild], moved: Iterable[TileBuild] = ()
    ) -> None:
        with self._write() as db:
            ledger_sql.apply_tiles(db, stream, builds)
            ledger_sql.move_tiles(db, stream, moved)
            ledger_sql.record_version(db, stream, "rollups", version)

    # -- retractions

    retractions = _reads(retractions_sql.applied)
    apply_retraction = _writes(retractions_sql.apply)

    # -- slices that failed

    failing = _reads(failed_slices_sql.failing)
    postpone = _writes(failed_slices_sql.postpone)

    def send_again(self, slice_ids: Sequence[str], head: LogHead | None = None) -> list[SliceEntry]:
        with self._write() as db:
            if head is not None:
                damages_sql.set_head(db, LANDINGS, head)
            return failed_slices_sql.send_again(db, slice_ids)

    prioritise = _writes(failed_slices_sql.prioritise)

    # -- windows

    span = _reads(windows_sql.span)
    layout = _reads(windows_sql.layout)

    def declare_layout(self, stream: str, span: int, declared: str = "") -> None:
        if self.layout(stream) != (span, declared):  # most ticks: nothing to write
            with self._write() as db:
                windows_sql.declare_layout(db, stream, span, declared)

    forget_windows = _writes(windows_sql.forget)
    unassigned_slices = _reads(windows_sql.unassigned_slices)

    def assign(
        self,
        stream: str,
        windows: Mapping[str, Iterable[int]],
        runs: Mapping[str, Mapping[int, Sequence[Interval]]] | None = None,
    ) -> None:
        with self._write() as db:
            windows_sql.assign(db, stream, windows, runs or {})

    mark_reached_due = _writes(windows_sql.mark_reached_due)
    mark_receded_due = _writes(windows_sql.mark_receded_due)

    def due(self, stream: str, now: int, limit: int) -> list[tuple[Window, list[Member]]]:
        with self._read() as db:
            return list(windows_sql.due(db, stream, now, limit))

    undecided = _reads(windows_sql.undecided)
    evaluate = _writes(windows_sql.evaluate)

    def window(self, key: WindowKey) -> tuple[Window, list[Member]] | None:
        with self._read() as db:
            stored = windows_sql.load(db, key)
            return (stored.window, windows_sql.members(db, key)) if stored else None

    windows = _reads(windows_sql.windows)

    def each_window(self, stream: str, span: Interval | None = None) -> Iterator[tuple[Window, list[Member]]]:
        end = MAX_INSTANT if span is None else span.end
        while True:
            with self._read() as db:
                page = windows_sql.with_members(db, stream, span, _WINDOWS_AT_ONCE)
            yield from page
            if len(page) < _WINDOWS_AT_ONCE:
                return
            span = Interval(page[-1][0].key.start + 1, end)

    window_glances = _reads(overview_sql.windows)
    window_groups = _reads(overview_sql.groups)
    first_arrivals = _reads(overview_sql.first_arrivals)
    window_extent = _reads(overview_sql.extent)
    window_counts = _reads(windows_sql.counts)

    def member_counts(self, keys: Sequence[WindowKey]) -> Mapping[WindowKey, MemberCounts]:
        with self._read() as db:
            return {key: windows_sql.member_counts(db, key) for key in keys}

    windows_of = _reads(windows_sql.windows_of)
    windows_touched = _reads(windows_sql.windows_touched)
    force = _writes(windows_sql.force)

    # -- the queue

    def take(
        self,
        owner: str,
        now: int,
        lease_until: int,
        limit: int,
        streams: Sequence[str] | None = None,
        *,
        newest: bool = False,
        void: Mapping[WindowKey, int] | None = None,
        longest: int | None = None,
    ) -> list[Build]:
        with self._database.claim() as db:
            return queue_sql.take(
                db, owner, now, lease_until, limit, streams, newest=newest, void=void, longest=longest
            )

    renew = _writes(queue_sql.renew)

    def complete(self, build: Build, dataset: Dataset, now: int, events: Sequence[OutboxEvent] = ()) -> bool:
        return self.complete_all([(build, dataset, events)], now)[0]

    def complete_all(
        self, done: Sequence[tuple[Build, Dataset, Sequence[OutboxEvent]]], now: int
    ) -> list[bool]:
        with self._write() as db:
            version = windows_sql.stamp(db)
            return [
                queue_sql.complete(db, build, dataset, now, events, version)
                for build, dataset, events in done
            ]

    fail = _writes(queue_sql.fail)
    release = _writes(queue_sql.release)
    retry = _writes(queue_sql.retry)
    queue_length = _reads(queue_sql.length)
    observe = _writes(windows_sql.observe)

    # -- the outbox

    outbox = _reads(outbox_sql.page)
    delivered = _reads(outbox_sql.delivered)
    set_delivered = _writes(outbox_sql.set_delivered)

    # -- receipts

    keep_receipts = _writes(receipts_sql.keep)
    receipt = _reads(receipts_sql.receipt)
    receipts = _reads(receipts_sql.page)

    def drop_receipts(self, before: int) -> int:
        dropped = 0
        while True:
            with self._write() as db:
                piece = receipts_sql.drop(db, before)
            dropped += piece
            if piece < receipts_sql.PIECE:
                return dropped

    # -- logs and damage

    def hold(self, log: str) -> AbstractContextManager[None]:
        return self._database.hold(log)

    log_head = _reads(damages_sql.head)
    record_log = _writes(damages_sql.set_head)
    log_lines = _reads(damages_sql.lines)
    forget_log = _writes(damages_sql.forget)
    record_damages = _writes(damages_sql.record)
    damages = _reads(damages_sql.damages)
    clear_damages = _writes(damages_sql.clear)

    # -- leases

    lease_holders = _reads(leases_sql.holders)

    def take_leases(
        self,
        names: Collection[str],
        holder: str,
        length: int,
        gone: Collection[str] = (),
        ended: Collection[str] = (),
    ) -> Granted:
        with self._database.write(lasting=False) as db:
            return leases_sql.take(db, names, holder, length, gone, ended)

    def settle_leases(self, holder: str) -> None:
        with self._database.claim(lasting=False) as db:
            leases_sql.settle(db, holder)

    def renew_leases(self, holder: str) -> int:
        with self._database.claim(lasting=False) as db:
            return leases_sql.renew(db, holder)

    def release_leases(self, holder: str) -> None:
        with self._database.claim(lasting=False) as db:
            leases_sql.release(db, holder)

    lost_leases = _reads(leases_sql.lost)

    # -- all of it

    def restore(
        self, entries: Sequence[SliceEntry], records: Sequence[BatchRecord], retractions: int | None = None
    ) -> None:
        with self._write() as db:
            for table in ("slices", "batches", "tiles"):
                if db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone():
                    raise StorageError(
                        "only an empty state can be restored",
                        where=self._database.where,
                        hint="`tidemill recover` makes a new one first",
                    )
            for entry in sorted(entries, key=lambda entry: entry.seq):
                ledger_sql.insert(db, entry)
            retracted = sum(entry.status is SliceStatus.RETRACTED for entry in entries)
            retractions_sql.set_applied(db, retracted if retractions is None else retractions)
            for record in records:
                ledger_sql.apply_batch(db, record)

    def dump(self) -> dict[str, list[dict[str, object]]]:
        with self._read() as db:
            return dump(db)

    def trim_log(self) -> None:
        self._database.trim_log()

    def close(self) -> None:
        self._database.close()

    def _read(self) -> AbstractContextManager[Connection]:
        return self._database.read()

    def _write(self) -> AbstractContextManager[Connection]:
        held = current_leases()
        return self._database.write() if held is None or held.state is not self else self._fenced(held)

    @contextmanager
    def _fenced(self, held: HeldLeases) -> Iterator[Connection]:
        """Check leases at the start of a transaction that writes: no lease can be taken during it, so the
        check holds until the commit."""
        with self._database.write() as db:
            held.refuse(leases_sql.lost(db, held.holder, held.numbers))
            yield db
