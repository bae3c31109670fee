"""Searches of a mill: part of it. They look at raw and its index, and start no JVM unless asked to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from tidemill.language.document import search_from
from tidemill.language.parse import parse_search, pointed
from tidemill.language.written import text_of
from tidemill.model.errors import NotFoundError, QueryError
from tidemill.model.slices import SliceStatus
from tidemill.search.searching import Found, Searched, SearchPlan, explain, search

if TYPE_CHECKING:
    from tidemill.language.ast import Search
    from tidemill.mill import Mill

EngineName = Literal["local", "spark"]


def find(
    mill: Mill,
    stream: str,
    asked: str | Mapping[str, object],
    tenant: str | None,
    cursor: str | None,
    limit: int | None,
    *,
    total: bool,
    engine: EngineName,
) -> Found | SearchPlan:
    said, text = _read(asked)
    over = _searched(mill, stream)
    try:
        if said.explain:
            return explain(over, said, tenant=tenant, now=mill.clock())
        return search(
            over,
            said,
            tenant=tenant,
            now=mill.clock(),
            cursor=cursor,
            limit=limit,
            total=total,
            engine=mill.engine if engine == "spark" else None,
        )
    except QueryError as error:
        raise pointed(error, text, "search") from None


def _read(asked: str | Mapping[str, object]) -> tuple[Search, str]:
    """The search, and its text: of a document the one that says the same."""
    if isinstance(asked, str) and not asked.lstrip().startswith("{"):
        return parse_search(asked), asked
    said = search_from(asked)
    return said, text_of(said)


def _searched(mill: Mill, stream: str) -> Searched:
    declared = mill.project.stream(stream)
    accepted = mill.state.slices(stream, SliceStatus.ACCEPTED, newest=True, limit=1)  # before the snapshot
    raw, index = mill.snapshot("raw", stream), mill.snapshot("index", stream)
    if raw is None:
        raise NotFoundError(
            f"nothing was accepted for stream {stream!r} yet", hint="run `tidemill run --once`"
        )

    def place(slice_id: str) -> int | None:
        entry = mill.state.slice(slice_id)
        return entry.seq if entry is not None else None

    return Searched(
        stream=stream,
        raw=raw,
        index=index,
        indexed=declared.indexed,
        bound=accepted[0].seq if accepted else 0,
        seqs=place,
    )
