"""A process may die at any point: what was acknowledged is there, nothing is there twice, nobody repairs.

How the walk is made: one undisturbed round is watched, and at every fail point it passes the whole project is
copied. Such a copy is what a process killed there leaves behind (what it had handed to the system, and
nothing that runs on the way out of an exception), so each is opened as a new process would open it. That
copies and corpses are the same is checked against processes that really die by `os._exit`. Golden case M12
(death between flush and commit, totals exact) is the points from accept.after_write to rollups.after_state.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.oracles.oracle import Oracle
from tests.support.oracles.stream import REQUESTS
from tests.support.patience import PATIENCE
from tests.support.pipeline import (
    NOON,
    SLICES,
    STREAMING,
    Plant,
    Story,
    all_on_spark,
    last_round,
    slice_of,
    start_child,
)
from tests.support.warehouse_location import all_files, in_bucket

from tidemill.formats.stored_slice import content_bytes
from tidemill.ingest.interrupted_landings import adopt
from tidemill.model.failpoints import EXIT_CODE, POINTS, observed
from tidemill.model.slices import SliceStatus
from tidemill.storage import layout

# With walks of their own.
ELSEWHERE = (
    "wal.",
    "gateway.",
    "state_history.",
    "windows.",
    "dataset.",
    "events.",
    "retract.",
    "expire.",
    "search.",
    "pack.",
    "columns.",
    "retry.",
    "compression.",
    "chains.",
)
HERE = [point for point in POINTS if not point.startswith(ELSEWHERE)]
LANDING = [point for point in HERE if point.startswith("landing.")]
ON_SPARK = [point for point in HERE if point not in LANDING]
SECOND_WINDOW = [f"{point}:2" for point in HERE if point.startswith("results.")]  # passed for each of the two


def published(plant: Plant) -> dict[str, list[dict[str, object]]]:
    """The state without the versions of the tables, which count the commits that a crash added."""
    with plant.open() as mill:
        dumped = mill.state.dump()
    del dumped["versions"]
    if in_bucket():  # a takeover takes a version of each table there, and these are named after versions
        dumped["outbox"] = [{**event, "id": ""} for event in dumped["outbox"]]
    return dumped


def results_of(plant: Plant) -> dict[str, list[dict[str, object]]]:
    left_out = {"batch"} if in_bucket() else set[str]()  # for the same reason
    found = {
        window: [{name: value for name, value in row.items() if name not in left_out} for row in rows]
        for window, rows in plant.results().items()
    }
    return {window: sorted(rows, key=str) for window, rows in found.items()}


def assert_same(plant: Plant, wanted: Plant) -> None:
    assert published(plant) == published(wanted)
    assert plant.raw() == wanted.raw()
    assert plant.quarantine() == wanted.quarantine()
    assert plant.tiles() == wanted.tiles()
    assert results_of(plant) == results_of(wanted)
    assert plant.leftovers() == []


def test_the_undisturbed_story_is_what_the_oracle_says(story: Story) -> None:
    oracle = Oracle(REQUESTS)
    with story.after.open() as mill:
        entries = mill.state.slices("requests")
        for entry in entries:
            lines = content_bytes(story.after.warehouse / entry.slice.path).splitlines()
            oracle.land(entry.id, lines, entry.slice.arrival, entry.slice.source)
        assert {entry.id: entry.counts for entry in entries} == oracle.counts
        assert [entry.counts.rejected for entry in entries] == [3] * (SLICES + 2)
        assert mill.verify().ok
    rows = {(r["tenant"], r["event_id"], r["slice"], r["line"], r["payload"]) for r in story.after.raw()}
    assert rows == {(r.tenant, r.event_id, r.slice, r.line, r.payload.decode()) for r in oracle.raw}
    kept = [(r["slice"], r["line"], r["outcome"]) for r in story.after.quarantine()]
    assert kept == sorted((q.slice, q.line, q.outcome.value) for q in oracle.quarantine)
    assert story.after.leftovers() == []


def test_every_fail_point_was_passed(story: Story) -> None:
    assert sorted(story.at) == sorted([*HERE, *SECOND_WINDOW])


@pytest.mark.parametrize("point", [*ON_SPARK, *SECOND_WINDOW])
def test_death_while_working_leaves_nothing_to_repair(story: Story, point: str, tmp_path: Path) -> None:
    plant = story.at[point].copy(tmp_path / "corpse")
    with plant.open() as mill:
        mill.run_until_idle()
        if point in ("raw.after_commit", "rollups.after_commit", "results.after_commit:2"):
            assert mill.verify().findings == []
    assert_same(plant, story.after)


@pytest.mark.parametrize("point", LANDING)
def test_death_while_landing_leaves_whole_slices_or_none(story: Story, point: str, tmp_path: Path) -> None:
    plant = story.at[point].copy(tmp_path / "corpse")
    with plant.open() as mill:
        mill.run_until_idle()
        entries = mill.state.slices("requests")
    files = {p.relative_to(plant.warehouse).as_posix() for p in plant.warehouse.glob("slices/*/*/*")}
    assert files == {entry.slice.path for entry in entries}
    assert {entry.status for entry in entries} == {SliceStatus.ACCEPTED}
    # It died before the first had its name, or both have theirs: whole, though nobody was told.
    assert len(entries) == (SLICES if point == "landing.after_temp" else SLICES + 2)
    if point == "landing.after_temp":
        last_round(plant)  # the sender was not told, so it sends again
    assert_same(plant, story.after)


def test_dying_again_and_again_is_no_different(story: Story, tmp_path: Path) -> None:
    """Each new process dies as well, one point further on than the one before it."""
    plant = story.at["landing.after_log"].copy(tmp_path / "first")
    for point in ("raw.after_commit", "rollups.before_commit", "gate.after_merge", "results.after_commit"):
        copies: list[Plant] = []

        def keep(passed: str, point: str = point, plant: Plant = plant, copies: list[Plant] = copies) -> None:
            if passed == point and not copies:
                copies.append(plant.copy(tmp_path / point))

        with observed(keep), plant.open() as mill:
            mill.tick()
        (plant,) = copies
    with plant.open() as mill:
        mill.run_until_idle()
    assert_same(plant, story.after)


# -- processes that really die

CHILD = """
import sys
from tidemill.mill import Mill
root, now = sys.argv[1], int(sys.argv[2])
mill = Mill.open(root, clock=lambda: now)
mill.ingest("requests", [f"{root}/{name}.ndjson" for name in sys.argv[3:]])
mill.tick()
"""


def as_left(plant: Plant) -> dict[str, int]:
    """Every file and its size, but for what is never twice the same: the sizes of the files of SQLite and of
    the tables' logs (they hold times of writing), names and sizes of temporaries (several at once), and names
    of holders of leases; files of Spark sessions are those of living processes."""
    found: dict[str, int] = {}
    for path in all_files(plant.warehouse):
        if path.parent != layout.sessions(plant.warehouse):
            name = path.relative_to(plant.warehouse).as_posix()
            if path.suffix in (".tmp", ".note"):
                name = f"{path.parent.name}/*{path.suffix}"
            if path.parent == layout.holders(plant.warehouse):
                name = f"{path.parent.name}/*"
            varies = name.startswith("state.db") or "_delta_log" in name or "*" in name
            found[name] = 0 if varies else path.stat().st_size
    return found


def start_to_die(story: Story, point: str, config: str, folder: Path) -> tuple[Plant, subprocess.Popen[str]]:
    corpse = story.before.copy(folder / point)
    corpse.configure(config)
    for number in (SLICES, SLICES + 1):
        (corpse.root / f"{number}.ndjson").write_bytes(slice_of(number))
    return corpse, start_child(CHILD, corpse.root, NOON, SLICES, SLICES + 1, TIDEMILL_FAILPOINT=point)


def assert_all_leave_their_copies(story: Story, points: list[str], config: str, folder: Path) -> None:
    dying = [start_to_die(story, point, config, folder) for point in points]
    for point, (corpse, process) in zip(points, dying, strict=True):
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == EXIT_CODE, said
        copy = story.at[point].copy(folder / f"copy of {point}")
        assert as_left(corpse) == as_left(copy), point
        assert published(corpse) == published(copy), point


@pytest.mark.parametrize(
    "points",
    [
        LANDING,
        ON_SPARK[::4],
        *(pytest.param(ON_SPARK[i::4], marks=pytest.mark.soak) for i in (1, 2, 3)),
    ],
)
def test_what_a_process_leaves_that_dies_is_the_copy(story: Story, points: list[str], tmp_path: Path) -> None:
    """These do their small work without Spark, by the same kernels: so quick, and the same files."""
    assert_all_leave_their_copies(story, points, STREAMING, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("point", ON_SPARK)
def test_what_a_process_on_spark_leaves_that_dies_is_the_copy(
    story: Story, point: str, tmp_path: Path
) -> None:
    assert_all_leave_their_copies(story, [point], all_on_spark(STREAMING), tmp_path)


SENDER = """
import sys
from tidemill.mill import Mill
root, now = sys.argv[1], int(sys.argv[2])
mill = Mill.open(root, clock=lambda: now)
print("ready", flush=True)
for name in sys.argv[3:]:
    for landed in mill.ingest("requests", [f"{root}/{name}.ndjson"]).landed:
        print(landed.entry.id, flush=True)
"""


def killed_while_sending(plant: Plant, seed: int, files: int) -> list[str]:
    """The ids that a sender was told before it was killed, at a moment that the seed decides."""
    moment = random.Random(seed)
    for number in range(files):
        (plant.root / f"{number}.ndjson").write_bytes(slice_of(number))
    command = [sys.executable, "-c", SENDER, str(plant.root), str(NOON), *map(str, range(files))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        assert sender.stdout.readline() == "ready\n"
        acknowledged = [sender.stdout.readline().strip() for _ in range(moment.randrange(1, 6))]
        try:
            sender.wait(moment.uniform(0.0, 0.02))
        except subprocess.TimeoutExpired:
            sender.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in sender.stdout]
    return acknowledged


def assert_acknowledged_is_durable(plant: Plant, seed: int, files: int) -> int:
    acknowledged = killed_while_sending(plant, seed, files)
    with plant.open() as mill:
        adopt(plant.warehouse, mill.state)  # what a tick does first
        entries = {entry.id: entry for entry in mill.state.slices("requests")}
        assert set(acknowledged) <= set(entries)
        assert len(entries) - len(acknowledged) in (0, 1)
        wanted = [slice_of(number) for number in range(len(entries))]
        assert [content_bytes(plant.warehouse / e.slice.path) for e in entries.values()] == wanted
    assert plant.leftovers() == []
    return len(acknowledged)


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_before_kill_9_is_in_the_ledger(plant: Plant, seed: int) -> None:
    assert assert_acknowledged_is_durable(plant, seed, files=40) < 40


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 150))
def test_what_was_acknowledged_is_in_the_ledger_whenever_kill_9_comes(plant: Plant, seed: int) -> None:
    assert_acknowledged_is_durable(plant, seed, files=40)
