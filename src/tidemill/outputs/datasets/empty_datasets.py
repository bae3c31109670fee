"""Datasets without rows: recorded in a log of their stream, with one shared file.

A year without events would otherwise be thousands of empty files. The metadata of each dataset is in a line
of the log; the shared file has their columns and no rows, so that opening it gives the right result. A
recorded revision is never changed. What a window contains is decided elsewhere.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import ipc

from tidemill.config.stream import Stream
from tidemill.model.errors import DamageError
from tidemill.model.failpoints import failpoint
from tidemill.model.windows import Dataset, DeltaStats, WindowKey
from tidemill.outputs.datasets.checksums import checksum
from tidemill.outputs.datasets.dataset import (
    LAYOUT,
    METADATA_KEY,
    Content,
    columns_declared,
    dataset_schema,
    declared_types,
    metadata_text,
)
from tidemill.storage import layout
from tidemill.storage.files import append, atomic_write, make_folder, storage_errors
from tidemill.storage.log_chain import EMPTY_LOG, ChainReader, chained_all

NO_DELTAS: Final = DeltaStats(0, 0, None, None)  # for a delta stream


@dataclass(frozen=True, slots=True)
class Record:
    """Datasets of consecutive windows that are equal in everything else."""

    first: WindowKey
    count: int
    like: Dataset  # the first of them

    def keys(self) -> Iterator[WindowKey]:
        span = self.first.span
        for number in range(self.count):
            yield WindowKey(self.first.stream, self.first.start + number * span, span)

    def dataset(self, key: WindowKey) -> Dataset:
        return replace(self.like, key=key)


class EmptyDatasets:
    """The log of datasets without rows of one stream, read as it grows. Safe for threads; any number of
    processes may append."""

    def __init__(self, warehouse: Path, stream: str) -> None:
        self._warehouse = warehouse
        self._stream = stream
        self._folder = layout.empty_datasets(warehouse, stream)
        self._path = layout.empty_datasets_log(self._folder)
        self._guard = threading.Lock()
        self._read: tuple[int, int] = (0, 0)  # which file, and how far
        self._records: dict[WindowKey, list[Record]] = {}
        self._chain = ChainReader()

    def of(self, key: WindowKey) -> list[Dataset]:
        """All revisions of a window that are recorded here, ascending."""
        with self._guard:
            self._refresh()
            found = [record.dataset(key) for record in self._records.get(key, ())]
        return sorted(found, key=lambda dataset: dataset.revision)

    @property
    def is_chained(self) -> bool:
        """Whether its lines are protected by checksums."""
        with self._guard:
            self._refresh()
            return self._chain.is_chained

    def at(self, key: WindowKey, revision: int) -> Dataset | None:
        return next((one for one in self.of(key) if one.revision == revision), None)

    def all(self) -> list[Dataset]:
        """By window and revision."""
        with self._guard:
            self._refresh()
            found = [record.dataset(key) for key, records in self._records.items() for record in records]
        return sorted(found, key=lambda dataset: (dataset.key, dataset.revision))

    def record(self, contents: Sequence[tuple[Content, int]]) -> list[Dataset]:
        """Make datasets without rows durable, each as the given revision or the next free number."""
        stream = contents[0][0].stream
        make_folder(self._folder, top=self._warehouse)
        file, size, summed = self._shared_file(stream)
        columns = columns_declared(stream)
        with self._locked():
            made = [self._made(content, at, file, size, columns) for content, at in contents]
            made = [replace(one, checksum=summed) for one in made]
            self._append(made)
        failpoint("dataset.after_record")
        return made

    def forget(self, keys: Collection[WindowKey]) -> None:
        """Delete all revisions of these windows."""
        gone = set(keys)
        with self._guard:
            self._refresh()
            if gone.isdisjoint(self._records):
                return
        with self._locked():
            kept = [dataset for dataset in self.all() if dataset.key not in gone]
            content, _ = chained_all(EMPTY_LOG, map(_line, _grouped(kept)))
            atomic_write(self._path, content)

    # -- writing

    def _made(self, content: Content, revision: int, file: str, size: int, columns: str) -> Dataset:
        build = content.build
        taken = {one.revision for one in self.of(build.key)}
        while revision in taken or (self._warehouse / layout.dataset(build.key, revision)).exists():
            revision += 1
        names = tuple(sorted(member.name for member in build.members))
        deltas = None if content.stream.vector is None else NO_DELTAS
        return Dataset(build.key, revision, build.desired, names, 0, size, file, build.seal, columns, deltas)

    def _append(self, datasets: Sequence[Dataset]) -> None:
        with self._guard:
            self._refresh()
            content, _ = chained_all(self._chain.head, map(_line, _grouped(datasets)))
        append(self._path, content, self._read[1], "record empty datasets")

    def _shared_file(self, stream: Stream) -> tuple[str, int, str]:
        """The shared file, written if it is missing or wrong; its size and its checksum."""
        content = shared_content(stream)
        name = hashlib.sha256(content).hexdigest()[:16]
        path = layout.empty_dataset(self._folder, name)
        with storage_errors("read", path):
            existing = path.read_bytes() if path.exists() else None
        if existing != content:
            with self._locked():
                atomic_write(path, content)
        return path.relative_to(self._warehouse).as_posix(), len(content), checksum(content)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (
            storage_errors("lock", self._folder),
            layout.empty_datasets_lock(self._folder).open("ab") as file,
        ):
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, also by a crash
            yield

    # -- reading

    def _refresh(self) -> None:
        with storage_errors("read", self._path):
            try:
                there = self._path.stat()
            except (FileNotFoundError, NotADirectoryError):  # nothing was ever recorded
                self._start((0, 0))
                return
            if (there.st_ino, there.st_size) == self._read:
                return
            with self._path.open("rb") as file:
                there = os.fstat(file.fileno())
                if there.st_ino != self._read[0] or there.st_size < self._read[1]:
                    self._start((there.st_ino, 0))
                file.seek(self._read[1])
                texts = file.read().splitlines(keepends=True)
        for number, text in enumerate(texts):
            record = self._parsed(text) if text.endswith(b"\n") else None
            if record is None and not any(map(self._parsed, texts[number + 1 :])):
                return  # torn by a crash, or being written
            # Earlier versions continued after a torn line.
            skipped = record is None and not self._chain.is_chained
            if (record is None and not skipped) or not self._chain.read(text):
                line = self._chain.head.lines + 1
                self._start((0, 0))
                name = layout.relative_name(self._path)
                raise DamageError(f"line {line} is not the one that was written there", where=name)
            self._read = (self._read[0], self._read[1] + len(text))
            for key in record.keys() if record is not None else ():
                self._records.setdefault(key, []).append(record)  # type: ignore[arg-type]

    def _start(self, read: tuple[int, int]) -> None:
        self._read, self._records, self._chain = read, {}, ChainReader()

    def _parsed(self, text: bytes) -> Record | None:
        """The record of a line; None if a crash tore it."""
        try:
            fields = json.loads(text)
            first = WindowKey(self._stream, int(fields["start"]), int(fields["span"]))
            like = Dataset(
                key=first,
                revision=int(fields["revision"]),
                hash=str(fields["hash"]),
                slices=tuple(map(str, fields["slices"])),
                rows=0,
                bytes=int(fields["bytes"]),
                file=str(fields["file"]),
                sealed=0 if fields["sealed"] else None,
                columns=str(fields["columns"]),
                deltas=NO_DELTAS if fields.get("deltas") else None,
            )
            return Record(first, int(fields["count"]), like)
        except (ValueError, KeyError, TypeError):
            return None


@cache
def empty_datasets(warehouse: Path, stream: str) -> EmptyDatasets:
    """The log of a stream; one object for the whole process."""
    return EmptyDatasets(warehouse, stream)


def shared_content(stream: Stream) -> bytes:
    """An Arrow file with the columns of a stream's datasets, and no rows."""
    fields = {"kind": "dataset", "stream": stream.name, "rows": 0, "schema": declared_types(stream)}
    schema = dataset_schema(stream).with_metadata({METADATA_KEY: metadata_text(fields)})
    sink = pa.BufferOutputStream()
    with ipc.new_file(sink, schema, options=ipc.IpcWriteOptions(compression=LAYOUT.compression)):
        pass
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _grouped(datasets: Iterable[Dataset]) -> Iterator[Record]:
    """Neighbours that differ only in their window, as one record."""
    open_: Record | None = None
    for dataset in sorted(datasets, key=lambda one: (one.revision, one.key)):
        if open_ is not None:
            following = replace(open_.first, start=open_.first.start + open_.count * open_.first.span)
            if dataset.key == following and replace(dataset, key=open_.first) == open_.like:
                open_ = replace(open_, count=open_.count + 1)
                continue
            yield open_
        open_ = Record(dataset.key, 1, dataset)
    if open_ is not None:
        yield open_


def _line(record: Record) -> bytes:
    like = record.like
    fields = {
        "start": record.first.start,
        "span": record.first.span,
        "count": record.count,
        "revision": like.revision,
        "hash": like.hash,
        "slices": list(like.slices),
        "sealed": like.sealed is not None,
        "columns": like.columns,
        "bytes": like.bytes,
        "file": like.file,
        **({} if like.deltas is None else {"deltas": True}),
    }
    return json.dumps(fields, separators=(",", ":")).encode()
