"""Questions to an open mill: which tables a query reads, whose events it is about, how complete they are.
Looks only: nothing here writes to the warehouse or the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.ingest.retractions import RetractionLog
from tidemill.model.errors import InputError
from tidemill.model.time import Interval
from tidemill.query import Answer, Arrivals, Explanation, NoRollups, Querier, SnapshotSource
from tidemill.query.pending import arrivals_of
from tidemill.query.source import Source
from tidemill.query.tenants import tenant_for

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


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose events a question is about, as its caller said it."""

    tenant: str | None = None
    all_tenants: bool = False
    check: bool = True  # False: a tenant that is named need not have any events


def ask(
    mill: Mill, querier: Querier, query: Asked, whose: Whose, *, strict: bool, engine: str
) -> Answer | Explanation:
    return querier.ask(
        query,
        tenant=lambda stream: tenant_of(mill, stream, whose),
        now=mill.clock(),
        arrivals=lambda stream, span: arrivals(mill, stream, span, tiles=True),
        engine=engine,
        strict=strict,
    )


def rows_of(answer: Answer | Explanation) -> pa.Table:
    if isinstance(answer, Explanation):
        raise InputError("EXPLAIN has no rows", hint="use `ask` for an explanation")
    return answer.table


def arrivals(mill: Mill, stream: str, span: Interval | None, *, tiles: bool) -> Arrivals:
    """What an answer about `span` (None: all time) has to say of the stream."""
    under_way = RetractionLog(mill.project.warehouse).unfinished(mill.state)
    act = under_way.act if under_way is not None else None
    return arrivals_of(mill.state, stream, span, mill.watermark(stream), tiles=tiles, retraction=act)


def tenant_of(mill: Mill, stream: str, whose: Whose) -> str | None:
    """The tenant that is meant; None: all of them."""
    if whose.tenant is not None and not whose.check and not whose.all_tenants:
        return whose.tenant
    declared = mill.project.stream(stream).tenant.value
    found = (mill.snapshot(table, stream) for table in ("rollups", "raw"))
    tables = [snapshot for snapshot in found if snapshot is not None]
    return tenant_for(stream, whose.tenant, declared, tables, all_tenants=whose.all_tenants)
