"""The spans of time that the rows of a slice cover.

It reads two columns of raw, for many slices at once, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Ints, Mask
from tidemill.model.slices import Repeat, SliceEntry, row_groups
from tidemill.model.time import Interval
from tidemill.storage.tables.parts import read_part
from tidemill.storage.tables.snapshot import Range, Snapshot

_ROWS: Final = 4_000_000  # rows whose times are in memory at once, unless one slice has more


def has_rows_of_its_own(entry: SliceEntry) -> bool:
    """Whether rows of the slice may touch windows that its declared bounds do not."""
    declared, spans = entry.slice.declared, _spans(entry)
    return any(declared is None or not declared.start <= s.start <= s.end <= declared.end for s in spans)


def rows_held(entry: SliceEntry) -> int:
    """How many accepted rows a slice contains: its own, and those accepted from later slices that it
    repeats."""
    return entry.counts.accepted + sum(repeat.rows for repeat in entry.repeats)


def _spans(entry: SliceEntry) -> list[Interval]:
    own = [] if entry.observed is None else [entry.observed]
    return [*own, *(repeat.times for repeat in entry.repeats)]


def event_times(
    raw: Callable[[], Snapshot | None], entries: Sequence[SliceEntry]
) -> Iterator[tuple[SliceEntry, Ints]]:
    """The sorted event times of the accepted rows that each slice contains, for slices with rows."""
    for group in row_groups(entries, _ROWS):
        snapshot = raw()
        if snapshot is None:
            return
        found = _read(snapshot, group)
        for entry in group:
            times = found.get(entry.id)
            if times is not None:
                yield entry, times


def _read(snapshot: Snapshot, entries: Sequence[SliceEntry]) -> dict[str, Ints]:
    spans = [span for entry in entries for span in _spans(entry)]
    repeats = [(entry.id, repeat) for entry in entries for repeat in entry.repeats]
    ids = [entry.id for entry in entries]
    ids += sorted({repeat.slice for _, repeat in repeats} - set(ids))
    ranges: dict[str, Range] = {
        "event_time": (min(span.start for span in spans), max(span.end for span in spans) - 1),
        "slice": (min(ids), max(ids)),
    }
    wanted, own = pa.array(ids), {entry.id for entry in entries}
    columns = ["slice", "event_time", *(["line"] if repeats else [])]
    pieces: dict[str, list[Ints]] = {}
    for path in snapshot.paths(snapshot.select(None, ranges)):
        table = read_part(path, columns)
        names = table.column("slice").cast(pa.string()).combine_chunks()
        positions = pc.index_in(names, wanted).fill_null(-1).to_numpy(zero_copy_only=False)
        times = table.column("event_time").cast(pa.int64()).to_numpy()
        for position in np.unique(positions[positions >= 0]).tolist():
            if ids[position] in own:
                pieces.setdefault(ids[position], []).append(times[positions == position])
        for name, repeat in repeats:
            rows = np.flatnonzero(positions == ids.index(repeat.slice))
            held = is_repeated(table.column("line").to_numpy()[rows], repeat)
            pieces.setdefault(name, []).append(times[rows[held]])
    found = {name: np.sort(np.concatenate(times)) for name, times in pieces.items()}
    return {name: times for name, times in found.items() if times.size}


def is_repeated(lines: Ints, repeat: Repeat) -> Mask:
    """Which lines of the slice that rows were accepted from are among the repeated ones."""
    firsts = np.array([first for first, _ in repeat.lines], np.int64)
    lasts = np.array([last for _, last in repeat.lines], np.int64)
    at = np.searchsorted(firsts, lines, "right") - 1
    found: Mask = (at >= 0) & (lines <= lasts[at])
    return found


def runs_of(times: Ints, tolerance: int) -> Iterator[Interval]:
    """The spans from row to row, in order, without a hole longer than the tolerance."""
    if not times.size:
        return
    breaks = np.flatnonzero(np.diff(times) - 1 > tolerance)
    firsts = times[np.concatenate(([0], breaks + 1))].tolist()
    lasts = times[np.concatenate((breaks, [times.size - 1]))].tolist()
    for first, last in zip(firsts, lasts, strict=True):
        yield Interval(first, last + 1)
