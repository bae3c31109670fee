"""Where calendar cells start. Expected edges were worked out by hand from the rules of the zones."""

from __future__ import annotations

from bisect import bisect_right
from decimal import Decimal

import pytest

from tidemill.model.errors import InputError, QueryError
from tidemill.model.time import (
    DAY,
    HOUR,
    MAX_INSTANT,
    MIN_INSTANT,
    MINUTE,
    WEEK,
    Interval,
    format_instant,
    parse_instant,
)
from tidemill.model.zones import first_instant, zone_named
from tidemill.query.cell_grid import CalendarStep, edges


def at(text: str) -> int:
    return parse_instant(text)


def laid(step: CalendarStep, start: str, end: str) -> list[str]:
    """Without what they have in common: seconds, and the offset."""
    return [format_instant(edge).removesuffix(":00Z") for edge in edges(step, Interval(at(start), at(end)))]


PARIS, KATHMANDU, SAO_PAULO = "Europe/Paris", "Asia/Kathmandu", "America/Sao_Paulo"


@pytest.mark.parametrize(
    ("step", "start", "end", "expected"),
    [
        # A day of 23 hours: Paris, 31 March 2024, from +01:00 to +02:00.
        (
            CalendarStep(DAY, zone=PARIS),
            "2024-03-30T12:00",
            "2024-04-01T12:00",
            ["2024-03-29T23:00", "2024-03-30T23:00", "2024-03-31T22:00", "2024-04-01T22:00"],
        ),
        # A day of 25 hours: 27 October 2024, from +02:00 to +01:00.
        (
            CalendarStep(DAY, zone=PARIS),
            "2024-10-27T00:00",
            "2024-10-27T12:00",
            ["2024-10-26T22:00", "2024-10-27T23:00"],
        ),
        # +05:45 all year.
        (
            CalendarStep(DAY, zone=KATHMANDU),
            "2024-06-01T00:00",
            "2024-06-01T01:00",
            ["2024-05-31T18:15", "2024-06-01T18:15"],
        ),
        # At 00:00 on 4 November 2018 the clock jumped to 01:00: the day starts there, 23 hours long.
        (
            CalendarStep(DAY, zone=SAO_PAULO),
            "2018-11-03T12:00",
            "2018-11-05T12:00",
            ["2018-11-03T03:00", "2018-11-04T03:00", "2018-11-05T02:00", "2018-11-06T02:00"],
        ),
        # At 00:00 on 17 February 2019 it went back to 23:00: the 16th has 25 hours.
        (
            CalendarStep(DAY, zone=SAO_PAULO),
            "2019-02-16T12:00",
            "2019-02-17T12:00",
            ["2019-02-16T02:00", "2019-02-17T03:00", "2019-02-18T03:00"],
        ),
        # Cairo has no midnight on 26 April 2024: from +02:00 to +03:00.
        (
            CalendarStep(DAY, zone="Africa/Cairo"),
            "2024-04-25T12:00",
            "2024-04-26T12:00",
            ["2024-04-24T22:00", "2024-04-25T22:00", "2024-04-26T21:00"],
        ),
        # Havana shows midnight twice on 3 November 2024 (01:00 goes back to 00:00): the first one counts.
        (
            CalendarStep(DAY, zone="America/Havana"),
            "2024-11-03T12:00",
            "2024-11-03T13:00",
            ["2024-11-03T04:00", "2024-11-04T05:00"],
        ),
        # Toronto, 30 March 1919: 23:30 became 00:30 of the 31st. The day starts at the jump.
        (
            CalendarStep(DAY, zone="America/Toronto"),
            "1919-03-30T12:00",
            "1919-03-31T12:00",
            ["1919-03-30T05:00", "1919-03-31T04:30", "1919-04-01T04:00"],
        ),
        # Samoa went from the 29th to the 31st of December 2011, from -10:00 to +14:00.
        (
            CalendarStep(DAY, zone="Pacific/Apia"),
            "2011-12-29T12:00",
            "2011-12-31T12:00",
            ["2011-12-29T10:00", "2011-12-30T10:00", "2011-12-31T10:00", "2012-01-01T10:00"],
        ),
        # Several days count from 1970-01-01 in local days, and with an origin from there.
        (
            CalendarStep(7 * DAY, zone=PARIS),
            "2024-01-01",
            "2024-01-02",
            ["2023-12-27T23:00", "2024-01-03T23:00"],
        ),
        (
            CalendarStep(DAY, zone=PARIS, origin=at("2024-01-01T05:00Z")),  # six in the morning
            "2024-03-30T12:00",
            "2024-03-31T12:00",
            ["2024-03-30T05:00", "2024-03-31T04:00", "2024-04-01T04:00"],
        ),
    ],
)
def test_days(step, start, end, expected):
    assert laid(step, start, end) == expected


@pytest.mark.parametrize(
    ("step", "start", "end", "expected"),
    [
        # 2024-01-01 was a Monday.
        (CalendarStep(1, "week"), "2024-01-01", "2024-01-08", ["2024-01-01T00:00", "2024-01-08T00:00"]),
        (
            CalendarStep(1, "week"),
            "2023-12-31",
            "2024-01-02",
            ["2023-12-25T00:00", "2024-01-01T00:00", "2024-01-08T00:00"],
        ),
        (
            CalendarStep(1, "week", week_start=6),
            "2024-01-01",
            "2024-01-02",
            ["2023-12-31T00:00", "2024-01-07T00:00"],
        ),
        # The week of the 23-hour day has 167 hours.
        (
            CalendarStep(1, "week", PARIS),
            "2024-03-30",
            "2024-04-02",
            ["2024-03-24T23:00", "2024-03-31T22:00", "2024-04-07T22:00"],
        ),
        # Two weeks count from the week of 1970-01-01 (Monday 1969-12-29): 2024-01-01 is 2818 weeks on.
        (CalendarStep(2, "week"), "2024-01-10", "2024-01-11", ["2024-01-01T00:00", "2024-01-15T00:00"]),
        (
            CalendarStep(1, "week", origin=at("2024-01-03T12:00Z")),
            "2024-01-04",
            "2024-01-05",
            ["2024-01-03T12:00", "2024-01-10T12:00"],
        ),
        # 7d is no week: it is aligned to the epoch, a Thursday.
        (CalendarStep(WEEK), "2024-01-01", "2024-01-02", ["2023-12-28T00:00", "2024-01-04T00:00"]),
    ],
)
def test_weeks(step, start, end, expected):
    assert laid(step, start, end) == expected


@pytest.mark.parametrize(
    ("step", "start", "end", "expected"),
    [
        (CalendarStep(1, "month"), "2024-02-10", "2024-03-01", ["2024-02-01T00:00", "2024-03-01T00:00"]),
        (
            CalendarStep(1, "month", PARIS),
            "2023-12-31T22:30",
            "2024-01-01",
            ["2023-11-30T23:00", "2023-12-31T23:00", "2024-01-31T23:00"],
        ),
        (
            CalendarStep(1, "month", PARIS),
            "2024-03-05",
            "2024-03-06",
            ["2024-02-29T23:00", "2024-03-31T22:00"],
        ),
        (CalendarStep(5, "month"), "2024-01-01", "2024-01-02", ["2023-10-01T00:00", "2024-03-01T00:00"]),
        (CalendarStep(1, "quarter"), "2024-05-05", "2024-05-06", ["2024-04-01T00:00", "2024-07-01T00:00"]),
        (CalendarStep(3, "month"), "2024-05-05", "2024-05-06", ["2024-04-01T00:00", "2024-07-01T00:00"]),
        (CalendarStep(2, "quarter"), "2024-05-05", "2024-05-06", ["2024-01-01T00:00", "2024-07-01T00:00"]),
        (
            CalendarStep(1, "year", KATHMANDU),
            "2023-12-31T18:20",
            "2024-01-01",
            ["2023-12-31T18:15", "2024-12-31T18:15"],
        ),
        (CalendarStep(10, "year"), "2024-05-05", "2024-05-06", ["2020-01-01T00:00", "2030-01-01T00:00"]),
        # From an origin on the 31st a shorter month starts on its last day.
        (
            CalendarStep(1, "month", origin=at("2024-01-31T06:00Z")),
            "2024-02-01",
            "2024-04-01",
            ["2024-01-31T06:00", "2024-02-29T06:00", "2024-03-31T06:00", "2024-04-30T06:00"],
        ),
        # A fiscal year from April.
        (
            CalendarStep(1, "year", origin=at("2020-04-01Z")),
            "2024-03-31",
            "2024-04-02",
            ["2023-04-01T00:00", "2024-04-01T00:00", "2025-04-01T00:00"],
        ),
        # 1900 was no leap year, 2000 was one.
        (
            CalendarStep(1, "month"),
            "1900-02-28",
            "1900-03-02",
            ["1900-02-01T00:00", "1900-03-01T00:00", "1900-04-01T00:00"],
        ),
        (
            CalendarStep(1, "month", origin=at("2000-01-31Z")),
            "2000-02-10",
            "2000-03-01",
            ["2000-01-31T00:00", "2000-02-29T00:00", "2000-03-31T00:00"],
        ),
    ],
)
def test_months_quarters_and_years(step, start, end, expected):
    assert laid(step, start, end) == expected


@pytest.mark.parametrize(
    ("step", "start", "end", "expected"),
    [
        (
            CalendarStep(HOUR, zone=KATHMANDU),
            "2024-06-01T00:00",
            "2024-06-01T01:15",
            ["2024-05-31T23:15", "2024-06-01T00:15", "2024-06-01T01:15"],
        ),
        # 6h in Paris: 00:00, 06:00, 12:00, 18:00 on the clock; the first has 5 or 7 hours when it changes.
        (
            CalendarStep(6 * HOUR, zone=PARIS),
            "2024-03-30T23:00",
            "2024-03-31T10:00",
            ["2024-03-30T23:00", "2024-03-31T04:00", "2024-03-31T10:00"],
        ),
        (
            CalendarStep(6 * HOUR, zone=PARIS),
            "2024-10-26T22:00",
            "2024-10-27T11:00",
            ["2024-10-26T22:00", "2024-10-27T05:00", "2024-10-27T11:00"],
        ),
        # 02:00 is shown twice: both hours are cells.
        (
            CalendarStep(HOUR, zone=PARIS),
            "2024-10-26T23:30",
            "2024-10-27T02:00",
            ["2024-10-26T23:00", "2024-10-27T00:00", "2024-10-27T01:00", "2024-10-27T02:00"],
        ),
        # 02:00 is skipped: the cell that starts there starts at the jump.
        (
            CalendarStep(2 * HOUR, zone=PARIS),
            "2024-03-30T23:00",
            "2024-03-31T03:00",
            ["2024-03-30T23:00", "2024-03-31T01:00", "2024-03-31T02:00", "2024-03-31T04:00"],
        ),
        # Lord Howe goes back by half an hour: 01:30 follows 02:00, and the next full hour is 02:00.
        (
            CalendarStep(HOUR, zone="Australia/Lord_Howe"),
            "2024-04-06T14:30",
            "2024-04-06T16:00",
            ["2024-04-06T14:00", "2024-04-06T15:30", "2024-04-06T16:30"],
        ),
        (
            CalendarStep(HOUR, origin=at("2024-01-01T00:20Z")),
            "2024-01-05T10:00",
            "2024-01-05T10:30",
            ["2024-01-05T09:20", "2024-01-05T10:20", "2024-01-05T11:20"],
        ),
        (
            CalendarStep(HOUR, zone="UTC"),
            "2024-01-05T10:10",
            "2024-01-05T10:30",
            ["2024-01-05T10:00", "2024-01-05T11:00"],
        ),
    ],
)
def test_durations_below_a_day(step, start, end, expected):
    assert laid(step, start, end) == expected


@pytest.mark.parametrize("zone", [None, "UTC", PARIS, KATHMANDU, "America/New_York", "Pacific/Apia"])
@pytest.mark.parametrize("end", ["first", "last"])
@pytest.mark.parametrize(
    ("count", "unit"),
    [(HOUR, "us"), (DAY, "us"), (WEEK, "us"), (1, "week"), (1, "month"), (1, "quarter"), (100, "year")],
)
def test_the_ends_of_time(zone, end, count, unit):
    span = (
        Interval(MIN_INSTANT, MIN_INSTANT + 3 * DAY)
        if end == "first"
        else Interval(MAX_INSTANT - 3 * DAY, MAX_INSTANT)
    )
    found = list(edges(CalendarStep(count, unit, zone), span))
    assert found == sorted(set(found))
    assert MIN_INSTANT <= found[0] <= span.start
    assert span.end <= found[-1] <= MAX_INSTANT
    assert all(format_instant(edge)[-1] == "Z" for edge in found[:-1])


@pytest.mark.parametrize(
    "zone", [PARIS, "America/Havana", "Pacific/Apia", "Asia/Kathmandu", "Africa/Casablanca"]
)
def test_days_are_the_dates_that_the_clock_shows(zone):
    """For every half hour of some years: the cell it is in starts at the first instant of its local date."""
    from datetime import UTC, datetime, timedelta

    clock = zone_named(zone)
    start = datetime(2010, 12, 30, tzinfo=UTC)
    halves = [start + timedelta(minutes=30 * n) for n in range(48 * 400)]
    dates = [half.astimezone(clock).date() for half in halves]
    instants = [round(half.timestamp()) * 1_000_000 for half in halves]
    found = edges(CalendarStep(DAY, zone=zone), Interval(instants[0], instants[-1] + 1))
    starts = [found[bisect_right(found, each) - 1] for each in instants]
    for index in range(1, len(halves)):
        assert (starts[index] != starts[index - 1]) == (dates[index] > dates[index - 1]), halves[index]


def test_an_empty_span_has_no_cells():
    assert list(edges(CalendarStep(1, "month"), Interval(0, 0))) == []


def test_cells_of_one_width_are_told():
    assert (
        CalendarStep(HOUR).width,
        CalendarStep(1, "week").width,
        CalendarStep(HOUR, zone="UTC").width,
    ) == (HOUR, WEEK, HOUR)
    assert CalendarStep(1, "month").width is None
    assert CalendarStep(DAY, zone=PARIS).width is None
    assert CalendarStep(HOUR, origin=20 * MINUTE).phase == 20 * MINUTE
    assert str(CalendarStep(1, "month", PARIS)) == "1mo Europe/Paris"


def test_unknown_zones_and_too_many_cells():
    with pytest.raises(InputError) as caught:
        zone_named("Europe/Pari")
    assert caught.value.hint.startswith("did you mean Europe/Paris?")
    with pytest.raises(InputError):
        zone_named("../../etc/passwd")
    with pytest.raises(QueryError):
        edges(CalendarStep(1, zone=PARIS), Interval(0, WEEK))


def test_the_first_instant_of_what_a_clock_shows():
    paris = zone_named(PARIS)
    assert first_instant(paris, at("2024-03-31T02:30")) == at("2024-03-31T01:00Z")  # skipped
    assert first_instant(paris, at("2024-10-27T02:30")) == at("2024-10-27T00:30Z")  # twice
    assert first_instant(paris, at("2024-06-01T00:00")) == at("2024-05-31T22:00Z")


class TestAnswers:
    """Events at known instants, counted by the days, weeks and months of a clock."""

    @pytest.fixture
    def asked(self, desk, event):
        return desk(
            [
                event("2024-03-30T22:59:59Z"),  # Saturday 23:59:59 in Paris
                event("2024-03-30T23:00:00Z"),  # Sunday 00:00, a day of 23 hours
                event("2024-03-31T21:59:59Z"),
                event("2024-03-31T22:00:00Z"),  # Monday 00:00, the first of April
                event("2024-10-26T22:00:00Z"),  # Sunday 00:00, a day of 25 hours
                event("2024-10-27T22:59:59Z"),
                event("2024-10-27T23:00:00Z"),
            ]
        )

    def counted(self, desk, clauses: str) -> list[tuple[str, int]]:
        table = desk.ask(f"SELECT count FROM requests {clauses}").table
        return [(row["bucket"].isoformat(), row["count"]) for row in table.to_pylist()]

    def test_days_of_23_and_25_hours(self, asked):
        spring = "BETWEEN 2024-03-30 AND 2024-04-02 INTERVAL 1d TIMEZONE 'Europe/Paris'"
        assert self.counted(asked, spring) == [
            ("2024-03-30T00:00:00+01:00", 1),
            ("2024-03-31T00:00:00+01:00", 2),
            ("2024-04-01T00:00:00+02:00", 1),
        ]
        autumn = "BETWEEN 2024-10-27 AND 2024-10-29 INTERVAL 1d TIMEZONE 'Europe/Paris'"
        assert self.counted(asked, autumn) == [
            ("2024-10-27T00:00:00+02:00", 2),
            ("2024-10-28T00:00:00+01:00", 1),
        ]

    def test_rates_are_by_the_hours_that_a_day_has(self, asked):
        span = "BETWEEN 2024-03-31 AND 2024-04-01 INTERVAL 1d TIMEZONE 'Europe/Paris'"
        (row,) = asked.ask(f"SELECT rate FROM requests {span}").table.to_pylist()
        assert row["rate"] == Decimal("0.000024")  # 2 in 82800 seconds

    def test_weeks_start_on_monday_unless_told(self, asked):
        span = "BETWEEN 2024-03-24T00:00:00Z AND 2024-04-07T00:00:00Z"
        assert self.counted(asked, f"{span} INTERVAL 1w") == [("2024-03-25T00:00:00+00:00", 4)]
        assert self.counted(asked, f"{span} INTERVAL 1w TIMEZONE 'Europe/Paris'") == [
            ("2024-03-25T00:00:00+01:00", 3),
            ("2024-04-01T00:00:00+02:00", 1),
        ]
        assert self.counted(asked, f"{span} INTERVAL 1w WEEK START sunday") == [
            ("2024-03-24T00:00:00+00:00", 2),
            ("2024-03-31T00:00:00+00:00", 2),
        ]
        assert self.counted(asked, f"{span} INTERVAL 7d") == [("2024-03-28T00:00:00+00:00", 4)]

    def test_months_quarters_and_years(self, asked):
        assert self.counted(asked, "INTERVAL 1mo TIMEZONE 'Europe/Paris'") == [
            ("2024-03-01T00:00:00+01:00", 3),
            ("2024-04-01T00:00:00+02:00", 1),
            ("2024-10-01T00:00:00+02:00", 3),
        ]
        assert self.counted(asked, "INTERVAL 1q") == [
            ("2024-01-01T00:00:00+00:00", 4),
            ("2024-10-01T00:00:00+00:00", 3),
        ]
        assert self.counted(asked, "INTERVAL 1y ORIGIN '2020-04-01'") == [
            ("2023-04-01T00:00:00+00:00", 4),
            ("2024-04-01T00:00:00+00:00", 3),
        ]

    def test_gaps_between_months_are_filled(self, asked):
        found = self.counted(asked, "BETWEEN 2024-03-01 AND 2024-07-01 INTERVAL 1mo FILL zero")
        assert [count for _, count in found] == [4, 0, 0, 0]

    def test_without_a_span_only_gaps_between_data_are_filled(self, desk, event):
        # The weeks of the rollups start on Thursdays: that of 1 October in September, that of 31 December
        # ends in January.
        asked = desk([event("2024-10-01T00:00:00Z"), event("2024-12-31T00:00:00Z")])
        assert self.counted(asked, "INTERVAL 1mo FILL zero") == [
            ("2024-10-01T00:00:00+00:00", 1),
            ("2024-11-01T00:00:00+00:00", 0),
            ("2024-12-01T00:00:00+00:00", 1),
        ]

    @pytest.mark.parametrize(
        ("every", "cells"),
        [
            ("1mo TIMEZONE 'Europe/Paris'", 8),
            ("1w", 32),
            ("1q", 4),
            ("2h ORIGIN 2024-01-01T01:00:00Z", 217 * 12 + 1),
        ],
    )
    def test_explain_without_a_span_shows_what_is_read_for_each_cell(self, asked, every, cells):
        text = f"SELECT count FROM requests INTERVAL {every}"
        plan = asked.querier.explain(text, tenant=None, now=0)
        answer = asked.ask(text)
        assert plan.pieces == answer.pieces
        assert (plan.level, plan.rows, plan.files) == (answer.level, answer.rows_read, answer.files_read)
        assert (plan.cells, plan.span) == (cells, None)
        assert "GROUP BY cell" in plan.sql

    def test_explain_of_no_data_shows_no_cells(self, desk):
        plan = desk([]).querier.explain("SELECT count FROM requests INTERVAL 1mo", tenant=None, now=0)
        assert (plan.cells, plan.pieces, plan.files) == (0, (), 0)

    def test_an_origin_shifts_fixed_intervals(self, asked):
        span = "BETWEEN 2024-03-30T20:00:00Z AND 2024-03-31T02:00:00Z"
        assert self.counted(asked, f"{span} INTERVAL 2h ORIGIN 2024-01-01T01:00:00Z") == [
            ("2024-03-30T21:00:00+00:00", 1),
            ("2024-03-30T23:00:00+00:00", 1),
        ]

    def test_a_total_over_local_days(self, asked):
        text = "SELECT count FROM requests BETWEEN 2024-03-31 AND 2024-04-01 TIMEZONE 'Europe/Paris'"
        assert asked.rows(text) == [(2,)]

    def test_edges_of_calendar_cells(self, asked):
        span = "BETWEEN 2024-03-30T23:00:00Z AND 2024-04-15T00:00:00Z INTERVAL 1mo"
        assert self.counted(asked, f"{span} EDGES exclude") == []
        assert [count for _, count in self.counted(asked, f"{span} EDGES null")] == [None, None]
        assert [count for _, count in self.counted(asked, f"{span} EDGES include")] == [3]

    def test_no_whole_cell_in_the_span(self, asked, desk, sight):
        """An answer without rows, whatever it would have been made of."""
        span = "BETWEEN 2024-03-30T23:00:00Z AND 2024-03-31T20:00:00Z INTERVAL 1y EDGES exclude"
        for value in ("count", "avg(latency_ms)", "count, rate"):
            assert asked.rows(f"SELECT {value} FROM requests {span} GROUP BY api FILL carry") == []
        plant = desk([sight("10:00:00", latency=7, order="a", status="NEW")])
        span = "BETWEEN 2024-01-01T09:00:00Z AND 2024-01-01T11:00:00Z INTERVAL 1mo EDGES exclude"
        for values in ("max, p50 FROM plant.delay", "bins FROM plant.delay", "states FROM plant.orders"):
            assert plant.rows(f"SELECT {values} {span} GROUP BY region") == []

    def test_a_bucket_that_starts_in_the_year_10000_of_its_zone_is_in_utc(self, desk, sight):
        asked = desk([sight("9999-12-31T20:00:00Z")])
        text = "SELECT count FROM plant.made INTERVAL 1y TIMEZONE 'Asia/Kathmandu'"
        (row,) = asked.ask(text).table.to_pylist()
        assert (row["bucket"].isoformat(), row["count"]) == ("9999-12-31T18:15:00+00:00", 1)

    def test_the_cells_around_1970(self, desk, sight):
        """Their starts are small numbers."""
        asked = desk([sight("1970-01-01T00:00:01Z", latency=7), sight("1970-01-01T00:00:02Z", latency=9)])
        text = "SELECT count, p50, p100 FROM plant.delay BETWEEN 1970-01-01 AND 1970-02-01 INTERVAL 1mo"
        assert asked.rows(text) == [("1970-01-01T00:00:00", 2, 7, 9)]
        assert asked.rows(f"{text} FILL carry GROUP BY region") == [("1970-01-01T00:00:00", "eu", 2, 7, 9)]

    @pytest.mark.parametrize(
        ("clauses", "position", "hint"),
        [
            ("SINCE 1d INTERVAL 1d TIMEZONE 'Europe/Pari'", 27 + 30, "did you mean Europe/Paris?"),
            ("SINCE 1d USING ROLLUP 1d TIMEZONE 'Europe/Paris'", 27 + 34, "use INTERVAL"),
            ("SINCE 1d INTERVAL 1d WEEK START sunday", 27 + 32, "use INTERVAL 1w"),
        ],
    )
    def test_what_is_refused(self, asked, clauses, position, hint):
        with pytest.raises(QueryError) as caught:
            asked.ask(f"SELECT count FROM requests {clauses}")
        assert hint in caught.value.hint
        assert caught.value.position == position

    def test_too_many_local_days_are_refused_with_a_remedy(self, asked):
        with pytest.raises(QueryError, match="more than 600000 intervals") as caught:
            asked.ask(
                "SELECT count FROM requests BETWEEN 0001-01-02 AND 2024-01-01"
                " INTERVAL 1d TIMEZONE 'Europe/Paris'"
            )
        assert "a shorter span" in caught.value.hint
