"""Compares raw and quarantine with the slices they were made from: every slice is decoded again, and its
records are compared with its rows.

Rows are ordered by time and slices by arrival, so rows are first sorted by slice into files that fit in
memory one at a time. Texts are compared by their hashes. It changes nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tidemill.config.stream import Csv, Json
from tidemill.formats.arrays import Ints, Mask, Words
from tidemill.formats.arrow import column_at, one
from tidemill.formats.declared_columns import SIZE
from tidemill.formats.key_runs import hash_keys, key_ranges
from tidemill.formats.payload_columns import columns_in, typed
from tidemill.formats.read_plan import ReadPlan
from tidemill.model.slices import RecordOutcome, Reject, SliceEntry, SliceStatus
from tidemill.model.time import MIN_INSTANT
from tidemill.raw.footers import declared_by, declared_in
from tidemill.raw.part_columns import payload_sizes
from tidemill.raw.part_payloads import PartPayloads
from tidemill.raw.quarantine import REPLAY
from tidemill.raw.slice_records import AcceptedSlice, SliceRecords, read_slices, text_hashes, type_hashes
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.files import remove_tree
from tidemill.storage.ipc import read_ipc, write_ipc
from tidemill.storage.tables.parts import open_part, read_footer, read_part

if TYPE_CHECKING:
    from tidemill.raw.accept.batch import Acceptor

ROWS_AT_ONCE: Final = 1 << 20
NO_WATERMARK: Final = -(1 << 63)
_RAW: Final = [
    "tenant",
    "event_time",
    "event_id",
    "event_type",
    "arrival",
    "watermark",
    "slice",
    "line",
    "payload",
]
_QUARANTINE: Final = ["slice", "line", "arrival", "outcome", "reason", "tenant", "payload"]

_BATCH_ROWS: Final = 16_384  # rows whose columns are compared at once
Difference = tuple[str, str, str]  # raw, quarantine or ids; where; what


def bucket_of(slice_id: str, buckets: int) -> int:
    return zlib.crc32(slice_id.encode()) % buckets


# -- rows of parts, by slice


@dataclass(frozen=True, slots=True)
class SortUnit:
    """A part of raw or quarantine whose rows are to be sorted into files."""

    path: str
    folder: str
    name: str
    buckets: int


def sort_raw(unit: SortUnit) -> Iterator[str]:
    """A kernel: write the compared columns of a raw part, one file for each bucket of slices."""
    payloads = PartPayloads(declared_by(read_footer(unit.path)))
    names = list(dict.fromkeys([*_RAW, *payloads.tops]))
    rows = read_part(unit.path, names, dictionary=["tenant", "event_type", "slice"]).combine_chunks()
    if rows.num_rows:
        yield from _sorted(unit, _facts_of_raw(payloads.put_back(rows)))


def _facts_of_raw(rows: pa.Table) -> pa.Table:
    watermark = one(rows.column("watermark").cast(pa.int64()).fill_null(NO_WATERMARK))
    return pa.table(
        {
            "slice": one(rows.column("slice").unify_dictionaries()),
            "line": one(rows.column("line")),
            "time": one(rows.column("event_time").cast(pa.int64())),
            "arrival": one(rows.column("arrival").cast(pa.int64())),
            "watermark": watermark,
            "key": hash_keys(one(rows.column("tenant")), one(rows.column("event_id")))[0],
            "type": type_hashes(one(rows.column("event_type"))),
            "payload": text_hashes(one(rows.column("payload"))),
        }
    )


def sort_quarantine(unit: SortUnit) -> Iterator[str]:
    """The same for a part of quarantine."""
    rows = read_part(unit.path, _QUARANTINE, dictionary=["slice"]).combine_chunks()
    if rows.num_rows:
        facts = rows.set_column(
            rows.schema.get_field_index("payload"),
            "payload",
            pa.array(text_hashes(one(rows.column("payload")))),
        )
        yield from _sorted(unit, facts)


def _sorted(unit: SortUnit, facts: pa.Table) -> Iterator[str]:
    names = one(facts.column("slice"))
    bucket = np.array([bucket_of(name, unit.buckets) for name in names.dictionary.to_pylist()], np.int64)
    bucket_of_row = bucket[names.indices.to_numpy(zero_copy_only=False)]
    for number in np.unique(bucket_of_row).tolist():
        rows = facts if unit.buckets == 1 else facts.filter(pa.array(bucket_of_row == number))
        write_ipc(warehouse_path(unit.folder) / f"{number:06d}-{unit.name}", rows)
        yield f"{number:06d}-{unit.name}"


# -- columns and payloads


def compare_columns(path: str) -> Iterator[Difference]:
    """A kernel: columns of a raw part that differ from its payloads, read by the declaration that the part
    names. Values that payloads lack come from the column itself, and are compared with the slice."""
    with open_part(path) as file:
        declared = declared_in(file, path)
        if declared is None:
            return
        fields = columns_in([each.column for each in declared.columns])
        payloads = PartPayloads(declared)
        names = ["slice", "line", *payloads.names, SIZE, *(each.leaf for each in declared.columns)]
        wrong: dict[str, tuple[str, int]] = {}
        for batch in file.iter_batches(_BATCH_ROWS, columns=list(dict.fromkeys(names)), use_threads=False):
            payload = payloads.of(batch)
            values = typed(fields, payload).arrays
            found = [(SIZE, batch.column(SIZE), payload_sizes(payload))]
            found += [
                (each.leaf, column_at(batch, each.path), value)
                for each, value in zip(declared.columns, values, strict=True)
            ]
            for name, has, expected in found:
                if name not in wrong and not has.equals(expected):
                    row = next(row for row in range(len(has)) if not has[row].equals(expected[row]))
                    wrong[name] = batch.column("slice")[row].as_py(), batch.column("line")[row].as_py()
    for name, (slice, line) in wrong.items():
        yield "raw", slice, f"column {name} of line {line} is not what its payload says"


# -- slices


@dataclass(frozen=True, slots=True)
class CompareUnit:
    """The slices of one bucket, and the files with their rows."""

    plan: ReadPlan
    csv: Csv | None
    json: Json | None
    checks: Sequence[AcceptedSlice]
    raw: Sequence[str]
    quarantine: Sequence[str]
    keys: str  # the file for the keys of records, accepted and not


def compare(unit: CompareUnit) -> Iterator[Difference]:
    """A kernel: the differences between rows and the records of their slices."""
    raw, held = _StoredRows(unit.raw, _NO_RAW), _StoredRows(unit.quarantine, _NO_QUARANTINE)
    plan = replace(unit.plan, dimensions=(), measures=(), sealed_before=None)
    keys: list[SliceKeys] = []
    for check, records in read_slices(unit.checks, plan, unit.csv, unit.json):
        compared = _Comparison(check, records, raw.of(check.entry.id), held.of(check.entry.id))
        yield from compared.differences()
        if plan.gated and check.same_reading:
            keys.append(compared.keys())
    if keys:
        write_ipc(warehouse_path(unit.keys), _keys_table(keys))


Rows = Mapping[str, np.ndarray]  # columns of rows of one slice, by line


class _StoredRows:
    """The rows of several slices. A slice may have few rows, so columns become arrays once for all slices."""

    def __init__(self, paths: Sequence[str], none: pa.Table) -> None:
        tables = [read_ipc(path) for path in paths]
        rows = pa.concat_tables([none, *tables]).unify_dictionaries().combine_chunks()
        names = one(rows.column("slice"))
        codes = names.indices.to_numpy(zero_copy_only=False)
        order = np.lexsort((one(rows.column("line")).to_numpy(), codes))
        self._columns = {
            name: one(rows.column(name)).to_numpy(zero_copy_only=False)[order]
            for name in rows.column_names
            if name != "slice"
        }
        self._code = {name: code for code, name in enumerate(names.dictionary.to_pylist())}
        self._starts = np.searchsorted(codes[order], np.arange(len(self._code) + 1)).tolist()

    def of(self, slice_id: str) -> Rows:
        """The columns of the rows of a slice, by line."""
        code = self._code.get(slice_id)
        start, end = (0, 0) if code is None else (self._starts[code], self._starts[code + 1])
        return {name: column[start:end] for name, column in self._columns.items()}


_NAMES: Final = pa.dictionary(pa.int32(), pa.string())
_NO_RAW: Final = pa.schema(
    [("slice", _NAMES), *((name, pa.int64()) for name in ("line", "time", "arrival", "watermark")),
     *((name, pa.uint64()) for name in ("key", "type", "payload"))]
).empty_table()  # fmt: skip
_NO_QUARANTINE: Final = pa.schema(
    [("slice", _NAMES), ("line", pa.int64()), ("arrival", pa.timestamp("us", "UTC")),
     *((name, pa.string()) for name in ("outcome", "reason", "tenant")), ("payload", pa.uint64())]
).empty_table()  # fmt: skip


@dataclass(frozen=True)
class _Comparison:
    """One slice: its records and its rows."""

    check: AcceptedSlice
    records: SliceRecords
    raw: Rows
    held: Rows

    @property
    def _id(self) -> str:
        return self.check.entry.id

    @property
    def _lines(self) -> Ints:
        return self.raw["line"]

    @property
    def _held_lines(self) -> Ints:
        return self.held["line"]

    def differences(self) -> Iterator[Difference]:
        for kind, lines, name in (("raw", self._lines, "row"), ("quarantine", self._held_lines, "record")):
            wrong = (lines < 1) | (lines > self.records.payload.size)
            if wrong.any():
                yield kind, self._id, f"has a {name} of line {lines[wrong][0]}, which the slice does not have"
                return
            again = lines[1:][lines[1:] == lines[:-1]]
            if again.size:
                yield kind, self._id, f"has line {again[0]} of the slice more than once"
        yield from self._raw_differences()
        if self.check.same_reading:
            yield from self._outcomes()
            yield from self._quarantine()

    def _raw_differences(self) -> Iterator[Difference]:
        entry, records = self.check.entry, self.records
        met = NO_WATERMARK if entry.watermark is None else entry.watermark
        differing: list[tuple[str, Mask]] = [
            ("payload", self.raw["payload"] != records.payload[self._lines - 1]),
            ("arrival", self.raw["arrival"] != entry.slice.arrival),
            ("watermark", self.raw["watermark"] != met),
        ]
        if self.check.same_reading:
            at = np.minimum(np.searchsorted(records.lines, self._lines), max(0, records.lines.size - 1))
            known = (
                records.lines[at] == self._lines
                if records.lines.size
                else np.zeros(self._lines.size, np.bool_)
            )
            differing.append(("outcome", ~known))
            for name, label in (
                ("time", "event_time"),
                ("key", "tenant or event_id"),
                ("type", "event_type"),
            ):
                expected = getattr(records, name)
                differing.append((label, known & (self.raw[name] != (expected[at] if expected.size else 0))))
        for label, mask in differing:
            if mask.any():
                yield "raw", self._id, _differ(label, self._lines[mask])

    def _outcomes(self) -> Iterator[Difference]:
        counts, records = self.check.entry.counts, self.records
        sealed = counts.rejects.get(Reject.SEALED.value, 0)  # by the horizon of that time
        found: dict[str, int] = {}
        for reason, _ in records.refused.values():
            found[reason] = found.get(reason, 0) + 1
        recorded = {
            reason: count for reason, count in counts.rejects.items() if reason != Reject.SEALED.value
        }
        if records.payload.size != counts.records:
            yield (
                "slice",
                self._id,
                f"the ledger says {counts.records} records; it has {records.payload.size}",
            )
        elif found != recorded:
            yield "slice", self._id, f"the ledger says it was refused {recorded}; its records give {found}"
        elif records.lines.size != counts.accepted + counts.duplicate + counts.conflict + sealed:
            yield "slice", self._id, "the ledger says other outcomes than its records give"

    def _quarantine(self) -> Iterator[Difference]:
        records, lines = self.records, self._held_lines
        if not lines.size and not records.refused:
            return
        wrong = self.held["payload"] != records.payload[lines - 1]
        if wrong.any():
            yield "quarantine", self._id, _differ("payload", lines[wrong])
        valid, accepted = set(records.lines.tolist()), set(self._lines.tolist())
        columns = (self.held[name].tolist() for name in ("outcome", "reason", "tenant"))
        for line, outcome, reason, tenant in zip(lines.tolist(), *columns, strict=True):
            if outcome == RecordOutcome.CONFLICT.value:
                right = line in valid and line not in accepted
            elif reason == Reject.SEALED.value:
                right = line in valid
            else:
                right = records.refused.get(line) == (reason, tenant)
            if not right:
                yield "quarantine", self._id, _differ("outcome", np.array([line]))
                return
        missing = sorted(set(records.refused) - set(lines.tolist()))
        if missing and self.check.quarantined:
            yield (
                "quarantine",
                self._id,
                f"{len(missing)} of its records are missing, line {missing[0]} first",
            )

    def keys(self) -> SliceKeys:
        """The keys of accepted records, and of valid records that an accepted one excluded. Records that were
        too old when they arrived are neither."""
        records, lines = self.records, self.records.lines
        accepted = np.isin(lines, self._lines)
        conflict = np.zeros(lines.size, np.bool_)
        counted = ~conflict
        if self._held_lines.size:
            conflict = np.isin(lines, self._held_with("outcome", RecordOutcome.CONFLICT.value))
            counted = ~np.isin(lines, self._held_with("reason", Reject.SEALED.value))
        return SliceKeys(
            self._id,
            self.check.quarantined,
            records.key[counted],
            records.content[counted],
            lines[counted],
            accepted[counted],
            conflict[counted],
        )

    def _held_with(self, column: str, value: str) -> Ints:
        """Lines in quarantine."""
        return self._held_lines[self.held[column] == value]


@dataclass(frozen=True, slots=True)
class SliceKeys:
    """The keys of the valid records of one slice, and the outcome of each."""

    slice: str
    quarantined: bool
    key: Words
    content: Words
    line: Ints
    accepted: Mask
    conflict: Mask


def _keys_table(found: Sequence[SliceKeys]) -> pa.Table:
    sizes = [each.key.size for each in found]
    columns = {
        name: np.concatenate([getattr(each, name) for each in found])
        for name in ("key", "content", "line", "accepted", "conflict")
    }
    codes = np.repeat(np.arange(len(found), dtype=np.int32), sizes)
    return pa.table(
        {
            **columns,
            "quarantined": np.repeat(np.array([each.quarantined for each in found], np.bool_), sizes),
            "slice": pa.DictionaryArray.from_arrays(codes, [each.slice for each in found]),
        }
    )


def _differ(what: str, lines: Ints) -> str:
    if lines.size == 1:
        return f"line {lines[0]} has another {what} than the slice"
    return f"{lines.size} lines have another {what} than the slice, line {lines.min()} first"


# -- what the gate decided


@dataclass(frozen=True, slots=True)
class KeysUnit:
    """A range of keys, and the files with those of records and with those of raw."""

    low: int
    high: int  # exclusive
    records: Sequence[str]
    raw: Sequence[str]


def compare_keys(unit: KeysUnit) -> Iterator[Difference]:
    """A kernel: valid records that are not in raw although no event there excludes them."""
    rows = pa.concat_tables([_in_range(read_ipc(path), unit) for path in unit.records]).unify_dictionaries()
    accepted = one(rows.column("accepted")).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(~accepted)
    if not others.size:
        return
    key, content = one(rows.column("key")).to_numpy(), one(rows.column("content")).to_numpy()
    raw = [one(_in_range(read_ipc(path).select(["key"]), unit).column("key")).to_numpy() for path in unit.raw]
    absent = ~np.isin(key[others], np.concatenate([np.empty(0, np.uint64), *raw]))
    yield from _first_lines(rows, others[absent], "is not in raw, and no event with its id is")
    held = np.flatnonzero(accepted)
    held = held[np.argsort(key[held], kind="stable")]
    if not held.size:
        return
    at = held[np.minimum(np.searchsorted(key[held], key[others]), held.size - 1)]
    known, same = key[at] == key[others], content[at] == content[others]
    conflict = one(rows.column("conflict")).to_numpy(zero_copy_only=False)[others]
    alike = others[known & same & conflict]
    yield from _first_lines(rows, alike, "is in quarantine, and equals what was accepted")
    quarantined = one(rows.column("quarantined")).to_numpy(zero_copy_only=False)[others]
    differing = others[known & ~same & ~conflict & quarantined]
    yield from _first_lines(rows, differing, "differs from what was accepted, and is not in quarantine")


def _in_range(rows: pa.Table, unit: KeysUnit) -> pa.Table:
    key = one(rows.column("key")).to_numpy()
    return rows.filter(pa.array((key >= np.uint64(unit.low)) & (key <= np.uint64(unit.high - 1))))


def _first_lines(rows: pa.Table, at: Ints, what: str) -> Iterator[Difference]:
    """One difference for each slice, at its first line."""
    names, lines = one(rows.column("slice")), one(rows.column("line")).to_numpy()
    codes = names.indices.to_numpy(zero_copy_only=False)[at]
    for code in np.unique(codes).tolist():
        lines_of_slice = lines[at[codes == code]]
        more = f" (and {lines_of_slice.size - 1} more)" if lines_of_slice.size > 1 else ""
        yield "ids", names.dictionary[code].as_py(), f"line {lines_of_slice.min()}{more} {what}"


# -- all of it


def differences(
    acceptor: Acceptor,
    entries: Sequence[SliceEntry],
    readings: Mapping[str, str],
    horizons: Mapping[str, int],
) -> list[Difference]:
    """The differences between raw and quarantine and the accepted slices whose bytes are as they landed.
    `readings`: how records were read, by batch. `horizons`: the instants before which rows of raw and
    quarantine have expired.
    """
    replayed = any(entry.slice.source == REPLAY for entry in entries)
    since = horizons.get("quarantine", MIN_INSTANT)
    checks = [
        AcceptedSlice(
            str(acceptor.warehouse / entry.slice.path),
            entry,
            same_reading=readings.get(entry.batch or "") == acceptor.reading,
            quarantined=not replayed and entry.slice.arrival >= since,
        )
        for entry in entries
        if entry.status is SliceStatus.ACCEPTED
    ]
    folder = acceptor.raw.staging("verify")
    try:
        return _CompareJob(acceptor, checks, folder).run(expired="raw" in horizons)
    finally:
        remove_tree(folder)


@dataclass(frozen=True)
class _CompareJob:
    acceptor: Acceptor
    checks: Sequence[AcceptedSlice]
    folder: Path

    @cached_property
    def _buckets(self) -> int:
        engine, rows = self.acceptor.engine, self.acceptor.raw.snapshot().rows
        return max(1, -(-rows // ROWS_AT_ONCE), min(len(self.checks), 2 * engine.parallelism))

    @cached_property
    def _size(self) -> int:
        return sum(check.entry.slice.size for check in self.checks)

    def run(self, *, expired: bool) -> list[Difference]:
        engine = self.acceptor.engine
        raw = self._sort(sort_raw, "raw")
        units = list(self._units(raw, self._sort(sort_quarantine, "quarantine")))
        found = engine.run(compare, units, "verify rows", self._size)
        found += self._columns()
        records = [unit.keys for unit in units if warehouse_path(unit.keys).exists()]
        if records and not expired:  # otherwise the event that excluded a record may be gone
            held = [str(self.folder / name) for name in raw]
            ranges = key_ranges(self._buckets)
            keys = [KeysUnit(low, high, records, held) for low, high in ranges]
            found += engine.run(compare_keys, keys, "verify outcomes", self._size)
        return found

    def _columns(self) -> list[Difference]:
        snapshot = self.acceptor.raw.snapshot()
        parts = [part for part in snapshot.parts if part.rows]
        size = sum(part.size for part in parts)
        return self.acceptor.engine.run(compare_columns, snapshot.paths(parts), "verify columns", size)

    def _sort(self, kernel: Callable[[SortUnit], Iterator[str]], kind: str) -> list[str]:
        """The names of the files that the rows of a table were sorted into."""
        table = self.acceptor.raw if kind == "raw" else self.acceptor.quarantine
        table.refresh()
        snapshot = table.snapshot()
        parts = [part for part in snapshot.parts if part.rows]
        units = [
            SortUnit(path, str(self.folder), f"{kind}-{number:06d}.arrow", self._buckets)
            for number, path in enumerate(snapshot.paths(parts))
        ]
        return self.acceptor.engine.run(kernel, units, f"verify {kind}", sum(part.size for part in parts))

    def _units(self, raw: Sequence[str], quarantine: Sequence[str]) -> Iterator[CompareUnit]:
        by_bucket: dict[int, list[AcceptedSlice]] = {}
        for check in self.checks:
            by_bucket.setdefault(bucket_of(check.entry.id, self._buckets), []).append(check)
        stream = self.acceptor.stream
        for bucket, checks in sorted(by_bucket.items()):
            yield CompareUnit(
                plan=self.acceptor.plan,
                csv=stream.csv,
                json=stream.json_rows,
                checks=checks,
                raw=self._of_bucket(raw, bucket),
                quarantine=self._of_bucket(quarantine, bucket),
                keys=str(self.folder / f"{bucket:06d}-keys.arrow"),
            )

    def _of_bucket(self, names: Sequence[str], bucket: int) -> list[str]:
        return [str(self.folder / name) for name in names if name.startswith(f"{bucket:06d}-")]
