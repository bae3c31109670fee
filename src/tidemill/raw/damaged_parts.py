"""Damaged parts of raw or quarantine: the slices whose rows they held go through the gate again.

It works like a retraction, with the same log, order and crash safety, but no slice is retracted, so the
outcome is the same as before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.ingest.retraction_log import RetractionLog, sent_back
from tidemill.model.errors import DamageError
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.raw.batch_removal import readings_left
from tidemill.raw.footers import BatchFooter, packed_footer
from tidemill.raw.part_names import batch_of, is_expired_tombstone, is_shared
from tidemill.raw.recovered_batches import footers, held_facts, part_facts
from tidemill.storage import layout
from tidemill.storage.tables.table import Table

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse
    from tidemill.storage.tables.snapshot import Part


@dataclass(frozen=True, slots=True)
class SendBack:
    """The batches with rows in damaged parts, and their slices in ledger order."""

    stream: str
    batches: Sequence[str]
    slices: Sequence[SliceEntry]
    expired: Sequence[str] = ()  # slices with expired rows: they cannot go back


def plan_send_back(
    warehouse: Warehouse, stream: str, raw: Collection[str], quarantine: Collection[str]
) -> SendBack:
    """For damaged parts, by their paths in the tables. Changes nothing, and does not read those parts."""
    entries = warehouse.state.slices(stream)
    damaged = _parts(warehouse, "raw", stream, raw)
    both = [*damaged, *_parts(warehouse, "quarantine", stream, quarantine)]
    batches = {batch for part in both if (batch := batch_of(part))}
    # it has several batches: the other parts record which
    if any(batch_of(part) is None for part in damaged):
        batches |= _unrecorded(warehouse, stream, {part.path for part in damaged}, entries)
    members = [e for e in entries if e.batch in batches and e.status is not SliceStatus.RETRACTED]
    expired = [entry.id for entry in members if _is_expired(warehouse, entry)]
    is_lasting = any(is_expired_tombstone(part) for part in damaged)
    if is_lasting or (not members and _had_expired(warehouse, stream, damaged)):
        expired = [entry.id for entry in members or entries]
    return SendBack(stream, sorted({str(entry.batch) for entry in members}), members, expired)


def _is_expired(warehouse: Warehouse, entry: SliceEntry) -> bool:
    """Whether events of its time have expired: the gate would refuse them now."""
    sealed = warehouse.expiries.seal(entry.slice.stream)
    return sealed is not None and entry.observed is not None and entry.observed.start < sealed


def _parts(warehouse: Warehouse, kind: layout.TableKind, stream: str, paths: Collection[str]) -> list[Part]:
    table = warehouse.existing(kind, stream) if paths else None
    known = table.snapshot().by_path if table is not None else {}
    return [known[path] for path in sorted(paths) if path in known]


def _unrecorded(
    warehouse: Warehouse, stream: str, damaged: Collection[str], entries: Sequence[SliceEntry]
) -> set[str]:
    """Batches of the ledger for which the intact parts lack rows or records."""
    table = Table.existing(layout.raw(warehouse.root, stream))
    assert table is not None, stream
    rows: dict[str, int] = {}
    recorded: set[str] = set()
    for part in table.snapshot().parts:
        if part.path in damaged:
            continue
        path = str(table.root / part.path)
        recorded.update(footer.batch for footer in footers(path))
        for fact in held_facts(path):
            for name, count in fact.accepted.items():
                rows[name] = rows.get(name, 0) + count
    return {
        str(entry.batch)
        for entry in entries
        if entry.batch is not None
        and (rows.get(entry.id, 0) < entry.counts.accepted or entry.batch not in recorded)
    }


def lost_batches(raw: Table, damaged: Collection[str]) -> set[str]:
    """Batches with rows or records in damaged parts of raw (by path), found from the intact parts: for
    `recover`, which has no ledger yet."""
    recorded: dict[str, int] = {}
    held: dict[str, int] = {}
    batch: dict[str, str] = {}
    shared: set[str] = set()
    lost: set[str] = set()
    for part in raw.snapshot().parts:
        path = str(raw.root / part.path)
        if part.path in damaged:
            lost |= {name} if (name := batch_of(part)) else set()
            continue
        for fact in part_facts(path):
            assert isinstance(fact.footer, BatchFooter), path
            for summary in fact.footer.slices:
                batch[summary.id] = fact.footer.batch
            for name, count in fact.accepted.items():
                recorded[name] = recorded.get(name, 0) + count
        for fact in held_facts(path):
            for name, count in fact.accepted.items():
                held[name] = held.get(name, 0) + count
        if is_shared(part):
            shared.update(packed_footer(path).batches)
    lost |= {batch[name] for name, count in recorded.items() if held.get(name, 0) < count and name in batch}
    return lost | (shared - set(batch.values()))


def have_expired(raw: Table, batches: Collection[str], damaged: Collection[str]) -> bool:
    """Whether some rows of these batches have expired, by the parts that are intact: then they cannot be
    decided again."""
    batch: dict[str, str] = {}
    gone: set[str] = set()
    for part in raw.snapshot().parts:
        if part.path in damaged:
            continue
        path = str(raw.root / part.path)
        batch |= {one.id: footer.batch for footer in footers(path) for one in footer.slices}
        if is_expired_tombstone(part):
            gone |= {name for fact in held_facts(path) for name, count in fact.accepted.items() if count}
    return any(batch.get(name) in batches for name in gone)


def _had_expired(warehouse: Warehouse, stream: str, damaged: Sequence[Part]) -> bool:
    """The same for damaged parts of a stream whose batches the state does not know."""
    raw = Table.existing(layout.raw(warehouse.root, stream)) if damaged else None
    if raw is None:
        return False
    paths = {part.path for part in damaged}
    with suppress(DamageError):  # others are damaged, too
        return have_expired(raw, lost_batches(raw, paths), paths)
    return False


def plan_send_back_all(warehouse: Warehouse, stream: str) -> SendBack:
    """For a table of raw or quarantine that is lost as a whole."""
    entries = warehouse.state.slices(stream)
    members = [e for e in entries if e.batch is not None and e.status is not SliceStatus.RETRACTED]
    expired = [entry.id for entry in members if _is_expired(warehouse, entry)]
    return SendBack(stream, sorted({str(entry.batch) for entry in members}), members, expired)


def begin_send_back(warehouse: Warehouse, plan: SendBack, reason: str, now: int) -> None:
    """Make it durable that the slices go back. The caller must hold the tick lock, then set the damaged files
    aside (parts whose files are missing leave the tables) and finish the step, as any round would after a
    crash. One that a crash interrupted is not begun again.
    """
    acts = RetractionLog(warehouse.root)
    if acts.unfinished(warehouse.state, plan.stream) is None:
        readings: Mapping[str, str] = {}
        with suppress(DamageError):  # the log of the table is damaged
            raw = Table.existing(layout.raw(warehouse.root, plan.stream))
            readings = readings_left(raw, plan.batches) if raw is not None else {}
        line = sent_back(plan.stream, reason, now, plan.batches, plan.slices, readings)
        acts.append(warehouse.state, line)
