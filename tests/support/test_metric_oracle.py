"""The oracle of metrics says what was worked out by hand, and obeys its laws over generated feeds."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples
from tests.support.oracles.kinds import (
    OracleCounter,
    OracleGauge,
    OracleHistogram,
    OracleKind,
    OracleRatio,
    OracleState,
    OracleTerm,
)
from tests.support.oracles.metrics import MetricOracle, Row, Standing, left_by
from tests.support.oracles.oracle import Dimensions, Landing, Oracle
from tests.support.oracles.project import project_text
from tests.support.oracles.stream import OracleStream
from tests.support.strategies.metrics import SENSORS, START, metered_streams, sensor_feeds

from tidemill.config import load_project
from tidemill.model.errors import ConfigError
from tidemill.model.levels import LEVELS, below
from tidemill.model.metrics import NONE_STATE, TransitionRule
from tidemill.model.time import DAY, MAX_INSTANT, MIN_INSTANT, MINUTE, SECOND, WEEK, Interval, align

quick = examples(30)
ALWAYS = Interval(MIN_INSTANT, MAX_INSTANT)
BUCKET = align(START, 5 * SECOND)


def event(id: str, at: int = START, **fields: object) -> bytes:
    return json.dumps({"id": id, "at": at, "tenant": "acme"} | fields).encode()


def oracle_of(kinds: dict[str, OracleKind], *records: bytes) -> MetricOracle:
    stream = replace(SENSORS, kinds=kinds)
    oracle = Oracle(stream)
    verdicts = oracle.land("s", records, START + DAY)
    assert {verdict.outcome for verdict in verdicts} == {"accepted"}
    return MetricOracle(stream, oracle.accepted)


def landed(stream: OracleStream, feed: Sequence[Landing]) -> MetricOracle:
    oracle = Oracle(stream)
    for landing in feed:
        oracle.land(*landing)
    return MetricOracle(stream, oracle.accepted)


def as_set(rows: Sequence[Row]) -> Counter[tuple[tuple[str, object], ...]]:
    return Counter(tuple(sorted(row.items())) for row in rows)


def transitions(rows: Sequence[Row], rule: str = "change") -> dict[tuple[object, object], object]:
    return {(r["state__from"], r["state__to"]): r["count"] for r in rows if r.get("state__rule") == rule}


def nets(rows: Sequence[Row]) -> dict[object, object]:
    return {row["state__is"]: row["count"] for row in rows if "state__is" in row}


# --- by hand


def test_m3_two_counters_with_equal_dimensions_have_separate_totals() -> None:
    kinds: dict[str, OracleKind] = {
        "all": OracleCounter(("zone",), ("n",)),
        "good": OracleCounter(("zone",), ("celsius",), filter="up = true"),
    }
    oracle = oracle_of(
        kinds,
        event("a", zone="a", up=True, n=3, celsius=1.005),
        event("b", zone="a", up=False, n=4),
        event("c", zone="a", up=True),
        event("d", n=5),
    )
    key: Row = {"tenant": "acme", "bucket": BUCKET}
    assert as_set(oracle.rows("5s")) == as_set(
        [
            key
            | {
                "metric": "all",
                "zone": "a",
                "count": 3,
                "n__count": 2,
                "n__sum": 7,
                "n__min": 3,
                "n__max": 4,
            },
            key | {"metric": "all", "count": 1, "n__count": 1, "n__sum": 5, "n__min": 5, "n__max": 5},
            key
            | {
                "metric": "good",
                "zone": "a",
                "count": 2,
                "celsius__count": 1,
                "celsius__sum": Decimal("1.00"),
                "celsius__min": Decimal("1.00"),
                "celsius__max": Decimal("1.00"),
            },
        ]
    )


def test_a_gauge_has_its_first_and_last_by_time_then_id() -> None:
    records = (
        event("b", START + SECOND, n=7),
        event("d", START + 2 * SECOND, n=1),
        event("c", START + 2 * SECOND, n=9),
        event("a", START + SECOND, n=5),
        event("e", START + 3 * SECOND),
    )
    for order in itertools.permutations(records):
        (row,) = oracle_of({"g": OracleGauge("n")}, *order).rows("1d")
        assert row == {
            "metric": "g",
            "tenant": "acme",
            "bucket": align(START, DAY),
            "count": 5,
            "n__count": 4,
            "n__sum": 22,
            "n__min": 1,
            "n__max": 9,
            "n__first": 5,
            "n__first_time": START + SECOND,
            "n__first_id": "a",
            "n__last": 1,
            "n__last_time": START + 2 * SECOND,
            "n__last_id": "d",
        }


def test_m7_a_sample_of_0_is_counted_and_samples_on_a_bound_lie_below_it() -> None:
    bounds = (Decimal(0), Decimal("1.5"))
    kinds: dict[str, OracleKind] = {
        "h": OracleHistogram("celsius", bounds),
        "log": OracleHistogram("celsius"),
    }
    values = [0, -1, 1.5, 1.51, 0, 0.01, None]
    oracle = oracle_of(kinds, *(event(f"e{i}", celsius=value) for i, value in enumerate(values)))
    declared, log = sorted(oracle.rows("1m"), key=lambda row: str(row["metric"]))
    assert declared["histogram__bins"] == (0, 1, 2)
    assert declared["histogram__counts"] == (3, 2, 1)
    assert (declared["count"], declared["celsius__count"]) == (7, 6)
    assert log["histogram__counts"] == (1, 2, 1, 1, 1)
    assert oracle.percentile("log", Fraction(1, 2), ALWAYS) == 0
    assert oracle.percentile("log", Fraction(999, 1000), ALWAYS) == Decimal("1.51")


OBSERVED = (
    event("a", START, thing="x", state="ACTIVE"),
    event("b", START + SECOND, thing="x", state="ACTIVE"),
    event("c", START + 2 * SECOND, thing="x", state="BLOCKED"),
)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_m5_and_m6_an_object_changes_its_state_whatever_the_order_of_arrival(order: tuple[int, ...]) -> None:
    oracle = oracle_of({"s": OracleState("thing", "state")}, *(OBSERVED[i] for i in order))
    rows = oracle.rows("5s")
    assert transitions(rows) == {(NONE_STATE, "ACTIVE"): 1, ("ACTIVE", "BLOCKED"): 1}
    assert nets(rows) == {"BLOCKED": 1}
    assert oracle.states_at("s", START) == {}
    assert oracle.states_at("s", START + 2 * SECOND) == {Standing("acme", (), "ACTIVE"): 1}
    assert oracle.states_at("s", START + 3 * SECOND) == {Standing("acme", (), "BLOCKED"): 1}


def test_a_move_to_other_dimensions_is_no_transition_but_moves_the_object() -> None:
    oracle = oracle_of(
        {"s": OracleState("thing", "state", ("zone",))},
        event("a", START, thing="x", state="on", zone="a"),
        event("b", START + MINUTE, thing="x", state="on", zone="b"),
        event("c", START + 2 * MINUTE, thing="x", state="off"),
        event("d", START + 2 * MINUTE, thing=None, state="off"),
        event("e", START + 2 * MINUTE, thing="x", state=None),
    )
    found = [
        (row["bucket"], row.get("zone"), row.get("state__is") or row["state__to"], row["count"])
        for row in oracle.rows("5s")
    ]
    one, two, three = (BUCKET + minutes * MINUTE for minutes in range(3))
    assert sorted(map(str, found)) == sorted(
        map(
            str,
            [
                (one, "a", "on", 1),
                (one, "a", "on", 1),  # the transition from (none)
                (two, "a", "on", -1),
                (two, "b", "on", 1),
                (three, "b", "on", -1),
                (three, None, "off", 1),
                (three, None, "off", 1),  # the transition from on
            ],
        )
    )


def test_states_are_text() -> None:
    kinds: dict[str, OracleKind] = {"up": OracleState("number", "up"), "gear": OracleState("thing", "gear")}
    oracle = oracle_of(kinds, event("a", thing="x", number=1, up=True, gear=-1))
    assert {row["state__is"] for row in oracle.rows("5s") if "state__is" in row} == {"true", "-1"}


@pytest.mark.parametrize(
    ("rule", "seen", "state", "left"),
    [
        (TransitionRule("r"), [], "a", [NONE_STATE]),
        (TransitionRule("r"), ["a", "b"], "b", []),
        (TransitionRule("r"), ["a", "b"], "a", ["b"]),
        (TransitionRule("r", to=("c",)), ["a"], "b", []),
        (TransitionRule("r", from_last=False), [], "a", []),
        (TransitionRule("r", from_last=False), ["a", "b", "a", "c"], "b", ["a", "c"]),
        (TransitionRule("r", from_last=False, from_states=("a",)), ["a", "b"], "c", ["a"]),
        (TransitionRule("r", from_last=False, from_states=("c",)), ["a", "b"], "c", []),
        (TransitionRule("r", until=("b",)), ["a"], "b", ["a"]),
        (TransitionRule("r", until=("b",)), ["a", "b"], "a", []),
        (TransitionRule("r", from_last=False, until=("c",)), ["c"], "a", []),
    ],
)
def test_what_a_rule_counts(rule: TransitionRule, seen: list[str], state: str, left: list[str]) -> None:
    assert left_by(rule, seen, state) == left


def test_keys_beyond_the_limit_are_one_and_nothing_is_lost() -> None:
    records = [
        event("a", zone="a", up=True, n=1),
        event("b", zone="b", up=True, n=1),
        event("c", zone="c", up=True, n=1),  # the third key
        event("d", zone="a", up=False, n=1),  # the fourth
        event("e", zone="b", up=True, n=1),
        event("f", zone="a", up=True, n=1),
        event("g", START - WEEK, zone="c", up=True, n=1),  # earlier by time, not by arrival
    ]
    oracle = oracle_of({"c": OracleCounter(("up", "zone"), ("n",), limit=2)}, *records)
    found = {(row.get("up"), row.get("zone"), row["bucket"]): row["count"] for row in oracle.rows("7d")}
    week = align(START, WEEK)
    assert found == {
        (True, "a", week): 2,
        (True, "b", week): 2,
        (None, "__other__", week): 2,
        (None, "__other__", week - WEEK): 1,
    }


def test_an_event_that_does_not_count_takes_no_place_among_the_keys() -> None:
    kinds: dict[str, OracleKind] = {
        "f": OracleCounter(("zone",), filter="n > 0", limit=1),
        "s": OracleState("thing", "state", ("zone",), limit=1),
    }
    records = [event("a", zone="a", n=0), event("b", zone="b", n=1, thing="x", state="on")]
    rows = oracle_of(kinds, *records).rows("5s")
    assert {row["zone"] for row in rows} == {"b"}


def test_m9_a_ratio_is_null_where_there_is_nothing_to_divide_by() -> None:
    kinds: dict[str, OracleKind] = {
        "good": OracleCounter(filter="up = true"),
        "all": OracleCounter(),
        "s": OracleState("thing", "state"),
        "rate": OracleRatio((OracleTerm("good"),), (OracleTerm("all"),)),
        "lost": OracleRatio((OracleTerm("s", None, ("on",), ("gone",)),), (OracleTerm("s"),)),
    }
    oracle = oracle_of(
        kinds,
        event("a", up=True, thing="x", state="on"),
        event("b", up=False, thing="x", state="gone"),
        event("c", START + MINUTE, up=False),
    )
    minutes = [Interval(BUCKET + n * MINUTE, BUCKET + (n + 1) * MINUTE) for n in range(3)]
    assert [oracle.ratio("rate", minute) for minute in minutes] == [Fraction(1, 2), 0, None]
    assert [oracle.ratio("lost", minute) for minute in minutes] == [Fraction(1, 2), None, None]


def test_a_metric_of_what_is_not_declared_is_refused() -> None:
    kinds: dict[str, OracleKind] = {"h": OracleHistogram("zone")}
    with pytest.raises(ConfigError):
        replace(SENSORS, kinds=kinds)
    ratio: dict[str, OracleKind] = {"r": OracleRatio((OracleTerm("x"),), (OracleTerm("x"),))}
    with pytest.raises(ConfigError):
        replace(SENSORS, kinds=ratio)


# --- laws


@quick
@given(stream=metered_streams(), feed=sensor_feeds())
def test_counts_of_a_level_are_the_sums_of_the_level_below(stream: OracleStream, feed: list[Landing]) -> None:
    oracle = landed(stream, feed)

    def counts(level: str, width: int) -> Counter[tuple[object, ...]]:
        found: Counter[tuple[object, ...]] = Counter()
        keys = ("metric", "tenant", "zone", "place__region", "up", "gear")
        states = ("state__is", "state__rule", "state__from", "state__to")
        for row in oracle.rows(level):
            bucket, count = row["bucket"], row["count"]
            assert isinstance(bucket, int)
            assert isinstance(count, int)
            found[(*map(row.get, (*keys, *states)), align(bucket, width))] += count
        return Counter({key: count for key, count in found.items() if count})

    for level in LEVELS[1:]:
        lower = below(level)
        assert lower is not None
        assert counts(level.name, level.width) == counts(lower.name, level.width)
        assert sum(map(len, (t for k, t in oracle.tiles().items() if k.level == level.name))) == len(
            oracle.rows(level.name)
        )


@quick
@given(stream=metered_streams(), feed=sensor_feeds(), data=st.data())
def test_net_changes_add_up_to_what_stands(
    stream: OracleStream, feed: list[Landing], data: st.DataObject
) -> None:
    oracle = landed(stream, feed)
    level = data.draw(st.sampled_from(LEVELS))
    instant = align(START, level.width) + level.width * data.draw(st.integers(-2, 2))
    for name, metric in oracle.kept.items():
        if isinstance(metric, OracleState):
            summed: Counter[Standing] = Counter()
            for row in oracle.rows(level.name):
                bucket, count = row["bucket"], row["count"]
                assert isinstance(bucket, int)
                assert isinstance(count, int)
                if row["metric"] == name and "state__is" in row and bucket < instant:
                    columns = (column.replace(".", "__") for column in metric.dimensions)
                    key: Dimensions = tuple(row.get(column) for column in columns)  # type: ignore[misc]
                    summed[Standing(str(row["tenant"]), key, str(row["state__is"]))] += count
            assert {key: count for key, count in summed.items() if count} == oracle.states_at(name, instant)


@quick
@given(stream=metered_streams(limits=False), feed=sensor_feeds(), data=st.data())
def test_without_limits_the_order_of_accepted_events_leaves_no_trace(
    stream: OracleStream, feed: list[Landing], data: st.DataObject
) -> None:
    oracle = landed(stream, feed)
    other = MetricOracle(stream, data.draw(st.permutations(oracle.events)))
    for level in LEVELS:
        assert as_set(oracle.rows(level.name)) == as_set(other.rows(level.name))


@quick
@given(stream=metered_streams(), feed=sensor_feeds())
def test_a_limit_takes_nothing_from_the_totals(stream: OracleStream, feed: list[Landing]) -> None:
    oracle = landed(stream, feed)
    free: dict[str, OracleKind] = {
        name: kind if isinstance(kind, OracleRatio) else kind._replace(limit=None)
        for name, kind in stream.kinds.items()
    }
    unlimited = MetricOracle(replace(stream, kinds=free), oracle.events)
    for name, metric in oracle.kept.items():
        assert [e for e, _ in oracle.counted(name)] == [e for e, _ in unlimited.counted(name)]
        if metric.limit is not None:
            keys = {(e.tenant, key) for e, key in oracle.counted(name)}
            for tenant in ("acme", "globex"):
                assert len([k for t, k in keys if t == tenant]) <= metric.limit + 1


@quick
@given(stream=metered_streams(), feed=sensor_feeds(), quantile=st.fractions(Fraction(1, 100), 1))
def test_percentiles_of_log_scale_are_within_their_accuracy(
    stream: OracleStream, feed: list[Landing], quantile: Fraction
) -> None:
    oracle = landed(stream, feed)
    for name, metric in oracle.kept.items():
        if not isinstance(metric, OracleHistogram) or metric.bounds is not None:
            continue
        samples = oracle.samples_in(name, ALWAYS)
        if samples:
            true = Fraction(samples[math.ceil(quantile * len(samples)) - 1])
            true /= 10 ** (stream.fields[metric.value].scale or 0)
            found = Fraction(oracle.percentile(name, quantile, ALWAYS))
            assert abs(found - true) <= abs(true) * (Fraction(metric.accuracy) + Fraction(1, 10**30))


@quick
@given(stream=metered_streams())
def test_the_configuration_takes_every_drawn_stream(
    stream: OracleStream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("project")
    (folder / "tidemill.yaml").write_text(project_text([stream]))
    (found,) = load_project(folder, ["unixtimestamp_us"]).streams.values()
    assert sorted(found.metrics) == sorted(stream.kinds)
