"""What Tidemill must remember besides the tables, as one small protocol of atomic acts.

Every method is one transaction. Everything here can be rebuilt from the warehouse by `recover`,
so nothing may be kept here that the slices and the tables do not also say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidemill.model.slices import Counts, NewSlice, SliceEntry, SliceStatus
from tidemill.model.tiles import BaseTile, TileKey, TileState
from tidemill.model.time import Interval


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What a batch decided about one of its slices."""

    slice: str
    counts: Counts
    observed: Interval | None
    watermark: int | None  # met by its records
    error: str | None = None  # set when the slice as a whole could not be read


@dataclass(frozen=True, slots=True)
class ClockState:
    """Event-time progress of one source of a stream."""

    source: str
    max_seen: int
    watermark: int


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Everything that one accept batch changes, applied as one transaction."""

    stream: str
    batch: str
    raw_version: int
    quarantine_version: int
    results: Sequence[SliceResult]
    clocks: Sequence[ClockState]
    tiles: Mapping[int, frozenset[str]]  # 5s tile start -> slices that added rows to it
    runs: Sequence[str] = ()  # the id runs this batch added


@dataclass(frozen=True, slots=True)
class TileBuild:
    """A tile as it was just committed."""

    key: TileKey
    hash: str
    revision: int
    part: str | None  # None: the tile has no rows
    rows: int
    slices: frozenset[str] = field(default_factory=frozenset)  # of a 5s tile


class State(Protocol):
    """The ledger, observed hashes and clocks of one warehouse."""

    def enter(self, new: NewSlice) -> SliceEntry:
        """Append to the ledger and return the entry. A slice with a known id is not entered again:
        its `landings` goes up and the existing entry (landings > 1) is returned."""
        ...

    def enter_all(self, news: Sequence[NewSlice]) -> list[SliceEntry]:
        """`enter` each in the order given, all or none of them."""
        ...

    def landings(self) -> int:
        """How many landings were ever entered, repeats included; landing compares it with its log."""
        ...

    def slice(self, id_or_prefix: str) -> SliceEntry | None:
        """One entry by its id, or by a prefix of it that is unambiguous (else InputError)."""
        ...

    def slice_at(self, seq: int) -> SliceEntry | None:
        """The entry with that place in the ledger."""
        ...

    def slices(
        self,
        stream: str | None = None,
        status: SliceStatus | None = None,
        *,
        newest: bool = False,
        limit: int | None = None,
    ) -> list[SliceEntry]:
        """Entries in ledger order (or newest first)."""
        ...

    def pending(self, stream: str, max_bytes: int) -> list[SliceEntry]:
        """The oldest pending entries of a stream that fit `max_bytes` (at least one if any)."""
        ...

    def totals(self, stream: str) -> Mapping[str, int]:
        """Sums over the stream's ledger: slices by status (`pending_slices` …), records by outcome
        (`accepted`, …), `late`, `reject_<code>`, `records`, `landings`, `bytes`; those without a
        reject code are always there. Maintained, not scanned."""
        ...

    def apply_batch(self, record: BatchRecord) -> bool:
        """Apply it once; False when this (stream, batch) was applied before. Clocks and versions never
        go back. A slice that failed before may be decided again. StorageError when the ledger does
        not know one of its slices."""
        ...

    def has_batch(self, stream: str, batch: str) -> bool: ...

    def clocks(self, stream: str) -> list[ClockState]: ...

    def runs(self, stream: str) -> list[str]:
        """Names of the id runs that make up the gate's index, oldest first."""
        ...

    def replace_runs(self, stream: str, old: Sequence[str], new: Sequence[str]) -> bool:
        """Swap merged runs, the new ones at the place of the oldest; False when one of `old` is gone."""
        ...

    def stale_tiles(self, stream: str) -> list[BaseTile]:
        """5s tiles whose desired set differs from the observed one, oldest first. Its cost depends
        on how many are stale, not on how many there are."""
        ...

    def base_tile(self, stream: str, start: int) -> BaseTile | None: ...

    def tiles(self, stream: str, level: str, span: Interval | None = None) -> list[TileState]:
        """Built tiles of a level whose start lies in `span`, by start."""
        ...

    def tile_counts(self, stream: str) -> Mapping[str, int]:
        """Built tiles by level."""
        ...

    def apply_tiles(self, stream: str, version: int, builds: Iterable[TileBuild]) -> None:
        """Record tiles as committed at `version` of the rollups table, atomically. For a 5s tile the
        observed set becomes `slices`, whose `set_hash` its hash must be."""
        ...

    def table_versions(self, stream: str) -> Mapping[str, int]:
        """Per table (`raw`, `quarantine`, `rollups`) the newest version this state has seen."""
        ...

    def restore(self, entries: Sequence[SliceEntry], records: Sequence[BatchRecord]) -> None:
        """Fill an empty state (else StorageError) in one transaction: the ledger as given, then the
        batches in the order given."""
        ...

    def dump(self) -> dict[str, list[dict[str, object]]]:
        """Every table as plain rows in a defined order: what `recover` must reproduce."""
        ...

    def close(self) -> None: ...
