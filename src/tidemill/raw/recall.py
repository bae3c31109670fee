"""What raw says of itself: the batches it holds, told by their parts, as the state would have recorded them.

Serves a crash between the raw commit and the state, and `recover`, which has no state at all. A part without
rows may stand for others that are gone, since they were packed or have expired: it says what they said. A
packed part says nothing of batches: the one that stands for those it was made of does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.model.errors import StorageError
from tidemill.model.levels import BASE
from tidemill.model.slices import Counts, Repeat
from tidemill.model.time import DAY, Interval
from tidemill.storage.state.protocol import NO_PROGRESS, BatchRecord, ClockState, Progress, SliceResult
from tidemill.storage.tables.parts import read_footer

# In the footer of a part that stands for others: what those said, by why they are gone.
EXPIRED: Final = "expired"  # their rows are
PACKED: Final = "packed"  # their rows are in other parts; also the kind of those


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What the rows of one raw part say, or said before they expired, and its footer."""

    path: str
    rows: int  # that it has now
    footer: Mapping[str, object]
    accepted: Mapping[str, int]  # slice -> rows
    late: Mapping[str, int]
    bounds: Mapping[str, tuple[int, int]]
    tiles: Mapping[int, frozenset[str]]


def part_facts(path: str) -> Iterator[PartFacts]:
    """A kernel: what a raw part says, for itself and for others; StorageError when it can not be read."""
    footer = _footer(path)
    if footer["kind"] == PACKED:
        return
    if _is_spokesman(footer):
        yield from _told(path, footer, _said(footer))
    else:
        yield _read(path, footer)


def held_facts(path: str) -> Iterator[PartFacts]:
    """A kernel: what the rows of a raw part are, whoever speaks for them; of expired ones what they were."""
    footer = _footer(path)
    if _is_spokesman(footer):
        yield from _told(path, footer, told_as(footer, EXPIRED))
    else:
        yield _read(path, footer)


def _footer(path: str) -> dict[str, object]:
    try:
        return read_footer(path)
    except StorageError:
        _narrow(path)  # says more of what is wrong with it
        raise


def _narrow(path: str) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read(["slice", "event_time", "watermark"], use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(
            f"the part can not be read: {str(error).splitlines()[0]}",
            where=path,
            hint="restore it from a copy of the warehouse; what is made of it can not be checked without it",
        ) from error


def _read(path: str, footer: Mapping[str, object]) -> PartFacts:
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
    met = one(table.column("watermark")).cast(pa.int64())
    late = time <= met.fill_null(np.iinfo(np.int64).min).to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names))).tolist()
    for name, start, end in zip(names, [0, *ends], ends, strict=False):
        mine = order[start:end]
        yield name, time[mine], late[mine]


Told = dict[str, Any]  # of a part that is gone: its footer, and by slice what is in `as_told`


def as_told(facts: PartFacts) -> Told:
    """The facts of a part, to be said by the one that stands for it."""
    tiles: dict[str, list[int]] = {}
    for start, names in sorted(facts.tiles.items()):
        for name in names:
            tiles.setdefault(name, []).append(start // BASE.tile)
    return {
        "footer": dict(facts.footer),
        "accepted": dict(facts.accepted),
        "late": dict(facts.late),
        "bounds": {name: list(bounds) for name, bounds in facts.bounds.items()},
        "steps": {name: _steps(np.array(numbers, np.int64)) for name, numbers in tiles.items()},
    }


@dataclass(frozen=True, slots=True)
class Held:
    """A part whose rows go elsewhere, with what is to be said for it."""

    path: str
    accepted: Mapping[str, int]
    bounds: Mapping[str, Sequence[int]]
    days: Mapping[str, Mapping[int, int]]  # slice -> rows by day
    told: Told


def held_told(path: str) -> Iterator[Held]:
    """A kernel: the same as `as_told` of `held_facts`, without a look at every tile."""
    told: Told = {"footer": _footer(path), "accepted": {}, "late": {}, "bounds": {}, "steps": {}}
    by_day: dict[str, dict[int, int]] = {}
    for name, times, late in _by_slice(_narrow(path)):
        told["accepted"][name] = int(times.size)
        told["late"][name] = int(np.count_nonzero(late))
        told["bounds"][name] = [int(times.min()), int(times.max())]
        told["steps"][name] = _steps(np.unique(times // BASE.tile))
        days, counts = np.unique(times // DAY, return_counts=True)
        by_day[name] = dict(zip(days.tolist(), counts.tolist(), strict=True))
    yield Held(path, told["accepted"], told["bounds"], by_day, told)


def _steps(numbers: Ints) -> list[int]:
    """Ascending numbers of tiles: the first, then how far the next are apart and how many are so."""
    apart = np.diff(numbers)
    starts = np.flatnonzero(np.append(True, apart[1:] != apart[:-1])) if apart.size else apart
    counts = np.diff(np.append(starts, apart.size))
    return [int(numbers[0]), *np.stack([apart[starts], counts], axis=1).ravel().tolist()]


def tiles_told(told: Told) -> Iterator[tuple[str, list[int]]]:
    """The tiles of each slice; stand-ins of former versions name them one by one."""
    yield from told.get("tiles", {}).items()
    for name, (first, *steps) in told.get("steps", {}).items():
        apart = np.repeat(np.array(steps[::2], np.int64), steps[1::2])
        yield name, (np.cumsum(np.append(first, apart)) * BASE.tile).tolist()


def _told(path: str, footer: Mapping[str, object], parts: Sequence[Told]) -> Iterator[PartFacts]:
    """The facts of parts that one stands for. The progress of the stream is said with the first of them:
    it is what the stream had come to when they went."""
    progress = footer.get("progress")
    for number, told in enumerate(parts):
        tiles: dict[int, set[str]] = {}
        for name, starts in tiles_told(told):
            for start in starts:
                tiles.setdefault(int(start), set()).add(name)
        yield PartFacts(
            path=path,
            rows=0,
            footer={**told["footer"], "progress": progress} if number == 0 else told["footer"],
            accepted={name: int(count) for name, count in told["accepted"].items()},
            late={name: int(count) for name, count in told["late"].items()},
            bounds={name: (int(low), int(high)) for name, (low, high) in told["bounds"].items()},
            tiles={start: frozenset(found) for start, found in tiles.items()},
        )


def _is_spokesman(footer: Mapping[str, object]) -> bool:
    return EXPIRED in footer or PACKED in footer


def _said(footer: Mapping[str, object]) -> list[Told]:
    """What parts said that are gone. Packed ones that have expired said nothing: only their rows are told."""
    expired = [told for told in told_as(footer, EXPIRED) if told["footer"]["kind"] != PACKED]
    return [*told_as(footer, PACKED), *expired]


def told_as(footer: Mapping[str, object], why: str) -> list[Told]:
    """What a part says of others that are gone for one reason (`EXPIRED`, `PACKED`)."""
    told = footer.get(why, [])
    assert isinstance(told, list), footer
    return told


def footers(path: str | Path) -> list[Mapping[str, object]]:
    """What a raw part says of its batch; one that stands for others says what those said."""
    footer = read_footer(path)
    if footer["kind"] == PACKED:
        return []
    return [told["footer"] for told in _said(footer)] if _is_spokesman(footer) else [footer]


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
    failed, by_storage = summary["error"] is not None, summary.get("by_storage") is True
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
        # When it would have been tried is not known any more: at once. One that does not say by what it
        # failed is of a time when nothing was tried again: once.
        retry_at=0 if failed and by_storage else None,
        failed_as=str(summary.get("failed_as") or "") if failed and not by_storage else None,
        retried=int(str(summary.get("retried", 0))),
        repeats=_repeats(summary),
    )


def _repeats(summary: Mapping[str, object]) -> tuple[Repeat, ...]:
    told = summary.get("repeats", [])
    assert isinstance(told, list), summary
    return tuple(map(Repeat.from_fields, told))


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
