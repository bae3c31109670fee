"""Logs whose gateways are no more, for whoever lands what they had acknowledged.

A live gateway is never taken up, and of two that look at the same time one gets a log: the folder is locked
from the look to the end. Nothing is removed before the reader says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tidemill.ingest.gateway.folders import Hold, dead_folders
from tidemill.ingest.gateway.replay import LogReplay


class Orphan:
    """A dead log that this process has for itself, until `with` ends or the next one is asked for."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.name = hold.path.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._hold.let_go()

    def read(self, *, listed: bool = False) -> LogReplay:
        """What it holds. Damage is reported in `LogReplay.bad`; StorageError when the disk cannot be read."""
        return LogReplay(self.name, self._hold.path, listed=listed)

    def remove(self) -> None:
        """All that it holds is in the ledger."""
        self._hold.remove()


def orphans(warehouse: Path) -> Iterator[Orphan]:
    """One after the other, by name; each is let go of before the next."""
    for hold in dead_folders(warehouse):
        with Orphan(hold) as orphan:
            yield orphan
