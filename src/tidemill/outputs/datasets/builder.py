"""Builders: take windows from the queue under a lease, build them, and commit the result.

Any number of builders in any number of processes share one queue. A builder that dies or loses its lease can
never undo or overwrite what another one published.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemill.config import BuilderSettings as Settings
from tidemill.config import Stream
from tidemill.engine import Engine
from tidemill.model.errors import BusyError, Retry, TidemillError
from tidemill.model.failpoints import failpoint
from tidemill.model.time import SECOND, Interval
from tidemill.model.windows import Build, Dataset, OutboxEvent, Phase, Window, WindowKey
from tidemill.outputs.datasets.announce import available, dataset_metadata
from tidemill.outputs.datasets.kernel import BuildUnit, BuiltWindow, WindowUnit, build_windows
from tidemill.outputs.datasets.raw_reader import Recent
from tidemill.storage.lease_holders import HolderFile, is_alive, new_holder, owner_of
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.snapshot import Part, Snapshot

log = logging.getLogger(__name__)

RUN: Final = 64  # windows that a builder takes at once from a long queue
# Turns that a stream gets: one for the oldest windows of a long queue, one for the newest.
BOTH_ENDS: Final = 2
BACKLOG: Final = 8 * RUN  # windows of one stream; with more, the newest do not wait for all older ones
RECENT: Final = 64 << 20  # bytes of raw that the builders of this process cache
RENEWALS: Final = 3  # how often a lease is renewed before it would expire


@dataclass(frozen=True, slots=True)
class BuildOutcome:
    """The outcome of one attempt to build a window."""

    key: WindowKey
    attempt: int
    seconds: float
    dataset: Dataset | None = None
    error: str | None = None  # why it failed
    lost: bool = False  # built, but another builder was faster or holds the lease now
    trigger: str = ""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What builders need."""

    warehouse: Path
    streams: Mapping[str, Stream]
    settings: Settings
    engine: Engine
    state: State
    # Current snapshot of a stream's raw; BusyError while it is being changed.
    raw: Callable[[str], Snapshot | None]


class Builders:
    """The builders of one process."""

    def __init__(self, builders: BuildContext, concurrency: int | None = None) -> None:
        self.dataset_builders = builders
        self.concurrency = builders.settings.concurrency if concurrency is None else concurrency
        self._holder = new_holder(builders.warehouse)
        self._held: dict[str, list[WindowKey]] = {}
        self._guard = threading.Lock()
        self._file = HolderFile(builders.warehouse, self._holder)
        self._watch: LeaseWatch | None = None
        self._recent: Recent | None = None

    def build(
        self,
        clock: Callable[[], int],
        limit: int | None = None,
        stop: threading.Event | None = None,
        report: Callable[[BuildOutcome], None] = lambda _outcome: None,
        hurry: threading.Event | None = None,
    ) -> list[BuildOutcome]:
        """Build until nothing can be taken from the queue, `limit` windows were tried, or `stop` is set; once
        `hurry` is set, until each stream had its turns for its oldest and its newest windows."""
        if self.concurrency == 0 or not self.anything_to_take():
            return []
        budget, turns = _Budget(limit), _Turns(self.dataset_builders.streams)
        outcomes: list[BuildOutcome] = []

        def work(number: int) -> None:
            owner = owner_of(self._holder, number)
            try:
                while not (stop is not None and stop.is_set()):
                    done = self._one_run(owner, clock, budget, turns)
                    if done is None:
                        return
                    for outcome in done:
                        outcomes.append(outcome)
                        report(outcome)
                    if hurry is not None and hurry.is_set() and turns.least >= BOTH_ENDS:
                        return
            finally:
                with self._guard:
                    left = self._held.pop(owner, [])
                if left:  # after an error: so that others need not wait for the lease to expire
                    self.dataset_builders.state.release(owner)

        self._recent = Recent(RECENT)
        if self._watch is None:
            lease, timer = self.dataset_builders.settings.lease, getattr(clock, "timer", clock)
            self._watch = LeaseWatch(self.dataset_builders.warehouse, lease, timer)
        self._file.open()
        try:
            with self._renewing(clock), ThreadPoolExecutor(self.concurrency, "builder") as pool:
                for _ in pool.map(work, range(self.concurrency)):
                    pass
        finally:
            self._recent = None
            self._file.close()
        return outcomes

    def anything_to_take(self) -> bool:
        """Whether the queue is worth a look: something is queued, or a lease may have expired."""
        state = self.dataset_builders.state
        return bool(state.queue_length() or state.windows(phase=Phase.BUILDING, limit=1))

    def _one_run(
        self, owner: str, clock: Callable[[], int], budget: _Budget, turns: _Turns
    ) -> list[BuildOutcome] | None:
        """Take a few windows and build them one after another; None if there are none to take."""
        builders = self.dataset_builders
        builds = self._take(owner, clock(), budget, turns)
        if not builds:
            return None
        failpoint("windows.after_take")
        with self._guard:
            self._held[owner] = [build.key for build in builds]
        try:
            built = self._kernel(builds)
        except BusyError as error:  # not a failure, and not counted as an attempt
            log.info("%s", error)
            builders.state.release(owner)
            turns.drop(builds[0].key.stream)
            return []
        failpoint("windows.before_state")
        outcomes = self._commit(builds, built, clock())
        failpoint("windows.after_state")
        with self._guard:
            self._held.pop(owner, None)
        return outcomes

    def _take(self, owner: str, now: int, budget: _Budget, turns: _Turns) -> list[Build]:
        """Take some windows of the stream whose turn it is: the oldest, and of a long queue every other time
        the newest, so that neither other streams nor current windows wait for a backlog."""
        builders = self.dataset_builders
        while (turn := turns.next()) is not None:
            name, number = turn
            waiting = builders.state.queue_length(name)
            granted = budget.grant(max(1, min(RUN, waiting // (2 * self.concurrency))))
            if granted == 0:
                return []
            newest = waiting > BACKLOG and number % BOTH_ENDS == 1
            until = now + builders.settings.lease
            builds = builders.state.take(
                owner,
                now,
                until,
                granted,
                [name],
                newest=newest,
                void=self._void(now),
                longest=builders.settings.max_retry_delay,
            )
            budget.give_back(granted - len(builds))
            if builds:
                return builds
            turns.drop(name)
        return []

    def _void(self, now: int) -> dict[WindowKey, int]:
        """Windows whose leases other builders have lost."""
        held = self.dataset_builders.state.windows(phase=Phase.BUILDING)
        with self._guard:
            assert self._watch is not None, "building"
            return self._watch.void(held, now)

    def _kernel(self, builds: Sequence[Build]) -> dict[WindowKey, BuiltWindow]:
        by_stream: dict[str, list[Build]] = {}
        for build in builds:
            by_stream.setdefault(build.key.stream, []).append(build)
        built: dict[WindowKey, BuiltWindow] = {}
        for build in builds:
            if (
                build.attempt > self.dataset_builders.settings.attempts
            ):  # the earlier attempts ended without a reason: their process died
                text = f"its builder died, {build.attempt - 1} times"
                built[build.key] = BuiltWindow(build.key, None, text, 0.0, False)
        for name, everything in by_stream.items():
            group = [build for build in everything if build.key not in built]
            if not group:
                continue
            try:
                unit, size = self._unit(name, group)
                for result in self.dataset_builders.engine.run(build_windows, [unit], "build windows", size):
                    built[result.key] = result
            except BusyError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is theirs: the queue goes on
                text = str(error).splitlines()[0] if str(error) else type(error).__name__
                log.error("windows cannot be built: %s", text, extra={"stream": name})
                for build in group:
                    built.setdefault(build.key, BuiltWindow(build.key, None, text, 0.0, False))
        return built

    def _unit(self, name: str, builds: Sequence[Build]) -> tuple[BuildUnit, int]:
        snapshot = self.dataset_builders.raw(name)
        whole = Interval(min(b.key.interval.start for b in builds), max(b.key.interval.end for b in builds))
        near = _selected(snapshot, whole)
        paths = snapshot.paths(near) if snapshot is not None else []
        windows, read = [], dict[str, int]()
        for build in builds:
            start, end = build.key.start, build.key.end
            raw = {
                path: part.size
                for part, path in zip(near, paths, strict=True)
                if part.may_hold("event_time", start, end - 1)
            }
            read |= raw
            windows.append(WindowUnit(build, list(raw)))
        stream, warehouse = self.dataset_builders.streams[name], str(self.dataset_builders.warehouse)
        unit = BuildUnit(stream, warehouse, windows, recent=self._recent)
        return unit, sum(read.values())

    # -- committing

    def _commit(
        self, builds: Sequence[Build], built: Mapping[WindowKey, BuiltWindow], now: int
    ) -> list[BuildOutcome]:
        done: list[tuple[Build, Dataset, Sequence[OutboxEvent]]] = []
        for build in builds:
            dataset = built[build.key].dataset
            if dataset is not None:
                done.append((build, dataset, [self._event(build, dataset, now)]))
        kept = dict(
            zip(
                (build.key for build, _, _ in done),
                self.dataset_builders.state.complete_all(done, now),
                strict=True,
            )
        )
        return [self._outcome(build, built[build.key], kept.get(build.key), now) for build in builds]

    def _outcome(self, build: Build, result: BuiltWindow, kept: bool | None, now: int) -> BuildOutcome:
        where = {"stream": build.key.stream, "window": str(build.key.interval)}
        if result.dataset is not None:
            if kept:
                log.info("built revision %d", result.dataset.revision, extra=where)
            else:
                log.warning("a build came too late and does not count", extra=where)
            return BuildOutcome(
                build.key, build.attempt, result.seconds, result.dataset, lost=not kept, trigger=build.trigger
            )
        error = result.error or "the builder said nothing"
        settings = self.dataset_builders.settings
        delay = min(settings.max_retry_delay, settings.retry_delay << min(build.attempt - 1, 40))
        self.dataset_builders.state.fail(build, error, now + delay, settings.attempts)
        log.error("try %d of %d failed: %s", build.attempt, settings.attempts, error, extra=where)
        return BuildOutcome(build.key, build.attempt, result.seconds, error=error, trigger=build.trigger)

    def _event(self, build: Build, dataset: Dataset, now: int) -> OutboxEvent:
        stream = self.dataset_builders.streams[build.key.stream]
        metadata = dataset_metadata(stream, [member.metadata for member in build.members])
        rejected = sum(member.rejected for member in build.members)
        supersedes, trigger = build.supersedes, build.trigger
        return available(build.key, dataset, supersedes, trigger, now, metadata, rejected, build.ignored)

    # -- leases

    @contextmanager
    def _renewing(self, clock: Callable[[], int]) -> Iterator[None]:
        """Renew the leases of builders while they work; those of a process that hangs expire."""
        done = threading.Event()
        lease = self.dataset_builders.settings.lease

        def beat() -> None:
            while not done.wait(lease / RENEWALS / SECOND):
                with self._guard:
                    held = {owner: list(keys) for owner, keys in self._held.items()}
                for owner, keys in held.items():
                    try:
                        self.dataset_builders.state.renew(owner, keys, clock() + lease)
                    except TidemillError as error:
                        log.warning("a lease could not be renewed: %s", error)
                        if error.retry is Retry.NEVER:
                            return

        thread = threading.Thread(target=beat, name="leases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _selected(raw: Snapshot | None, span: Interval) -> list[Part]:
    return raw.select(ranges={"event_time": (span.start, span.end - 1)}) if raw is not None else []


class _Turns:
    """Streams in turn, each with the number of turns it had."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = deque((name, 0) for name in names)
        self._guard = threading.Lock()

    def next(self) -> tuple[str, int] | None:
        with self._guard:
            if not self._names:
                return None
            name, number = self._names.popleft()
            self._names.append((name, number + 1))
            return name, number

    @property
    def least(self) -> int:
        """The smallest number of turns that a remaining stream had."""
        with self._guard:
            return min((number for _, number in self._names), default=BOTH_ENDS)

    def drop(self, name: str) -> None:
        """Remove a stream that has nothing to take."""
        with self._guard:
            self._names = deque(one for one in self._names if one[0] != name)


class _Budget:
    """How many windows may still be tried, shared by the builders of a round."""

    def __init__(self, limit: int | None) -> None:
        self._left = limit
        self._guard = threading.Lock()

    def grant(self, most: int) -> int:
        with self._guard:
            if self._left is None:
                return most
            granted = min(most, self._left)
            self._left -= granted
            return granted

    def give_back(self, count: int) -> None:
        with self._guard:
            if self._left is not None:
                self._left += count


_Lease = tuple[str, int]  # owner and end; changes with each renewal


class LeaseWatch:
    """What one process has observed of the leases of others. Not thread-safe: its owner locks."""

    def __init__(self, warehouse: Path, lease: int, timer: Callable[[], int]) -> None:
        self._warehouse = warehouse
        self._lease = lease
        self._timer = timer
        self._seen: dict[WindowKey, tuple[_Lease, int]] = {}

    def void(self, held: Iterable[Window], now: int) -> dict[WindowKey, int]:
        """Of the windows being built, those whose leases are void, with the end of each lease as observed; a
        lease that is renewed meanwhile stays valid."""
        at, seen, void = self._timer(), dict[WindowKey, tuple[_Lease, int]](), dict[WindowKey, int]()
        alive: dict[str, bool | None] = {}  # a builder leases many windows
        for window in held:
            if window.owner is None or window.lease_until is None:
                continue
            lease = (window.owner, window.lease_until)
            known = self._seen.get(window.key)
            since = known[1] if known is not None and known[0] == lease else at
            seen[window.key] = (lease, since)
            if window.owner not in alive:
                alive[window.owner] = is_alive(self._warehouse, window.owner)
            is_over = alive[window.owner] is None and window.lease_until <= now
            if alive[window.owner] is False or at - since >= self._lease or is_over:
                void[window.key] = window.lease_until
        self._seen = seen
        return void
