"""Removes values from payloads that columns have (`keep_payload: false`), and restores the payloads.

Such a payload has `null` where a value is in its column. What a column cannot give back byte for byte (a
number spelled in another way than the rest, the offset of a time, a value that does not fit) stays in the
payload. So a `null` in a payload whose column has a value means that value, and any other text means itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa

from tidemill.formats.arrow import column_at, one, string_buffers
from tidemill.formats.declared_columns import RawColumn, RawColumns
from tidemill.formats.json_encodings import spelled, spellings_of
from tidemill.raw.footers import declared_by
from tidemill.storage.tables.parts import read_footer

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints, Mask
    from tidemill.formats.locate import Located, Paths

# Imports inside functions keep start-up short: a part that keeps its payloads needs no compiled reader.

PAYLOAD: Final = "payload"
_HOLE: Final = b"null"
_SAMPLE: Final = 256  # values by which the spelling of a column is chosen


Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


@dataclass(frozen=True, slots=True)
class _RecordTexts:
    """Payloads as bytes, and the positions of declared fields in them."""

    data: Bytes
    ends: Ints
    found: Located


def without_columns(declared: RawColumns, rows: pa.Table) -> tuple[pa.StringArray, RawColumns]:
    """The payloads of rows without the values that their columns give back, and the declaration with the
    spelling of each field that was left out somewhere."""
    from tidemill.formats.json_core import NULL
    from tidemill.formats.splicing import spliced

    records = _located(one(rows.column(PAYLOAD)), _paths(tuple(each.name for each in declared.columns)))
    starts, ends = _with_quotes(records)
    chosen = np.zeros(starts.shape, np.bool_)
    spellings: list[tuple[str, str]] = []
    for number, each in enumerate(declared.columns):
        array = column_at(rows, each.path)
        there = np.asarray(array.is_valid())
        texts = _Texts(records.data, starts[number], ends[number], there)
        spelling = _spelling(texts, array, each)
        # A null beside a value (of `tenant`, say, by an earlier declaration) would later mean that value.
        if spelling is not None and not (there & (records.found.tags[number] == NULL)).any():
            spellings.append((each.name, spelling))
            chosen[number] = texts.equal(array, each, spelling)
    hole = np.frombuffer(_HOLE, np.uint8).copy()
    zeros = np.zeros(starts.shape, np.int64)
    left = spliced(records.data, records.ends, starts, ends, chosen, hole, zeros, zeros + hole.size)
    return left, declared.spelled(spellings)


class PartPayloads:
    """Restores the payloads of a part as they were sent."""

    def __init__(self, declared: RawColumns | None, only: Sequence[str] | None = None) -> None:
        """With `only`, values at other paths may be left out."""
        spellings = dict(declared.spellings) if declared is not None else {}
        self._left_out = [
            (each, spellings[each.name])
            for each in (declared.columns if declared is not None else ())
            if each.name in spellings and (only is None or any(_is_related(each.name, path) for path in only))
        ]

    @property
    def names(self) -> list[str]:
        """The columns to read from the part, by their Parquet names."""
        return [PAYLOAD, *(each.leaf for each, _ in self._left_out)]

    @property
    def tops(self) -> list[str]:
        """The same as top-level columns of the table: a struct is read as a whole."""
        return tops(self.names)

    @property
    def is_whole(self) -> bool:
        """Whether the payload column alone is enough."""
        return not self._left_out

    def of(self, rows: pa.RecordBatch | pa.Table) -> pa.StringArray:
        """The payloads of rows with the columns `names`."""
        payload = one(rows.column(PAYLOAD))
        if self.is_whole or not len(payload):
            return payload
        from tidemill.formats.json_core import NULL
        from tidemill.formats.splicing import spliced

        records = _located(payload, _paths(tuple(each.name for each, _ in self._left_out)))
        found = records.found
        chosen = np.zeros(found.tags.shape, np.bool_)
        froms, tos = np.zeros(found.tags.shape, np.int64), np.zeros(found.tags.shape, np.int64)
        bodies: list[Bytes] = []
        size = 0
        for number, (each, spelling) in enumerate(self._left_out):
            array = column_at(rows, each.path)
            chosen[number] = (found.tags[number] == NULL) & np.asarray(array.is_valid())
            if chosen[number].any():
                offsets, body = string_buffers(spelled(array, each.column, spelling))
                froms[number], tos[number] = offsets[:-1] + size, offsets[1:] + size
                bodies.append(body)
                size += body.size
        texts = np.concatenate([np.empty(0, np.uint8), *bodies])
        return spliced(records.data, records.ends, found.starts, found.ends, chosen, texts, froms, tos)

    def put_back(self, rows: Rows) -> Rows:
        """The rows with their payloads."""
        if self.is_whole:
            return rows
        return rows.set_column(rows.schema.get_field_index(PAYLOAD), PAYLOAD, self.of(rows))


def tops(names: Sequence[str]) -> list[str]:
    """The top-level columns of a table that contain these Parquet columns."""
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


@lru_cache(maxsize=4096)
def has_whole_payloads(path: str) -> bool:
    """Whether the column of a part has payloads as they were sent. (Cached for good: the name of a part
    includes its checksum.)"""
    declared = declared_by(read_footer(path))
    return declared is None or declared.keeps_payload


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts of one field in payloads, for rows with a value in its column."""

    data: Bytes
    starts: Ints
    ends: Ints
    there: Mask

    def equal(self, array: pa.Array, column: RawColumn, spelling: str) -> Mask:
        """Where the column gives the text back."""
        import pyarrow.compute as pc

        from tidemill.formats.columns import strings

        texts = strings(self.data, np.where(self.there, self.starts, 0), np.where(self.there, self.ends, 0))
        same = pc.fill_null(pc.equal(spelled(array, column.column, spelling), texts), False)
        return np.asarray(same) & self.there


def _spelling(texts: _Texts, array: pa.Array, column: RawColumn) -> str | None:
    """The spelling that most values of a sample have; None if no value is written in a known way."""
    rows = np.flatnonzero(texts.there)[:_SAMPLE]
    few = _Texts(texts.data, texts.starts[rows], texts.ends[rows], np.ones(rows.size, np.bool_))
    sample = array.take(pa.array(rows))
    counts = {each: int(few.equal(sample, column, each).sum()) for each in spellings_of(column.column)}
    best = max(counts, key=lambda each: counts[each])
    return best if counts[best] else None


def _located(payload: pa.StringArray, paths: Paths) -> _RecordTexts:
    from tidemill.formats.locate import locate
    from tidemill.formats.payload_columns import damaged_payload

    offsets, read_only = string_buffers(payload)
    low, high = int(offsets[0]), int(offsets[-1])
    data = read_only[low:high].copy()  # writable, as the kernels are compiled
    ends = offsets.astype(np.int64) - low
    found = locate(data, ends[:-1], ends[1:], paths)
    if found.damaged.any():
        raise damaged_payload(payload[int(np.flatnonzero(found.damaged)[0])].as_py())
    return _RecordTexts(data, ends, found)


@lru_cache(maxsize=64)
def _paths(names: tuple[str, ...]) -> Paths:
    from tidemill.formats.locate import paths_of

    return paths_of(names)


def _with_quotes(records: _RecordTexts) -> tuple[Ints, Ints]:
    from tidemill.formats.json_core import ESCAPED, STRING

    tags = records.found.tags
    quotes = ((tags == STRING) | (tags == ESCAPED)).astype(np.int64)
    return records.found.starts - quotes, records.found.ends + quotes


def _is_related(field: str, path: str) -> bool:
    """Whether one path is equal to the other, or inside it."""
    return field == path or field.startswith(f"{path}.") or path.startswith(f"{field}.")
