"""Streams that cannot be worked on: kept apart from the others, logged once, and tried again later.

What is wrong with a stream is on record in the state, so that `status` and the metrics of any process show
it. It is never durable: a recovered state knows of no faults, and the next round finds those there are.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final

from tidemill.model.errors import TidemillError, as_tidemill_error
from tidemill.model.time import MINUTE, SECOND
from tidemill.storage.state.protocol import State

log = logging.getLogger(__name__)

CHECKPOINT: Final = "@fault"  # no window is called so
FIRST_DELAY: Final = SECOND
LONGEST_DELAY: Final = 5 * MINUTE


@dataclass(frozen=True, slots=True)
class StreamFault:
    """Why a stream cannot be worked on, since when, and when it is tried again."""

    stream: str
    code: str
    message: str
    hint: str
    since: int
    attempts: int
    next_try: int


def fault_of(state: State, stream: str) -> StreamFault | None:
    """What the last round found wrong with a stream; None when it worked."""
    return _read(stream, state.marks(stream))


def _read(stream: str, marks: Mapping[str, str]) -> StreamFault | None:
    said = marks.get(CHECKPOINT)
    return None if said is None else StreamFault(stream=stream, **json.loads(said))


def delay_after(attempts: int) -> int:
    """How long a daemon leaves a stream alone that failed so many times in a row."""
    return min(FIRST_DELAY << min(attempts - 1, 20), LONGEST_DELAY)


def one_by_one(streams: Iterable[str], work: Callable[[str], None]) -> None:
    """Do the work for each stream. One that fails does not hold up the others: its error is raised when they
    are done, and logged if another one is raised."""
    first: TidemillError | None = None
    for stream in streams:
        try:
            work(stream)
        except TidemillError as error:
            if first is None:
                first = error
            else:
                log.error("the stream fails: %s", error, extra={"stream": stream, "code": error.code})
    if first is not None:
        raise first


class RoundFaults:
    """The faults of one round, of all its streams."""

    def __init__(self, state: State, now: int, unrecorded: dict[str, StreamFault]) -> None:
        self._state = state
        self._now = now
        self._unrecorded = unrecorded  # of earlier rounds of this process, that the state could not keep
        self.found: dict[str, StreamFault] = {}
        self.errors: list[TidemillError] = []
        self._before: dict[str, StreamFault | None] = {}

    def is_waiting(self, stream: str) -> bool:
        """Whether a daemon does not try the stream yet."""
        fault = self._known(stream)
        return fault is not None and self._now < fault.next_try

    @contextmanager
    def apart(self, stream: str) -> Iterator[None]:
        """Around work on one stream: whatever goes wrong in it is that stream's, and does not pass on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the other streams go on
            self.record(stream, error)

    def record(self, stream: str, error: Exception) -> None:
        """What went wrong with one stream, where somebody else caught it."""
        self._failed(stream, as_tidemill_error(error), error)

    def finish(self, worked: Iterable[str]) -> None:
        """Forget the faults of streams that worked."""
        for stream in worked:
            fault = self._known(stream)
            if fault is not None and stream not in self.found:
                self._unrecorded.pop(stream, None)
                self._state.set_mark(stream, CHECKPOINT, None)
                where = {"stream": stream, "attempts": fault.attempts}
                log.info("the stream works again: %s", fault.message, extra=where)

    def _known(self, stream: str) -> StreamFault | None:
        if stream not in self._before:
            self._before[stream] = fault_of(self._state, stream) or self._unrecorded.get(stream)
        return self._before[stream]

    def _failed(self, stream: str, told: TidemillError, error: Exception) -> None:
        if stream in self.found:
            return
        known = self._known(stream)
        attempts = 1 if known is None else known.attempts + 1
        fault = StreamFault(
            stream=stream,
            code=told.code,
            message=str(told),
            hint=told.hint,
            since=self._now if known is None else known.since,
            attempts=attempts,
            next_try=self._now + delay_after(attempts),
        )
        self.found[stream] = fault
        self.errors.append(told)
        self._log(fault, known, error)
        said = asdict(fault)
        del said["stream"]
        try:
            self._state.set_mark(stream, CHECKPOINT, json.dumps(said))
        except TidemillError as lost:  # a full disk, perhaps
            self._unrecorded[stream] = fault
            log.debug("a fault could not be recorded: %s", lost, extra={"stream": stream})

    def _log(self, fault: StreamFault, known: StreamFault | None, error: Exception) -> None:
        where = {"stream": fault.stream, "code": fault.code, "attempts": fault.attempts}
        if known is not None and (known.code, known.message) == (fault.code, fault.message):
            log.debug("the stream still fails: %s", fault.message, extra=where)
            return
        trace = None if isinstance(error, TidemillError) else error  # of a defect: where it is
        log.error("the stream fails: %s", fault.message, extra=where, exc_info=trace)
