"""The one door of this room: a query text in, an answer or an explanation out.
Reads no clock: `now` (for SINCE) and the watermark are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidemill.language.ast import Query
from tidemill.language.parse import parse, pointed
from tidemill.model.errors import QueryError
from tidemill.query.answer import Answer, Explanation
from tidemill.query.declared import DeclaredStream
from tidemill.query.plan import Plan, make_plan
from tidemill.query.run import Runner
from tidemill.query.source import Source


class Querier:
    """Answers queries over the rollups of the declared streams."""

    def __init__(
        self,
        streams: Mapping[str, DeclaredStream],
        source_for: Callable[[str], Source],
        runner: Runner | None = None,
    ) -> None:
        self._streams = streams
        self._source_for = source_for
        self._runner = runner or Runner()

    def ask(
        self,
        text: str,
        *,
        tenant: str | None,
        now: int,
        watermark: int | Callable[[str], int | None] | None = None,
    ) -> Answer | Explanation:
        """The answer for one tenant, or for all of them (None: an administrator's choice).

        `watermark` is that of the stream asked for, or a function that gives it by the stream's name.
        """
        query, plan = self._planned(text, tenant, now)
        source = self._source_for(plan.stream)
        if query.explain:
            return self._runner.explain(plan, source)
        mark = watermark(plan.stream) if callable(watermark) else watermark
        return self._runner.run(plan, source, mark)

    def explain(self, text: str, *, tenant: str | None, now: int) -> Explanation:
        """What `ask` would do, with or without EXPLAIN in front of the text."""
        _, plan = self._planned(text, tenant, now)
        return self._runner.explain(plan, self._source_for(plan.stream))

    def close(self) -> None:
        self._runner.close()

    def _planned(self, text: str, tenant: str | None, now: int) -> tuple[Query, Plan]:
        query = parse(text)
        try:
            return query, make_plan(query, self._streams, tenant=tenant, now=now)
        except QueryError as error:
            raise pointed(error, text) from None
