"""Searches an open warehouse: raw and its index. Starts no JVM unless asked to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

from tidemill.model.errors import QueryError
from tidemill.model.slices import SliceStatus
from tidemill.query.language.document import search_from
from tidemill.query.language.parse import parse_search, pointed
from tidemill.query.language.unparse import text_of
from tidemill.query.search.search import SearchInputs, SearchPage, SearchPlan, explain, search
from tidemill.query.service import TenantChoice, arrivals, tenant_of
from tidemill.storage import layout
from tidemill.storage.tables.snapshot import Snapshot

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse
    from tidemill.query.language.ast import Search

EngineName = Literal["local", "spark"]
NOTHING: Final = -1  # the version of a table that was never written


def find(
    warehouse: Warehouse,
    stream: str,
    text_or_document: str | Mapping[str, object],
    tenants: TenantChoice,
    cursor: str | None,
    limit: int | None,
    *,
    total: bool,
    strict: bool,
    engine: EngineName,
) -> SearchPage | SearchPlan:
    search_, text = _read(text_or_document)
    tenant = tenant_of(warehouse, stream, tenants)
    known = arrivals(warehouse, stream, None, tiles=False, tenant=tenants.tenant)  # before the snapshot
    over = _searched(warehouse, stream)
    try:
        if search_.explain:
            return explain(over, search_, tenant=tenant, now=warehouse.clock(), arrivals=known)
        found = search(
            over,
            search_,
            tenant=tenant,
            now=warehouse.clock(),
            cursor=cursor,
            limit=limit,
            total=total,
            engine=warehouse.engine if engine == "spark" else None,
            arrivals=known,
        )
        if strict:
            found.completeness.check()
        return found
    except QueryError as error:
        raise pointed(error, text, "search") from None


def _read(text_or_document: str | Mapping[str, object]) -> tuple[Search, str]:
    """The search and its text; of a document an equivalent one."""
    if isinstance(text_or_document, str) and not text_or_document.lstrip().startswith("{"):
        return parse_search(text_or_document), text_or_document
    search_ = search_from(text_or_document)
    return search_, text_of(search_)


def _searched(warehouse: Warehouse, stream: str) -> SearchInputs:
    declared = warehouse.project.stream(stream)
    # The ledger first, so that it has everything that the snapshot has.
    accepted = warehouse.state.slices(
        stream, SliceStatus.ACCEPTED, newest=True, limit=1
    )  # before the snapshot
    raw, index = warehouse.snapshot("raw", stream), warehouse.snapshot("index", stream)
    if raw is None:  # nothing was accepted yet
        raw = Snapshot(layout.raw(warehouse.root, stream), NOTHING, ())

    def offset(slice_id: str) -> int | None:
        entry = warehouse.state.slice(slice_id)
        return entry.seq if entry is not None else None

    return SearchInputs(
        stream=stream,
        raw=raw,
        index=index,
        indexed=declared.indexed,
        bound=accepted[0].seq if accepted else 0,
        seqs=offset,
        raw_from=warehouse.expiries.seal(stream),
        lost=[one.span for one in warehouse.lost("raw", stream)],
        types={path: field.type for path, field in declared.fields.items()},
        timezone=declared.query.timezone,
    )
