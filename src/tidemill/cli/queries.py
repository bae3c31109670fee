"""Commands that query: query, changes, search, sql, catalog. They only read; --engine spark starts a JVM."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import OK, Session
from tidemill.cli.settings import From, Limit, To, span_of
from tidemill.cli.table_output import checked_target, give, give_batches
from tidemill.model.errors import InputError
from tidemill.model.time import format_instant, since_when
from tidemill.pipeline import documents

if TYPE_CHECKING:
    from tidemill.mill import Mill

# Imports inside functions keep start-up short: a command loads only what it runs.

Tenant = Annotated[str | None, typer.Option(metavar="T", help="Only the events of this tenant.")]
AllTenants = Annotated[
    bool, typer.Option("--all-tenants", metavar="", help="The events of all tenants together.")
]
Strict = Annotated[
    bool, typer.Option("--strict", metavar="", help="Fail when something is missing or pending.")
]
File = Annotated[
    Path | None,
    typer.Option(
        "-o", "--file", metavar="FILE", help="Write the rows to this file: .csv, .parquet, .arrow or .json."
    ),
]
NO_GROUP: Final = "{}"
MOST_BYTES: Final = 4_000_000  # read from standard input; a longer text is refused by the parser


class QueryEngine(StrEnum):
    DUCKDB = "duckdb"
    SPARK = "spark"


class SearchEngine(StrEnum):
    LOCAL = "local"
    SPARK = "spark"


@command(
    "query",
    Panel.ASK,
    "tidemill query 'SELECT count, avg(latency_ms) FROM requests SINCE 1h USING ROLLUP 1m GROUP BY region'",
    "tidemill query 'EXPLAIN SELECT count FROM requests INTERVAL 30s' --tenant acme",
    """tidemill query '{"select": ["count"], "from": "requests", "since": "1h"}' --all-tenants""",
    "tidemill query 'SELECT count FROM requests SINCE 7d INTERVAL 1d' -o week.csv",
    "tidemill query - --engine spark < query.txt",
    gives_tables=True,
)
def query(
    session: Session,
    text: Annotated[
        str, typer.Argument(help="The query, as text or as a JSON document; - reads it from standard input.")
    ],
    tenant: Tenant = None,
    all_tenants: AllTenants = False,
    strict: Strict = False,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="T", help="As it was at this instant of arrival, or so long ago."),
    ] = None,
    cell: Annotated[
        str | None,
        typer.Option(
            "--cell", metavar="START", help="Show what the row with this bucket, or the total, is made of."
        ),
    ] = None,
    group: Annotated[
        str, typer.Option("--group", metavar="JSON", help="With --cell: the values of GROUP BY.")
    ] = NO_GROUP,
    engine: Annotated[
        QueryEngine, typer.Option(help="The engine that reads the rollups.")
    ] = QueryEngine.DUCKDB,
    file: File = None,
) -> int:
    """Query the rollups, in process. The answer shows its level, how complete it is and what is missing.

    A query runs for one tenant: the one that is named, or the only one. docs/query.md describes the
    language.
    """
    kind = checked_target(session, file)
    question = _typed(text)
    if cell is None and group != NO_GROUP:
        raise InputError("--group comes with --cell", hint="add --cell START, or --cell total")
    if cell is not None:
        if strict or file is not None or engine is not QueryEngine.DUCKDB:
            raise InputError("--cell goes without --strict, -o and --engine", hint="leave them out")
        with session.mill() as mill:
            row = mill.cell(
                question, None if cell == "total" else cell, _group(group),
                tenant=tenant, all_tenants=all_tenants, as_of=as_of,
            )  # fmt: skip
            stale = [one.state.key.start for one in mill.state.stale_tiles(row.answer.stream)]
        session.emit(lambda: documents.cell.cell(row, stale), lambda: views.queries.composition(row))
        return OK
    with _open(session, on_spark=engine is QueryEngine.SPARK) as mill:
        found = mill.ask(
            question, tenant=tenant, all_tenants=all_tenants, strict=strict, engine=engine.value, as_of=as_of
        )
    from tidemill.query import Explanation

    if isinstance(found, Explanation):
        session.emit(lambda: documents.shapes.explanation(found), lambda: views.queries.explanation(found))
    elif kind is None:
        session.emit(lambda: documents.shapes.answer(found), lambda: views.queries.answer(found))
    else:
        give(session, found.table, lambda: documents.shapes.answer(found), found.completeness, kind, file)
    return OK


@command(
    "changes",
    Panel.ASK,
    "tidemill changes requests --after 1d",
    "tidemill changes requests --after 2024-01-15T10:00:00Z --from 2024-01-14T00:00:00Z --limit 0",
)
def changes(
    session: Session,
    stream: Annotated[str, typer.Argument(help="A stream of the project.")],
    after: Annotated[
        str, typer.Option("--after", metavar="T", help="After this instant, or after so long ago.")
    ] = "7d",
    start: From = None,
    end: To = None,
    limit: Limit = 50,
) -> int:
    """List the slices that changed a span of a stream after an instant of arrival, oldest first.

    Each arrived, or was retracted. `query --as-of` shows what an answer was between two of them.
    """
    span = span_of(start, end)
    bounds = (None, None) if span is None else (span.start, span.end)
    with session.mill() as mill:
        since = since_when(after, mill.clock())
        found = mill.changes(stream, since, start=bounds[0], end=bounds[1])
    shown = found[:limit] if limit else found
    session.emit(
        lambda: {
            "stream": stream,
            "after": format_instant(since),
            "changes": [documents.shapes.change(one) for one in shown],
            "total": len(found),
        },
        lambda: views.queries.changes(shown, len(found)),
    )
    return OK


@command(
    "search",
    Panel.ASK,
    """tidemill search requests 'WHERE region = "eu" AND status >= 500 SINCE 2h LIMIT 20'""",
    """tidemill search requests 'WHERE status = 404 FILTER api LIKE "/cart%"' --tenant acme --total""",
    "tidemill search requests 'WHERE status >= 500 SINCE 1h' --output parquet -o errors.parquet",
    "tidemill search requests 'EXPLAIN WHERE status != 200' --all-tenants",
    gives_tables=True,
)
def search(
    session: Session,
    stream: Annotated[str, typer.Argument(help="A stream of tidemill.yaml.")],
    text: Annotated[
        str,
        typer.Argument(help="The search, as text or as a JSON document; - reads it from standard input."),
    ] = "",
    tenant: Tenant = None,
    all_tenants: AllTenants = False,
    total: Annotated[
        bool, typer.Option("--total", metavar="", help="Count the events on all pages as well.")
    ] = False,
    cursor: Annotated[
        str | None, typer.Option(metavar="C", help="Continue after the page that returned this cursor.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Events per page; overrides LIMIT.")
    ] = None,
    strict: Strict = False,
    engine: Annotated[
        SearchEngine, typer.Option(help="The engine that searches the parts.")
    ] = SearchEngine.LOCAL,
    file: File = None,
) -> int:
    """Find accepted events by their payload, a page at a time, the newest first.

    WHERE is on indexed paths, FILTER on any path of the payload. Without a text it shows the newest events.
    A search runs for one tenant: the one that is named, or the only one. docs/search.md describes the
    language.
    """
    kind = checked_target(session, file)
    question = _typed(text)
    with _open(session, on_spark=engine is SearchEngine.SPARK) as mill:
        found = mill.search(
            stream, question, tenant=tenant, all_tenants=all_tenants, cursor=cursor, limit=limit, total=total,
            strict=strict, engine=engine.value,
        )  # fmt: skip
    from tidemill.query.search.search import SearchPlan

    if isinstance(found, SearchPlan):
        session.emit(lambda: documents.search.plan(stream, found), lambda: views.queries.plan(stream, found))
    elif kind is None:
        session.emit(lambda: documents.search.page(stream, found), lambda: views.queries.search_page(found))
    else:
        give(
            session, found.rows, lambda: documents.search.page(stream, found), found.completeness, kind, file
        )
        if found.cursor is not None:
            session.note(f"next page: --cursor {found.cursor}")
    return OK


@command(
    "sql",
    Panel.ASK,
    "tidemill sql",
    "tidemill sql 'SELECT tenant, count(*) AS events FROM raw.requests GROUP BY ALL' --all-tenants",
    """tidemill sql "SELECT bucket, count FROM rollups.requests WHERE level = '1h'" --all-tenants""",
    "tidemill sql 'SELECT * FROM raw.requests' --tenant acme -o requests.parquet",
    "tidemill sql - --all-tenants --output csv < statement.sql",
    gives_tables=True,
)
def sql(
    session: Session,
    text: Annotated[
        str,
        typer.Argument(
            help="One SELECT of DuckDB's SQL; - reads it from standard input. By default: the views."
        ),
    ] = "",
    tenant: Tenant = None,
    all_tenants: AllTenants = False,
    strict: Strict = False,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory that the statement may use; by default sql.memory."),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Time after which the statement is stopped; by default sql.timeout."
        ),
    ] = None,
    file: File = None,
) -> int:
    """Run one SQL statement over the tables, in process, at one snapshot; without one, list the views.

    The views are raw.STREAM, rollups.STREAM, datasets.STREAM, windows.STREAM_WINDOW and quarantine.STREAM. It
    only reads, and nothing but these views. A statement runs for one tenant: the one that is named, or the
    only one. docs/sql.md describes the views.
    """
    kind = checked_target(session, file)
    statement = _typed(text)
    with session.mill() as mill:
        if not statement.strip():
            found = mill.sql_views()
            session.emit(lambda: documents.sql.views(found), lambda: views.queries.sql_views(found))
            return OK
        with mill.sql(
            statement, tenant=tenant, all_tenants=all_tenants, strict=strict, memory=memory, timeout=timeout
        ) as answer:
            if kind is None:
                session.emit(lambda: documents.sql.answer(answer), lambda: views.queries.sql(answer))
            else:
                give_batches(
                    session, answer.schema, answer.batches(), lambda: documents.sql.answer(answer),
                    answer.lines(), kind, file,
                )  # fmt: skip
    return OK


@command(
    "catalog",
    Panel.ASK,
    "tidemill catalog",
    "tidemill catalog requests --tenant acme",
    "tidemill catalog --output json",
)
def catalog(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="By default all streams.")] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="T", help="Count values in the events of this tenant only.")
    ] = None,
) -> int:
    """Show what can be queried: streams, event types, metrics with what can be selected of them, and
    indexed attributes with their most frequent values."""
    with session.mill() as mill:
        streams = mill.catalog(stream, tenant)
    session.emit(lambda: documents.search.catalog(streams), lambda: views.queries.catalog(streams))
    return OK


def _group(text: str) -> dict[str, object]:
    try:
        found = json.loads(text, parse_float=Decimal)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError("--group is not a JSON object", hint="""give one such as '{"region": "eu"}'""")
    return found


def _typed(text: str) -> str:
    """Return the text of the argument, or standard input for `-`."""
    if text != "-":
        return text
    content = sys.stdin.buffer.read(MOST_BYTES)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8", hint="save the text as UTF-8") from None


@contextmanager
def _open(session: Session, *, on_spark: bool) -> Iterator[Mill]:
    """Open the mill; with the Spark engine, its log output is kept from the terminal."""
    if not on_spark:
        with session.mill() as mill:
            yield mill
        return
    with session.working() as progress, session.mill(progress) as mill:
        yield mill
