"""What covers a window: declared bounds, rows without a hole, or the watermark; touching it is not enough."""

from __future__ import annotations

import pytest
from tests.outputs.datasets.conftest import NewStations, Stations, instant

from tidemill.model.errors import ConfigError
from tidemill.model.windows import Phase


def every(seconds: int, hour: str = "10") -> list[str]:
    """Times through an hour."""
    return [f"{hour}:{at // 60:02}:{at % 60:02}" for at in range(0, 3600, seconds)]


def built(stations: Stations) -> list[int]:
    return [window.key.start for window in stations.windows() if window.file is not None]


def test_two_rows_ten_days_apart_are_two_windows_that_wait(new_stations: NewStations) -> None:
    stations = new_stations()
    stations.land("far", None, None, rows=["2024-01-01T10:00:00Z", "2024-01-11T10:00:00Z"])
    stations.tick()
    assert [(w.phase, w.reason) for w in stations.windows()] == [(Phase.WAITING, "coverage")] * 2
    stations.land("between", "2024-01-05T10:00:00Z", "2024-01-05T11:00:00Z")
    stations.tick()
    assert built(stations) == [instant("2024-01-05T10:00:00Z")]


@pytest.mark.parametrize(
    ("step", "tolerance", "reason"), [(60, "2m", None), (60, "30s", "coverage"), (1, "1s", None)]
)
def test_rows_without_a_hole_cover_what_they_reach(
    new_stations: NewStations, step: int, tolerance: str, reason: str | None
) -> None:
    stations = new_stations(gap_tolerance=tolerance)
    stations.land("rows", None, None, rows=every(step))
    stations.tick()
    assert stations.window("10:00")[0].reason == reason


def test_a_hole_between_rows_is_a_gap_until_another_slice_fills_it(new_stations: NewStations) -> None:
    stations = new_stations(gap_tolerance="2m")
    rows = every(60)
    stations.land("rows", None, None, rows=rows[:20] + rows[40:])
    stations.tick()
    window, _ = stations.window("10:00")
    assert (window.reason, window.detail) == ("gap", "gap 10:19:00.000001-10:40")
    stations.land("rest", None, None, rows=rows[19:41])
    stations.tick()
    assert stations.window("10:00")[0].file is not None


def test_only_bounds_cover_where_that_is_declared(new_stations: NewStations) -> None:
    stations = new_stations(coverage="declared")
    stations.land("rows", None, None, rows=every(1))
    stations.tick()
    assert stations.window("10:00")[0].reason == "coverage"
    stations.land("bounds", "10:00", "11:00", rows=[])
    stations.tick()
    assert stations.window("10:00")[0].rows == 3600


def test_another_coverage_lays_slices_again(new_stations: NewStations) -> None:
    stations = new_stations(coverage="declared")
    stations.land("rows", None, None, rows=every(1))
    stations.tick()
    config = stations.root / "tidemill.yaml"
    config.write_text(config.read_text().replace('coverage: "declared"', "coverage: observed"))
    stations.tick()
    assert stations.window("10:00")[0].rows == 3600


def live(stations: Stations, seconds: range) -> None:
    """One event a second, each in a slice of its own that lands half a second after it."""
    for second in seconds:
        when = instant("10:00") + second * 1_000_000
        stations.clock.set(when + 500_000)
        stations.land(f"s{second}", None, None, rows=[f"10:{second // 60:02}:{second % 60:02}"])
        if second % 5 == 4:
            stations.tick()


def test_a_live_feed_completes_as_its_watermark_passes(new_stations: NewStations) -> None:
    stations = new_stations(
        now="10:00", aggregation_span="10s", subject_to_change_window="0s", coverage="watermark"
    )
    live(stations, range(35))
    assert [(w.phase, w.rows) for w in stations.windows()] == [
        (Phase.BUILT, 10), (Phase.BUILT, 10), (Phase.BUILT, 10), (Phase.WAITING, None)
    ]  # fmt: skip
    window, _ = stations.window("10:00:30", 10_000_000)
    assert window.reason in ("watermark", "cutoff")
    with stations.open() as mill:
        assert mill.verify("stations").ok


def test_what_the_watermark_has_passed_is_late(new_stations: NewStations) -> None:
    stations = new_stations(
        now="10:00", aggregation_span="10s", subject_to_change_window="0s", coverage="watermark"
    )
    live(stations, range(25))
    stations.land("late", None, None, rows=["10:00:03.5"])
    stations.tick()
    window, members = stations.window("10:00", 10_000_000)
    assert window.rows == 10
    assert [member.ignored for member in members if member.ignored] == ["late"]


@pytest.mark.parametrize("batches", [1, 2])
def test_a_retraction_that_sets_the_watermark_back_withdraws_what_it_no_longer_covers(
    new_stations: NewStations, batches: int
) -> None:
    """As if the slice had never arrived; its own rows are in another window."""
    stations = new_stations(
        now="10:01", aggregation_span="10s", subject_to_change_window="0s", coverage="watermark"
    )
    for number, second in enumerate((5, 20), start=1):
        stations.land(f"s{second}", None, None, rows=[f"10:00:{second:02}"])
        if number == batches or number == 2:
            stations.tick()
    assert built(stations) == [instant("10:00")]
    with stations.open() as mill:
        (far,) = (entry.id for entry in mill.ledger("stations") if entry.slice.name == "s20")
        mill.retract(mill.plan_retraction(far, "sent by mistake"))
        mill.run_until_idle()
        assert mill.events()[-1][1]["type"] == "tidemill.dataset.withdrawn"
        assert mill.verify("stations").ok
    (window,) = stations.windows()
    assert (window.phase, window.reason, window.file) == (Phase.WAITING, "watermark", None)
    stations.land("again", None, None, rows=["10:00:21"])
    stations.tick()
    assert [(w.key.start, w.revision) for w in stations.windows() if w.file] == [(instant("10:00"), 2)]


def test_windows_of_a_second_work_with_defaults(new_stations: NewStations) -> None:
    stations = new_stations(aggregation_span="PT1S", subject_to_change_window="0s")
    stations.land("rows", None, None, rows=["10:00:00", "10:00:01", "10:00:02"])
    stations.tick()
    assert [window.rows for window in stations.windows()] == [1, 1, 1]


def test_a_coverage_that_there_is_not_is_refused(new_stations: NewStations) -> None:
    with pytest.raises(ConfigError, match="coverage"):
        new_stations(coverage="guessed").open()
