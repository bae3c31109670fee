"""Rows belong to the dataset that the earliest arrival counts for, whichever slice was readable first."""

from __future__ import annotations

import json
from pathlib import Path

from tests.outputs.datasets.conftest import NewStations, Stations, instant

from tidemill.mill import recover


def land_events(stations: Stations, name: str, at: str, events: dict[str, str], *, bounds: bool) -> Path:
    """A slice of 10:00 to 11:00 that arrives at `at`; where its file is."""
    stations.clock.set(instant(at))
    lines = [json.dumps({"id": i, "at": f"2024-01-01T{t}:00Z", "station": "a"}) for i, t in events.items()]
    declared = {"start": instant("10:00"), "end": instant("11:00")} if bounds else {}
    with stations.open() as mill:
        content = ("\n".join(lines) + "\n").encode()
        landed = mill.land("stations", content, name=name, format="ndjson", **declared)
    stations.names[name] = landed.entry.id
    return stations.root / "warehouse" / landed.entry.slice.path


def hidden(path: Path) -> Path:
    return path.rename(path.with_name(f"hidden-{path.name}"))


def known(stations: Stations) -> dict[str, object]:
    """What the state says of slices and windows."""
    with stations.open() as mill:
        dumped = mill.state.dump()
    return {name: dumped[name] for name in ("slices", "windows", "window_slices")}


def ids(stations: Stations) -> list[str]:
    return stations.dataset("10:00").column("event_id").to_pylist()


def test_rows_that_a_late_slice_brought_first_are_in_the_dataset_of_the_one_on_time(
    new_stations: NewStations,
) -> None:
    stations = new_stations(now="10:00")
    on_time = land_events(stations, "on time", "11:00", {"x": "10:10", "y": "10:20"}, bounds=True)
    away = hidden(on_time)
    stations.tick("12:00")
    late = {"w": "10:05", "x": "10:10", "y": "10:20", "z": "10:30"}
    land_events(stations, "late", "13:00", late, bounds=True)
    stations.tick()
    away.rename(on_time)
    stations.tick("15:00")
    stations.tick("15:01")
    assert stations.used("10:00") == {"on time"}
    assert ids(stations) == ["x", "y"]
    with stations.open() as mill:
        assert mill.slice(stations.names["on time"]).counts.duplicate == 2
        assert mill.verify().ok


def test_a_slice_touches_the_windows_of_the_rows_that_another_brought_first(
    new_stations: NewStations,
) -> None:
    stations = new_stations(now="10:00", allow_incomplete_windows=True)
    land_events(stations, "first", "10:30", {"a": "10:01"}, bounds=False)
    on_time = land_events(stations, "on time", "11:00", {"x": "10:10", "q": "10:50"}, bounds=False)
    away = hidden(on_time)
    stations.tick("12:00")
    land_events(stations, "late", "13:00", {"x": "10:10", "z": "10:30"}, bounds=False)
    stations.tick()
    assert ids(stations) == ["a"]
    away.rename(on_time)
    stations.tick("15:00")
    stations.tick("15:01")
    assert stations.used("10:00") == {"first", "on time"}
    assert ids(stations) == ["a", "x", "q"]
    with stations.open() as mill:
        assert mill.verify().ok


def test_repeated_rows_are_there_once_and_after_recovery_too(new_stations: NewStations) -> None:
    stations = new_stations(now="10:00", late_slices={"policy": "reemit", "max_lateness": "7d"})
    on_time = land_events(stations, "on time", "11:00", {"x": "10:10", "y": "10:20"}, bounds=True)
    away = hidden(on_time)
    stations.tick("12:00")
    land_events(stations, "late", "13:00", {"y": "10:20", "z": "10:30"}, bounds=True)
    stations.tick()
    away.rename(on_time)
    stations.tick("15:00")
    stations.tick("15:01")
    assert ids(stations) == ["x", "y", "z"]
    before = known(stations)
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (stations.root / "warehouse" / name).unlink(missing_ok=True)
    recover(stations.root, spark=stations.spark, clock=stations.clock)
    assert known(stations) == before


def test_retracting_the_late_slice_leaves_the_rows_with_the_one_on_time(new_stations: NewStations) -> None:
    stations = new_stations(now="10:00")
    on_time = land_events(stations, "on time", "11:00", {"x": "10:10", "y": "10:20"}, bounds=True)
    away = hidden(on_time)
    stations.tick("12:00")
    land_events(stations, "late", "13:00", {"x": "10:10", "y": "10:20", "z": "10:30"}, bounds=True)
    stations.tick()
    away.rename(on_time)
    stations.tick("15:00")
    with stations.open() as mill:
        mill.retract(mill.plan_retraction(stations.names["late"], "wrong file"))
        mill.run_until_idle()
        assert mill.slice(stations.names["on time"]).counts.accepted == 2
        assert mill.verify().ok
    assert ids(stations) == ["x", "y"]
