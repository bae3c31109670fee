"""The entry point of this package: a query (text or JSON document) in, an answer or an explanation out. Reads
no clock: `now` (for SINCE) and the watermark are passed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidemill.model.completeness import Arrivals
from tidemill.model.errors import QueryError
from tidemill.model.time import Interval
from tidemill.query.answer import Answer, Engine, Explanation
from tidemill.query.as_of import Past
from tidemill.query.language.ast import Moment, Query
from tidemill.query.language.document import Document, query_from
from tidemill.query.language.parse import parse, pointed
from tidemill.query.language.time_clauses import instant_of
from tidemill.query.language.unparse import text_of
from tidemill.query.plan import Plan, declared_stream, make_plan, zone_of
from tidemill.query.run import PlanReader, Runner
from tidemill.query.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.config import Stream

# Imports inside functions keep start-up short: an answer from rollups loads neither Numba nor what reads raw.

NO_ARRIVALS: Final = Arrivals()


class Querier:
    """Answers queries over the rollups of the declared streams."""

    def __init__(
        self,
        streams: Mapping[str, Stream],
        source_for: Callable[[str], Source],
        runner: Runner | None = None,
        spark: Callable[[], SparkSession] | None = None,
    ) -> None:
        """`spark` gives the session for `engine="spark"`; it is called only then."""
        self._streams = streams
        self._source_for = source_for
        self._runner = runner or Runner()
        self._spark = spark

    def ask(
        self,
        text_or_document: str | Document,
        *,
        tenant: str | Callable[[str], str | None] | None,
        now: int,
        arrivals: Arrivals | Callable[[str, Interval | None], Arrivals] = NO_ARRIVALS,
        engine: str = "duckdb",
        strict: bool = False,
        as_of: Moment | None = None,
        past: Callable[[Plan, int], Past] | None = None,
    ) -> Answer | Explanation:
        """The answer to a text or a document, for one tenant, or for all (None: for an administrator). With
        `strict`, IncompleteError if something is missing or pending.

        `tenant` may be a function that is called with the stream, once it is known to be declared. `arrivals`
        are those of the stream, or a function that is called with its name and the time that can change the
        answer (None: any). `as_of` is as AS OF in the text; `past` gives the past of a stream, as far as it
        concerns a plan.
        """
        on = _engine(engine)
        query, plan, at = self._planned(text_or_document, tenant, now, as_of)
        # Pending data first, then the tables: what is built meanwhile is in the answer and reported as
        # pending.
        known = arrivals(plan.stream, plan.touched) if callable(arrivals) else arrivals
        then = past(plan, at) if at is not None and past is not None else None
        if then is not None and then.changed:
            plan = replace(plan, past=then)
            waiting = tuple(one for one in known.pending if then.waits and one.what != "tiles")
            known = Arrivals(then.watermark if plan.tenant is None else None, waiting, then.newest)
        source = self._source_for(plan.stream)
        if query.explain:
            return self._runner.explain(plan, source, known, on)
        answer = self._runner.run(plan, source, known, self._reader() if on == "spark" else None)
        if strict:
            answer.completeness.check()
        return replace(answer, past=then, plan=plan)

    def explain(self, query: str | Document, *, tenant: str | None, now: int) -> Explanation:
        """What `ask` would do, with or without EXPLAIN in front of the text."""
        _, plan, _ = self._planned(query, tenant, now, None)
        return self._runner.explain(plan, self._source_for(plan.stream), NO_ARRIVALS)

    def close(self) -> None:
        self._runner.close()

    def _reader(self) -> PlanReader:
        from tidemill.query.spark import SparkReader

        if self._spark is None:
            raise QueryError("there is no Spark session here", hint="use the engine duckdb")
        return SparkReader(self._spark())

    def _planned(
        self,
        text_or_document: str | Document,
        tenant: str | Callable[[str], str | None] | None,
        now: int,
        as_of: Moment | None,
    ) -> tuple[Query, Plan, int | None]:
        """The plan; with AS OF, SINCE and now refer to that instant too."""
        if isinstance(text_or_document, str) and not text_or_document.lstrip().startswith("{"):
            query, text = parse(text_or_document), text_or_document
        else:
            query = query_from(text_or_document)
            text = text_of(query)
        try:
            stream = declared_stream(query, self._streams)
            tenants = tenant(stream.name) if callable(tenant) else tenant
            at = _instant(query, as_of, now, zone_of(query, stream))
            plan = make_plan(query, self._streams, tenant=tenants, now=now if at is None else at)
            return query, plan, at
        except QueryError as error:
            raise pointed(error, text) from None


def _instant(query: Query, as_of: Moment | None, now: int, zone: str | None) -> int | None:
    """The instant of AS OF, in the time zone of the query; None without it."""
    clause = query.as_of
    if clause is not None and as_of is not None:
        hint = "give it in the query or beside it"
        raise QueryError("AS OF is given twice", hint=hint, position=clause.position)
    moment = clause.moment if clause is not None else as_of
    if moment is None:
        return None
    at, position = instant_of(moment, now, zone), clause.position if clause is not None else None
    if at > now:
        hint = "use an instant in the past, or so long ago: 1h"
        raise QueryError("AS OF lies in the future", hint=hint, position=position)
    return at


def _engine(name: str) -> Engine:
    match name:
        case "duckdb" | "spark":
            return name
        case _:
            raise QueryError(f"there is no engine {name!r}", hint="engines: duckdb, spark")
