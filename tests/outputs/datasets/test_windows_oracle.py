"""Windows and their datasets through the whole mill against the oracle: whatever lands, at whatever pace it
ticks, whatever is taken back and wherever a process dies, each round leaves what the oracle says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, TypedDict, Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import at_length, examples
from tests.support.oracles.windows import Land, OracleRules, Retract, Tick
from tests.support.strategies.feeds import FIRST_ARRIVAL, WindowScript, window_rules, window_scripts
from tests.support.windows_comparison import STREAM, WindowProjects

from tidemill.model.time import HOUR, SECOND, Interval, parse_instant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

few = examples(5)
many = at_length(400)


def usable(rules: OracleRules) -> bool:
    """What the configuration takes."""
    return rules.span >= SECOND and rules.gap_tolerance < rules.span


def since_the_epoch(script: WindowScript) -> WindowScript:
    """Events may be older than the epoch, the clock on the wall is not."""
    shift = max(0, -script.acts[0].at)
    return script._replace(acts=tuple(act._replace(at=act.at + shift) for act in script.acts))


SCRIPTS = window_scripts(
    rules=window_rules().filter(usable), around=(FIRST_ARRIVAL, FIRST_ARRIVAL, 0), max_acts=20
).map(since_the_epoch)


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> WindowProjects:
    return WindowProjects(tmp_path_factory.mktemp("projects"))


# --- ways to play


class Options(TypedDict, total=False):
    spark: SparkSession
    engine: Mapping[str, int]
    reopen: bool
    one_at_a_time: bool


def dice(script: WindowScript, seed: int) -> Random:
    """Of its own for every script: the seeds that are drawn are few."""
    return Random(f"{seed} {script}")


def play(projects: WindowProjects, script: WindowScript, **options: Unpack[Options]) -> None:
    with projects.playing(script.rules, **options) as playing:
        playing.play(script.acts)
        playing.agree_on_records()


def play_and_prove(projects: WindowProjects, script: WindowScript, **options: Unpack[Options]) -> None:
    """At the end everything is proven, the state is lost, and the fresh one is the same."""
    with projects.playing(script.rules, **options) as playing:
        playing.play(script.acts)
        before = playing.dump()
        playing.recover()
        assert playing.dump() == before
        assert playing.open().tick().idle
        playing.agree(script.acts[-1].at)
        playing.agree_on_records()
        audit = playing.open().verify()
        assert audit.ok, audit.findings


def play_forgetting(
    projects: WindowProjects, script: WindowScript, seed: int, **options: Unpack[Options]
) -> None:
    """The state is lost between any two acts, and what it comes back with goes on as if it had not been."""
    random = dice(script, seed)
    with projects.playing(script.rules, **options) as playing:
        for act in script.acts:
            playing.play([act])
            if random.random() < 0.3:
                playing.recover()
        playing.agree(script.acts[-1].at)
        playing.agree_on_records()


def play_dying(projects: WindowProjects, script: WindowScript, seed: int) -> None:
    """Each act may be the last of its process, which dies at any point of it; even several in a row do."""
    random = dice(script, seed)
    points = {Land: (4,), Retract: (4,), Tick: (2, 8, 16, 24)}  # about as many as it may pass
    with projects.playing(script.rules, concurrency=1) as playing:
        for act in script.acts:
            while random.random() < 0.5:
                playing.die(act, random.randint(1, random.choice(points[type(act)])))
            playing.play([act])
        playing.agree_on_records()


# --- stories that once ended otherwise

STRICT = OracleRules(HOUR, stc=HOUR)
TEN = parse_instant("2024-01-01T10:00:00Z")


def landing(start: float, end: float, at: float, *readings: str) -> Land:
    """Bounds and arrival in hours since ten o'clock; each reading is at the start."""
    first, last, arrival = (TEN + int(hours * HOUR) for hours in (start, end, at))
    records = [json.dumps({"reading": name, "at": first, "station": "s"}).encode() for name in readings]
    return Land.of(STREAM, records, arrival, Interval(first, last))


def tick(at: float) -> Tick:
    return Tick(TEN + int(at * HOUR))


def gone(act: Land, at: float) -> Retract:
    return Retract(act.slice, TEN + int(at * HOUR))


def test_when_all_was_taken_back_a_fresh_state_goes_on(projects: WindowProjects, spark: SparkSession) -> None:
    """It knows no batch, and yet not to read the log of raw from its start, where the undone ones are."""
    only, next_one = landing(0, 1, 1, "e"), landing(0, 1, 1.5, "e", "f")
    with projects.playing(STRICT, spark=spark) as playing:
        playing.play([only, tick(2), gone(only, 3), tick(3)])
        before = playing.dump()
        playing.recover()
        assert playing.dump() == before
        assert playing.open().tick().idle
        playing.play([next_one, tick(4)])
        playing.agree_on_records()


@pytest.mark.parametrize("before", [0, 1], ids=["before they are judged again", "after it"])
def test_the_seal_goes_with_a_slice_also_when_the_state_is_lost(
    projects: WindowProjects, spark: SparkSession, before: int
) -> None:
    """A backfill of one batch is sealed, and its second half taken back: what had come too late counts."""
    one, other, late = landing(0, 0.5, 10, "e"), landing(0.5, 1, 10, "f"), landing(0, 0.4, 11, "g")
    rest = landing(0.5, 1, 13, "h")
    with projects.playing(STRICT, spark=spark) as playing:
        playing.play([one, other, tick(10), late, tick(11), gone(other, 12)])
        playing.play([tick(12)] * before)
        playing.recover()
        playing.play([tick(12), rest, tick(13)])
        assert playing.oracle.datasets[TEN].slices == {one.slice, late.slice, rest.slice}


@pytest.mark.parametrize("before", [0, 1], ids=["before it is judged again", "after it"])
def test_a_seal_stands_although_its_slice_is_judged_again(
    projects: WindowProjects, spark: SparkSession, before: int
) -> None:
    """Another slice of its batch is taken back, and the state is lost; what is late is late."""
    other, sealed, late = landing(5, 6, 10, "e"), landing(0, 1, 10, "e", "f"), landing(0, 1, 11, "g")
    with projects.playing(STRICT, spark=spark) as playing:
        playing.play([other, sealed, tick(10), late, tick(11), gone(other, 12)])
        playing.play([tick(12)] * before)
        playing.recover()
        playing.play([tick(12)])
        assert playing.oracle.datasets[TEN].slices == {f"{sealed.slice}~1"}


def test_the_seal_goes_with_a_slice_that_waits_to_be_judged_again(projects: WindowProjects) -> None:
    """Two slices of one batch are taken back one after another, with no round in between."""
    one, other, late = landing(5, 6, 10), landing(0, 1, 10, "e"), landing(0, 1, 11, "f")
    with projects.playing(STRICT) as playing:
        playing.play([one, other, tick(10), late, tick(11), gone(one, 12), gone(other, 12), tick(12)])
        assert playing.oracle.datasets[TEN].slices == {late.slice}


# --- any story


@few
@given(script=SCRIPTS)
def test_any_script_leaves_what_the_oracle_says(projects: WindowProjects, script: WindowScript) -> None:
    play(projects, script)


@few
@given(script=SCRIPTS)
def test_with_a_new_process_for_every_act(projects: WindowProjects, script: WindowScript) -> None:
    play(projects, script, reopen=True)


@few
@given(script=SCRIPTS)
def test_with_every_slice_in_a_batch_of_its_own(projects: WindowProjects, script: WindowScript) -> None:
    play(projects, script, one_at_a_time=True)


@few
@given(script=SCRIPTS)
def test_a_fresh_state_is_the_same(
    projects: WindowProjects, spark: SparkSession, script: WindowScript
) -> None:
    play_and_prove(projects, script, spark=spark)


@few
@given(script=SCRIPTS, seed=st.integers(0, 2**32))
def test_a_state_lost_on_the_way(
    projects: WindowProjects, spark: SparkSession, script: WindowScript, seed: int
) -> None:
    play_forgetting(projects, script, seed, spark=spark)


@examples(2)
@given(script=SCRIPTS)
def test_all_of_it_on_spark(projects: WindowProjects, spark: SparkSession, script: WindowScript) -> None:
    play_and_prove(projects, script, spark=spark, engine={"inline_bytes": 0})


@few
@given(script=SCRIPTS, seed=st.integers(0, 2**32))
def test_dying_on_the_way(projects: WindowProjects, script: WindowScript, seed: int) -> None:
    play_dying(projects, script, seed)


# --- at length


@pytest.mark.soak
@many
@given(script=SCRIPTS)
def test_any_script_leaves_what_the_oracle_says_at_length(
    projects: WindowProjects, script: WindowScript
) -> None:
    play(projects, script)


@pytest.mark.soak
@many
@given(script=SCRIPTS)
def test_with_a_new_process_for_every_act_at_length(projects: WindowProjects, script: WindowScript) -> None:
    play(projects, script, reopen=True)


@pytest.mark.soak
@many
@given(script=SCRIPTS)
def test_with_every_slice_in_a_batch_of_its_own_at_length(
    projects: WindowProjects, script: WindowScript
) -> None:
    play(projects, script, one_at_a_time=True)


@pytest.mark.soak
@many
@given(script=SCRIPTS)
def test_a_fresh_state_is_the_same_at_length(
    projects: WindowProjects, spark: SparkSession, script: WindowScript
) -> None:
    play_and_prove(projects, script, spark=spark)


@pytest.mark.soak
@many
@given(script=SCRIPTS, seed=st.integers(0, 2**32))
def test_a_state_lost_on_the_way_at_length(
    projects: WindowProjects, spark: SparkSession, script: WindowScript, seed: int
) -> None:
    play_forgetting(projects, script, seed, spark=spark)


@pytest.mark.soak
@many
@given(script=SCRIPTS, seed=st.integers(0, 2**32))
def test_dying_on_the_way_at_length(projects: WindowProjects, script: WindowScript, seed: int) -> None:
    play_dying(projects, script, seed)
