"""Vectors as an output of a delta stream: chains, which can be made again from raw."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tidemill.config import Stream
from tidemill.ingest.warehouse import Warehouse
from tidemill.model.time import MIN_INSTANT, Interval
from tidemill.outputs.contract import (
    Difference,
    Need,
    RawFacts,
    RecordedVersion,
    RoundStart,
    Simple,
    Verified,
)
from tidemill.outputs.vectors.chainer import Chainer, ChainRound
from tidemill.storage import layout


class Vectors(Simple):
    """The vectors of one delta stream."""

    name = "chains"

    def __init__(self, warehouse: Warehouse, stream: Stream, chainer: Chainer) -> None:
        self._warehouse = warehouse
        self._stream = stream
        self._chainer = chainer
        self._version = RecordedVersion(warehouse, "chains", stream.name)

    def refresh(self, start: RoundStart) -> ChainRound | None:
        self._version.check()
        done = self._chainer.round(self._stream.name, start.now)
        if done is not None and not done.idle:
            self._version.record()
        return done

    def verify(self, raw: RawFacts, now: int) -> Verified:
        compared, differences = self._chainer.verify(self._stream.name)
        return Verified(compared, 0, [Difference("chain", one.vector, one.what) for one in differences])

    def rebuild(self, span: Interval | None, now: int) -> ChainRound:
        """Make chains again; each as a whole, whatever the span."""
        done = ChainRound(self._chainer.store(self._stream.name).rebuild(now))
        self._version.record()
        return done

    def recover(self, now: int) -> int:
        self._version.record()
        return 0

    def lose(self, files: Collection[str], now: int) -> None:
        """Only all parts together show what chains are made of: if one is lost, all are removed and made
        again from raw."""
        root, name = self._warehouse.root, self._stream.name
        table = self._warehouse.existing("chains", name)
        if table is not None and layout.in_table(layout.chains(root, name), root, files):
            table.leave_out([part.path for part in table.snapshot().parts], now)

    def needs_raw_from(self, before: int, version: int) -> Iterator[Need]:
        """Chains need all of raw: after a late delta or a retraction a whole chain is made again."""
        yield Need(MIN_INSTANT, "its chains, which are made again from all that raw has")
