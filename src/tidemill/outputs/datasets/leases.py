"""Tells whether the holder of a lease on a window is gone, independent of the wall clock.

A process that builds keeps a file locked while it lives: the leases of a dead process are void at once. The
lease of a live one is void only if it was not renewed for the length of a lease, by the timer of the process
that checks. For holders without a file (earlier versions) the wall clock or that timer decides, whichever is
first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tidemill.model.windows import Window, WindowKey
from tidemill.storage.holders import is_alive

_Lease = tuple[str, int]  # owner and end; changes with each renewal


class LeaseWatch:
    """What one process has observed of the leases of others. Not thread-safe: its owner locks."""

    def __init__(self, warehouse: Path, lease: int, timer: Callable[[], int]) -> None:
        self._warehouse = warehouse
        self._lease = lease
        self._timer = timer
        self._seen: dict[WindowKey, tuple[_Lease, int]] = {}

    def void(self, held: Iterable[Window], now: int) -> dict[WindowKey, int]:
        """Of the windows being built, those whose leases are void, with the end of each lease as observed; a
        lease that is renewed meanwhile stays valid."""
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
