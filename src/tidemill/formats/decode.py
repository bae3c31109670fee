"""Reads the file of a slice as chunks of records, whatever its format: where the bytes of each record are.

NDJSON and JSON keep their bytes; CSV, Parquet, Arrow and JSON arrays of arrays become canonical JSON. Memory
is bounded by the chunk, not by the file. Records are not checked here: what is not JSON is passed on.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.config.stream import Csv, Json
from tidemill.formats.arrays import Bytes, Ints, RecordChunk
from tidemill.formats.columnar import columnar_records
from tidemill.formats.delimited import csv_records
from tidemill.formats.positional import inside, named
from tidemill.formats.split import split_array, split_lines
from tidemill.formats.stored_slice import content_pieces, is_compressed
from tidemill.model.errors import InputError
from tidemill.model.slices import Codec, Format

MAX_RECORD: Final = 64 * 1024 * 1024
"""A record of a compressed slice is cut off here. The gate's own limit is far below: it is too_large."""
MAX_JSON: Final = 1024 * 1024 * 1024
_MAPPED: Final = (Format.NDJSON, Format.JSON)  # read in place, unless they are compressed
_BOM: Final = b"\xef\xbb\xbf"
_DAMAGED: Final = "the file is damaged: land the slice again from its source"


def decode(
    path: Path,
    format: Format,
    codec: Codec,
    csv: Csv | None = None,
    json: Json | None = None,
    *,
    chunk_bytes: int,
    byte_range: tuple[int, int] | None = None,
    types: Mapping[str, str] | None = None,
) -> Iterator[RecordChunk]:
    """Records in order, in chunks of about `chunk_bytes`; InputError where reading fails.

    `byte_range` (uncompressed NDJSON only) selects the records that start in it. `types` maps the declared
    columns to their types: a CSV cell is a number or a boolean only where one is declared.
    """
    assert chunk_bytes > 0
    try:
        mapped = codec is Codec.NONE and format in _MAPPED and not is_compressed(path)
        assert byte_range is None or (format is Format.NDJSON and mapped), "cannot be split"
        if format is Format.NDJSON and mapped:
            yield from _mapped_lines(path, chunk_bytes, byte_range)
        elif format is Format.NDJSON:
            for block in line_blocks(_pieces(path, codec, chunk_bytes)):
                data = np.frombuffer(block, np.uint8)
                yield RecordChunk(data, *split_lines(data, 0, data.size))
        elif format is Format.JSON:
            yield from _array(path, codec, chunk_bytes, json or Json(), in_place=mapped)
        elif format is Format.CSV:
            blocks = line_blocks(_pieces(path, codec, chunk_bytes))
            yield from _gathered(csv_records(blocks, csv or Csv(), types or {}), chunk_bytes)
        else:
            yield from _gathered(((batch, {}) for batch in columnar_records(path, format)), chunk_bytes)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be read: {reason}", where=str(path), hint=_DAMAGED) from error


def line_blocks(pieces: Iterable[bytes]) -> Iterator[bytearray]:
    """Regroup pieces so that each block ends with a line end (except at the end of the content). Only
    MAX_RECORD bytes of a longer line are kept. A byte order mark at the start is dropped."""
    carry = bytearray()
    skipping = False
    first = True
    for piece in pieces:
        if first:
            piece, first = piece.removeprefix(_BOM), False
        if skipping:
            end = piece.find(b"\n")
            if end < 0:
                continue
            piece, skipping = piece[end:], False
        cut = piece.rfind(b"\n") + 1
        if cut:
            carry += piece[:cut]
            yield carry
            carry = bytearray(piece[cut:])
        else:
            carry += piece
            if len(carry) > MAX_RECORD:
                del carry[MAX_RECORD:]
                skipping = True
    if carry:
        yield carry


def _mapped_lines(path: Path, chunk_bytes: int, byte_range: tuple[int, int] | None) -> Iterator[RecordChunk]:
    mapped, data = _mapped(path)
    size = data.size
    start, stop = byte_range or (0, size)
    start = _line_start(mapped, start) if start else (len(_BOM) if mapped[:3] == _BOM else 0)
    stop = _line_start(mapped, stop) if stop < size else size
    while start < stop:
        end = min(start + chunk_bytes, stop)
        if end < stop:
            end = mapped.rfind(b"\n", start, end) + 1 or _line_start(mapped, end)
        chunk = data[start:end]
        starts, ends = split_lines(chunk, 0, chunk.size)
        yield RecordChunk(chunk, starts, ends, base=start, in_place=True)
        start = end


def _line_start(mapped: mmap.mmap | bytes, position: int) -> int:
    """The start of the first line that begins at or after `position`."""
    end = mapped.find(b"\n", position - 1)
    return len(mapped) if end < 0 else end + 1


def _array(
    path: Path, codec: Codec, chunk_bytes: int, settings: Json, *, in_place: bool
) -> Iterator[RecordChunk]:
    records = _elements(path, codec, chunk_bytes, settings.path, in_place=in_place)
    return named(records, settings.columns) if settings.columns else records


def _elements(
    path: Path, codec: Codec, chunk_bytes: int, within: str | None, *, in_place: bool
) -> Iterator[RecordChunk]:
    if in_place:
        _, data = _mapped(path)
    else:
        whole = bytearray()
        for piece in _pieces(path, codec, chunk_bytes):
            whole += piece
            if len(whole) > MAX_JSON:
                raise InputError(
                    f"unpacks to more than {MAX_JSON >> 30} GiB of JSON",
                    where=str(path),
                    hint="write it as NDJSON (one object a line), which is read in steps",
                )
        data = np.frombuffer(whole, np.uint8)
    skip = len(_BOM) if bytes(data[:3]) == _BOM else 0
    low, high = skip, data.size
    if within is not None:
        low, high = (skip + at for at in inside(data[skip:], within.split(".")))
    starts, ends = split_array(data[low:high])
    starts += low
    ends += low
    i = 0
    while i < starts.size:
        j = max(i + 1, int(np.searchsorted(ends, starts[i] + chunk_bytes, "right")))
        low, high = int(starts[i]), int(ends[j - 1])
        yield RecordChunk(
            data[low:high], starts[i:j] - low, ends[i:j] - low, base=low if in_place else 0, in_place=in_place
        )
        i = j


def _mapped(path: Path) -> tuple[mmap.mmap | bytes, Bytes]:
    """The file, mapped into memory. The mapping is private and writable, though nothing is written, because
    kernels are compiled for writable arrays; compiling them for read-only ones too would double start-up
    time."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return b"", np.empty(0, np.uint8)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return mapped, np.frombuffer(mapped, np.uint8)


def _pieces(path: Path, codec: Codec, size: int) -> Iterator[bytes]:
    """The content in pieces, decompressed (several gzip members or zstd frames are one content)."""
    done = 0
    try:
        if codec is Codec.NONE:
            for piece in content_pieces(path, size):
                done += len(piece)
                yield piece
            return
        with (
            pa.OSFile(str(path)) as file,
            pa.CompressedInputStream(file, "gzip" if codec is Codec.GZIP else "zstd") as stream,
        ):
            while piece := stream.read(size):
                done += len(piece)
                yield piece
    except OSError as error:
        raise InputError(
            f"cannot be unpacked after byte {done} of its content: {error}", where=str(path), hint=_DAMAGED
        ) from error


def _gathered(
    records: Iterable[tuple[list[bytes], Mapping[int, str]]], chunk_bytes: int
) -> Iterator[RecordChunk]:
    """Gather records that were made one by one into chunks. With each batch comes what is wrong with some."""
    held: list[bytes] = []
    broken: dict[int, str] = {}
    size = 0
    for batch, problems in records:
        for position, record in enumerate(batch):
            if position in problems:
                broken[len(held)] = problems[position]
            held.append(record)
            size += len(record)
            if size >= chunk_bytes:
                yield _chunk(held, broken)
                held, broken, size = [], {}, 0
    if held:
        yield _chunk(held, broken)


def _chunk(records: list[bytes], broken: Mapping[int, str]) -> RecordChunk:
    ends: Ints = np.cumsum(np.fromiter(map(len, records), np.int64, len(records)))
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1]
    return RecordChunk(np.frombuffer(bytearray().join(records), np.uint8), starts, ends, broken=broken)
