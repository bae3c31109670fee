"""The kernel that makes the index of a raw part: which rows have which value at the indexed paths.

A pure function of the part and the paths, to the byte. It reads only raw, so that rejected records are never
indexed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.formats.arrays import Bytes, Ints, Mask
from tidemill.formats.arrow import column_at, string_buffers
from tidemill.formats.columns import strings
from tidemill.formats.decide import Number
from tidemill.formats.declared_columns import Column, RawColumn, RawColumns
from tidemill.formats.json_core import ARRAY, ESCAPED, EXPONENT, FALSE, INTEGER, TRUE
from tidemill.formats.json_core import STRING as PLAIN
from tidemill.formats.locate import Located, locate, paths_of, unescaped
from tidemill.formats.payload_columns import damaged_payload
from tidemill.outputs.index.numbers import Doubles, key_of, keys_of, keys_of_decimals, keys_of_integers
from tidemill.outputs.index.table import BOOLEAN, GROUP_ROWS, INDEX, NULL, NUMBER, STATS, STRING, IndexFooter
from tidemill.raw.footers import declared_in
from tidemill.raw.part_payloads import PartPayloads
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.tables.parts import StagedPart, open_part, write_part

_EXACT: Final = ("string", "integer", "boolean", "decimal")  # types whose columns hold what JSON says
_BATCH_ROWS: Final = 32_768
_SEEN: Final = 100_000  # arrays that are cached, as they may occur again
_DECODER: Final = json.JSONDecoder(parse_float=Number, parse_int=Number)

Scalar = str | bool | Number | None


@dataclass(frozen=True, slots=True)
class IndexUnit:
    """One raw part to be indexed."""

    stream: str
    raw: str  # where it is …
    raw_path: str  # … and what its table calls it
    partition: Mapping[str, str]  # of both
    paths: tuple[str, ...]
    folder: str
    name: str


def build(unit: IndexUnit) -> Iterator[StagedPart]:
    yield build_index(unit)


def build_index(unit: IndexUnit) -> StagedPart:
    """Write the index of the part to staging."""
    found, rows = _read(unit)
    pieces = [piece for _, _, piece in found.pieces()]
    groups: list[int] = []
    done = 0
    for piece in pieces:
        groups.extend(range(done, done + piece.num_rows, GROUP_ROWS))
        done += piece.num_rows
    return write_part(
        warehouse_path(unit.folder),
        unit.name,
        pa.concat_tables([INDEX.empty_table(), *pieces]),
        partition=unit.partition,
        footer=IndexFooter(unit.stream, unit.raw_path, tuple(sorted(set(unit.paths))), rows).to_footer(),
        stats_columns=STATS,
        row_groups=groups,
        dictionary=("path", "kind"),
    )


def values_at(value: object, steps: Sequence[str]) -> Iterator[Scalar]:
    """The scalars at a path, including null; arrays on the way are searched element by element."""
    if isinstance(value, list):
        for element in value:
            yield from values_at(element, steps)
    elif not steps:
        if value is None or isinstance(value, str | bool | Number):
            yield value
    elif isinstance(value, dict) and steps[0] in value:
        yield from values_at(value[steps[0]], steps[1:])


class _Entries:
    """The values at one path, by kind, with their rows."""

    def __init__(self) -> None:
        self.texts: list[tuple[pa.StringArray, Ints]] = []
        self.numbers: list[tuple[Doubles, pa.StringArray, Ints]] = []
        self.booleans: list[tuple[Mask, Ints]] = []
        self.nulls: list[Ints] = []  # of rows that have a value too
        self.fanned = False  # whether a row can have several values, or rows are out of order

    def spread(self, found: Sequence[tuple[int, Scalar]]) -> None:
        """Add values that were in arrays."""
        self.fanned = True
        texts = [(value, row) for row, value in found if isinstance(value, str)]
        numbers = [(key_of(value.text), row) for row, value in found if isinstance(value, Number)]
        booleans = [(value, row) for row, value in found if isinstance(value, bool)]
        if texts:
            self.texts.append((pa.array([t for t, _ in texts], pa.string()), _rows(r for _, r in texts)))
        if numbers:
            nearest = np.array([key[0] for key, _ in numbers], np.float64)
            exact = pa.array([key[1] for key, _ in numbers], pa.string())
            self.numbers.append((nearest, exact, _rows(r for _, r in numbers)))
        if booleans:
            self.booleans.append((np.array([b for b, _ in booleans]), _rows(r for _, r in booleans)))
        nulls = [row for row, value in found if value is None]
        if nulls:
            self.nulls.append(np.array(nulls, np.int64))

    def pieces(self, path: str) -> Iterator[tuple[str, pa.Table]]:
        """The index rows of each kind, by value and row."""
        if self.booleans:
            truth = np.concatenate([values for values, _ in self.booleans]).astype(np.int64)
            order, rows, (codes,) = self._sorted([truth], [rows for _, rows in self.booleans])
            texts = pa.array(["false", "true"]).take(pa.array(codes))
            yield BOOLEAN, _piece(path, BOOLEAN, rows, text=texts)
        if self.nulls:
            yield NULL, _piece(path, NULL, np.unique(np.concatenate(self.nulls)))
        if self.numbers:
            nearest = np.concatenate([values for values, _, _ in self.numbers])
            exact = pa.chunked_array([texts for _, texts, _ in self.numbers]).combine_chunks()
            keys: list[np.ndarray] = [nearest]
            if exact.null_count < len(exact):
                keys.append(_ranks(exact)[0])
            order, rows, _ = self._sorted(keys, [rows for _, _, rows in self.numbers])
            texts = exact.take(pa.array(order))
            yield NUMBER, _piece(path, NUMBER, rows, number=pa.array(nearest[order]), exact=texts)
        if self.texts:
            whole = pa.chunked_array([texts for texts, _ in self.texts]).combine_chunks()
            ranks, distinct = _ranks(whole)
            _, rows, (codes,) = self._sorted([ranks], [rows for _, rows in self.texts])
            yield STRING, _piece(path, STRING, rows, text=distinct.take(pa.array(codes)))

    def _sorted(
        self, keys: Sequence[np.ndarray], pieces: Sequence[Ints]
    ) -> tuple[Ints, Ints, Sequence[np.ndarray]]:
        """The order by keys and row, the rows in that order, and the keys; repeats within a row are
        removed."""
        rows = np.concatenate(pieces)
        if not self.fanned:
            order = (
                np.argsort(keys[0], kind="stable") if len(keys) == 1 else np.lexsort(tuple(reversed(keys)))
            )
            return order, rows[order], [key[order] for key in keys]
        order = np.lexsort((rows, *reversed(keys)))
        new = np.zeros(order.size, np.bool_)
        new[:1] = True
        for key in (*keys, rows):
            new[1:] |= key[order[1:]] != key[order[:-1]]
        order = order[new]
        return order, rows[order], [key[order] for key in keys]


def _rows(rows: Iterator[int]) -> Ints:
    return np.fromiter(rows, np.int64)


def _ranks(texts: pa.StringArray) -> tuple[np.ndarray, pa.StringArray]:
    """The position of each string among the sorted distinct ones (null: -1), and those."""
    coded = texts.dictionary_encode()
    order = pc.sort_indices(coded.dictionary).to_numpy()
    small = np.uint16 if order.size < 1 << 16 and not texts.null_count else np.int32  # sorts in one pass
    rank = np.empty(order.size + 1, small)
    rank[order] = np.arange(order.size)
    if texts.null_count:
        rank[-1] = -1
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return rank[codes], coded.dictionary.take(pa.array(order))


def _piece(
    path: str,
    kind: str,
    rows: Ints,
    *,
    text: pa.Array | None = None,
    number: pa.Array | None = None,
    exact: pa.Array | None = None,
) -> pa.Table:
    size = rows.size
    return pa.Table.from_arrays(
        [
            pa.repeat(pa.scalar(path), size),
            pa.repeat(pa.scalar(kind), size),
            text if text is not None else pa.nulls(size, pa.string()),
            number if number is not None else pa.nulls(size, pa.float64()),
            exact if exact is not None else pa.nulls(size, pa.string()),
            pa.array(rows.astype(np.int32)),
        ],
        schema=INDEX,
    )


# -- reading columns and payloads


def _read(unit: IndexUnit) -> tuple[Extraction, int]:
    before = 0
    with open_part(unit.raw) as file:
        declared = declared_in(file, unit.raw)
        known = columns_at(unit.paths, declared, file)
        plan = Extraction(unit.paths, frozenset(known))
        left = [path for path in unit.paths if path not in known]
        payloads = PartPayloads(declared, left)
        names = [each.leaf for each in known.values()] + (payloads.names if left else [])
        for batch in file.iter_batches(_BATCH_ROWS, columns=list(dict.fromkeys(names)), use_threads=False):
            for path, each in known.items():
                plan.add_column(path, each.column, column_at(batch, each.path), before)
            if left:
                plan.add(payloads.of(batch), before)
            before += batch.num_rows
    return plan, before


def columns_at(
    paths: Sequence[str], declared: RawColumns | None, file: pq.ParquetFile
) -> dict[str, RawColumn]:
    """Paths whose values are exactly those of a column of the part. A field of an object may also be inside
    of an array, where its column is null: a path of several steps needs a column without nulls."""
    if declared is None:
        return {}
    inexact = declared.misfits | declared.rounded
    exact = {
        each.name: each
        for each in declared.columns
        if each.column.type in _EXACT and each.name not in inexact
    }
    found = {path: exact[path] for path in paths if path in exact}
    return {
        path: each for path, each in found.items() if len(each.path) == 1 or not _has_nulls(file, each.leaf)
    }


def _has_nulls(file: pq.ParquetFile, leaf: str) -> bool:
    """Whether a column may have nulls, by the statistics of row groups."""
    schema = file.schema
    position = next(number for number in range(len(schema)) if schema.column(number).path == leaf)
    groups = (file.metadata.row_group(group) for group in range(file.num_row_groups))
    statistics = (group.column(position).statistics for group in groups)
    return any(each is None or not each.has_null_count or each.null_count for each in statistics)


class Extraction:
    """Collects the values at some paths. In payloads it locates for each path the value and everything on the
    way, as that may be an array."""

    def __init__(self, paths: Sequence[str], in_columns: frozenset[str] = frozenset()) -> None:
        self._entries = {path: _Entries() for path in paths}
        leading = {path: _prefixes(path) for path in self._entries if path not in in_columns}
        columns = sorted({column for found in leading.values() for column, _ in found})
        position = {column: number for number, column in enumerate(columns)}
        self._paths = paths_of(columns)
        self._leading = {
            path: [(position[column], steps) for column, steps in found] for path, found in leading.items()
        }
        self._seen: dict[tuple[bytes, tuple[str, ...]], tuple[Scalar, ...]] = {}

    def pieces(self) -> Iterator[tuple[str, str, pa.Table]]:
        """Path, kind and rows of the index, in order."""
        for path in sorted(self._entries):
            for kind, piece in self._entries[path].pieces(path):
                yield path, kind, piece

    def add_column(self, path: str, column: Column, array: pa.Array, before: int) -> None:
        """The values of a path from the column that has them."""
        entries = self._entries[path]
        rows = np.flatnonzero(np.asarray(array.is_valid()))
        if not rows.size:
            return
        values = array.drop_null()
        if column.type == "string":
            entries.texts.append((values, rows + before))
        elif column.type == "boolean":
            entries.booleans.append((values.to_numpy(zero_copy_only=False), rows + before))
        elif column.type == "integer":
            entries.numbers.append((*keys_of_integers(values.to_numpy()), rows + before))
        else:
            entries.numbers.append((*keys_of_decimals(values, column), rows + before))

    def add(self, payload: pa.StringArray, before: int) -> None:
        offsets, read_only = string_buffers(payload)
        low, high = int(offsets[0]), int(offsets[-1])
        data = read_only[low:high].copy()  # writable, as kernels are compiled
        ends = offsets.astype(np.int64) - low
        found = locate(data, ends[:-1], ends[1:], self._paths)
        if found.damaged.any():
            raise damaged_payload(payload[int(np.flatnonzero(found.damaged)[0])].as_py())
        for path, leading in self._leading.items():
            entries = self._entries[path]
            _scalars(entries, data, found, leading[-1][0], before)
            for column, steps in leading:
                self._arrays(entries, data, found, column, steps, before)

    def _arrays(
        self, entries: _Entries, data: Bytes, found: Located, column: int, steps: tuple[str, ...], before: int
    ) -> None:
        rows = np.flatnonzero(found.tags[column] == ARRAY)
        values: list[tuple[int, Scalar]] = []
        for row in rows.tolist():
            text = data[found.starts[column, row] : found.ends[column, row]].tobytes()
            inside = self._seen.get((text, steps))
            if inside is None:
                inside = tuple(values_at(_DECODER.decode(text.decode()), steps))
                if all(value is None for value in inside):
                    inside = ()
                if len(self._seen) < _SEEN:
                    self._seen[text, steps] = inside
            values.extend((before + row, value) for value in inside)
        if values:
            entries.spread(values)


def _prefixes(path: str) -> list[tuple[str, tuple[str, ...]]]:
    """The prefixes of a path, itself last, each with the steps that remain."""
    steps = path.split(".")
    return [(".".join(steps[:n]), tuple(steps[n:])) for n in range(1, len(steps) + 1)]


def _scalars(entries: _Entries, data: Bytes, found: Located, column: int, before: int) -> None:
    """The values that are at the path itself, not in an array."""
    tags, starts, ends = found.tags[column], found.starts[column], found.ends[column]
    rows = np.flatnonzero((tags == PLAIN) | (tags == ESCAPED))
    if rows.size:
        escaped = tags[rows] == ESCAPED
        if escaped.any():
            body, offsets = unescaped(data, starts[rows], ends[rows], escaped.view(np.uint8))
            buffers = pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(body)
            texts = pa.StringArray.from_buffers(rows.size, *buffers)
        else:
            texts = strings(data, starts[rows], ends[rows])
        entries.texts.append((texts, rows + before))
    rows = np.flatnonzero((tags >= INTEGER) & (tags <= EXPONENT))
    if rows.size:
        nearest, exact = keys_of(data, starts[rows], ends[rows], tags[rows])
        entries.numbers.append((nearest, exact, rows + before))
    rows = np.flatnonzero((tags == TRUE) | (tags == FALSE))
    if rows.size:
        entries.booleans.append((tags[rows] == TRUE, rows + before))
