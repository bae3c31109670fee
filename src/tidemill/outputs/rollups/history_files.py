"""Compares the files of state metrics and limited metrics with their checksums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from tidemill.config.metrics import Kept, StateMetric
from tidemill.model.damage import FileKind
from tidemill.model.errors import StorageError
from tidemill.outputs.rollups.observation_runs import ObservationLog
from tidemill.storage import layout
from tidemill.storage.checksums import check_file
from tidemill.storage.file_scrub import StoredFile
from tidemill.storage.state.protocol import State


def history_files(
    warehouse: Path, stream: str, metrics: Mapping[str, Kept], state: State
) -> Iterator[StoredFile]:
    """The log, the observation files that it names, and the admitted keys of limited metrics. None if no such
    metric is declared any more: then the files are not read, nor made again."""
    if not any(isinstance(one, StateMetric) or one.max_cardinality is not None for one in metrics.values()):
        return
    folder = layout.state_history(warehouse, stream)
    path = layout.state_history_log(folder)
    name = layout.relative_name(path)
    if not path.exists() and state.log_head(name) is None:
        return

    def check_log(_: Path) -> bool:
        known = state.log_head(name)  # before the log is read: the log may be ahead, never behind
        read_log(folder, state)
        return known is not None

    yield StoredFile(
        warehouse, path, FileKind.OBSERVATIONS, stream, check_log, lambda: _is_damaged(folder, state)
    )
    try:
        current = read_log(folder, state)
    except StorageError:
        return  # reported by the check of the log
    for each in current.sets.values():
        for file in each.names:
            yield StoredFile(
                warehouse, folder / file, FileKind.OBSERVATIONS, stream, check_file,
                partial(_is_named, folder, state, file),
            )  # fmt: skip
    for metric, declared in metrics.items() if current.sets else ():
        if declared.max_cardinality is not None:
            admitted_keys = layout.admitted_keys(folder, metric)
            yield StoredFile(
                warehouse, admitted_keys, FileKind.ADMITTED_KEYS, stream, check_file, lambda: True
            )


def read_log(folder: Path, state: State) -> ObservationLog:
    """The log as it is, whatever it was made for. It is only read."""
    known = state.log_head(layout.relative_name(layout.state_history_log(folder)))
    return ObservationLog(folder, None, known=known)


def _is_named(folder: Path, state: State, file: str) -> bool:
    return any(file in each.names for each in read_log(folder, state).sets.values())


def _is_damaged(folder: Path, state: State) -> bool:
    """Check again: the log may have been rewritten meanwhile."""
    try:
        read_log(folder, state)
    except StorageError:
        return True
    return False
