"""Faults: work on one stream, or on one of its outputs, that fails. A fault does not affect other work; it is
logged once and tried again later.

Faults are on record in the state, so that `status`, `/readyz` and the metrics of any process show them. They
are never durable facts: a recovered state knows of none, and the next round finds those there are.
"""

from __future__ import annotations

import errno
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

from tidemill.model.errors import DamageError, LeaseLostError, StorageError, TidemillError, as_tidemill_error
from tidemill.model.time import MINUTE, SECOND
from tidemill.storage.bucket import BucketError
from tidemill.storage.state.protocol import State

log = logging.getLogger(__name__)

CHECKPOINT: Final = "@fault"  # no window is called so
WAREHOUSE: Final = ""  # in place of a stream: work for all of them
RAW: Final = "raw"  # in place of an output: accepting slices
FIRST_DELAY: Final = SECOND
LONGEST_DELAY: Final = 5 * MINUTE

Done = TypeVar("Done")
_Key = tuple[str, str]  # a stream and the output, or other work, of it


@dataclass(frozen=True, slots=True)
class Fault:
    """What fails, why, since when, and when it is tried again."""

    stream: str  # `WAREHOUSE`: no single one
    output: str  # an output of the stream, `RAW`, or other work on it: sources, pack, retention …
    code: str
    message: str
    hint: str
    file: str  # the file that causes it, relative to the warehouse; "" if no file does
    since: int
    attempts: int
    next_try: int


def faults_of(state: State, stream: str) -> list[Fault]:
    """The faults of a stream that the last tries found, in the order of the flow of data."""
    checkpoints = state.checkpoints(stream)
    found = [_read(stream, name, text) for name, text in checkpoints.items() if name.startswith(CHECKPOINT)]
    return sorted(found, key=lambda fault: (fault.output != RAW, fault.output))


def _read(stream: str, checkpoint: str, text: str) -> Fault:
    output = checkpoint.partition(":")[2] or RAW
    return Fault(**({"output": output, "file": ""} | json.loads(text)), stream=stream)


def _checkpoint_name(output: str) -> str:
    return f"{CHECKPOINT}:{output}"


def delay_after(attempts: int) -> int:
    """How long a daemon leaves work alone that failed so many times in a row."""
    return min(FIRST_DELAY << min(attempts - 1, 20), LONGEST_DELAY)


def one_by_one(streams: Iterable[str], work: Callable[[str], None]) -> None:
    """Do the work for each stream. If one fails, the others are still done; then its error is raised, or
    logged if another one is raised."""
    first: Exception | None = None
    for stream in streams:
        try:
            work(stream)
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001 - the first one is raised below
            if first is None:
                first = error
            else:
                failure = as_tidemill_error(error)
                log.error("the stream fails: %s", failure, extra={"stream": stream, "code": failure.code})
    if first is not None:
        raise first


# -- which file an error is about


def named(error: Exception, root: Path) -> TidemillError:
    """The error as shown to a user. If a file of the warehouse is missing, it says which one."""
    file = _file_of(error, root)
    if file is not None and _may_miss_a_file(error) and not (root / file).exists():
        return DamageError("the file is missing", where=file)
    failure = as_tidemill_error(error)
    if failure is not error and file is not None:  # an error of a library that read the file
        return DamageError(f"the file cannot be read: {failure.message}", where=file)
    return failure


def _may_miss_a_file(error: Exception) -> bool:
    """Whether a missing file can be the cause. A full disk or missing permissions are not, although the file
    that could not be written is missing too."""
    cause = error.__cause__ if isinstance(error, StorageError) else error
    if isinstance(error, DamageError) or cause is None or isinstance(cause, BucketError):
        return False
    number = cause.errno if isinstance(cause, OSError) else None
    return number in (None, errno.ENOENT) and (isinstance(error, StorageError) or isinstance(cause, OSError))


def _file_of(error: Exception, root: Path) -> str | None:
    """The file that an error names, relative to the warehouse; None: none of its files."""
    if isinstance(error, TidemillError):
        name = error.where
    else:
        found = re.search(re.escape(str(root)) + r"/[^\s'\":,]+", str(error))
        name = str(getattr(error, "filename", None) or (found[0] if found else ""))
    path = Path(name)
    if not name:
        return None
    if not path.is_absolute():
        return name if (root / path).parent.exists() and "/" in name else None
    return path.relative_to(root).as_posix() if path.is_relative_to(root) and path != root else None


def fault_by(error: Exception, stream: str, output: str, root: Path, now: int) -> Fault:
    """A fault that occurred now; it does not count as an attempt."""
    failure = named(error, root)
    file = _file_of(failure, root) or ""
    return Fault(stream, output, failure.code, str(failure), failure.hint, file, now, 0, now)


# -- the faults of one round


class Guard(Protocol):
    """Runs pieces of work, each for one stream or one output."""

    def attempt(
        self, stream: str, output: str, work: Callable[[], Done], proves: Callable[[Done], bool] = ...
    ) -> Done | None:
        """The result of the work; None when it failed or is not tried now. `proves` says whether this result
        shows that a fault is over."""
        ...


class Unguarded:
    """For a command that does one thing: errors pass through."""

    def attempt(
        self,
        stream: str,
        output: str,
        work: Callable[[], Done],
        proves: Callable[[Done], bool] = lambda _done: True,
    ) -> Done | None:
        return work()


@dataclass(slots=True)
class FaultMemory:
    """What one process knows of faults besides the state: when each is tried again, by a timer that cannot be
    set back; and those that could not be written to the state."""

    timer: Callable[[], int]
    due: dict[_Key, int] = field(default_factory=dict)
    unrecorded: dict[_Key, Fault] = field(default_factory=dict)


class RoundFaults:
    """The faults of one round, of all its streams and outputs."""

    def __init__(
        self, state: State, root: Path, now: int, memory: FaultMemory, *, patient: bool = False
    ) -> None:
        """A `patient` round skips work whose next try is not due."""
        self._state = state
        self._root = root
        self._now = now
        self._memory = memory
        self._patient = patient
        self._found: dict[_Key, Fault] = {}
        self._worked: set[_Key] = set()
        self._before: dict[str, dict[str, Fault]] = {}
        self.errors: list[TidemillError] = []

    @property
    def found(self) -> list[Fault]:
        return list(self._found.values())

    def attempt(
        self,
        stream: str,
        output: str,
        work: Callable[[], Done],
        proves: Callable[[Done], bool] = lambda _done: True,
    ) -> Done | None:
        """Run the work; any error is recorded as a fault of this output and does not propagate. What failed
        in this round is not tried again in it."""
        key = (stream, output)
        if key in self._found or self._is_waiting(key):
            return None
        try:
            done = work()
        except LeaseLostError:  # a process that lost its lease commits nothing
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, all other work goes on
            self.record(stream, output, error)
            return None
        if proves(done):
            self._worked.add(key)
        return done

    def record(self, stream: str, output: str, error: Exception) -> None:
        """Record an error that the caller caught."""
        self._failed((stream, output), named(error, self._root), error)

    def is_faulty(self, stream: str) -> bool:
        """Whether anything of the stream failed in this round, or waits for its next try."""
        known = (key for key in self._known(stream) if (stream, key) not in self._worked)
        return any(name == stream for name, _ in self._found) or any(known)

    def finish(self) -> None:
        """Forget the faults of what worked."""
        for stream, output in sorted(self._worked - self._found.keys()):
            fault = self._known(stream).get(output)
            if fault is None:
                continue
            self._memory.unrecorded.pop((stream, output), None)
            self._memory.due.pop((stream, output), None)
            for checkpoint in (_checkpoint_name(output), *([CHECKPOINT] if output == RAW else [])):
                self._state.set_checkpoint(stream, checkpoint, None)
            context = {"stream": stream, "output": output, "attempts": fault.attempts}
            log.info("works again: %s", fault.message, extra=context)

    def _is_waiting(self, key: _Key) -> bool:
        if not self._patient:
            return False
        fault = self._known(key[0]).get(key[1])
        if fault is None:
            return False
        now = self._memory.timer()
        if key not in self._memory.due:  # a fault that an earlier process recorded
            left = min(max(fault.next_try - self._now, 0), delay_after(fault.attempts))
            self._memory.due[key] = now + left
        return now < self._memory.due[key]

    def _known(self, stream: str) -> Mapping[str, Fault]:
        """By output, as they were before this round."""
        if stream not in self._before:
            known = {output: one for (name, output), one in self._memory.unrecorded.items() if name == stream}
            recorded = {fault.output: fault for fault in faults_of(self._state, stream)}
            self._before[stream] = known | recorded
        return self._before[stream]

    def _failed(self, key: _Key, failure: TidemillError, error: Exception) -> None:
        if key in self._found:
            return
        stream, output = key
        known = self._known(stream).get(output)
        attempts = 1 if known is None else known.attempts + 1
        fault = replace(
            fault_by(failure, stream, output, self._root, self._now),
            since=self._now if known is None else known.since,
            attempts=attempts,
            next_try=self._now + delay_after(attempts),
        )
        self._found[key] = fault
        self._memory.due[key] = self._memory.timer() + delay_after(attempts)
        self.errors.append(failure)
        self._log(fault, known, error)
        fields = {name: value for name, value in asdict(fault).items() if name not in ("stream", "output")}
        try:
            self._state.set_checkpoint(stream, _checkpoint_name(output), json.dumps(fields))
        except LeaseLostError:
            raise
        except TidemillError as lost:  # a full disk, perhaps
            self._memory.unrecorded[key] = fault
            log.debug("a fault could not be recorded: %s", lost, extra={"stream": stream})

    def _log(self, fault: Fault, known: Fault | None, error: Exception) -> None:
        context = {"stream": fault.stream, "output": fault.output, "code": fault.code, "file": fault.file}
        work = f"{fault.output} of {fault.stream}" if fault.stream else fault.output
        if known is not None and (known.code, known.message) == (fault.code, fault.message):
            log.debug("%s still fails: %s", work, fault.message, extra=context)
            return
        failure = isinstance(error, TidemillError | OSError) or fault.code == DamageError.code
        log.error(
            "%s fails: %s; %s",
            work,
            fault.message,
            fault.hint,
            extra=context,
            exc_info=None if failure else error,  # a bug: log where it is
        )
