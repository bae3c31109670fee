"""The workers of a mill, one of each kind for a stream: what accepts, what rolls up, what indexes.

Part of the mill. They are made when they are first needed, since each opens tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.outputs.index.indexer import Indexer
from tidemill.outputs.rollups.planning import horizons_of
from tidemill.outputs.rollups.roller import Roller
from tidemill.raw.accept.batch import Acceptor

if TYPE_CHECKING:
    from tidemill.mill import Mill


class Workshop:
    def __init__(self, mill: Mill) -> None:
        self._mill = mill
        self._acceptors: dict[str, Acceptor] = {}
        self._rollers: dict[str, Roller] = {}
        self._indexers: dict[str, Indexer] = {}

    def acceptor(self, stream: str) -> Acceptor:
        mill, declared = self._mill, self._mill.project.stream(stream)
        if stream not in self._acceptors:
            acceptor = self._acceptors[stream] = Acceptor(
                mill.project.warehouse,
                declared,
                mill.project.limits,
                mill.project.engine,
                mill.engine,
                mill.state,
                progress=lambda step, done: mill.progress(stream, step, done),
            )
            acceptor.tap = self.roller(stream).tap
            acceptor.refused_before = lambda: mill.expiries.refused_before(declared)
        return self._acceptors[stream]

    def roller(self, stream: str) -> Roller:
        mill = self._mill
        raw = self.acceptor(stream).raw  # which may have needed the roller itself
        if stream not in self._rollers:
            self._rollers[stream] = Roller(
                mill.project.warehouse,
                mill.project.stream(stream),
                mill.project.limits,
                mill.engine,
                mill.state,
                raw,
                lambda: horizons_of(mill.expiries.horizons(stream)),
            )
        return self._rollers[stream]

    def indexer(self, stream: str) -> Indexer | None:
        mill, declared = self._mill, self._mill.project.stream(stream)
        if not declared.indexed and mill.existing("index", stream) is None:
            return None
        if stream not in self._indexers:
            raw = self.acceptor(stream).raw
            self._indexers[stream] = Indexer(mill.project.warehouse, declared, mill.engine, raw)
        return self._indexers[stream]
