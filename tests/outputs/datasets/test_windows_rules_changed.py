"""Rules and columns that are declared anew: windows are evaluated and built again, and everybody says so."""

from __future__ import annotations

import pytest
from tests.outputs.datasets.conftest import NewStations, Stations, instant

from tidemill.mill import recover
from tidemill.model.windows import Phase


def declare(stations: Stations, old: str, new: str) -> None:
    config = stations.root / "tidemill.yaml"
    text = config.read_text()
    assert old in text, text
    config.write_text(text.replace(old, new))


def steps(stations: Stations) -> list[tuple[str, str]]:
    with stations.open() as mill:
        return [(step.action, step.reason) for step in mill.windows.plan_rebuild("stations")]


def outdated(stations: Stations) -> int:
    with stations.open() as mill:
        return mill.status()[0].outdated_windows


def verified(stations: Stations) -> list[str]:
    with stations.open() as mill:
        return [finding.difference for finding in mill.verify("stations").findings]


def state(stations: Stations) -> tuple[Phase, int, int | None]:
    window, _ = stations.window("10:00")
    return window.phase, window.revision, window.rows


def test_a_wider_gap_tolerance_lets_a_waiting_window_come_out(new_stations: NewStations) -> None:
    stations = new_stations(gap_tolerance="1s")
    stations.land("a", "10:00", "10:20")
    stations.land("b", "10:25", "11:00")
    stations.tick()
    assert stations.window("10:00")[0].reason == "gap"
    declare(stations, '"1s"', '"10m"')
    assert steps(stations) == [("build", "rules")]
    assert outdated(stations) == 1
    assert "it was evaluated by other rules than are declared now" in verified(stations)
    report = stations.tick()
    assert [outcome.trigger for outcome in report.builds] == ["rules"]
    assert state(stations) == (Phase.BUILT, 1, 2)
    assert (outdated(stations), verified(stations)) == (0, [])
    assert not stations.tick().builds


def test_stricter_rules_withdraw_what_they_do_not_allow(new_stations: NewStations) -> None:
    stations = new_stations(allow_incomplete_windows=True)
    stations.land("a", "10:00", "10:20")
    stations.tick()
    assert state(stations) == (Phase.BUILT, 1, 1)
    declare(stations, "allow_incomplete_windows: true", "allow_incomplete_windows: false")
    assert [action for action, _ in steps(stations)] == ["withdraw"]
    stations.tick()
    window, _ = stations.window("10:00")
    assert (window.phase, window.reason, window.file) == (Phase.WAITING, "coverage", None)
    with stations.open() as mill:
        assert mill.events()[-1][1]["type"] == "tidemill.dataset.withdrawn"
    stations.land("b", "10:20", "11:00")
    stations.tick()
    assert state(stations) == (Phase.BUILT, 2, 2)
    assert verified(stations) == []


def test_a_dataset_that_stricter_rules_withdrew_is_not_back_after_recover(new_stations: NewStations) -> None:
    stations = new_stations(allow_incomplete_windows=True)
    stations.land("a", "10:00", "10:20")
    stations.tick()
    declare(stations, "allow_incomplete_windows: true", "allow_incomplete_windows: false")
    stations.tick()
    before, _ = stations.window("10:00")
    for path in (stations.root / "warehouse").glob("state.db*"):
        path.unlink()
    recover(stations.root, spark=stations.spark, clock=stations.clock)
    window, _ = stations.window("10:00")
    assert (window.phase, window.reason, window.file) == (before.phase, before.reason, before.file)
    assert (window.phase, window.reason, window.file) == (Phase.WAITING, "coverage", None)
    with stations.open() as mill:
        assert mill.events()[-1][1]["type"] == "tidemill.dataset.withdrawn"
    assert verified(stations) == []


def test_a_seal_goes_with_the_rules_that_it_was_made_by(new_stations: NewStations) -> None:
    stations = new_stations(gap_tolerance="10m")
    stations.land("a", "10:00", "10:55")
    stations.tick()
    declare(stations, '"10m"', '"1s"')
    stations.tick()
    stations.land("b", "10:55", "11:00")
    stations.tick()
    assert state(stations) == (Phase.BUILT, 2, 2)


def test_late_slices_count_once_the_stream_takes_them(new_stations: NewStations) -> None:
    stations = new_stations(now="10:00", late_slices={"policy": "discard"})
    stations.land("a", "10:00", "11:00", at="11:05")
    stations.tick("12:00")
    stations.land("late", "10:00", "11:00", rows=["10:30"], at="13:00")
    stations.tick()
    assert state(stations) == (Phase.BUILT, 1, 1)
    declare(stations, '{"policy": "discard"}', "{policy: reemit, max_lateness: 7d}")
    stations.tick()
    assert state(stations) == (Phase.BUILT, 2, 2)


def test_a_longer_wait_takes_back_what_may_still_change(new_stations: NewStations) -> None:
    stations = new_stations(now="10:00", subject_to_change_window="1h")
    stations.land("a", "10:00", "11:00", at="11:05")
    stations.tick("12:00")
    declare(stations, '"1h"\n    subject_to_change_window: "1h"', '"1h"\n    subject_to_change_window: "6h"')
    stations.tick("12:01")
    assert stations.window("10:00")[0].reason == "cutoff"
    stations.tick("17:00")
    assert state(stations) == (Phase.BUILT, 2, 1)


@pytest.mark.parametrize("column", ["humidity: integer", "celsius2: {type: decimal, scale: 1}"])
def test_a_new_column_is_in_every_dataset(new_stations: NewStations, column: str) -> None:
    stations = new_stations()
    stations.land("a", "10:00", "11:00")
    stations.tick()
    declare(stations, "      station: string\n", f"      station: string\n      {column}\n")
    assert steps(stations) == [("build", "columns")]
    assert outdated(stations) == 1
    assert any("other columns" in what for what in verified(stations))
    report = stations.tick()
    assert [outcome.trigger for outcome in report.builds] == ["columns"]
    name = column.split(":")[0]
    assert stations.dataset("10:00").column(name).to_pylist() == [None]
    assert state(stations) == (Phase.BUILT, 2, 1)
    assert verified(stations) == []


def test_what_stays_declared_is_not_built_again(new_stations: NewStations) -> None:
    stations = new_stations()
    stations.land("a", "10:00", "11:00")
    stations.tick()
    declare(stations, "version: 1", "version: 1\nevents: {}")
    assert not stations.tick().builds
    with stations.open() as mill:
        story = mill.windows.window("stations", instant("10:00"))
    assert [one.revision for one in story.revisions] == [1]


@pytest.mark.parametrize("kind", ["any", "object"])  # text, too, but of JSON
def test_a_column_of_text_that_becomes_json_is_in_every_dataset(new_stations: NewStations, kind: str) -> None:
    stations = new_stations()
    stations.land("a", "10:00", "11:00")
    stations.tick()
    assert stations.dataset("10:00").column("station").to_pylist() == ["a"]
    declare(stations, "      station: string\n", f"      station: {kind}\n")
    assert steps(stations) == [("build", "columns")]
    stations.tick()
    assert stations.dataset("10:00").column("station").to_pylist() == ['"a"' if kind == "any" else None]
    assert state(stations) == (Phase.BUILT, 2, 1)
    assert verified(stations) == []


def test_timestamps_of_another_zone_are_in_every_dataset(new_stations: NewStations) -> None:
    stations = new_stations()
    declare(stations, "      station: string\n", "      station: string\n      booked: timestamp\n")
    declare(stations, "type: iso8601", "type: iso8601, timezone: UTC")
    with stations.open() as mill:
        row = b'{"id": "e", "at": "2024-01-01T10:00:00Z", "booked": "2024-01-01T09:00:00"}\n'
        mill.land("stations", row, format="ndjson", start=instant("10:00"), end=instant("11:00"))
    stations.tick()
    assert stations.dataset("10:00").column("booked").cast("int64").to_pylist() == [instant("09:00")]
    declare(stations, "timezone: UTC", "timezone: Europe/Paris")
    stations.tick()
    assert stations.dataset("10:00").column("booked").cast("int64").to_pylist() == [instant("08:00")]
    assert verified(stations) == []
