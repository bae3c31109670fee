"""Decodes accepted slices again, for a comparison with the rows that were made of them.

Many small slices are read in one go: a chunk of records costs about a millisecond, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.config.stream import Csv, Json
from tidemill.formats.arrays import Ints, RecordChunk, Words
from tidemill.formats.arrow import one, string_buffers
from tidemill.formats.columns import strings
from tidemill.formats.decode import decode
from tidemill.formats.hashing import SEED_TENANT, hash_bytes, key_lanes
from tidemill.formats.key_runs import hash_keys
from tidemill.formats.read import read_chunk
from tidemill.formats.read_plan import ReadPlan
from tidemill.model.errors import InputError
from tidemill.model.slices import SliceEntry
from tidemill.storage.bucket_path import local_copy

_CHUNK_BYTES: Final = 16 << 20
_AT_ONCE: Final = 1_000  # chunks that wait: each may map a file, and a process may have only so many maps
_LINE_END: Final = np.frombuffer(b"\n", np.uint8)


@dataclass(frozen=True, slots=True)
class AcceptedSlice:
    """A slice that was accepted, and where its file is."""

    path: str
    entry: SliceEntry
    same_reading: bool  # it was read by the current declaration; otherwise only its bytes can be compared
    # all its records that were not accepted are in quarantine; none was replayed or has expired
    quarantined: bool


@dataclass(frozen=True, slots=True)
class SliceRecords:
    """The records of a slice as they are read now."""

    payload: Words  # of all of them
    lines: Ints  # of the valid records, like the next four
    time: Ints
    key: Words
    type: Words
    content: Words
    refused: Mapping[int, tuple[str, str | None]]  # line -> reason and tenant


def text_hashes(texts: pa.Array) -> Words:
    """The hashes of strings or bytes, without nulls."""
    offsets, data = string_buffers(texts)
    return key_lanes(data, offsets, np.array([SEED_TENANT], np.uint64), np.zeros(len(texts), np.int32))[0]


def type_hashes(types: pa.Array) -> Words:
    """The hashes of event types; 0 where there is none."""
    if not pa.types.is_dictionary(types.type):
        types = types.cast(pa.string()).dictionary_encode()
    known = [
        0 if text is None else hash_bytes(text.encode(), SEED_TENANT) for text in types.dictionary.to_pylist()
    ]
    codes = types.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
    return np.array([*known, 0], np.uint64)[codes]


def read_slices(
    slices: Sequence[AcceptedSlice], plan: ReadPlan, csv: Csv | None, json: Json | None
) -> Iterator[tuple[AcceptedSlice, SliceRecords]]:
    """The records of each slice, in the order of the slices. Those that cannot be decoded are left out: their
    bytes are not those that landed, which is reported for the slice itself."""
    types = {rule.name: rule.type for rule in plan.rules}
    held: list[_Open] = []
    size = waiting = 0
    for each in slices:
        new = each.entry.slice
        open_ = _Open(each)
        held.append(open_)
        file = local_copy(each.path)
        chunks = decode(file, new.format, new.codec, csv, json, chunk_bytes=_CHUNK_BYTES, types=types)
        try:
            for chunk in chunks if new.size else ():
                if waiting == _AT_ONCE or (waiting and size + chunk.data.size > _CHUNK_BYTES):
                    _read(plan, held)
                    yield from ((done.slice, done.records()) for done in held if done is not open_)
                    held, size, waiting = [open_], 0, 0
                waiting += 1
                open_.chunks.append(chunk)
                size += chunk.data.size
        except InputError:
            held.remove(open_)
    _read(plan, held)
    yield from ((done.slice, done.records()) for done in held)


Valid = tuple[Ints, Ints, Words, Words, Words]  # lines, time, key, type, content
_NONE: Final = (np.empty(0, np.int64),) * 2 + (np.empty(0, np.uint64),) * 3


@dataclass(slots=True, eq=False)
class _Open:
    """A slice of which some chunks were read; others are waiting."""

    slice: AcceptedSlice
    chunks: list[RecordChunk] = field(default_factory=list)  # waiting
    payloads: list[Words] = field(default_factory=list)
    valid: list[Valid] = field(default_factory=list)
    refused: dict[int, tuple[str, str | None]] = field(default_factory=dict)

    def records(self) -> SliceRecords:
        if len(self.payloads) == 1:
            return SliceRecords(self.payloads[0], *self.valid[0], self.refused)
        lines, time, key, kind, content = (
            np.concatenate(columns) for columns in zip(_NONE, *self.valid, strict=True)
        )
        payload = np.concatenate([_NONE[-1], *self.payloads])
        return SliceRecords(payload, lines, time, key, kind, content, self.refused)


def _read(plan: ReadPlan, held: Sequence[_Open]) -> None:
    """Read the waiting chunks of all slices as one."""
    owners = [open_ for open_ in held for _ in open_.chunks]
    chunks = [chunk for open_ in held for chunk in open_.chunks]
    if not chunks:
        return
    counts = np.array([chunk.starts.size for chunk in chunks])
    joined = _joined(chunks, counts)
    arrivals = np.repeat(np.array([owner.slice.entry.slice.arrival for owner in owners], np.int64), counts)
    payloads = text_hashes(strings(joined.data, joined.starts, joined.ends))
    read = read_chunk(plan, joined, arrivals)
    rows, time, key, kind, content = _valid(read.columns)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    cuts = np.searchsorted(rows, bounds).tolist()
    refused = _refused(read.refused, bounds)
    for number, (first, last) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        owner, of_slice = owners[number], slice(*cuts[number : number + 2])
        line = 1 + sum(part.size for part in owner.payloads)
        owner.payloads.append(payloads[first:last])
        lines = rows[of_slice] + (line - first)
        owner.valid.append((lines, time[of_slice], key[of_slice], kind[of_slice], content[of_slice]))
        for row, why in refused.get(number, ()):
            owner.refused[line + row - first] = why
    for owner in held:
        owner.chunks.clear()


def _joined(chunks: Sequence[RecordChunk], counts: Ints) -> RecordChunk:
    """All records in one chunk. A line end between them keeps bytes of two slices from being one letter."""
    if len(chunks) == 1:
        return chunks[0]
    sizes = np.array([chunk.data.size + 1 for chunk in chunks])
    offsets = np.cumsum(sizes) - sizes
    firsts = np.cumsum(counts) - counts
    shift = np.repeat(offsets, counts)
    return RecordChunk(
        np.concatenate([part for chunk in chunks for part in (chunk.data, _LINE_END)]),
        np.concatenate([chunk.starts for chunk in chunks]) + shift,
        np.concatenate([chunk.ends for chunk in chunks]) + shift,
        broken={
            row + first: problem
            for chunk, first in zip(chunks, firsts.tolist(), strict=True)
            for row, problem in chunk.broken.items()
        },
    )


def _refused(refused: pa.Table, bounds: Ints) -> dict[int, list[tuple[int, tuple[str, str | None]]]]:
    """Row, reason and tenant of refused records, by the number of their chunk."""
    found: dict[int, list[tuple[int, tuple[str, str | None]]]] = {}
    rows = one(refused.column("row")).to_numpy()
    numbers = np.searchsorted(bounds, rows, "right") - 1
    why = refused.select(["row", "reason", "tenant"]).to_pylist()
    for number, each in zip(numbers.tolist(), why, strict=True):
        found.setdefault(number, []).append((each["row"], (each["reason"], each["tenant"])))
    return found


def _valid(columns: pa.Table) -> Valid:
    """Row instead of line."""
    rows = one(columns.column("row")).to_numpy().astype(np.int64)
    there = "event_type" in columns.column_names
    return (
        rows,
        one(columns.column("event_time")).to_numpy(),
        hash_keys(one(columns.column("tenant")), one(columns.column("event_id")))[0],
        type_hashes(one(columns.column("event_type"))) if there else np.zeros(rows.size, np.uint64),
        one(columns.column("content")).to_numpy(),
    )
