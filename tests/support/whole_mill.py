"""A whole mill in one process that is fed, damaged and killed at will, beside a plain account of its input.

The account knows what was sent and acknowledged, and which slices were retracted. It says what must be stored
by one loop over that input, and knows nothing of how it is stored.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.patience import PATIENCE
from tests.support.soak_counts import record
from tests.support.warehouse_location import (
    all_files,
    copy_project,
    in_bucket,
    is_log_piece,
    warehouse_of,
    write_config,
)

from tidemill.config.gateway import GatewaySettings
from tidemill.formats.stored_slice import content_bytes
from tidemill.ingest.gateway.gateway import Gateway
from tidemill.mill import Mill, recover
from tidemill.model.errors import RetractedError, TidemillError
from tidemill.model.failpoints import observed
from tidemill.model.gateway import Entry, Submission
from tidemill.model.slices import SliceStatus
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, align, format_instant, parse_instant
from tidemill.query import Answer
from tidemill.storage.bucket_path import local_copy
from tidemill.testing import FakeClock

NOON: Final = parse_instant("2024-01-15T12:00:00Z")
KEPT_RAW: Final = 2 * DAY  # of the stream `orders`
GAP: Final = 20 * MINUTE  # that ends a session of `visits`
KEEPS: Final = "KEEPS"  # whether the stream `visits` keeps payloads, which changes
WAIT: Final = PATIENCE
# Packing in the background would make runs differ; here a rule packs.
_STREAM = """
    schema:
      id: {type: string, required: true}
      at: {type: integer, required: true}
      amount: {type: decimal, scale: 2}
      shop: string
    event_time: {column: at, type: unixtimestamp_us, late_tolerance: 10s}
    pack: {enabled: false, slices: 2}
    metrics:
      sales: {kind: counter, dimensions: [shop], measures: [amount]}
"""
CONFIG = f"""
version: 1
engine: {{cores: 1, memory: 512m}}
streams:
  orders:{_STREAM}
    identity: id
    indexed: [shop]
    retention: {{raw: {KEPT_RAW // DAY}d}}
  visits:{_STREAM}
    identity: id
    keep_payload: {KEEPS}
    aggregation_span: 1h
    subject_to_change_window: 3650d
    allow_incomplete_windows: true
    windows:
      hours:
        kind: tumbling
        size: 1h
        group_by: shop
        aggregates: {{count: count, amount: sum(amount)}}
        late: {{policy: reemit, max_lateness: 3650d}}
      stays:
        kind: session
        gap: {GAP // MINUTE}m
        key: shop
        aggregates: {{count: count, amount: sum(amount)}}
        late: {{policy: reemit, max_lateness: 3650d}}
  beats:{_STREAM}
    gate: none
    keep_payload: false
  points:
    kind: delta
    vector: {{dimension: 2}}
    compaction: {{strategy: tiered_merge, keep_recent: 2, delta_threshold: 3}}
    schema:
      delta_id: {{type: string, required: true}}
      vector_id: {{type: string, required: true}}
      at: {{type: integer, required: true}}
      op: {{type: string, required: true}}
      values: array
    identity: delta_id
    event_time: {{column: at, type: unixtimestamp_us, late_tolerance: 10s}}
    pack: {{enabled: false, slices: 2}}
    metrics:
      deltas: {{kind: counter, dimensions: [op]}}
"""
STREAMS: Final = ("orders", "visits", "beats")  # of events
VECTORS: Final = "points"  # of deltas of vectors
UNGATED: Final = "beats"  # every record of every slice of it counts
STATE_FILES: Final = ("state.db", "state.db-wal", "state.db-shm")
OF_THE_STATE: Final = ("state.owner", "state.db.name")  # of a warehouse in a bucket: whose state it is


# -- the account


@dataclass(frozen=True)
class Event:
    id: str
    at: int
    amount: int  # in hundredths
    shop: str

    @property
    def line(self) -> bytes:
        reported = {"id": self.id, "at": self.at, "amount": self.amount / 100, "shop": self.shop}
        return json.dumps(reported).encode() + b"\n"

    @property
    def group(self) -> str:
        return self.shop


@dataclass(frozen=True)
class Delta:
    """A change of a vector. No two ids have the same instant, so the order of those that count is known."""

    id: str
    at: int
    vector: str
    op: str
    values: tuple[int, int]

    @property
    def line(self) -> bytes:
        told = {"delta_id": self.id, "vector_id": self.vector, "at": self.at, "op": self.op}
        return json.dumps({**told, "values": list(self.values)}).encode() + b"\n"

    @property
    def amount(self) -> int:
        return 0

    @property
    def group(self) -> str:
        return self.op


Sent = Event | Delta
Totals = dict[str, tuple[int, ...]]  # by shop: how many events, then sum, least and greatest amount
_ASKED: Final = "count, sum(amount) AS s, min(amount) AS low, max(amount) AS high"


@dataclass
class Account:
    """What was sent to one stream."""

    stream: str
    sent: dict[bytes, Sent] = field(default_factory=dict)  # by line
    acknowledged: set[bytes] = field(default_factory=set)
    slices: dict[str, list[Sent]] = field(default_factory=dict)  # in the order of the ledger
    retracted: set[str] = field(default_factory=set)

    def learn(self, slice_id: str, content: bytes) -> None:
        """A slice is in the ledger: it holds nothing that nobody sent."""
        lines = content.splitlines(keepends=True)
        assert set(lines) <= set(self.sent), (slice_id, set(lines) - set(self.sent))
        self.slices[slice_id] = [self.sent[line] for line in lines]

    def stored(self) -> list[Sent]:
        """The first event of each id; without a gate all of them."""
        events = [e for name, of in self.slices.items() if name not in self.retracted for e in of]
        if self.stream == UNGATED:
            return events
        return list({event.id: event for event in reversed(events)}.values())

    def assert_nothing_is_lost(self) -> None:
        found = {event.line for events in self.slices.values() for event in events}
        assert self.acknowledged <= found, self.acknowledged - found


# -- the mill


def gateway_of(mill: Mill, clock: FakeClock) -> Gateway:
    project = mill.project
    return Gateway(
        project.warehouse, project.streams, GatewaySettings(), mill.state, mill.warehouse.landing, clock
    )


def submit(gateway: Gateway, stream: str, content: bytes) -> None:
    """Send lines, and wait until they are acknowledged."""
    reported: Future[object] = Future()
    gateway.submit(Submission(stream, "http", content, content.count(b"\n")), reported.set_result)
    assert isinstance(reported.result(WAIT), Entry)


@dataclass
class Tried:
    """Counts of what happened."""

    acknowledged: int = 0
    crashes: int = 0
    damages: int = 0
    repairs: int = 0
    restored: int = 0
    losses: int = 0  # of what nothing could make again
    rebuilt: int = 0
    recoveries: int = 0
    checks: int = 0


def config(*, keep_payload: bool = True) -> str:
    return CONFIG.replace(KEEPS, str(keep_payload).lower())


class WholeMill:
    """A project whose process can die at any fail point: what is opened next is what it left behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self.clock = FakeClock(NOON)
        self.root = folder / "0"
        self.root.mkdir(parents=True)
        self._configure(keep_payload=True)
        self.accounts = {name: Account(name) for name in (*STREAMS, VECTORS)}
        self.lost = False  # whether something was lost for good: then answers may lack it, if they say so
        self.tried = Tried()
        self.mill = self._open()

    def _configure(self, *, keep_payload: bool) -> None:
        write_config(self.root, config(keep_payload=keep_payload))

    def _open(self) -> Mill:
        return Mill.open(self.root, clock=self.clock)

    def close(self) -> None:
        self.mill.close()

    @property
    def warehouse(self) -> Path:
        return warehouse_of(self.root)

    def act(self, work: Callable[[], object], dies: int | None) -> None:
        """Do it. If it dies at the fail point of that number, the next process does it again, as a sender
        does that got no answer."""
        if dies is None or not self._died(work, dies):
            work()
        self._learn()

    def _died(self, work: Callable[[], object], at: int) -> bool:
        """Whether it passed so many fail points that it died; then the copy is open that was left there."""
        copy = self._folder / str(self._number + 1)
        passed = 0
        guard = threading.Lock()  # a gateway passes points in threads of its own

        def count(_point: str) -> None:
            nonlocal passed
            with guard:
                passed += 1
                if passed == at:
                    copy_project(self.root, copy)

        with observed(count):
            work()
        if not copy.exists():
            return True  # it was done, and no copy is needed
        self.mill.close()
        shutil.rmtree(self.root)
        self._number += 1
        self.root = copy
        self.tried.crashes += 1
        self.clock.advance(HOUR)  # whoever it was does not hold a lease any more
        self.mill = self._open()
        self.mill.tick()  # takes up what the dead process left
        return False

    def _learn(self) -> None:
        for name, account in self.accounts.items():
            for entry in self.mill.state.slices(name):
                if entry.id not in account.slices:
                    account.learn(entry.id, content_bytes(self.warehouse / entry.slice.path))

    # -- what can be done to it

    def land(self, stream: str, events: Sequence[Sent], bounds: tuple[int, int] | None) -> None:
        content = self._noted(stream, events)
        start, end = bounds or (None, None)
        try:
            self.mill.land(stream, content, start=start, end=end, many_windows=True)
        except RetractedError:  # the sender is told: nothing was acknowledged
            return
        self._acknowledge(stream, events)

    def ingest(self, stream: str, files: Sequence[Sequence[Sent]]) -> None:
        paths = []
        for number, events in enumerate(files):
            path = self._folder / f"{number}.ndjson"
            path.write_bytes(self._noted(stream, events))
            paths.append(path)
        done = self.mill.ingest(stream, paths)
        refused = {Path(one.name) for one in done.refused if one.error.code == RetractedError.code}
        assert len(refused) == len(done.refused), done.refused
        for path, events in zip(paths, files, strict=True):
            if path not in refused:
                self._acknowledge(stream, events)

    def declare_empty(self, stream: str, start: int, end: int) -> None:
        with suppress(RetractedError):
            self.mill.ingest(stream, [], start=start, end=end, empty=True, many_windows=True)

    def submit(self, stream: str, requests: Sequence[Sequence[Sent]]) -> None:
        """To a gateway, which is closed afterwards, so that all has landed."""
        with gateway_of(self.mill, self.clock) as gateway:
            for events in requests:
                submit(gateway, stream, self._noted(stream, events))
                self._acknowledge(stream, events)

    def _noted(self, stream: str, events: Sequence[Sent]) -> bytes:
        self.accounts[stream].sent |= {event.line: event for event in events}
        return b"".join(event.line for event in events)

    def _acknowledge(self, stream: str, events: Sequence[Sent]) -> None:
        new = {event.line for event in events} - self.accounts[stream].acknowledged
        self.accounts[stream].acknowledged |= new
        self.tried.acknowledged += len(new)

    def retract(self, slice_id: str) -> None:
        """Unless it is of a time that has expired, which is refused."""
        (account,) = (one for one in self.accounts.values() if slice_id in one.slices)
        if self.mill.slice(slice_id).status is not SliceStatus.RETRACTED:
            try:
                plan = self.mill.plan_retraction(slice_id, "sent by mistake")
            except TidemillError as refused:
                if "expired" not in str(refused):
                    raise
                return
            self.mill.retract(plan)
        account.retracted.add(slice_id)

    def expire(self) -> None:
        self.mill.retention.expire(self.mill.retention.plan())

    def rebuild(self, span: tuple[int, int] | None) -> None:
        """Everything that can be made again of a span, or all of it, is."""
        start, end = span or (None, None)
        for stream in self.accounts:
            self.mill.remake.rollups(stream, start, end)
        self.mill.remake.index("orders", start, end)
        for window in ("hours", "stays"):
            self.mill.remake.results("visits", window)
        self.mill.rebuild(self.mill.windows.plan_rebuild("visits"))
        self.mill.chains.compact_now(VECTORS, self.clock(), rebuild=True)

    def declare(self, *, keep_payload: bool) -> None:
        """Declare `visits` otherwise: the next rounds make its raw again."""
        self.mill.close()
        self._configure(keep_payload=keep_payload)
        self.mill = self._open()

    def lose_state(self) -> None:
        self.settle()
        self.mill.close()
        for name in STATE_FILES:
            (self.warehouse / name).unlink(missing_ok=True)
        recover(self.root, clock=self.clock)
        self.mill = self._open()
        self.tried.recoveries += 1

    def settle(self) -> None:
        self.mill.run_until_idle()
        self._learn()

    # -- damage

    def files(self) -> list[Path]:
        """What can be damaged: everything but the state, whose loss is another case, and locks. In a bucket,
        logs have neither copies nor checksums."""
        found = [path for path in all_files(self.warehouse) if path.stat().st_size]
        return sorted(
            path
            for path in found
            if path.name not in (*STATE_FILES, *OF_THE_STATE)
            and not path.name.startswith(".")
            and "_damaged" not in path.parts
            and not (in_bucket() and (is_log_piece(path) or "_delta_log" in path.parts))
        )

    @contextmanager
    def damaged(self, path: Path, harm: Callable[[Path], object], *, restore: bool) -> Iterator[None]:
        """Inside it a file is damaged. It is repaired then. If the plan says that nothing can make it again,
        it is restored, or, without `restore` and where the rest goes on without it, lost."""
        before = path.read_bytes()
        harm(path)
        self.tried.damages += 1
        yield
        for step in self.mill.plan_repair().steps:
            assert step.action or step.affects, step
            if step.affects and (restore or not step.repairable):
                assert self.warehouse / step.damage.file == path, step
                path.write_bytes(before)
                self.tried.restored += 1
        done = self.mill.repair()
        assert not done.left, done.left
        self.lost |= bool(done.lost)
        self.tried.losses += len(done.lost)
        self.tried.repairs += 1

    # -- what must hold

    def assert_right_or_refused(self, span: tuple[int, int]) -> None:
        """While something is damaged, an answer is right or an error."""
        for account in self.accounts.values():
            try:
                found = self._totals(account.stream, span)
            except TidemillError:
                continue
            assert found in (None, _expected_totals(account, span)), account.stream

    def assert_right(self, span: tuple[int, int]) -> None:
        try:
            self._assert_right(span)
        except BaseException:
            record(failing=1)  # so that a soak waits for the smallest case
            raise

    def _assert_right(self, span: tuple[int, int]) -> None:
        self.settle()
        for account in self.accounts.values():
            account.assert_nothing_is_lost()
            self._assert_raw(account)
            for exact in (span, _narrowed(span)) if account.stream != "orders" else (span,):
                found, expected = self._totals(account.stream, exact), _expected_totals(account, exact)
                assert found == expected or (found is None and self.lost), (account.stream, found, expected)
        self._assert_datasets(self.accounts["visits"])
        self._assert_windows(self.accounts["visits"])
        self._assert_vectors(self.accounts[VECTORS])
        findings = self.mill.verify().findings
        assert findings == [], findings
        self.tried.checks += 1

    def _assert_raw(self, account: Account) -> None:
        """Exactly what was accepted, byte for byte; of what retention lets go, any part."""
        wanted = sorted(event.line.rstrip() for event in account.stored())
        found = sorted(self._raw(account.stream))
        assert len(found) == self._rows_of_raw(account.stream)
        if account.stream != "orders":
            assert found == wanted, (account.stream, set(found) ^ set(wanted))
            return
        assert len(found) == len(set(found))
        assert set(found) <= set(wanted)
        latest = max((event.at for event in account.stored()), default=0)
        kept = max(latest, self.clock()) - KEPT_RAW
        missing = [account.sent[line + b"\n"].at for line in set(wanted) - set(found)]
        assert all(at < kept for at in missing), missing

    def _raw(self, stream: str) -> list[bytes]:
        """The payloads, as Tidemill gives them back."""
        return [
            payload.encode()
            for item in self.mill.tail(stream, ordered=False)  # in order it leaves late rows out
            if isinstance(item, pa.RecordBatch)
            for payload in item.column("payload").to_pylist()
        ]

    def _rows_of_raw(self, stream: str) -> int:
        """As any reader of the table finds them."""
        snapshot = self.mill.snapshot("raw", stream)
        paths = snapshot.paths() if snapshot is not None else ()
        return sum(pq.read_metadata(local_copy(path)).num_rows for path in paths)

    def _totals(self, stream: str, span: tuple[int, int]) -> Totals | None:
        """Asked three times: of one process the first answer is DuckDB's, the next are folded from columns
        that are kept. None: the answer says that something of the span was lost."""
        found = [self._asked(stream, span) for _ in range(3)]
        assert found[1:] == found[:-1], (stream, found)
        return found[0]

    def _asked(self, stream: str, span: tuple[int, int]) -> Totals | None:
        start, end = map(format_instant, span)
        what = "count FROM points.deltas" if stream == VECTORS else f"{_ASKED} FROM {stream}.sales"
        by = "op" if stream == VECTORS else "shop"
        answer = self.mill.ask(f"SELECT {what} BETWEEN {start} AND {end} GROUP BY {by}")
        assert isinstance(answer, Answer)
        rows = answer.table.to_pylist()
        if any(one.why == "damaged" for one in answer.completeness.missing):
            assert {row["count"] for row in rows} <= {None}, rows
            return None
        return {
            row[by]: (row["count"], *(round(row.get(name, 0) * 100) for name in ("s", "low", "high")))
            for row in rows
            if row["count"]
        }

    def _assert_windows(self, account: Account) -> None:
        """The current results of each hour and shop, and of each session, once those that are open have come
        out, too."""
        self.mill.flush(account.stream)
        events = sorted((event for event in account.stored() if isinstance(event, Event)), key=_by_time)
        hours: dict[tuple[int, str], list[int]] = {}
        for event in events:
            hours.setdefault((align(event.at, HOUR), event.shop), []).append(event.amount)
        assert self._results(account.stream, "hours") == _summed(hours)
        stays: dict[tuple[int, str], list[int]] = {}
        last: dict[str, tuple[int, int]] = {}  # by shop: when its session began, and its newest event
        for event in events:
            began, newest = last.get(event.shop, (event.at, event.at))
            began = event.at if event.at - newest > GAP else began
            last[event.shop] = began, event.at
            stays.setdefault((began, event.shop), []).append(event.amount)
        assert self._results(account.stream, "stays") == _summed(stays)

    def _results(self, stream: str, window: str) -> dict[tuple[int, str], tuple[int, int]]:
        rows = self.mill.results(stream, window).to_pylist()
        found = {
            (round(row["start"].timestamp() * SECOND), row["shop"]): (
                row["count"],
                round(row["amount"] * 100),
            )
            for row in rows
        }
        assert len(found) == len(rows), rows
        return found

    def _assert_vectors(self, account: Account) -> None:
        """Deltas in the order of their time."""
        expected: dict[str, list[float]] = {}
        for delta in sorted(account.stored(), key=lambda one: one.at):
            assert isinstance(delta, Delta)
            old = expected.get(delta.vector, [0.0, 0.0]) if delta.op == "add" else [0.0, 0.0]
            expected[delta.vector] = [a + b for a, b in zip(old, delta.values, strict=True)]
        rows = self.mill.vectors(VECTORS, sorted(expected)).to_pylist() if expected else []
        found = {row["vector_id"]: row["values"] for row in rows}
        assert found == expected, (found, expected)

    def _assert_datasets(self, account: Account) -> None:
        """The newest dataset of each window has the events of its hour."""
        wanted: dict[int, list[str]] = {}
        for event in account.stored():
            wanted.setdefault(align(event.at, HOUR), []).append(event.id)
        found = {}
        for one in self.mill.windows.datasets(account.stream):
            if one.rows:
                with pa.ipc.open_file(local_copy(self.warehouse / str(one.file))) as file:
                    found[one.key.interval.start] = sorted(file.read_all()["id"].to_pylist())
        expected = {start: sorted(ids) for start, ids in wanted.items()}
        assert found == expected, {
            start: (found.get(start), expected.get(start))
            for start in {*found, *expected}
            if found.get(start) != expected.get(start)
        }


def _by_time(event: Event) -> int:
    return event.at


def _summed(amounts: dict[tuple[int, str], list[int]]) -> dict[tuple[int, str], tuple[int, int]]:
    return {key: (len(of), sum(of)) for key, of in amounts.items()}


def _expected_totals(account: Account, span: tuple[int, int]) -> Totals:
    amounts: dict[str, list[int]] = {}
    for event in account.stored():
        if span[0] <= event.at < span[1]:
            amounts.setdefault(event.group, []).append(event.amount)
    return {group: (len(of), sum(of), min(of), max(of)) for group, of in amounts.items()}


def _narrowed(span: tuple[int, int]) -> tuple[int, int]:
    """To ends that no level has, which only raw can answer for: just before events that there may be."""
    start = align(span[0], 10 * MINUTE) + 10 * MINUTE + 1
    return start, max(start + 1, align(span[1], 10 * MINUTE) + 1)


def whole_span(start: int, length: int) -> tuple[int, int]:
    """Aligned to the finest level, which is kept when raw has expired."""
    first = NOON - 6 * DAY + start * 5 * SECOND
    return first, first + length * 5 * SECOND
