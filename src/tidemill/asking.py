"""Questions to an open mill: which rollups a query reads, how fresh they are, and who is asked on Spark.
Looks only: nothing here writes to the warehouse or the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.model.errors import InputError
from tidemill.model.levels import BASE
from tidemill.model.slices import SliceStatus
from tidemill.model.time import Interval
from tidemill.query import Answer, Explanation, Freshness, NoRollups, Querier, SnapshotSource
from tidemill.query.source import Source
from tidemill.state.protocol import State

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.mill import Mill

Asked = str | Mapping[str, object]  # a text, or a JSON document (also as text)


def querier_of(mill: Mill) -> Querier:
    """A querier over the rollups as they are whenever it is asked; Spark starts only when it is needed."""

    def source_for(stream: str) -> Source:
        found = mill.snapshot("rollups", stream)
        return SnapshotSource(found) if found is not None else NoRollups()

    return Querier(mill.project.streams, source_for, spark=lambda: mill.engine.session)


def ask(mill: Mill, querier: Querier, query: Asked, tenant: str | None, engine: str) -> Answer | Explanation:
    return querier.ask(
        query,
        tenant=tenant,
        now=mill.clock(),
        watermark=mill.watermark,
        freshness=lambda stream, span: freshness_of(mill.state, stream, span),
        engine=engine,
    )


def rows_of(answer: Answer | Explanation) -> pa.Table:
    if isinstance(answer, Explanation):
        raise InputError("EXPLAIN has no rows", hint="use `ask` for an explanation")
    return answer.table


def freshness_of(state: State, stream: str, span: Interval | None) -> Freshness:
    """The newest arrival that all tiles include, and how many tiles of `span` (None: of all time) wait."""
    stale = state.stale_tiles(stream)
    waiting = {name for tile in stale for name in tile.desired - tile.observed}
    newest = state.slices(stream, SliceStatus.ACCEPTED, newest=True, limit=len(waiting) + 1)
    as_of = max((entry.slice.arrival for entry in newest if entry.name not in waiting), default=None)
    starts = (tile.state.key.start for tile in stale)
    return Freshness(as_of, sum(span is None or _meets(start, span) for start in starts))


def _meets(start: int, span: Interval) -> bool:
    return start < span.end and span.start < start + BASE.tile
