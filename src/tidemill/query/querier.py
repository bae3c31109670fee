"""The one door of this room: a query (text or JSON document) in, an answer or an explanation out.
Reads no clock: `now` (for SINCE) and the watermark are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidemill.language.ast import Query
from tidemill.language.document import Document, query_from
from tidemill.language.parse import parse, pointed
from tidemill.language.written import text_of
from tidemill.model.errors import QueryError
from tidemill.model.time import Interval
from tidemill.query.answer import Answer, Engine, Explanation, Freshness
from tidemill.query.plan import Plan, make_plan
from tidemill.query.run import Reader, Runner
from tidemill.query.source import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.config import Stream


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
        asked: str | Document,
        *,
        tenant: str | None,
        now: int,
        watermark: int | Callable[[str], int | None] | None = None,
        freshness: Callable[[str, Interval | None], Freshness] | None = None,
        engine: str = "duckdb",
    ) -> Answer | Explanation:
        """The answer to a text or a document, for one tenant, or for all of them (None: an administrator's
        choice).

        `watermark` is that of the stream asked for, or a function that gives it by the stream's name;
        `freshness` is told the stream and the time that can change the answer (None: any).
        """
        on = _engine(engine)
        query, plan = self._planned(asked, tenant, now)
        source = self._source_for(plan.stream)
        fresh = freshness(plan.stream, plan.touched) if freshness else None
        if query.explain:
            return self._runner.explain(plan, source, fresh, on)
        mark = watermark(plan.stream) if callable(watermark) else watermark
        return self._runner.run(plan, source, mark, fresh, self._reader() if on == "spark" else None)

    def explain(self, asked: str | Document, *, tenant: str | None, now: int) -> Explanation:
        """What `ask` would do, with or without EXPLAIN in front of the text."""
        _, plan = self._planned(asked, tenant, now)
        return self._runner.explain(plan, self._source_for(plan.stream))

    def close(self) -> None:
        self._runner.close()

    def _reader(self) -> Reader:
        from tidemill.query.spark import SparkReader

        if self._spark is None:
            raise QueryError("there is no Spark session here", hint="use the engine duckdb")
        return SparkReader(self._spark())

    def _planned(self, asked: str | Document, tenant: str | None, now: int) -> tuple[Query, Plan]:
        if isinstance(asked, str) and not asked.lstrip().startswith("{"):
            query, text = parse(asked), asked
        else:
            query = query_from(asked)
            text = text_of(query)
        try:
            return query, make_plan(query, self._streams, tenant=tenant, now=now)
        except QueryError as error:
            raise pointed(error, text) from None


def _engine(name: str) -> Engine:
    match name:
        case "duckdb" | "spark":
            return name
        case _:
            raise QueryError(f"there is no engine {name!r}", hint="engines: duckdb, spark")
