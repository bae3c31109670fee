"""The watermark of a stream as its slices pass in ledger order, and the held events it releases.

The watermark that a slice met is recorded when the slice is decided; it is computed only for new slices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.raw.stream_buffer import Piece, Rows, StreamBuffer, held, no_rows
from tidemill.raw.watermark import TimeRules, stream_clock
from tidemill.storage.state.protocol import NO_PROGRESS, ClockState, Progress
from tidemill.storage.tables.table import Table


@dataclass(frozen=True, slots=True)
class Passing:
    """A slice as it passes."""

    slice: str
    source: str
    arrival: int
    newest: int | None  # of its accepted records; None: it has none, and nothing moves
    rows: Rows = no_rows  # those that are still to be released
    recorded: bool = False  # it was decided before, and met `met` then
    met: int | None = None


class SliceClocks:
    """The clocks of a stream's sources, its watermark and its buffer; none before the first event."""

    def __init__(
        self,
        rules: TimeRules,
        states: Iterable[ClockState] = (),
        progress: Progress = NO_PROGRESS,
        buffer: StreamBuffer | None = None,
    ) -> None:
        self.rules = rules
        self.clock = stream_clock(rules.tolerance, rules.idle_timeout, states, progress)
        self.buffer = buffer if buffer is not None else StreamBuffer()
        self._before = progress
        self._released_early = progress.released_early

    def pass_by(self, slice_: Passing) -> int | None:
        """Pass a slice; returns the watermark that its records meet."""
        met = slice_.met
        if not slice_.recorded:
            met = self.clock.at(slice_.arrival).watermark if self.rules.in_event_time else None
        elif met is not None and met != self.clock.watermark:
            # As recorded then, so that a tolerance declared later changes nothing.
            self.clock = replace(self.clock, watermark=met, emitted=self.clock.emitted + 1)
        if slice_.newest is not None:
            self.clock = self.clock.see(slice_.source, slice_.newest, slice_.arrival)
            self._buffer(slice_.newest, slice_.rows)
        return met

    def _buffer(self, newest: int, rows: Rows) -> None:
        watermark = self.clock.watermark
        if not self.rules.in_event_time or watermark is None:
            return
        self.buffer.release(watermark)
        if newest > watermark:
            for piece in rows(watermark):
                self.buffer.add(piece)
        bound = self.buffer.bound(self.rules.max_bytes) if self.rules.max_bytes is not None else None
        if bound is not None:
            self.clock = self.clock.forced(bound)
            self._released_early += self.buffer.release(bound)

    @property
    def progress(self) -> Progress:
        """The progress of the stream so far. Unchanged in processing time."""
        if not self.rules.in_event_time:
            return self._before
        return Progress(
            watermark=self.clock.watermark,
            emitted=self.clock.emitted,
            buffered_rows=self.buffer.rows,
            buffered_bytes=self.buffer.bytes,
            released_early=self._released_early,
        )

    def states(self, sources: Collection[str]) -> list[ClockState]:
        return [
            ClockState(source, known.clock.max_seen, known.clock.watermark, known.arrival)
            for source, known in sorted(self.clock.sources.items())
            if source in sources and known.clock.max_seen is not None and known.clock.watermark is not None
        ]


def settled(entries: Sequence[SliceEntry]) -> list[SliceEntry]:
    """The entries of a stream's ledger before the first pending slice. How far the stream has come after that
    slice is not known yet."""
    waiting = min((e.seq for e in entries if e.status is SliceStatus.PENDING), default=None)
    return [e for e in entries if waiting is None or e.seq < waiting]


def recorded(entries: Sequence[SliceEntry]) -> list[Passing]:
    """The accepted slices of a stream's ledger, without those that have no records."""
    return [
        Passing(e.id, e.slice.source, e.slice.arrival, e.observed.end - 1, recorded=True, met=e.watermark)
        for e in sorted(entries, key=lambda e: e.seq)
        if e.status is SliceStatus.ACCEPTED and e.observed is not None
    ]


def all_again(
    rules: TimeRules, passings: Sequence[Passing], raw: Table
) -> tuple[SliceClocks, list[int | None]]:
    """Pass all slices of a stream again, from the first; those decided before are read from raw. Gives the
    clocks afterwards, and the watermark that each slice met."""
    first = SliceClocks(replace(rules, max_bytes=None))
    after: dict[str, int] = {}
    for each in passings:
        first.pass_by(replace(each, rows=no_rows))
        # The size limit may have released more than this, never less.
        if each.recorded and first.clock.watermark is not None:
            after[each.slice] = first.clock.watermark
    found = held(raw, after) if rules.in_event_time else {}
    clocks, met = SliceClocks(rules), list[int | None]()
    for each in passings:
        rows = _of(found[each.slice]) if each.slice in found else each.rows
        met.append(clocks.pass_by(replace(each, rows=rows)))
    return clocks, met


def _of(piece: Piece) -> Rows:
    times, sizes = piece
    return lambda after: iter([(times[times > after], sizes[times > after])])
