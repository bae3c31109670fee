"""Logs of dead gateways, to be landed.

A live gateway's log is never given out, and of two processes that look at the same time one gets a log: the
folder stays locked until the end. Nothing is removed before the reader says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tidemill.ingest.gateway.folders import Hold, dead_folders
from tidemill.ingest.gateway.replay import LogReplay


class Orphan:
    """A dead log that this process has locked, until `with` ends or the next one is requested."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.name = hold.path.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._hold.let_go()

    def read(self, *, listed: bool = False) -> LogReplay:
        """Its contents. Damage is reported in `LogReplay.bad`; StorageError if the disk cannot be read."""
        return LogReplay(self.name, self._hold.path, listed=listed)

    def remove(self) -> None:
        """Remove it: everything it holds is in the ledger."""
        self._hold.remove()


def orphans(warehouse: Path) -> Iterator[Orphan]:
    """One after the other, by name; each is released before the next."""
    for hold in dead_folders(warehouse):
        with Orphan(hold) as orphan:
            yield orphan
