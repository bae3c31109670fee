"""Vectors as an output of a stream of deltas: chains, which are made again from all that raw has."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tidemill.config import Stream
from tidemill.ingest.warehouse import Warehouse
from tidemill.model.time import MIN_INSTANT, Interval
from tidemill.outputs.contract import Difference, Need, RawFacts, RoundStart, Simple, Verified
from tidemill.outputs.vectors.chainer import Chainer, ChainRound
from tidemill.storage import layout


class Vectors(Simple):
    """The vectors of one stream of deltas."""

    name = "chains"

    def __init__(self, warehouse: Warehouse, stream: Stream, chainer: Chainer) -> None:
        self._warehouse = warehouse
        self._stream = stream
        self._chainer = chainer

    def refresh(self, start: RoundStart) -> ChainRound | None:
        return self._chainer.round(self._stream.name, start.now)

    def verify(self, raw: RawFacts, now: int) -> Verified:
        compared, differences = self._chainer.verify(self._stream.name)
        return Verified(compared, 0, [Difference("chain", one.vector, one.what) for one in differences])

    def rebuild(self, span: Interval | None, now: int) -> ChainRound:
        """A chain is made again as a whole, whatever the span."""
        return ChainRound(self._chainer.store(self._stream.name).rebuild(now))

    def lose(self, files: Collection[str], now: int) -> None:
        """Chains say together what they are made of: with one part, all go, and are made again from raw."""
        root, name = self._warehouse.root, self._stream.name
        table = self._warehouse.existing("chains", name)
        if table is not None and layout.in_table(layout.chains(root, name), root, files):
            table.leave_out([part.path for part in table.snapshot().parts], now)

    def needs_raw_from(self, before: int, version: int) -> Iterator[Need]:
        """A late delta, or a retraction, and all of a chain is made again."""
        yield Need(MIN_INSTANT, "its chains, which are made again from all that raw has")
