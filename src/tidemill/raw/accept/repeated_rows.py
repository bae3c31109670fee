"""Which rows of later arrivals a slice contains that went through the gate after them.

It considers only duplicates, as the gate wrote them, and decides nothing: rows stay with the slice that they
were accepted from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from tidemill.config import Stream
from tidemill.formats.arrays import Ints
from tidemill.formats.arrow import one
from tidemill.model.slices import Repeat, SliceEntry
from tidemill.model.time import MIN_INSTANT, Interval
from tidemill.raw.accept.gate import DUPLICATE
from tidemill.storage.ipc import read_ipc
from tidemill.storage.state.protocol import Ledger, State


def find_repeats(
    state: State,
    stream: Stream,
    slices: Sequence[tuple[SliceEntry, Mapping[int, str]]],
    drops: Sequence[str],
) -> dict[str, list[Repeat]]:
    """By slice of a batch, rows that were accepted from slices that arrived later and that it contains as
    well. `slices` has the staged columns of each, by chunk; `drops` is what did not pass the gate.

    In processing time an event has the time at which it was accepted, so it is in no other dataset.
    """
    if not stream.in_event_time:
        return {}
    found: dict[str, list[Repeat]] = {}
    newest = max((clock.arrival for clock in state.clocks(stream.name)), default=MIN_INSTANT)
    for entry, columns in slices:
        arrival = _counted_arrival(state, entry)
        if arrival < newest:
            found[entry.id] = list(_repeats(arrival, columns, drops, state.slice_at))
        newest = max(newest, entry.slice.arrival)
    return found


def _counted_arrival(state: Ledger, entry: SliceEntry) -> int:
    """The arrival that counts: a replay of rejects counts as the slice that they came in."""
    first = state.slice(entry.slice.replays) if entry.slice.replays is not None else None
    return entry.slice.arrival if first is None else first.slice.arrival


def _repeats(
    arrival: int,
    columns: Mapping[int, str],
    drops: Sequence[str],
    slice_at: Callable[[int], SliceEntry | None],
) -> Iterator[Repeat]:
    offsets, lines, times = _duplicates(columns, drops)
    for offset in np.unique(offsets).tolist():
        owner = slice_at(offset)
        if owner is not None and owner.slice.arrival > arrival:
            of_slice = offsets == offset
            span = Interval(int(times[of_slice].min()), int(times[of_slice].max()) + 1)
            yield Repeat(owner.id, span, tuple(_stretches(np.unique(lines[of_slice]))))


def _duplicates(columns: Mapping[int, str], drops: Sequence[str]) -> tuple[Ints, Ints, Ints]:
    """For the duplicates in these chunks: offset and line of what they repeat, and their event times."""
    pieces: list[tuple[Ints, Ints, Ints]] = [(np.empty(0, np.int64),) * 3]
    for path in drops:
        table = read_ipc(path)
        chunk, at, seq, line = (_numbers(table, name) for name in ("chunk", "at", "seq", "line"))
        repeats = _numbers(table, "kind") == DUPLICATE
        for number, file in columns.items():
            rows = np.flatnonzero(repeats & (chunk == number))
            if rows.size:
                times = _numbers(read_ipc(file), "event_time")[at[rows]]
                pieces.append((seq[rows], line[rows], times))
    offsets, lines, times = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return offsets, lines, times


def _numbers(table: pa.Table, name: str) -> Ints:
    values: Ints = one(table.column(name)).to_numpy().astype(np.int64)
    return values


def _stretches(lines: Ints) -> Iterator[tuple[int, int]]:
    """Ascending lines as ranges without holes."""
    breaks = np.flatnonzero(np.diff(lines) > 1)
    firsts, lasts = (
        lines[np.concatenate(([0], breaks + 1))],
        lines[np.concatenate((breaks, [lines.size - 1]))],
    )
    yield from zip(firsts.tolist(), lasts.tolist(), strict=True)
