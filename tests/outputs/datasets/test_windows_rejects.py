"""What was rejected is said wherever a window is, and counts for it once it is accepted after all."""

from __future__ import annotations

import json

from tests.outputs.datasets.conftest import NewStations, Stations, instant

from tidemill.model.windows import Phase


def land_misfits(stations: Stations, at: str | None = None) -> str:
    """A slice whose records all have a number where the schema wants a text."""
    if at is not None:
        stations.clock.set(instant(at))
    rows = [{"id": f"r{n}", "at": f"2024-01-01T10:0{n}:00Z", "station": n} for n in range(3)]
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    bounds = {"start": instant("10:00"), "end": instant("11:00")}
    with stations.open() as mill:
        return mill.land("stations", content, format="ndjson", name="misfits", **bounds).entry.id


def mend(stations: Stations) -> None:
    config = stations.root / "tidemill.yaml"
    config.write_text(config.read_text().replace("station: string", "station: any"))


def test_an_event_says_what_its_dataset_lacks(new_stations: NewStations) -> None:
    stations = new_stations(now="10:00")
    land_misfits(stations, at="11:05")
    stations.tick("12:00")
    stations.land("late", "10:00", "11:00", rows=["10:30"], at="12:30")
    stations.tick()
    with stations.open() as mill:
        [(_, event)] = mill.events()
        [view] = mill.windows.windows("stations")
        story = mill.windows.window("stations", instant("10:00"))
    data = event["data"]
    assert isinstance(data, dict)
    assert (data["rows"], data["rejected"], data["ignored"]) == (0, 3, 0)
    assert (view.rejected, view.ignored) == (3, 1)
    assert [member.rejected for member in story.members] == [3, 0]


def test_a_replay_counts_as_of_the_slice_it_was_rejected_from(new_stations: NewStations) -> None:
    stations = new_stations(now="10:00")
    bad = land_misfits(stations, at="11:05")
    stations.tick("12:00")
    mend(stations)
    stations.clock.set(instant("2024-01-05T00:00:00Z"))
    with stations.open() as mill:
        [landed] = mill.replay("stations")
        assert landed.entry.slice.replays == bad
        mill.run_until_idle()
    window, members = stations.window("10:00")
    assert (window.phase, window.rows) == (Phase.BUILT, 3)
    assert [(member.desired, member.ignored) for member in members] == [(True, None)] * 2


def test_a_replay_counts_behind_the_seal_of_a_backfill(new_stations: NewStations) -> None:
    stations = new_stations()
    land_misfits(stations)
    stations.tick()
    late = stations.land("late", "10:00", "11:00", rows=["10:30"])
    mend(stations)
    with stations.open() as mill:
        mill.run_until_idle()
        mill.replay("stations")
        mill.run_until_idle()
    window, members = stations.window("10:00")
    assert window.rows == 3
    assert [member.slice for member in members if member.ignored] == [late]


def test_each_slice_of_rejects_is_a_slice_of_its_own(new_stations: NewStations) -> None:
    stations = new_stations(now="10:00")
    land_misfits(stations, at="11:05")
    with stations.open() as mill:
        content = b'{"id": "x", "at": "2024-01-01T10:20:00Z", "station": 7}\n'
        mill.land("stations", content, format="ndjson")
        mill.tick(instant("13:00"))
        replayed = mill.replay("stations")
        assert {one.entry.slice.replays for one in replayed} == {one.id for one in mill.state.slices()[:2]}
