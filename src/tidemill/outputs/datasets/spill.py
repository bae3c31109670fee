"""Spills rows that do not fit in memory to disk, in consecutive buckets that are read one by one.

Memory is bounded by a bucket and a buffer: a bucket that turns out too large is partitioned again, by time,
then by id, down to single rows. The file has no name, so that nothing is left when the process dies.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from tidemill.formats.arrays import Ints
from tidemill.outputs.datasets.row_order import KEYS, Run, arranged, parted, whole
from tidemill.storage.bucket_path import on_disk
from tidemill.storage.files import storage_errors

MOST_BUCKETS: Final = 256  # of one file: each is written in pieces of buffer / buckets bytes
_PARTS: Final = 16  # into which a bucket that is too large is partitioned
_SAMPLE: Final = 1024  # keys sampled to find where
# Pieces that a full buffer is written in at least: partitioning again reads piece by piece.
_PIECES: Final = 16
_SLACK: Final = 3  # how many times larger than planned a bucket may be


class Spill:
    """Buckets of rows in one unnamed file."""

    def __init__(self, folder: Path, schema: pa.Schema, buckets: int, buffer_bytes: int) -> None:
        assert 0 < buckets <= MOST_BUCKETS, buckets
        self._folder = folder
        self._schema = schema
        self._buffer_bytes = buffer_bytes
        self._held: list[tuple[pa.Table, Ints]] = []
        self._held_bytes = 0
        self._pieces: list[list[int]] = [[] for _ in range(buckets)]  # numbers of record batches
        self.rows = np.zeros(buckets, np.int64)
        self.sizes = np.zeros(buckets, np.int64)
        self._written = 0
        self._reader: ipc.RecordBatchFileReader | None = None
        with storage_errors("spill to", folder):
            self._file = tempfile.TemporaryFile(dir=on_disk(folder), prefix="spill-")  # noqa: SIM115 - closed in close()
        self._sink = pa.PythonFile(self._file, "w")
        self._writer = ipc.new_file(
            self._sink, schema, options=ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        )

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, table: pa.Table, buckets: Ints) -> None:
        """Add rows, with the bucket of each."""
        self._held.append((table, buckets))
        self._held_bytes += table.nbytes
        if self._held_bytes >= self._buffer_bytes:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        buckets = np.concatenate([found for _, found in self._held])
        order = np.argsort(buckets, kind="stable")
        table = whole([held for held, _ in self._held], self._schema)
        self._held, self._held_bytes = [], 0
        table = table.take(pa.array(order))
        buckets = buckets[order]
        starts = [0, *(np.flatnonzero(np.diff(buckets)) + 1).tolist(), buckets.size]
        most = max(1, self._buffer_bytes // _PIECES * buckets.size // max(1, table.nbytes))  # rows of a piece
        with storage_errors("spill to", self._folder):
            for start, end in pairwise(starts):
                for batch in table.slice(start, end - start).to_batches(most):
                    bucket = int(buckets[start])
                    self._writer.write_batch(batch)
                    self._pieces[bucket].append(self._written)
                    self._written += 1
                    self.rows[bucket] += batch.num_rows
                    self.sizes[bucket] += batch.nbytes

    def finish(self) -> None:
        """End writing; from now on rows can be read."""
        self._flush()
        with storage_errors("spill to", self._folder):
            self._writer.close()
            self._file.flush()
            self._reader = ipc.open_file(pa.PythonFile(self._file, "r"))

    def pieces(self, bucket: int) -> Iterator[pa.Table]:
        assert self._reader is not None, "finish first"
        for number in self._pieces[bucket]:
            with storage_errors("read what was spilled to", self._folder):
                batch = self._reader.get_batch(number)
            yield pa.Table.from_batches([batch])

    def runs(self, buckets: Sequence[int], bucket_bytes: int) -> Iterator[Run]:
        """The rows of consecutive buckets, in order, about `bucket_bytes` at a time."""
        for bucket in buckets:
            if self.rows[bucket] > 1 and self.sizes[bucket] > _SLACK * bucket_bytes:
                yield from self._parted(bucket, bucket_bytes)
            elif self.rows[bucket]:
                yield arranged(whole(self.pieces(bucket), self._schema))

    def _parted(self, bucket: int, bucket_bytes: int) -> Iterator[Run]:
        cuts = self._cuts(bucket, min(_PARTS, -(-int(self.sizes[bucket]) // bucket_bytes)))
        with Spill(self._folder, self._schema, cuts.num_rows + 1, self._buffer_bytes) as finer:
            self._pass_on(bucket, cuts, finer)
            for part in range(cuts.num_rows + 1):
                if finer.rows[part] == self.rows[bucket]:  # equal keys: rows that cannot be separated
                    yield arranged(whole(finer.pieces(part), self._schema))
                else:
                    yield from finer.runs([part], bucket_bytes)

    def _pass_on(self, bucket: int, cuts: pa.Table, finer: Spill) -> None:
        """A method of its own, so that its memory is freed while the finer parts are read."""
        for table in self.pieces(bucket):
            finer.add(table, parted(table, cuts))
        finer.finish()

    def _cuts(self, bucket: int, parts: int) -> pa.Table:
        """Keys that partition a bucket about evenly, from a sample of it."""
        every = max(1, int(self.rows[bucket]) // _SAMPLE)
        samples, skipped = [], 0
        for table in self.pieces(bucket):
            rows = np.arange(-skipped % every, table.num_rows, every)
            samples.append(table.select(KEYS).take(pa.array(rows)))
            skipped += table.num_rows
        sample = whole(samples, pa.schema([self._schema.field(key) for key in KEYS]))
        rows = arranged(sample).rows
        at = np.unique(np.arange(1, parts) * rows.size // parts)
        return sample.take(pa.array(rows[at]))

    def close(self) -> None:
        self._held = []
        self._file.close()
