"""Opens the state of a warehouse, and puts a fresh one in its place.

The fresh state is filled beside the old one and replaces it in one step: a crash leaves one of them, whole.
"""

from __future__ import annotations

from pathlib import Path

from tidemill.model.errors import StorageError
from tidemill.storage import layout
from tidemill.storage.state.protocol import State
from tidemill.storage.state.schema import storage_errors, sync_folder
from tidemill.storage.state.sqlite import open_state


def open_store(warehouse: Path) -> State:
    """The state of a warehouse; created if there is none."""
    return open_state(layout.state(warehouse))


def open_fresh(warehouse: Path) -> State:
    """An empty state beside the one in use, which is left alone; what an earlier try left is deleted.
    Only one process at a time may do this."""
    fresh = layout.fresh_state(warehouse)
    with storage_errors(fresh):
        _remove(fresh)
    return open_state(fresh)


def replace_with_fresh(warehouse: Path) -> None:
    """The fresh state, filled and closed, becomes the one in use; the old one is deleted."""
    target, fresh = layout.state(warehouse), layout.fresh_state(warehouse)
    with storage_errors(target):
        if not fresh.exists():
            raise StorageError("there is no fresh state", where=str(fresh), hint="run `tidemill recover`")
        _remove_logs(target)  # which the new file must not meet
        fresh.replace(target)  # at no moment is there none: whoever opens it would make an empty one
        sync_folder(warehouse)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _remove_logs(path)


def _remove_logs(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
