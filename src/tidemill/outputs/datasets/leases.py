"""Whether the holder of a lease on a window is gone, whatever the wall clock does.

A process that builds keeps a file locked while it lives, and the lock dies with it: the leases of a dead one
are void at once. The lease of a live one is void only when it was not renewed for as long as a lease lasts,
by the timer of the process that looks. For holders that keep no file, of earlier versions, the wall clock
decides, or that timer, whichever is first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tidemill.model.windows import Window, WindowKey
from tidemill.storage import layout
from tidemill.storage.files import lock_now, locked_file, make_folder, remove_dead, storage_errors

_NUMBER: Final = "+"  # between the name of a process and the number of its builder
_Lease = tuple[str, int]  # owner, and until when: another value after each renewal


class HolderFile:
    """The file that says that the builders of this process live; from `open` to `close`."""

    def __init__(self, warehouse: Path, name: str) -> None:
        self._folder: Final = layout.builders(warehouse)
        self._warehouse = warehouse
        self._name = name
        self._held: tuple[Path, int] | None = None

    def open(self) -> None:
        if self._held is None:
            make_folder(self._folder, top=self._warehouse)
            with storage_errors("say that builders live", self._folder):
                remove_dead(list(self._folder.iterdir()))
                self._held = locked_file(lambda: self._folder / self._name)

    def close(self) -> None:
        if self._held is not None:
            path, lock = self._held
            path.unlink(missing_ok=True)
            os.close(lock)
            self._held = None


def owner_of(holder: str, number: int) -> str:
    """What one builder of a process that keeps a file is called."""
    return f"{holder}{_NUMBER}{number}"


def is_alive(warehouse: Path, owner: str) -> bool | None:
    """Whether the process of a builder lives; None: it keeps no file, or the file system knows no locks."""
    holder, mark, _ = owner.rpartition(_NUMBER)
    if not mark:
        return None
    try:
        descriptor = os.open(layout.builders(warehouse) / holder, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        found = lock_now(descriptor)
    finally:
        os.close(descriptor)
    return None if found is None else not found


class LeaseWatch:
    """What one process has seen of the leases of others. Not safe for threads: its owner locks."""

    def __init__(self, warehouse: Path, lease: int, timer: Callable[[], int]) -> None:
        self._warehouse = warehouse
        self._lease = lease
        self._timer = timer
        self._seen: dict[WindowKey, tuple[_Lease, int]] = {}

    def void(self, held: Iterable[Window], now: int) -> dict[WindowKey, int]:
        """Of the windows that somebody builds, those whose leases hold no more, with the end of each lease as
        it was looked at: one that is renewed meanwhile holds."""
        at, seen, void = self._timer(), dict[WindowKey, tuple[_Lease, int]](), dict[WindowKey, int]()
        for window in held:
            if window.owner is None or window.lease_until is None:
                continue
            lease = (window.owner, window.lease_until)
            known = self._seen.get(window.key)
            since = known[1] if known is not None and known[0] == lease else at
            seen[window.key] = (lease, since)
            if self._is_void(*lease, now, unchanged=at - since):
                void[window.key] = window.lease_until
        self._seen = seen
        return void

    def _is_void(self, owner: str, until: int, now: int, *, unchanged: int) -> bool:
        alive = is_alive(self._warehouse, owner)
        if alive is False or unchanged >= self._lease:
            return True
        return alive is None and until <= now
