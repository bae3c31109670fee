"""Packs raw: the rows of the slices of a group, out of small parts, into large ones in order of time.

Parts are prepared first: that takes long, reads one version of raw and changes nothing. Then one short commit
replaces the old parts with the new ones; what a crash leaves before the commit is removed. No row is changed
or dropped, and a slice is packed once: the parts that the table's log names say which slices are packed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.engine import Engine
from tidemill.formats.declared_columns import RawColumns
from tidemill.model.failpoints import failpoint
from tidemill.model.names import PACKED_PART, REST_PART
from tidemill.model.slices import SliceEntry, SliceStatus, set_hash
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT
from tidemill.raw.compaction.packing_folders import PackingFolder
from tidemill.raw.compaction.selection import Group, PackedPart
from tidemill.raw.footers import PACKED, PackedFooter, ProgressAt, stand_in_footer
from tidemill.raw.part_names import (
    TOMBSTONE_BYTES,
    batch_of,
    is_rest,
    is_settled,
    is_shared,
    is_tombstone,
    write_tombstone,
)
from tidemill.raw.partitioning import shared_days, spread_days
from tidemill.raw.recovered_batches import MovedPart, moved_part
from tidemill.raw.tables import DAY_COLUMN, partition_at
from tidemill.storage.tables.parts import StagedPart
from tidemill.storage.tables.snapshot import Part, Snapshot

if TYPE_CHECKING:
    from tidemill.raw.accept.batch import Acceptor
    from tidemill.raw.compaction.pack_kernel import RewriteUnit, Rewritten
    from tidemill.storage.state.protocol import State

# Imports inside functions keep start-up short: to choose what to pack loads nothing that writes parts.

FULL_FILE_BYTES: Final = 1 << 20  # of parts: days with less share one
UNIT_BYTES: Final = 32 << 20  # of parts that one task rewrites: a day with more is split


@dataclass(frozen=True, slots=True)
class PackedParts:
    """The outcome for a group."""

    slices: tuple[str, ...]
    parts: tuple[PackedPart, ...]
    rows: int
    bytes_before: int  # about
    bytes_after: int


@dataclass(frozen=True, slots=True)
class PackSource:
    """What is packed from: one version of raw, and what is known of its slices. For use in another thread."""

    stream: str
    raw: Snapshot
    state: State
    engine: Engine
    by_day: bool
    columns: RawColumns


@dataclass(frozen=True, slots=True)
class Prepared:
    """Parts that are written, and those that they replace."""

    groups: Sequence[Group]
    numbers: Sequence[int]  # of the group of each unit; units of rows that only wait come last
    units: Sequence[RewriteUnit]
    done: Sequence[Rewritten]
    replaced: Sequence[Part]
    facts: Mapping[str, MovedPart]
    tag: str
    packing_folder: PackingFolder

    def discard(self) -> None:
        self.packing_folder.close()


def pack_groups(acceptor: Acceptor, chosen: Sequence[Group], now: int) -> list[PackedParts]:
    """Pack the groups in one commit; those without a row in raw are skipped. The caller must hold the tick
    lock and have caught up, and no retraction may be in progress."""
    acceptor.raw.refresh()
    prepared = prepare(source_of(acceptor), chosen, now)
    return commit(acceptor, prepared, now) if prepared is not None else []


def source_of(acceptor: Acceptor) -> PackSource:
    raw = acceptor.raw
    by_day = DAY_COLUMN in raw.partition_by
    return PackSource(
        acceptor.stream.name, raw.snapshot(), acceptor.state, acceptor.engine, by_day, acceptor.columns
    )


def prepare(source: PackSource, chosen: Sequence[Group], now: int) -> Prepared | None:
    """Write the parts of the groups; None if raw has no row of them."""
    return _Preparing(source, chosen, now).run()


def commit(acceptor: Acceptor, prepared: Prepared, now: int) -> list[PackedParts]:
    """Replace the parts that they were made from by the prepared ones; nothing is done if one of those is
    gone, or a slice was retracted since. The caller must hold the tick lock."""
    try:
        if not _still_current(acceptor, prepared):
            return []
        failpoint("pack.after_build")
        written = [one.part for one in prepared.done if one.part is not None]
        made = (prepared.replaced, prepared.facts, written)
        replace_parts(acceptor, *made, prepared.tag, prepared.packing_folder.folder, now)
        return _recorded(prepared, now)
    finally:
        prepared.discard()


def _still_current(acceptor: Acceptor, prepared: Prepared) -> bool:
    acceptor.raw.refresh()
    live = acceptor.raw.snapshot().by_path
    if any(part.path not in live for part in prepared.replaced):
        return False
    entries = (acceptor.state.slice(name) for group in prepared.groups for name in group.slices)
    return all(entry is not None and entry.status is SliceStatus.ACCEPTED for entry in entries)


def _recorded(prepared: Prepared, now: int) -> list[PackedParts]:
    parts: dict[int, list[PackedPart]] = {}
    for number, unit, one in zip(prepared.numbers, prepared.units, prepared.done, strict=False):
        if one.part is not None:
            folder = "".join(f"{column}={value}/" for column, value in unit.partition.items())
            assert isinstance(unit.footer, PackedFooter), unit
            slices = unit.footer.holds
            path, part = f"{folder}{unit.name}", one.part
            recorded = PackedPart(path, slices, part.rows, part.size, one.first, one.last, now)
            parts.setdefault(number, []).append(recorded)
    return [
        PackedParts(
            slices=prepared.groups[number].slices,
            parts=tuple(found),
            rows=sum(one.rows for one in found),
            bytes_before=prepared.groups[number].bytes,
            bytes_after=sum(one.bytes for one in found),
        )
        for number, found in sorted(parts.items())
    ]


# -- what is written


class _Preparing:
    def __init__(self, source: PackSource, chosen: Sequence[Group], now: int) -> None:
        self._source = source
        self._snapshot = source.raw
        self._chosen = chosen
        self._now = now
        self._names = {name for group in chosen for name in group.slices}
        self._writing = Writing(source, now)

    def run(self) -> Prepared | None:
        facts = self._facts()
        if not facts:
            return None
        tag = set_hash([*facts, *(set_hash(group.slices) for group in self._chosen)])[:24]
        packing_folder = PackingFolder(self._snapshot.root, tag)
        try:
            return self._prepared(facts, tag, packing_folder)
        except _ChangedError:  # a slice was sent back or retracted meanwhile: it is chosen again
            packing_folder.close()
            return None
        except BaseException:  # remove everything; the next round does all of it again
            packing_folder.close()
            raise

    def _prepared(self, facts: Mapping[str, MovedPart], tag: str, packing_folder: PackingFolder) -> Prepared:
        from tidemill.raw.compaction.pack_kernel import rewrite

        folder = packing_folder.folder
        replaced = [part for part in self._snapshot.parts if part.path in facts]
        held = {part.path: facts[part.path] for part in replaced if part.rows}
        numbers: list[int] = []
        units: list[RewriteUnit] = []
        for number, group in enumerate(self._chosen):
            name = f"{PACKED_PART}-{tag}-{number:04d}"
            found = self._writing.units(held, set(group.slices), folder, name, packed=True)
            numbers.extend(number for _ in found)
            units.extend(found)
        waiting = {name for fact in held.values() for name in fact.accepted} - self._names
        units += self._writing.units(held, waiting, folder, f"{REST_PART}-{tag}", packed=False)
        size = sum(part.size for part in replaced)
        done = self._source.engine.run(rewrite, units, "pack", size)
        rows = sum(one.part.rows for one in done if one.part is not None)
        assert rows == sum(part.rows for part in replaced), "no row is lost"
        return Prepared(self._chosen, numbers, units, done, replaced, facts, tag, packing_folder)

    def _facts(self) -> dict[str, MovedPart]:
        """The contents of the parts with a row of a chosen slice, and of those without rows."""
        live = self._snapshot.by_path
        named = {path for group in self._chosen for path in group.parts}
        # What waited when the groups were chosen may have been moved by a commit since.
        named.update(part.path for part in self._snapshot.parts if is_rest(part))
        parts = [live[path] for path in sorted(named) if path in live]
        held = moved_parts_in(self._source, parts)
        held = {path: fact for path, fact in held.items() if not self._names.isdisjoint(fact.accepted)}
        if not held:
            return {}
        mute = [part for part in self._snapshot.parts if not part.rows and batch_of(part) is not None]
        return {**held, **moved_parts_in(self._source, mute)}


def moved_parts_in(source: PackSource, parts: Sequence[Part]) -> dict[str, MovedPart]:
    """The contents of these parts, by their paths in the table."""
    paths = source.raw.paths(parts)
    size = sum(part.size for part in parts)
    found = source.engine.run(moved_part, paths, "slices of raw parts", size)
    by_path = {fact.path: fact for fact in found}
    return {part.path: by_path[path] for part, path in zip(parts, paths, strict=True)}


class Writing:
    """Turns slices of parts into units of work, one for each part to write."""

    def __init__(self, source: PackSource, now: int) -> None:
        self._source = source
        self._now = now
        self._sizes = {part.path: part.size / part.rows for part in source.raw.parts if part.rows}
        self._entries: dict[str, SliceEntry] = {}

    def units(
        self, held: Mapping[str, MovedPart], slices: Collection[str], folder: Path, name: str, *, packed: bool
    ) -> list[RewriteUnit]:
        """The parts with the rows of these slices, in order of time; none if they have no row."""
        amounts: dict[int, float] = {}
        for path, fact in held.items():
            for each, days in fact.days.items():
                for day, rows in days.items() if each in slices else ():
                    amounts[day] = amounts.get(day, 0) + rows * self._sizes[path]
        bytes_of = {day: int(amount) for day, amount in amounts.items()}
        full = 0 if self._source.by_day else FULL_FILE_BYTES
        runs = shared_days(bytes_of, full)
        spans = spread_days(runs, bytes_of, UNIT_BYTES)
        found = [
            self.unit(held, slices, (start, end - 1), folder, f"{name}-{number:03d}.parquet", packed=packed)
            for number, (start, end) in enumerate(spans)
        ]
        return [unit for unit in found if unit is not None]

    def unit(
        self,
        held: Mapping[str, MovedPart],
        slices: Collection[str],
        span: tuple[int, int],
        folder: Path,
        name: str,
        *,
        packed: bool,
    ) -> RewriteUnit | None:
        """The part with the rows of these slices in a span, both ends included; None if there can be none."""
        from tidemill.raw.compaction.pack_kernel import RewriteUnit

        there: set[str] = set()
        inputs: list[MovedPart] = []
        for fact in held.values():
            own = {each for each in fact.accepted if each in slices and _meets(fact.bounds[each], span)}
            if own:
                inputs.append(fact)
                there |= own
        if not inputs:
            return None
        entries = {each: self._entry(each) for each in sorted(there)}
        batches = {each: str(entry.batch) for each, entry in entries.items()}
        partition = partition_at(span[0], by_day=self._source.by_day)
        target = folder / partition.get(DAY_COLUMN, "all")  # names are unique in a folder
        target.mkdir(exist_ok=True)
        return RewriteUnit(
            inputs=[fact.path for fact in inputs],
            seqs={each: entry.seq for each, entry in entries.items()},
            span=span,
            partition=partition,
            folder=str(target),
            name=name,
            footer=PackedFooter.of(self._source.stream, batches, self._now, packed=packed),
            columns=self._source.columns,
        )

    def _entry(self, name: str) -> SliceEntry:
        if name not in self._entries:
            entry = self._source.state.slice(name)
            if entry is None or entry.batch is None:
                raise _ChangedError(name)
            self._entries[name] = entry
        return self._entries[name]


class _ChangedError(Exception):
    """A slice no longer counts."""


def _meets(bounds: Sequence[int], span: tuple[int, int]) -> bool:
    return bounds[0] <= span[1] and bounds[1] >= span[0]


# -- the commit


def replace_parts(
    acceptor: Acceptor,
    replaced: Sequence[Part],
    facts: Mapping[str, MovedPart],
    written: Sequence[StagedPart],
    tag: str,
    folder: Path,
    now: int,
) -> None:
    """One commit that removes parts, adds those that have their rows now, and keeps what they recorded."""
    raw, stream = acceptor.raw, acceptor.stream.name
    tombstones, replaced_tombstones = _write_tombstones(acceptor, replaced, facts, folder)
    before = raw.version
    published = raw.publish([*written, *tombstones])
    failpoint("pack.before_commit")
    removes = [*replaced, *replaced_tombstones]
    version = raw.commit(published, removes, info={PACKED: tag}, now=now, data_change=False)
    failpoint("pack.after_commit")
    acceptor.state.record_seen(stream, {"raw": version})
    acceptor.moved_on(before, version)


def _write_tombstones(
    acceptor: Acceptor, replaced: Sequence[Part], facts: Mapping[str, MovedPart], folder: Path
) -> tuple[list[StagedPart], list[Part]]:
    """The records of the replaced parts, in one tombstone (or one for each folder of the table), and the
    tombstones that it replaces. At least one is new: it has the progress of the stream at this version of
    raw."""
    raw, stream = acceptor.raw, acceptor.stream.name
    progress = ProgressAt(raw.version + 1, acceptor.state.progress(stream))
    tombstones: list[StagedPart] = []
    replaced_tombstones: list[Part] = []
    for partition in _partitions(replaced):
        new = [
            replace(facts[part.path].recorded, path=part.path)
            for part in replaced
            if part.partition == partition and not is_shared(part)
        ]
        old = _replaceable(raw.snapshot(), partition, new=bool(new))
        recorded = [one for part in old for one in stand_in_footer(raw.root / part.path).packed]
        if recorded or new:
            target = folder / partition.get(DAY_COLUMN, "all")
            target.mkdir(exist_ok=True)
            tombstones.append(write_tombstone(target, stream, partition, [*recorded, *new], progress))
            replaced_tombstones.extend(old)
    return tombstones, replaced_tombstones


def _partitions(parts: Sequence[Part]) -> list[dict[str, str]]:
    found = {tuple(sorted(part.partition.items())) for part in parts}
    return [dict(one) for one in sorted(found)]


def _replaceable(raw: Snapshot, partition: Mapping[str, str], *, new: bool) -> list[Part]:
    """Tombstones that the next one replaces: the small ones, so that they stay few."""
    there = [part for part in raw.parts if is_tombstone(part) and part.partition == partition]
    small = [part for part in there if part.size < TOMBSTONE_BYTES]
    if new or len(small) > 1:
        return small
    return sorted(there, key=lambda part: part.size)[:1]


# -- parts that straddle an instant


def split_parts(acceptor: Acceptor, parts: Sequence[Part], at: int, now: int) -> None:
    """Replace each of these parts by two: rows before an instant, the first of a day, and rows after it. What
    is packed stays packed. The caller must hold the tick lock."""
    from tidemill.raw.compaction.pack_kernel import rewrite

    if not parts:
        return
    source = source_of(acceptor)
    facts = moved_parts_in(source, parts)
    tag = set_hash([*facts, str(at)])[:24]
    packing_folder = PackingFolder(source.raw.root, tag)
    folder = packing_folder.folder
    writing = Writing(source, now)
    units: list[RewriteUnit] = []
    for number, part in enumerate(parts):
        fact, packed = {part.path: facts[part.path]}, is_settled(part)
        slices = set(facts[part.path].accepted)
        for side, span in (("a", (MIN_INSTANT, at - 1)), ("b", (at, MAX_INSTANT))):
            name = f"{PACKED_PART if packed else REST_PART}-{tag}-{number:04d}{side}.parquet"
            unit = writing.unit(fact, slices, span, folder, name, packed=packed)
            assert unit is not None, part
            units.append(unit)
    try:
        done = source.engine.run(rewrite, units, "split", sum(part.size for part in parts))
        written = [one.part for one in done if one.part is not None]
        assert sum(part.rows for part in written) == sum(part.rows for part in parts), "no row is lost"
        replace_parts(acceptor, parts, facts, written, tag, folder, now)
    finally:
        packing_folder.close()
