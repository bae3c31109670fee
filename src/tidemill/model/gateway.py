"""Types of the gateway, from a request to a slice: submissions, windows, receipts, memory pressure.

Values only: nothing here has a clock, a file or a socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tidemill.model.clock import ClockSteps
from tidemill.model.slices import Format
from tidemill.model.time import Interval

CUSTOM: Final = "custom:"  # prefix of the name of a trigger from an entry point


class CloseTrigger(StrEnum):
    """Why a window was closed."""

    TIME = "time"  # it reached the longest time of its kind
    COUNT = "count"
    BYTES = "bytes"
    RATE_CHANGE = "rate_change"
    MEMORY = "memory_pressure"
    FILE = "file"  # a whole file arrived: it is a window of its own, and closes the open one
    BOUNDS = "bounds"  # a request with declared bounds arrived: likewise
    WAITING = "waiting"  # a sender waits for the outcome of what is in it
    EXPLICIT = "explicit"  # a `flush` was requested
    SHUTDOWN = "shutdown"
    RECOVERY = "recovery"  # its process died; the process that read the log closed it


class Pressure(StrEnum):
    """How much of the allowed memory is in use."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"  # senders are asked to slow down, windows are closed early
    EMERGENCY = "emergency"  # requests are refused


@dataclass(frozen=True, slots=True)
class Submission:
    """Records of one request for one stream, ready to be made durable.

    As NDJSON, `content` is `records` lines, each with its line end, none of them blank; several such
    submissions make one slice. In another format it is a whole file, and a slice of its own; so is one with
    declared bounds, since those apply to its own records only.
    """

    stream: str
    source: str  # the source whose watermark its events move
    content: bytes
    records: int
    format: Format = Format.NDJSON
    tenant: str | None = None  # the tenant of the token that sent it; None: a token for all tenants, or none
    # positions (from 0) of records that name no tenant: they belong to `tenant`
    unnamed: tuple[int, ...] = ()
    declared: Interval | None = None  # the bounds that its sender declared

    @property
    def alone(self) -> CloseTrigger | None:
        """Why it is a slice of its own; None: it is not."""
        if self.declared is not None:
            return CloseTrigger.BOUNDS
        return None if self.format is Format.NDJSON else CloseTrigger.FILE


@dataclass(frozen=True, slots=True)
class Entry:
    """A submission that is durable, and its position in the log of one gateway."""

    gateway: str  # the name of the log
    lsn: int  # from 1, one more for each entry
    arrival: int
    submission: Submission

    @property
    def id(self) -> str:
        """The id that its sender gets."""
        return ingestion_id(self.gateway, self.lsn)


def ingestion_id(gateway: str, lsn: int) -> str:
    return f"{gateway}-{lsn:x}"


@dataclass(frozen=True, slots=True)
class WindowStats:
    """Statistics of the events in a window; for a sliding one, of all within its size."""

    events: int
    keys: int  # different ones, by the identity that the stream declares
    bytes: int
    duration: int  # from the first arrival to the last, in microseconds

    @property
    def average(self) -> float:
        """Bytes of an event."""
        return self.bytes / self.events if self.events else 0.0


@dataclass(frozen=True, slots=True)
class WindowOutput:
    """A closed window: what was in it, since when, until when, and why it was closed."""

    id: str
    stream: str
    source: str
    start: int  # the first arrival in it
    end: int  # the last one
    trigger: str  # a `Trigger`, or `custom:NAME`
    stats: WindowStats


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where an ingestion is found: its records are `records` lines of a slice, from line `first`."""

    id: str
    stream: str
    tenant: str | None
    slice: str
    first: int  # from 1
    records: int
    window: str
    at: int  # arrival
    repeated: bool = False  # the slice had landed before, in another window: what it held is a duplicate


@dataclass(frozen=True, slots=True)
class BufferState:
    """One open window, for people."""

    stream: str
    source: str
    kind: str
    duration: int  # how long it may last at the current rate
    rate: float  # events per second
    events: int
    bytes: int
    since: int | None  # the first arrival in it; None: it is empty


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """A gateway as it is now."""

    gateway: str
    pid: int
    at: int
    address: str | None
    pressure: Pressure
    fullest: str  # the part of memory that is nearest to its limit
    memory: Mapping[str, tuple[int, int]]  # bytes in use and allowed, by component, and `total`
    buffers: tuple[BufferState, ...]
    acknowledged: int  # events, since it started
    landed: int
    refused: int  # requests that were refused for lack of memory
    windows: Mapping[str, int] = field(default_factory=dict)  # closed ones by trigger
    trigger_failures: Mapping[str, int] = field(default_factory=dict)  # of custom triggers, by name
    wal_bytes: int = 0
    wal_segments: int = 0
    clock: ClockSteps = field(default_factory=ClockSteps)  # steps of the wall clock that this gateway noticed
