"""Metrics of all kinds through the whole mill against the oracle: whatever the metrics, the feed, its slices
and the ticks between them, whatever is taken back or lost and wherever a process dies, the rollups at all
five levels are what a replay of the accepted events in plain Python gives."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import at_length, examples
from tests.support.metrics_answers import agree_on_answers
from tests.support.metrics_comparison import MetricProjects, MetricsComparison, files
from tests.support.oracles.kinds import OracleCounter
from tests.support.oracles.oracle import Landing
from tests.support.oracles.stream import OracleStream
from tests.support.strategies.metrics import SENSORS, START, metered_streams, sensor_feeds

from tidemill.model.failpoints import observed
from tidemill.model.levels import LEVELS, Level, TileKey
from tidemill.model.time import MINUTE, Interval, align

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

few = examples(4)
fewer = examples(2)
many = at_length(300)
STREAMS, FEEDS, SEEDS = metered_streams(), sensor_feeds(), st.integers(0, 2**32 - 1)
Event = Literal["nothing", "tick", "settle", "die", "retract", "dying", "trails", "recover", "rebuild"]


@pytest.fixture(scope="module")
def projects(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> MetricProjects:
    return MetricProjects(tmp_path_factory.mktemp("projects"), spark)


# --- ways to play


def happen(metering: MetricsComparison, event: Event, random: Random) -> None:
    if event == "tick":
        metering.tick()
    elif event == "settle":
        metering.settle()
        metering.agree()
    elif event == "die":
        metering.die(random.randint(1, 14))
    elif event in ("retract", "dying") and metering.left:
        gone = random.choice(metering.left)
        if event == "retract":
            metering.retract(gone)
        else:
            metering.die(random.randint(1, 5), gone)
    elif event == "trails":
        metering.lose_trails()
    elif event == "recover":
        metering.recover()
    elif event == "rebuild" and metering.sent:
        metering.settle()
        before = metering.content()
        metering.open().remake.rollups(metering.stream.name)
        assert metering.content() == before


def play(
    projects: MetricProjects,
    stream: OracleStream,
    feed: list[Landing],
    seed: int,
    events: tuple[Event, ...],
    **engine: int,
) -> None:
    """Slices land, something of the list happens after each and at the end; then all is proven."""
    random = Random(f"{seed} {stream.kinds} {len(feed)}")
    with projects.metering(stream, **engine) as metering:
        for landing in feed:
            metering.land(landing)
            for _ in range(random.randint(1, 2)):
                happen(metering, random.choice(events), random)
        for _ in range(random.randint(0, 3)):
            happen(metering, random.choice(events), random)
        metering.settle()
        metering.agree()
        metering.prove()
        with projects.metering(stream, **engine) as twin:
            for landing, name in zip(feed, metering.sent, strict=True):
                if name not in metering.gone:
                    twin.land(landing)
            if twin.sent:
                twin.settle()
                twin.agree()
                assert rows_of(metering) == rows_of(twin)
                if not metering.gone:  # else those that followed are judged again, and have other names
                    assert hashes_of(metering) == hashes_of(twin)


def rows_of(metering: MetricsComparison) -> list[str]:
    """Without the tiles that have no rows any more."""
    content = [*metering.content(), "("]
    return [line for line, then in pairwise(content) if not (line.startswith("(") and then.startswith("("))]


def hashes_of(metering: MetricsComparison) -> dict[TileKey, str | None]:
    """What every tile is made of: a function of the ledger, not of batches."""
    state, stream = metering.open().state, metering.stream.name
    return {tile.key: tile.hash for level in LEVELS for tile in state.tiles(stream, level.name)}


CALM: tuple[Event, ...] = ("nothing", "tick", "settle")
DYING: tuple[Event, ...] = ("nothing", "tick", "settle", "die", "die", "die")
TAKING_BACK: tuple[Event, ...] = ("nothing", "tick", "settle", "retract", "dying")
LOSING: tuple[Event, ...] = ("nothing", "tick", "settle", "trails", "recover", "retract", "rebuild")
ALL: tuple[Event, ...] = (
    "nothing",
    "tick",
    "settle",
    "die",
    "retract",
    "dying",
    "trails",
    "recover",
    "rebuild",
)


@few
@given(stream=STREAMS, feed=FEEDS, seed=SEEDS)
def test_any_cut_and_order_of_slices_and_ticks_ends_as_the_oracle_says(
    projects: MetricProjects, stream: OracleStream, feed: list[Landing], seed: int
) -> None:
    play(projects, stream, feed, seed, CALM)


@few
@given(stream=STREAMS, feed=FEEDS, seed=SEEDS)
def test_processes_that_die_at_any_point_leave_no_trace(
    projects: MetricProjects, stream: OracleStream, feed: list[Landing], seed: int
) -> None:
    play(projects, stream, feed, seed, DYING)


@few
@given(stream=STREAMS, feed=FEEDS, seed=SEEDS)
def test_slices_taken_back_leave_no_trace(
    projects: MetricProjects, stream: OracleStream, feed: list[Landing], seed: int
) -> None:
    play(projects, stream, feed, seed, TAKING_BACK)


@few
@given(stream=STREAMS, feed=FEEDS, seed=SEEDS)
def test_trails_and_state_that_are_lost_are_made_again(
    projects: MetricProjects, stream: OracleStream, feed: list[Landing], seed: int
) -> None:
    play(projects, stream, feed, seed, LOSING)


@fewer
@given(stream=STREAMS, feed=FEEDS, seed=SEEDS)
def test_it_is_the_same_with_every_kernel_on_spark(
    projects: MetricProjects, stream: OracleStream, feed: list[Landing], seed: int
) -> None:
    play(projects, stream, feed, seed, CALM, inline_bytes=0)


@pytest.mark.soak
@many
@given(stream=STREAMS, feed=sensor_feeds(max_events=80, max_slices=12), seed=SEEDS)
def test_whatever_happens_at_length(
    projects: MetricProjects, stream: OracleStream, feed: list[Landing], seed: int
) -> None:
    play(projects, stream, feed, seed, ALL)


# --- the gate before everything


@few
@given(stream=STREAMS, feed=FEEDS)
def test_replays_and_conflicts_leave_every_file_of_every_table_as_it_was(
    projects: MetricProjects, stream: OracleStream, feed: list[Landing]
) -> None:
    with projects.metering(stream) as metering:
        for landing in feed:
            metering.land(landing)
        metering.settle()
        mill, kinds = metering.open(), ("raw", "rollups", "index")
        before = files(mill, stream.name, kinds)
        assert (before != {}) == bool(metering.oracle.accepted)
        accepted = [row.payload for row in metering.oracle.raw]
        changed = [payload[:-1] + b',"changed":1}' for payload in accepted]
        for again in (accepted, changed, [*reversed(accepted), *changed]):
            metering.land(Landing("", tuple(again), metering.clock() + 1, "again"))
            metering.settle()
            assert files(mill, stream.name, kinds) == before
        metering.agree()


# --- answers


@few
@given(stream=STREAMS, feed=FEEDS, level=st.sampled_from(LEVELS), back=st.integers(0, 20))
def test_queries_answer_what_the_oracle_says(
    projects: MetricProjects, stream: OracleStream, feed: list[Landing], level: Level, back: int
) -> None:
    start = align(START, level.width) - back * level.width
    with projects.metering(stream) as metering:
        for landing in feed:
            metering.land(landing)
        metering.settle()
        span = Interval(start, start + 25 * level.width)

        def ask(text: str, tenant: str) -> pa.Table:
            return metering.open().ask(text, tenant=tenant, check_tenant=False).table

        agree_on_answers(ask, metering.expected(), level, span)


# --- stories that once ended otherwise


def of(number: int, **fields: object) -> Landing:
    event = {"id": f"e{number}", "at": START + number, "tenant": "acme"} | fields
    return Landing("", (json.dumps(event).encode(),), START + number * MINUTE)


def test_a_key_that_was_taken_back_is_not_admitted_by_the_next_process_either(
    projects: MetricProjects,
) -> None:
    stream = replace(SENSORS, kinds={"c": OracleCounter(("zone",), limit=2)})
    with projects.metering(stream) as metering:
        for landing in (of(1, zone="a"), of(2, zone="b")):
            metering.land(landing)
            metering.settle()
        metering.retract(metering.sent[1])
        metering.settle()
        metering.close()
        for landing in (of(3, zone="c"), of(4, zone="b")):
            metering.land(landing)
            metering.settle()
        metering.agree()
        metering.prove()


def test_a_key_of_a_slice_that_was_taken_back_before_the_log_knew_of_it_is_not_admitted(
    projects: MetricProjects,
) -> None:
    """The process dies with the roster written, the log not; nobody works before the slice goes."""
    stream = replace(SENSORS, kinds={"c": OracleCounter(("zone",), limit=2)})
    points = list(dict.fromkeys(walk(projects, stream)))
    place = points.index("state_history.after_log") + 1  # passed just after the log is written
    with projects.metering(stream) as metering:
        metering.land(of(1, zone="a"))
        metering.settle()
        metering.land(of(2, zone="b"))
        assert metering.die(place) == "state_history.after_log"
        log = metering.warehouse / "trails" / stream.name / "trails.log"
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
        metering.retract(metering.sent[1])
        metering.settle()
        metering.close()
        for landing in (of(3, zone="a"), of(4, zone="c")):
            metering.land(landing)
            metering.settle()
            metering.close()
        metering.agree()
        metering.prove()


def walk(projects: MetricProjects, stream: OracleStream) -> list[str]:
    """The points that are passed as a second slice is taken up."""
    passed: list[str] = []
    with projects.metering(stream) as metering:
        metering.land(of(1, zone="a"))
        metering.settle()
        metering.land(of(2, zone="b"))
        with observed(passed.append):
            metering.tick()
    return passed
