"""What `recover` does when the log of landings has lost lines that neither the state nor the copy of the log
has: facts are restored from the slices themselves and from the parts of raw and quarantine, and the rest is
listed.

The parts name slices with their outcomes, and their rows say when each slice arrived. What only the log knew
(source, name, declared bounds, the window of a gateway) is lost, and reported.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.stored_slice import content_digest, content_size
from tidemill.ingest.expiry_log import RAW, Expiry
from tidemill.ingest.interrupted_landings import unnoted_slices
from tidemill.ingest.retraction_log import RetractionLine, line_of
from tidemill.model.damage import Damage, FileKind
from tidemill.model.errors import DamageError, StorageError
from tidemill.model.slices import (
    CONTENT_AT_RECOVERY,
    RECOVERED,
    Codec,
    Format,
    NewSlice,
    SliceEntry,
    id_of,
)
from tidemill.model.time import DAY, format_instant, parse_instant
from tidemill.raw.part_names import is_expired_tombstone
from tidemill.raw.recovered_batches import footers, held_facts
from tidemill.storage import layout
from tidemill.storage.bucket_path import local_copy
from tidemill.storage.tables import log as table_log
from tidemill.storage.tables.parts import read_part
from tidemill.storage.tables.table import Table

if TYPE_CHECKING:
    from tidemill.pipeline.workers import Workers

_SOURCE: Final = "file"
_MOST_NAMED: Final = 5  # slices that a message lists


@dataclass(frozen=True, slots=True)
class SalvagedLandings:
    """The ledger with the slices that the log does not know, at their offsets; and what is not known of
    them."""

    entries: Sequence[SliceEntry]
    lost: Sequence[Damage]


@dataclass(slots=True)
class _FoundSlice:
    """One slice, as found in parts and files."""

    id: str
    stream: str
    path: Path | None = None
    arrival: int | None = None
    retried: int = 0
    sources: set[str] = field(default_factory=set)  # of its stream


def salvage(workers: Workers, entries: Sequence[SliceEntry], *, certain: bool) -> SalvagedLandings:
    """With `certain`, no line of the log is known to be lost: then a file that no part names was never
    acknowledged."""
    known = {entry.id for entry in entries}
    named = {id_: found for id_, found in _named(workers).items() if id_ not in known}
    if certain and not named:
        return SalvagedLandings(entries, ())
    for path in unnoted_slices(workers.root):
        id_ = path.name.partition(".")[0]
        if id_ not in known:
            named.setdefault(id_, _FoundSlice(id_, path.parent.parent.name)).path = path
    if not named:
        return SalvagedLandings(entries, ())
    _read_arrivals(workers, named)
    slices = [(_slice(workers.root, found), found.retried) for found in named.values()]
    return SalvagedLandings(_merged(entries, slices), list(_losses(workers, slices)))


def _named(workers: Workers) -> dict[str, _FoundSlice]:
    """The slices that parts of raw and quarantine name."""
    named: dict[str, _FoundSlice] = {}
    for stream in workers.project.streams:
        sources: set[str] = set()
        for path in _parts(workers, stream):
            try:
                of_part = footers(path)
            except DamageError:
                continue  # it is set aside later, and its slices are decided again
            for footer in of_part:
                sources.update(clock.source for clock in footer.clocks)
                for one in footer.slices:
                    found = named.setdefault(one.id, _FoundSlice(one.id, stream, sources=sources))
                    found.retried = max(found.retried, one.retried)
    return named


def _parts(workers: Workers, stream: str) -> Iterator[str]:
    for folder in (layout.raw(workers.root, stream), layout.quarantine(workers.root, stream)):
        try:
            table = Table.existing(folder)
        except DamageError:
            continue
        if table is not None:
            yield from table.snapshot().paths()


def _read_arrivals(workers: Workers, named: dict[str, _FoundSlice]) -> None:
    ids = pa.array(sorted(named), pa.string())
    for stream in workers.project.streams:
        for path in _parts(workers, stream):
            try:
                rows = read_part(path, ["slice", "arrival"])
            except DamageError:
                continue
            of_slices = rows.filter(pc.is_in(rows.column("slice").cast(pa.string()), ids))
            for row in of_slices.group_by("slice").aggregate([("arrival", "min")]).to_pylist():
                found = named[row["slice"]]
                arrival = int(row["arrival_min"].timestamp() * 1_000_000)
                found.arrival = arrival if found.arrival is None else min(arrival, found.arrival)


def _slice(root: Path, found: _FoundSlice) -> NewSlice:
    path = found.path
    if path is None:
        arrival = found.arrival or 0
        file = f"{layout.slices_of_day(found.stream, arrival)}/{found.id}.{Format.NDJSON.value}"
        format_, codec, size = Format.NDJSON, Codec.NONE, 0
    else:
        file = path.relative_to(root).as_posix()
        format_, codec = _kinds(path)
        size = content_size(local_copy(path))
        arrival = _by_file(path) if found.arrival is None else found.arrival
    source = next(iter(found.sources)) if len(found.sources) == 1 else _SOURCE
    new = NewSlice(found.id, found.stream, source, RECOVERED, format_, codec, file, size, arrival)
    if path is None:
        return new
    digest = content_digest(local_copy(path))
    if id_of(new, digest) == new.id:
        return new
    return replace(new, metadata=json.dumps({CONTENT_AT_RECOVERY: digest}))


def _kinds(path: Path) -> tuple[Format, Codec]:
    _, format_, *codec = path.name.split(".")
    return Format(format_), Codec(codec[0]) if codec else Codec.NONE


def _by_file(path: Path) -> int:
    """The arrival of a slice by its file: when it was written, limited to the day of its folder."""
    day = parse_instant(f"{path.parent.name}T00:00:00Z")
    return min(max(path.stat().st_mtime_ns // 1000, day), day + DAY - 1)


def _merged(entries: Sequence[SliceEntry], slices: Sequence[tuple[NewSlice, int]]) -> list[SliceEntry]:
    """The ledger, with found slices inserted by arrival; known ones stay in their order. A slice that was
    tried again has an offset for each try."""
    latest, keys = -(1 << 63), []
    for entry in entries:
        latest = max(latest, entry.slice.arrival)
        keys.append(latest)
    merged: list[SliceEntry] = []
    shift = begun = 0
    for new, retried in sorted(slices, key=lambda one: (one[0].arrival, one[0].id)):
        end = bisect_right(keys, new.arrival)
        merged += [replace(entry, seq=entry.seq + shift) for entry in entries[begun:end]]
        begun, shift = max(begun, end), shift + 1 + retried
        merged.append(SliceEntry((merged[-1].seq if merged else 0) + 1 + retried, new, retried=retried))
    return merged + [replace(entry, seq=entry.seq + shift) for entry in entries[begun:]]


def _losses(workers: Workers, slices: Sequence[tuple[NewSlice, int]]) -> Iterator[Damage]:
    """By stream: which slices the log did not know, and which of their facts are guessed or unknown."""
    file = f"{layout.SLICES}/{layout.LANDINGS}"
    for stream in sorted({new.stream for new, _ in slices}):
        of_stream = [new for new, _ in slices if new.stream == stream]
        gone = [new for new in of_stream if not (workers.root / new.path).exists()]
        unsure = [new for new in of_stream if new.metadata is not None]
        reason = (
            f"the landings of {_listed(of_stream)} are lost: these slices were found on disk or in raw again;"
            " their sources, names, metadata and how often they landed are not known"
        )
        if unsure:
            reason += f"; declared bounds or the windows of gateways are not known of {_listed(unsure)}"
        if gone:
            reason += f"; the files of {_listed(gone)} are missing"
        yield Damage(file, FileKind.SLICE_LOG, stream, reason)


def _listed(slices: Sequence[NewSlice]) -> str:
    names = ", ".join(sorted(new.id[:12] for new in slices)[:_MOST_NAMED])
    more = len(slices) - _MOST_NAMED
    return f"{len(slices)} slices ({names}{f' and {more} more' if more > 0 else ''})"


# -- retractions and expiries that only the tables know of


def forgotten_retractions(
    workers: Workers, entries: Sequence[SliceEntry], lines: Sequence[RetractionLine]
) -> list[RetractionLine]:
    """Retractions that the log of raw shows and the log of retractions has lost: without them the slices
    would count again."""
    by_id, known = {entry.id: entry for entry in entries}, {line.act.slice for line in lines}
    found: dict[str, RetractionLine] = {}
    for stream in workers.project.streams:
        root = layout.raw(workers.root, stream)
        for version in sorted(table_log.entries(root)) if layout.table_log(root).is_dir() else ():
            try:
                commit = table_log.read_commit(root, version)
            except StorageError:
                continue
            entry = by_id.get(commit.info.get("retracted", ""))
            if entry is not None and entry.id not in known and entry.id not in found:
                at = max((at for at in commit.removed_at.values() if at), default=entry.slice.arrival)
                number = len(lines) + len(found) + 1
                found[entry.id] = line_of(number, entry, "the reason is lost, with its log", at, (), (), {})
    return list(found.values())


def forgotten_expiries(workers: Workers, now: int) -> list[Expiry]:
    """Expiries that raw shows and the log of expiries has lost."""
    found: list[Expiry] = []
    for stream in workers.project.streams:
        table = Table.existing(layout.raw(workers.root, stream))
        if table is None:
            continue
        snapshot = table.snapshot()
        gone = snapshot.paths([part for part in snapshot.parts if is_expired_tombstone(part)])
        facts = [fact for path in gone for fact in held_facts(path)]
        ends = [last + 1 for fact in facts for _, last in fact.bounds.values()]
        sealed = workers.warehouse.expiries.seal(stream)
        if ends and (sealed is None or sealed < max(ends)):
            found.append(Expiry(stream, RAW, max(ends), now))
    return found


def lost_acts(retractions: Sequence[RetractionLine], expiries: Sequence[Expiry]) -> Iterator[Damage]:
    top = layout.SLICES
    for line in retractions:
        reason = f"the retraction of slice {line.act.slice[:12]} is lost; raw says that it was retracted"
        yield Damage(f"{top}/{layout.RETRACTIONS}", FileKind.SLICE_LOG, line.act.stream, reason)
    for act in expiries:
        reason = f"raw before {format_instant(act.before)} has expired, and the line about it is lost"
        yield Damage(f"{top}/{layout.EXPIRIES}", FileKind.SLICE_LOG, act.stream, reason)
