"""Lists the datasets in the warehouse, with a file of their own or without rows, and opens them.

It only reads, except for `drop_datasets`; what a window should contain is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from tidemill.model.errors import DamageError, StorageError
from tidemill.model.windows import Dataset, Window, WindowKey
from tidemill.outputs.datasets.checksums import FileChecksum, checksum_of
from tidemill.outputs.datasets.dataset import (
    FIRST_LAYOUT,
    METADATA_KEY,
    DatasetFooter,
    drop_files,
    find_files,
    metadata_text,
    not_a_dataset,
    read_dataset,
    read_schema,
    stored_metadata,
)
from tidemill.outputs.datasets.empty_datasets import empty_datasets
from tidemill.storage import layout
from tidemill.storage.files import storage_errors
from tidemill.storage.tables.footers import fields_in, text_in


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """A dataset that can be read: its file, and its columns with their metadata."""

    path: Path
    schema: pa.Schema
    shared: bool = False  # the file is shared by many windows, and has no metadata of this one

    @classmethod
    def at(cls, path: Path) -> DatasetFile:
        """A dataset with a file of its own."""
        return cls(path, read_schema(path))

    @property
    def metadata(self) -> dict[str, object]:
        return stored_metadata(self.path, self.schema)


def open_dataset(warehouse: Path, dataset: Dataset) -> DatasetFile:
    """Open a dataset. DamageError if the bytes are not those that were written."""
    path = warehouse / dataset.file
    check_bytes(warehouse, dataset)
    schema = read_schema(path)
    if not layout.is_empty_dataset(dataset.file):
        return DatasetFile(path, schema)
    types = fields_in(stored_metadata(path, schema), "schema")
    footer = DatasetFooter(
        key=dataset.key,
        revision=dataset.revision,
        hash=dataset.hash,
        slices=tuple(sorted(dataset.slices)),
        sealed=dataset.sealed is not None,
        rows=0,
        misfits={},
        schema={column: text_in(types, column) for column in types},
        layout=FIRST_LAYOUT.number,
        deltas=dataset.deltas,
    )
    text = metadata_text(footer.to_footer())
    return DatasetFile(path, schema.with_metadata({METADATA_KEY: text}), shared=True)


def dataset_of(warehouse: Path, window: Window) -> Dataset:
    """The newest dataset of a window, from its file or the log; StorageError if there is none."""
    assert window.file is not None, window
    if not layout.is_empty_dataset(window.file):
        return read_dataset(warehouse, window.file)
    found = empty_datasets(warehouse, window.key.stream).at(window.key, window.revision)
    if found is None or found.file != window.file:
        raise not_a_dataset(warehouse / window.file)
    _check_whole(warehouse / window.file)
    return found


def datasets_of(warehouse: Path, stream: str, key: WindowKey | None = None) -> list[Dataset]:
    """All datasets of a stream, or of one window of it, by window and revision; damaged ones are left out."""
    log = empty_datasets(warehouse, stream)
    recorded = [one for one in (log.all() if key is None else log.of(key)) if _is_whole(warehouse, one)]
    found = [*find_files(warehouse, stream, key), *recorded]
    return sorted(found, key=lambda dataset: (dataset.key.start, dataset.key.span, dataset.revision))


def find_datasets(warehouse: Path, stream: str) -> Iterator[Dataset]:
    """The datasets of all windows of a stream. If two have the same revision, because a builder died or lost
    its lease before recording it, the one with a file counts."""
    taken: set[tuple[WindowKey, int]] = set()
    for dataset in find_files(warehouse, stream):
        taken.add((dataset.key, dataset.revision))
        yield dataset
    for dataset in empty_datasets(warehouse, stream).all():
        if (dataset.key, dataset.revision) not in taken:
            yield dataset


def drop_datasets(warehouse: Path, stream: str, keys: Iterable[WindowKey]) -> None:
    """Delete all revisions of these windows."""
    gone = list(keys)
    drop_files(warehouse, gone)
    empty_datasets(warehouse, stream).forget(gone)


def _is_whole(warehouse: Path, dataset: Dataset) -> bool:
    try:
        _check_whole(warehouse / dataset.file)
    except StorageError:
        return False
    return True


def _check_whole(path: Path) -> None:
    """StorageError if the shared file cannot be read; checked once, until it changes."""
    with storage_errors("read the dataset", path):
        there = path.stat()
    _check_once(path, there.st_ino, there.st_size, there.st_mtime_ns)


def check_bytes(warehouse: Path, dataset: Dataset | Window) -> None:
    """DamageError if the bytes of a dataset, or of the newest one of a window, are not those that were
    written; each process reads a file once, and again when it was changed."""
    if dataset.file is None:
        return
    path = warehouse / dataset.file
    with storage_errors("read the dataset", path):
        there = path.stat()
        found = _checksum_once(path, there.st_ino, there.st_size, there.st_mtime_ns)
    if not found.is_whole(dataset.checksum):
        what = "the dataset has other bytes than were written"
        raise DamageError(what, where=dataset.file, hint=f"`tidemill repair {dataset.key.stream}`")


@lru_cache(maxsize=4096)
def _checksum_once(path: Path, _inode: int, _size: int, _changed: int) -> FileChecksum:
    return checksum_of(path)


@lru_cache(maxsize=256)
def _check_once(path: Path, _inode: int, _size: int, _changed: int) -> None:
    read_schema(path)
