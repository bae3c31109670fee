"""What the tests of the state share: the stores they run on, and what they put into them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.postgres_server import PostgresServer

from tidemill.model.levels import TileKey
from tidemill.model.slices import Codec, Counts, Format, NewSlice, set_hash
from tidemill.model.time import HOUR, MINUTE, Interval
from tidemill.model.windows import Build, Dataset, Evaluation, Member, OutboxEvent, Window, WindowKey
from tidemill.storage.state.protocol import BatchRecord, ClockState, SliceResult, State, TileBuild
from tidemill.storage.state.sqlite import open_state

Open = Callable[[], State]  # opens the same store again and again; it can be sent to another process
NewStore = Callable[[], Open]  # a store that nothing was written to, each time
TILE = 15 * MINUTE


@dataclass(frozen=True)
class Opener:
    path: Path

    def __call__(self) -> State:
        return open_state(self.path)


@dataclass(frozen=True)
class PostgresOpener:
    url: str
    schema: str

    def __call__(self) -> State:
        from tidemill.storage.state.postgres import open_state as open_on_server

        return open_on_server(self.url, self.schema)


@dataclass
class Schemas:
    """Of one server. They are emptied and used again: to make the tables takes longer than most tests."""

    server: PostgresServer
    free: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)

    def new_store(self) -> PostgresOpener:
        self.used.append(self.free.pop() if self.free else self.server.new_schema())
        return PostgresOpener(self.server.url, self.used[-1])

    def empty(self) -> None:
        for schema in self.used:
            rows = self.server.execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")
            tables = sorted({str(name) for (name,) in rows} - {"about", "counters", "slices"})
            deletes = "".join(f"DELETE FROM {table};" for table in [*tables, *["slices"] * bool(tables)])
            counters = "UPDATE counters SET value = 0; ALTER SEQUENCE outbox_seq_seq RESTART;"
            self.server.execute(f"SET search_path = {schema};" + (deletes + counters if tables else ""))
        self.free += self.used
        self.used.clear()


@pytest.fixture(scope="session")
def schemas(postgres_server: PostgresServer) -> Schemas:
    return Schemas(postgres_server)


@pytest.fixture(params=["sqlite", "postgresql"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewStore]:
    if request.param == "sqlite":
        numbers = itertools.count()
        yield lambda: Opener(tmp_path / f"state{next(numbers) or ''}.db")
        return
    schemas: Schemas = request.getfixturevalue("schemas")
    yield schemas.new_store
    schemas.empty()


@pytest.fixture
def opener(new_store: NewStore) -> Open:
    return new_store()


@pytest.fixture
def state(opener: Open) -> Iterator[State]:
    opened = opener()
    yield opened
    opened.close()


def name_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def slice_of(number: int, stream: str = "requests", size: int = 100) -> NewSlice:
    return NewSlice(
        id=name_of(number),
        stream=stream,
        source="file",
        name=f"{number}.ndjson",
        format=Format.NDJSON,
        codec=Codec.GZIP,
        path=f"slices/{stream}/2024-01-01/{name_of(number)}.ndjson.gz",
        size=size,
        arrival=1_704_067_200_000_000 + number,
        declared=Interval(0, number) if number % 2 else None,
    )


def result_of(number: int, accepted: int = 8, error: str | None = None, decision: int = 0) -> SliceResult:
    counts = Counts(accepted + 2, accepted, 1, 0, 1, 3, {"skew": 1})
    return SliceResult(name_of(number), counts, Interval(5, 50), 7, error, decision)


def batch_of(
    batch: str, numbers: Sequence[int], tiles: Mapping[int, Sequence[int]] | None = None, version: int = 1
) -> BatchRecord:
    return BatchRecord(
        stream="requests",
        batch=batch,
        raw_version=version,
        quarantine_version=version + 10,
        results=[result_of(number) for number in numbers],
        clocks=[ClockState("file", 1000 * version, 900 * version)],
        tiles={start: frozenset(map(name_of, members)) for start, members in (tiles or {}).items()},
        runs=[f"run-{batch}"],
    )


def build_of(start: int, numbers: Sequence[int], revision: int = 1) -> TileBuild:
    names = frozenset(map(name_of, numbers))
    return TileBuild(TileKey("5s", start), set_hash(names), revision, f"p{revision}.parquet", 10, names)


# -- windows: hours of one stream, slices by number


def key_of(hour: int, stream: str = "requests") -> WindowKey:
    return WindowKey(stream, hour * HOUR, HOUR)


def accept(state: State, *numbers: int, stream: str = "requests", decision: int = 0) -> None:
    """Slices that went through the gate, in a batch of their own; entered first if need be."""
    state.enter_all([slice_of(number, stream) for number in numbers if state.slice(name_of(number)) is None])
    results = [result_of(number, decision=decision) for number in numbers]
    batch = f"b-{stream}-{numbers}-{decision}"
    assert state.apply_batch(BatchRecord(stream, batch, 1, 1, results, [], {}))


def assign(state: State, hours: Mapping[int, Sequence[int]], stream: str = "requests") -> None:
    """Accepted slices (by number) as members of hourly windows (by hour)."""
    state.declare_layout(stream, HOUR)
    state.assign(stream, {name_of(number): [hour * HOUR for hour in of] for number, of in hours.items()})


def verdict_of(
    window: Window, members: Sequence[Member], used: Sequence[int] | None = None, *, ready: bool = True
) -> Evaluation:
    """A judgement: these of the members are used (else all of them), the others came late."""
    wanted = {member.slice for member in members} if used is None else set(map(name_of, used))
    names = frozenset(member.name for member in members if member.slice in wanted)
    return Evaluation(
        key=window.key,
        version=window.version,
        used=names,
        ignored={member.name: "late" for member in members if member.name not in names},
        ready=ready,
        desired=set_hash(names),
        reason=None if ready else "gap",
        detail=None if ready else "gap 10:30-10:45",
        trigger="complete",
    )


def judge_due(state: State, stream: str = "requests", now: int = 0, *, ready: bool = True) -> None:
    """Everything that is due is made of all its members."""
    verdicts = [verdict_of(*found, ready=ready) for found in state.due(stream, now, 1_000_000)]
    assert state.evaluate(verdicts) == []


def queue(state: State, hours: Mapping[int, Sequence[int]], stream: str = "requests") -> None:
    """Slices accepted, laid and judged: their windows are in the queue."""
    accept(state, *hours, stream=stream)
    assign(state, hours, stream)
    judge_due(state, stream)


def dataset_of(build: Build, revision: int | None = None) -> Dataset:
    number = revision or build.revision
    return Dataset(
        key=build.key,
        revision=number,
        hash=build.desired,
        slices=sorted(member.name for member in build.members),
        rows=10 * len(build.members),
        bytes=1000,
        file=f"datasets/{build.key.stream}/aggregation/{build.key.start}_{build.key.span}/r{number}.arrow",
        sealed=build.seal,
    )


def event_of(name: str, stream: str = "requests", time: int = 5) -> OutboxEvent:
    return OutboxEvent(0, name, "tidemill.dataset.available", stream, time, {"rows": 1, "of": [name, None]})


def build_all(state: State, now: int = 0) -> list[Build]:
    """Take and complete whatever is in the queue."""
    builds = state.take("builder", now, now + MINUTE, 1_000_000)
    assert state.complete_all([(build, dataset_of(build), ()) for build in builds], now) == [True] * len(
        builds
    )
    return builds


def window_at(state: State, hour: int, stream: str = "requests") -> Window:
    found = state.window(key_of(hour, stream))
    assert found is not None
    return found[0]


def members_at(state: State, hour: int) -> dict[int, Member]:
    """The members of a window, by number of their slices (below 100)."""
    found = state.window(key_of(hour))
    assert found is not None
    numbers = {name_of(number): number for number in range(100)}
    return {numbers[member.slice]: member for member in found[1]}
