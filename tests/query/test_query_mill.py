"""A mill that is asked: text or document, on either engine, and how fresh the answer is."""

from __future__ import annotations

import json

import pytest

from tidemill.mill import Mill
from tidemill.model.errors import InputError
from tidemill.model.failpoints import observed
from tidemill.model.time import HOUR, SECOND, parse_instant
from tidemill.query import Answer, Explanation
from tidemill.testing import FakeClock

NOON = parse_instant("2024-01-15T12:00:00Z")
CONFIG = """
version: 1
streams:
  visits:
    schema:
      id: {type: string, required: true}
      at: {type: integer, required: true}
      page: string
    event_time: {column: at, type: unixtimestamp_s}
    identity: id
    metrics: {visits: {kind: counter, dimensions: [page]}}
"""
TEXT = "SELECT count FROM visits GROUP BY page"


@pytest.fixture
def project(tmp_path):
    (tmp_path / "tidemill.yaml").write_text(CONFIG)
    return tmp_path


def lines(*visits: tuple[str, int]) -> bytes:
    records = ({"id": f"{page}{at}", "at": at // SECOND, "page": page} for page, at in visits)
    return "\n".join(map(json.dumps, records)).encode()


def test_as_of_is_the_newest_arrival_that_all_tiles_include(project):
    clock = FakeClock(NOON)
    with Mill.open(project, clock=clock) as mill:
        assert mill.ask(TEXT).completeness.as_of is None
        mill.land("visits", lines(("a", NOON - HOUR)))
        mill.tick()
        first = clock()
        assert mill.ask(TEXT).completeness.as_of == first

        clock.advance(7 * SECOND)
        mill.land("visits", lines(("b", NOON - HOUR), ("a", NOON - 3 * HOUR)))
        assert mill.ask(TEXT).completeness.as_of == first
        seen = []

        def between(point: str) -> None:
            if point == "accept.after_state":
                recent = f"{TEXT} BETWEEN 2024-01-15T10:30:00Z AND 2024-01-15T11:30:00Z"
                seen.extend(mill.ask(text).completeness for text in (TEXT, recent, f"EXPLAIN {TEXT}"))

        with observed(between):
            mill.tick()
        assert [(one.as_of, [(p.what, p.count) for p in one.pending]) for one in seen] == [
            (first, [("tiles", 2)]),
            (first, [("tiles", 1)]),
            (first, [("tiles", 2)]),
        ]
        assert mill.ask(TEXT).completeness.as_of == first + 7 * SECOND


def test_a_document_and_spark_answer_as_the_text_does(project, spark):
    with Mill.open(project, clock=FakeClock(NOON), spark=spark) as mill:
        mill.land("visits", lines(("a", NOON - HOUR), ("b", NOON), ("a", NOON)))
        mill.run_until_idle()
        wanted = [{"page": "a", "count": 2}, {"page": "b", "count": 1}]
        document = {"select": ["count"], "from": "visits", "group_by": ["page"]}
        for query in (TEXT, document, json.dumps(document)):
            for engine in ("duckdb", "spark"):
                answer = mill.ask(query, tenant="default", engine=engine)
                assert isinstance(answer, Answer)
                assert answer.engine == engine
                assert answer.table.to_pylist() == wanted
                assert mill.query(query, engine=engine).to_pylist() == wanted
        explained = mill.ask({**document, "explain": True}, engine="spark")
        assert isinstance(explained, Explanation)
        assert explained.engine == "spark"
        with pytest.raises(InputError, match="EXPLAIN has no rows"):
            mill.query(f"EXPLAIN {TEXT}")
