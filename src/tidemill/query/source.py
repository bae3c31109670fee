"""Where the rows of a query come from: the files of one version of a stream's rollups table.
Goes through the table's log, never through a glob; opens no file itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidemill.model.time import Interval

if TYPE_CHECKING:
    from tidemill.lake.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Files:
    """Parquet files by absolute path, and how many rows they hold together."""

    paths: Sequence[str]
    rows: int


class Source(Protocol):
    """The rollups of one stream at one version."""

    @property
    def version(self) -> int: ...

    def files_for(self, level: str, span: Interval | None) -> Files:
        """Files that can hold a bucket of `level` that starts inside `span` (None: any)."""
        ...


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """A snapshot of the rollups table, partitioned by level, with statistics of `bucket`."""

    snapshot: Snapshot

    @property
    def version(self) -> int:
        return self.snapshot.version

    def files_for(self, level: str, span: Interval | None) -> Files:
        if span is not None and span.start == span.end:
            return Files((), 0)
        ranges = {"bucket": (span.start, span.end - 1)} if span else None
        parts = self.snapshot.select(partition={"level": [level]}, ranges=ranges)
        return Files(self.snapshot.paths(parts), sum(part.rows for part in parts))


@dataclass(frozen=True, slots=True)
class NoRollups:
    """A stream whose rollups table was never written."""

    version: int = -1

    def files_for(self, level: str, span: Interval | None) -> Files:
        return Files((), 0)
