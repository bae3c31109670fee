"""Expires raw by whole days: a part without rows keeps the records of the removed parts, and the ids of their
events are kept for the gate.

The raw commit is the commit point; what a crash leaves before it is removed by the next expiry. No row is
rewritten, and no part is removed whose records are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.model.errors import DamageError
from tidemill.model.failpoints import failpoint
from tidemill.model.levels import BASE
from tidemill.model.slices import set_hash
from tidemill.model.time import MIN_INSTANT, Interval, format_instant
from tidemill.raw.accept.id_runs import SealUnit, seal_keys
from tidemill.raw.footers import EXPIRED, GonePart, ProgressAt, stand_in_footer
from tidemill.raw.part_names import TOMBSTONE_BYTES, is_expired_tombstone, is_tombstone, write_expired
from tidemill.raw.recovered_batches import PartFacts, as_recorded, held_facts
from tidemill.storage import layout
from tidemill.storage.checksums import is_whole
from tidemill.storage.files import make_folder, storage_errors, sync_folder
from tidemill.storage.tables.parts import StagedPart, open_part
from tidemill.storage.tables.snapshot import Part, Snapshot
from tidemill.storage.tables.table import Table

if TYPE_CHECKING:
    from tidemill.raw.accept.batch import Acceptor


@dataclass(frozen=True, slots=True)
class Expirable:
    """Parts with rows from before an instant: those with no others, and those that straddle it."""

    whole: Sequence[Part]
    straddling: Sequence[Part]


def expirable(raw: Snapshot, before: int, *, counted_late: bool) -> Expirable:
    """What can expire. With `counted_late`, parts stay whose rows may count at a later instant, at the
    watermark that they met or right after it."""
    whole, straddling = [], []
    for part in raw.parts:
        if not part.rows or not part.may_hold("event_time", None, before - 1):
            continue
        if counted_late and _newest_met(part) >= before - 1:
            continue
        first, last = _times(raw, part, before)
        if last < before:
            whole.append(part)
        elif first < before:
            straddling.append(part)
    return Expirable(whole, straddling)


def _times(raw: Snapshot, part: Part, before: int) -> tuple[int, int]:
    """First and last event time of a part. The log rounds them to milliseconds: where that matters, the part
    itself is read."""
    first, last = part.mins.get("event_time"), part.maxs.get("event_time")
    if isinstance(first, int) and isinstance(last, int) and last != before:
        return first, last
    with open_part(str(raw.root / part.path)) as file:
        offset = file.schema_arrow.get_field_index("event_time")
        groups = [file.metadata.row_group(number).column(offset) for number in range(file.num_row_groups)]
        found = [group.statistics for group in groups]
        return min(one.min_raw for one in found), max(one.max_raw for one in found)


def rows_before(raw: Snapshot, part: Part, before: int) -> int:
    """How many rows of a part are before an instant."""
    with open_part(str(raw.root / part.path)) as file:
        times = file.read(["event_time"], use_threads=False).column("event_time").cast(pa.int64())
    return int(np.count_nonzero(times.to_numpy() < before))


def _newest_met(part: Part) -> int:
    """The newest watermark that one of its rows met."""
    newest = part.maxs.get("watermark")
    return newest if isinstance(newest, int) else MIN_INSTANT


def slices_expired(raw: Table) -> frozenset[str]:
    """Slices of which raw no longer has all rows."""
    found: set[str] = set()
    for part in raw.snapshot().parts:
        if is_expired_tombstone(part):
            for gone in stand_in_footer(raw.root / part.path).expired:
                found.update(gone.accepted)
    return frozenset(found)


def windows_expired(raw: Snapshot, span: int) -> dict[str, set[int]]:
    """By slice, the starts of the windows of a span that its expired rows were in. Known as exactly as the
    base tiles: windows that share a tile are all named."""
    found: dict[str, set[int]] = {}
    for part in raw.parts:
        if is_expired_tombstone(part):
            for gone in stand_in_footer(raw.root / part.path).expired:
                for name, tiles in gone.tiles_of_slices():
                    first, last = gone.bounds[name]
                    starts = found.setdefault(name, set())
                    for tile in tiles:
                        held = Interval(max(tile, first), min(tile + BASE.tile, last + 1))
                        starts.update(held.windows(span))
    return found


def sealed_files(warehouse: Path, raw: Table) -> list[str]:
    """Files with the keys of expired events; DamageError if one is missing or damaged."""
    folder = layout.sealed(warehouse, raw.root.name)
    found = [folder / name for name in sorted(sealed_names(raw))]
    for path in found:
        if not is_whole(path):
            raise DamageError(
                "the ids of expired events are missing or damaged, and raw no longer has them",
                where=layout.relative_name(path),
                hint="restore the file from a copy of the warehouse: without it repeats would count as new",
            )
    return [str(path) for path in found]


def sealed_names(raw: Table) -> set[str]:
    """Names of those files, from the parts that replace expired ones."""
    names: set[str] = set()
    for part in raw.snapshot().parts:
        if is_expired_tombstone(part):
            names.update(stand_in_footer(raw.root / part.path).keys)
    return names


def expire_raw(acceptor: Acceptor, parts: Sequence[Part], before: int, now: int) -> int:
    """Remove the parts from raw in one commit; the new version of raw."""
    raw, stream = acceptor.raw, acceptor.stream.name
    snapshot = raw.snapshot()
    partitions = [dict(one) for one in sorted({tuple(sorted(part.partition.items())) for part in parts})]
    size = sum(part.size for part in parts)
    found = acceptor.engine.run(held_facts, snapshot.paths(parts), "expire raw", size)
    facts = {fact.path: fact for fact in found}
    keys = _seal_keys(acceptor, parts, size)
    folder = raw.staging(f"{EXPIRED}-{format_instant(before)[:10]}")
    progress = ProgressAt(raw.version + 1, acceptor.state.progress(stream))
    staged: list[StagedPart] = []
    replaced: list[Part] = []
    for partition in partitions:
        recorded = {p.path: facts[str(raw.root / p.path)] for p in parts if p.partition == partition}
        old = _replaceable(snapshot, partition)
        staged.append(_stand_in(raw, folder, partition, recorded, old, keys, progress))
        replaced.extend(old)
    published = raw.publish(staged)
    failpoint("expire.before_commit")
    version = raw.commit(published, [*parts, *replaced], info={EXPIRED: format_instant(before)}, now=now)
    failpoint("expire.after_commit")
    acceptor.state.record_seen(stream, {"raw": version})
    raw.clean_staging()
    clear_keys(acceptor)
    return version


def expire_quarantine(acceptor: Acceptor, parts: Sequence[Part], before: int, now: int) -> int:
    """Remove the parts from quarantine in one commit; the new version."""
    version = acceptor.quarantine.commit([], parts, info={EXPIRED: format_instant(before)}, now=now)
    failpoint("expire.after_commit")
    acceptor.state.record_seen(acceptor.stream.name, {"quarantine": version})
    return version


def clear_keys(acceptor: Acceptor) -> None:
    """Remove files that no part names: a process that died left them."""
    folder = layout.sealed(acceptor.warehouse, acceptor.stream.name)
    named = sealed_names(acceptor.raw)
    with storage_errors("clean up", folder):
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in named:
                path.unlink(missing_ok=True)


def _replaceable(raw: Snapshot, partition: Mapping[str, str]) -> list[Part]:
    """Parts without rows that the next one replaces: the small ones, so that they stay few. In a table with a
    folder for each day all of those of the day."""
    return [
        part
        for part in raw.parts
        if (is_expired_tombstone(part) or is_tombstone(part))
        and part.partition == partition
        and (partition or part.size < TOMBSTONE_BYTES)
    ]


def _seal_keys(acceptor: Acceptor, parts: Sequence[Part], size: int) -> list[str]:
    """The file with the keys of these parts; none for a stream without a gate."""
    stream = acceptor.stream.name
    if not acceptor.plan.gated and not acceptor.state.runs(stream):
        return []
    folder = layout.sealed(acceptor.warehouse, stream)
    make_folder(folder, top=acceptor.warehouse)
    name = f"{set_hash(part.path for part in parts)[:24]}{layout.KEYS_SUFFIX}"
    seqs = {entry.id: entry.seq for entry in acceptor.state.slices(stream)}
    unit = SealUnit(acceptor.raw.snapshot().paths(parts), seqs, str(folder / name))
    acceptor.engine.run(seal_keys, [unit], "ids of expired events", size)
    sync_folder(folder)
    return [name]


def _stand_in(
    raw: Table,
    folder: Path,
    partition: Mapping[str, str],
    facts: Mapping[str, PartFacts],
    old: Sequence[Part],
    keys: Sequence[str],
    progress: ProgressAt,
) -> StagedPart:
    """The part that replaces these, and parts that expired or were packed before."""
    expired = [as_recorded(fact, path) for path, fact in sorted(facts.items())]
    packed: list[GonePart] = []
    named = set(keys)
    for part in old:
        footer = stand_in_footer(raw.root / part.path)
        expired = [*footer.expired, *expired]
        packed += footer.packed
        named.update(footer.keys)
    return write_expired(folder, raw.root.name, partition, expired, packed, named, progress)
