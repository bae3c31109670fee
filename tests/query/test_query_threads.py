"""A mill that is asked by many threads at once, while rounds go on: every answer is one that stood."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.patience import PATIENCE

from tidemill.mill import Mill
from tidemill.model.time import HOUR, SECOND, parse_instant
from tidemill.query import Answer
from tidemill.query.search.search import SearchPage
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
    indexed: [page]
"""
THREADS = 8
ROUNDS = 4
EACH = 5  # events of a round, of which one is refused


def _slice(number: int) -> bytes:
    good = [
        json.dumps({"id": f"{number}-{i}", "at": NOON // SECOND - 3600 + number, "page": "a"})
        for i in range(EACH - 1)
    ]
    return "\n".join([*good, "no JSON"]).encode()


@pytest.mark.long
def test_eight_threads_ask_search_and_look_while_rounds_go_on(tmp_path):
    (tmp_path / "tidemill.yaml").write_text(CONFIG)
    clock = FakeClock(NOON)
    done = threading.Event()
    with Mill.open(tmp_path, clock=clock) as mill:
        mill.land("visits", _slice(0))
        mill.tick()

        def count() -> int:
            answer = mill.ask("SELECT count FROM visits", tenant="default")
            assert isinstance(answer, Answer)
            return int(answer.table.column("count")[0].as_py())

        def search() -> int:
            found = mill.search("visits", 'WHERE page = "a"', tenant="default", total=True, limit=1)
            assert isinstance(found, SearchPage)
            return found.total or 0

        def refused() -> int:
            return (EACH - 1) * mill.quarantine("visits").num_rows

        def stored() -> int:
            return mill.status()[0].raw_rows

        def indexed() -> int:
            attributes = mill.catalog("visits")[0].attributes
            return attributes.events if attributes is not None else 0

        def looks(look) -> list[int]:
            seen = []
            while not done.is_set():
                seen.append(look())
            return [*seen, look()]

        asked = [count, search, refused, stored, count, search, refused, indexed]
        assert len(asked) == THREADS
        with ThreadPoolExecutor(THREADS) as pool:
            running = [pool.submit(looks, look) for look in asked]
            try:
                for number in range(1, ROUNDS):
                    clock.advance(SECOND)
                    mill.land("visits", _slice(number))
                    mill.tick()
            finally:
                done.set()
            for one in running:
                seen = one.result(PATIENCE)
                assert seen == sorted(seen)  # nobody saw an older version after a newer one
                assert set(seen) <= set(range(0, (EACH - 1) * ROUNDS + 1, EACH - 1))
                assert seen[-1] == (EACH - 1) * ROUNDS
    assert clock() < NOON + HOUR
