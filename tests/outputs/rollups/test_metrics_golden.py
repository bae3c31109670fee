"""Golden cases M1 to M12 with metrics of every kind, through the whole pipeline: landed, ticked, asked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.test_engine_golden import TEN, OpenProject, call
from tests.support.metrics_comparison import agree, files, table_rows
from tests.support.oracles.kinds import (
    OracleCounter,
    OracleGauge,
    OracleHistogram,
    OracleKind,
    OracleRatio,
    OracleState,
    OracleTerm,
)
from tests.support.oracles.metrics import MetricOracle
from tests.support.oracles.oracle import Oracle
from tests.support.oracles.project import project_text
from tests.support.oracles.stream import REQUESTS
from tests.support.patience import PATIENCE
from tests.support.pipeline import NOON, NewPlant, Plant, ndjson, request, start_child

from tidemill.formats.stored_slice import content_bytes
from tidemill.mill import Mill
from tidemill.model.errors import QueryError
from tidemill.model.failpoints import EXIT_CODE, POINTS, observed
from tidemill.model.levels import NAMES
from tidemill.model.metrics import NONE_STATE, TransitionRule
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND
from tidemill.raw.accept.id_runs import FAN_IN
from tidemill.testing import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = """
    schema:
      id: {type: string, required: true}
      ts: {type: string, required: true}
      tenant: {type: string, required: true}
      api: string
      region: string
      ok: boolean
      account: string
      status: string
      latency_ms: {type: decimal, scale: 3}
      queue: integer
    event_time: {column: ts, type: iso8601, late_tolerance: 5s}
    identity: id
    tenant: tenant
    skew: {future: null}
    metrics:
      calls: {kind: counter, dimensions: [api, region], measures: [latency_ms]}
      successes: {kind: counter, dimensions: [api, region], filter: ok = true}
      failures: {kind: counter, dimensions: [api, region], filter: ok = false}
      queue: {kind: gauge, value: queue, policy: last, dimensions: [region]}
      latency: {kind: histogram, value: latency_ms, dimensions: [api, region]}
      accounts: {kind: state, object: account, state: status, dimensions: [region]}
      success_rate: {kind: ratio, numerator: successes, denominator: [successes, failures]}
"""
ORDERS = list(itertools.permutations(range(3)))
STREAMS = ("calls", "minutes", "states", *(f"order{number}" for number in range(len(ORDERS))))


@pytest.fixture(scope="module")
def desk(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenProject]:
    root = tmp_path_factory.mktemp("golden")
    listed = "".join(f"  {name}:{STREAM}" for name in STREAMS)
    (root / "tidemill.yaml").write_text(f"version: 1\nengine: {{cores: 2}}\nstreams:\n{listed}")
    clock = FakeClock(TEN + HOUR)
    with Mill.open(root, spark=spark, clock=clock) as mill:
        yield OpenProject(mill, clock)


CALLS = [
    call("a", TEN, api="/a", region="eu", ok=True, account="x", status="ACTIVE", latency_ms=1.5, queue=7),
    call("b", TEN + 3 * SECOND, api="/a", region="us", ok=True, account="y", status="ACTIVE", latency_ms=0),
    call("c", TEN + 4 * SECOND, api="/b", region="eu", ok=False, account="x", status="BLOCKED", queue=3),
    call("d", TEN + 11 * MINUTE, api="/a", region="eu", ok=False, latency_ms=10, queue=5),
    call("e", TEN + 59 * MINUTE, region="eu", account="y", status="CLOSED", latency_ms=2, queue=2),
]
EVERYTHING = (
    "SELECT count, sum(latency_ms) FROM calls.calls GROUP BY api, region ORDER BY api, region",
    "SELECT value, min, max, avg, first, last FROM calls.queue GROUP BY region ORDER BY region",
    "SELECT count, p50, p99.9 FROM calls.latency GROUP BY api ORDER BY api",
    "SELECT states FROM calls.accounts GROUP BY region, state ORDER BY region, state",
    "SELECT transitions FROM calls.accounts GROUP BY from_state, to_state ORDER BY from_state, to_state",
    "SELECT ratio FROM calls.success_rate",
)


@pytest.fixture(scope="module")
def calls(desk: OpenProject) -> OpenProject:
    assert desk.send("calls", ndjson(*CALLS)) == {"accepted": 5, "duplicate": 0, "conflict": 0, "rejected": 0}
    return desk


def held(desk: OpenProject, stream: str) -> tuple[object, ...]:
    """Everything that metrics made: the files, the rows, and what is answered."""
    mill = desk.mill
    answers = [desk.ask(text) for text in EVERYTHING]
    return files(mill, stream, ("raw", "rollups")), table_rows(mill, stream), answers


def states_of(desk: OpenProject, stream: str) -> dict[str, int]:
    """How many objects are in which of the states that M5 to M8 name. A group without any has no row."""
    rows = desk.ask(f"SELECT states FROM {stream}.accounts GROUP BY state")
    assert all(count for _, count in rows)
    counts = {
        state: desk.ask(f"SELECT states FROM {stream}.accounts WHERE state = '{state}'")
        for state in ("ACTIVE", "BLOCKED", "CLOSED")
    }
    found = {state: count for state, [(count,)] in counts.items()}
    assert dict(rows) == {state: count for state, count in found.items() if count}
    return found


def transitions_of(desk: OpenProject, stream: str) -> dict[tuple[object, object], object]:
    text = f"SELECT transitions FROM {stream}.accounts GROUP BY from_state, to_state"
    rows = desk.mill.query(text, all_tenants=True).to_pylist()
    return {(row["from_state"], row["to_state"]): row["transitions"] for row in rows}


def test_m1_an_identical_event_again_changes_no_metric_of_any_kind(calls: OpenProject) -> None:
    before = held(calls, "calls")
    again = [json.dumps(dict(reversed(event.items()))).encode() for event in CALLS]
    content = b"".join(b" " + line + b"\n" for line in again)
    assert calls.send("calls", content) == {"accepted": 0, "duplicate": 5, "conflict": 0, "rejected": 0}
    assert held(calls, "calls") == before


def test_m2_another_payload_under_the_same_id_changes_no_metric_and_both_hashes_are_kept(
    calls: OpenProject,
) -> None:
    before = held(calls, "calls")
    content = ndjson(CALLS[0] | {"status": "BLOCKED"}, CALLS[2] | {"ts": "2024-01-01T10:00:01Z"})
    assert calls.send("calls", content) == {"accepted": 0, "duplicate": 0, "conflict": 2, "rejected": 0}
    assert held(calls, "calls") == before
    rows = calls.rows("quarantine", "calls")
    assert len({row["content_hash"] for row in rows} | {row["accepted_hash"] for row in rows}) == 4


def test_m3_metrics_with_equal_dimensions_have_separate_totals(calls: OpenProject) -> None:
    assert calls.ask("SELECT count, sum(latency_ms) FROM calls.calls") == [(5, Decimal("13.500"))]
    assert calls.ask("SELECT count FROM calls.successes") == [(2,)]
    assert calls.ask("SELECT count FROM calls.failures") == [(2,)]
    assert calls.ask("SELECT count_all, count, sum, min, max FROM calls.latency") == [
        (5, 4, Decimal("13.500"), Decimal("0.000"), Decimal("10.000"))
    ]
    assert calls.ask("SELECT value, first, min, max, sum FROM calls.queue WHERE region = 'eu'") == [
        (2, 7, 2, 7, Decimal(17))
    ]


@pytest.mark.parametrize(
    ("values", "metric", "groups"),
    [
        ("count, sum(latency_ms)", "calls", "api, region"),
        ("first, last, min, max, sum", "queue", "region"),
        ("count, p50, p99.9, sum", "latency", "api"),
        ("states", "accounts", "state"),
        ("transitions", "accounts", "region, from_state, to_state"),
        ("ratio", "success_rate", "api"),
    ],
)
def test_m4_an_hourly_query_reads_hourly_rows_and_answers_as_all_finer_levels_do(
    calls: OpenProject, values: str, metric: str, groups: str
) -> None:
    """All events are in one hour. Long intervals are made of the level that divides them."""
    text = f"SELECT {values} FROM calls.{metric} GROUP BY {groups} ORDER BY {groups}"
    totals = calls.mill.query(text, all_tenants=True).to_pylist()
    assert totals
    for bucket, level in (("USING ROLLUP 1h", "1h"), ("INTERVAL 3661m", "1m"), ("INTERVAL 219655s", "5s")):
        answer = calls.answer(f"{text} {bucket} FILL drop")
        assert answer.level == level
        rows = answer.table.drop_columns("bucket").to_pylist()
        assert rows == totals, level


def test_m4_fine_counts_add_up_to_the_hour(calls: OpenProject) -> None:
    for values, metric in (("count", "calls"), ("count_all", "latency"), ("transitions", "accounts")):
        sums = []
        for level in NAMES:
            answer = calls.answer(f"SELECT {values} FROM calls.{metric} USING ROLLUP {level} FILL drop")
            assert answer.level == level
            sums.append(sum(row[values] or 0 for row in answer.table.to_pylist()))
        assert sums == [5 if metric != "accounts" else 4] * len(NAMES)


SEEN = [
    call("s1", TEN, account="x", status="ACTIVE"),
    call("s2", TEN + SECOND, account="x", status="ACTIVE"),
    call("s3", TEN + 2 * SECOND, account="x", status="BLOCKED"),
]


def test_m5_first_sight_no_change_and_a_change_of_state(desk: OpenProject) -> None:
    desk.send("states", ndjson(SEEN[0]))
    assert transitions_of(desk, "states") == {(NONE_STATE, "ACTIVE"): 1}
    assert states_of(desk, "states") == {"ACTIVE": 1, "BLOCKED": 0, "CLOSED": 0}
    desk.send("states", ndjson(SEEN[1]))
    assert transitions_of(desk, "states") == {(NONE_STATE, "ACTIVE"): 1}
    assert states_of(desk, "states") == {"ACTIVE": 1, "BLOCKED": 0, "CLOSED": 0}
    desk.send("states", ndjson(SEEN[2]))
    assert transitions_of(desk, "states") == {(NONE_STATE, "ACTIVE"): 1, ("ACTIVE", "BLOCKED"): 1}
    assert states_of(desk, "states") == {"ACTIVE": 0, "BLOCKED": 1, "CLOSED": 0}
    audit = desk.mill.verify("states")
    assert audit.ok, audit.findings


@pytest.mark.parametrize("number", range(len(ORDERS)))
def test_m6_the_same_in_any_order_of_arrival(desk: OpenProject, number: int) -> None:
    stream = f"order{number}"
    for place in ORDERS[number]:
        desk.send(stream, ndjson(SEEN[place]))
    assert transitions_of(desk, stream) == {(NONE_STATE, "ACTIVE"): 1, ("ACTIVE", "BLOCKED"): 1}
    assert states_of(desk, stream) == {"ACTIVE": 0, "BLOCKED": 1, "CLOSED": 0}
    audit = desk.mill.verify(stream)
    assert audit.ok, audit.findings


def test_m7_a_sample_of_0_is_counted_and_percentiles_are_labelled(calls: OpenProject) -> None:
    table = calls.mill.query(
        "SELECT count, percentile(0.5), percentile(0.999), min FROM calls.latency WHERE api = '/a'"
    )
    assert table.column_names == ["count", "p50", "p99.9", "min"]
    (row,) = table.to_pylist()
    assert (row["count"], row["min"]) == (3, 0)
    for label, true in (("p50", Decimal("1.5")), ("p99.9", Decimal(10))):
        assert abs(row[label] / true - 1) <= Decimal("0.01")
    assert calls.ask("SELECT p50, p99.9 FROM calls.latency WHERE region = 'us'") == [(0, 0)]


def test_m8_a_query_that_names_some_dimensions_sums_over_the_others(calls: OpenProject) -> None:
    assert calls.ask("SELECT count_all, count FROM calls.latency GROUP BY api ORDER BY api") == [
        ("/a", 3, 3),
        ("/b", 1, 0),  # its only event has no latency
        (None, 1, 1),
    ]
    assert calls.ask("SELECT last FROM calls.queue") == [(2,)]
    assert states_of(calls, "calls") == {"ACTIVE": 0, "BLOCKED": 1, "CLOSED": 1}
    text = "SELECT states FROM calls.accounts GROUP BY region, state ORDER BY region, state"
    assert [row for row in calls.ask(text) if row[-1]] == [("eu", "BLOCKED", 1), ("eu", "CLOSED", 1)]
    assert transitions_of(calls, "calls") == {
        (NONE_STATE, "ACTIVE"): 2,
        ("ACTIVE", "BLOCKED"): 1,
        ("ACTIVE", "CLOSED"): 1,
    }


def test_m9_a_success_that_arrives_late_and_the_success_rate_by_minute(desk: OpenProject) -> None:
    minute = TEN + MINUTE
    failure = call("f", minute + 38 * SECOND, api="/a", ok=False)
    first = call("s1", minute + MINUTE + 8 * SECOND, api="/a", ok=True)
    late = call("s2", minute + MINUTE + 55 * SECOND, api="/a", ok=True)
    span = "BETWEEN 2024-01-01T10:01:00Z AND 2024-01-01T10:04:00Z USING ROLLUP 1m"

    def by_minute(metric: str) -> list[object]:
        text = f"SELECT count FROM minutes.{metric} {span} FILL zero"
        return [row["count"] for row in desk.mill.query(text, all_tenants=True).to_pylist()]

    desk.clock.set(TEN + 3 * MINUTE)
    desk.send("minutes", ndjson(failure, first))
    assert (by_minute("successes"), by_minute("failures")) == ([0, 1, 0], [1, 0, 0])
    desk.clock.set(TEN + 3 * MINUTE + 15 * SECOND)
    desk.send("minutes", ndjson(late))
    assert (by_minute("successes"), by_minute("failures")) == ([0, 2, 0], [1, 0, 0])
    rates = desk.mill.query(f"SELECT ratio FROM minutes.success_rate {span} FILL null").to_pylist()
    assert [row["ratio"] for row in rates] == [0, 1, None]
    desk.clock.set(TEN + HOUR)


@pytest.mark.parametrize(("interval", "level"), [("30s", "5s"), ("3h", "1h"), ("15m", "1m"), ("9d", "1d")])
@pytest.mark.parametrize(
    "asked",
    ["count FROM calls.calls", "p50 FROM calls.latency", "value FROM calls.queue",
     "states FROM calls.accounts", "transitions FROM calls.accounts", "ratio FROM calls.success_rate"],
)  # fmt: skip
def test_m10_an_interval_is_read_from_the_largest_level_that_divides_it(
    calls: OpenProject, asked: str, interval: str, level: str
) -> None:
    assert calls.answer(f"SELECT {asked} INTERVAL {interval}").level == level


@pytest.mark.parametrize(
    "asked", ["count FROM calls.calls", "p99 FROM calls.latency", "states FROM calls.accounts"]
)
def test_m11_an_interval_that_no_level_divides_is_refused_with_the_levels(
    calls: OpenProject, asked: str
) -> None:
    with pytest.raises(QueryError) as refused:
        calls.mill.query(f"SELECT {asked} INTERVAL 7s")
    assert all(level in refused.value.hint for level in NAMES)


def test_all_of_it_is_proven_from_raw(calls: OpenProject) -> None:
    audit = calls.mill.verify("calls")
    assert audit.ok, audit.findings


# --- M12

KINDS: Mapping[str, OracleKind] = {
    "latency": OracleHistogram("latency_ms", dimensions=("region",)),
    "load": OracleGauge("latency_ms", dimensions=("api",), limit=2),
    "errors": OracleCounter(("api",), filter="status >= 500"),
    "traces": OracleState(
        "trace", "region", ("api",), (TransitionRule("back", from_last=False, to=("eu",), until=("ap",)),)
    ),
    "error_rate": OracleRatio((OracleTerm("errors"),), (OracleTerm("requests"),)),
}


METERED = replace(REQUESTS, kinds=KINDS)
WALK = ("accept.", "quarantine.", "raw.", "state_history.", "rollups.")
POINTS_OF_M12 = [point for point in POINTS if point.startswith(WALK)]


def slice_of(number: int) -> bytes:
    """Traces move between regions, back in time as well; a replay and a conflict of the slice before."""
    first = number * 10
    events = [
        request(
            first + i,
            trace=f"t{i % 4}",
            region=("eu", "us", "ap")[(number + i) % 3],
            ts=(NOON - DAY + ((7 * (first + i)) % 50) * 2 * MINUTE) // 1000,
        )
        for i in range(10)
    ]
    if number:
        events += [request(first - 10, trace="t0"), request(first - 9, trace="t1", api="/other")]
    return ndjson(*events)


def feed(plant: Plant, numbers: range) -> None:
    with plant.open() as mill:
        for number in numbers:
            mill.land("requests", slice_of(number), name=f"slice {number}")
        mill.tick()


@dataclass
class Story:
    """The warehouse at each fail point of the round that takes the last two slices. Copy before you touch."""

    after: Plant
    at: dict[str, Plant]


@pytest.fixture(scope="module")
def story(new_plant: NewPlant, tmp_path_factory: pytest.TempPathFactory) -> Story:
    plant = new_plant(project_text([METERED], cores=2, memory="512m"))
    folder = tmp_path_factory.mktemp("story")
    at: dict[str, Plant] = {}

    def keep(point: str) -> None:
        if point not in at:
            at[point] = plant.copy(folder / point)

    for number in range(FAN_IN - 1):  # with the round that is watched there are enough runs to be merged
        feed(plant, range(number, number + 1))
    with observed(keep):
        feed(plant, range(FAN_IN - 1, FAN_IN + 1))
    return Story(plant, at)


def expected(mill: Mill) -> MetricOracle:
    oracle = Oracle(METERED)
    for entry in mill.state.slices("requests"):
        lines = content_bytes(mill.project.warehouse / entry.slice.path).splitlines()
        oracle.land(entry.id, lines, entry.slice.arrival, entry.slice.source)
    return MetricOracle(METERED, oracle.accepted)


def test_m12_the_undisturbed_story_is_what_the_oracle_says(story: Story) -> None:
    with story.after.open() as mill:
        agree(mill, "requests", expected(mill))
        assert mill.verify().findings == []
    assert sorted(set(POINTS_OF_M12) - set(story.at)) == []


@pytest.mark.parametrize("point", POINTS_OF_M12)
def test_m12_death_between_flush_and_commit_leaves_exact_totals(
    story: Story, point: str, tmp_path: Path
) -> None:
    plant = story.at[point].copy(tmp_path / "corpse")
    with plant.open() as mill, story.after.open() as other:
        mill.run_until_idle()
        agree(mill, "requests", expected(other))
        for text in (
            "SELECT count, sum(latency_ms) FROM requests.requests GROUP BY api ORDER BY api",
            "SELECT states FROM requests.traces GROUP BY state ORDER BY state",
            "SELECT ratio FROM requests.error_rate",
        ):
            assert mill.query(text, all_tenants=True).equals(other.query(text, all_tenants=True))


CHILD = """
import sys
from tidemill.mill import Mill
root, now = sys.argv[1], int(sys.argv[2])
mill = Mill.open(root, clock=lambda: now)
mill.tick()
"""


def test_m12_a_process_that_is_killed_and_started_again_has_exact_totals(
    story: Story, tmp_path: Path
) -> None:
    """One after the other dies for good, each where it wrote something that it has not committed yet."""
    plant = story.at["accept.after_stage"].copy(tmp_path / "corpse")
    for point in ("raw.before_commit", "raw.after_commit", "rollups.after_build", "rollups.after_commit"):
        process = start_child(CHILD, plant.root, NOON, TIDEMILL_FAILPOINT=point)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == EXIT_CODE, said
    with plant.open() as mill, story.after.open() as other:
        mill.run_until_idle()
        agree(mill, "requests", expected(other))
        assert mill.verify().findings == []
