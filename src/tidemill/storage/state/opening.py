"""Opens the state of a warehouse, in a file or on a server, and replaces it by a fresh one.

The fresh state is filled beside the old one and replaces it in one step: after a crash one of them is there,
complete.
"""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.config.project import StateStore
from tidemill.model.errors import MachineError, StorageError
from tidemill.storage import layout, state_owner
from tidemill.storage.files import attempt, sync_file
from tidemill.storage.files import storage_errors as file_errors
from tidemill.storage.state.protocol import State
from tidemill.storage.state.sql_state import SqlState
from tidemill.storage.state.sqlite import open_state, storage_errors, sync_folder
from tidemill.storage.state.sqlite_read_only import ReadOnlySqlite, is_read_only

if TYPE_CHECKING:
    from types import ModuleType

# Imports inside functions keep start-up short: only a project with a state on a server needs its driver.

# The defaults have nothing to be checked, and what checks takes a while to be built.
IN_THE_WAREHOUSE: Final = StateStore.model_construct()


def open_store(warehouse: Path, store: StateStore = IN_THE_WAREHOUSE) -> State:
    """The state of a warehouse; created if there is none."""
    server = _on_server(warehouse, store)
    state_owner.own(warehouse, _title(server))
    if server is not None:
        return server.open()
    path = layout.state(warehouse)
    if is_read_only(path):
        return SqlState(ReadOnlySqlite(path))
    return open_state(path)


def exists(warehouse: Path, store: StateStore = IN_THE_WAREHOUSE) -> bool:
    """Whether the warehouse has a state."""
    if (server := _on_server(warehouse, store)) is not None:
        return server.exists()
    return layout.state(warehouse).exists()


def name_of(warehouse: Path, store: StateStore = IN_THE_WAREHOUSE) -> str:
    """What the state is called in reports: its file, or its address without a password."""
    server = _on_server(warehouse, store)
    return server.name if server is not None else str(layout.state(warehouse))


def open_fresh(warehouse: Path, store: StateStore = IN_THE_WAREHOUSE) -> State:
    """An empty state beside the one in use, which is left alone; what an earlier try left is deleted.
    Only one process at a time may do this."""
    if (server := _on_server(warehouse, store)) is not None:
        server.fresh.drop()
        return server.fresh.open()
    fresh = layout.fresh_state(warehouse)
    with storage_errors(fresh):
        _remove(fresh)
    return open_state(fresh)


def replace_with_fresh(warehouse: Path, store: StateStore = IN_THE_WAREHOUSE) -> None:
    """The fresh state, filled and closed, becomes the one in use; the old one is deleted."""
    state_owner.confirm(warehouse)
    if (server := _on_server(warehouse, store)) is not None:
        server.become(server.fresh)
        state_owner.settle(warehouse, server.title)
        return
    target, fresh = layout.state(warehouse), layout.fresh_state(warehouse)
    with storage_errors(target):
        if not fresh.exists():
            raise StorageError("there is no fresh state", where=str(fresh), hint="run `tidemill recover`")
        _remove_logs(target)  # the new file must not be used with the old write-ahead log
        # the file must never be missing: a process that opens it then would create an empty one
        fresh.replace(target)
        sync_folder(warehouse)
    state_owner.settle(warehouse, None)


def claimed(warehouse: Path, store: StateStore = IN_THE_WAREHOUSE) -> AbstractContextManager[bool]:
    """See `state_owner.claimed`: a fresh state is made inside it."""
    return state_owner.claimed(warehouse, _title(_on_server(warehouse, store)))


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _remove_logs(path)


def _remove_logs(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


# -- on a server


@dataclass(frozen=True, slots=True)
class _ServerState:
    """A schema of a server."""

    driver: ModuleType
    url: str
    schema: str

    @property
    def name(self) -> str:
        return f"{self.driver.Server(self.url).name} schema {self.schema}"

    @property
    def title(self) -> str:
        """The same for every machine, whatever the server is called there."""
        return f"a PostgreSQL server, in the schema {self.schema}"

    @property
    def fresh(self) -> _ServerState:
        return _ServerState(self.driver, self.url, self.schema + self.driver.FRESH)

    def open(self) -> State:
        opened: State = self.driver.open_state(self.url, self.schema)
        return opened

    def exists(self) -> bool:
        return bool(self.driver.exists(self.url, self.schema))

    def drop(self) -> None:
        self.driver.drop(self.url, self.schema)

    def become(self, other: _ServerState) -> None:
        self.driver.replace(self.url, self.schema, other.schema)


def _title(server: _ServerState | None) -> str | None:
    return None if server is None else server.title


def _on_server(warehouse: Path, store: StateStore) -> _ServerState | None:
    """Where the state is on a server; None if it is in a file."""
    if store.url is None:
        return None
    try:
        from tidemill.storage.state import postgres
    except ImportError as error:
        raise MachineError(
            f"the driver of PostgreSQL cannot be used: {error}",
            where="state.url",
            hint="install it: pip install 'tidemill[postgres]'",
        ) from None
    schema = store.schema_name or f"tidemill_{_identity(warehouse)}"
    return _ServerState(postgres, store.url.get_secret_value(), schema)


def _identity(warehouse: Path) -> str:
    """The name that the warehouse was given when it first had a state on a server."""
    path = layout.identity(warehouse)
    with file_errors("name the warehouse", path):
        if not path.exists():
            with attempt(path) as draft:
                draft.write_text(secrets.token_hex(8) + "\n", encoding="ascii")
                sync_file(draft)
                with suppress(FileExistsError):  # another process was first
                    path.hardlink_to(draft)
            sync_folder(warehouse)
        name = path.read_text(encoding="ascii").strip()
    if len(name) != 16 or set(name) - set("0123456789abcdef"):
        raise StorageError(
            "the name of the warehouse is not one that Tidemill gave",
            where=str(path),
            hint="restore the file, or name the schema of the state in `state.schema`",
        )
    return name
