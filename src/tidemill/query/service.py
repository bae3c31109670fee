"""Answers questions about an open warehouse: which tables a query reads, for which tenant, what is missing.

It only reads: nothing here writes to the warehouse or the state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemill.ingest.declaration_log import Declaration
from tidemill.ingest.expiry_log import RAW
from tidemill.ingest.retraction_log import RetractionLog
from tidemill.model.completeness import Arrivals, Available, Outdated, Pending
from tidemill.model.errors import InputError, StorageError
from tidemill.model.metrics import DeclaredMetric
from tidemill.model.names import ROLLUPS
from tidemill.model.time import MAX_INSTANT, Interval
from tidemill.query.pending import arrivals_of
from tidemill.raw.tenant_clock import OwnRows, own_rows, own_watermark
from tidemill.raw.watermark import watermark_of
from tidemill.storage.state.faults import faults_of, named

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.config import Stream
    from tidemill.ingest.warehouse import Warehouse
    from tidemill.model.streaming import WindowSpec
    from tidemill.query import Answer, Explanation, Querier
    from tidemill.query.as_of import Change
    from tidemill.query.cell import Cell
    from tidemill.query.language.ast import Moment
    from tidemill.query.source import Source
    from tidemill.storage.state.protocol import State
    from tidemill.storage.tables.snapshot import Snapshot

# Imports inside functions keep start-up short: an answer from rollups loads neither Numba nor what reads raw.

log = logging.getLogger(__name__)

Asked = str | Mapping[str, object]  # a text, or a JSON document (also as text)


def querier_of(warehouse: Warehouse) -> Querier:
    """A querier over the current rollups; Spark is started only if it is needed."""
    from tidemill.query import NoRollups, Querier, Runner, SnapshotSource
    from tidemill.query.column_cache import KeptColumns
    from tidemill.query.raw_events import RawEvents

    columns = KeptColumns()

    def source_for(stream: str) -> Source:
        found = warehouse.snapshot("rollups", stream)
        project = warehouse.project
        events = warehouse.snapshot("raw", stream)
        raw = RawEvents(project.warehouse, project.stream(stream), project.limits, events, columns)
        since = available(warehouse, stream)
        if found is None:
            return NoRollups(raw=raw, available=since)
        return SnapshotSource(found, raw, since)

    runner = Runner(columns=columns)
    return Querier(warehouse.project.streams, source_for, runner, spark=lambda: warehouse.engine.session)


@dataclass(frozen=True, slots=True)
class TenantChoice:
    """The tenants a question is about, as given by the caller."""

    tenant: str | None = None
    all_tenants: bool = False
    check: bool = True  # False: a tenant that is named need not have any events


def ask(
    warehouse: Warehouse,
    querier: Querier,
    query: Asked,
    tenants: TenantChoice,
    *,
    strict: bool,
    engine: str,
    as_of: str | int | None = None,
) -> Answer | Explanation:
    """Answer a query. `as_of` is an instant, or how long ago."""
    from tidemill.query.as_of import past_of

    log_of_retractions = RetractionLog(warehouse.root)
    try:
        return querier.ask(
            query,
            tenant=lambda stream: tenant_of(warehouse, stream, tenants),
            now=warehouse.clock(),
            arrivals=lambda stream, span: arrivals(
                warehouse, stream, span, tiles=True, tenant=tenants.tenant
            ),
            engine=engine,
            strict=strict,
            as_of=None if as_of is None else moment_of(as_of),
            past=lambda plan, at: past_of(
                warehouse.state, log_of_retractions, plan.stream, at, plan.touched, of_keys=plan.admits_keys
            ),
        )
    except StorageError as error:
        raise named(error, warehouse.root) from error


def cell(
    warehouse: Warehouse,
    querier: Querier,
    query: Asked,
    tenants: TenantChoice,
    start: int | None,
    group: Mapping[str, object],
    *,
    as_of: str | int | None,
    offset: int,
    limit: int,
) -> Cell:
    """What one row of the answer to a query is made from."""
    from tidemill.query import Explanation
    from tidemill.query.cell import cell_of

    answer = ask(warehouse, querier, query, tenants, strict=False, engine="duckdb", as_of=as_of)
    if isinstance(answer, Explanation) or answer.plan is None:
        raise InputError("EXPLAIN has no cells", hint="leave EXPLAIN out")
    try:
        return cell_of(warehouse, answer, answer.plan, start, group, offset, limit)
    except StorageError as error:
        raise named(error, warehouse.root) from error


def changes_since(warehouse: Warehouse, stream: str, after: int, span: Interval | None) -> list[Change]:
    """The slices that changed a span of a stream after an instant of arrival, oldest first."""
    from tidemill.query import as_of

    log_of_retractions, name = RetractionLog(warehouse.root), warehouse.project.stream(stream).name
    return as_of.changes_since(warehouse.state, log_of_retractions, name, after, span)


def moment_of(as_of: str | int) -> Moment:
    """The argument of `AS OF`, given beside the query."""
    from tidemill.query.language.ast import Now, Since
    from tidemill.query.language.time_clauses import since_of

    if isinstance(as_of, int):
        return as_of
    found = since_of(as_of)
    return Now(-found.duration) if isinstance(found, Since) else found


def rows_of(answer: Answer | Explanation) -> pa.Table:
    from tidemill.query import Explanation

    if isinstance(answer, Explanation):
        raise InputError("EXPLAIN has no rows", hint="use `ask` for an explanation")
    return answer.table


def arrivals(
    warehouse: Warehouse, stream: str, span: Interval | None, *, tiles: bool, tenant: str | None = None
) -> Arrivals:
    """What an answer about `span` (None: all time) reports of the stream; about one tenant of several, only
    what that tenant's own events show, and nothing that would reveal others."""
    under_way = RetractionLog(warehouse.root).unfinished(warehouse.state, stream)
    act = under_way.act if under_way is not None else None
    state, declared = warehouse.state, warehouse.project.stream(stream)
    if tenant is None or declared.tenant.value is not None:
        own, watermark = None, watermark_of(declared, state, warehouse.clock())
    else:
        own = _own_rows(warehouse, stream, tenant)
        watermark = own_watermark(declared, own, warehouse.source_of, warehouse.clock())
    found = arrivals_of(state, stream, span, watermark, tiles=tiles, retraction=act, own=own)
    return replace(found, pending=_as_rounds_go(state, stream, found.pending))


def pending_results(warehouse: Warehouse, stream: Stream, spec: WindowSpec) -> tuple[Pending, ...]:
    """What the results of a streaming window do not include yet."""
    from tidemill.outputs.windows.reader import results_behind

    state = warehouse.state
    under_way = RetractionLog(warehouse.root).unfinished(state, stream.name)
    act = under_way.act if under_way is not None else None
    found = arrivals_of(state, stream.name, None, None, tiles=False, retraction=act, own={})
    behind = results_behind(state, stream, spec, warehouse.snapshot("raw", stream.name))
    return _as_rounds_go(state, stream.name, (*found.pending, *behind))


def _as_rounds_go(state: State, stream: str, pending: tuple[Pending, ...]) -> tuple[Pending, ...]:
    """What is pending; while rounds of the stream fail, its remedy is to fix that."""
    faults = faults_of(state, stream) if pending else ()
    if not faults:
        return pending
    problems = "; ".join(f"{fault.message} ({fault.hint})" for fault in faults)
    remedy = f"The rounds of this stream fail, so nothing changes until that is fixed: {problems}"
    return tuple(replace(one, remedy=remedy) for one in pending)


def _own_rows(warehouse: Warehouse, stream: str, tenant: str) -> Mapping[str, OwnRows]:
    try:
        return own_rows(warehouse.snapshot("raw", stream), tenant)
    except StorageError as error:  # the answer may not need the part: report that nothing is known of it
        log.warning("what %s says of time is not known: %s", stream, error)
        return {}


def available(warehouse: Warehouse, stream: str) -> Available:
    """From when on the sources of answers exist, and which metrics are not built."""
    from tidemill.outputs.rollups.spec import declared_metrics

    gone = warehouse.expiries.horizons(stream)
    levels = {name.removeprefix(ROLLUPS): at for name, at in gone.items() if name.startswith(ROLLUPS)}
    declared = declared_metrics(warehouse.project.stream(stream))
    lost = {
        name.removeprefix(ROLLUPS): [one.span for one in losses]
        for name, losses in warehouse.expiries.losses(stream).items()
        if name.startswith(ROLLUPS)
    }
    if lost_raw := warehouse.lost("raw", stream):
        lost[RAW] = [one.span for one in lost_raw]
    return Available(levels, gone.get(RAW), lost, outdated(warehouse.declarations.of(stream), declared))


def outdated(
    known: Sequence[Declaration], declared: Mapping[str, DeclaredMetric]
) -> dict[str, list[Outdated]]:
    """By metric: rows that were made for an earlier declaration of it, and what they lack."""
    if not known:
        return {}
    found: dict[str, list[Outdated]] = {}
    for name, metric in declared.items():
        eras = [(MAX_INSTANT, known[-1].metrics.get(name), False)]  # what the next round will make again
        earlier = (None, *(line.metrics.get(name) for line in known))
        eras += [
            (line.sealed, before, True)
            for line, before in zip(known, earlier, strict=False)
            if line.sealed is not None
        ]
        for until, before, sealed in eras:
            lacks = metric.lacking(before)
            if lacks is None or lacks:
                found.setdefault(name, []).append(Outdated(until, lacks, sealed))
    return found


def tenant_of(warehouse: Warehouse, stream: str, tenants: TenantChoice) -> str | None:
    """The tenant that is meant; None: all."""
    from tidemill.query.tenants import tenant_for

    if tenants.tenant is not None and not tenants.check and not tenants.all_tenants:
        return tenants.tenant
    declared, tables = warehouse.project.stream(stream).tenant.value, tables_with_tenants(warehouse, stream)
    return tenant_for(stream, tenants.tenant, declared, tables, all_tenants=tenants.all_tenants)


def tables_with_tenants(warehouse: Warehouse, stream: str) -> Iterator[Snapshot]:
    """The tables that show the tenants of a stream, opened as they are used."""
    found = (warehouse.snapshot(table, stream) for table in ("rollups", "raw"))
    return (snapshot for snapshot in found if snapshot is not None)
