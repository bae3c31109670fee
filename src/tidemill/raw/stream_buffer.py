"""The rows that a stream has accepted and not released yet: those after its watermark, as times and sizes.

Raw itself is the buffer; this only counts it. Of payloads only the length is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.raw.part_columns import size_column
from tidemill.raw.tables import INSTANT
from tidemill.storage.tables.parts import read_part
from tidemill.storage.tables.table import Table

PIECES: Final = 64  # with more pieces they are joined

Piece = tuple[Ints, Ints]
"""Event times of rows, and the bytes of their payloads."""

Rows = Callable[[int], Iterator[Piece]]
"""The accepted rows of a slice whose event time is after an instant."""


def no_rows(_after: int) -> Iterator[Piece]:
    return iter(())


class StreamBuffer:
    """Rows that wait for the watermark."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._pieces: list[Piece] = []

    def add(self, piece: Piece) -> None:
        times, sizes = piece
        if not times.size:
            return
        self._pieces.append((times, sizes))
        self.rows += times.size
        self.bytes += int(sizes.sum())
        if len(self._pieces) > PIECES:
            self._pieces = [self._whole()]

    def release(self, watermark: int) -> int:
        """Release everything up to the watermark; how many rows."""
        before, kept = self.rows, list[Piece]()
        for times, sizes in self._pieces:
            stay = times > watermark
            if stay.all():
                kept.append((times, sizes))
            elif stay.any():
                kept.append((times[stay], sizes[stay]))
        self._pieces = kept
        self.rows = sum(times.size for times, _ in kept)
        self.bytes = sum(int(sizes.sum()) for _, sizes in kept)
        return before - self.rows

    def bound(self, max_bytes: int) -> int | None:
        """The least instant after which the remaining rows fit; None if all of them do."""
        if self.bytes <= max_bytes:
            return None
        times, sizes = self._whole()
        newest_first = np.argsort(times)[::-1]
        first_over = int(np.argmax(np.cumsum(sizes[newest_first]) > max_bytes))
        return int(times[newest_first[first_over]])

    def _whole(self) -> Piece:
        return np.concatenate([times for times, _ in self._pieces]), np.concatenate(
            [sizes for _, sizes in self._pieces]
        )


def buffered(raw: Table, watermark: int | None) -> StreamBuffer:
    """The buffer from raw; parts that end before the watermark are not opened."""
    found = StreamBuffer()
    snapshot = raw.snapshot()
    low = None if watermark is None else watermark + 1
    parts = snapshot.select(ranges={"event_time": (low, None)})
    later = None if watermark is None else pc.field("event_time") > pa.scalar(watermark, INSTANT)
    for path in snapshot.paths(parts):
        table = read_part(path, ["event_time", size_column(path)], where=later)
        found.add(_piece(table))
    return found


def held(raw: Table, after: Mapping[str, int]) -> Mapping[str, Piece]:
    """By slice the rows of raw after the instant given for it. Payloads are read only if a part has such a
    row and lacks the sizes."""
    found: dict[str, list[Piece]] = {}
    if not after:
        return {}
    snapshot = raw.snapshot()
    for path in snapshot.paths(snapshot.select(ranges={"event_time": (min(after.values()) + 1, None)})):
        narrow = read_part(path, ["slice", "event_time"])
        slices = one(narrow.column("slice").dictionary_encode())
        names = slices.dictionary.to_pylist()
        codes = slices.indices.to_numpy(zero_copy_only=False)
        if not names:
            continue
        ends = np.array([after.get(name, np.iinfo(np.int64).max) for name in names], np.int64)
        times = one(narrow.column("event_time")).cast(pa.int64()).to_numpy()
        later: Mask = times > ends[codes]
        if not later.any():
            continue
        times, sizes = _piece(read_part(path, ["event_time", size_column(path)]))
        for code in np.unique(codes[later]).tolist():
            of_slice = later & (codes == code)
            found.setdefault(names[code], []).append((times[of_slice], sizes[of_slice]))
    return {
        name: (np.concatenate([t for t, _ in pieces]), np.concatenate([s for _, s in pieces]))
        for name, pieces in found.items()
    }


def _piece(table: pa.Table) -> Piece:
    times = one(table.column("event_time")).cast(pa.int64()).to_numpy()
    lengths = one(table.column(1))
    sizes = (
        (pc.binary_length(lengths) if pa.types.is_string(lengths.type) else lengths)
        .cast(pa.int64())
        .to_numpy()
    )
    return times, sizes
