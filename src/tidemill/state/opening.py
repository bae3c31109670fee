"""Which store a project keeps its state in, how it is opened, and how a fresh one is put in its place.

The fresh state is filled beside the old one and takes its place in one step: a crash leaves either, whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from tidemill.model.errors import ConfigError, StorageError
from tidemill.state.protocol import State
from tidemill.state.schema import storage_errors, sync_folder
from tidemill.state.sqlite import open_state

STATE_FILE: Final = "state.db"
FRESH_FILE: Final = f"{STATE_FILE}.new"


class Where(Protocol):
    """As the `state` section of `tidemill.yaml` says it."""

    @property
    def kind(self) -> str: ...  # sqlite or redis

    @property
    def url(self) -> str | None: ...  # of the Redis server

    @property
    def prefix(self) -> str: ...  # of its keys


def open_store(where: Where, warehouse: Path) -> State:
    """The state of a warehouse, made when it is not there."""
    if where.kind == "sqlite":
        return open_state(warehouse / STATE_FILE)
    from tidemill.state.redis_open import open_redis  # nobody else waits for the client to load

    return open_redis(_url(where), where.prefix)


def store_exists(where: Where, warehouse: Path) -> bool:
    """Whether there is a state; a warehouse with slices and without one needs `recover` first."""
    if where.kind == "sqlite":
        return (warehouse / STATE_FILE).exists()
    from tidemill.state.redis_open import redis_state_exists

    return redis_state_exists(_url(where), where.prefix)


def store_name(where: Where, warehouse: Path) -> str:
    """What people call it: the file, or the server without its password and the prefix."""
    if where.kind == "sqlite":
        return str(warehouse / STATE_FILE)
    from tidemill.state.redis_link import shown

    return f"{shown(_url(where))} {where.prefix}:"


def open_fresh(where: Where, warehouse: Path) -> State:
    """An empty state beside the one in use, which it does not touch; what an earlier try left is deleted.
    One process at a time does this."""
    if where.kind == "sqlite":
        fresh = warehouse / FRESH_FILE
        with storage_errors(fresh):
            _remove(fresh)
        return open_state(fresh)
    from tidemill.state.redis_open import open_fresh_redis

    return open_fresh_redis(_url(where), where.prefix)


def replace_with_fresh(where: Where, warehouse: Path) -> None:
    """The fresh state, filled and closed, becomes the one in use; the old one is deleted."""
    if where.kind == "sqlite":
        target, fresh = warehouse / STATE_FILE, warehouse / FRESH_FILE
        with storage_errors(target):
            if not fresh.exists():
                raise StorageError("there is no fresh state", where=str(fresh), hint="run `tidemill recover`")
            _remove(target)  # with its write-ahead log, which the new file must not meet
            fresh.replace(target)
            sync_folder(warehouse)
        return
    from tidemill.state.redis_open import promote_fresh_redis

    promote_fresh_redis(_url(where), where.prefix)


def _url(where: Where) -> str:
    if where.kind != "redis" or where.url is None:
        raise ConfigError(
            f"there is no store of kind {where.kind!r} to keep the state in",
            hint="write state: {kind: sqlite}, or {kind: redis, url: redis://localhost:6379/0}",
        )
    return where.url


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
