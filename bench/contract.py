"""What Tidemill must offer to be measured: `bench/ours.py` defines `contender() -> Ours`.

Only the public interface may be used behind it, and only `load` and `query` are timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from bench.check import Outputs
from bench.work import Slice


class Store(Protocol):
    """A warehouse of the stream `requests`, open, with a warm session behind it."""

    def load(self, slices: Sequence[Slice]) -> float:
        """Land the slices in this order and tick until nothing is left to do; the seconds that took."""
        ...

    def outputs(self) -> Outputs:
        """Everything stored so far, and the outcomes of the slices of the last `load`."""
        ...

    def parts(self) -> int:
        """How many files the snapshots of raw and rollups name."""
        ...

    def query(self) -> int:
        """Counts and sums of the first day at 1m, grouped by region; the number of rows."""
        ...

    def close(self) -> None: ...


class Ours(Protocol):
    def start(self) -> float:
        """Start the session, once, and return the seconds until it has run its first small job."""
        ...

    def open(self, folder: Path) -> Store:
        """A new warehouse in an empty folder."""
        ...

    def session(self) -> SparkSession:
        """The one that was started."""
        ...

    def stop(self) -> None: ...
