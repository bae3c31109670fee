"""What the rows of a slice say about the time that it covers: where they lie, and how closely.

It reads two columns of raw, for many slices at once, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.lake.snapshot import Range, Snapshot
from tidemill.model.slices import SliceEntry
from tidemill.model.time import Interval
from tidemill.records.arrays import Ints

_ROWS: Final = 4_000_000  # whose times are in memory at once, unless one slice has more


def has_rows_of_its_own(entry: SliceEntry) -> bool:
    """Whether rows of the slice may touch windows that its declared bounds do not."""
    declared, observed = entry.slice.declared, entry.observed
    if observed is None:
        return False
    return declared is None or not (declared.start <= observed.start and observed.end <= declared.end)


def event_times(
    raw: Callable[[], Snapshot | None], entries: Sequence[SliceEntry]
) -> Iterator[tuple[SliceEntry, Ints]]:
    """The event times of the accepted rows of each slice, in order, for those that have any."""
    for group in _groups(entries):
        snapshot = raw()
        if snapshot is None:
            return
        found = _read(snapshot, group)
        for entry in group:
            times = found.get(entry.id)
            if times is not None:
                yield entry, times


def _groups(entries: Sequence[SliceEntry]) -> Iterator[list[SliceEntry]]:
    group: list[SliceEntry] = []
    rows = 0
    for entry in entries:
        if group and rows + entry.counts.accepted > _ROWS:
            yield group
            group, rows = [], 0
        group.append(entry)
        rows += entry.counts.accepted
    if group:
        yield group


def _read(snapshot: Snapshot, entries: Sequence[SliceEntry]) -> dict[str, Ints]:
    spans = [entry.observed for entry in entries if entry.observed is not None]
    ids = [entry.id for entry in entries]
    ranges: dict[str, Range] = {
        "event_time": (min(span.start for span in spans), max(span.end for span in spans) - 1),
        "slice": (min(ids), max(ids)),
    }
    wanted = pa.array(ids)
    pieces: dict[str, list[Ints]] = {}
    for path in snapshot.paths(snapshot.select(None, ranges)):
        table = pq.read_table(path, partitioning=None, columns=["slice", "event_time"])
        names = table.column("slice").cast(pa.string()).combine_chunks()
        places = pc.index_in(names, wanted).fill_null(-1).to_numpy(zero_copy_only=False)
        times = table.column("event_time").cast(pa.int64()).to_numpy()
        for place in np.unique(places[places >= 0]).tolist():
            pieces.setdefault(ids[place], []).append(times[places == place])
    return {name: np.sort(np.concatenate(times)) for name, times in pieces.items()}


def runs_of(times: Ints, tolerance: int) -> Iterator[Interval]:
    """The stretches from row to row, in order, that have no hole longer than the tolerance."""
    if not times.size:
        return
    breaks = np.flatnonzero(np.diff(times) - 1 > tolerance)
    firsts = times[np.concatenate(([0], breaks + 1))].tolist()
    lasts = times[np.concatenate((breaks, [times.size - 1]))].tolist()
    for first, last in zip(firsts, lasts, strict=True):
        yield Interval(first, last + 1)
