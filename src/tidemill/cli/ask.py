"""Commands that ask: query, search, catalog. They read, and start no JVM unless --engine spark says so.

What is read and how is decided below; here only whose events are meant.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemill.cli.app import Panel, command
from tidemill.cli.session import OK, Session
from tidemill.cli.tenants import AllTenants, Tenant, tenant_of
from tidemill.model.errors import InputError

if TYPE_CHECKING:
    from tidemill.mill import Mill

MOST_BYTES: Final = 4_000_000  # of a text on standard input; what is longer is refused below


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
    "tidemill query - --engine spark < query.txt",
)
def query(
    session: Session,
    text: Annotated[
        str, typer.Argument(help="The query, as text or as a JSON document; - reads it from standard input.")
    ],
    tenant: Tenant = None,
    all_tenants: AllTenants = False,
    engine: Annotated[QueryEngine, typer.Option(help="What reads the rollups.")] = QueryEngine.DUCKDB,
) -> int:
    """Ask the rollups, in process; the answer says its level, how complete its span is and how fresh it is.

    A query runs for one tenant: the one that is named, or the only one there is. docs/query.md has the
    language on one page.
    """
    asked = _typed(text)
    with _open(session, on_spark=engine is QueryEngine.SPARK) as mill:
        stream = _asked_for(asked)
        if stream in mill.project.streams:  # about another one the plan has more to say
            tenant = tenant_of(mill, stream, "rollups", tenant, everyone=all_tenants)
        found = mill.ask(asked, tenant=tenant, engine=engine.value)
    from tidemill.query import Explanation

    if isinstance(found, Explanation):
        session.out.explanation(found)
    else:
        session.out.answer(found)
    return OK


@command(
    "search",
    Panel.ASK,
    """tidemill search requests 'WHERE region = "eu" AND status >= 500 SINCE 2h LIMIT 20'""",
    """tidemill search requests 'WHERE status = 404 FILTER api LIKE "/cart%"' --tenant acme --total""",
    "tidemill search requests 'EXPLAIN WHERE status != 200' --all-tenants",
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
        str | None, typer.Option(metavar="C", help="Go on behind the page that gave this cursor.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Events of a page; goes before LIMIT.")
    ] = None,
    engine: Annotated[SearchEngine, typer.Option(help="Where the parts are searched.")] = SearchEngine.LOCAL,
) -> int:
    """Find accepted events by what their payload holds, a page at a time, the newest first.

    WHERE is on indexed paths, FILTER on any path of the payload. Without a text it shows the newest events.
    A search runs for one tenant: the one that is named, or the only one there is. docs/search.md has it all
    on one page.
    """
    asked = _typed(text)
    with _open(session, on_spark=engine is SearchEngine.SPARK) as mill:
        whose = tenant_of(mill, stream, "raw", tenant, everyone=all_tenants)
        found = mill.search(
            stream, asked, tenant=whose, cursor=cursor, limit=limit, total=total, engine=engine.value
        )
    from tidemill.search.searching import SearchPlan

    if isinstance(found, SearchPlan):
        session.out.asked.plan(stream, whose, found)
    else:
        session.out.asked.found(stream, whose, found)
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
    """Show what there is to ask for: streams, event types, metrics with what can be selected of them, and
    indexed attributes with their most frequent values."""
    with session.mill() as mill:
        session.out.asked.catalog(mill.catalog(stream, tenant))
    return OK


def _typed(text: str) -> str:
    """What the user wrote as the argument, or on standard input."""
    if text != "-":
        return text
    given = sys.stdin.buffer.read(MOST_BYTES)
    try:
        return given.decode()
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8", hint="save the text as UTF-8") from None


def _asked_for(asked: str) -> str:
    """The stream that a query names."""
    from tidemill.language.document import query_from
    from tidemill.language.parse import parse

    said = query_from(asked) if asked.lstrip().startswith("{") else parse(asked)
    return said.source.text.partition(".")[0]


@contextmanager
def _open(session: Session, *, on_spark: bool) -> Iterator[Mill]:
    """The mill; when Spark is asked for, with its noise kept from the terminal."""
    if not on_spark:
        with session.mill() as mill:
            yield mill
        return
    with session.working() as progress, session.mill(progress) as mill:
        yield mill
