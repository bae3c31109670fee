"""How far an answer can be trusted: what it lacks is named, with numbers, and is null and never zero."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidemill.asking import outdated
from tidemill.ingest.declarations import Declaration
from tidemill.mill import Mill
from tidemill.model.errors import IncompleteError, Retry
from tidemill.model.metrics import DeclaredMetric
from tidemill.model.time import (
    DAY,
    HOUR,
    MAX_INSTANT,
    MINUTE,
    SECOND,
    Interval,
    format_instant,
    parse_instant,
)
from tidemill.query import Answer, Completeness, Outdated
from tidemill.query.coverage import Arrivals, Available, Pending, completeness
from tidemill.search.searching import Found
from tidemill.testing import FakeClock

NOON = parse_instant("2024-03-15T12:00:00Z")
STREAM = """
  visits:
    schema:
      id: {type: string, required: true}
      at: {type: integer, required: true}
      page: string
      country: string
      ms: integer
    event_time: {column: at, type: unixtimestamp_s}
    identity: id
    indexed: [page]
    retention: {%(retention)s}
    metrics: {%(metrics)s}
"""
VISITS = "visits: {kind: counter, dimensions: [page]}"
COUNT = "SELECT count FROM visits.visits"


@dataclass
class Shop:
    """A project whose declaration may change between two rounds."""

    folder: Path
    clock: FakeClock

    def declare(self, metrics: str = VISITS, retention: str = "") -> None:
        text = STREAM % {"metrics": metrics, "retention": retention}
        (self.folder / "tidemill.yaml").write_text(f"version: 1\nstreams:{text}")

    def open(self) -> Mill:
        return Mill.open(self.folder, clock=self.clock)

    def land(self, *ages: int, name: str = "v", **fields: object) -> bytes:
        """Visits so long ago, not accepted yet."""
        content = visits(self.clock(), *ages, name=name, **fields)
        with self.open() as mill:
            mill.land("visits", content)
        return content

    def round(self) -> None:
        with self.open() as mill:
            mill.tick()

    def ask(self, text: str = COUNT, **how: object) -> Answer:
        with self.open() as mill:
            found = mill.ask(text, **how)
        assert isinstance(found, Answer)
        return found


def visits(now: int, *ages: int, name: str, **fields: object) -> bytes:
    records = (
        {"id": f"{name}{n}", "at": (now - age) // SECOND, "page": "a"} | fields for n, age in enumerate(ages)
    )
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.fixture
def shop(tmp_path) -> Shop:
    found = Shop(tmp_path, FakeClock(NOON))
    found.declare()
    return found


def named(of: Completeness) -> list[tuple[str, int | None]]:
    return [(one.what, one.count) for one in of.pending]


# -- the sentence


@pytest.mark.parametrize(
    ("watermark", "pending", "sentence"),
    [
        (NOON + HOUR, (), "Complete through 2024-03-15T12:00:00Z."),
        (NOON - MINUTE, (), "Complete through 2024-03-15T11:59:00Z; later data may still arrive."),
        (
            None,
            (),
            "Nothing is known to be complete: the stream has no watermark yet; more data may arrive.",
        ),
        (NOON, (Pending("landed", 1, "d", "r"),), "Nothing is known to be complete; more data may arrive."),
        (
            NOON,
            (Pending("tiles", 1, "d", "r", start=NOON - HOUR),),
            "Complete through 2024-03-15T11:00:00Z; later data may still arrive.",
        ),
    ],
)
def test_one_sentence_says_how_far_an_answer_is_complete(watermark, pending, sentence):
    found = completeness(Arrivals(watermark, pending), Interval(NOON - DAY, NOON))
    assert found.sentence() == sentence
    assert found.complete is (sentence == "Complete through 2024-03-15T12:00:00Z.")


# -- pending


def test_what_landed_and_is_not_accepted_is_named(shop):
    shop.land(HOUR)
    shop.round()
    content = shop.land(MINUTE, 2 * MINUTE, name="w")
    answer = shop.ask()
    assert answer.table.to_pylist() == [{"count": 1}]
    (landed,) = answer.completeness.pending
    assert (landed.what, landed.count, landed.bytes) == ("landed", 1, len(content))
    assert landed.detail == f"1 slice has landed ({len(content)} bytes) and is not accepted yet"
    assert landed.remedy == "The next round accepts it: `tidemill run --once`"
    assert (answer.completeness.complete, answer.completeness.complete_through) == (False, None)
    shop.round()
    done = shop.ask()
    assert (done.table.to_pylist(), done.completeness.pending) == ([{"count": 3}], ())


def test_a_slice_that_says_its_bounds_leaves_what_is_before_them_complete(shop):
    shop.land(HOUR, 10 * SECOND)
    shop.round()
    with shop.open() as mill:
        bounds = (format_instant(NOON - 10 * MINUTE), format_instant(NOON))
        mill.land("visits", visits(NOON, MINUTE, name="w"), start=bounds[0], end=bounds[1])
    assert shop.ask().completeness.complete_through == NOON - 10 * MINUTE


def test_a_slice_that_cannot_be_read_is_named(shop):
    shop.land(HOUR)
    with shop.open() as mill:
        broken = mill.land("visits", visits(NOON, MINUTE, name="w")).entry
        (mill.project.warehouse / broken.slice.path).unlink()
        mill.tick()
    (failed,) = shop.ask().completeness.pending
    assert (failed.what, failed.count, failed.bytes) == ("failed", 1, broken.slice.size)
    assert "`tidemill ledger --status failed` says why" in failed.remedy
    with shop.open() as mill:
        mill.retract(mill.plan_retraction(broken.id, "broken"))
    assert shop.ask().completeness.pending == ()


def test_a_retraction_names_what_it_sent_back(shop):
    shop.land(HOUR)
    shop.land(2 * HOUR, 3 * HOUR, name="w")
    with shop.open() as mill:
        mill.tick()
        first = mill.ledger()[-1]
        mill.retract(mill.plan_retraction(first.id, "wrong"))
    found = shop.ask().completeness
    assert named(found) == [("retraction", 1), ("tiles", 3)]
    assert found.pending[0].records == 2
    shop.round()
    again = shop.ask()
    assert (again.table.to_pylist(), again.completeness.pending) == ([{"count": 2}], ())


def test_strict_makes_an_error_of_what_is_pending(shop):
    shop.land(HOUR)
    with pytest.raises(IncompleteError, match="1 slice has landed") as caught, shop.open() as mill:
        mill.query(COUNT, strict=True)
    assert (caught.value.code, caught.value.retry, caught.value.exit_code) == ("incomplete", Retry.LATER, 1)
    assert caught.value.hint == "The next round accepts it: `tidemill run --once`"
    shop.round()
    assert shop.ask(strict=True).table.to_pylist() == [{"count": 1}]


# -- search


def test_a_search_says_what_expired_and_what_is_pending(shop):
    shop.declare(retention="raw: 7d")
    shop.land(30 * DAY, DAY)
    shop.round()
    shop.land(MINUTE, name="w")
    with shop.open() as mill:
        found = mill.search("visits", "")
        assert isinstance(found, Found)
        (missing,) = found.completeness.missing
        assert (missing.why, missing.span.end) == ("expired", parse_instant("2024-03-08T00:00:00Z"))
        assert found.rows.num_rows == 1
        assert named(found.completeness) == [("landed", 1)]
        recent = mill.search("visits", "SINCE 2d")
        assert isinstance(recent, Found)
        assert recent.completeness.missing == ()
        with pytest.raises(IncompleteError, match="have expired"):
            mill.search("visits", "", strict=True)


def test_a_search_of_nothing_says_what_waits(shop):
    shop.land(MINUTE)
    with shop.open() as mill:
        found = mill.search("visits", 'WHERE page = "a"', total=True)
    assert isinstance(found, Found)
    assert (found.rows.num_rows, found.total, named(found.completeness)) == (0, 0, [("landed", 1)])


# -- declarations


def test_rows_are_outdated_by_what_was_declared_when_raw_went():
    bare, wide = DeclaredMetric("c", frozenset()), DeclaredMetric("c", frozenset({"page:string"}))
    other = DeclaredMetric("x", frozenset())
    log = [
        Declaration("visits", {"hits": bare}, None, 0),
        Declaration("visits", {"hits": wide}, 10, 1),
        Declaration("visits", {"hits": wide, "new": bare}, 20, 2),
    ]
    found = outdated(log, {"hits": wide, "new": bare})
    assert found == {
        "hits": [Outdated(10, frozenset({"page:string"}), sealed=True)],
        "new": [Outdated(10, None, sealed=True), Outdated(20, None, sealed=True)],
    }
    available = Available(outdated=found)
    assert available.not_built({"hits": frozenset()}) is None
    assert available.not_built({"hits": frozenset({"page:string"})}) == found["hits"][0]
    assert available.not_built({"hits": frozenset(), "new": frozenset()}) == found["new"][1]
    assert outdated(log, {"hits": other})["hits"][0] == Outdated(MAX_INSTANT, None, sealed=False)
    assert outdated([], {"hits": wide}) == {}
