"""Compares the files of datasets with their checksums.

Each file states its own; the state knows that of the newest dataset of each window.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tidemill.model.damage import FileKind
from tidemill.model.errors import DamageError
from tidemill.model.windows import Window, WindowKey
from tidemill.outputs.datasets.checksums import checksum_of
from tidemill.outputs.datasets.empty import EmptyDatasets
from tidemill.storage import layout
from tidemill.storage.scrubbing import StoredFile
from tidemill.storage.state.protocol import State


def dataset_files(warehouse: Path, stream: str, state: State) -> Iterator[StoredFile]:
    newest = {window.file: window for window in state.windows(stream) if window.file is not None}
    for file, window in newest.items():
        yield StoredFile(
            warehouse, warehouse / file, FileKind.DATASET, stream,
            partial(_check, window), partial(_is_newest, state, window.key, file),
        )  # fmt: skip
    for path in (warehouse / layout.datasets(stream)).glob("*/*.arrow"):
        if layout.dataset_revision(path.name) and path.relative_to(warehouse).as_posix() not in newest:
            check = partial(_check_replaced, warehouse)
            yield StoredFile(warehouse, path, FileKind.DATASET, stream, check, path.exists)
    log = layout.empty_datasets_log(layout.empty_datasets(warehouse, stream))
    shared = [window for file, window in newest.items() if layout.is_empty_dataset(file)]
    if shared or log.exists():
        check = partial(_check_recorded, warehouse, stream, state)
        yield StoredFile(
            warehouse, log, FileKind.EMPTY_DATASETS, stream, check, partial(_is_damaged, check, log)
        )


def _check(window: Window, path: Path) -> bool:
    size = path.stat().st_size
    name = str(window.file)
    if window.bytes is not None and size != window.bytes:
        raise DamageError(f"the file has {size} bytes, and {window.bytes} were written", where=name)
    found = checksum_of(path)
    if not found.is_whole(window.checksum):
        raise DamageError("the file has other bytes than were written", where=name)
    return bool(found.stated) or window.checksum is not None


def _check_replaced(warehouse: Path, path: Path) -> bool:
    """A revision that a newer one replaced. It may be deleted meanwhile: then it has expired."""
    found = checksum_of(path)
    if not found.is_whole():
        name = path.relative_to(warehouse).as_posix()
        raise DamageError("the file has other bytes than were written", where=name)
    return bool(found.stated)


def _is_newest(state: State, key: WindowKey, file: str) -> bool:
    found = state.window(key)
    return found is not None and found[0].file == file


def _check_recorded(warehouse: Path, stream: str, state: State, log: Path) -> bool:
    """Check the log of datasets without rows: its lines form a chain, and the current ones are in it."""
    recorded = EmptyDatasets(warehouse, stream)
    is_chained = recorded.is_chained
    for window in state.windows(stream):
        if window.file is None or not layout.is_empty_dataset(window.file):
            continue
        if recorded.at(window.key, window.revision) is None:
            lost = f"revision {window.revision} of the window {window.key.interval} is missing from it"
            raise DamageError(lost, where=log.relative_to(warehouse).as_posix())
    return is_chained


def _is_damaged(check: partial[bool], log: Path) -> bool:
    """Check again: the log may have been rewritten meanwhile."""
    try:
        check(log)
    except (DamageError, FileNotFoundError):
        return True
    return not log.exists()
