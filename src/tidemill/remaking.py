"""`rebuild --rollups` and `--index`: makes them again from raw; what comes out is what was there.

Part of the mill. It decides nothing: the rooms that keep tiles and index have one way to make them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill import given
from tidemill.locks import exclusive
from tidemill.model.errors import InputError
from tidemill.model.time import Interval
from tidemill.retraction import finish_retractions
from tidemill.rounds import tick_stream

if TYPE_CHECKING:
    from tidemill.mill import Mill
    from tidemill.rollups.roller import Rebuilt
    from tidemill.search.indexer import Indexed


@dataclass(frozen=True, slots=True)
class Remade:
    """What was made again of the rollups."""

    tiles: list[Rebuilt]
    sealed: int  # 5s tiles that raw is gone for: they stay as they are


class Remaker:
    """Of one mill."""

    def __init__(self, mill: Mill) -> None:
        self._mill = mill

    def rollups(self, stream: str, start: str | int | None = None, end: str | int | None = None) -> Remade:
        """Make the tiles of a span (without one: all) again from raw."""
        mill, span = self._mill, given.span(start, end)
        with exclusive(mill.project.warehouse / ".tick.lock", "rebuild"):
            self._settle(stream)
            roller = mill.roller(stream)
            return Remade(roller.rebuild(span), roller.sealed(span))

    def index(self, stream: str, start: str | int | None = None, end: str | int | None = None) -> Indexed:
        """Make the index of a span (without one: all) again from raw."""
        mill, span = self._mill, given.span(start, end)
        with exclusive(mill.project.warehouse / ".tick.lock", "rebuild"):
            self._settle(stream)
            indexer = mill.indexer(stream)
            if indexer is None:
                raise InputError(
                    f"nothing is indexed in stream {stream!r}", hint="declare `indexed: [PATH, …]` for it"
                )
            return indexer.rebuild(mill.clock(), _all(span))

    def _settle(self, stream: str) -> None:
        """What has landed or was left by a crash comes first."""
        finish_retractions(self._mill)
        tick_stream(self._mill, self._mill.project.stream(stream), self._mill.clock())


def _all(span: Interval) -> Interval | None:
    return None if span == given.span(None, None) else span
