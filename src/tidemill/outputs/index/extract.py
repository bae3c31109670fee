"""The kernel that makes the index of a raw part: which rows have which value at the indexed paths.

A pure function of the part and the paths, to the byte. It reads raw and nothing else, so what the gate
turned away cannot be in an index.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Bytes, Ints, Mask
from tidemill.formats.arrow import string_buffers
from tidemill.formats.columns import strings
from tidemill.formats.decide import Number
from tidemill.formats.json_core import ARRAY, ESCAPED, EXPONENT, FALSE, INTEGER, TRUE
from tidemill.formats.json_core import STRING as PLAIN
from tidemill.formats.locate import Located, locate, paths_of, unescaped
from tidemill.model.errors import StorageError
from tidemill.outputs.index.numbers import Doubles, key_of, keys_of
from tidemill.outputs.index.table import BOOLEAN, GROUP_ROWS, INDEX, NULL, NUMBER, STATS, STRING, IndexFooter
from tidemill.storage.tables.parts import StagedPart, open_part, write_part

_BATCH_ROWS: Final = 32_768
_SEEN: Final = 100_000  # arrays that are remembered, as they may come again
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
        Path(unit.folder),
        unit.name,
        pa.concat_tables([INDEX.empty_table(), *pieces]),
        partition=unit.partition,
        footer=IndexFooter(unit.stream, unit.raw_path, tuple(sorted(set(unit.paths))), rows).to_footer(),
        stats_columns=STATS,
        row_groups=groups,
        dictionary=("path", "kind"),
    )


def values_at(value: object, steps: Sequence[str]) -> Iterator[Scalar]:
    """The scalars at a path, null among them; every element of an array is looked into."""
    if isinstance(value, list):
        for element in value:
            yield from values_at(element, steps)
    elif not steps:
        if value is None or isinstance(value, str | bool | Number):
            yield value
    elif isinstance(value, dict) and steps[0] in value:
        yield from values_at(value[steps[0]], steps[1:])


class _Entries:
    """What is found at one path: values of each kind, with their rows."""

    def __init__(self) -> None:
        self.texts: list[tuple[pa.StringArray, Ints]] = []
        self.numbers: list[tuple[Doubles, pa.StringArray, Ints]] = []
        self.booleans: list[tuple[Mask, Ints]] = []
        self.nulls: list[Ints] = []  # of rows that have a value too
        self.fanned = False  # whether a row can have several values, or rows came out of order

    def spread(self, found: Sequence[tuple[int, Scalar]]) -> None:
        """Values that were in arrays."""
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
        """Rows of the index of each kind, by value and row."""
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
        """The order by keys and row, the rows in it, and the keys; what a row has twice is there once."""
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
    """Each text's place among the distinct ones in order (null: -1), and those."""
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


# -- reading payloads


def _read(unit: IndexUnit) -> tuple[Extraction, int]:
    plan = Extraction(unit.paths)
    before = 0
    with open_part(unit.raw) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=["payload"], use_threads=False):
            plan.add(batch.column(0), before)
            before += batch.num_rows
    return plan, before


class Extraction:
    """Collects the values at some paths of payloads. What is located for a path: it, and whatever leads to
    it, as that may be an array."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._entries = {path: _Entries() for path in paths}
        leading = {path: _prefixes(path) for path in self._entries}
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

    def add(self, payload: pa.StringArray, before: int) -> None:
        offsets, read_only = string_buffers(payload)
        low, high = int(offsets[0]), int(offsets[-1])
        data = read_only[low:high].copy()  # writable, as the kernels are compiled
        ends = offsets.astype(np.int64) - low
        found = locate(data, ends[:-1], ends[1:], self._paths)
        if found.damaged.any():
            record = payload[int(np.flatnonzero(found.damaged)[0])].as_py()
            raise StorageError(
                f"a payload in raw is no JSON object: {record[:80]!r}",
                hint="`tidemill repair` sets the damaged part aside and makes it again",
            )
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
    """What leads to a path, itself last, with the steps that remain from there."""
    steps = path.split(".")
    return [(".".join(steps[:n]), tuple(steps[n:])) for n in range(1, len(steps) + 1)]


def _scalars(entries: _Entries, data: Bytes, found: Located, column: int, before: int) -> None:
    """The values that stand there themselves, not in an array."""
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
