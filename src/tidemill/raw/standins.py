"""Parts of raw that are not named for their batch: those that packing made, and those without rows that speak
for parts that are gone. How they are called, what is in their footers, and how the latter are written.

Nothing is decided here: which parts go and what is said of them is for `packing`, `expired` and `undo`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tidemill.model.names import EXPIRED_PART, LARGE_PART, PACKED_PART, REST_PART, TOLD_PART
from tidemill.model.slices import set_hash
from tidemill.raw.recall import EXPIRED, PACKED, Told
from tidemill.raw.tables import RAW, RAW_STATS
from tidemill.storage.state.protocol import Progress
from tidemill.storage.tables.parts import StagedPart, write_part
from tidemill.storage.tables.snapshot import Part

WORD_BYTES: Final = 1 << 20  # parts without rows that are smaller are spoken for by the next one
WORD: Final = "word"  # the kind of a part that speaks for those that were packed
HOLDS: Final = "holds"  # of a packed part: the slices whose rows it has, each packed by that
REST: Final = "rest"  # the slices whose rows it has and that still wait to be packed
BATCHES: Final = "batches"  # which of both are of which batch
ROWS_OF: Final = "rows_of"  # of a part that was born large: by slice, how many rows it has


def is_packed(part: Part) -> bool:
    """Whether it has rows of the slices of a group."""
    return _begins(part, PACKED_PART)


def is_large(part: Part) -> bool:
    """Whether it was large and sorted when its batch was accepted: it is packed by that."""
    return bool(part.rows) and Path(part.path).stem.endswith(f"-{LARGE_PART}")


def is_settled(part: Part) -> bool:
    """Whether its rows are packed."""
    return is_packed(part) or is_large(part)


def is_rest(part: Part) -> bool:
    """Whether it has rows of slices that wait, left over from parts that were packed."""
    return _begins(part, REST_PART)


def is_shared(part: Part) -> bool:
    """Whether its rows may be of several batches."""
    return is_packed(part) or is_rest(part)


def is_word(part: Part) -> bool:
    """Whether it speaks for parts that were packed, and for no other."""
    return not part.rows and _begins(part, TOLD_PART)


def stands_for_expired(part: Part) -> bool:
    return not part.rows and _begins(part, EXPIRED_PART)


def batch_of(part: Part) -> str | None:
    """The batch that a part is named for."""
    mark = Path(part.path).name.partition("-")[0]
    return None if mark in (PACKED_PART, REST_PART, TOLD_PART, EXPIRED_PART) else mark


def _begins(part: Part, mark: str) -> bool:
    return Path(part.path).name.startswith(f"{mark}-")


# -- what packed parts say of themselves


def born_large(name: str) -> str:
    """The name of a part that turned out to be large."""
    return f"{name.removesuffix('.parquet')}-{LARGE_PART}.parquet"


def large_footer(rows: Mapping[str, int], times: tuple[int, int], created_at: int) -> dict[str, object]:
    """What a part that is packed from the beginning says beside what every part of a batch does: the rows of
    its slices, its first and last event time, and when it was made."""
    return {
        HOLDS: sorted(rows),
        ROWS_OF: dict(sorted(rows.items())),
        "min_time": times[0],
        "max_time": times[1],
        "created_at": created_at,
    }


def rows_in(footer: Mapping[str, object]) -> dict[str, int]:
    """Of a part that was born large, the rows of its slices."""
    found = footer[ROWS_OF]
    assert isinstance(found, dict), footer
    return {str(name): int(rows) for name, rows in found.items()}


def packed_footer(
    stream: str, slices: Mapping[str, str], created_at: int, *, packed: bool
) -> dict[str, object]:
    """Of a part with rows of these slices (and their batches), which are packed by that or still wait."""
    batches: dict[str, list[str]] = {}
    for name, batch in sorted(slices.items()):
        batches.setdefault(batch, []).append(name)
    return {
        "kind": PACKED,
        "stream": stream,
        "batch": "",
        "slices": [],
        "runs": [],
        "clocks": [],
        "progress": None,
        HOLDS: sorted(slices) if packed else [],
        REST: [] if packed else sorted(slices),
        BATCHES: batches,
        "created_at": created_at,
    }


def names_in(footer: Mapping[str, object], key: str) -> list[str]:
    """Slices that a packed part names under `HOLDS` or `REST`."""
    found = footer[key]
    assert isinstance(found, list), footer
    return [str(name) for name in found]


def batches_in(footer: Mapping[str, object]) -> dict[str, list[str]]:
    """Of a packed part, its batches with their slices."""
    found = footer[BATCHES]
    assert isinstance(found, dict), footer
    return {str(batch): [str(name) for name in names] for batch, names in found.items()}


def without(footer: Mapping[str, object], batches: Collection[str]) -> dict[str, object]:
    """The footer of a packed part that has no rows of these batches any more."""
    left = {batch: names for batch, names in batches_in(footer).items() if batch not in batches}
    slices = {name for names in left.values() for name in names}
    kept = {key: [name for name in names_in(footer, key) if name in slices] for key in (HOLDS, REST)}
    return {**footer, **kept, BATCHES: left}


# -- those that speak for others


def progress_now(progress: Progress, version: int) -> dict[str, object]:
    """How far a stream has come, as a part says it that a commit of raw adds as this version."""
    return {**asdict(progress), "version": version}


def write_word(
    folder: Path,
    stream: str,
    partition: Mapping[str, str],
    told: Sequence[Told],
    progress: Mapping[str, object] | None,
) -> StagedPart:
    """The part that speaks for those that were packed."""
    footer = {**_spoken(stream, WORD, progress), PACKED: list(told)}
    return _write(folder, f"{TOLD_PART}-{_hash(told, progress)}", partition, footer)


def write_expired(
    folder: Path,
    stream: str,
    partition: Mapping[str, str],
    told: Sequence[Told],
    packed: Sequence[Told],
    keys: Iterable[str],
    progress: Mapping[str, object] | None,
) -> StagedPart:
    """The part that speaks for those that have expired, and for those that had been packed. `keys` are
    the files with the ids of their events."""
    footer = {**_spoken(stream, EXPIRED, progress), "keys": sorted(keys), EXPIRED: list(told)}
    if packed:
        footer[PACKED] = list(packed)
    return _write(folder, f"{EXPIRED_PART}-{_hash([*told, *packed], progress)}", partition, footer)


def _hash(told: Sequence[Told], progress: Mapping[str, object] | None) -> str:
    """Also of the version: when all is packed anew, the next word may speak for the same parts."""
    version = progress["version"] if progress is not None else 0
    return set_hash([*(str(one["path"]) for one in told), f"version {version}"])[:24]


def _spoken(stream: str, kind: str, progress: Mapping[str, object] | None) -> dict[str, object]:
    return {
        "kind": kind,
        "stream": stream,
        "batch": "",
        "slices": [],
        "runs": [],
        "clocks": [],
        "progress": dict(progress) if progress is not None else None,
    }


def _write(folder: Path, name: str, partition: Mapping[str, str], footer: Mapping[str, object]) -> StagedPart:
    return write_part(
        folder,
        f"{name}.parquet",
        RAW.empty_table(),
        partition=partition,
        footer=footer,
        stats_columns=RAW_STATS,
    )
