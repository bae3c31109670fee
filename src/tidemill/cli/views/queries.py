"""Views of answers, search results and the catalog.

Only `Text` goes into a cell, so that nothing from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import (
    ID_LETTERS,
    PAYLOAD_LETTERS,
    Note,
    View,
    cell,
    line,
    listing,
    many,
    pairs_table,
)
from tidemill.model.time import format_instant, open_span
from tidemill.pipeline.documents.search import spelled
from tidemill.pipeline.documents.sql import value as spelled_value

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.model.completeness import Completeness
    from tidemill.outputs.index.attributes import Attribute, Attributes
    from tidemill.query import Answer, Explanation
    from tidemill.query.as_of import Change
    from tidemill.query.catalog import MetricFacts, StreamFacts
    from tidemill.query.cell import Cell
    from tidemill.query.plain_sql.service import SqlAnswer
    from tidemill.query.search.search import SearchFacts, SearchPage, SearchPlan

_PLAN: Final = ["explain_key", "explain_value"]  # the columns of EXPLAIN


def answer(of: Answer) -> View:
    yield _rows(of.table)
    yield line((_facts(of), "dim"))
    yield from _completeness(of.completeness)


def sql(of: SqlAnswer) -> View:
    plan = of.schema.names == _PLAN
    if plan:
        yield line(escaped("\n".join(of.table.column(_PLAN[1]).to_pylist()), lines=True))
    else:
        yield _rows(of.table)
    yield line((many(of.table.num_rows, "row"), "dim"))
    for text in of.lines():
        yield line((escaped(text), "dim" if of.is_complete else "yellow"))


def sql_views(of: Mapping[str, Sequence[tuple[str, str]]]) -> View:
    for view, columns in of.items():
        yield pairs_table(view, [(name, Text(kind)) for name, kind in columns])


def explanation(of: Explanation) -> View:
    yield line(escaped(str(of), lines=True))


def search_page(of: SearchPage) -> View:
    yield _search_rows(of.rows) if of.rows.num_rows else line("no events")
    yield line((_search_facts(of), "dim"))
    yield from _completeness(of.completeness)
    if of.cursor is not None:
        yield line("next page: ", (f"--cursor {of.cursor}", "bold"))


def catalog(streams: Sequence[StreamFacts]) -> View:
    for stream in streams:
        yield from _stream(stream)
    if any(stream.attributes is None for stream in streams):
        yield Note("`indexed: [PATH, …]` of a stream makes attributes that a search can name in WHERE")


def _rows(rows: pa.Table) -> Table:
    import pyarrow.types as types

    numbers = [
        field.name for field in rows.schema if types.is_integer(field.type) or types.is_decimal(field.type)
    ]
    table = listing(*rows.column_names, right=numbers)
    for values in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        table.add_row(*(Text(cell(spelled_value(value))) for value in values))
    return table


def _facts(answer: Answer) -> str:
    return (
        f"{many(answer.table.num_rows, 'row')} from level {answer.level}; {many(answer.rows_read, 'row')} in "
        f"{many(answer.files_read, 'file')} read; version {answer.version}"
    )


def _search_rows(rows: pa.Table) -> Table:
    table = listing("time", "tenant", "id", "type", "payload")
    for row in rows.to_pylist():
        text = escaped(row["payload"] or "")
        table.add_row(
            *(Text(cell(row[name])) for name in ("event_time", "tenant", "event_id", "event_type")),
            Text(text[:PAYLOAD_LETTERS] + ("…" if len(text) > PAYLOAD_LETTERS else "")),
        )
    return table


def _search_facts(of: SearchPage) -> str:
    """Return how many events were found, and how much was read for them."""
    total = "" if of.total is None else f" of {of.total:,}"
    return "; ".join([f"{many(of.rows.num_rows, 'event')}{total}", *_took(of.facts)])


def _took(facts: SearchFacts) -> Iterator[str]:
    unread = f", {facts.unread:,} not needed" if facts.unread else ""
    yield f"{many(facts.parts, 'part')}, {facts.pruned:,} pruned{unread}"
    entries = "1 index entry" if facts.index_entries == 1 else f"{facts.index_entries:,} index entries"
    yield f"{entries}, {many(facts.rows_fetched, 'row')} fetched"
    if facts.rows_filtered:
        yield f"{many(facts.rows_filtered, 'payload')} looked into"
    if facts.scanned:
        yield f"{many(facts.scanned, 'part')} with {many(facts.scanned_rows, 'row')} not indexed yet"
    yield f"version {facts.raw_version}"


def _completeness(of: Completeness) -> Iterator[Text]:
    """Yield how complete an answer is: one sentence, and a warning for each thing that is missing."""
    first, *warnings = of.lines()
    as_of = f" Includes what arrived up to {format_instant(of.as_of)}." if of.as_of is not None else ""
    yield line((f"{first}{as_of}", "dim"))
    for text in warnings:
        yield line((escaped(text), "yellow"))


def plan(stream: str, of: SearchPlan) -> View:
    scanned = f"{many(of.scanned, 'part')} with {many(of.scanned_rows, 'row')}" if of.scanned else "none"
    payloads = "looked into before a page is cut" if of.payloads else "only those of the page"
    index = "none" if of.index_version is None else f"version {of.index_version}"
    pairs = {
        "tenant": "all" if of.tenant is None else of.tenant,
        "span": "all time" if of.span is None else str(of.span),
        "order": of.order,
        "parts": f"{of.parts:,} of version {of.raw_version}, {of.pruned:,} pruned",
        "index": f"{index}; at most {of.index_entries:,} entries in {many(of.index_groups, 'group')}",
        "not indexed yet": scanned,
        "payloads": payloads,
        "indexed": ", ".join(of.indexed) or "nothing: conditions go after FILTER",
        "complete": str(of.completeness),
    }
    yield pairs_table(f"search of {stream}", [(name, Text(escaped(text))) for name, text in pairs.items()])


def _stream(of: StreamFacts) -> Iterator[Table]:
    pairs = {
        "description": of.description,
        "keywords": ", ".join(of.keywords),
        "source links": ", ".join(of.source_links),
        "tenants": "" if of.tenants is None else str(of.tenants) or "none yet",
        "event types": ", ".join(of.event_types) or "any",
        "fields": ", ".join(f"{name} {kind}" for name, kind in of.fields),
        "windows": ", ".join(of.windows),
        "indexed": _looked_at(of.attributes),
    }
    yield pairs_table(of.stream, [(name, Text(escaped(text))) for name, text in pairs.items() if text])
    if of.metrics:
        yield _metrics(of.metrics)
    if of.attributes is not None and of.attributes.attributes:
        yield _attributes(of.attributes)


def _looked_at(of: Attributes | None) -> str:
    if of is None:
        return "nothing"
    left = f"; {many(of.left_out, 'part')} left out" if of.left_out else ""
    return f"{many(of.events, 'event')} in {many(of.parts, 'part')}{left}"


def _metrics(metrics: Sequence[MetricFacts]) -> Table:
    table = listing("metric", "kind", "dimensions", "values", "of", "filter", "remarks")
    for of in metrics:
        most = f"{of.max_cardinality:,} keys at most" if of.max_cardinality is not None else ""
        table.add_row(
            Text(escaped(of.name), style="bold"),
            of.kind,
            *(Text(escaped(", ".join(words))) for words in (of.dimensions, of.values, of.of)),
            Text(escaped(of.filter or "")),
            Text(escaped("; ".join(filter(None, (of.detail, most))))),
        )
    return table


def _attributes(of: Attributes) -> Table:
    table = listing("attribute", "kind", "events", "values", "most frequent", right=("events", "values"))
    for one in of.attributes:
        table.add_row(
            Text(escaped(one.path), style="bold"),
            Text(", ".join(one.kinds)),
            f"{one.events:,}",
            f"{one.distinct:,}{'+' if one.is_more else ''}",
            Text(_top(one)),
        )
    return table


def _top(of: Attribute) -> str:
    named = [(spelled(v) if isinstance(v, Decimal) else cell(v), count) for v, count in of.top]
    return ", ".join(f"{value} ({count:,})" for value, count in named)


def changes(found: Sequence[Change], total: int) -> View:
    """Slices that changed a span, oldest first."""
    if not found:
        yield line("nothing has changed since")
        return
    table = listing("at", "what", "slice", "rows", "late", "events", "name", right=("rows", "late"))
    for one in found:
        new, counts = one.entry.slice, one.entry.counts
        table.add_row(
            Text(format_instant(one.at)),
            Text("retracted" if one.retracted else "arrived"),
            Text(new.id[:ID_LETTERS]),
            f"{counts.accepted:,}",
            f"{counts.late:,}",
            Text(str(one.entry.observed or "-")),
            Text(escaped(new.name)),
        )
    yield table
    if total > len(found):
        yield Note(f"the first {len(found)} of {total:,}; --limit 0 lists all")


def _counts_as(event: Mapping[str, object]) -> str:
    """What an event is in a cell: one that metrics count, an object's state, or a transition."""
    if "rule" in event:
        return f"{event['from_state']} -> {event['to_state']}"
    if "state" in event:
        return str(event["state"])
    metrics = event["metrics"]
    return ", ".join(metrics) if isinstance(metrics, list) else ""


def composition(of: Cell) -> View:
    """What one row of an answer is made of."""
    values = [(name, Text(escaped(cell(value)))) for name, value in (*of.group.items(), *of.values.items())]
    yield pairs_table(f"{of.answer.stream}.{of.answer.metric} {open_span(of.span) or of.span}", values)
    yield line("read from ", ", ".join(str(piece) for piece in of.pieces) or "nothing")
    slices = listing("slice", "arrived", "events", "late", "name", right=("events", "late"))
    for one in of.slices:
        new = one.entry.slice
        arrived = Text(format_instant(new.arrival))
        slices.add_row(
            Text(new.id[:ID_LETTERS]),
            arrived,
            f"{one.rows:,}",
            "-" if one.late is None else f"{one.late:,}",
            Text(escaped(new.name)),
        )
    yield slices
    events = listing("event time", "id", "counts as", "payload")
    for event in of.events:
        payload = "expired" if event["payload"] is None else escaped(str(event["payload"]))
        events.add_row(
            Text(cell(event["event_time"])),
            Text(escaped(str(event["event_id"]))),
            Text(escaped(_counts_as(event))),
            Text(payload[:PAYLOAD_LETTERS]),
        )
    yield events
    if of.more:
        yield Note(f"the first {len(of.events)} of {of.total:,} events; `GET /v1/query/cell` has all")
