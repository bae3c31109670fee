"""Which windows rows belong to: vectorised assigners for every kind, without Spark or any I/O.

Rows come in order of (at, seq, line). The same rows always give the same windows, whatever was asked before.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidemill.model.streaming import WindowSpec
from tidemill.records.arrays import Ints, Mask


@dataclass(frozen=True, slots=True)
class Assigned:
    """Pairs (row, window), and the windows. Each window is of one tenant and one key."""

    row: Ints  # index into the rows; a row is in several sliding windows, or in none
    window: Ints  # number of the window
    start: Ints  # per window
    end: Ints
    ordinal: Ints  # among windows of the same tenant and key that begin at the same instant, from 0
    head: Ints  # per window: index of its first row, which has its tenant and key
    closed: Mask  # per window: it comes out now


def assign(spec: WindowSpec, rows: pa.Table, watermark: int | None, *, flush: bool) -> Assigned:
    """All windows of these rows, oldest first (by start, then by their first row).

    Closed: by_time and session when their end (for a session: last row + gap) is at or before the watermark; count
    when it has its rows; state when the row that emits came; in all cases only rows that count at or before the
    watermark are in windows of the kinds that are not by_time. With `flush` every row counts and every window is closed.
    """
    raise NotImplementedError
