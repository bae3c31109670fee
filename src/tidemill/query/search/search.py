"""A search over a snapshot of raw, with the index of the parts that have one: pages of events, in order.

The same search over the same snapshot gives the same page, whether parts are indexed or not; parts without an
index are scanned, which is reported. It only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.engine import Engine
from tidemill.engine.session import default_cores
from tidemill.model.completeness import PUT_BACK, Arrivals, Completeness, Missing, completeness, damaged
from tidemill.model.conditions.ast import paths_in
from tidemill.model.conditions.types import check_types
from tidemill.model.errors import QueryError
from tidemill.model.suggestions import closest
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, cut, format_instant
from tidemill.outputs.index.entries import index_source, metadata_of
from tidemill.outputs.index.table import index_path
from tidemill.query.language.ast import Search, Since
from tidemill.query.language.time_clauses import span_of
from tidemill.query.search.cursor import Cursor, identity_of, read_cursor
from tidemill.query.search.index_matcher import Matcher, name_of
from tidemill.query.search.kernel import (
    TENANT,
    FindUnit,
    Hits,
    KnownRows,
    Order,
    SearchScope,
    SlicesUnit,
    find,
    is_before,
    slices_of,
)
from tidemill.raw.footers import declared_in
from tidemill.raw.part_payloads import PartPayloads
from tidemill.storage.tables.parts import open_part
from tidemill.storage.tables.snapshot import Part, Snapshot

DEFAULT_LIMIT: Final = 50
MOST_LIMIT: Final = 100_000
COLUMNS: Final = ("event_time", "tenant", "event_id", "event_type", "arrival", "slice", "line", "payload")
NO_ARRIVALS: Final = Arrivals()
_STAMP: Final = pa.timestamp("us", tz="UTC")
ROWS: Final = pa.schema(
    [
        pa.field("event_time", _STAMP),
        pa.field("tenant", pa.string()),
        pa.field("event_id", pa.string()),
        pa.field("event_type", pa.string()),
        pa.field("arrival", _STAMP),
        pa.field("slice", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("payload", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class SearchFacts:
    """Statistics of a search. Parts are those of raw."""

    parts: int
    pruned: int  # parts that can hold nothing of the tenant and the span
    unread: int  # parts that were not needed once the page was full
    scanned: int  # parts without an index, whose payloads were read for WHERE
    scanned_rows: int  # in those
    index_entries: int
    index_groups: int
    rows_fetched: int  # rows whose time, tenant and slice were read
    rows_filtered: int  # rows whose payload was read
    raw_version: int
    index_version: int | None


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page."""

    rows: pa.Table  # ROWS
    total: int | None  # rows on all pages, if requested
    cursor: str | None  # of the next page; None: this is the last one
    tenant: str | None  # None: of all tenants
    span: Interval | None
    facts: SearchFacts
    completeness: Completeness


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What a search would read, at most."""

    tenant: str | None  # None: of all tenants
    span: Interval | None
    order: str
    parts: int
    pruned: int
    scanned: int  # parts without an index
    scanned_rows: int
    index_groups: int
    index_entries: int
    payloads: bool  # whether payloads are read before a page is complete
    indexed: tuple[str, ...]
    raw_version: int
    index_version: int | None
    completeness: Completeness


@dataclass(frozen=True, slots=True)
class SearchInputs:
    """What is searched: snapshots of raw and of the index (None: there is none), and the state of the ledger.

    `bound` is the offset of the last slice that was accepted when or before the snapshot was taken: read it
    first. `seqs` gives the offset of a slice. Raw before `raw_from` has expired.
    """

    stream: str
    raw: Snapshot
    index: Snapshot | None
    indexed: tuple[str, ...]
    bound: int
    seqs: Callable[[str], int | None]
    raw_from: int | None = None
    lost: Sequence[Interval] = ()  # spans of parts of raw that are damaged and cannot be made again
    types: Mapping[str, str] = field(default_factory=dict)  # of declared paths
    timezone: str | None = None  # of instants without an offset


def search(
    over: SearchInputs,
    search_: Search,
    *,
    tenant: str | None,
    now: int,
    cursor: str | None = None,
    limit: int | None = None,
    total: bool = False,
    engine: Engine | None = None,
    arrivals: Arrivals = NO_ARRIVALS,
) -> SearchPage:
    """One page; `tenant` None: for all. `limit` overrides the LIMIT of the text. With an engine the parts are
    searched on Spark, else in process."""
    check(search_, over, tenant)
    size = _limit(search_.limit if limit is None else limit)
    identity = identity_of(search_, over.stream, tenant)
    at = read_cursor(cursor, identity) if cursor is not None else None
    span = at.span if at is not None else _span(search_, now, over.timezone)
    bound = min(at.bound, over.bound) if at is not None else over.bound
    order, descending = _order(search_)
    scope = SearchScope(
        where=search_.where, filter=search_.filter, indexed=over.indexed, span=span, tenant=tenant,
        order=order, descending=descending, bound=bound,
        after=at.after if at is not None else None,
        limit=size + 1,  # one more shows whether there is another page
        total=total,
    )  # fmt: skip
    parts = _ordered(_parts(over, span, tenant), scope)
    offsets = lru_cache(maxsize=None)(over.seqs)  # every row group has the same few slices
    units = [_unit(over, scope, number, part, offsets) for number, part in enumerate(parts)]
    hits = _on_engine(engine, units) if engine is not None else _in_process(units, parts)
    page, more = _page(hits, scope, size)
    rows = _rows([unit.raw for unit in units], page)
    return SearchPage(
        rows=rows,
        total=sum(hit.total or 0 for hit in hits) if total else None,
        cursor=Cursor(span, bound, _last(page)).text(identity) if more else None,
        tenant=tenant,
        span=span,
        facts=_facts(over, search_, units, hits),
        completeness=_completeness(over, span, arrivals),
    )


def explain(
    over: SearchInputs, search_: Search, *, tenant: str | None, now: int, arrivals: Arrivals = NO_ARRIVALS
) -> SearchPlan:
    """What `search` would read for the first page with a total; only statistics of the index are read."""
    check(search_, over, tenant)
    span = _span(search_, now, over.timezone)
    order, descending = _order(search_)
    parts = _parts(over, span, tenant)
    groups = entries = scanned = scanned_rows = 0
    for part in parts:
        path = _index_of(over, part)
        if search_.where is None:
            continue
        if path is None:
            scanned += 1
            scanned_rows += part.rows
            continue
        with index_source(path, part.rows, {}) as source:
            found = Matcher(source).would_read(search_.where)
        groups, entries = groups + found[0], entries + found[1]
    return SearchPlan(
        span=span, order=f"{order} {'desc' if descending else 'asc'}", parts=len(over.raw.parts),
        pruned=len(over.raw.parts) - len(parts), scanned=scanned, scanned_rows=scanned_rows,
        index_groups=groups, index_entries=entries, payloads=search_.filter is not None or scanned > 0,
        indexed=over.indexed, raw_version=over.raw.version,
        index_version=over.index.version if over.index is not None else None,
        tenant=tenant, completeness=_completeness(over, span, arrivals),
    )  # fmt: skip


def _completeness(over: SearchInputs, span: Interval | None, arrivals: Arrivals) -> Completeness:
    """The completeness of a search: what expired from raw cannot be found."""
    requested = span or Interval(MIN_INSTANT, MAX_INSTANT)
    gone = over.raw_from
    missing = []
    if gone is not None and requested.start < gone:
        missing.append(
            Missing(
                Interval(requested.start, min(gone, requested.end)),
                "expired",
                f"the events before {format_instant(gone)} have expired",
                "Rollups may still have their numbers; a longer retention.raw keeps events longer",
            )
        )
    missing += [
        damaged(part, "raw", PUT_BACK)
        for one in over.lost
        for part, is_lost in cut(requested, [one])
        if is_lost
    ]
    return completeness(arrivals, span, None, missing)


# -- the request


def check(search_: Search, over: SearchInputs, tenant: str | None) -> None:
    """Check that WHERE names only indexed paths (and `tenant`, in a search over all tenants), and compares
    declared ones with values of their type."""
    known = {*over.indexed, *((TENANT,) if tenant is None else ())}
    for path in paths_in(search_.where):
        dotted = any("." in step for step in path.segments)
        if dotted or name_of(path) not in known:
            listed = (
                f"indexed: {', '.join(sorted(known))}" if known else "the stream declares no indexed paths"
            )
            near = closest(name_of(path), sorted(known))
            guess = f"did you mean {near}? " if near else ""
            raise QueryError(
                f"{path.text} is not indexed",
                hint=f"{guess}{listed}; conditions on other paths go after FILTER",
                position=path.position,
            )
    for condition in (search_.where, search_.filter):
        check_types(condition, over.types)


def _limit(size: int | None) -> int:
    if size is None:
        return DEFAULT_LIMIT
    if not 1 <= size <= MOST_LIMIT:
        raise QueryError(f"a page cannot have {size} rows", hint=f"LIMIT is 1 to {MOST_LIMIT}")
    return size


def _order(search_: Search) -> tuple[Order, bool]:
    if not search_.order:
        return "ts", True
    if len(search_.order) > 1:
        raise QueryError("a search has one order", hint="ORDER BY ts or ORDER BY arrival, with ASC or DESC")
    name, descending = search_.order[0]
    if name == "ts":
        return "ts", descending
    if name == "arrival":
        return "arrival", descending
    raise QueryError(f"events cannot be ordered by {name}", hint="ORDER BY ts or ORDER BY arrival")


def _span(search_: Search, now: int, zone: str | None) -> Interval | None:
    if isinstance(search_.time, Since):  # however long: data start in the year 1
        return Interval(max(MIN_INSTANT, now - search_.time.duration), now)
    return span_of(search_.time, now, zone)


# -- parts


def _parts(over: SearchInputs, span: Interval | None, tenant: str | None) -> list[Part]:
    ranges: dict[str, tuple[int | str, int | str]] = {}
    if span is not None:
        ranges["event_time"] = (span.start, span.end - 1)
    if tenant is not None:
        ranges[TENANT] = (tenant, tenant)
    return [part for part in over.raw.select(ranges=ranges) if part.rows]


def _ordered(parts: Sequence[Part], scope: SearchScope) -> list[Part]:
    """Parts that can hold the first rows come first; those of earlier pages are left out."""
    if scope.order != "ts":
        return list(parts)
    parts = [part for part in parts if not _is_before(part, scope)]
    return sorted(parts, key=lambda part: _edge(part, scope), reverse=scope.descending)


def _is_before(part: Part, scope: SearchScope) -> bool:
    low, high = part.mins.get("event_time"), part.maxs.get("event_time")
    return isinstance(low, int) and isinstance(high, int) and is_before(low, high, scope)


def _edge(part: Part, scope: SearchScope) -> int:
    """No row of the part comes before this instant in the order of the search."""
    edges = part.maxs if scope.descending else part.mins
    found = edges.get("event_time")
    return found if isinstance(found, int) else 2**63 - 1 if scope.descending else -(2**63)


def _index_of(over: SearchInputs, part: Part) -> str | None:
    if over.index is None or not over.indexed:
        return None
    found = over.index.by_name.get(index_path(part, over.indexed))
    return f"{over.index.root}/{found.path}" if found is not None else None


def _unit(
    over: SearchInputs, scope: SearchScope, number: int, part: Part, offsets: Callable[[str], int | None]
) -> FindUnit:
    raw = f"{over.raw.root}/{part.path}"
    return FindUnit(scope, number, raw, part.rows, _index_of(over, part), offsets)


def _in_process(units: Sequence[FindUnit], parts: Sequence[Part]) -> list[Hits]:
    """A few parts at a time, until no other can have a row of the page."""
    hits: list[Hits] = []
    at_once = default_cores()
    with ThreadPoolExecutor(at_once) as pool:
        for start in range(0, len(units), at_once):
            if hits and _is_full(hits, units[0].scope, parts[start]):
                break
            hits.extend(hit for found in pool.map(_found, units[start : start + at_once]) for hit in found)
    return hits


def _found(unit: FindUnit) -> list[Hits]:
    return list(find(unit))


def _is_full(hits: Sequence[Hits], scope: SearchScope, following: Part) -> bool:
    if scope.total or scope.order != "ts":
        return False
    values = np.sort(np.concatenate([hit.value for hit in hits]))
    if values.size < scope.limit:
        return False
    edge = _edge(following, scope)
    if scope.descending:
        return bool(edge < values[-scope.limit])
    return bool(edge > values[scope.limit - 1])


def _on_engine(engine: Engine, units: Sequence[FindUnit]) -> list[Hits]:
    """Another process has no access to the ledger: it gets the offsets of the slices of its part."""
    listed = engine.run(slices_of, [SlicesUnit(unit.raw) for unit in units], "slices to search")
    numbered = []
    for unit, slices in zip(units, listed, strict=True):
        offsets = {name: unit.seqs(name) for name in slices}
        known = KnownRows({name: offset for name, offset in offsets.items() if offset is not None})
        numbered.append(replace(unit, seqs=known))
    return engine.run(find, numbered, "search")


# -- the page


@dataclass(frozen=True, slots=True)
class _Page:
    part: np.ndarray
    row: np.ndarray
    key: np.ndarray  # value, seq and line of each row


def _page(hits: Sequence[Hits], scope: SearchScope, size: int) -> tuple[_Page, bool]:
    empty = np.empty(0, np.int64)
    part = np.concatenate([empty, *(np.full(hit.row.size, hit.number) for hit in hits)])
    columns = [
        np.concatenate([empty, *(getattr(hit, name) for hit in hits)])
        for name in ("value", "seq", "line", "row")
    ]
    value, seq, line, row = columns
    order = np.lexsort((line, seq, value))
    if scope.descending:
        order = order[::-1]
    order, more = order[:size], order.size > size
    return _Page(part[order], row[order], np.stack([value[order], seq[order], line[order]], 1)), more


def _last(page: _Page) -> tuple[int, int, int]:
    value, seq, line = page.key[-1].tolist()
    return value, seq, line


def _rows(raw: Sequence[str], page: _Page) -> pa.Table:
    """The events of the page, in order."""
    if not page.row.size:
        return ROWS.empty_table()
    units: list[_Fetch] = []
    offsets: list[np.ndarray] = []
    for part in np.unique(page.part).tolist():
        of_part = np.flatnonzero(page.part == part)
        of_part = of_part[np.argsort(page.row[of_part], kind="stable")]
        units.extend(_fetches(raw[part], page.row[of_part]))
        offsets.append(of_part)
    back = np.empty(page.row.size, np.int64)
    back[np.concatenate(offsets)] = np.arange(page.row.size)
    with ThreadPoolExecutor(min(len(units), default_cores())) as pool:
        pieces = list(pool.map(_fetched, units))
    return pa.concat_tables(pieces).take(pa.array(back)).combine_chunks()


@dataclass(frozen=True, slots=True)
class _Fetch:
    """Rows of one row group."""

    path: str
    group: int
    inside: pa.Array


def _fetches(path: str, rows: np.ndarray) -> Iterator[_Fetch]:
    """Rows of a part, in ascending order, by row group."""
    metadata = metadata_of(path)
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    groups = np.searchsorted(starts, rows, "right") - 1
    for group in np.unique(groups).tolist():
        yield _Fetch(path, group, pa.array(rows[groups == group] - starts[group]))


def _fetched(unit: _Fetch) -> pa.Table:
    with open_part(unit.path, metadata=metadata_of(unit.path)) as file:
        payloads = PartPayloads(declared_in(file, unit.path))
        names = list(dict.fromkeys([*COLUMNS, *payloads.names]))
        table = file.read_row_group(unit.group, names, use_threads=False).take(unit.inside)
    return payloads.put_back(table).select(list(COLUMNS)).cast(ROWS)


def _facts(
    over: SearchInputs, search_: Search, units: Sequence[FindUnit], hits: Sequence[Hits]
) -> SearchFacts:
    read = {hit.number for hit in hits}
    scanned = [
        unit for unit in units if unit.number in read and unit.index is None and search_.where is not None
    ]
    return SearchFacts(
        parts=len(over.raw.parts),
        pruned=len(over.raw.parts) - len(units),
        unread=len(units) - len(hits),
        scanned=len(scanned),
        scanned_rows=sum(unit.rows for unit in scanned),
        index_entries=sum(hit.entries for hit in hits),
        index_groups=sum(hit.groups for hit in hits),
        rows_fetched=sum(hit.fetched for hit in hits),
        rows_filtered=sum(hit.filtered for hit in hits),
        raw_version=over.raw.version,
        index_version=over.index.version if over.index is not None else None,
    )
