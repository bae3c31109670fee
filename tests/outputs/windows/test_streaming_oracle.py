"""Streaming windows through the whole mill against the oracle: whatever is declared, however rows come and
rounds cut them, whatever is taken back, forgotten or dies on the way, what stands is what the oracle says."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from tests.outputs.windows.conftest import NewRows, Rows, summed
from tests.support.hypothesis_settings import at_length, examples
from tests.support.streaming_comparison import ALL, CALM, Script, StreamingProjects, scripts

from tidemill.engine import Engine
from tidemill.model.failpoints import observed
from tidemill.model.time import SECOND
from tidemill.outputs.windows import planning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# without shrinking, which would take minutes: the soak does that
few = examples(3, shrink=False)
many = at_length(400)
SCRIPTS = scripts()


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> StreamingProjects:
    return StreamingProjects(tmp_path_factory.mktemp("projects"))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What proves and recovers runs in this process, too: the same kernels, in a tenth of the time."""
    run = Engine.run

    def run_here(
        self: Engine,
        kernel: Callable[[object], Iterable[object]],
        units: Sequence[object],
        label: str,
        size: int | None = None,
    ) -> list[object]:
        return run(self, kernel, units, label, size or 0)

    monkeypatch.setattr(Engine, "run", run_here)


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is cut into as many buckets as there are cores, however little it is."""
    monkeypatch.setattr(planning, "BUCKET_BYTES", 1)


def play(projects: StreamingProjects, script: Script, moods: frozenset[str], **options: object) -> None:
    with projects.playing(script, moods, **options) as playing:  # type: ignore[arg-type]
        playing.play()


# --- stories that once ended otherwise

REEMIT = {"policy": "reemit", "max_lateness": "1h"}


def copying(rows: Rows, point: str, target: Path) -> Callable[[str], None]:
    """Leaves what a process that dies at the first such point would."""

    def tell(passed: str) -> None:
        if passed == point and not target.exists():
            shutil.copytree(rows.folder, target, ignore=shutil.ignore_patterns(target.name))

    return tell


def test_a_group_whose_window_got_longer_comes_out_again(here: None, new_rows: NewRows) -> None:
    """The row that joins two sessions is of another group: its own rows are of the same slices as before."""
    rows = new_rows(windows={"w": summed("session", gap="5s", group_by="b", late=REEMIT)})
    rows.feed({"at": 0, "a": 1, "b": 1}, {"at": 8, "a": 2, "b": 1}, {"at": 40, "a": 0, "b": 9})
    rows.feed({"at": 4, "a": 4, "b": 2})
    assert rows.results("w", "b", "sum", "revision") == [(0, 13, 1, 3, 2), (0, 13, 2, 4, 1)]


def test_a_decimal_that_is_missing_in_the_only_row(here: None, new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": {"kind": "tumbling", "size": "10s", "aggregates": {"low": "min(price)"}}})
    rows.feed((1, 1))
    rows.feed((30, 1))
    assert rows.results("w", "low") == [(0, 10, None)]


def test_another_declaration_before_anything_came_out(here: None, new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed(size="10s", aggregates=["max"])})
    rows.feed((1, 1))
    rows.redeclare(windows={"w": summed(size="10s", aggregates=["min"])})
    rows.feed((12, 1))
    assert rows.results("w", "min") == [(0, 10, 1)]


def test_a_declaration_that_comes_back_after_a_crash(here: None, new_rows: NewRows, tmp_path: Path) -> None:
    """The other one's table was begun, and its mark not set."""
    first, other = summed(size="10s"), summed("session", gap="3s", aggregates=["max"])
    rows = new_rows(windows={"w": first})
    rows.feed((1, 1), (12, 2))
    rows.feed((25, 4))
    rows.redeclare(windows={"w": other})
    with observed(copying(rows, "results.after_commit", tmp_path / "left")):
        rows.tick()
    rows.folder = tmp_path / "left"
    rows.redeclare(windows={"w": first})
    rows.tick()
    assert rows.results("w", "sum", "revision") == [(0, 10, 1, 1), (10, 20, 2, 1)]
    assert rows.verify() == []


def test_results_that_somebody_removed_are_made_again(here: None, new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed(size="10s")})
    rows.feed((1, 1), (12, 2))
    shutil.rmtree(rows.folder / "warehouse" / "windows")
    rows.tick()
    assert rows.results("w", "sum") == [(0, 10, 1)]


def test_the_first_results_are_told_of_although_the_process_died(
    here: None, new_rows: NewRows, tmp_path: Path
) -> None:
    rows = new_rows(windows={"w": summed(size="10s")})
    rows.land((5, 1), (12, 2), (40, 1))
    with observed(copying(rows, "results.after_commit", tmp_path / "left")):
        rows.tick()
    reported = [event["id"] for event in events(rows)]
    assert len(reported) == 2
    rows.folder = tmp_path / "left"
    rows.tick()
    assert [event["id"] for event in events(rows)] == reported


def events(rows: Rows) -> list[dict[str, object]]:
    with rows.open() as mill:
        return [event for _, event in mill.events()]


def test_a_process_that_dies_while_only_time_goes_on(here: None, new_rows: NewRows, tmp_path: Path) -> None:
    """No new version of raw, no results: yet rows of open windows are set down anew, beside the old ones."""
    rows = new_rows(windows={"w": summed("count", n=5)}, event_time={"idle_timeout": "1m"})
    rows.feed((1, 1), source="slow")
    rows.clock.advance(20 * SECOND)
    rows.feed((2, 2), source="faster")
    rows.clock.advance(20 * SECOND)
    rows.feed((3, 4), (3.5, 8), source="fast")
    rows.clock.advance(20 * SECOND)
    rows.tick()
    assert rows.watermark() == 2
    rows.clock.advance(20 * SECOND)
    with observed(copying(rows, "results.after_fold", tmp_path / "left")):
        rows.tick()
    rows.folder = tmp_path / "left"
    assert rows.watermark() == 3.5
    rows.tick()
    rows.feed((4, 16), source="fast")
    assert rows.results("w", "sum", "rows") == [(1, 4.000001, 31, 5)]
    assert rows.verify() == []


def test_windows_of_one_instant_keep_their_numbers(here: None, new_rows: NewRows) -> None:
    """Two rows of the same instant make a window, the third begins another one, which stays open."""
    rows = new_rows(windows={"w": summed("count", n=2)})
    rows.feed((1, 1), (1, 2), (1, 4))
    assert rows.results("w", "sum", "revision") == [(1, 1.000001, 3, 1)]
    rows.feed((2, 8))
    assert rows.results("w", "sum", "revision") == [(1, 1.000001, 3, 1), (1, 2.000001, 12, 1)]
    assert rows.verify() == []


def test_a_second_stop_takes_back_what_the_first_let_out_and_is_no_more(
    here: None, new_rows: NewRows
) -> None:
    rows = new_rows(tolerance="1m", windows={"w": summed("count", n=2)})
    rows.feed((10, 1))
    rows.stop()
    assert rows.results("w", "sum") == [(10, 10.000001, 1)]
    rows.feed((5, 2))
    rows.stop()
    assert rows.results("w", "sum", "trigger") == [(5, 10.000001, 3, "stop")]


def test_a_retraction_after_which_rows_are_not_late_any_more(here: None, new_rows: NewRows) -> None:
    """The slices of the window are the same; what is told of them is not."""
    rows = new_rows(windows={"w": summed(size="10s", late=REEMIT)})
    rows.feed((1, 1))
    wrong = rows.feed((20, 2))
    rows.feed((5, 4))
    rows.feed((30, 8))
    assert rows.results("w", "sum", "late_rows")[0] == (0, 10, 5, 1)
    with rows.open() as mill:
        mill.retract(mill.plan_retraction(wrong, "a clock in the future"))
        mill.run_until_idle()
    assert rows.results("w", "sum", "late_rows")[0] == (0, 10, 5, 0)
    assert rows.verify() == []


# --- any story


@few
@given(script=SCRIPTS)
def test_what_stands_is_what_the_oracle_says(projects: StreamingProjects, here: None, script: Script) -> None:
    play(projects, script, CALM)


@few
@given(script=SCRIPTS)
def test_in_several_buckets(projects: StreamingProjects, here: None, buckets: None, script: Script) -> None:
    play(projects, script, CALM)


@few
@given(script=SCRIPTS)
def test_whatever_happens_on_the_way(projects: StreamingProjects, here: None, script: Script) -> None:
    play(projects, script, ALL)


@few
@given(script=SCRIPTS)
def test_whatever_happens_in_several_buckets(
    projects: StreamingProjects, here: None, buckets: None, script: Script
) -> None:
    play(projects, script, ALL)


@few
@given(script=scripts(max_slices=10, sums=True))
def test_open_sessions_go_on_from_their_sums(
    projects: StreamingProjects, here: None, buckets: None, script: Script
) -> None:
    play(projects, script, ALL)


@examples(1, shrink=False)
@given(script=scripts(max_slices=3))
def test_on_spark(projects: StreamingProjects, spark: SparkSession, buckets: None, script: Script) -> None:
    play(projects, script, ALL, spark=spark, engine={"inline_bytes": 0})


# --- at length


@pytest.mark.soak
@many
@given(script=SCRIPTS)
def test_what_stands_is_what_the_oracle_says_at_length(
    projects: StreamingProjects, here: None, script: Script
) -> None:
    play(projects, script, CALM)


@pytest.mark.soak
@many
@given(script=SCRIPTS)
def test_in_several_buckets_at_length(
    projects: StreamingProjects, here: None, buckets: None, script: Script
) -> None:
    play(projects, script, CALM)


@pytest.mark.soak
@many
@given(script=SCRIPTS)
def test_whatever_happens_on_the_way_at_length(
    projects: StreamingProjects, here: None, script: Script
) -> None:
    play(projects, script, ALL)


@pytest.mark.soak
@many
@given(script=SCRIPTS)
def test_whatever_happens_in_several_buckets_at_length(
    projects: StreamingProjects, here: None, buckets: None, script: Script
) -> None:
    play(projects, script, ALL)
