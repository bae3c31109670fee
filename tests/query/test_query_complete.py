"""How far an answer can be trusted: what it lacks is named, with numbers, and is null and never zero."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tidemill.ingest.declaration_log import Declaration
from tidemill.mill import Mill, recover
from tidemill.model.completeness import (
    Arrivals,
    Available,
    Completeness,
    Missing,
    Outdated,
    Pending,
    completeness,
)
from tidemill.model.errors import IncompleteError, Retry, StorageError
from tidemill.model.metrics import DeclaredMetric
from tidemill.model.time import (
    DAY,
    HOUR,
    MAX_INSTANT,
    MIN_INSTANT,
    MINUTE,
    SECOND,
    Interval,
    format_instant,
    from_datetime,
    parse_instant,
)
from tidemill.pipeline.documents.shapes import missing_span
from tidemill.query import Answer
from tidemill.query.search.search import SearchPage
from tidemill.query.service import outdated
from tidemill.storage.state.faults import RoundFaults
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
    assert "`tidemill ledger visits --status failed` says why" in failed.remedy
    assert "`tidemill retry visits --slices`" in failed.remedy
    assert f"`tidemill retract {broken.id[:12]} --reason …`" in failed.remedy
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
        assert isinstance(found, SearchPage)
        (missing,) = found.completeness.missing
        assert (missing.why, missing.span.end) == ("expired", parse_instant("2024-03-08T00:00:00Z"))
        assert found.rows.num_rows == 1
        assert named(found.completeness) == [("landed", 1)]
        recent = mill.search("visits", "SINCE 2d")
        assert isinstance(recent, SearchPage)
        assert recent.completeness.missing == ()
        with pytest.raises(IncompleteError, match="have expired"):
            mill.search("visits", "", strict=True)


def test_a_search_of_nothing_says_what_waits(shop):
    shop.land(MINUTE)
    with shop.open() as mill:
        found = mill.search("visits", 'WHERE page = "a"', total=True)
    assert isinstance(found, SearchPage)
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


# -- expired


def counted(now: int, ages: Sequence[int], since: int) -> int:
    """How many of the visits so long ago lie in the last `since`: the plain answer."""
    return sum(now - since <= (now - age) // SECOND * SECOND < now for age in ages)


LONG_AGO = [n * DAY + n * 37 * MINUTE for n in range(1, 82)]


def test_a_level_that_expired_is_read_from_a_coarser_one(shop):
    """`rollups: {5s: 7d}` answered 40 where 81 is right."""
    shop.declare(retention="rollups: {5s: 7d}")
    shop.land(*LONG_AGO)
    shop.round()
    answer = shop.ask(f"{COUNT} SINCE 90d", strict=True)
    assert answer.table.to_pylist() == [{"count": counted(NOON, LONG_AGO, 90 * DAY)}]
    assert counted(NOON, LONG_AGO, 90 * DAY) == 81
    assert answer.completeness.missing == ()


def test_what_no_level_has_is_missing_and_never_zero(shop):
    shop.declare(retention="raw: 7d, rollups: {5s: 7d, 1m: 7d, 1h: 7d, 1d: 30d, 7d: 30d}")
    shop.land(*LONG_AGO)
    shop.round()
    text = f"{COUNT} BETWEEN 2024-01-01 AND 2024-03-15 INTERVAL 1d"
    gone = parse_instant("2024-01-01T00:00:00Z")
    for fill in ("zero", "null"):
        answer = shop.ask(f"{text} FILL {fill}")
        (missing,) = answer.completeness.missing
        assert (missing.why, missing.span.start) == ("expired", gone)
        assert missing.remedy
        for row in answer.table.to_pylist():
            day = from_datetime(row["bucket"])
            true = sum(day <= (NOON - age) // SECOND * SECOND < day + DAY for age in LONG_AGO)
            assert row["count"] == (
                None if day < missing.span.end else true or (0 if fill == "zero" else None)
            )
    assert shop.ask(f"{COUNT} BETWEEN 2024-01-01 AND 2024-01-08").table.to_pylist() == [{"count": None}]
    with pytest.raises(IncompleteError, match="Missing 2024-01-01T00:00:00Z to "):
        shop.ask(text, strict=True)


def test_what_is_carried_says_that_groups_may_have_expired(shop):
    """Only raw answers FILTER. A page that raw has no event of any more has no row, and nothing said so."""
    shop.declare("level: {kind: gauge, value: ms, dimensions: [page]}", retention="raw: 7d")
    shop.land(30 * DAY, name="old", page="old", ms=1)
    shop.land(DAY, HOUR, name="new", page="new", ms=2)
    shop.round()
    text = "SELECT value FROM visits.level SINCE 2h %s INTERVAL 1h FILL carry GROUP BY page"
    plain = shop.ask(text % "", strict=True).table.to_pylist()
    assert [(row["page"], row["value"]) for row in plain] == [("new", 2), ("old", 1)] * 2
    found = shop.ask(text % "FILTER ms > 0")
    assert [(row["page"], row["value"]) for row in found.table.to_pylist()] == [("new", 2)] * 2
    assert [one.why for one in found.completeness.missing] == ["expired"]


def test_states_are_told_after_their_finest_level_expired(shop):
    metrics = "pages: {kind: state, object: id, state: page}"
    shop.declare(metrics, retention="rollups: {5s: 7d, 1m: 7d}")
    shop.land(80 * DAY, 79 * DAY, 60 * DAY, 40 * DAY, 39 * DAY)
    shop.round()
    for text in (
        "SELECT states FROM visits.pages GROUP BY state",
        "SELECT states FROM visits.pages SINCE 10d GROUP BY state",
    ):
        answer = shop.ask(text)
        assert answer.table.to_pylist() == [{"state": "a", "states": 5}]
        assert answer.completeness.missing == ()


# -- declared or changed since the last round


def test_a_metric_that_no_round_has_built_is_not_zero(shop):
    shop.land(HOUR, 2 * HOUR)
    shop.round()
    shop.declare(f"{VISITS}, new: {{kind: counter}}")
    for text, row in (
        ("SELECT count FROM visits.new", {"count": None}),
        ("SELECT count FROM visits.new SINCE 3h", {"count": None}),
    ):
        answer = shop.ask(text)
        assert answer.table.to_pylist() == [row]
        (missing,) = answer.completeness.missing
        assert (missing.why, missing.remedy) == (
            "not_built",
            "The next round builds it: `tidemill run --once`",
        )
        assert missing.detail == "new was declared or changed since the last round and is not built yet"
        assert not answer.completeness.complete
    filled = shop.ask("SELECT count FROM visits.new SINCE 3h INTERVAL 1h FILL zero")
    assert {row["count"] for row in filled.table.to_pylist()} == {None}
    assert shop.ask(strict=True).table.to_pylist() == [{"count": 2}]  # the others are as they were
    shop.round()
    assert shop.ask("SELECT count FROM visits.new", strict=True).table.to_pylist() == [{"count": 2}]


def test_a_metric_that_changed_is_not_answered_by_what_it_was(shop):
    shop.land(HOUR, 2 * HOUR, page="a")
    shop.land(HOUR, page="b", name="w")
    shop.round()
    shop.declare("visits: {kind: counter, dimensions: [page], filter: \"page = 'b'\"}")
    changed = shop.ask()
    assert (changed.table.to_pylist(), changed.completeness.missing[0].why) == (
        [{"count": None}],
        "not_built",
    )
    shop.round()
    assert shop.ask(strict=True).table.to_pylist() == [{"count": 1}]


def test_a_new_dimension_is_missing_only_where_it_is_named(shop):
    shop.land(HOUR, 2 * HOUR, country="fr")
    shop.round()
    shop.declare("visits: {kind: counter, dimensions: [page, country], measures: [ms]}")
    assert shop.ask(strict=True).table.to_pylist() == [{"count": 2}]
    for text in (
        f"{COUNT} GROUP BY country",
        f'{COUNT} WHERE country = "fr"',
        "SELECT sum(ms) FROM visits.visits",
    ):
        assert [one.why for one in shop.ask(text).completeness.missing] == ["not_built"], text
    shop.round()
    answer = shop.ask(f"{COUNT} GROUP BY country", strict=True)
    assert answer.table.to_pylist() == [{"country": "fr", "count": 2}]


def test_over_sealed_time_a_new_metric_counts_from_the_seal_on(shop):
    shop.declare(retention="raw: 7d")
    ages = [30 * DAY, 20 * DAY, 2 * DAY, DAY]
    shop.land(*ages)
    shop.round()
    shop.declare(f"{VISITS}, new: {{kind: counter}}", retention="raw: 7d")
    shop.clock.advance(HOUR)
    shop.round()
    seal = parse_instant("2024-03-08T00:00:00Z")
    recent = shop.ask("SELECT count FROM visits.new BETWEEN 2024-03-08 AND 2024-03-16", strict=True)
    assert recent.table.to_pylist() == [{"count": 2}]
    whole = shop.ask("SELECT count FROM visits.new BETWEEN 2024-02-01 AND 2024-03-16 INTERVAL 1d FILL zero")
    (missing,) = whole.completeness.missing
    assert (missing.why, missing.span) == ("not_built", Interval(parse_instant("2024-02-01T00:00:00Z"), seal))
    assert missing.detail == "new counts from 2024-03-08T00:00:00Z on, as it is declared now"
    assert missing.remedy.startswith("Nothing can be done")
    for row in whole.table.to_pylist():
        day = from_datetime(row["bucket"])
        true = sum(day <= (NOON - age) // SECOND * SECOND < day + DAY for age in ages)
        assert row["count"] == (None if day < seal else true)
    total = shop.ask("SELECT count FROM visits.new BETWEEN 2024-02-01 AND 2024-03-16")
    assert total.table.to_pylist() == [{"count": None}]
    every = shop.ask("SELECT count FROM visits.new")  # of all there is
    assert (every.table.to_pylist(), len(every.completeness.missing)) == ([{"count": 2}], 1)
    old = shop.ask(f"{COUNT} BETWEEN 2024-02-01 AND 2024-03-16", strict=True)
    assert old.table.to_pylist() == [{"count": 4}]  # declared as ever: all of it counts
    (shop.folder / "warehouse" / "state.db").unlink()
    recover(shop.folder, clock=shop.clock)
    assert shop.ask("SELECT count FROM visits.new BETWEEN 2024-02-01 AND 2024-03-16").completeness.missing


def test_while_rounds_fail_no_round_is_promised(shop):
    shop.land(HOUR)
    shop.round()
    shop.land(MINUTE, name="w")
    with shop.open() as mill:
        faults = RoundFaults(mill.state, mill.warehouse.root, NOON, mill.workers.fault_memory)
        faults.record("visits", "raw", StorageError("raw is gone", hint="restore it"))
        (landed,) = mill.ask(COUNT).completeness.pending
    assert landed.remedy.startswith("The rounds of this stream fail, so nothing changes")
    assert landed.remedy.endswith(": raw is gone (restore it)")


def test_a_missing_span_without_an_end_is_written_so_that_it_can_be_read():
    ever = Missing(Interval(MIN_INSTANT, MAX_INSTANT), "not_built", "hits is not built yet", "Run a round")
    assert str(ever) == "Missing all time: hits is not built yet"
    later = replace(ever, span=Interval(NOON, MAX_INSTANT))
    assert str(later).startswith("Missing from 2024-03-15T12:00:00Z on:")
    before = replace(ever, span=Interval(MIN_INSTANT, NOON))
    assert str(before).startswith("Missing everything before 2024-03-15T12:00:00Z:")
    span = missing_span(ever)["span"]
    assert [parse_instant(span[side]) for side in ("start", "end")] == [MIN_INSTANT, MAX_INSTANT - 1]
