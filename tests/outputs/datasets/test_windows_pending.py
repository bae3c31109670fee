"""A window is evaluated only once every landed slice that touches it is decided."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.outputs.datasets.conftest import NewStations, Stations, coordinate

from tidemill.model.windows import Phase


def small_batches(stations: Stations) -> Stations:
    """Each round accepts one slice."""
    config = stations.root / "tidemill.yaml"
    small = "memory: 512m, batch_bytes: 1MiB, chunk_bytes: 1MiB"
    config.write_text(config.read_text().replace("memory: 512m", small))
    stations.pad = 1 << 20
    return stations


def minutes(first: int, count: int, hour: str = "10") -> list[str]:
    return [f"{hour}:{minute:02}:{first:02}" for minute in range(count)]


def run_until_idle(stations: Stations) -> None:
    with stations.open() as mill:
        mill.run_until_idle()


def test_a_backfill_larger_than_one_batch_is_in_its_dataset_whole(new_stations: NewStations) -> None:
    stations = small_batches(new_stations())
    stations.land("one", "10:00", "11:00", rows=minutes(0, 60))
    stations.land("two", "10:00", "11:00", rows=minutes(30, 60))
    run_until_idle(stations)
    window, members = stations.window("10:00")
    assert (window.rows, window.revision) == (120, 1)
    assert all(member.desired and member.ignored is None for member in members)


def test_windows_says_which_slices_it_waits_for(new_stations: NewStations) -> None:
    stations = small_batches(new_stations())
    stations.land("one", "10:00", "11:00")
    two = stations.land("two", "10:00", "11:00", rows=["10:30"])
    stations.land("elsewhere", "11:00", "12:00")
    stations.tick()
    with stations.open() as mill:
        [view] = mill.windows.windows("stations")
    assert (view.status.value, view.reason) == ("waiting", "pending")
    assert two[:12] in str(view.detail)
    run_until_idle(stations)
    assert [window.revision for window in stations.windows()] == [1, 1]


def test_a_window_in_time_comes_out_once_with_all_its_slices(new_stations: NewStations) -> None:
    stations = small_batches(new_stations(now="10:00"))
    for number in range(3):
        stations.land(str(number), "10:00", "11:00", rows=minutes(number, 5), at=f"11:0{number}")
    stations.tick("12:00")
    run_until_idle(stations)
    assert [(w.revision, w.rows) for w in stations.windows()] == [(1, 15)]


def test_slices_without_bounds_hold_back_what_is_not_built_yet(new_stations: NewStations) -> None:
    stations = small_batches(new_stations())
    stations.land("one", "10:00", "11:00")
    stations.land("somewhere", None, None, rows=["10:10"])
    stations.tick()
    assert stations.window("10:00")[0].reason == "pending"
    run_until_idle(stations)
    assert stations.window("10:00")[0].rows == 2


def test_a_slice_for_another_time_holds_nothing_back(new_stations: NewStations) -> None:
    stations = small_batches(new_stations())
    stations.land("one", "10:00", "11:00")
    stations.land("later", "12:00", "13:00")
    stations.tick()
    assert stations.window("10:00")[0].phase is Phase.BUILT


def test_a_late_slice_holds_nothing_back_that_was_served_without_it(new_stations: NewStations) -> None:
    stations = small_batches(new_stations(now="10:00"))
    stations.land("one", "10:00", "11:00", at="11:05")
    stations.land("late", "10:00", "11:00", rows=["10:40"], at="12:01")
    stations.tick()
    window, _ = stations.window("10:00")
    assert (window.phase, window.rows) == (Phase.BUILT, 1)


def test_a_slice_whose_file_is_away_holds_its_window_back_until_it_is_there(
    new_stations: NewStations,
) -> None:
    stations = new_stations()
    stations.land("one", "10:00", "11:00")
    gone = stations.land("two", "10:00", "11:00", rows=["10:30"])
    with stations.open() as mill:
        entry = mill.state.slice(gone)
        assert entry is not None
        path = mill.project.warehouse / entry.slice.path
    away = path.rename(path.with_suffix(".away"))
    run_until_idle(stations)
    window, _ = stations.window("10:00")
    assert (window.phase, window.reason) == (Phase.WAITING, "pending")
    assert gone[:12] in str(window.detail)
    away.rename(path)
    stations.tick("2024-02-02T00:00:00Z")
    run_until_idle(stations)
    assert stations.window("10:00")[0].rows == 2


def test_a_retracted_slice_holds_nothing_back(new_stations: NewStations) -> None:
    stations = small_batches(new_stations())
    stations.land("one", "10:00", "11:00")
    two = stations.land("two", "10:00", "11:00", rows=["10:30"])
    coordinate(stations)
    with stations.open() as mill:
        mill.retract(mill.plan_retraction(two, "not ours"))
    run_until_idle(stations)
    assert [(w.phase, w.rows) for w in stations.windows()] == [(Phase.BUILT, 1)]


def test_what_another_process_has_landed_holds_back_too(new_stations: NewStations) -> None:
    stations = small_batches(new_stations())
    stations.land("one", "10:00", "11:00")
    record = {"id": "other", "at": "2024-01-01T10:30:00Z", "station": "other"}
    (stations.root / "other.ndjson").write_text(json.dumps(record) + "\n")
    bounds = ["--start", "2024-01-01T10:00:00Z", "--end", "2024-01-01T11:00:00Z"]
    command = [str(Path(sys.executable).parent / "tidemill"), "ingest", "stations", "other.ndjson", *bounds]
    subprocess.run(command, cwd=stations.root, check=True, capture_output=True)
    stations.tick()
    assert stations.window("10:00")[0].reason == "pending"
    run_until_idle(stations)
    assert stations.window("10:00")[0].rows == 2


@pytest.mark.parametrize("incomplete", [True, False])
def test_a_slice_that_cannot_be_read_keeps_a_window_from_being_final(
    new_stations: NewStations, incomplete: bool
) -> None:
    again = {"policy": "reemit", "max_lateness": "1d"}
    stations = new_stations(now="10:00", allow_incomplete_windows=incomplete, late_slices=again)
    stations.land("good", "10:00", "11:00", at="11:05")
    stations.tick("12:00")
    gone = stations.land("gone", "10:00", "11:00", rows=["10:30"], at="12:30")
    with stations.open() as mill:
        entry = mill.state.slice(gone)
        assert entry is not None
        (mill.project.warehouse / entry.slice.path).unlink()
    stations.tick("2024-01-03T00:00:00Z")
    window, _ = stations.window("10:00")
    with stations.open() as mill:
        assert mill.windows.window("stations", window.key.start).view.status == "built"
        mill.retract(mill.plan_retraction(gone, "it is lost"))
        assert mill.windows.window("stations", window.key.start).view.status == "final"
