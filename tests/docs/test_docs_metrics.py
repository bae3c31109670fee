"""What the page on metrics shows is what the rules say, cell by cell."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import get_args

from tests.support.oracles.kinds import OracleCounter, OracleRatio, OracleTerm
from tests.support.oracles.metrics import MetricOracle, left_by
from tests.support.oracles.oracle import Event
from tests.support.oracles.stream import OracleField, OracleStream

from tidemill import eventtime
from tidemill.config import Histogram, Kept, Ratio, StateMetric, Stream, parse_project
from tidemill.config.metrics import DEFAULT_ACCURACY, Gauge
from tidemill.model.levels import LEVELS, level_named
from tidemill.model.metrics import CHANGE, MetricKind, log_scaled
from tidemill.model.names import HISTOGRAM_COLUMNS, PSEUDO_DIMENSIONS, ROLLUP_COLUMNS, STATE_COLUMNS
from tidemill.model.time import MINUTE, Interval, align, parse_instant

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
TEXT = PAGE.read_text(encoding="utf-8")


def section(heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found.group(1)


def tables(heading: str) -> list[list[list[str]]]:
    """The tables of a section, each without its head."""
    found = re.findall(r"(?:^\|.*\n)+", section(heading), re.MULTILINE)
    return [[[c.strip() for c in line.split("|")[1:-1]] for line in one.splitlines()[2:]] for one in found]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def at(time: str) -> int:
    return parse_instant(f"2024-01-15T{time}Z")


def orders() -> Stream:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return parse_project(text, PAGE, eventtime.registered(), {}).stream("orders")


def test_every_kind_is_shown_and_explained() -> None:
    assert {metric.kind for metric in orders().metrics.values()} == set(MetricKind)
    (kinds,) = tables("Kinds")
    assert [code(row[0]) for row in kinds] == [[kind] for kind in MetricKind]
    gauge = next(row for row in kinds if code(row[0]) == ["gauge"])
    assert set(code(gauge[2])) > set(get_args(Gauge.model_fields["policy"].annotation))
    assert {one.__name__.lower().removesuffix("metric") for one in (*get_args(Kept), Ratio)} == set(
        MetricKind
    )


def test_the_history_of_an_order_is_counted_as_shown() -> None:
    metric = orders().metrics["progress"]
    assert isinstance(metric, StateMetric)
    rules = {rule.name: rule for rule in metric.rules}
    _, history = tables("States")
    seen: list[str] = []
    for time, state, *counted in history:
        for name, cell in zip((CHANGE, "paid", "lost"), counted, strict=True):
            reported = [f"{left}→{state}" for left in left_by(rules[name], seen, state)]
            assert ", ".join(reported) == cell, (time, name)
        seen.append(state)
    first_bucket = [row for row in history if align(at(row[0]), LEVELS[0].width) == at("10:00:00")]
    assert sum(row[2] != "" for row in first_bucket) == 3
    assert first_bucket[-1][1] == "PAID"


def test_had_an_observation_come_last_the_changes_around_it_are_counted_again() -> None:
    metric = orders().metrics["progress"]
    assert isinstance(metric, StateMetric)
    change = metric.rules[0]
    assert left_by(change, ["NEW", "NEW"], "PAID") == ["NEW"]
    assert (left_by(change, ["NEW", "NEW"], "HELD"), left_by(change, ["NEW", "NEW", "HELD"], "PAID")) == (
        ["NEW"], ["HELD"],
    )  # fmt: skip


def test_bins_by_accuracy_are_as_many_as_shown() -> None:
    by_accuracy, _ = tables("Histograms")
    for row in by_accuracy:
        (accuracy,) = code(row[0])
        bins = log_scaled(Decimal(accuracy))
        assert [int(cell) for cell in row[1:]] == [bins.of(10**digits) for digits in (3, 6, 9)]
        assert ("default" in row[0]) == (Decimal(accuracy) == DEFAULT_ACCURACY)


def test_amounts_are_in_the_bins_that_are_shown() -> None:
    metric = orders().metrics["amounts"]
    assert isinstance(metric, Histogram)
    bins = metric.bins(2)
    assert bins.bounds is not None
    names = [*(f"up to {bound // 100}" for bound in bins.bounds), "above"]
    _, shown = tables("Histograms")
    assert [row[1] for row in shown] == names
    for amounts, name in shown:
        for amount in amounts.split(", "):
            assert names[bins.of(int(Decimal(amount) * 100))] == name, amount


def test_m9_ratio_of_each_minute() -> None:
    times = re.findall(r"\d\d:\d\d:\d\d", section("Ratios"))
    outcomes = dict(zip(times, ("ok", "ok", "failed"), strict=True))
    stream = OracleStream(
        "s",
        {"outcome": OracleField("string")},
        tenant_value="t",
        kinds={
            "good": OracleCounter(filter="outcome = 'ok'"),
            "all": OracleCounter(),
            "rate": OracleRatio((OracleTerm("good"),), (OracleTerm("all"),)),
        },
    )
    events = [Event("t", time, at(time), "", {"outcome": outcome}) for time, outcome in outcomes.items()]
    oracle = MetricOracle(stream, events)
    (shown,) = tables("Ratios")
    for bucket, good, every, ratio in shown:
        span = Interval(at(f"{bucket}:00"), at(f"{bucket}:00") + MINUTE)
        counted = [sum(span.holds(one.event.ts) for one in oracle.counted(name)) for name in ("good", "all")]
        assert counted == [int(good), int(every)]
        assert oracle.ratio("rate", span) == (None if ratio == "null" else Fraction(ratio))


def test_keys_beyond_the_limit_count_for_other() -> None:
    found = re.search(r"`max_cardinality: (\d+)`", section("Too many keys"))
    assert found
    (shown,) = tables("Too many keys")
    stream = OracleStream(
        "s",
        {"region": OracleField("string")},
        tenant_value="t",
        kinds={"one": OracleCounter(("region",), limit=int(found.group(1)))},
    )
    events = [Event("t", str(i), i, "", {"region": region}) for i, (region, _) in enumerate(shown)]
    counted = MetricOracle(stream, events).counted("one")
    assert [key for _, key in counted] == [(cell.strip("`"),) for _, cell in shown]
    assert Counter(key for _, key in counted)["__other__",] == 2


def test_levels_and_the_day_that_weeks_start_on() -> None:
    (shown,) = tables("Levels")
    assert [name for row in shown for name in code(row[0])] == [level.name for level in LEVELS]
    week = align(at("12:00:00"), level_named("7d").width)
    assert datetime.fromtimestamp(week // 1_000_000, UTC).strftime("%A %H:%M:%S") == "Thursday 00:00:00"
    assert "on Thursdays" in shown[-1][1]


def test_names_that_are_taken_are_listed() -> None:
    listed = code(section("Names"))
    for name in (*ROLLUP_COLUMNS, *STATE_COLUMNS, *HISTOGRAM_COLUMNS, *PSEUDO_DIMENSIONS):
        assert name in listed
