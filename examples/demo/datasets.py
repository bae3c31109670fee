"""The datasets that the demo finds, read as any Arrow reader could, beside what the feed knows of each hour.

Values only: nothing here prints, draws or changes the warehouse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from examples.demo.project import STREAM

from tidemill import Mill
from tidemill.storage.bucket_path import local_copy
from tidemill.testing.feed import Manifest


@dataclass(frozen=True, slots=True)
class Edition:
    """The newest dataset of an hour."""

    hour: int
    revision: int
    file: str  # relative to the warehouse
    slices: frozenset[str]
    rows: int  # counted in the file …
    latency_ms: Decimal  # … and summed there


@dataclass(frozen=True, slots=True)
class Shelf:
    """The datasets at one moment."""

    newest: Mapping[int, Edition]  # by hour
    files: Mapping[str, str]  # every dataset file that stands, older revisions too -> sha256 of its bytes

    @property
    def rows(self) -> int:
        """Of the newest together."""
        return sum(edition.rows for edition in self.newest.values())

    def equals(self, truth: Manifest) -> bool:
        """Whether every hour has the rows and the sum, to the last digit, that the feed knows."""
        known = {int(at): (count, Decimal(total).scaleb(-3)) for at, (count, total) in truth.hours.items()}
        return known == {at: (edition.rows, edition.latency_ms) for at, edition in self.newest.items()}


@dataclass(frozen=True, slots=True)
class Reissue:
    """An hour that came out again."""

    before: Edition | None
    after: Edition

    @property
    def added(self) -> frozenset[str]:
        """The slices that it holds and the one before it does not."""
        return self.after.slices - (self.before.slices if self.before else frozenset())


@dataclass(frozen=True, slots=True)
class Datasets:
    """Before and after the late slice."""

    before: Shelf
    after: Shelf
    late: str  # the late slice
    late_hours: frozenset[int]  # those that it has events of, as the feed knows
    before_true: bool
    after_true: bool

    @property
    def again(self) -> Sequence[Reissue]:
        """Hours whose newest file is another than before, oldest first."""
        old, new = self.before.newest, self.after.newest
        changed = [at for at in sorted(new) if at not in old or old[at].file != new[at].file]
        return [Reissue(old.get(at), new[at]) for at in changed]

    @property
    def untouched(self) -> int:
        """Files that stood before and are the same now, byte for byte."""
        return sum(self.after.files.get(file) == digest for file, digest in self.before.files.items())

    @property
    def new_files(self) -> Set[str]:
        return self.after.files.keys() - self.before.files.keys()

    @property
    def only_the_late(self) -> bool:
        """The hours of the late slice came out again, as the next revision, because of it; no others did."""
        again = self.again
        return {one.after.hour for one in again} == self.late_hours and all(
            one.before is not None
            and one.after.revision == one.before.revision + 1
            and one.added == {self.late}
            for one in again
        )

    @property
    def files_kept(self) -> bool:
        """Every file that stood is as it was, and those that came out again stand beside them."""
        told = {one.after.file for one in self.again}
        return self.untouched == len(self.before.files) and self.new_files == told

    @property
    def ok(self) -> bool:
        return self.before_true and self.after_true and self.only_the_late and self.files_kept


def look_up(mill: Mill) -> Shelf:
    """Open the datasets as they are now."""
    warehouse = mill.project.warehouse
    newest = {}
    for window in mill.windows.datasets(STREAM):
        at = window.key.start
        (current,) = (d for d in mill.windows.window(STREAM, at).revisions if d.revision == window.revision)
        rows, latency = _totals(warehouse / current.file)
        newest[at] = Edition(at, current.revision, current.file, frozenset(current.slices), rows, latency)
    stand = sorted((warehouse / "datasets" / STREAM).rglob("*.arrow"))
    return Shelf(newest, {str(path.relative_to(warehouse)): _digest(path) for path in stand})


def compare(before: Shelf, after: Shelf, truth: Manifest, truth_after: Manifest, late: str) -> Datasets:
    return Datasets(
        before=before,
        after=after,
        late=late,
        late_hours=frozenset(
            int(at) for at, sums in truth_after.hours.items() if truth.hours.get(at) != sums
        ),
        before_true=before.equals(truth),
        after_true=after.equals(truth_after),
    )


def _totals(path: Path) -> tuple[int, Decimal]:
    with pa.memory_map(str(local_copy(path))) as file:
        latency = pa.ipc.open_file(file).read_all().column("latency_ms")
        return len(latency), pc.sum(latency).as_py() or Decimal(0)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
