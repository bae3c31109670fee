"""What the gate decided for each record of a slice, read back from raw and quarantine.

It only reads, and never guesses. Duplicates leave no row, so a record is called a duplicate only if no other
outcome is possible. Where rows have expired, or left quarantine to be decided again, the ledger's counts may
still settle it; otherwise the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.config import Stream
from tidemill.formats.arrays import Bytes, Ints
from tidemill.formats.decide import id_of
from tidemill.formats.decode import decode
from tidemill.model.errors import InputError
from tidemill.model.slices import RecordOutcome, SliceEntry
from tidemill.raw.part_names import batch_of, is_shared
from tidemill.storage.bucket_path import local_copy
from tidemill.storage.tables.parts import read_part
from tidemill.storage.tables.snapshot import Part, Snapshot

UNKNOWN: Final = "unknown"
KINDS: Final = (UNKNOWN, *(outcome.value for outcome in RecordOutcome))
READ_BYTES: Final = 64 << 20  # of a slice, read to find the ids of records that neither table has
_CHUNK: Final = 1 << 20
_REFUSED: Final = ["line", "outcome", "reason", "detail", "event_id", "content_hash", "accepted_hash"]


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions for a slice with `size` records, the first of which is line 1."""

    kinds: Bytes  # per record, positions in KINDS
    ids: pa.StringArray  # per record; null if unknown
    refused: pa.Table  # rows of quarantine, by line
    lines: Ints  # of those
    code: str | None  # code of rejected ones without a row in quarantine, if only one is possible
    accepted_rows: int  # found in raw

    @property
    def size(self) -> int:
        return int(self.kinds.size)

    @property
    def whole(self) -> bool:
        """Whether every record has an outcome, and every refused one its row."""
        return not self.unknown and self.refused.num_rows == int(np.count_nonzero(self.kinds > _DUPLICATE))

    @property
    def unknown(self) -> int:
        return int(np.count_nonzero(self.kinds == _UNKNOWN))

    @property
    def nbytes(self) -> int:
        return int(self.kinds.nbytes + self.ids.nbytes + self.refused.nbytes + self.lines.nbytes)


_UNKNOWN: Final = KINDS.index(UNKNOWN)
_ACCEPTED: Final = KINDS.index(RecordOutcome.ACCEPTED)
_DUPLICATE: Final = KINDS.index(RecordOutcome.DUPLICATE)


def read_decisions(
    warehouse: Path, stream: Stream, entry: SliceEntry, raw: Snapshot | None, quarantine: Snapshot | None
) -> Decisions:
    """Read the decisions for a slice that went through the gate. Costs what its batch and its file hold, not
    what the tables do."""
    kinds = np.zeros(entry.counts.records, np.uint8)
    ids: list[str | None] = [None] * kinds.size
    accepted = _accepted(raw, entry)
    refused = _refused(quarantine, entry)
    lines = refused.column("line").to_numpy()
    kinds[accepted.column("line").to_numpy() - 1] = _ACCEPTED
    kinds[lines - 1] = [KINDS.index(name) for name in refused.column("outcome").to_pylist()]
    for table in (accepted, refused):
        named = zip(table.column("line").to_pylist(), table.column("event_id").to_pylist(), strict=True)
        for line, name in named:
            ids[line - 1] = name or None  # a stream without a gate has no ids
    left = _left(entry, accepted.num_rows, refused)
    if len(left) == 1:
        kinds[kinds == _UNKNOWN] = KINDS.index(next(iter(left)))
    if stream.gate == "event_id":
        nameless = np.array([i for i, name in enumerate(ids) if name is None], np.int64)
        _name(warehouse, stream, entry, nameless, ids)
    return Decisions(
        kinds=kinds,
        ids=pa.array(ids, pa.string()),
        refused=refused,
        lines=lines,
        code=_only_code(entry, refused),
        accepted_rows=accepted.num_rows,
    )


def _left(entry: SliceEntry, accepted: int, refused: pa.Table) -> dict[str, int]:
    """How many records of each outcome are without a row, by the counts of the ledger. Duplicates never have
    one; others lack one only if rows have expired or were taken out of quarantine."""
    found = refused.column("outcome").to_pylist()
    counts = entry.counts
    left = {
        RecordOutcome.ACCEPTED.value: counts.accepted - accepted,
        RecordOutcome.DUPLICATE.value: counts.duplicate,
        RecordOutcome.CONFLICT.value: counts.conflict - found.count(RecordOutcome.CONFLICT.value),
        RecordOutcome.REJECTED.value: counts.rejected - found.count(RecordOutcome.REJECTED.value),
    }
    return {name: number for name, number in left.items() if number}


def _only_code(entry: SliceEntry, refused: pa.Table) -> str | None:
    found = refused.column("reason").to_pylist()
    left = [code for code, number in entry.counts.rejects.items() if number > found.count(code)]
    return left[0] if len(left) == 1 else None


def _accepted(raw: Snapshot | None, entry: SliceEntry) -> pa.Table:
    """The accepted rows of a slice. They are in parts that are named for its batch until they are packed,
    then in packed parts of the days that the slice has rows of."""
    found = [pa.table({"line": pa.array([], pa.int64()), "event_id": pa.array([], pa.string())})]
    if raw is not None and entry.batch is not None and entry.counts.accepted:
        parts = _parts(raw, entry)
        of_batch = [part for part in parts if batch_of(part) == entry.batch]
        found += _rows(raw, of_batch, entry, ["line", "event_id"])
        if sum(table.num_rows for table in found) < entry.counts.accepted and entry.observed is not None:
            span = entry.observed
            made = [part for part in parts if is_shared(part)]
            made = [part for part in made if part.may_hold("event_time", span.start, span.end - 1)]
            found += _rows(raw, made, entry, ["line", "event_id"])
    return pa.concat_tables(found).combine_chunks()


def _refused(quarantine: Snapshot | None, entry: SliceEntry) -> pa.Table:
    kinds = [pa.int64(), *(pa.string() for _ in _REFUSED[1:])]
    found = [pa.schema(list(zip(_REFUSED, kinds, strict=True))).empty_table()]
    if quarantine is not None and entry.counts.conflict + entry.counts.rejected:
        arrived = entry.slice.arrival
        parts = [part for part in _parts(quarantine, entry) if part.may_hold("arrival", arrived, arrived)]
        found += _rows(quarantine, parts, entry, _REFUSED)
    return pa.concat_tables(found).combine_chunks().sort_by("line")


def _parts(snapshot: Snapshot, entry: SliceEntry) -> list[Part]:
    return snapshot.select(ranges={"slice": (entry.id, entry.id)})


def _rows(
    snapshot: Snapshot, parts: Sequence[Part], entry: SliceEntry, columns: Sequence[str]
) -> list[pa.Table]:
    found = []
    for path in snapshot.paths(parts):
        rows = read_part(path, ["slice", *columns], dictionary=["slice"])
        of_slice = rows.filter(pc.equal(rows.column("slice"), entry.id))
        found.append(of_slice.select(list(columns)))
    return found


def _name(warehouse: Path, stream: Stream, entry: SliceEntry, offsets: Ints, ids: list[str | None]) -> None:
    """Ids of the records at these positions (from 0), as far as the slice shows them."""
    new = entry.slice
    try:
        file = local_copy(warehouse / new.path)
    except OSError:  # `verify` reports it
        return
    records = decode(
        file,
        new.format,
        new.codec,
        stream.csv,
        stream.json_rows,
        chunk_bytes=_CHUNK,
        types={name: field.type for name, field in stream.fields.items()},
    )
    done = size = at = 0
    while at < offsets.size and size < READ_BYTES:
        try:
            chunk = next(records, None)
        except InputError:  # the file is damaged, which `verify` reports
            return
        if chunk is None:
            return
        size += chunk.data.size
        count = chunk.starts.size
        while at < offsets.size and offsets[at] < done + count:
            offset = int(offsets[at])
            start, end = chunk.starts[offset - done], chunk.ends[offset - done]
            ids[offset] = id_of(chunk.data[start:end].tobytes(), stream.identity)
            at += 1
        done += count
