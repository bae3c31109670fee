"""What every output is to the pipeline: a function of a set of slices of one stream, kept current.

A round, `verify`, `scrub`, `recover`, `rebuild` and retention are loops over the outputs of a stream. A new
kind of output is a folder beside this file and one line in `pipeline/workers.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tidemill.model.expiry import ExpiryStep
from tidemill.model.slices import SliceEntry
from tidemill.model.time import Interval
from tidemill.raw.accept.batch import Batch
from tidemill.raw.recall import PartFacts
from tidemill.storage.scrubbing import FileCheck, ScrubTally
from tidemill.storage.tables.snapshot import Snapshot


class Stage(Enum):
    """When in a round outputs are refreshed."""

    ACCEPTED = 1  # with the batch at hand, before raw is packed
    SETTLED = 2  # when raw stays as it is for the rest of the round
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
    """Something in an output that is not what the slices give."""

    what: str  # tile, window, dataset, result, index, chain …
    where: str
    difference: str
    remedy: str = ""  # the command that mends it, where there is one


@dataclass(frozen=True, slots=True)
class Verified:
    """What was held against raw."""

    compared: int = 0
    sealed: int = 0  # that can no longer be held against raw, since that is gone
    differences: Sequence[Difference] = ()


@dataclass(frozen=True, slots=True)
class RawFacts:
    """Raw as `verify` found it, which outputs are held against."""

    entries: Sequence[SliceEntry]  # of the ledger
    parts: Sequence[PartFacts]
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Need:
    """From which instant on an output still needs raw, and why."""

    start: int
    why: str


class Output(Protocol):
    """One kind of output of one stream. The caller must hold the tick lock, but for `scrub`, `needs_raw_from`
    and `expiring`, which only look."""

    @property
    def name(self) -> str:
        """Unique among the outputs, and the folder of the warehouse that it is in."""
        ...

    @property
    def stage(self) -> Stage:
        """When in a round it is refreshed."""
        ...

    def catch_up(self) -> None:
        """Take up what a process that died left: what is committed, and the state does not know."""
        ...

    def has_work(self) -> bool:
        """Whether it is stale, or a process that died left something of it, though nothing is to be accepted;
        answered without opening a table that nobody wrote to."""
        ...

    def accepted(self, batch: Batch) -> None:
        """A batch was accepted in this round, and what it left for the outputs is still at hand."""
        ...

    def refresh(self, start: RoundStart) -> Refreshed | None:
        """Bring it in line with the accepted slices; None: the stream has none of it, or it has to wait."""
        ...

    def compact(self, now: int) -> int:
        """A round had nothing to do for the stream: merge small files that wait. How many went."""
        ...

    def verify(self, raw: RawFacts, now: int) -> Verified:
        """Make it again from raw, beside what there is, and compare."""
        ...

    def scrub(self, tally: ScrubTally, after: str = "") -> Iterator[FileCheck]:
        """Hold its files that are not parts of tables against their checksums, in the order of their names;
        those whose names come after one. Reads only, beside whoever writes."""
        ...

    def recover(self, now: int) -> int:
        """Enter what stands in the warehouse in a state that knows nothing of it; how many things."""
        ...

    def rebuild(self, span: Interval | None, now: int) -> Refreshed:
        """Make what lies in a span (None: all of it) again from raw."""
        ...

    def irreplaceable(self, files: Collection[str]) -> Mapping[str, str]:
        """Of damaged files of it, by their paths in the warehouse, those that cannot be made again, each with
        what is lost with it."""
        ...

    def lose(self, files: Collection[str], now: int) -> None:
        """These files of it are gone, by their paths in the warehouse: what they held counts as not made, so
        that the next refresh makes it again. To do it again changes nothing."""
        ...

    def needs_raw_from(self, before: int, version: int) -> Iterator[Need]:
        """What it still needs raw for that is to expire before an instant; `version` is that of raw."""
        ...

    def expiring(self, now: int) -> Iterator[ExpiryStep]:
        """What is older than its retention."""
        ...

    def expire(self, step: ExpiryStep, now: int) -> None:
        """Let go of what one of those steps says. A crash is finished by doing it again."""
        ...


class Simple:
    """What most outputs have in common: they are refreshed by comparing, they hold nothing back, nothing of
    them expires by itself, and what a crash left of them is found by the next refresh."""

    stage = Stage.SETTLED

    def catch_up(self) -> None:
        """Nothing is on record that a crash could have left behind."""

    def has_work(self) -> bool:
        """A refresh finds out by itself."""
        return False

    def accepted(self, batch: Batch) -> None:
        """A refresh finds by itself what is new."""

    def compact(self, now: int) -> int:
        return 0

    def scrub(self, tally: ScrubTally, after: str = "") -> Iterator[FileCheck]:
        """All that it has is in tables."""
        yield from ()

    def recover(self, now: int) -> int:
        return 0

    def irreplaceable(self, files: Collection[str]) -> Mapping[str, str]:
        return {}

    def lose(self, files: Collection[str], now: int) -> None:
        """A refresh finds by itself what is gone."""

    def needs_raw_from(self, before: int, version: int) -> Iterator[Need]:
        yield from ()

    def expiring(self, now: int) -> Iterator[ExpiryStep]:
        yield from ()

    def expire(self, step: ExpiryStep, now: int) -> None:
        raise AssertionError(f"nothing of it expires: {step}")
