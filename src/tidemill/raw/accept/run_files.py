"""The file of a run of accepted ids: keys that are searched in place, and compressed blocks of the rest.

An Arrow file sorted by `high`, the first half of the hashed key. Beside it is the hash of the content; the
text of the id and where the event came from, which only a hit needs, are in blocks of `BLOCK` rows. A large
run has a sieve, so that a look-up reads a few of its keys in place of all. Files of earlier versions have a
column for each of id and origin, and no sieve; they stay readable.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemill.formats.arrays import Bytes, Ints, Words
from tidemill.formats.arrow import one, string_buffers
from tidemill.formats.key_runs import Sieve
from tidemill.storage.checksums import read_arrow, write_arrow

BLOCK: Final = 4096  # rows
SIEVED: Final = 1 << 21  # rows from which on a run has a sieve
SIEVE_BITS: Final = 12  # for each of them, at least
_LEVEL: Final = 1
_SIZE: Final = struct.Struct("<II")  # before each block: its rows, and how many bytes it unpacks to
_SIEVE: Final = struct.Struct("<QQ")  # before its words: its origin and its shift
_BLOCKS: Final = pa.run_end_encoded(pa.int32(), pa.large_binary())
_PIECES: Final = b"tidemill.pieces"
_T = TypeVar("_T", bound=np.generic)
_NONE: Final[Ints] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Origins:
    """For some rows of a run: the events they are, and where those came from."""

    seq: Ints  # of the slice in the ledger
    line: Ints
    key: pa.BinaryArray  # tenant NUL event_id


@dataclass(frozen=True, slots=True)
class IdRun:
    """Rows of a run, by ascending `high`; memory-mapped."""

    high: Words
    content: Words
    first: int  # row numbers in the file
    file: pa.Table
    sieve: Sieve | None  # of all rows of the file

    def within(self, low: int, high: int) -> IdRun:
        """The rows whose key lies in a range: low <= `high` < high. No copy is made."""
        begin = int(np.searchsorted(self.high, np.uint64(low)))
        end = int(np.searchsorted(self.high, np.uint64(high - 1), side="right"))
        return IdRun(self.high[begin:end], self.content[begin:end], self.first + begin, self.file, self.sieve)

    def origins(self, rows: Ints) -> Origins:
        """The origins of rows, which are given in ascending order."""
        at = rows + self.first
        if "key" in self.file.schema.names:
            found = self.file.select(["seq", "line", "key"]).take(pa.array(at))
            seq, line = (one(found.column(name)).to_numpy() for name in ("seq", "line"))
            return Origins(seq, line, one(found.column("key")))
        found = [_unpack(block, at[low:high] % BLOCK) for block, low, high in self._blocks(at)]
        return Origins(
            np.concatenate([_NONE, *(each.seq for each in found)]),
            np.concatenate([_NONE, *(each.line for each in found)]),
            pa.concat_arrays([pa.array([], pa.binary()), *(each.key for each in found)]),
        )

    def _blocks(self, at: Ints) -> Iterator[tuple[pa.Buffer, int, int]]:
        """The blocks that contain the rows, each with its stretch of `at`."""
        if not at.size:
            return
        blocks = one(self.file.column("rest")).values
        numbers = at // BLOCK
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), at.size]
        for low, high in itertools.pairwise(starts):
            yield blocks[int(numbers[low])].as_buffer(), low, high

    def table(self) -> pa.Table:
        """All rows, as `write_run` takes them."""
        found = self.origins(np.arange(self.high.size))
        columns = {"high": self.high, "content": self.content, "seq": found.seq, "line": found.line}
        return pa.table({**columns, "key": found.key})


class RunWriter:
    """Takes the rows of a run in ascending order of `high`, some at a time, and writes the file when it has
    all."""

    def __init__(self) -> None:
        self.rows = 0
        self._high: list[Words] = []
        self._content: list[Words] = []
        self._blocks: list[bytes] = []
        self._left: pa.Table | None = None  # rows that do not fill a block yet

    def add(self, rows: pa.Table) -> None:
        """Rows with `high`, `content`, `seq`, `line` and `key`."""
        self._high.append(one(rows.column("high")).to_numpy())
        self._content.append(one(rows.column("content")).to_numpy())
        self.rows += rows.num_rows
        rest = rows.select(["seq", "line", "key"])
        if self._left is not None:
            missing = BLOCK - self._left.num_rows
            joined = pa.concat_tables([self._left, rest.slice(0, missing)]).combine_chunks()
            rest = rest.slice(missing)
            if joined.num_rows < BLOCK:
                self._left = joined
                return
            self._blocks.append(_pack(joined))
        whole = rest.num_rows // BLOCK * BLOCK
        self._blocks += [_pack(rest.slice(first, BLOCK)) for first in range(0, whole, BLOCK)]
        self._left = rest.slice(whole) if whole < rest.num_rows else None

    def finish(self, path: Path, pieces: Sequence[str]) -> None:
        """Write the file and sync it. A run is named in the state only after that."""
        if self._left is not None:
            self._blocks.append(_pack(self._left))
            self._left = None
        ends = [min(self.rows, BLOCK * number) for number in range(1, len(self._blocks) + 1)]
        rest = pa.RunEndEncodedArray.from_arrays(
            pa.array(ends, pa.int32()), pa.array(self._blocks, pa.large_binary()), _BLOCKS
        )
        high = np.concatenate([*self._high, np.empty(0, np.uint64)])
        content = np.concatenate([*self._content, np.empty(0, np.uint64)])
        columns = {"high": pa.array(high), "content": pa.array(content), "rest": rest}
        if self.rows >= SIEVED:
            columns["sieve"] = _sieve_column(high)
        table = pa.table(columns)
        write_arrow(path, table.replace_schema_metadata({_PIECES: json.dumps(sorted(pieces)).encode()}))


def write_run(path: Path, rows: pa.Table, pieces: Sequence[str]) -> None:
    """Write a run whose rows are in one table."""
    run = RunWriter()
    run.add(rows)
    run.finish(path, pieces)


def read_run(path: Path | str) -> IdRun:
    """Read a run. FileNotFoundError if it does not exist, DamageError if it is not what was written."""
    file = read_arrow(path)
    high, content = (one(file.column(name)).to_numpy() for name in ("high", "content"))
    return IdRun(high, content, 0, file, _sieve_of(file))


def pieces_of(path: Path) -> list[str]:
    """The pieces (one for each batch and unit of the gate) that a run holds."""
    metadata = read_arrow(path).schema.metadata or {}
    pieces: list[str] = json.loads(metadata.get(_PIECES, b"[]"))
    return pieces


# -- the sieve: one value that all rows share


def _sieve_column(keys: Words) -> pa.RunEndEncodedArray:
    sieve = Sieve.of(keys, SIEVE_BITS)
    packed = pa.array([_SIEVE.pack(sieve.origin, sieve.shift) + sieve.words.tobytes()], pa.large_binary())
    return pa.RunEndEncodedArray.from_arrays(pa.array([keys.size], pa.int32()), packed, _BLOCKS)


def _sieve_of(file: pa.Table) -> Sieve | None:
    if "sieve" not in file.schema.names:
        return None
    packed = one(file.column("sieve")).values
    content = packed.buffers()[2].slice(0, pc.binary_length(packed)[0].as_py())  # a scalar would copy it
    origin, shift = _SIEVE.unpack(content[: _SIEVE.size].to_pybytes())
    return Sieve(np.frombuffer(content, np.uint64, offset=_SIEVE.size), origin, shift)


# -- blocks


def _pack(rows: pa.Table) -> bytes:
    """Compress a block. Bytes at the same position of all values are stored together: most of them hardly
    differ, so they compress well."""
    seq, line = (one(rows.column(name)).to_numpy() for name in ("seq", "line"))
    offsets, data = string_buffers(one(rows.column("key")))
    lengths = np.diff(offsets).astype(np.uint32)
    text = data[int(offsets[0]) : int(offsets[-1])]
    if _is_grid(lengths):
        text = np.ascontiguousarray(text.reshape(lengths.size, -1).T)
    content = b"".join([_planes(seq), _planes(line), _planes(lengths), text.tobytes()])
    packed: bytes = pa.Codec("zstd", _LEVEL).compress(content, asbytes=True)
    return _SIZE.pack(lengths.size, len(content)) + packed


def _unpack(block: pa.Buffer, wanted: Ints) -> Origins:
    """Some rows of a block. A hit needs one of thousands: the others are not decoded."""
    rows, size = _SIZE.unpack(block[: _SIZE.size].to_pybytes())
    content = np.frombuffer(pa.Codec("zstd").decompress(block[_SIZE.size :], size), np.uint8)
    seq, line = content[: 16 * rows].reshape(2, 8, rows)
    lengths, text = content[16 * rows : 20 * rows].reshape(4, rows), content[20 * rows :]
    found = wanted.size
    if bool((lengths == lengths[:, :1]).all()) and bool(lengths[:, :1].any()):  # as `_is_grid`, by byte
        text = np.ascontiguousarray(text.reshape(-1, rows)[:, wanted].T).reshape(-1)
        offsets = np.arange(found + 1, dtype=np.int32) * np.int32(text.size // max(1, found))
        key = pa.Array.from_buffers(pa.binary(), found, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    else:
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(_values(lengths, np.uint32), out=offsets[1:])
        whole = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
        key = whole.take(pa.array(wanted))
    return Origins(_values(seq[:, wanted], np.int64), _values(line[:, wanted], np.int64), key)


def _is_grid(lengths: NDArray[np.uint32]) -> bool:
    """Whether all texts have one length."""
    return bool(lengths.size and lengths[0] and (lengths == lengths[0]).all())


def _planes(values: NDArray[np.generic]) -> bytes:
    """The first bytes of all values, then their second ones, and so on."""
    lanes = np.ascontiguousarray(values).view(np.uint8).reshape(values.size, values.itemsize)
    return lanes.T.tobytes()


def _values(planes: Bytes, kind: type[_T]) -> NDArray[_T]:
    """A row of `planes` has one byte of each value."""
    return np.ascontiguousarray(planes.T).reshape(-1).view(kind)
