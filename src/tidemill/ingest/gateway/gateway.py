"""The gateway: makes a submission durable, acknowledges it, gathers it in a window, and lands it as a slice.

What it acknowledged survives kill -9: it is in the log until its slice is in the ledger. With `acknowledge:
landed` its sender is answered only then. Memory is bounded, and nothing is dropped silently: a sender that
cannot be served is asked to retry.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, Self

from tidemill.config import Stream
from tidemill.config.gateway import GatewaySettings as Settings
from tidemill.config.gateway import settings_of
from tidemill.ingest.gateway.buffer import Buffer, Taken
from tidemill.ingest.gateway.distinct_keys import warm
from tidemill.ingest.gateway.gateway_registry import GatewayLog
from tidemill.ingest.gateway.memory import MemoryTracker, cost_of, setting_of
from tidemill.ingest.gateway.status import write_status
from tidemill.ingest.gateway.triggers import custom_triggers, large_from
from tidemill.ingest.gateway.wal import Done, Wal
from tidemill.ingest.gateway.window_landing import ClosedWindow, closed, land_window
from tidemill.ingest.landing import Landing
from tidemill.model.clock import Clock, WatchedClock
from tidemill.model.errors import OverloadedError, TidemillError, UnlandedError, as_tidemill_error
from tidemill.model.failpoints import failpoint
from tidemill.model.gateway import (
    CloseTrigger,
    Entry,
    GatewayStatus,
    Pressure,
    Receipt,
    Submission,
    WindowOutput,
)
from tidemill.model.time import MINUTE, SECOND
from tidemill.storage.state.protocol import State

log = logging.getLogger(__name__)

Feed = tuple[str, str]  # stream and source
NEVER: Final = 1 << 62
RECENT: Final = 1000  # windows that are remembered for those who wait for them
RETRY: Final = SECOND  # until windows that could not be landed are tried again
_NOBODY: Final[Callable[[Sequence[WindowOutput]], None]] = lambda _outputs: None  # noqa: E731


@dataclass(frozen=True, slots=True)
class Flushed:
    """What an explicit trigger closed."""

    windows: tuple[WindowOutput, ...]  # those that have landed
    pending: int  # events that have not landed yet


class Gateway:
    """One gateway of a warehouse. Thread-safe; `close` it to land everything."""

    def __init__(
        self,
        warehouse: Path,
        streams: Mapping[str, Stream],
        settings: Settings,
        state: State,
        landing: Landing,
        clock: Clock,
        on_landed: Callable[[Sequence[WindowOutput]], None] = _NOBODY,
    ) -> None:
        warm()
        self.settings = settings
        self._of_stream = {name: settings_of(settings, stream.gateway) for name, stream in streams.items()}
        self._custom = {name: custom_triggers(own.triggers.custom) for name, own in self._of_stream.items()}
        budgets = {name: stream.gateway.memory.buffer for name, stream in streams.items()}
        self.memory = MemoryTracker(
            settings.memory, {name: size for name, size in budgets.items() if size is not None}
        )
        self.address: str | None = None
        self._warehouse = warehouse
        self._streams = streams
        self._state = state
        self._landing = landing
        self._clock = WatchedClock.of(clock)  # for what is recorded; waits use its timer
        self._on_landed = on_landed
        self._guard = threading.Condition()  # of all that follows
        self._buffers: dict[Feed, Buffer] = {}
        self._openers: dict[Feed, str] = {}  # the sender that each buffer was made for
        self._expected: Counter[Feed] = Counter()  # submissions on their way into the log
        self._pending: dict[int, Entry] = {}  # durable, not in the ledger yet
        self._unanswered: dict[int, Done] = {}  # senders of some of these, who wait until theirs has landed
        self._unlanded: deque[ClosedWindow] = deque()  # closed, could not be landed yet
        self._stopping = False
        self._next = -NEVER  # when the flusher looks at the windows next
        self._triggers: Counter[str] = Counter()
        self._acknowledged = self._landed = self._refused = 0
        self._dropped_at = self._told_at = self._retry_at = -NEVER
        self._troubles: dict[str, str] = {}  # why windows of a stream could not be landed, at the last try
        self.stuck_since: float | None = None  # by the monotonic clock: windows could not be landed since
        self._asked_for: set[str] = set()  # streams whose windows are to be closed
        self._recent: deque[tuple[WindowOutput, tuple[int, ...]]] = deque(maxlen=RECENT)  # landed
        self._settled: set[str] = set()  # windows whose close is in the log, not landed yet
        self._kept = 0
        after = landing.last_arrival()
        self._gateways = GatewayLog(warehouse, state)
        self._wal = Wal.create(warehouse, settings.wal, self._clock, self._durable, after)
        try:
            self._gateways.begin(self._wal.name, self._clock())
        except BaseException:
            self._wal.close()
            raise
        self._flusher = threading.Thread(target=self._run, name="tidemill-flusher", daemon=True)
        self._flusher.start()

    @property
    def name(self) -> str:
        return self._wal.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- taking

    def admit(self) -> None:
        """OverloadedError if senders have to slow down. Called before a body is read."""
        pressure = self.memory.pressure()
        if pressure in (Pressure.HIGH, Pressure.EMERGENCY):
            self._refuse()
            full = self.memory.fullest()
            raise OverloadedError(  # without numbers: a sender must not learn how much others send
                f"memory pressure is {pressure.value}: {full} is nearly used up",
                hint="send the same again after the time that Retry-After says; "
                f"{setting_of(full)} sets what is allowed",
                after=1.0,
                refused=pressure is Pressure.EMERGENCY,
            )

    def submit(self, submission: Submission, done: Done, sender: str = "") -> None:
        """Make a submission durable; `done` is called in another thread then, or with `acknowledge: landed`
        once it is in the ledger. OverloadedError: nothing was taken. `sender` is charged for the source, if
        it is a new one."""
        size = cost_of(submission)
        key = (submission.stream, submission.source)
        try:
            self.memory.allocate("buffer", size, submission.stream)
            try:
                self._expect(key, sender)
            except OverloadedError:
                self.memory.release("buffer", size, submission.stream)
                raise
        except OverloadedError:
            self._refuse()
            raise

        def on_durable(outcome: Entry | BaseException) -> None:
            if isinstance(outcome, BaseException) and not isinstance(outcome, UnlandedError):
                self._give_up(key, size)  # it was not taken
            done(outcome)

        try:
            self._wal.append(submission, on_durable)
        except BaseException:
            self._give_up(key, size)
            raise

    def _expect(self, key: Feed, sender: str) -> None:
        """Create a window for it, so that there is memory for one, and keep it until the entry is in it."""
        with self._guard:
            if key not in self._buffers:
                self._check_sources(sender)
                stream = self._streams[key[0]]
                buffer = Buffer(stream, key[1], self._of_stream[key[0]], custom=self._custom[key[0]])
                self.memory.allocate("rates", buffer.monitor.size)
                self._buffers[key] = buffer
                self._openers[key] = sender
            self._expected[key] += 1

    def _check_sources(self, sender: str) -> None:
        """One sender must not use up the memory that all share for sources. Under the guard."""
        most = self.settings.requests.sources
        if sum(opener == sender for opener in self._openers.values()) >= most:
            raise OverloadedError(
                f"this sender uses {most} sources already",
                hint="send the same again once some of them are idle, name fewer sources, "
                "or allow more with gateway.requests.sources",
                where="gateway.requests.sources",
                after=1.0,
            )

    def _give_up(self, key: Feed, size: int) -> None:
        self.memory.release("buffer", size, key[0])
        with self._guard:
            self._expected[key] -= 1

    def _refuse(self) -> None:
        with self._guard:
            self._refused += 1
            self._wake_flusher()

    def _durable(self, group: Sequence[tuple[Entry, Done]]) -> None:
        """Called by the log, in its order: durable entries enter their window, then their senders are
        answered, unless they wait until it has landed: it closes early for them."""
        at_once = self.settings.acknowledge == "logged"
        ahead, now = self._clock() - self._clock.timer(), self._clock.timer()
        with self._guard:
            touched: dict[Feed, Buffer] = {}
            for entry, done in group:
                key = (entry.submission.stream, entry.submission.source)
                touched[key] = buffer = self._buffers[key]
                buffer.add(entry, now, ahead)
                self._expected[key] -= 1
                self._pending[entry.lsn] = entry
                self._acknowledged += entry.submission.records
                if not at_once:
                    self._unanswered[entry.lsn] = done
                    buffer.hurry()
            if any(self._due_at(buffer, now) < self._next for buffer in touched.values()):
                self._wake_flusher()
        if at_once:
            for entry, done in group:
                done(entry)

    def _due_at(self, buffer: Buffer, now: int) -> int:
        if buffer.due(now, *self._memory_of(buffer)) is not None:
            return now
        at = buffer.next_look(now)
        return at if at is not None else NEVER

    def _memory_of(self, buffer: Buffer) -> tuple[float, int]:
        """The share of memory in use that closing a window frees, and from how many bytes on that closes it:
        of all windows, or of those of its stream, if that has a budget of its own."""
        stream = buffer.stream
        mark = self._of_stream[stream.name].triggers.memory
        share, held = self.memory.share(), (one.held for one in self._buffers.values())
        limit = large_from(held, share, mark, self.settings.memory.buffer)
        if (own := stream.gateway.memory.buffer) is None:
            return share, limit
        of_stream = self.memory.share(stream.name)
        held = (one.held for one in self._buffers.values() if one.stream.name == stream.name)
        return max(share, of_stream), min(limit, large_from(held, of_stream, mark, own))

    def flush(self, streams: Collection[str], timeout: float, tenant: str | None = None) -> Flushed:
        """Close the open windows of these streams, with trigger `explicit`, and wait until they have landed,
        for so many seconds at most. With a tenant, only its own submissions are waited for and reported."""
        with self._guard:
            chosen = {
                lsn
                for lsn, entry in self._pending.items()
                if entry.submission.stream in streams and tenant in (None, entry.submission.tenant)
            }
            self._asked_for.update(streams)
            self._wake_flusher()
            self._guard.wait_for(lambda: not chosen & self._pending.keys(), timeout)
            landed = [output for output, lsns in self._recent if not chosen.isdisjoint(lsns)]
            left = [self._pending[lsn] for lsn in chosen & self._pending.keys()]
        return Flushed(tuple(landed), sum(entry.submission.records for entry in left))

    def _wake_flusher(self) -> None:
        """Wake the flusher. Under the guard."""
        self._next = -NEVER
        self._guard.notify_all()

    # -- letting out

    def _run(self) -> None:
        while True:
            with self._guard:
                while not self._stopping and (wait := self._next - self._clock.timer()) > 0:
                    self._guard.wait(wait / SECOND)
                stopping = self._stopping
                self._next = self._clock.timer() + self.settings.background
            try:
                self._flush(CloseTrigger.SHUTDOWN if stopping else None)
            except Exception:  # what is in the log stays there; the next look tries again
                log.exception("windows could not be let out")
            if stopping:
                return
            try:
                self._look_after(self._clock.timer())
            except Exception:
                log.exception("the gateway could not be looked after")

    def _flush(self, trigger: CloseTrigger | None) -> None:
        """Close the windows that are due, with a trigger all of them, and land them."""
        now = self._clock.timer()
        taken: list[tuple[Buffer, Taken]] = []
        with self._guard:
            limits = {key: self._memory_of(buffer) for key, buffer in self._buffers.items()}
            requested, self._asked_for = self._asked_for, set()
            for key, buffer in self._buffers.items():
                reason = trigger or (CloseTrigger.EXPLICIT if key[0] in requested else None)
                found = buffer.take_due(now, *limits[key]) if reason is None else buffer.take(reason.value)
                taken += ((buffer, one) for one in found)
                self._next = min(self._next, self._due_at(buffer, now))
        for buffer, one in taken:  # counting reads every line: senders must not wait for it
            self._unlanded.append(_finished(buffer, one))
        if trigger is not None or now >= self._retry_at:
            self._land_all()

    def _land_all(self) -> None:
        """Land windows of a stream in order: if one cannot be landed, windows of other streams continue. Each
        kind of error is logged once."""
        outputs: list[WindowOutput] = []
        left: deque[ClosedWindow] = deque()
        troubles: dict[str, str] = {}
        try:
            while self._unlanded:
                window = self._unlanded[0]
                if window.output.stream in troubles or not self._try_landing(window, outputs, troubles):
                    left.append(window)
                    self._answer(window, UnlandedError("the events could not be landed"))
                self._unlanded.popleft()
        finally:
            self._unlanded.extendleft(reversed(left))
            self._troubles = troubles
            if not troubles:
                self.stuck_since = None
            else:
                self._retry_at = self._clock.timer() + RETRY
                self.stuck_since = monotonic() if self.stuck_since is None else self.stuck_since
            if outputs:
                self._on_landed(outputs)

    def _try_landing(
        self, window: ClosedWindow, outputs: list[WindowOutput], troubles: dict[str, str]
    ) -> bool:
        try:
            outputs.append(self._land_output(window))
        except Exception as error:  # noqa: BLE001 - the disk is full, the state is away: it stays in the log
            problem, stream = as_tidemill_error(error), window.output.stream
            troubles[stream] = str(problem)
            if self._troubles.get(stream) != str(problem):
                log.error("a window could not be landed: %s", problem, extra={"window": window.output.id})
            return False
        return True

    def _land_output(self, window: ClosedWindow) -> WindowOutput:
        if window.output.id not in self._settled:
            self._wal.close_window(window.output, window.lsns)
            self._settled.add(window.output.id)
        _, receipts = land_window(self._landing, window)
        self._state.keep_receipts(receipts, self._clock() + self.settings.receipts)
        failpoint("gateway.after_receipts")
        self._wal.landed(window.lsns)
        self._settled.discard(window.output.id)
        with self._guard:
            for lsn in window.lsns:
                del self._pending[lsn]
            self._recent.append((window.output, window.lsns))
            self._triggers[window.output.trigger] += 1
            self._landed += sum(entry.submission.records for entry in window.entries)
            self._guard.notify_all()
        freed = sum(cost_of(entry.submission) for entry in window.entries)
        self.memory.release("buffer", freed, window.output.stream)
        self._answer(window)
        return window.output

    def _answer(self, window: ClosedWindow, error: UnlandedError | None = None) -> None:
        """Answer those who wait until it has landed, each once. With an error it stays in the log, and is
        tried again whether or not they send the same again."""
        with self._guard:
            waiting = [(entry, self._unanswered.pop(entry.lsn, None)) for entry in window.entries]
        for entry, done in waiting:
            try:
                if done is not None:
                    done(entry if error is None else error)
            except Exception:  # one sender that cannot be answered must not keep others waiting
                log.exception("a sender could not be answered")

    def _look_after(self, now: int) -> None:
        """Regular upkeep: the status file for others, and expired receipts."""
        if now >= self._told_at + SECOND:
            self._told_at = now
            write_status(self._warehouse, self.status())
        self._recount()
        self._forget_idle(now)
        if now >= self._dropped_at + MINUTE:
            self._dropped_at = now
            try:
                self._state.drop_receipts(self._clock())
            except TidemillError as error:
                log.warning("old receipts stay: %s", error)

    def _recount(self) -> None:
        """Count the memory that sliding windows use for closed ones."""
        with self._guard:
            kept = sum(buffer.kept for buffer in self._buffers.values())
        if kept > self._kept:
            self.memory.allocate("windows", kept - self._kept)
        else:
            self.memory.release("windows", self._kept - kept)
        self._kept = kept

    def _forget_idle(self, now: int) -> None:
        """Drop feeds without arrivals: what is known of their rates is outdated."""
        with self._guard:
            for key, buffer in list(self._buffers.items()):
                if buffer.is_idle(now) and not self._expected[key]:
                    self.memory.release("rates", buffer.monitor.size)
                    del self._buffers[key], self._expected[key], self._openers[key]

    # -- looking

    def receipt(self, id_: str) -> Receipt | None:
        """Where an ingestion is, of this or another gateway; None before its slice is in the ledger."""
        return self._state.receipt(id_)

    def buffered(self, id_: str) -> Entry | None:
        """An ingestion of this gateway that is durable and not in a slice yet."""
        gateway, _, lsn = id_.rpartition("-")
        if gateway != self.name:
            return None
        try:
            number = int(lsn, 16)
        except ValueError:
            return None
        with self._guard:
            return self._pending.get(number)

    def hurry(self, id_: str) -> None:
        """A sender waits for this outcome: close its window as soon as possible."""
        entry = self.buffered(id_)
        if entry is None:
            return
        with self._guard:
            buffer = self._buffers.get((entry.submission.stream, entry.submission.source))
            if buffer is not None:
                buffer.hurry()
                self._wake_flusher()

    def status(self) -> GatewayStatus:
        at, now = self._clock(), self._clock.timer()
        with self._guard:
            return GatewayStatus(
                gateway=self.name,
                pid=os.getpid(),
                at=at,
                address=self.address,
                pressure=self.memory.pressure(),
                fullest=self.memory.fullest(),
                memory=self.memory.usage(),
                buffers=tuple(buffer.state(now) for buffer in self._buffers.values()),
                acknowledged=self._acknowledged,
                landed=self._landed,
                refused=self._refused,
                windows=dict(self._triggers),
                trigger_failures={
                    one.name: one.failures
                    for triggers in self._custom.values()
                    for one in triggers
                    if one.failures
                },
                wal_bytes=self._wal.size,
                wal_segments=self._wal.segments,
                clock=self._clock.steps,
            )

    def close(self) -> None:
        """Take nothing more, land every window, and stop. What could not be landed stays in the log."""
        with self._guard:
            if self._stopping:
                return
        self._wal.drain()
        with self._guard:
            self._stopping = True
            self._wake_flusher()
        self._flusher.join()
        for done in self._unanswered.values():  # closing failed in a way that nobody expected
            done(UnlandedError("the gateway stopped before the events had landed"))
        self._unanswered.clear()
        self._wal.close(lambda: self._gateways.end(self.name, self._clock()))


def _finished(buffer: Buffer, taken: Taken) -> ClosedWindow:
    """The window with its statistics; if that fails, without keys: its contents matter more."""
    try:
        return buffer.finish(taken)
    except Exception:
        log.exception("the keys of a window of %s could not be counted", buffer.stream.name)
        return closed(taken.entries, taken.trigger, keys=0)
