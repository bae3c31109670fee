"""Reads batches from the footers of raw, as the state would have recorded them.

For a crash between the raw commit and the state, and for `recover`, which has no state. A part without rows
may replace others that were packed or have expired: it has their records. A packed part has no records of
batches: the stand-in for the parts it was made from does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.model.levels import BASE
from tidemill.model.slices import Counts
from tidemill.model.time import DAY, Interval
from tidemill.raw.footers import (
    COLUMNS,
    BatchFooter,
    GonePart,
    PackedFooter,
    SliceSummary,
    StandInFooter,
    raw_footer,
)
from tidemill.storage.state.protocol import NO_PROGRESS, BatchRecord, ClockState, Progress, SliceResult
from tidemill.storage.tables.parts import open_part, read_footer


@dataclass(frozen=True, slots=True)
class PartFacts:
    """Facts about the rows of one raw part, or about those it had before they expired, and its footer."""

    path: str
    rows: int  # that it has now
    footer: BatchFooter | PackedFooter
    accepted: Mapping[str, int]  # slice -> rows
    late: Mapping[str, int]
    bounds: Mapping[str, tuple[int, int]]
    tiles: Mapping[int, frozenset[str]]


def part_facts(path: str) -> Iterator[PartFacts]:
    """A kernel: what a raw part records, for itself and for others; DamageError if it cannot be read."""
    footer = raw_footer(path)
    if isinstance(footer, BatchFooter):
        yield _read(path, footer)
    elif isinstance(footer, StandInFooter):
        yield from _recorded(path, footer, footer.recorded())


def held_facts(path: str) -> Iterator[PartFacts]:
    """A kernel: facts about the rows of a raw part, from the part itself or from its stand-in; expired rows
    as they were."""
    footer = raw_footer(path)
    if isinstance(footer, StandInFooter):
        yield from _recorded(path, footer, footer.expired)
    else:
        yield _read(path, footer)


def _narrow(path: str) -> pa.Table:
    with open_part(path) as file:
        return file.read(["slice", "event_time", "watermark"], use_threads=False)


def _read(path: str, footer: BatchFooter | PackedFooter) -> PartFacts:
    table = _narrow(path)
    tiles: dict[int, set[str]] = {}
    accepted, lates, bounds = {}, {}, {}
    for name, times, late in _by_slice(table):
        accepted[name] = int(times.size)
        lates[name] = int(np.count_nonzero(late))
        bounds[name] = (int(times.min()), int(times.max()))
        for tile in np.unique(times // BASE.tile).tolist():
            tiles.setdefault(tile * BASE.tile, set()).add(name)
    return PartFacts(
        path=path,
        rows=table.num_rows,
        footer=footer,
        accepted=accepted,
        late=lates,
        bounds=bounds,
        tiles={start: frozenset(found) for start, found in tiles.items()},
    )


def _by_slice(table: pa.Table) -> Iterator[tuple[str, Ints, Mask]]:
    """Event times of each slice with rows in a part, and which of them are late."""
    slices = one(one(table.column("slice")).dictionary_encode())
    names = slices.dictionary.to_pylist()
    codes = slices.indices.to_numpy(zero_copy_only=False)
    time = one(table.column("event_time")).cast(pa.int64()).to_numpy()
    watermarks = one(table.column("watermark")).cast(pa.int64())
    late = time <= watermarks.fill_null(np.iinfo(np.int64).min).to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names))).tolist()
    for name, start, end in zip(names, [0, *ends], ends, strict=False):
        rows = order[start:end]
        yield name, time[rows], late[rows]


def as_recorded(facts: PartFacts, path: str) -> GonePart:
    """The facts of a part with that path in the table, for its stand-in."""
    tiles: dict[str, list[int]] = {}
    for start, names in sorted(facts.tiles.items()):
        for name in names:
            tiles.setdefault(name, []).append(start // BASE.tile)
    return GonePart(
        footer=replace(facts.footer, columns=None).to_footer(),
        accepted=facts.accepted,
        late=facts.late,
        bounds=facts.bounds,
        steps={name: steps_of(np.array(numbers, np.int64)) for name, numbers in tiles.items()},
        path=path,
    )


@dataclass(frozen=True, slots=True)
class MovedPart:
    """A part whose rows move elsewhere, with what is to be recorded for it."""

    path: str
    days: Mapping[str, Mapping[int, int]]  # slice -> rows by day
    recorded: GonePart

    @property
    def accepted(self) -> Mapping[str, int]:
        return self.recorded.accepted

    @property
    def bounds(self) -> Mapping[str, tuple[int, int]]:
        return self.recorded.bounds


def moved_part(path: str) -> Iterator[MovedPart]:
    """A kernel: `as_recorded` of `held_facts`, without processing every tile."""
    accepted, lates, bounds, steps = {}, {}, {}, {}
    by_day: dict[str, dict[int, int]] = {}
    for name, times, late in _by_slice(_narrow(path)):
        accepted[name] = int(times.size)
        lates[name] = int(np.count_nonzero(late))
        bounds[name] = (int(times.min()), int(times.max()))
        steps[name] = steps_of(np.unique(times // BASE.tile))
        days, counts = np.unique(times // DAY, return_counts=True)
        by_day[name] = dict(zip(days.tolist(), counts.tolist(), strict=True))
    footer = {key: value for key, value in read_footer(path).items() if key != COLUMNS}
    yield MovedPart(path, by_day, GonePart(footer, accepted, lates, bounds, steps))


def steps_of(numbers: Ints) -> list[int]:
    """Ascending numbers of tiles, compressed: the first, then distances with their counts."""
    apart = np.diff(numbers)
    starts = np.flatnonzero(np.append(True, apart[1:] != apart[:-1])) if apart.size else apart
    counts = np.diff(np.append(starts, apart.size))
    return [int(numbers[0]), *np.stack([apart[starts], counts], axis=1).ravel().tolist()]


def _recorded(path: str, footer: StandInFooter, parts: Sequence[GonePart]) -> Iterator[PartFacts]:
    """The facts of parts that a stand-in replaces. The progress of the stream is with the first of them: as
    it was when they were removed."""
    for number, recorded in enumerate(parts):
        footer_of_part = recorded.former_footer()
        if number == 0 and isinstance(footer_of_part, BatchFooter):
            footer_of_part = replace(footer_of_part, progress=footer.progress)
        tiles: dict[int, set[str]] = {}
        for name, starts in recorded.tiles_of_slices():
            for start in starts:
                tiles.setdefault(int(start), set()).add(name)
        yield PartFacts(
            path=path,
            rows=0,
            footer=footer_of_part,
            accepted=recorded.accepted,
            late=recorded.late,
            bounds=recorded.bounds,
            tiles={start: frozenset(found) for start, found in tiles.items()},
        )


def footers(path: str | Path) -> list[BatchFooter]:
    """What a raw part records of its batch; a stand-in has the records of the parts it replaces."""
    footer = raw_footer(path)
    if isinstance(footer, StandInFooter):
        return [old for gone in footer.recorded() if isinstance(old := gone.former_footer(), BatchFooter)]
    return [footer] if isinstance(footer, BatchFooter) else []


@dataclass(slots=True)
class _BatchInParts:
    """One batch, while its parts are read."""

    summaries: dict[str, SliceSummary] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    clocks: list[ClockState] = field(default_factory=list)
    progress: Progress = NO_PROGRESS
    parts: list[PartFacts] = field(default_factory=list)


def records_of(
    stream: str, facts: Iterable[PartFacts], raw_version: int, quarantine_version: int
) -> dict[str, BatchRecord]:
    """The batches of the parts, by id. All parts of a batch must be among them."""
    batches: dict[str, _BatchInParts] = {}
    for part in facts:
        footer = part.footer
        assert isinstance(footer, BatchFooter), part.path
        found = batches.setdefault(footer.batch, _BatchInParts())
        found.parts.append(part)
        found.summaries.update({summary.id: summary for summary in footer.slices})
        found.runs.extend(footer.runs)
        found.clocks.extend(footer.clocks)
        if footer.progress is not None:
            found.progress = footer.progress.progress
    return {
        batch: BatchRecord(
            stream=stream,
            batch=batch,
            raw_version=raw_version,
            quarantine_version=quarantine_version,
            results=[_result(summary, found.parts) for summary in found.summaries.values()],
            clocks=found.clocks,
            tiles=_tiles(found.parts),
            runs=found.runs,
            progress=found.progress,
        )
        for batch, found in batches.items()
    }


def _result(summary: SliceSummary, parts: Sequence[PartFacts]) -> SliceResult:
    name = summary.id
    bounds = [part.bounds[name] for part in parts if name in part.bounds]
    failed = summary.error is not None
    return SliceResult(
        slice=name,
        counts=Counts(
            records=summary.records,
            accepted=sum(part.accepted.get(name, 0) for part in parts),
            duplicate=summary.duplicate,
            conflict=summary.conflict,
            rejected=sum(summary.rejects.values()),
            late=sum(part.late.get(name, 0) for part in parts),
            rejects=dict(summary.rejects),
        ),
        observed=Interval(min(b[0] for b in bounds), max(b[1] for b in bounds) + 1) if bounds else None,
        watermark=summary.watermark,
        error=summary.error,
        decision=summary.decision,
        # The time of its next try is lost: try at once. One without a cause is from a version without
        # retries: try once.
        retry_at=0 if failed and summary.by_storage else None,
        failed_as=summary.failed_as or "" if failed and not summary.by_storage else None,
        retried=summary.retried,
        repeats=summary.repeats,
    )


def _tiles(parts: Sequence[PartFacts]) -> dict[int, frozenset[str]]:
    tiles: dict[int, frozenset[str]] = {}
    for part in parts:
        for start, names in part.tiles.items():
            tiles[start] = tiles.get(start, frozenset()) | names
    return tiles
