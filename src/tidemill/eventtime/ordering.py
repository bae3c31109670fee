"""The ordering operator: rows in as they arrive, rows out in order of event time, a watermark after them.

Pure and in memory. After a watermark W no row with time <= W ever comes out; watermarks never go back; ties keep
their order of arrival; nothing on time is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Watermark:
    """No row at or before this instant follows."""

    at: int


@dataclass(frozen=True, slots=True)
class Timed(Generic[Row]):
    """A row with its event time and what it takes in the buffer."""

    time: int
    row: Row
    size: int = 0
    met: int | None = None  # the watermark it met, filled in by the operator


class Ordering(Generic[Row]):
    """Orders the rows of one stream. `push` takes the rows of one slice (a collection) from one source."""

    def push(
        self, rows: Iterable[Timed[Row]], *, source: str = "", arrival: int = 0
    ) -> tuple[list[Timed[Row] | Watermark], list[Timed[Row]]]:
        """What comes out now (rows in order, then a Watermark if it moved), and the rows that were late."""
        raise NotImplementedError

    def tick(self, now: int) -> list[Timed[Row] | Watermark]:
        """Time passed: idle sources leave, which may move the watermark."""
        raise NotImplementedError

    def stop(self) -> list[Timed[Row]]:
        """What is still buffered, in order; no watermark follows."""
        raise NotImplementedError
