"""The sources of a query: the files of one version of a stream's rollups table, and rows of raw below its
finest buckets. Uses the table's log, never a glob; opens no file itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tidemill.model.completeness import Available
from tidemill.model.levels import BASE, Level
from tidemill.model.names import UNFIT
from tidemill.model.time import Interval
from tidemill.query.cover import Cover

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.model.conditions.ast import Condition
    from tidemill.query.as_of import Past
    from tidemill.storage.tables.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Files:
    """Parquet files by absolute path, and how many rows they have together."""

    paths: Sequence[str]
    rows: int
    unfit: bool = False  # whether some count events with a value that its type cannot hold


@dataclass(frozen=True, slots=True)
class RawRequest:
    """Which rows of rollups are to be made from events of raw."""

    metrics: frozenset[str]
    tenant: str | None  # None: all
    spans: Sequence[Interval]  # sorted and separate: no row is of events of two of them
    filter: Condition | None = None  # that the payload of an event must meet
    past: Past | None = None  # only what counted then
    width: int = BASE.width  # of the buckets that the rows are of


@dataclass(frozen=True, slots=True)
class RawRows:
    """Rows as rollups have them, made from events of raw, each with the width of its bucket. A bucket starts
    neither before its span nor before the 5s bucket of the first event, and ends with that of the last."""

    rows: pa.Table | None  # None: no event is in the spans, or they are unknown
    files: int = 0
    events: int = 0  # in the parts that were read
    is_known: bool = True  # False: it depends on earlier events that are not known yet


class RawSource(Protocol):
    """The accepted events of one stream."""

    def rows(self, request: RawRequest) -> RawRows: ...


class Source(Protocol):
    """The rollups of one stream at one version."""

    @property
    def version(self) -> int: ...

    @property
    def available(self) -> Available:
        """From when on it has data."""
        ...

    @property
    def raw(self) -> RawSource | None: ...

    def files_for(self, level: str, spans: Sequence[Interval]) -> Files:
        """Files that can hold a bucket of `level` that starts inside one of `spans`."""
        ...


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """A snapshot of the rollups table, partitioned by level, with statistics of `bucket`."""

    snapshot: Snapshot
    raw: RawSource | None = None
    available: Available = field(default_factory=Available)

    @property
    def version(self) -> int:
        return self.snapshot.version

    def files_for(self, level: str, spans: Sequence[Interval]) -> Files:
        spans = [span for span in spans if span.start < span.end]
        parts = self.snapshot.overlapping({"level": level}, "bucket", spans) if spans else []
        unfit = any(part.may_hold("metric", UNFIT, None) for part in parts)
        return Files(self.snapshot.paths(parts), sum(part.rows for part in parts), unfit)


@dataclass(frozen=True, slots=True)
class NoRollups:
    """A stream whose rollups table was never written."""

    version: int = -1
    raw: RawSource | None = None
    available: Available = field(default_factory=Available)

    def files_for(self, level: str, spans: Sequence[Interval]) -> Files:
        return Files((), 0)


@dataclass(frozen=True, slots=True)
class Scan:
    """Files of a level, and which of its buckets are read."""

    level: Level
    spans: Sequence[Interval]
    files: Files


@dataclass(frozen=True, slots=True)
class Scans:
    """What a cover is read from."""

    levels: tuple[Scan, ...] = ()
    raw: pa.Table | None = None

    @property
    def rows(self) -> int:
        return sum(scan.files.rows for scan in self.levels)

    @property
    def files(self) -> int:
        return sum(len(scan.files.paths) for scan in self.levels)


def scans_of(cover: Cover, source: Source) -> tuple[Scan, ...]:
    """The files of all pieces in levels; levels without a file are left out."""
    found = (
        Scan(level, spans, source.files_for(level.name, spans)) for level, spans in cover.by_level.items()
    )
    return tuple(scan for scan in found if scan.files.paths)
