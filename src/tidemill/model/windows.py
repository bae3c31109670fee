"""Aggregation windows, the slices they should be made of and were made of, and their datasets.

Plain values only: `outputs/datasets/rules.py` evaluates windows, the state stores them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from tidemill.model.slices import Repeat
from tidemill.model.time import SECOND, Interval

ID_DIGITS = 24  # of a window id
DATASET_AVAILABLE: Final = "tidemill.dataset.available"  # types of events
DATASET_WITHDRAWN: Final = "tidemill.dataset.withdrawn"
LEADING: Final = ("event_time", "tenant", "event_id")  # the first columns of every dataset
AGGREGATION = "aggregation"  # the name of the windows that `aggregation_span` declares, as a folder has it


class Phase(StrEnum):
    """The state of a window as it is stored."""

    WAITING = "waiting"  # not ready: `reason` says why
    QUEUED = "queued"  # desired differs from observed, and it may be built
    BUILDING = "building"  # a builder holds a lease on it
    BUILT = "built"  # observed is what is desired
    FAILED = "failed"  # set aside after too many tries


class WindowStatus(StrEnum):
    """The state of a window as it is reported."""

    WAITING = "waiting"  # not ready; the reason says why
    READY = "ready"  # would be queued by the next tick
    QUEUED = "queued"
    BUILDING = "building"
    BUILT = "built"  # current; slices that still arrive may change it
    FAILED = "failed"  # set aside after too many tries
    FINAL = "final"  # current, and nothing that still arrives changes it


@dataclass(frozen=True, slots=True, order=True)
class WindowKey:
    """One window `[start, start + span)` of a stream."""

    stream: str
    start: int
    span: int

    @property
    def id(self) -> str:
        """Identifies the window in every process."""
        identity = json.dumps([self.stream, AGGREGATION, self.span, self.start], ensure_ascii=False)
        return hashlib.sha256(identity.encode()).hexdigest()[:ID_DIGITS]

    @property
    def interval(self) -> Interval:
        return Interval(self.start, self.start + self.span)

    @property
    def end(self) -> int:
        return self.start + self.span

    @property
    def priority(self) -> int:
        """In the queue, highest first: so the oldest window is first."""
        return -(self.end // SECOND)


@dataclass(frozen=True, slots=True)
class Member:
    """A slice that touches a window."""

    slice: str  # its id
    seq: int  # its ledger offset
    name: str  # its id, or `id~n` once a retraction changed what was accepted from it
    arrival: int  # arrival of the slice that it counts as
    bounds: Interval | None  # as declared, else from its first to its last event
    desired: bool = False  # used, by the last evaluation
    observed: bool = False  # part of what was built last
    ignored: str | None = None  # why it is not used, by the last evaluation
    metadata: str | None = None  # metadata of the dataset from its sender, as JSON
    # ledger offset of the slice whose rejects it holds, and which it counts as; None: `seq`
    rank: int | None = None
    rejected: int = 0  # how many of its records were rejected; their windows are unknown
    runs: Sequence[Interval] | None = None  # what it covers of the window; None: what its bounds say
    met: int | None = None  # the watermark that its records met; None: there was none
    repeats: Sequence[Repeat] = ()  # rows of later arrivals that it contains, too: they count where it counts

    @property
    def covers(self) -> Sequence[Interval]:
        if self.runs is not None:
            return self.runs
        return () if self.bounds is None else (self.bounds,)

    @property
    def counts_as(self) -> int:
        return self.seq if self.rank is None else self.rank


class MemberCounts(NamedTuple):
    """How many slices a window has, by kind."""

    desired: int = 0
    observed: int = 0
    ignored: int = 0
    rejected: int = 0  # records of the desired ones that were rejected


@dataclass(frozen=True, slots=True)
class Undecided:
    """A landed slice whose records have no outcome yet: it is pending, or cannot be read."""

    slice: str  # its id
    seq: int  # its ledger offset
    arrival: int
    declared: Interval | None  # None: it is unknown which windows it touches
    failed: bool = False  # it could not be read …
    retried: bool = False  # … because of its storage, and is tried again automatically


@dataclass(frozen=True, slots=True)
class Window:
    """A window as it is stored."""

    key: WindowKey
    # changes with every change except of the end of the lease; an evaluation of an older version is void
    version: int
    phase: Phase = Phase.WAITING
    reason: str | None = None  # why it waits: a code such as `cutoff`, `coverage`, `gap`
    detail: str | None = None  # the same for people: "coverage missing before 10:09"
    check_at: int | None = None  # when time alone may change the evaluation
    ready: bool = False  # by the last evaluation
    desired: str | None = (
        None  # hash of the set of slices it should be built from; None before it was evaluated
    )
    observed: str | None = None  # hash of the set it was made of; None: there is no current dataset
    revision: int = 0  # of the newest dataset, 0 before the first
    sealed: int | None = None  # ledger offset up to which slices count although they were late
    seal: int | None = None  # the value of `sealed` once it is built as last evaluated
    file: str | None = None  # of the newest dataset, relative to the warehouse
    rows: int | None = None
    bytes: int | None = None
    built_at: int | None = None
    trigger: str | None = None  # why it was queued last
    attempts: int = 0
    not_before: int = 0  # when it may be taken from the queue again
    owner: str | None = None  # who builds it …
    lease_until: int | None = None  # … and until when nobody else may
    error: str | None = None
    blocked_by: int | None = None  # ledger offset of the undecided slice that it waits for
    rules: str | None = None  # names the rules of the last evaluation; None: unknown
    columns: str | None = None  # a name for the columns of the newest dataset; None: unknown
    checksum: str | None = None  # of the bytes of the newest dataset; None: unknown


class WindowGlance(NamedTuple):
    """What a list of very many windows needs of each."""

    start: int
    version: int
    phase: Phase
    reason: str | None
    check_at: int | None
    sealed: int | None
    revision: int
    rows: int | None

    @classmethod
    def of(cls, window: Window) -> WindowGlance:
        return cls(
            window.key.start, window.version, window.phase, window.reason, window.check_at, window.sealed,
            window.revision, window.rows,
        )  # fmt: skip


class WindowGroup(NamedTuple):
    """Windows of one stretch of time that differ only in their start, as far as their states are
    concerned."""

    at: int  # where the stretch begins
    phase: Phase
    is_sealed: bool
    is_due: bool  # it waits for a cutoff that is reached
    windows: int  # how many
    first: int  # the start of the first of them,
    last: int  # and of the last


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the coordinator decided about a window, for the version of it that it read."""

    key: WindowKey
    version: int
    used: frozenset[str]  # names of members
    ignored: Mapping[str, str]  # name -> why
    ready: bool
    desired: str  # hash of `used`
    reason: str | None = None
    detail: str | None = None
    check_at: int | None = None
    trigger: str | None = None
    # ledger offset of an undecided slice; once it is decided, the window is due
    blocked_by: int | None = None
    seal: int | None = None  # see `Window.seal`
    withdraw: bool = False  # the dataset has a slice that is gone, and cannot be replaced yet
    rules: str | None = None  # a name for the rules that it was made by
    reshape: bool = False  # the dataset has other columns than are declared now
    unseal: bool = False  # by the current rules the window would not have been sealed
    events: Sequence[OutboxEvent] = ()  # to publish when this is recorded


@dataclass(frozen=True, slots=True)
class Build:
    """One window taken from the queue, with everything that a builder needs."""

    key: WindowKey
    owner: str
    lease_until: int
    attempt: int  # from 1
    revision: int  # the least it may publish
    supersedes: int | None  # the revision that it replaces
    desired: str
    members: Sequence[Member]  # the used ones, by ledger offset
    trigger: str
    seal: int | None = None  # see `Window.seal`
    ignored: int = 0  # members that do not count


@dataclass(frozen=True, slots=True)
class DeltaStats:
    """Statistics of a batch of deltas. The dataset of a delta stream is such a batch."""

    received: int  # deltas that were merged into its rows
    vectors: int  # vectors that they change
    first: int | None  # the least and the greatest event time of a delta; None: there was none
    last: int | None

    @property
    def duration(self) -> int:
        return 0 if self.first is None or self.last is None else self.last - self.first


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset file in the warehouse. Its schema metadata holds the same fields."""

    key: WindowKey
    revision: int
    hash: str
    slices: Sequence[str]  # names, sorted
    rows: int
    bytes: int
    file: str  # relative to the warehouse
    sealed: int | None = None  # see `Window.sealed`; a file says only that it is, which is read as 0
    columns: str | None = None  # see `Window.columns`
    deltas: DeltaStats | None = None  # of a stream of deltas
    checksum: str | None = field(default=None, compare=False)  # of its bytes; a file cannot contain its own

    @property
    def average(self) -> float:
        """Bytes of a row."""
        return self.bytes / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event to be delivered. The same change has the same `id`, however often it is sent."""

    seq: int  # order in the outbox; 0 before it is entered
    id: str
    type: str
    stream: str
    time: int
    data: Mapping[str, object] = field(default_factory=dict)  # JSON values
