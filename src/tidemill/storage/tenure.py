"""What the holder of a stream's lease knows about the stream's objects in a bucket, and need not look up.

Every look at a bucket is a request. Only the holder of a stream's lease changes the tables of the stream, so
it looks once. A tenure goes on from round to round for as long as each lease of the stream follows one of
the same mill that was given back. It ends when anyone else has held the lease in between (another process, a
command that works on the whole warehouse, `recover` with a new state) and after a fault of the stream: then
nothing is known. A commit that fails without an answer may still arrive, so that table is looked at each time
until the tenure ends.

On a local disk nothing is remembered: a look costs less there, and finds files that were damaged or deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from weakref import WeakSet

from tidemill.storage.bucket_path import BucketPath

MISSING: Final = -1  # the version of a table that does not exist


@dataclass(slots=True)
class Tenure:
    """An uninterrupted time in which only one mill worked on a stream."""

    number: int  # of the last lease
    versions: dict[Path, int] = field(default_factory=dict)  # by table, the newest one
    doubted: set[Path] = field(default_factory=set)  # tables to which a commit may still arrive
    intact: dict[Path, frozenset[str]] = field(default_factory=dict)  # by folder, files that were checked

    def record_seen(self, table: Path, version: int) -> None:
        """The newest version of a table, as read or committed."""
        if table not in self.doubted:
            self.versions[table] = version

    def doubt(self, table: Path) -> None:
        """A commit to a table failed without an answer."""
        self.doubted.add(table)
        self.versions.pop(table, None)


class Tenures:
    """The tenures of one mill, by stream."""

    def __init__(self) -> None:
        self._by_stream: dict[str, Tenure] = {}
        _every.add(self)

    def begin(self, stream: str, number: int, follows: int | None) -> Tenure:
        """The tenure of a lease that was just taken. `follows` is the number of the lease before, if that was
        given back: if it was one of this mill, its tenure goes on."""
        tenure = self._by_stream.get(stream)
        if tenure is None or tenure.number != follows:
            tenure = Tenure(number)
        tenure.number = number
        self._by_stream[stream] = tenure
        return tenure

    def end(self, stream: str) -> None:
        self._by_stream.pop(stream, None)

    def forget(self, table: Path, stream: str) -> None:
        tenure = self._by_stream.get(stream)
        if tenure is not None:
            tenure.versions.pop(table, None)


_every: Final[WeakSet[Tenures]] = WeakSet()  # of this process


def forget(table: Path) -> None:
    """A table is about to be changed by this process, perhaps by work without a lease."""
    if isinstance(table, BucketPath):
        for tenures in list(_every):
            tenures.forget(table, table.of_stream()[1])
