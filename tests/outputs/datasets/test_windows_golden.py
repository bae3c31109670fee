"""The golden cases of windows, through the whole mill: land, tick, look."""

from __future__ import annotations

import threading

import pytest
from tests.outputs.datasets.conftest import NewStations, Stations, coordinate, instant

from tidemill.model.slices import set_hash
from tidemill.model.time import DAY, HOUR
from tidemill.model.windows import Build, Phase, WindowKey
from tidemill.outputs.datasets import builder as building
from tidemill.outputs.datasets.kernel import BuildUnit, BuiltWindow, build_windows


def queued(stations: Stations) -> list[Build]:
    """What the queue gives, in its order."""
    with stations.open() as mill:
        now = stations.clock()
        return mill.state.take("test", now, now + HOUR, 100)


def test_w1_one_slice_one_window_queued_once(new_stations: NewStations) -> None:
    stations = new_stations()
    one = stations.land("one", "10:00", "11:00")
    coordinate(stations)
    coordinate(stations)
    (build,) = queued(stations)
    assert build.key == WindowKey("stations", instant("10:00"), HOUR)
    assert [member.slice for member in build.members] == [one]
    assert build.key.priority == -1704106800
    assert build.desired == set_hash([one])


def test_w2_a_day_of_hourly_slices_is_one_window(new_stations: NewStations) -> None:
    stations = new_stations(aggregation_span="P1D")
    ids = [stations.land(f"h{h}", f"{h:02d}:00", f"{h + 1:02d}:00") for h in range(23)]
    ids.append(stations.land("h23", "23:00", "2024-01-02T00:00:00Z"))
    coordinate(stations)
    (build,) = queued(stations)
    assert build.key.span == DAY
    assert {member.slice for member in build.members} == set(ids)


def test_w3_a_slice_of_three_hours_is_in_three_windows(new_stations: NewStations) -> None:
    stations = new_stations()
    one = stations.land("one", "10:00", "13:00")
    coordinate(stations)
    builds = queued(stations)
    assert [build.key.start for build in builds] == [instant("10:00"), instant("11:00"), instant("12:00")]
    assert all([member.slice for member in build.members] == [one] for build in builds)


def test_w4_a_gap_keeps_a_window_waiting_and_says_so(new_stations: NewStations) -> None:
    stations = new_stations()
    stations.land("a", "10:00", "10:30")
    stations.land("b", "10:45", "11:00")
    stations.land("c", "11:00", "12:00")
    coordinate(stations)
    assert [build.key.start for build in queued(stations)] == [instant("11:00")]
    window, members = stations.window("10:00")
    assert (window.phase, window.reason, window.detail) == (Phase.WAITING, "gap", "gap 10:30-10:45")
    assert len(members) == 2


def test_w5_the_cutoff_passes_without_a_new_arrival(new_stations: NewStations) -> None:
    stations = new_stations(subject_to_change_window="2h")
    stations.land("one", "10:00", "11:00", at="11:30")
    coordinate(stations)
    window, _ = stations.window("10:00")
    assert (window.phase, window.reason) == (Phase.WAITING, "cutoff")
    assert window.detail == "cutoff at 2024-01-01T13:00:00Z"
    coordinate(stations, "12:59:59")
    assert queued(stations) == []
    coordinate(stations, "13:00")
    assert len(queued(stations)) == 1


def test_w6_what_is_built_of_its_set_is_not_queued(new_stations: NewStations) -> None:
    stations = new_stations()
    one = stations.land("one", "10:00", "11:00")
    stations.tick()
    window, _ = stations.window("10:00")
    assert window.observed == set_hash([one])
    stations.tick()
    assert queued(stations) == []
    assert stations.window("10:00")[0].revision == 1


def test_w7_the_older_window_is_taken_first(new_stations: NewStations) -> None:
    stations = new_stations()
    stations.land("b", "10:00", "11:00")
    stations.land("a", "09:00", "10:00")
    coordinate(stations)
    assert [build.key.start for build in queued(stations)] == [instant("09:00"), instant("10:00")]


def test_w8_overlapping_slices_cover(new_stations: NewStations) -> None:
    stations = new_stations(subject_to_change_window="0s")
    stations.land("a", "10:09", "10:30")
    stations.land("b", "10:30", "11:00")
    coordinate(stations)
    assert queued(stations) == []
    window, _ = stations.window("10:00")
    assert (window.reason, window.detail) == ("coverage", "coverage missing before 10:09")
    stations.land("c", "10:00", "10:20")
    coordinate(stations)
    (build,) = queued(stations)
    assert len(build.members) == 3


def test_w9_an_incomplete_window_is_built_when_that_is_allowed(new_stations: NewStations) -> None:
    stations = new_stations(allow_incomplete_windows=True)
    stations.land("a", "10:00", "10:30")
    coordinate(stations)
    assert len(queued(stations)) == 1


@pytest.mark.parametrize("incomplete", [False, True])
def test_w11_the_picture_of_three_ingestions(new_stations: NewStations, incomplete: bool) -> None:
    stations = new_stations(allow_incomplete_windows=incomplete)
    day = "2024-01-15T"
    for name, start, end in (("1", "00:30", "01:30"), ("2", "01:45", "02:15"), ("3", "00:15", "00:45")):
        stations.land(name, f"{day}{start}:00Z", f"{day}{end}:00Z")
    coordinate(stations)
    a, b, c = (f"{day}0{h}:00:00Z" for h in range(3))
    assert [stations.used(w) for w in (a, b, c)] == [{"1", "3"}, {"1", "2"}, {"2"}]
    builds = queued(stations)
    if incomplete:
        assert [build.key.priority for build in builds] == [-1705280400, -1705284000, -1705287600]
    else:
        assert builds == []
        assert [stations.window(w)[0].reason for w in (a, b, c)] == ["coverage", "gap", "coverage"]


def test_w12_ready_at_the_cutoff_to_the_microsecond(new_stations: NewStations) -> None:
    stations = new_stations(subject_to_change_window="PT6H")
    stations.land("one", "2024-01-15T13:00:00Z", "2024-01-15T14:00:00Z", at="2024-01-15T14:10:00Z")
    coordinate(stations, "2024-01-15T19:59:59.999999Z")
    assert queued(stations) == []
    coordinate(stations, "2024-01-15T20:00:00Z")
    assert len(queued(stations)) == 1


@pytest.mark.parametrize("on_time", [True, False])
def test_w13_what_arrives_after_the_cutoff_of_a_built_window_is_ignored(
    new_stations: NewStations, on_time: bool
) -> None:
    stations = new_stations()
    stations.land("one", "10:00", "11:00", at="11:05" if on_time else None)
    stations.tick("2024-02-01T00:00:00Z")
    before, _ = stations.window("10:00")
    files = {name: (stations.root / "warehouse/datasets" / name).read_bytes() for name in stations.files()}
    late = stations.land("late", "10:00", "11:00", rows=["10:07"], at="2024-02-01T01:00:00Z")
    stations.tick()
    after, members = stations.window("10:00")
    assert {m.slice: m.ignored for m in members}[late] == "late"
    assert (after.observed, after.file, after.revision) == (before.observed, before.file, 1)
    assert {n: (stations.root / "warehouse/datasets" / n).read_bytes() for n in stations.files()} == files
    with stations.open() as mill:
        assert mill.slice(late).counts.accepted == 1
        assert mill.windows.window("stations", instant("10:00")).view.status == "final"


def test_w14_windows_are_aligned_to_the_epoch(new_stations: NewStations) -> None:
    stations = new_stations(aggregation_span="7h")
    stations.land("one", None, None, rows=["2024-01-15T14:23:45Z"])
    coordinate(stations)
    (window,) = stations.windows()
    assert window.key.interval.start == instant("2024-01-15T09:00:00Z")
    assert window.key.interval.end == instant("2024-01-15T16:00:00Z")


class Counting:
    """Kernels in flight at once, and how many windows each of them was given."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.now = self.most = 0
        self.two = threading.Event()

    def __call__(self, unit: BuildUnit) -> list[BuiltWindow]:
        with self.guard:
            self.now += len(unit.windows)
            self.most = max(self.most, self.now)
            if self.most >= 2:
                self.two.set()
        self.two.wait(20)  # so that the second has a chance to come
        try:
            return list(build_windows(unit))
        finally:
            with self.guard:
                self.now -= len(unit.windows)


def test_w15_no_more_than_concurrency_in_flight(
    new_stations: NewStations, monkeypatch: pytest.MonkeyPatch
) -> None:
    stations = new_stations()
    stations.land("one", "10:00", "15:00", rows=["10:01", "11:01", "12:01", "13:01", "14:01"])
    counting = Counting()
    monkeypatch.setattr(building, "build_windows", counting)
    report = stations.tick()
    assert counting.most == 2
    assert len(report.builds) == 5
    assert len(stations.files()) == 5


class Failing:
    """Fails for windows that start there, the first `times` times."""

    def __init__(self, start: str, times: int) -> None:
        self.start = instant(start)
        self.left = times

    def __call__(self, unit: BuildUnit) -> list[BuiltWindow]:
        key = unit.windows[0].build.key
        if key.start == self.start and self.left > 0:
            self.left -= 1
            raise OSError(5, "Input/output error")
        return list(build_windows(unit))


def test_w16_a_failed_build_comes_again_at_the_same_priority(
    new_stations: NewStations, monkeypatch: pytest.MonkeyPatch
) -> None:
    stations = new_stations(builder="{concurrency: 1, retry_delay: 10s}")
    stations.land("one", "10:00", "11:00")
    monkeypatch.setattr(building, "build_windows", Failing("10:00", 1))
    (outcome,) = stations.tick().builds
    assert outcome.error is not None
    window, _ = stations.window("10:00")
    assert (window.phase, window.attempts, window.key.priority) == (Phase.QUEUED, 1, -1704106800)
    assert stations.files() == []
    stations.clock.advance(9_000_000)
    assert not stations.tick().builds
    stations.clock.advance(2_000_000)
    (outcome,) = stations.tick().builds
    assert outcome.dataset is not None
    assert stations.window("10:00")[0].phase is Phase.BUILT
    assert stations.window("10:00")[0].revision == 1


def test_w17_a_window_that_always_fails_blocks_nobody(
    new_stations: NewStations, monkeypatch: pytest.MonkeyPatch
) -> None:
    stations = new_stations(builder="{concurrency: 1, attempts: 3}")
    stations.land("a", "09:00", "10:00")
    stations.land("b", "10:00", "11:00")
    monkeypatch.setattr(building, "build_windows", Failing("09:00", 1000))
    for _ in range(8):
        stations.tick()
        stations.clock.advance(HOUR)
    older, _ = stations.window("09:00")
    assert (older.phase, older.attempts) == (Phase.FAILED, 3)
    assert older.error is not None
    assert "Input/output error" in older.error
    assert stations.window("10:00")[0].phase is Phase.BUILT
    with stations.open() as mill:
        (view,) = mill.windows.windows("stations", mill.windows.windows("stations")[1].status)
        assert view.detail == older.error
        assert mill.windows.retry("stations") == 1
    monkeypatch.undo()
    stations.tick()
    assert stations.window("09:00")[0].phase is Phase.BUILT


def test_w18_a_builder_that_dies_loses_its_lease(new_stations: NewStations) -> None:
    stations = new_stations(builder="{concurrency: 1, lease: 30s}")
    stations.land("one", "10:00", "11:00")
    coordinate(stations)
    with stations.open() as mill:  # taken, and never heard of again
        now = stations.clock()
        assert len(mill.state.take("dead", now, now + 30_000_000, 1)) == 1
    stations.clock.advance(29_000_000)
    assert not stations.tick().builds
    stations.clock.advance(1_000_000)
    (outcome,) = stations.tick().builds
    assert outcome.dataset is not None
    assert outcome.attempt == 2
    assert not stations.tick().builds
    assert len(stations.files()) == 1


def test_w19_a_slow_build_of_an_older_set_does_not_win(new_stations: NewStations) -> None:
    stations = new_stations(allow_incomplete_windows=True, builder="{concurrency: 1, lease: 30s}")
    stations.land("a", "10:00", "10:30", at="10:31")
    coordinate(stations)
    with stations.open() as mill:
        now = stations.clock()
        (slow,) = mill.state.take("slow", now, now + 30_000_000, 1)
    newer = stations.land("b", "10:30", "11:00", at="10:40")
    (outcome,) = stations.tick().builds
    assert outcome.dataset is not None
    with stations.open() as mill:
        snapshot = mill.workers.dataset_builders._snapshot("stations")
        assert snapshot is not None
        unit = BuildUnit(
            mill.project.stream("stations"),
            str(mill.project.warehouse),
            [building.WindowUnit(slow, snapshot.paths())],
        )
        (late,) = build_windows(unit)
        assert late.dataset is not None
        assert mill.state.complete(slow, late.dataset, stations.clock()) is False
    window, members = stations.window("10:00")
    assert window.observed == outcome.dataset.hash
    assert window.file == outcome.dataset.file
    assert newer in {member.slice for member in members if member.observed}
    assert stations.dataset("10:00").num_rows == 2
