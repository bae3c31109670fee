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
from tests.support.figures import record

from tidemill.config.gateway import GatewaySettings
from tidemill.ingest.gateway.gateway import Gateway
from tidemill.mill import Mill, recover
from tidemill.model.errors import RetractedError, TidemillError
from tidemill.model.failpoints import observed
from tidemill.model.gateway import Entry, Submission
from tidemill.model.slices import SliceStatus
from tidemill.model.time import DAY, HOUR, SECOND, align, format_instant, parse_instant
from tidemill.testing import FakeClock

NOON: Final = parse_instant("2024-01-15T12:00:00Z")
KEPT_RAW: Final = 2 * DAY  # of the stream `orders`
WAIT: Final = 30.0
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
    aggregation_span: 1h
    subject_to_change_window: 3650d
    allow_incomplete_windows: true
  beats:{_STREAM}
    gate: none
"""
STREAMS: Final = ("orders", "visits", "beats")
UNGATED: Final = "beats"  # every record of every slice of it counts
STATE_FILES: Final = ("state.db", "state.db-wal", "state.db-shm")


# -- the account


@dataclass(frozen=True)
class Event:
    id: str
    at: int
    amount: int  # in hundredths
    shop: str

    @property
    def line(self) -> bytes:
        told = {"id": self.id, "at": self.at, "amount": self.amount / 100, "shop": self.shop}
        return json.dumps(told).encode() + b"\n"


@dataclass
class Account:
    """What was sent to one stream."""

    stream: str
    sent: dict[bytes, Event] = field(default_factory=dict)  # by line
    acknowledged: set[bytes] = field(default_factory=set)
    slices: dict[str, list[Event]] = field(default_factory=dict)  # in the order of the ledger
    retracted: set[str] = field(default_factory=set)

    def learn(self, slice_id: str, content: bytes) -> None:
        """A slice is in the ledger: it holds nothing that nobody sent."""
        lines = content.splitlines(keepends=True)
        assert set(lines) <= set(self.sent), (slice_id, set(lines) - set(self.sent))
        self.slices[slice_id] = [self.sent[line] for line in lines]

    def stored(self) -> list[Event]:
        """The first event of each id; without a gate all of them."""
        events = [e for name, of in self.slices.items() if name not in self.retracted for e in of]
        if self.stream == UNGATED:
            return events
        return list({event.id: event for event in reversed(events)}.values())

    def assert_nothing_is_lost(self) -> None:
        found = {event.line for events in self.slices.values() for event in events}
        assert self.acknowledged <= found, self.acknowledged - found


# -- the mill


@dataclass
class Tried:
    """Counts of what happened."""

    acknowledged: int = 0
    crashes: int = 0
    damages: int = 0
    repairs: int = 0
    restored: int = 0
    recoveries: int = 0
    checks: int = 0


class WholeMill:
    """A project whose process can die at any fail point: what is opened next is what it left behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self.clock = FakeClock(NOON)
        self.root = folder / "0"
        self.root.mkdir(parents=True)
        (self.root / "tidemill.yaml").write_text(CONFIG)
        self.accounts = {name: Account(name) for name in STREAMS}
        self.tried = Tried()
        self.mill = self._open()

    def _open(self) -> Mill:
        return Mill.open(self.root, clock=self.clock)

    def close(self) -> None:
        self.mill.close()

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

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
                    shutil.copytree(self.root, copy)

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
                    account.learn(entry.id, (self.warehouse / entry.slice.path).read_bytes())

    # -- what can be done to it

    def land(self, stream: str, events: Sequence[Event], bounds: tuple[int, int] | None) -> None:
        content = self._noted(stream, events)
        start, end = bounds or (None, None)
        try:
            self.mill.land(stream, content, start=start, end=end, many_windows=True)
        except RetractedError:  # the sender is told: nothing was acknowledged
            return
        self._acknowledge(stream, events)

    def ingest(self, stream: str, files: Sequence[Sequence[Event]]) -> None:
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

    def submit(self, stream: str, requests: Sequence[Sequence[Event]]) -> None:
        """To a gateway, which is closed afterwards, so that all has landed."""
        mill = self.mill
        with Gateway(
            mill.project.warehouse, mill.project.streams, GatewaySettings(), mill.state,
            mill.warehouse.landing, self.clock,
        ) as gateway:  # fmt: skip
            for events in requests:
                told: Future[object] = Future()
                content = self._noted(stream, events)
                gateway.submit(Submission(stream, "http", content, len(events)), told.set_result)
                assert isinstance(told.result(WAIT), Entry)
                self._acknowledge(stream, events)

    def _noted(self, stream: str, events: Sequence[Event]) -> bytes:
        self.accounts[stream].sent |= {event.line: event for event in events}
        return b"".join(event.line for event in events)

    def _acknowledge(self, stream: str, events: Sequence[Event]) -> None:
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
        """What can be damaged: everything but the state, whose loss is another case, and locks."""
        found = [path for path in self.warehouse.rglob("*") if path.is_file() and path.stat().st_size]
        return sorted(
            path
            for path in found
            if path.name not in STATE_FILES and not path.name.startswith(".") and "_damaged" not in path.parts
        )

    @contextmanager
    def damaged(self, path: Path, harm: Callable[[Path], object]) -> Iterator[None]:
        """Inside it a file is damaged. It is repaired then, or restored if the plan says that nothing can
        make it again."""
        before = path.read_bytes()
        harm(path)
        self.tried.damages += 1
        yield
        for step in self.mill.plan_repair().steps:
            assert step.action or step.affects, step
            if not step.repairable:
                assert self.warehouse / step.damage.file == path, step
                path.write_bytes(before)
                self.tried.restored += 1
        done = self.mill.repair()
        assert done.ok, done.left
        self.tried.repairs += 1

    # -- what must hold

    def assert_right_or_refused(self, span: tuple[int, int]) -> None:
        """While something is damaged, an answer is right or an error."""
        for account in self.accounts.values():
            try:
                found = self._total(account.stream, span)
            except TidemillError:
                continue
            assert found == _expected_total(account, span), account.stream

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
            found, expected = self._total(account.stream, span), _expected_total(account, span)
            assert found == expected, (account.stream, found, expected)
        self._assert_datasets(self.accounts["visits"])
        findings = self.mill.verify().findings
        assert findings == [], findings
        self.tried.checks += 1

    def _assert_raw(self, account: Account) -> None:
        """Exactly what was accepted; of what retention lets go, any part."""
        wanted = sorted((event.id, event.at) for event in account.stored())
        found = sorted(self._raw(account.stream))
        if account.stream != "orders":
            assert found == wanted, (account.stream, set(found) ^ set(wanted))
            return
        assert len(found) == len(set(found))
        assert set(found) <= set(wanted)
        latest = max((event.at for event in account.stored()), default=0)
        kept = max(latest, self.clock()) - KEPT_RAW
        missing = [at for _, at in set(wanted) - set(found)]
        assert all(at < kept for at in missing), missing

    def _raw(self, stream: str) -> list[tuple[str, int]]:
        snapshot = self.mill.snapshot("raw", stream)
        rows: list[tuple[str, int]] = []
        for path in snapshot.paths() if snapshot is not None else ():
            payloads = pq.read_table(path, partitioning=None, columns=["payload"])["payload"].to_pylist()
            rows += [(told["id"], told["at"]) for told in map(json.loads, payloads)]
        return rows

    def _total(self, stream: str, span: tuple[int, int]) -> tuple[int, int]:
        start, end = map(format_instant, span)
        text = f"SELECT count, sum(amount) AS s FROM {stream}.sales BETWEEN {start} AND {end}"
        rows = self.mill.query(text).to_pylist()
        return sum(row["count"] or 0 for row in rows), sum(round((row["s"] or 0) * 100) for row in rows)

    def _assert_datasets(self, account: Account) -> None:
        """The newest dataset of each window has the events of its hour."""
        wanted: dict[int, list[str]] = {}
        for event in account.stored():
            wanted.setdefault(align(event.at, HOUR), []).append(event.id)
        found = {}
        for one in self.mill.windows.datasets(account.stream):
            if one.rows:
                with pa.ipc.open_file(self.warehouse / str(one.file)) as file:
                    found[one.key.interval.start] = sorted(file.read_all()["id"].to_pylist())
        expected = {start: sorted(ids) for start, ids in wanted.items()}
        assert found == expected, {
            start: (found.get(start), expected.get(start))
            for start in {*found, *expected}
            if found.get(start) != expected.get(start)
        }


def _expected_total(account: Account, span: tuple[int, int]) -> tuple[int, int]:
    inside = [event for event in account.stored() if span[0] <= event.at < span[1]]
    return len(inside), sum(event.amount for event in inside)


def whole_span(start: int, length: int) -> tuple[int, int]:
    """Aligned to the finest level, which is kept when raw has expired."""
    first = NOON - 6 * DAY + start * 5 * SECOND
    return first, first + length * 5 * SECOND
