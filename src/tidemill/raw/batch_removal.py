"""Removes whole batches from raw and quarantine, and finds the progress that is left.

Parts are only removed by a commit; the files stay until they are vacuumed. If a packed part has rows of other
batches as well, those move unchanged to a new part in the same commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tidemill.engine import Engine
from tidemill.model.errors import DamageError
from tidemill.model.slices import SliceEntry, set_hash
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT
from tidemill.raw.accept.slice_clocks import all_again, recorded, settled
from tidemill.raw.compaction.pack_kernel import RewriteUnit, rewrite
from tidemill.raw.footers import BatchFooter, PackedFooter, StandInFooter, raw_footer
from tidemill.raw.part_names import batch_of, is_expired_tombstone, write_expired, write_tombstone
from tidemill.raw.recovered_batches import footers
from tidemill.raw.watermark import TimeRules
from tidemill.storage.files import remove_tree
from tidemill.storage.state.protocol import ClockState, Progress
from tidemill.storage.tables.parts import StagedPart, read_part
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table


def remove_batches(
    table: Table,
    batches: Collection[str],
    info: Mapping[str, str],
    now: int,
    engine: Engine | None = None,
    *,
    missing: bool = False,
) -> int:
    """Remove the rows and records of these batches in one commit; how many parts were affected. Idempotent.
    Packed parts are rewritten by `engine`, if there is one. With `missing`, parts whose files are missing are
    removed: all their batches must be among these."""
    table.refresh()
    gone: list[Part] = []
    again: list[tuple[Part, PackedFooter | StandInFooter]] = []
    for part in table.snapshot().parts:
        if missing and not (table.root / part.path).exists():
            gone.append(part)
            continue
        batch = batch_of(part)
        if batch is not None:
            if batch in batches:
                gone.append(part)
            continue
        footer = raw_footer(table.root / part.path)
        assert not isinstance(footer, BatchFooter), part.path
        if _is_concerned(footer, batches):
            gone.append(part)
            again.append((part, footer))
    if not gone:
        return 0
    staged, folder = _rewritten(table, again, batches, engine)
    table.commit(table.publish(staged), gone, info=info, now=now)
    remove_tree(folder)
    return len(gone)


def _is_concerned(footer: PackedFooter | StandInFooter, batches: Collection[str]) -> bool:
    held = footer.batches if isinstance(footer, PackedFooter) else (gone.batch for gone in footer.packed)
    return any(batch in batches for batch in held)


def _rewritten(
    table: Table,
    parts: Sequence[tuple[Part, PackedFooter | StandInFooter]],
    batches: Collection[str],
    engine: Engine | None,
) -> tuple[list[StagedPart], Path]:
    """The parts without the batches, in staging; none for parts that had nothing else."""
    folder = table.staging(f"undo-{set_hash(batches)[:24]}")
    tombstones: list[StagedPart | None] = []
    units: list[RewriteUnit] = []
    for part, footer in parts:
        if isinstance(footer, PackedFooter):
            units.append(_kept_of(table, part, footer, batches, folder))
        else:
            tombstones.append(_tombstone_without(table, part, footer, batches, folder))
    needed = [unit for unit in units if unit.seqs]
    size = sum(part.size for part, _ in parts)
    if engine is not None:
        done = engine.run(rewrite, needed, "undo packed", size)
    else:
        done = [one for unit in needed for one in rewrite(unit)]
    made = [one.part for one in done]
    return [part for part in (*tombstones, *made) if part is not None], folder


def _kept_of(
    table: Table, part: Part, footer: PackedFooter, batches: Collection[str], folder: Path
) -> RewriteUnit:
    """Rows of other batches, in the order of raw."""
    left = footer.without(batches)
    slices = sorted(name for names in left.batches.values() for name in names)
    prefix = Path(part.path).name.partition("-")[0]
    return RewriteUnit(
        inputs=[str(table.root / part.path)],
        seqs=dict.fromkeys(slices, 0),
        span=(MIN_INSTANT, MAX_INSTANT),
        partition=part.partition,
        folder=str(folder),
        name=f"{prefix}-{set_hash([part.path, *batches])[:24]}-undone.parquet",
        footer=left,
        sort=False,
        columns=left.columns,
    )


def _tombstone_without(
    table: Table, part: Part, footer: StandInFooter, batches: Collection[str], folder: Path
) -> StagedPart | None:
    packed = [gone for gone in footer.packed if gone.batch not in batches]
    stream, progress = table.root.name, footer.progress
    if is_expired_tombstone(part):
        return write_expired(folder, stream, part.partition, footer.expired, packed, footer.keys, progress)
    return write_tombstone(folder, stream, part.partition, packed, progress) if packed else None


def clocks_left(raw: Table) -> list[ClockState]:
    """The clocks of all sources as the batches in raw left them."""
    found: dict[str, ClockState] = {}
    for path in raw.snapshot().paths():
        for clock_state in (clock for footer in footers(path) for clock in footer.clocks):
            known = found.get(clock_state.source, clock_state)
            found[clock_state.source] = ClockState(
                clock_state.source,
                max(known.max_seen, clock_state.max_seen),
                max(known.watermark, clock_state.watermark),
                max(known.arrival, clock_state.arrival),
            )
    return [found[source] for source in sorted(found)]


def readings_left(raw: Table, batches: Collection[str]) -> dict[str, str]:
    """How these batches read their records, by batch; those of earlier versions do not say. Batches of which
    all parts are damaged are left out."""
    found: dict[str, str] = {}
    for part in raw.snapshot().parts:
        name = batch_of(part)
        if name is None or name in batches:
            with suppress(DamageError):
                found.update((one.batch, one.reading) for one in footers(raw.root / part.path))
    return {batch: reading for batch, reading in found.items() if batch in batches}


def progress_left(raw: Table, rules: TimeRules, entries: Sequence[SliceEntry]) -> Progress:
    """The progress of a stream by the accepted slices in its ledger. What a batch recorded does not hold once
    another one was undone."""
    return all_again(rules, recorded(settled(entries)), raw)[0].progress


def quarantined_rows(quarantine: Table | None) -> dict[str, int]:
    """How many rows of each slice are in quarantine."""
    counts: dict[str, int] = {}
    for path in quarantine.snapshot().paths() if quarantine is not None else ():
        for name in read_part(path, ["slice"]).column("slice").to_pylist():
            counts[name] = counts.get(name, 0) + 1
    return counts
