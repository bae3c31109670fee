"""The stores side by side: told the same things in the same order, they answer the same and hold the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.state.conftest import PREFIXES, name_of, slice_of, sqlite_stores
from tests.state.redis_server import LossyRoad, RedisServer

from tidemill.model.errors import TidemillError
from tidemill.model.slices import (
    Counts,
    SliceEntry,
    SliceStatus,
    contribution_name,
    contribution_of,
    set_hash,
)
from tidemill.model.tiles import TileKey
from tidemill.model.time import HOUR, MAX_INSTANT, MIN_INSTANT, MINUTE, SECOND, Interval
from tidemill.model.windows import Build, Dataset, Judged, OutboxEvent, Phase, Window, WindowKey
from tidemill.state.protocol import (
    BatchRecord,
    ClockState,
    Progress,
    Retraction,
    SliceResult,
    State,
    TileBuild,
)
from tidemill.state.redis_open import open_redis

STREAMS = ("requests", "weather")
OWNERS = ("a", "b", "c")
NOON = 1_704_110_400 * SECOND
# Far past and far future as well: instants that a double does not hold.
ANCHORS = tuple(at // HOUR * HOUR for at in (0, NOON, MIN_INSTANT + HOUR, MAX_INSTANT - 40 * HOUR))
TRIES = (AssertionError, TidemillError)

Ask = Callable[[State], object]


class Pair:
    """Both stores. What one answers the other must answer; errors are answers too."""

    def __init__(self, sqlite: State, redis: State) -> None:
        self.sqlite, self.redis = sqlite, redis

    def ask(self, ask: Ask) -> object:
        expected, answer = _answer(ask, self.sqlite), _answer(ask, self.redis)
        assert answer == expected
        return expected

    def compare(self, streams: tuple[str, ...], ids: list[str], keys: list[WindowKey]) -> None:
        for table, rows in self.sqlite.dump().items():
            assert (table, self.redis.dump()[table]) == (table, rows)
        some = Interval(0, MAX_INSTANT - 38 * HOUR)
        asks: list[Ask] = [
            lambda state: (state.landings(), state.retractions(), state.queue_length()),
            lambda state: state.slices(newest=True, limit=3),
            lambda state: state.outbox(after=2, limit=5),
            lambda state: (state.delivered("sink"), state.delivered("nobody")),
            lambda state: [_plain(window) for window in state.windows()],
            lambda state: [_plain(window) for window in state.windows(newest=True, limit=3)],
            lambda state: [_plain(window) for window in state.windows(span=some)],
            lambda state: dict(state.member_counts(keys)),
            lambda state: [_found(state, key) for key in keys],
            lambda state: [[(_plain(window), member) for window, member in state.windows_of(i)] for i in ids],
        ]
        asks += [ask for stream in streams for ask in _of_stream(stream, some)]
        for ask in asks:
            self.ask(ask)


def _of_stream(stream: str, some: Interval) -> Iterator[Ask]:
    yield lambda state: (dict(state.totals(stream)), dict(state.table_versions(stream)))
    yield lambda state: (state.clocks(stream), state.runs(stream), state.slices(stream, SliceStatus.ACCEPTED))
    yield lambda state: (state.progress(stream), dict(state.marks(stream)))
    yield lambda state: (dict(state.tile_counts(stream)), state.stale_tiles(stream))
    yield lambda state: (state.tiles(stream, "5s", some), state.tiles(stream, "1m"))
    yield lambda state: (dict(state.window_counts(stream)), state.queue_length(stream), state.span(stream))
    yield lambda state: [_plain(window) for window in state.windows(stream, Phase.QUEUED)]
    yield lambda state: (state.outbox(stream=stream), state.unlaid(stream, 100))


def _answer(ask: Ask, state: State) -> object:
    try:
        return ask(state)
    except TRIES as error:
        return type(error), str(error)


def _plain(window: Window) -> Window:
    """A version only has to be another one each time; which one is up to the store."""
    return replace(window, version=0)


def _found(state: State, key: WindowKey) -> object:
    found = state.window(key)
    return found and (_plain(found[0]), found[1])


class Story:
    """Random acts on both stores, sensible ones mostly."""

    def __init__(self, seed: int, pair: Pair) -> None:
        self.dice, self.pair, self.now = random.Random(seed), pair, NOON
        self.numbers: dict[str, list[int]] = {stream: [] for stream in STREAMS}
        self.builds: list[Build] = []
        self.batches = self.retracted = self.told = 0
        for stream in STREAMS:
            self.pair.ask(lambda state, stream=stream: state.lay_out(stream, HOUR))
            for _ in range(4):
                self.enter()

    def go_on(self) -> None:
        often = [self.batch, self.lay, self.judge, self.take]
        at_times = [self.enter, self.complete, self.fail, self.renew, self.wait, self.build_tiles, self.mark]
        rarely = [self.release, self.retract, self.force, self.retry, self.lay_out, self.observe, self.merge]
        rarely += [self.forget, self.touch]
        self.dice.choice(4 * often + 2 * at_times + rarely)()

    def compare(self) -> None:
        ids = [name_of(number) for numbers in self.numbers.values() for number in numbers[:5]]
        self.pair.compare(STREAMS, ids, self.some_keys())

    def maybe(self, chance: float) -> bool:
        return self.dice.random() < chance

    def stream(self) -> str:
        return self.dice.choice(STREAMS)

    def start(self, span: int = HOUR) -> int:
        return (self.dice.choice(ANCHORS) + self.dice.randrange(4) * HOUR) // span * span

    def some_keys(self) -> list[WindowKey]:
        keys = [window.key for window in self.pair.sqlite.windows()]
        return [*self.dice.sample(keys, min(len(keys), 2)), WindowKey("nobody", 0, HOUR)]

    def event(self, stream: str) -> OutboxEvent:
        self.told += 1
        name = f"e{self.dice.randrange(self.told + 1)}"  # now and then one that was told before
        return OutboxEvent(0, name, "tidemill.dataset.available", stream, self.now, {"é": [2**60, None, {}]})

    def wait(self) -> None:
        self.now += self.dice.choice((1, SECOND, MINUTE, HOUR))

    def enter(self) -> None:
        place = self.dice.randrange(len(STREAMS))
        stream = STREAMS[place]
        numbers = [2 * self.dice.randrange(60) + place for _ in range(self.dice.randrange(1, 4))]
        news = [
            replace(
                slice_of(number, stream, size=number * 10),
                declared=Interval(self.start(), MAX_INSTANT) if number % 3 == 0 else None,
                metadata='{"a/b": "ü"}' if number % 5 == 0 else None,
            )
            for number in numbers
        ]
        self.pair.ask(lambda state: state.enter_all(news))
        self.numbers[stream] += [number for number in numbers if number not in self.numbers[stream]]

    def batch(self) -> None:
        stream = self.stream()
        self.batches += 1
        record = self.record_of(stream, self.pair.sqlite.pending(stream, 500))
        if self.maybe(0.05):
            record = replace(record, results=[SliceResult(name_of(999), Counts(), None, None)])
        for _ in range(1 + self.maybe(0.2)):
            self.pair.ask(lambda state: state.apply_batch(record))

    def record_of(self, stream: str, pending: list[SliceEntry]) -> BatchRecord:
        results: list[SliceResult] = []
        tiles: dict[int, set[str]] = {}
        for entry in pending:
            error, accepted = "damaged" if self.maybe(0.1) else None, self.dice.randrange(10)
            changed = entry.accepted_before is not None and accepted != entry.accepted_before
            results.append(
                SliceResult(
                    entry.id,
                    Counts(accepted + 1, accepted, 0, 0, 1, 0, {"skew": 1}),
                    Interval(self.start(), MAX_INSTANT) if accepted else None,
                    self.start() if accepted else None,
                    error,
                    entry.judgement + changed,
                )
            )
            for _ in range(2 if error is None else 0):
                tiles.setdefault(self.start() + self.dice.randrange(4) * 15 * MINUTE, set()).add(entry.id)
        return BatchRecord(
            stream,
            f"b{self.batches}",
            self.batches,
            self.batches,
            results,
            [ClockState(self.dice.choice(("x", "é")), self.start(), self.start(), self.start())],
            {start: frozenset(ids) for start, ids in tiles.items()},
            [f"run{self.batches}"],
            self.progress(),
        )

    def progress(self) -> Progress:
        watermark = self.start() if self.maybe(0.8) else None
        return Progress(watermark, *(self.dice.choice((0, 1, 9, 1 << 40)) for _ in range(4)))

    def mark(self) -> None:
        stream, window = self.stream(), self.dice.choice(("minutes", "é"))
        mark, events = self.dice.choice((None, "", '{"é": 1}')), [self.event(stream) for _ in range(2)]
        self.pair.ask(lambda state: state.set_mark(stream, window, mark, events))

    def build_tiles(self) -> None:
        stream = self.stream()
        builds = [TileBuild(TileKey("1m", self.start()), "h", 1, "p/é", 0)]
        for tile in self.pair.sqlite.stale_tiles(stream):
            one_each = {
                contribution_of(name)[0]: name for name in sorted(tile.desired | tile.observed)
            }.values()
            names = frozenset(name for name in one_each if self.maybe(0.8))
            if self.maybe(0.6):
                revision = tile.state.revision + 1
                builds.append(TileBuild(tile.state.key, set_hash(names), revision, None, 3, names))
        self.pair.ask(lambda state: state.apply_tiles(stream, self.batches, builds))

    def touch(self) -> None:
        stream = self.stream()
        ids = [entry.id for entry in self.pair.sqlite.slices(stream, SliceStatus.ACCEPTED)]
        tiles = {
            self.start() + self.dice.randrange(4) * 15 * MINUTE: frozenset(
                self.dice.sample(ids, min(2, len(ids)))
            )
            for _ in range(2 if ids else 0)
        }
        self.pair.ask(lambda state: state.touch_tiles(stream, tiles))

    def merge(self) -> None:
        stream = self.stream()
        runs = self.pair.sqlite.runs(stream)
        old = self.dice.sample(runs, min(len(runs), 2)) + ["nothing"] * self.maybe(0.2)
        self.batches += 1
        self.pair.ask(lambda state: state.replace_runs(stream, old, [f"merged{self.batches}"]))

    def retract(self) -> None:
        stream = self.stream()
        entries = self.pair.sqlite.slices(stream)
        if not entries or self.maybe(0.5):
            return
        victim = self.dice.choice(entries)
        decided = (SliceStatus.ACCEPTED, SliceStatus.FAILED)
        later = [entry for entry in entries if entry.seq > victim.seq and entry.status in decided]
        again = {entry.id: entry.counts.accepted for entry in later if self.maybe(0.5)}
        n = self.retracted + self.dice.choice((1, 1, 1, 0, 2))
        act = Retraction(n, stream, victim.id, "wrong", self.now, again)
        clocks, left = [ClockState("x", self.start(), self.start(), self.start())], self.progress()
        done = self.pair.ask(lambda state: state.apply_retraction(act, clocks, self.batches, 1, left))
        self.retracted += done is True

    def lay_out(self) -> None:
        stream, span = self.stream(), HOUR if self.maybe(0.8) else 2 * HOUR
        self.pair.ask(lambda state: state.lay_out(stream, span))

    def forget(self) -> None:
        stream, before = self.stream(), self.start() + self.dice.choice((0, 1, HOUR))
        if self.maybe(0.5):
            self.pair.ask(lambda state: state.forget_windows(stream, before))

    def lay(self) -> None:
        stream = self.stream()
        span = self.pair.sqlite.span(stream) or HOUR
        ids = [entry.id for entry in self.pair.sqlite.unlaid(stream, 3)]
        if self.maybe(0.1):
            ids.append(name_of(self.dice.choice(self.numbers[stream] or [999])))
        windows = {i: [self.start(span) for _ in range(self.dice.randrange(1, 4))] for i in ids}
        self.pair.ask(lambda state: state.lay(stream, windows))

    def judge(self) -> None:
        stream, late = self.stream(), int(self.maybe(0.1))
        self.pair.ask(lambda state: [(_plain(window), of) for window, of in state.due(stream, self.now, 5)])
        verdicts: list[Judged] = []
        for window, members in self.pair.sqlite.due(stream, self.now, 5):
            used = frozenset(member.name for member in members if self.maybe(0.8))
            verdicts.append(
                Judged(
                    window.key,
                    0,
                    used,
                    {member.name: "late, or so" for member in members if member.name not in used},
                    ready=bool(used) and self.maybe(0.8),
                    desired=set_hash(used),
                    reason="cutoff",
                    detail="é",
                    check_at=self.dice.choice((None, self.now + 1, self.now + HOUR)),
                    trigger=self.dice.choice((None, "backfill")),
                    seal=self.dice.choice((None, 3)),
                    withdraw=self.maybe(0.2),
                    events=[self.event(stream)] if self.maybe(0.3) else [],
                )
            )

        def judge(state: State) -> object:
            versions = {window.key: window.version for window, _ in state.due(stream, self.now, 5)}
            return state.judge([replace(each, version=versions[each.key] - late) for each in verdicts])

        self.pair.ask(judge)

    def take(self) -> None:
        owner, limit = self.dice.choice(OWNERS), self.dice.randrange(1, 4)
        streams = self.dice.choice((None, None, None, [self.stream()], []))
        lease = self.now + self.dice.choice((SECOND, HOUR))
        taken = self.pair.ask(lambda state: state.take(owner, self.now, lease, limit, streams))
        assert isinstance(taken, list)
        self.builds += taken

    def complete(self) -> None:
        self.dice.shuffle(self.builds)
        done: list[tuple[Build, Dataset, list[OutboxEvent]]] = []
        for build in self.builds[:2]:
            revision = max(0, build.revision + self.dice.choice((0, 0, 0, 1, -1)))
            names = sorted(member.name for member in build.members)
            dataset = Dataset(build.key, revision, build.desired, names, 5, 1 << 60, "f", build.seal)
            done.append((build, dataset, [self.event(build.key.stream)]))
        if self.maybe(0.8):
            self.builds = self.builds[2:]
        self.pair.ask(lambda state: state.complete_all(done, self.now))

    def fail(self) -> None:
        if self.builds:
            build, tries = self.builds.pop(), self.dice.randrange(1, 4)
            not_before = self.now + self.dice.choice((0, 1, HOUR))
            self.pair.ask(lambda state: state.fail(build, "broken", not_before, tries))

    def renew(self) -> None:
        owner, keys = self.dice.choice(OWNERS), [build.key for build in self.builds]
        self.pair.ask(lambda state: state.renew(owner, keys, self.now + HOUR))

    def release(self) -> None:
        owner, seq = self.dice.choice(OWNERS), self.dice.randrange(10)
        self.pair.ask(lambda state: (state.release(owner), state.set_delivered("sink", seq)))

    def force(self) -> None:
        keys, reopen = self.some_keys(), self.maybe(0.5)
        self.pair.ask(lambda state: state.force(keys, "rebuild", reopen=reopen))

    def retry(self) -> None:
        stream, start = self.stream(), self.dice.choice((None, self.start()))
        self.pair.ask(lambda state: state.retry(stream, start))

    def observe(self) -> None:
        stream, span = self.stream(), self.dice.choice((HOUR, 2 * HOUR))
        ids = [name_of(number) for number in self.numbers[stream][:3]]
        names = [contribution_name(i, self.dice.randrange(2)) for i in ids]
        key, events = WindowKey(stream, self.start(2 * HOUR), span), [self.event(stream)]
        sets = [Dataset(key, revision, set_hash(names), names, 1, 1, "f", 2) for revision in (1, 3, 2)]
        self.pair.ask(lambda state: state.observe(sets, events))


@pytest.mark.parametrize("lossy", [False, True], ids=["", "lossy"])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_acts_have_the_same_answers_and_effects(
    seed: int, lossy: bool, redis_server: RedisServer, request: pytest.FixtureRequest
) -> None:
    """With `lossy`, every fifth answer of the Redis server gets lost after it did what it was asked."""
    with ExitStack() as stack:
        url = redis_server.url
        if lossy:
            road = stack.enter_context(LossyRoad(redis_server.port))
            road.lose_every(5)
            url = road.url
        redis = open_redis(url, f"same{next(PREFIXES)}", sleep=lambda _: None)
        pair = Pair(sqlite_stores(request)()(), redis)
        story = Story(100 * lossy + seed, pair)
        for n in range(150):
            story.go_on()
            if n % 15 == 0:
                story.compare()
        story.compare()
        assert not lossy or road.lost > 50
        pair.sqlite.close()
        redis.close()
