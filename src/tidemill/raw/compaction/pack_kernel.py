"""The packing kernel: rows of some slices and of one span from raw parts, as one part, in the order of raw.

No row is changed, and only columns are decoded, unless they follow another declaration. It writes only to
staging.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.formats.declared_columns import RawColumns
from tidemill.raw.footers import BatchFooter, PackedFooter, declared_by, declared_in
from tidemill.raw.tables import RAW, RAW_STATS, ROW_GROUP
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.tables.parts import StagedPart, open_part, read_footer, write_part

# Imports inside functions keep start-up short: only writing parts needs the compiled reader of payloads.

CODED: Final = ("tenant", "event_type", "slice")  # columns that are read and written dictionary-encoded
_COLUMNS: Final = list(RAW.names)
_KEY_BITS: Final = 63


@dataclass(frozen=True, slots=True)
class RewriteUnit:
    """One part to write: the rows of some slices with event times in `span`, both ends included."""

    inputs: Sequence[str]
    seqs: Mapping[str, int] | None  # slices whose rows are taken, by ledger offset; None: all
    span: tuple[int, int]
    partition: Mapping[str, str]
    folder: str
    name: str
    footer: PackedFooter | BatchFooter  # without facts that are known only when it is written
    sort: bool = True  # False: they already are in the order of raw
    columns: RawColumns | None = None  # the declared columns that it gets; None: none


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The part, and its first and last event time; None if there was no row."""

    part: StagedPart | None
    first: int = 0
    last: int = 0


def rewrite(unit: RewriteUnit) -> Iterator[Rewritten]:
    from tidemill.raw.part_columns import coded_and_bounded

    reading = _Reading(unit, _same_left_out(unit))
    found = [table for path in unit.inputs for table in _rows(path, unit, reading)]
    if not found:
        yield Rewritten(None)
        return
    rows = pa.concat_tables(found).unify_dictionaries().combine_chunks()
    rows, declared = reading.finished(rows)
    for name in ("tenant", "slice"):
        rows = _used(rows, name)
    times = _ints(rows, "event_time")
    if rows.column("event_type").null_count == rows.num_rows:  # a stream without event types
        offset = rows.schema.get_field_index("event_type")
        rows = rows.set_column(offset, "event_type", pa.nulls(rows.num_rows, pa.string()))
    first, last = int(times.min()), int(times.max())
    footer = replace(unit.footer, columns=declared)
    if isinstance(footer, PackedFooter):
        footer = replace(footer, rows=rows.num_rows, min_time=first, max_time=last)
    coded, bounded = (coded_and_bounded(rows, declared)) if declared is not None else ([], [])
    part = write_part(
        warehouse_path(unit.folder),
        unit.name,
        rows,
        partition=unit.partition,
        footer=footer.to_footer(),
        stats_columns=RAW_STATS,
        row_group_rows=ROW_GROUP,
        dictionary=coded,
        bounded=bounded,
        order=pa.array(_order(rows, times, unit.seqs or {})) if unit.sort else None,
    )
    yield Rewritten(part, first, last)


@dataclass
class _Reading:
    """Facts about the declared columns, collected while rows are read."""

    unit: RewriteUnit
    kept: (
        RawColumns | None
    )  # payloads lack the same in all parts, and stay as they are; None: they are put back
    misfits: set[str] = field(default_factory=set)
    rounded: set[str] = field(default_factory=set)

    def finished(self, rows: pa.Table) -> tuple[pa.Table, RawColumns | None]:
        """The rows to write, and what the part records about its columns."""
        from tidemill.raw.part_payloads import PAYLOAD, without_columns

        if self.unit.columns is None:
            return rows, None
        declared = self.unit.columns.made(self.misfits, self.rounded)
        if declared.keeps_payload:
            return rows, declared
        if self.kept is not None:
            return rows, declared.spelled(self.kept.spellings)
        left, declared = without_columns(declared, rows)
        return rows.set_column(rows.schema.get_field_index(PAYLOAD), PAYLOAD, left), declared


def _same_left_out(unit: RewriteUnit) -> RawColumns | None:
    """The declaration of the inputs, if payloads of all of them lack the same values and are to stay so;
    otherwise None."""
    if unit.columns is None or unit.columns.keeps_payload:
        return None
    found = [declared_by(read_footer(path)) for path in unit.inputs]
    first = found[0]
    if first is None or first.id != unit.columns.id:
        return None
    same = all(
        each is not None and (each.id, each.spellings) == (first.id, first.spellings) for each in found
    )
    return first if same else None


def _rows(path: str, unit: RewriteUnit, reading: _Reading) -> Iterator[pa.Table]:
    """The rows of the unit in one part. Row groups that cannot have one are not read; of those that have none
    only the slices are. Declared columns are made from payloads if the part was written by another
    declaration.
    """
    from tidemill.raw.part_columns import nested_columns, own_columns, part_columns
    from tidemill.raw.part_payloads import PartPayloads

    low, high = unit.span
    declared = unit.columns
    with open_part(path, CODED) as file:
        columns = (
            part_columns(file, path, own_columns(declared), sizes=True) if declared is not None else None
        )
        payloads = PartPayloads(declared_in(file, path) if reading.kept is None else None)
        more = columns.names if columns is not None else ()
        names = list(dict.fromkeys([*_COLUMNS, *payloads.names, *more]))
        for group in range(file.num_row_groups):
            if not _may_hold(file, group, low, high):
                continue
            chosen = _of_slices(file, group, unit.seqs)
            if chosen.any() and not _is_within(file, group, low, high):
                times = file.read_row_group(group, ["event_time"], use_threads=False)
                instants = _ints(times, "event_time")
                chosen &= (instants >= low) & (instants <= high)
            if not chosen.any():
                continue
            rows = file.read_row_group(group, names, use_threads=False)
            if not chosen.all():
                rows = rows.filter(pa.array(chosen))
            if columns is None or declared is None:
                yield payloads.put_back(rows).select(_COLUMNS)
                continue
            values = columns.typed(rows)
            reading.misfits.update(name for name, _ in values.misfits)
            reading.rounded.update(values.rounded)
            made = nested_columns(declared, values.arrays, columns.sizes(rows))
            rows = payloads.put_back(rows)
            yield pa.table({**{name: rows.column(name) for name in _COLUMNS}, **made})


def _of_slices(file: pq.ParquetFile, group: int, seqs: Mapping[str, int] | None) -> Mask:
    if seqs is None:
        return np.ones(file.metadata.row_group(group).num_rows, np.bool_)
    slices = one(file.read_row_group(group, ["slice"], use_threads=False).column("slice"))
    known = np.array([name in seqs for name in slices.dictionary.to_pylist()], np.bool_)
    found: Mask = known[slices.indices.to_numpy(zero_copy_only=False)]
    return found


def _used(rows: pa.Table, name: str) -> pa.Table:
    """Without the strings of rows that were left out: a part names only slices whose rows it has."""
    texts, codes = _codes(rows, name)
    used = np.unique(codes)
    if used.size == len(texts):
        return rows
    column = pa.DictionaryArray.from_arrays(
        pa.array(np.searchsorted(used, codes).astype(np.int32)),
        pa.array([texts[i] for i in used], pa.string()),
    )
    return rows.set_column(rows.schema.get_field_index(name), name, column)


def _may_hold(file: pq.ParquetFile, group: int, low: int, high: int) -> bool:
    times = _times(file, group)
    return times is None or (times[0] <= high and times[1] >= low)


def _is_within(file: pq.ParquetFile, group: int, low: int, high: int) -> bool:
    times = _times(file, group)
    return times is not None and low <= times[0] and times[1] <= high


def _times(file: pq.ParquetFile, group: int) -> tuple[int, int] | None:
    """First and last event time of a row group; None if unknown."""
    offset = file.schema_arrow.get_field_index("event_time")
    stats = file.metadata.row_group(group).column(offset).statistics
    return (stats.min_raw, stats.max_raw) if stats is not None and stats.has_min_max else None


def _order(rows: pa.Table, times: Ints, seqs: Mapping[str, int]) -> Ints:
    """By tenant, event time and arrival: ledger offset of the slice, then line."""
    tenant = _ranks(rows, "tenant")
    since = times - times.min()
    bits = int(since.max()).bit_length()
    if int(tenant.max()).bit_length() + bits <= _KEY_BITS:
        key = (tenant << bits) | since
        order = np.argsort(key, kind="stable")  # finds the sorted pieces and merges them
    else:
        order = np.lexsort((since, tenant))
        key = np.cumsum(np.append(0, _differs(tenant[order]) | _differs(since[order])))[_inverse(order)]
    same = ~_differs(key[order])
    if same.any():
        tied = np.append(same, False) | np.append(False, same)
        positions = order[tied]
        offset = _codes(rows, "slice")
        seq = np.array([seqs[name] for name in offset[0]], np.int64)[offset[1][positions]]
        line = one(rows.column("line")).to_numpy()[positions]
        order[tied] = positions[np.lexsort((line, seq, key[positions]))]
    return order


def _differs(values: Ints) -> np.ndarray:
    return values[1:] != values[:-1]


def _inverse(order: Ints) -> Ints:
    back = np.empty(order.size, np.int64)
    back[order] = np.arange(order.size)
    return back


def _codes(rows: pa.Table, name: str) -> tuple[list[str], Ints]:
    column = one(rows.column(name))
    codes: Ints = column.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return column.dictionary.to_pylist(), codes


def _ranks(rows: pa.Table, name: str) -> Ints:
    """Codes in the order of their strings, as bytes."""
    texts, codes = _codes(rows, name)
    rank = np.empty(len(texts), np.int64)
    rank[sorted(range(len(texts)), key=lambda code: texts[code].encode())] = np.arange(len(texts))
    return rank[codes]


def _ints(rows: pa.Table, name: str) -> Ints:
    values: Ints = one(rows.column(name)).cast(pa.int64()).to_numpy()
    return values
