"""The index as an output of a stream: an index part for each part of raw within its retention."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tidemill.config import Stream
from tidemill.ingest.retraction_log import is_deciding_again
from tidemill.ingest.warehouse import Warehouse
from tidemill.model.time import Interval
from tidemill.outputs.contract import (
    Difference,
    RawFacts,
    RecordedVersion,
    RoundStart,
    Simple,
    Stage,
    Verified,
)
from tidemill.outputs.index.indexer import Indexed, Indexer
from tidemill.storage import layout
from tidemill.storage.tables.table import tidy


class Index(Simple):
    """The index of one stream."""

    name = "index"
    stage = Stage.ACCEPTED

    def __init__(self, warehouse: Warehouse, stream: Stream, indexer: Callable[[], Indexer | None]) -> None:
        """`indexer` gives None if nothing is or was indexed."""
        self._warehouse = warehouse
        self._stream = stream
        self._indexer = indexer
        self._version = RecordedVersion(warehouse, "index", stream.name)

    def refresh(self, start: RoundStart) -> Indexed | None:
        name = self._stream.name
        self._version.check()
        if is_deciding_again(self._warehouse.state, name) or self._warehouse.existing("raw", name) is None:
            return None
        indexer = self._indexer()
        if indexer is None:
            return None
        self._warehouse.progress(name, "index", 0.0)
        done = indexer.refresh(start.now)
        if not done.idle:
            self._version.record()
        self._warehouse.progress(name, "index", 1.0)
        tidy([indexer.table], self._warehouse.project.engine.keep_replaced, start.now)
        return done

    def verify(self, raw: RawFacts, now: int) -> Verified:
        indexer = self._indexer()
        if indexer is None:
            return Verified()
        wrong = [Difference("index", one.part, one.what) for one in indexer.verify(now)]
        return Verified(len(indexer.table.snapshot().parts), 0, wrong)

    def recover(self, now: int) -> int:
        self._version.record()
        return 0

    def lose(self, files: Collection[str], now: int) -> None:
        root, name = self._warehouse.root, self._stream.name
        parts = layout.in_table(layout.index(root, name), root, files)
        table = self._warehouse.existing("index", name) if parts else None
        if table is not None:
            table.leave_out(parts, now)

    def rebuild(self, span: Interval | None, now: int) -> Indexed:
        indexer = self._indexer()
        assert indexer is not None, "the caller saw that something is indexed"
        self._warehouse.progress(self._stream.name, "index", 0.0)
        done = indexer.rebuild(now, span)
        self._version.record()
        self._warehouse.progress(self._stream.name, "index", 1.0)
        return done
