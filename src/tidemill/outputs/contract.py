"""The contract between outputs and the pipeline: an output is a function of a set of slices of one stream,
kept current.

A round, `verify`, `scrub`, `recover`, `rebuild` and retention are loops over the outputs of a stream. A new
kind of output is a folder beside this file and one line in `pipeline/workers.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tidemill.ingest.warehouse import Warehouse
from tidemill.model.expiry import ExpiryStep
from tidemill.model.slices import SliceEntry
from tidemill.model.time import Interval
from tidemill.raw.accept.batch import Batch
from tidemill.raw.recovered_batches import PartFacts
from tidemill.storage.file_scrub import FileCheck, ScrubTally
from tidemill.storage.layout import TableKind
from tidemill.storage.tables.snapshot import Snapshot

log = logging.getLogger(__name__)


class Stage(Enum):
    """When in a round outputs are refreshed."""

    ACCEPTED = 1  # with the accepted batch still in memory, before raw is packed
    SETTLED = 2  # when raw no longer changes in this round
    BUILT = 3  # after the datasets of all streams are built


class Refreshed(Protocol):
    """What a refresh did."""

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        ...


@dataclass(frozen=True, slots=True)
class RoundStart:
    """When a round began, and the newest offset that the ledger had then."""

    now: int
    newest: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """Something in an output that differs from what the slices give."""

    what: str  # tile, window, dataset, result, index, chain …
    where: str
    difference: str
    remedy: str = ""  # the command that fixes it, if there is one


@dataclass(frozen=True, slots=True)
class Verified:
    """What was compared with raw."""

    compared: int = 0
    sealed: int = 0  # what can no longer be compared, since its raw has expired
    differences: Sequence[Difference] = ()


@dataclass(frozen=True, slots=True)
class RawFacts:
    """Raw as `verify` found it, to compare outputs with."""

    entries: Sequence[SliceEntry]  # entries of the ledger
    parts: Sequence[PartFacts]
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Need:
    """From which instant on an output still needs raw, and why."""

    start: int
    why: str


class Output(Protocol):
    """One kind of output of one stream. The caller must hold the tick lock, except for `scrub`,
    `needs_raw_from` and `expiring`, which only read."""

    @property
    def name(self) -> str:
        """Unique among the outputs, and the name of its folder in the warehouse."""
        ...

    @property
    def stage(self) -> Stage:
        """When in a round it is refreshed."""
        ...

    def catch_up(self) -> None:
        """Record what a process that died had committed but not recorded in the state."""
        ...

    def has_work(self) -> bool:
        """Whether it is stale, or a process that died left something unfinished, although nothing is to be
        accepted. Must not open tables that have not changed."""
        ...

    def accepted(self, batch: Batch) -> None:
        """Called after a batch was accepted in this round, while its data is still in memory."""
        ...

    def refresh(self, start: RoundStart) -> Refreshed | None:
        """Bring it in line with the accepted slices; None if the stream has no such output or it must
        wait."""
        ...

    def compact(self, now: int) -> int:
        """Merge small files; called when a round had nothing else to do for the stream. How many were
        merged."""
        ...

    def verify(self, raw: RawFacts, now: int) -> Verified:
        """Build it again from raw, outside the warehouse, and compare."""
        ...

    def scrub(self, tally: ScrubTally, after: str = "") -> Iterator[FileCheck]:
        """Compare its files that are not parts of tables with their checksums, in order of name; only those
        after a given name. Reads only, while others may write."""
        ...

    def recover(self, now: int) -> int:
        """Record what is in the warehouse in an empty state; how many things."""
        ...

    def rebuild(self, span: Interval | None, now: int) -> Refreshed:
        """Build what lies in a span (None: everything) again from raw."""
        ...

    def irreplaceable(self, files: Collection[str]) -> Mapping[str, str]:
        """Which of its damaged files (paths in the warehouse) cannot be made again, each with what is
        lost."""
        ...

    def lose(self, files: Collection[str], now: int) -> None:
        """Treat these files (paths in the warehouse) as lost: the next refresh makes them again.
        Idempotent."""
        ...

    def needs_raw_from(self, before: int, version: int) -> Iterator[Need]:
        """What it still needs of raw that is about to expire before an instant; `version` is the version of
        raw."""
        ...

    def expiring(self, now: int) -> Iterator[ExpiryStep]:
        """The steps that remove what is older than its retention."""
        ...

    def expire(self, step: ExpiryStep, now: int) -> None:
        """Carry out one of those steps. A crash is finished by doing it again."""
        ...


class RecordedVersion:
    """The version of a table that one output makes and nothing else records. The state takes it, so that a
    table that vanishes is missed until it is made again."""

    def __init__(self, warehouse: Warehouse, kind: TableKind, stream: str) -> None:
        self._warehouse = warehouse
        self._kind: TableKind = kind
        self._stream = stream

    def check(self) -> None:
        """Before the table is refreshed: one that is gone begins again."""
        state = self._warehouse.state
        is_known = bool(state.table_versions(self._stream).get(self._kind, 0))
        if is_known and self._warehouse.existing(self._kind, self._stream) is None:
            log.warning("a table is gone, and is made again: %s", self._kind, extra={"stream": self._stream})
            state.forget_versions(self._stream, [self._kind])

    def record(self) -> None:
        """After it was changed, or found by `recover`."""
        table = self._warehouse.existing(self._kind, self._stream)
        if table is not None:
            self._warehouse.state.record_seen(self._stream, {self._kind: table.version})


class Simple:
    """Defaults for most outputs: a refresh finds what is new by comparing, nothing is held back or expires by
    itself, and the next refresh finds what a crash left."""

    stage = Stage.SETTLED

    def catch_up(self) -> None:
        """A crash leaves nothing that would have to be recorded."""

    def has_work(self) -> bool:
        """A refresh finds out by itself."""
        return False

    def accepted(self, batch: Batch) -> None:
        """A refresh finds what is new by itself."""

    def compact(self, now: int) -> int:
        return 0

    def scrub(self, tally: ScrubTally, after: str = "") -> Iterator[FileCheck]:
        """Everything it has is in tables."""
        yield from ()

    def recover(self, now: int) -> int:
        return 0

    def irreplaceable(self, files: Collection[str]) -> Mapping[str, str]:
        return {}

    def lose(self, files: Collection[str], now: int) -> None:
        """A refresh finds by itself what is missing."""

    def needs_raw_from(self, before: int, version: int) -> Iterator[Need]:
        yield from ()

    def expiring(self, now: int) -> Iterator[ExpiryStep]:
        yield from ()

    def expire(self, step: ExpiryStep, now: int) -> None:
        raise AssertionError(f"nothing of it expires: {step}")
