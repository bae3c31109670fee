"""The life of windows: recover, retract, rebuild, late slices, changed settings, dead builders."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from tests.outputs.datasets.conftest import NewStations, Stations, coordinate, instant

from tidemill.mill import recover
from tidemill.model.failpoints import observed
from tidemill.model.slices import set_hash
from tidemill.model.time import HOUR, Interval
from tidemill.model.windows import Phase


def bytes_of(stations: Stations) -> dict[str, bytes]:
    """All files of datasets, those on their way included."""
    folder = stations.root / "warehouse" / "datasets"
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def story(stations: Stations) -> dict[str, list[dict[str, object]]]:
    with stations.open() as mill:
        return mill.state.dump()


def with_windows_of_every_state(stations: Stations) -> Stations:
    """Final, sealed, waiting and late windows, with rows outside of bounds and an empty slice."""
    stations.land("a", "10:00", "11:00", rows=["10:05", "10:06", "13:30"], at="11:05")
    stations.land("b", "11:00", "12:00", rows=[], at="12:05")
    stations.land("c", "12:00", "12:20", at="12:30")
    stations.tick("14:00")
    stations.land("late", "10:00", "11:00", rows=["10:07"])
    stations.tick("15:00")
    stations.land("c2", "12:20", "13:00", at="15:30")
    stations.tick("15:31")
    return stations


def test_a_slice_without_rows_covers_and_its_dataset_says_so(new_stations: NewStations) -> None:
    stations = with_windows_of_every_state(new_stations(now="09:00"))
    table = stations.dataset("11:00")
    assert table.num_rows == 0
    assert table.column_names == ["event_time", "tenant", "event_id", "id", "at", "station", "celsius"]
    assert json.loads(table.schema.metadata[b"tidemill"])["rows"] == 0


def test_rows_outside_declared_bounds_flag_their_own_windows(new_stations: NewStations) -> None:
    stations = with_windows_of_every_state(new_stations(now="09:00"))
    assert stations.used("13:00") == {"a"}
    window, _ = stations.window("13:00")
    assert (window.phase, window.reason) == (Phase.WAITING, "coverage")


def test_a_dataset_opens_with_pyarrow_duckdb_and_polars(new_stations: NewStations) -> None:
    stations = with_windows_of_every_state(new_stations(now="09:00"))
    window, _ = stations.window("10:00")
    path = stations.root / "warehouse" / str(window.file)
    rows = pa.ipc.open_file(path).read_all()
    assert rows.column("id").to_pylist() == ["e1", "e2"]
    assert duckdb.sql("SELECT sum(celsius) FROM rows").fetchone() == (Decimal("0.75"),)
    assert pl.read_ipc(path).height == 2


def test_recover_gives_the_same_windows(new_stations: NewStations) -> None:
    stations = with_windows_of_every_state(new_stations(now="09:00"))
    before, files = story(stations), bytes_of(stations)
    with stations.open() as mill:
        events = {event["id"] for _, event in mill.events()}
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (stations.root / "warehouse" / name).unlink(missing_ok=True)
    done = recover(stations.root, clock=stations.clock, spark=stations.spark)
    assert done.datasets == 3
    after = story(stations)
    assert after["windows"] == before["windows"]
    assert after["window_slices"] == before["window_slices"]
    assert not stations.tick().builds
    assert bytes_of(stations) == files
    with stations.open() as mill:
        assert {event["id"] for _, event in mill.events()} == events


@pytest.mark.parametrize("now", ["11:30", "2024-01-01T20:00:00Z"], ids=["on time", "backfill"])
def test_the_same_slices_in_any_order_and_at_any_pace_give_the_same_bytes(
    new_stations: NewStations, now: str
) -> None:
    slices = [
        ("a", "10:00", "10:30"),
        ("b", "10:20", "11:00"),
        ("c", "11:00", "12:00"),
        ("d", "10:10", "11:40"),
    ]
    rows = {"a": ["10:01", "10:29"], "b": ["10:20", "10:59"], "c": ["11:30"], "d": ["10:10", "11:39"]}
    seen = []
    for order, ticks in (("abcd", ""), ("dcba", "dcba" if now == "11:30" else ""), ("bdac", "b")):
        stations = new_stations(now=now)
        numbers = {"a": 0, "b": 10, "c": 20, "d": 30}
        by_name = {name: (start, end) for name, start, end in slices}
        for name in order:
            stations.rows = numbers[name]
            stations.land(name, *by_name[name], rows=rows[name])
            if name in ticks:
                stations.tick()
        stations.tick("2024-01-02T00:00:00Z")
        revisions = [(w.key.start, w.observed, w.revision, w.phase) for w in stations.windows()]
        seen.append((revisions, bytes_of(stations)))
    assert seen[0] == seen[1] == seen[2]
    assert [revision for _, _, revision, _ in seen[0][0]] == [1, 1]


def test_a_retracted_slice_leaves_its_window(new_stations: NewStations) -> None:
    stations = new_stations(now="12:05")
    keep = stations.land("keep", "10:00", "11:00", rows=["10:05"])
    gone = stations.land("gone", "10:00", "11:00", rows=["10:06"])
    stations.tick("13:00")
    assert stations.dataset("10:00").num_rows == 2
    with stations.open() as mill:
        mill.retract(mill.plan_retraction(gone, "a broken sensor"))
    report = stations.tick()
    window, members = stations.window("10:00")
    assert [m.slice for m in members] == [keep]
    assert (window.phase, window.revision, window.observed) == (Phase.BUILT, 2, set_hash([keep]))
    assert [outcome.trigger for outcome in report.builds] == ["retraction"]
    assert stations.dataset("10:00").column("id").to_pylist() == ["e1"]
    with stations.open() as mill:
        last = mill.events()[-1][1]["data"]
        assert isinstance(last, dict)
        assert (last["revision"], last["supersedes"]) == (2, 1)


def test_a_dataset_that_cannot_be_made_again_is_withdrawn(new_stations: NewStations) -> None:
    stations = new_stations(now="12:05")
    stations.land("one", "10:00", "10:30")
    gone = stations.land("two", "10:30", "11:00")
    stations.tick("13:00")
    with stations.open() as mill:
        mill.retract(mill.plan_retraction(gone, "wrong hour"))
    stations.tick()
    window, _ = stations.window("10:00")
    assert (window.phase, window.reason, window.observed, window.file) == (
        Phase.WAITING,
        "coverage",
        None,
        None,
    )
    with stations.open() as mill:
        assert [event["type"] for _, event in mill.events()] == [
            "tidemill.dataset.available",
            "tidemill.dataset.withdrawn",
        ]
    stations.land("again", "10:30", "11:00", rows=["10:40"])
    stations.tick()
    window, _ = stations.window("10:00")
    assert (window.phase, window.revision) == (Phase.BUILT, 2)


def test_an_event_that_a_later_slice_repeated_is_now_accepted_from_there(new_stations: NewStations) -> None:
    stations = new_stations(now="12:05")
    first = stations.land("first", "10:00", "11:00", rows=["10:05"])
    stations.rows = 0
    stations.land("second", "10:00", "11:00", rows=["10:05", "10:15"])  # e1 differs: another station
    stations.tick("13:00")
    assert stations.dataset("10:00").column("station").to_pylist() == ["first", "second"]
    with stations.open() as mill:
        plan = mill.plan_retraction(first, "test data")
        assert plan.again == (stations.names["second"],)
        mill.retract(plan)
    stations.tick()
    assert stations.dataset("10:00").column("station").to_pylist() == ["second", "second"]
    window, members = stations.window("10:00")
    assert [m.name for m in members] == [f"{stations.names['second']}~1"]
    assert window.revision == 2


def test_a_rebuild_gives_the_same_rows_under_a_new_revision(new_stations: NewStations) -> None:
    stations = with_windows_of_every_state(new_stations(now="09:00"))
    with stations.open() as mill:
        steps = mill.windows.plan_rebuild("stations", Interval(instant("10:00"), instant("11:00")))
        assert [(s.key.start, s.action, s.revision, s.next_revision) for s in steps] == [
            (instant("10:00"), "build", 1, 2)
        ]
        before = stations.dataset("10:00")
        (outcome,) = mill.rebuild(steps)
    assert outcome.dataset is not None
    assert outcome.dataset.revision == 2
    assert stations.dataset("10:00").equals(before)
    assert stations.window("10:00")[0].observed == stations.window("10:00")[0].desired


def test_a_rebuild_can_take_in_what_came_late(new_stations: NewStations) -> None:
    stations = with_windows_of_every_state(new_stations(now="09:00"))
    with stations.open() as mill:
        span = Interval(instant("10:00"), instant("11:00"))
        (step,) = mill.windows.plan_rebuild("stations", span, include_late=True)
        assert (step.late, step.slices) == (1, 2)
        mill.rebuild([step])
    assert stations.used("10:00") == {"a", "late"}
    assert stations.dataset("10:00").num_rows == 3
    stations.land("later", "10:00", "11:00", rows=["10:08"])
    stations.tick()
    assert stations.used("10:00") == {"a", "late"}
    before = story(stations)
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (stations.root / "warehouse" / name).unlink(missing_ok=True)
    recover(stations.root, clock=stations.clock, spark=stations.spark)
    assert story(stations)["windows"] == before["windows"]


def test_late_slices_come_out_again_for_as_long_as_declared(new_stations: NewStations) -> None:
    stations = new_stations(now="10:30", late_slices={"policy": "reemit", "max_lateness": "2h"})
    stations.land("a", "10:00", "11:00", at="11:10")
    stations.tick("12:00")
    assert stations.window("10:00")[0].revision == 1
    stations.land("b", "10:00", "11:00", rows=["10:40"], at="14:00")
    stations.tick()
    assert stations.window("10:00")[0].revision == 2
    stations.land("c", "10:00", "11:00", rows=["10:50"], at="14:00:01")
    stations.tick()
    assert stations.window("10:00")[0].revision == 2
    assert stations.used("10:00") == {"a", "b"}


def test_another_span_lays_the_windows_out_anew(new_stations: NewStations) -> None:
    stations = with_windows_of_every_state(new_stations(now="09:00"))
    text = (stations.root / "tidemill.yaml").read_text()
    (stations.root / "tidemill.yaml").write_text(
        text.replace('aggregation_span: "1h"', 'aggregation_span: "2h"')
    )
    stations.tick()
    assert {w.key.span for w in stations.windows()} == {2 * HOUR}
    assert stations.window("10:00", 2 * HOUR)[0].phase is Phase.BUILT
    assert stations.dataset("10:00", 2 * HOUR).num_rows == 2  # for it, too, one slice came late


def test_windows_of_a_stream_that_had_none_come_from_what_it_has(new_stations: NewStations) -> None:
    stations = new_stations()
    file = stations.root / "tidemill.yaml"
    text = file.read_text()
    without = text.split("    aggregation_span")[0]
    file.write_text(without)
    stations.land("a", "10:00", "11:00")
    stations.tick()
    file.write_text(text)
    stations.tick()
    assert stations.window("10:00")[0].phase is Phase.BUILT


def copy_if_there(source: str, to: str) -> None:
    """Another builder may give its file a name, or take it away, while the folder is copied."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, to)


def copy_state_first(root: Path, to: Path) -> None:
    """As a death leaves it: a file is there before the state says so, while other builders go on."""
    for file in root.rglob("state.db*"):
        (to / file.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        copy_if_there(str(file), str(to / file.relative_to(root)))
    others = shutil.ignore_patterns("state.db*")
    shutil.copytree(root, to, copy_function=copy_if_there, ignore=others, dirs_exist_ok=True)


def test_dead_at_any_point_nothing_is_lost_and_nothing_comes_twice(
    new_stations: NewStations, tmp_path: Path
) -> None:
    """The warehouse is copied at every point that a round with windows passes; each copy is gone on with."""
    stations = new_stations(now="12:05")
    stations.land("a", "10:00", "11:00", rows=["10:01", "10:02"])
    stations.land("b", "11:00", "12:00")
    stations.clock.set(instant("14:00"))
    copies: dict[str, Path] = {}

    def copy(point: str) -> None:
        if point not in copies:
            copies[point] = tmp_path / f"at-{point}"
            copy_state_first(stations.root, copies[point])

    with observed(copy):
        stations.tick()
    wanted, files = stations.windows(), bytes_of(stations)
    assert {p for p in copies if p.startswith(("windows.", "dataset."))} == {
        "windows.after_lay",
        "windows.after_evaluate",
        "windows.after_take",
        "dataset.after_temp",
        "dataset.after_link",
        "windows.before_state",
        "windows.after_state",
    }
    for point, root in copies.items():
        survivor = Stations(root, stations.clock, stations.spark)
        stations.clock.set(instant("14:00"))
        survivor.tick()
        stations.clock.set(instant("15:00"))  # leases of the dead have run out
        survivor.tick()
        assert [(w.key, w.phase, w.observed, w.revision, w.file) for w in survivor.windows()] == [
            (w.key, w.phase, w.observed, w.revision, w.file) for w in wanted
        ], point
        assert bytes_of(survivor) == files, point
        with survivor.open() as mill:
            assert len({event["id"] for _, event in mill.events()}) == 2, point
            assert mill.verify().ok, point


def test_windows_wait_while_slices_go_through_the_gate_again(new_stations: NewStations) -> None:
    stations = new_stations(now="12:05")
    gone = stations.land("gone", "09:00", "10:00")
    stations.tick()
    stations.land("keep", "10:00", "11:00")
    stations.tick("13:00")
    with stations.open() as mill:
        mill.retract(mill.plan_retraction(gone, "test"))
    coordinate(stations)
    stations.tick()
    assert stations.window("10:00")[0].revision == 1
    with stations.open() as mill:
        kinds = [event["type"] for _, event in mill.events()]
    assert kinds.count("tidemill.dataset.withdrawn") == 1


def test_verify_proves_every_dataset(new_stations: NewStations) -> None:
    stations = with_windows_of_every_state(new_stations(now="09:00"))
    with stations.open() as mill:
        audit = mill.verify()
        assert (audit.ok, audit.streams[0].datasets) == (True, 3)
    file = stations.root / "warehouse" / str(stations.window("10:00")[0].file)
    good = file.read_bytes()
    at = good.index(b"e2")
    file.write_bytes(good[:at] + b"eX" + good[at + 2 :])
    with stations.open() as mill:
        (finding,) = mill.verify().findings
        assert finding.what == "dataset"
        assert "raw gives something else" in finding.difference
    file.unlink()
    with stations.open() as mill:
        (finding,) = mill.verify().findings
        assert "cannot be read" in finding.difference
    assert not list((stations.root / "warehouse").glob(".verify-*"))
