"""Every arrival of one event: where the gate accepted it, and which records of other slices repeat it.

It only reads, and decides nothing. The accepted one is found in the runs of the gate, conflicts and rejected
ones in quarantine. A duplicate leaves no row, so slices that have some, and those that wait for the gate, are
read again, within a budget of bytes; what was not read is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.decode import decode
from tidemill.formats.key_runs import hash_keys
from tidemill.formats.read import read_chunk
from tidemill.formats.read_plan import ReadPlan, plan_for
from tidemill.formats.stored_slice import content_bytes
from tidemill.model.errors import InputError, StorageError
from tidemill.model.slices import Codec, CountedAs, Format, RecordOutcome, SliceEntry, SliceStatus
from tidemill.raw.accept.run_files import IdRun, read_run
from tidemill.raw.footers import declared_in
from tidemill.raw.part_payloads import PartPayloads
from tidemill.raw.tables import QUARANTINE, RAW
from tidemill.storage import layout
from tidemill.storage.bucket_path import local_copy
from tidemill.storage.tables.parts import open_part, read_part

if TYPE_CHECKING:
    from tidemill.config import Stream
    from tidemill.ingest.warehouse import Warehouse
    from tidemill.storage.tables.snapshot import Snapshot

SEARCHED_BYTES: Final = 128 << 20  # bytes of slices that are read again for duplicates
PENDING: Final = "pending"
_CHUNK: Final = 8 << 20
_TRIES: Final = 5  # runs may be merged meanwhile: then the current ones are read
_ROW: Final = RAW.names


@dataclass(frozen=True, slots=True)
class Arrival:
    """One record with the id, and what the gate decided for it."""

    entry: SliceEntry
    line: int
    tenant: str | None  # None: unknown
    outcome: str  # accepted, duplicate, conflict, rejected; pending until the gate has decided
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class SearchedSlices:
    """Slices that were read again, of those that may hold a duplicate or wait for the gate."""

    slices: int = 0
    of: int = 0
    bytes: int = 0

    @property
    def complete(self) -> bool:
        return self.slices == self.of


@dataclass(frozen=True, slots=True)
class EventArrivals:
    """All arrivals of an event id in one stream, for the given tenants, in ledger order."""

    arrivals: Sequence[Arrival] = ()
    quarantine: pa.Table = field(default_factory=QUARANTINE.empty_table)
    searched: SearchedSlices = field(default_factory=SearchedSlices)


def arrivals_of(
    warehouse: Warehouse,
    stream: Stream,
    event_id: str,
    tenants: Sequence[str],
    *,
    whole: bool,
    budget: int = SEARCHED_BYTES,
) -> EventArrivals:
    """The arrivals for `tenants`. With `whole`, also records in quarantine that name no tenant, and slices
    are read again even if no tenant is known to have the event."""
    accepted = list(_accepted(warehouse, stream, event_id, tenants))
    held = _in_quarantine(warehouse.snapshot("quarantine", stream.name), event_id, tenants, whole=whole)
    refused = [_refused(warehouse, row) for row in held.select(_REFUSED).to_pylist()]
    known = {(one.entry.id, one.line) for one in (*accepted, *refused) if one is not None}
    first = min((one.entry.seq for one in accepted), default=0)
    repeated, searched = _repeated(warehouse, stream, event_id, tenants, known, first, budget)
    found = [*accepted, *(one for one in refused if one is not None), *repeated]
    found.sort(key=lambda one: (one.entry.seq, one.line))
    return EventArrivals(found, held, searched)


# -- the accepted one, by the memory of the gate


def _accepted(
    warehouse: Warehouse, stream: Stream, event_id: str, tenants: Sequence[str]
) -> Iterator[Arrival]:
    if stream.gate != "event_id" or not tenants:
        return
    for seq, line, tenant in sorted(_in_runs(warehouse, stream.name, event_id, tenants)):
        entry = warehouse.state.slice_at(seq)
        if entry is not None:
            yield Arrival(entry, line, tenant, RecordOutcome.ACCEPTED.value)


def _in_runs(
    warehouse: Warehouse, stream: str, event_id: str, tenants: Sequence[str]
) -> list[tuple[int, int, str]]:
    codes = pa.DictionaryArray.from_arrays(
        pa.array(np.arange(len(tenants), dtype=np.int32)), pa.array(tenants, pa.string())
    )
    highs, _ = hash_keys(codes, pa.array([event_id] * len(tenants), pa.string()))
    folder = layout.gate(warehouse.root, stream)
    for _ in range(_TRIES):
        try:
            return [
                found
                for name in warehouse.state.runs(stream)
                for found in _in_run(read_run(folder / name), highs, event_id, tenants)
            ]
        except FileNotFoundError:
            continue
    raise StorageError(
        f"the index of accepted ids of {stream} changes faster than it can be read",
        hint="try again; if it stays, `tidemill repair --explain` says what is damaged",
    )


def _in_run(
    run: IdRun, highs: np.ndarray, event_id: str, tenants: Sequence[str]
) -> Iterator[tuple[int, int, str]]:
    """Find an entry by hash and confirm it by the text of the key."""
    for tenant, high in zip(tenants, highs.tolist(), strict=True):
        text = f"{tenant}\0{event_id}".encode()
        for row in run.within(high, high + 1).table().to_pylist():
            if row["key"] == text:
                yield row["seq"], row["line"], tenant


# -- what was refused

_REFUSED: Final = ["slice", "line", "tenant", "outcome", "reason", "detail"]


def _in_quarantine(
    snapshot: Snapshot | None, event_id: str, tenants: Sequence[str], *, whole: bool
) -> pa.Table:
    """Rows of quarantine that name the event."""
    found = [QUARANTINE.empty_table()]
    for path in snapshot.paths(snapshot.select()) if snapshot is not None else ():
        rows = read_part(path, where=pc.field("event_id") == event_id)
        if rows.num_rows:
            found.append(rows.select(QUARANTINE.names).cast(QUARANTINE))
    held = pa.concat_tables(found).combine_chunks()
    named = pc.is_in(held.column("tenant"), pa.array(list(tenants), pa.string()))
    visible = pc.or_(named, pc.is_null(held.column("tenant"))) if whole else named
    return held.filter(visible).sort_by(
        [("arrival", "ascending"), ("slice", "ascending"), ("line", "ascending")]
    )


def _refused(warehouse: Warehouse, row: dict[str, object]) -> Arrival | None:
    entry = warehouse.state.slice(str(row["slice"]))
    if entry is None:
        return None
    texts = {name: None if row[name] is None else str(row[name]) for name in ("tenant", "reason", "detail")}
    return Arrival(
        entry, int(str(row["line"])), texts["tenant"], str(row["outcome"]), texts["reason"], texts["detail"]
    )


# -- duplicates, and what waits for the gate


def _repeated(
    warehouse: Warehouse,
    stream: Stream,
    event_id: str,
    tenants: Sequence[str],
    known: set[tuple[str, int]],
    first: int,
    budget: int,
) -> tuple[list[Arrival], SearchedSlices]:
    """Search slices after the accepting one first: most repeats come soon after it."""
    if stream.gate != "event_id":
        return [], SearchedSlices()
    state = warehouse.state
    candidates = [
        *state.slices(stream.name, SliceStatus.ACCEPTED, outcome=CountedAs.DUPLICATE),
        *state.slices(stream.name, SliceStatus.PENDING),
    ]
    candidates.sort(key=lambda entry: (entry.seq < first, entry.seq))
    plan = _id_plan(plan_for(stream, warehouse.project.limits))
    found: list[Arrival] = []
    slices = size = 0
    for entry in candidates:
        if size + entry.slice.size > budget and slices:
            break
        slices, size = slices + 1, size + entry.slice.size
        for line, tenant in _lines_with(warehouse.root, stream, plan, entry, event_id):
            if (entry.id, line) in known or tenant not in tenants:
                continue
            decided = entry.status is SliceStatus.ACCEPTED
            outcome = RecordOutcome.DUPLICATE.value if decided else PENDING
            found.append(Arrival(entry, line, tenant, outcome))
    return found, SearchedSlices(slices, len(candidates), size)


def _id_plan(plan: ReadPlan) -> ReadPlan:
    """A plan that reads only tenant and id, whatever else is wrong with a record."""
    used = {*plan.identity, plan.tenant_column}
    return replace(
        plan,
        rules=tuple(
            replace(rule, required=False) if rule.name not in used else rule
            for rule in plan.rules
            if rule.name in used
        ),
        type_column=None,
        time_column=None,
        time_parser=None,
        dimensions=(),
        measures=(),
        delta=None,
        messages=None,
        skew_past=None,
        skew_future=None,
    )


def _lines_with(
    root: Path, stream: Stream, plan: ReadPlan, entry: SliceEntry, event_id: str
) -> Iterator[tuple[int, str]]:
    """Lines of a slice whose record has the id, and the tenant of each."""
    new = entry.slice
    try:
        path = local_copy(root / new.path)
    except OSError:  # `verify` reports it
        return
    if not new.size or _surely_without(path, new.format, new.codec, event_id):
        return
    types = {name: each.type for name, each in stream.fields.items()}
    line = 1
    try:
        for chunk in decode(
            path, new.format, new.codec, stream.csv, stream.json_rows, chunk_bytes=_CHUNK, types=types
        ):
            columns = read_chunk(plan, chunk, new.arrival).columns
            same = np.flatnonzero(
                pc.equal(columns.column("event_id"), event_id).to_numpy(zero_copy_only=False)
            )
            rows, names = columns.column("row").to_numpy(), columns.column("tenant").cast(pa.string())
            for at in same.tolist():
                yield line + int(rows[at]), names[at].as_py()
            line += int(chunk.starts.size)
    except InputError:  # the file is damaged, which `verify` reports
        return


def _surely_without(path: Path, format: Format, codec: Codec, event_id: str) -> bool:
    """Whether the bytes of a text file show that no record has the id: they do not contain it, and nothing is
    escaped. A number may be spelled in several ways, so an id that looks like one is always read."""
    if codec is not Codec.NONE or format not in (Format.NDJSON, Format.JSON) or not event_id.isascii():
        return False
    if event_id[:1] in "-0123456789" or "\0" in event_id:
        return False
    try:
        content = content_bytes(path)
    except OSError:
        return True
    return event_id.encode() not in content and b"\\" not in content


# -- the row


def row_of(snapshot: Snapshot | None, arrival: Arrival) -> dict[str, object] | None:
    """The row of raw of an accepted arrival; None if it has expired. Row groups are found by slice and line,
    and only the right one is read completely."""
    if snapshot is None:
        return None
    ranges = {"slice": (arrival.entry.id, arrival.entry.id), "tenant": (arrival.tenant, arrival.tenant)}
    observed = arrival.entry.observed
    for part in snapshot.select(ranges=ranges):
        if observed is not None and not part.may_hold("event_time", observed.start, observed.end - 1):
            continue
        with open_part(f"{snapshot.root}/{part.path}", ["slice"]) as file:
            for group in range(file.num_row_groups):
                positions = file.read_row_group(group, columns=["slice", "line"])
                matches = pc.and_(
                    pc.equal(positions.column("slice").cast(pa.string()), arrival.entry.id),
                    pc.equal(positions.column("line"), arrival.line),
                )
                if pc.any(matches).as_py():
                    payloads = PartPayloads(declared_in(file, f"{snapshot.root}/{part.path}"))
                    names = list(dict.fromkeys([*_ROW, *payloads.names]))
                    rows = payloads.put_back(file.read_row_group(group, columns=names).filter(matches))
                    found: dict[str, object] = rows.select(_ROW).to_pylist()[0]
                    return found
    return None
