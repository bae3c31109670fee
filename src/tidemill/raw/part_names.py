"""Parts of raw that are not named for their batch: packed parts, and parts without rows that replace removed
ones (stand-ins). Their names, and how stand-ins are written.

`compaction`, `expiry` and `batch_removal` decide which parts are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tidemill.model.names import EXPIRED_PART, LARGE_PART, PACKED_PART, REST_PART, TOMBSTONE_PART
from tidemill.model.slices import set_hash
from tidemill.raw.footers import EXPIRED, TOMBSTONE, GonePart, ProgressAt, StandInFooter
from tidemill.raw.tables import RAW, RAW_STATS
from tidemill.storage.tables.part_checksums import without_checksums
from tidemill.storage.tables.parts import StagedPart, write_part
from tidemill.storage.tables.snapshot import Part

TOMBSTONE_BYTES: Final = 1 << 20  # smaller stand-ins are replaced by the next one


def is_packed(part: Part) -> bool:
    """Whether it has rows of the slices of a group."""
    return _begins(part, PACKED_PART)


def is_large(part: Part) -> bool:
    """Whether it was large and sorted when its batch was accepted, and thus counts as packed."""
    return bool(part.rows) and Path(without_checksums(part.path)).stem.endswith(f"-{LARGE_PART}")


def is_settled(part: Part) -> bool:
    """Whether its rows are packed."""
    return is_packed(part) or is_large(part)


def is_rest(part: Part) -> bool:
    """Whether it has rows of slices that wait, left over from parts that were packed."""
    return _begins(part, REST_PART)


def is_shared(part: Part) -> bool:
    """Whether its rows may be of several batches."""
    return is_packed(part) or is_rest(part)


def is_tombstone(part: Part) -> bool:
    """Whether it replaces only parts that were packed."""
    return not part.rows and _begins(part, TOMBSTONE_PART)


def is_expired_tombstone(part: Part) -> bool:
    return not part.rows and _begins(part, EXPIRED_PART)


def batch_of(part: Part) -> str | None:
    """The batch that a part is named for."""
    return Path(part.path).name.partition("-")[0] if is_of_one_batch(part.path) else None


def is_of_one_batch(path: str) -> bool:
    """Whether a part, by its path, is named for a batch."""
    prefix = Path(path).name.partition("-")[0]
    return prefix not in (PACKED_PART, REST_PART, TOMBSTONE_PART, EXPIRED_PART)


def _begins(part: Part, prefix: str) -> bool:
    return Path(part.path).name.startswith(f"{prefix}-")


def born_large(name: str) -> str:
    """The name of a part that turned out to be large."""
    plain = without_checksums(name).removesuffix(".parquet")
    return f"{plain}-{LARGE_PART}{name.removeprefix(plain)}"


# -- writing stand-ins


def write_tombstone(
    folder: Path,
    stream: str,
    partition: Mapping[str, str],
    gone: Sequence[GonePart],
    progress: ProgressAt | None,
) -> StagedPart:
    """Write the stand-in for packed parts."""
    footer = StandInFooter(stream, TOMBSTONE, progress, packed=tuple(gone))
    return _write(folder, f"{TOMBSTONE_PART}-{_hash(gone, progress)}", partition, footer)


def write_expired(
    folder: Path,
    stream: str,
    partition: Mapping[str, str],
    gone: Sequence[GonePart],
    packed: Sequence[GonePart],
    keys: Iterable[str],
    progress: ProgressAt | None,
) -> StagedPart:
    """Write the stand-in for parts that have expired or had been packed. `keys` are the files with the ids of
    their events."""
    footer = StandInFooter(stream, EXPIRED, progress, tuple(packed), tuple(gone), tuple(keys))
    return _write(folder, f"{EXPIRED_PART}-{_hash([*gone, *packed], progress)}", partition, footer)


def _hash(gone: Sequence[GonePart], progress: ProgressAt | None) -> str:
    """Includes the version: if everything is packed again, the next stand-in may replace the same parts."""
    version = progress.version if progress is not None else 0
    return set_hash([*(one.path for one in gone), f"version {version}"])[:24]


def _write(folder: Path, name: str, partition: Mapping[str, str], footer: StandInFooter) -> StagedPart:
    return write_part(
        folder,
        f"{name}.parquet",
        RAW.empty_table(),
        partition=partition,
        footer=footer.to_footer(),
        stats_columns=RAW_STATS,
    )
