"""`state.db` can be deleted: `recover` makes the same one again from the warehouse."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.pipeline import NOON, STREAMING, Plant, Story, ndjson, request, slice_of

from tidemill.mill import Mill, recover
from tidemill.model.errors import StorageError
from tidemill.model.slices import SliceStatus
from tidemill.model.time import parse_instant
from tidemill.testing import FakeClock

Dump = dict[str, list[dict[str, object]]]


@pytest.fixture(scope="module")
def busy(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Plant:
    """After many batches, merged id runs, late and repeated slices: one that failed, one whose records are
    all bad, one that is declared to be empty, quarantine judged again, and one that waits."""
    plant = story.after.copy(tmp_path_factory.mktemp("busy") / "plant")
    plant.configure(STREAMING.replace("allowed: [request]", "allowed: [request, other]"))
    with plant.open() as mill:
        broken = mill.land("requests", b"event_id,event_id\n1,2\n", name="broken.csv", source="partner")
        mill.land("requests", ndjson(b"{", b"[]"), source="partner")
        mill.land("requests", b"", start=NOON - 60_000_000, end=NOON)
        mill.land("requests", ndjson(request(9001)), source="partner", start=0, end=NOON)
        mill.tick()
        [replayed] = mill.replay("requests", reason="unknown_type")
        mill.land("requests", slice_of(3))  # it landed before
        plant.clock.advance("1d")
        mill.tick()
        mill.land("requests", ndjson(request(9002), request(0)))
        assert mill.slice(replayed.entry.id).counts.accepted == 24
        assert mill.slice(broken.entry.id).status is SliceStatus.FAILED
        assert sum(entry.landings for entry in mill.ledger()) == len(mill.ledger()) + 1
    return plant


def dump(plant: Plant) -> Dump:
    """The state. What it tells of each window is told again as it was, though the windows may take turns."""
    with plant.open() as mill:
        dumped = mill.state.dump()
    return {**dumped, "outbox": sorted(dumped["outbox"], key=lambda event: str(event["id"]))}


def forget(plant: Plant) -> None:
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (plant.warehouse / name).unlink(missing_ok=True)


def without(dumped: Dump, *tables: str) -> Dump:
    return {name: rows for name, rows in dumped.items() if name not in tables}


def assert_old_duplicates_are_seen(plant: Plant) -> None:
    """Every event that was ever accepted is sent again, under one new event and one that contradicts."""
    again = [bytes(str(row["payload"]), "utf-8") for row in plant.raw()]
    with plant.open() as mill:
        landed = mill.land("requests", ndjson(request(9100), *again, request(17, api="/changed")))
        mill.run_until_idle()
        counts = mill.slice(landed.entry.id).counts
    assert (counts.accepted, counts.duplicate, counts.conflict) == (1, len(again), 1)


def test_a_warehouse_without_its_state_asks_for_recover(busy: Plant, tmp_path: Path) -> None:
    plant = busy.copy(tmp_path / "plant")
    forget(plant)
    with pytest.raises(StorageError, match=r"has slices, but there is no state in .*state\.db") as caught:
        plant.open()
    assert "tidemill recover" in caught.value.hint


def test_the_recovered_state_is_the_same(busy: Plant, tmp_path: Path) -> None:
    plant = busy.copy(tmp_path / "plant")
    before = dump(plant)
    forget(plant)
    recovered = recover(plant.root, spark=plant.spark)
    after = dump(plant)
    for table, rows in before.items():
        assert after[table] == rows, table
    assert recovered.slices == len(before["slices"])
    assert recovered.batches == len(before["batches"])
    assert recovered.tiles == len(before["tiles"])
    assert_old_duplicates_are_seen(plant)
    with plant.open() as mill:
        assert mill.verify().findings == []


def test_recovering_over_a_state_that_is_there_changes_nothing(busy: Plant, tmp_path: Path) -> None:
    plant = busy.copy(tmp_path / "plant")
    before = dump(plant)
    recover(plant.root, spark=plant.spark)
    assert dump(plant) == before


def lose(plant: Plant, what: str) -> None:
    runs = sorted((plant.warehouse / "gate" / "requests").iterdir())
    assert len(runs) > 1
    for path in runs if what == "all" else runs[::2]:
        if what == "half damaged":
            path.write_bytes(path.read_bytes()[:-20])
        else:
            path.unlink()


@pytest.mark.parametrize("lost", ["all", "half", "half damaged"])
def test_lost_id_runs_are_made_again_from_raw(busy: Plant, tmp_path: Path, lost: str) -> None:
    plant = busy.copy(tmp_path / "plant")
    before = dump(plant)
    forget(plant)
    lose(plant, lost)
    recover(plant.root, spark=plant.spark)
    assert without(dump(plant), "runs") == without(before, "runs")
    assert_old_duplicates_are_seen(plant)
    assert plant.leftovers() == []


@pytest.mark.parametrize("lost", ["all", "half damaged"])
def test_lost_id_runs_are_made_again_without_recover_too(busy: Plant, tmp_path: Path, lost: str) -> None:
    plant = busy.copy(tmp_path / "plant")
    lose(plant, lost)
    assert_old_duplicates_are_seen(plant)
    assert plant.leftovers() == []


def test_lost_rollups_are_built_again_by_the_next_tick(busy: Plant, tmp_path: Path) -> None:
    plant = busy.copy(tmp_path / "plant")
    with plant.open() as mill:
        mill.run_until_idle()
    before, state = plant.tiles(), dump(plant)
    forget(plant)
    shutil.rmtree(plant.warehouse / "rollups")
    recover(plant.root, spark=plant.spark)
    with plant.open() as mill:
        (report,) = mill.tick().streams
        assert len(report.tiles) == len(before[0])
        assert mill.verify().findings == []
    assert plant.tiles() == before
    # All but the tiles' revisions (and with them the names of their parts), which start anew.
    assert without(dump(plant), "tiles", "versions") == without(state, "tiles", "versions")


def test_a_landing_that_the_state_never_knew_is_recovered_too(story: Story, tmp_path: Path) -> None:
    plant = story.at["landing.after_log"].copy(tmp_path / "plant")
    forget(plant)
    recover(plant.root, spark=plant.spark)
    with plant.open() as mill:
        mill.run_until_idle()
    assert without(dump(plant), "versions") == without(dump(story.after), "versions")
    assert plant.raw() == story.after.raw()


ONE_STREAM = """
version: 1
streams:
  r:
    schema: {{id: string, at: string{columns}}}
    identity: id
    event_time: {{column: at, type: iso8601, late_tolerance: {tolerance}}}
"""


def test_the_watermark_is_the_recorded_one_after_columns_and_tolerance_have_changed(tmp_path: Path) -> None:
    """The columns are made again by commits of raw that record no watermark; another tolerance moves none."""
    project, clock = tmp_path / "tidemill.yaml", FakeClock(NOON)
    project.write_text(ONE_STREAM.format(columns="", tolerance="1m"))
    with Mill.open(tmp_path, clock=clock) as mill:
        mill.land("r", b'{"id": "a", "at": "2024-01-15T11:00:00Z"}\n', format="ndjson")
        mill.run_until_idle()
    project.write_text(ONE_STREAM.format(columns=", note: string", tolerance="0s"))
    with Mill.open(tmp_path, clock=clock) as mill:
        mill.run_until_idle()
        before = mill.state.progress("r")
    assert before.watermark == parse_instant("2024-01-15T10:59:00Z")
    for path in (tmp_path / "warehouse").glob("state.db*"):
        path.unlink()
    recover(tmp_path, clock=clock)
    with Mill.open(tmp_path, clock=clock) as mill:
        assert mill.state.progress("r") == before
