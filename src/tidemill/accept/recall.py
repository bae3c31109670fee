"""What raw says of itself: the batches it holds, told by their parts, as the state would have recorded them.

Serves a crash between the raw commit and the state, and `recover`, which has no state at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.lake.parts import read_footer
from tidemill.model.errors import StorageError
from tidemill.model.levels import BASE
from tidemill.model.slices import Counts
from tidemill.model.time import Interval
from tidemill.state.protocol import NO_PROGRESS, BatchRecord, ClockState, Progress, SliceResult


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What the rows of one raw part say, and its footer."""

    path: str
    rows: int
    footer: Mapping[str, object]
    accepted: Mapping[str, int]  # slice -> rows
    late: Mapping[str, int]
    bounds: Mapping[str, tuple[int, int]]
    tiles: Mapping[int, frozenset[str]]


def part_facts(path: str) -> Iterator[PartFacts]:
    """A kernel: reads three narrow columns of a raw part; StorageError when they can not be read."""
    try:
        table = pq.read_table(path, partitioning=None, columns=["slice", "event_time", "watermark"])
    except (OSError, pa.ArrowException) as error:
        raise StorageError(
            f"the part can not be read: {str(error).splitlines()[0]}",
            where=path,
            hint="restore it from a copy of the warehouse; what is made of it can not be checked without it",
        ) from error
    slices = table.column("slice").combine_chunks().dictionary_encode()
    if isinstance(slices, pa.ChunkedArray):
        slices = slices.combine_chunks()
    names = slices.dictionary.to_pylist()
    codes = slices.indices.to_numpy(zero_copy_only=False)
    time = table.column("event_time").cast(pa.int64()).to_numpy()
    met = table.column("watermark").cast(pa.int64())
    late = time <= met.fill_null(np.iinfo(np.int64).min).to_numpy()
    tiles: dict[int, set[str]] = {}
    accepted, lates, bounds = {}, {}, {}
    for code, name in enumerate(names):
        mine = codes == code
        times = time[mine]
        accepted[name] = int(times.size)
        lates[name] = int(np.count_nonzero(late[mine]))
        bounds[name] = (int(times.min()), int(times.max()))
        for tile in np.unique(times // BASE.tile).tolist():
            tiles.setdefault(tile * BASE.tile, set()).add(name)
    yield PartFacts(
        path=path,
        rows=table.num_rows,
        footer=read_footer(path),
        accepted=accepted,
        late=lates,
        bounds=bounds,
        tiles={start: frozenset(found) for start, found in tiles.items()},
    )


@dataclass(slots=True)
class _Found:
    """One batch, as its parts are read."""

    summaries: dict[str, dict[str, object]] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    clocks: list[ClockState] = field(default_factory=list)
    progress: Progress = NO_PROGRESS
    parts: list[PartFacts] = field(default_factory=list)


def records_of(
    stream: str, facts: Iterable[PartFacts], raw_version: int, quarantine_version: int
) -> dict[str, BatchRecord]:
    """The batches that the parts belong to, by id. All parts of a batch must be among them."""
    batches: dict[str, _Found] = {}
    for part in facts:
        found = batches.setdefault(_text(part, "batch"), _Found())
        found.parts.append(part)
        found.summaries.update({str(s["id"]): s for s in _dicts(part, "slices")})
        found.runs.extend(str(run) for run in _list(part, "runs"))
        found.clocks.extend(clocks_told(part.footer))
        said = progress_told(part.footer)
        if said is not None:
            found.progress = said[1]
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


def clocks_told(footer: Mapping[str, object]) -> list[ClockState]:
    """The clocks that a raw part tells of; one that was written before there were arrivals has none."""
    told = footer["clocks"]
    assert isinstance(told, list), footer
    return [
        ClockState(str(c["source"]), int(c["max_seen"]), int(c["watermark"]), int(c.get("arrival", 0)))
        for c in told
    ]


def progress_told(footer: Mapping[str, object]) -> tuple[int, Progress] | None:
    """The progress that a raw part tells of, and the version of raw that it came with."""
    told = footer.get("progress")
    if not isinstance(told, dict):
        return None
    return int(told["version"]), Progress(**{name: told[name] for name in told if name != "version"})


def _result(summary: Mapping[str, object], parts: Sequence[PartFacts]) -> SliceResult:
    name = str(summary["id"])
    bounds = [part.bounds[name] for part in parts if name in part.bounds]
    rejects = summary["rejects"]
    assert isinstance(rejects, dict)
    watermark = summary["watermark"]
    return SliceResult(
        slice=name,
        counts=Counts(
            records=_int(summary, "records"),
            accepted=sum(part.accepted.get(name, 0) for part in parts),
            duplicate=_int(summary, "duplicate"),
            conflict=_int(summary, "conflict"),
            rejected=sum(rejects.values()),
            late=sum(part.late.get(name, 0) for part in parts),
            rejects=rejects,
        ),
        observed=Interval(min(b[0] for b in bounds), max(b[1] for b in bounds) + 1) if bounds else None,
        watermark=int(str(watermark)) if watermark is not None else None,
        error=str(summary["error"]) if summary["error"] is not None else None,
        judgement=int(str(summary.get("judgement", 0))),
    )


def _tiles(parts: Sequence[PartFacts]) -> dict[int, frozenset[str]]:
    tiles: dict[int, frozenset[str]] = {}
    for part in parts:
        for start, names in part.tiles.items():
            tiles[start] = tiles.get(start, frozenset()) | names
    return tiles


def _int(summary: Mapping[str, object], key: str) -> int:
    return int(str(summary[key]))


def _list(part: PartFacts, key: str) -> list[object]:
    found = part.footer.get(key)
    if not isinstance(found, list):
        raise StorageError(
            f"the part does not say its {key}", where=part.path, hint="it was not written by this version"
        )
    return found


def _dicts(part: PartFacts, key: str) -> list[dict[str, object]]:
    return [item for item in _list(part, key) if isinstance(item, dict)]


def _text(part: PartFacts, key: str) -> str:
    return str(part.footer[key])
