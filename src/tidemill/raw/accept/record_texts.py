"""The texts of a unit's records, read where they lie: payloads are made from them.

Texts of large chunks are never copied: the payload column refers to the mapped files, and the Parquet writer
reads them from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Bytes, Ints
from tidemill.formats.arrow import one
from tidemill.formats.columns import text_views
from tidemill.storage.bucket_path import local_copy, size_of

GATHERED: Final = 1 << 20  # bytes: smaller chunks are copied into one buffer, so that each costs little


@dataclass(frozen=True, slots=True)
class ChunkTexts:
    """The records of a staged chunk."""

    data: str  # the file with their texts
    table: pa.Table  # their staged columns


@dataclass(frozen=True, slots=True)
class RecordTexts:
    """Records of one or more chunks, in the order of the unit: record i is data[starts[i]:ends[i]]."""

    data: Bytes
    starts: Ints
    ends: Ints


def record_texts(chunks: Sequence[ChunkTexts]) -> list[RecordTexts]:
    """The texts of all chunks, in as few buffers as can be had without copying large ones; at least one."""
    found: list[RecordTexts] = []
    small: list[RecordTexts] = []
    for chunk in chunks:
        texts = _texts_of(chunk)
        if texts.data.size >= GATHERED:
            found += [_gathered(small), texts] if small else [texts]
            small = []
        else:
            small.append(texts)
    return [*found, _gathered(small)] if small or not found else found


def _texts_of(chunk: ChunkTexts) -> RecordTexts:
    starts, ends = (one(chunk.table.column(name)).to_numpy() for name in ("start", "end"))
    if not starts.size:
        return RecordTexts(np.empty(0, np.uint8), starts, ends)
    first = int(starts.min())
    data = np.asarray(mapped(chunk.data)[first : int(ends.max())])
    return RecordTexts(data, starts - first, ends - first)


def _gathered(several: Sequence[RecordTexts]) -> RecordTexts:
    shifts = np.cumsum([0, *(texts.data.size for texts in several)])
    pairs = list(zip(several, shifts.tolist(), strict=False))
    return RecordTexts(
        np.concatenate([np.empty(0, np.uint8), *(texts.data for texts in several)]),
        np.concatenate([np.empty(0, np.int64), *(texts.starts + shift for texts, shift in pairs)]),
        np.concatenate([np.empty(0, np.int64), *(texts.ends + shift for texts, shift in pairs)]),
    )


def mapped(path: str) -> Bytes:
    """The bytes of a file, as they are compiled for: writable, though nothing writes to them."""
    return np.memmap(local_copy(path), np.uint8, mode="c") if size_of(path) else np.empty(0, np.uint8)


def payloads(unit: Sequence[RecordTexts]) -> pa.Array:
    """The texts as a view array: it refers to the bytes, and has none of its own."""
    views = []
    for number, texts in enumerate(unit):
        assert texts.data.size < 2**31, "a unit of work stays below 2 GiB"
        each = np.zeros((texts.starts.size, 4), np.int32)
        text_views(texts.data, texts.starts, texts.ends, number, each, each.view(np.uint8).reshape(-1))
        views.append(each)
    found = np.concatenate(views)
    buffers = [None, pa.py_buffer(found), *(pa.py_buffer(texts.data) for texts in unit)]
    return pa.Array.from_buffers(pa.string_view(), len(found), buffers)
