"""Values of gauges, histograms, state metrics and ratios, by small examples that can be checked by hand."""

from __future__ import annotations

import itertools
from decimal import Decimal

import pytest

from tidemill.model.completeness import Available
from tidemill.model.errors import QueryError
from tidemill.model.time import HOUR, Interval, from_datetime, parse_instant
from tidemill.query import Explanation, Files

D = Decimal


class TestGauge:
    @pytest.fixture
    def heat(self, desk, sight):
        return desk(
            [
                sight("10:00:01", temp=D("20.50")),
                sight("10:00:58", temp=D("19.25")),
                sight("10:00:30", temp=D("25.00")),
                sight("10:00:30", temp=None),
                sight("10:02:00", temp=D("18.00"), region="us"),
                sight("10:02:00", temp=D("17.00"), region="us", id="aaaa"),
            ]
        )

    def test_every_value_of_a_gauge(self, heat):
        assert heat.rows(
            "SELECT value, avg, min, max, first, last, sum, count, rate FROM plant.heat USING ROLLUP 1m"
        ) == [
            (
                *("10:00:00", D("19.25"), D("21.58333333"), D("19.25"), D("25.00"), D("20.50"), D("19.25")),
                *(D("64.75"), 3, D("0.050000")),
            ),
            (
                *("10:02:00", D("18.00"), D("17.50000000"), D("17.00"), D("18.00"), D("17.00"), D("18.00")),
                *(D("35.00"), 2, D("0.033333")),
            ),
        ]

    def test_the_first_and_last_of_one_instant_go_by_id(self, heat):
        text = "SELECT first, last FROM plant.heat WHERE region = 'us'"
        assert heat.rows(text) == [(D("17.00"), D("18.00"))]

    def test_the_policy_says_what_the_value_is(self, desk, sight):
        events = [sight("10:00:00", latency=1), sight("10:00:01", latency=2)]
        assert desk(events).rows("SELECT value, value(latency) AS v FROM plant.load") == [
            (D("1.5"), D("1.5"))
        ]

    def test_a_gauge_without_a_value_has_none(self, desk, sight):
        text = "SELECT value, first, last, min, avg, sum, count FROM plant.heat"
        assert desk([sight("10:00:00")]).rows(text) == [(None, None, None, None, None, D(0), 0)]

    def test_names_of_values(self, heat):
        table = heat.ask("SELECT value, max(temp), last FROM plant.heat").table
        assert table.column_names == ["value", "max(temp)", "last"]


class TestHistogram:
    def test_m7_zero_is_counted_and_percentiles_have_their_labels(self, desk, sight):
        """M7."""
        events = [sight("10:00:00", latency=value) for value in (0, 0, 3, 5)]
        answer = desk(events).ask("SELECT count, p50, p99.9, percentile(0.999) AS top FROM plant.delay")
        assert answer.table.to_pylist() == [{"count": 4, "p50": D(0), "p99.9": D(5), "top": D(5)}]
        labelled = desk(events).ask("SELECT percentile(0.5), percentile(0.999) FROM plant.delay").table
        assert labelled.column_names == ["p50", "p99.9"]

    def test_values_of_a_histogram(self, desk, sight):
        events = [sight("10:00:00", latency=value) for value in (10, 20, 30, None)]
        text = "SELECT count, sum, avg, min, max, p100, p1, p50(latency) FROM plant.delay USING ROLLUP 5s"
        assert desk(events).rows(text) == [
            ("10:00:00", 3, D(60), D(20), 10, 30, D(30), D(10), D(20)),
        ]

    def test_count_is_of_samples_and_count_all_of_events(self, desk, sight):
        """So that sum / count is avg, whatever came without a value."""
        events = [sight("10:00:00", latency=value) for value in (10, 20, 31, None)]
        text = "SELECT count, count_all, count(*), rate, sum / count, avg FROM plant.delay USING ROLLUP 5s"
        assert desk(events).rows(text) == [
            ("10:00:00", 3, 4, 4, D("0.6"), D("20.333333"), D("20.333333")),
        ]

    def test_cells_are_merged_before_a_percentile_is_taken(self, desk, sight):
        events = [
            sight(f"10:00:{i:02}", latency=v, region=r)
            for i, (v, r) in enumerate([(1, "a")] * 9 + [(9, "b")])
        ]
        asked = desk(events)
        assert asked.rows("SELECT p90 FROM plant.delay USING ROLLUP 1m") == [("10:00:00", D(1))]
        assert asked.rows("SELECT p90 FROM plant.delay GROUP BY region") == [("a", D(1)), ("b", D(9))]

    def test_declared_bounds_spread_samples_evenly(self, desk, sight):
        """(0.5, 20] holds 1, 2, 3, 4 and least and most are 1 and 4."""
        events = [sight("10:00:00", temp=D(value)) for value in (1, 2, 3, 4)]
        assert desk(events).rows("SELECT p25, p50, p100 FROM plant.warmth") == [
            (D("1.75"), D("2.5"), D(4)),
        ]

    def test_without_a_sample_there_is_no_percentile(self, desk, sight):
        text = "SELECT p50, count FROM plant.delay USING ROLLUP 5s"
        assert desk([sight("10:00:00")]).rows(text) == [("10:00:00", None, 0)]
        assert desk([sight("10:00:00")]).rows("SELECT p50 FROM plant.warmth WHERE region = 'x'") == [(None,)]

    def test_order_by_a_percentile_in_either_writing(self, desk, sight):
        events = [sight("10:00:00", latency=9, region="a"), sight("10:00:00", latency=3, region="b")]
        for key in ("p99", "percentile(0.99)"):
            rows = desk(events).rows(f"SELECT p99 FROM plant.delay GROUP BY region ORDER BY {key}")
            assert [row[0] for row in rows] == ["b", "a"]

    def test_however_bins_are_merged(self, tmp_path, kit, monkeypatch):
        """By the engine when there are many rows, else side by side, some cells at a time."""
        sights = [
            kit.Sight(
                1_704_103_200_000_000 + i * 7_000_000, f"e{i}", ["a", None, "c"][i % 3], latency=i * i - 900
            )
            for i in range(300)
        ]
        shelf = kit.Shelf(tmp_path / "some").put(sights)

        class Many:
            version, available, raw = 7, Available(), None

            def files_for(self, level, spans):
                return Files(shelf.files_for(level, spans).paths, 10**9)

        text = "SELECT p1, p50, p99 FROM plant.delay INTERVAL 2m GROUP BY region"
        few = kit.Questions(shelf).ask(text).table
        assert few.num_rows > 30
        assert kit.Questions(Many()).ask(text).table.equals(few)
        monkeypatch.setattr("tidemill.query.percentiles._AT_ONCE", 1000)
        assert kit.Questions(shelf).ask(text).table.equals(few)


class TestRatio:
    def test_m9_a_late_success_and_the_success_rate(self, desk, sight):
        """M9: successes at 10:02:08 and, arriving later, 10:02:55; a failure at 10:01:38."""
        before = [sight("10:02:08", ok=True), sight("10:01:38", ok=False)]
        minutes = "BETWEEN 2024-01-01T10:01:00Z AND 2024-01-01T10:04:00Z USING ROLLUP 1m"
        assert desk(before).rows(f"SELECT count FROM plant.successes {minutes}") == [("10:02:00", 1)]
        asked = desk([*before, sight("10:02:55", ok=True)])
        assert asked.rows(f"SELECT count FROM plant.successes {minutes}") == [("10:02:00", 2)]
        assert asked.rows(f"SELECT count FROM plant.failures {minutes}") == [("10:01:00", 1)]
        rates = [("10:01:00", D(0)), ("10:02:00", D(1)), ("10:03:00", None)]
        assert asked.rows(f"SELECT ratio FROM plant.success_rate {minutes} FILL null") == rates
        assert asked.rows(f"SELECT ratio FROM plant.success_rate {minutes} FILL zero") == rates

    def test_a_ratio_of_any_two_counters(self, desk, sight):
        events = [sight("10:00:00", ok=ok, region=r) for ok, r in [(True, "a"), (False, "a"), (True, "b")]]
        asked = desk(events)
        assert asked.rows("SELECT ratio(failures, made) FROM plant GROUP BY region") == [
            ("a", D("0.5")),
            ("b", D(0)),
        ]
        assert asked.rows("SELECT ratio(made, failures) AS r FROM plant GROUP BY region") == [
            ("a", D(2)),
            ("b", None),
        ]

    def test_beside_values_of_a_metric(self, desk, sight):
        events = [sight("10:00:00", ok=ok, latency=5) for ok in (True, True, False)]
        text = "SELECT count, sum(latency), ratio(successes, made) FROM plant.made USING ROLLUP 1m"
        assert desk(events).rows(text) == [("10:00:00", 3, D(15), D("0.666667"))]
        assert desk(events).ask(text).table.column_names[-1] == "ratio(successes, made)"

    def test_of_transitions(self, desk, sight):
        """Two of three orders that ended came straight from NEW to DONE."""
        steps = [("a", "NEW"), ("a", "DONE"), ("b", "NEW"), ("b", "DONE"), ("c", "NEW"), ("c", "LOST")]
        events = [sight(f"10:00:{i:02}", order=o, status=s) for i, (o, s) in enumerate(steps)]
        asked = desk(events)
        assert asked.rows("SELECT ratio FROM plant.direct") == [(D("0.666667"),)]
        assert asked.rows("SELECT ratio(orders, made) FROM plant") == [(D(1),)]

    def test_only_dimensions_that_all_its_metrics_have(self, desk, sight):
        asked = desk([sight("10:00:00")])
        with pytest.raises(QueryError) as caught:
            asked.rows("SELECT ratio FROM plant.success_rate GROUP BY line")
        assert caught.value.hint == "dimensions: region, tenant"
        assert asked.ask("SELECT ratio(made, successes) FROM plant GROUP BY line").metric == "made, successes"


class TestStates:
    @pytest.fixture
    def m5(self, sight):
        return [
            sight("10:00:01", order="x", status="ACTIVE"),
            sight("10:01:01", order="x", status="ACTIVE"),
            sight("10:02:01", order="x", status="BLOCKED"),
        ]

    def test_m5_states_and_transitions(self, desk, m5):
        """M5, and M6: however they arrive."""
        for events in (m5, m5[::-1]):
            asked = desk(events)
            assert asked.rows("SELECT transitions FROM plant.orders GROUP BY from_state, to_state") == [
                ("(none)", "ACTIVE", 1),
                ("ACTIVE", "BLOCKED", 1),
            ]
            assert asked.rows("SELECT states FROM plant.orders USING ROLLUP 1m GROUP BY state") == [
                ("10:00:00", "ACTIVE", 1),
                ("10:00:00", "BLOCKED", 0),
                ("10:01:00", "ACTIVE", 1),
                ("10:01:00", "BLOCKED", 0),
                ("10:02:00", "ACTIVE", 0),
                ("10:02:00", "BLOCKED", 1),
            ]

    def test_where_hours_have_expired_every_hour_without_states_is_named(self, kit, sight, tmp_path):
        """The first day has its days left and no hours, the second has its hours from 13:00 on."""
        events = [
            sight("2024-01-01T09:30:00Z", order="a", status="NEW"),
            sight("2024-01-02T14:30:00Z", order="b", status="NEW"),
            sight("2024-01-03T01:30:00Z", order="c", status="NEW"),
        ]
        shelf = kit.Shelf(tmp_path / "some").put(events)
        since = parse_instant("2024-01-02T13:00:00Z")
        shelf.available = Available({"5s": since, "1m": since, "1h": since}, raw=since)
        asked = kit.Questions(shelf)
        third = parse_instant("2024-01-03T00:00:00Z")
        for end, known in (("02T20:00", {}), ("03T03:00", {third: 2, third + HOUR: 3, third + 2 * HOUR: 3})):
            span = f"BETWEEN 2024-01-01T07:00:00Z AND 2024-01-{end}:00Z"
            answer = asked.ask(f"SELECT states FROM plant.orders {span} INTERVAL 1h")
            (gone,) = answer.completeness.missing
            rows = [(from_datetime(row["bucket"]), row["states"]) for row in answer.table.to_pylist()]
            for bucket, states in rows:
                is_named = gone.span.overlaps(Interval(bucket, bucket + HOUR))
                assert states == (None if is_named else known[bucket])
            assert sum(states is not None for _, states in rows) == len(known)

    def test_what_came_before_the_span_stands(self, desk, sight):
        events = [
            sight("2023-11-01T00:00:00Z", order="a", status="NEW"),
            sight("2023-12-30T00:00:00Z", order="b", status="NEW"),
            sight("2024-01-01T09:59:59Z", order="c", status="NEW", region="us"),
            sight("10:00:59", order="a", status="DONE"),
        ]
        asked = desk(events)
        span = "BETWEEN 2024-01-01T10:00:00Z AND 2024-01-01T10:03:00Z"
        text = f"SELECT states FROM plant.orders {span} USING ROLLUP 1m"
        assert asked.rows(text) == [("10:00:00", 3), ("10:01:00", 3), ("10:02:00", 3)]
        assert asked.rows(f"{text} WHERE state = 'NEW'") == [
            ("10:00:00", 2),
            ("10:01:00", 2),
            ("10:02:00", 2),
        ]
        assert asked.rows(f"{text} GROUP BY region, state FILL drop") == [
            ("10:00:00", "eu", "DONE", 1),
            ("10:00:00", "eu", "NEW", 1),
        ]
        assert asked.rows(f"SELECT states FROM plant.orders {span} GROUP BY region, state") == [
            ("eu", "DONE", 1),
            ("eu", "NEW", 1),
            ("us", "NEW", 1),
        ]
        assert asked.rows(f"{text} EDGES null".replace("10:00:00Z", "10:00:30Z")) == [
            ("10:00:00", None),
            ("10:01:00", 3),
            ("10:02:00", 3),
        ]

    def test_a_cell_has_a_row_if_the_number_changed_whatever_was_read(self, desk, sight):
        """Order a leaves NEW and comes back within a minute: two rows of 5s, and none of 1m."""
        events = [
            sight("09:00:00", order="a", status="NEW"),
            sight("10:01:10", order="a", status="WORK"),
            sight("10:01:40", order="a", status="NEW"),
            sight("10:02:30", order="b", status="NEW"),
        ]
        asked = desk(events)
        for start, end in (("10:00:00", "10:04:00"), ("10:00:00", "10:01:55"), ("10:01:05", "10:04:00")):
            span = f"BETWEEN 2024-01-01T{start}Z AND 2024-01-01T{end}Z"
            text = f"SELECT states FROM plant.orders {span} INTERVAL 1m WHERE state = 'NEW' FILL drop"
            assert asked.rows(text) == ([("10:02:00", 2)] if end == "10:04:00" else [])
            assert asked.rows(f"{text} EDGES exclude") == ([("10:02:00", 2)] if end == "10:04:00" else [])
            both = f"SELECT states, transitions FROM plant.orders {span} INTERVAL 1m FILL drop"
            assert asked.rows(both)[:1] == [("10:01:00", 1, 2)]

    def test_a_group_that_all_objects_leave_has_a_row_where_they_do(self, desk, sight):
        """There was one in it at the end of the cell before, which has no row, as nothing changed there."""
        events = [
            sight("09:00:00", order="a", status="NEW"),
            sight("10:01:10", order="a", status="WORK"),
        ]
        asked = desk(events)
        text = "SELECT states FROM plant.orders BETWEEN 2024-01-01T10:0{}:00Z AND 2024-01-01T10:03:00Z"
        text += " INTERVAL 1m GROUP BY state FILL drop"
        assert asked.rows(text.format(0)) == [("10:01:00", "NEW", 0), ("10:01:00", "WORK", 1)]
        assert asked.rows(text.format(1)) == [("10:01:00", "WORK", 1)]  # NEW has none at the end of any cell

    def test_the_opening_is_read_from_the_coarsest_buckets_and_nothing_twice(self, desk, sight):
        asked = desk([sight("10:00:00", order="a", status="NEW")])
        text = "SELECT states FROM plant.orders BETWEEN 2024-01-03T10:07:05Z AND 2024-01-03T10:08:00Z"
        plan = asked.querier.explain(text, tenant="acme", now=0)
        assert isinstance(plan, Explanation)
        assert [piece.source for piece in plan.opening] == ["7d", "1d", "1h", "1m", "5s"]
        spans = [piece.span for piece in (*plan.opening, *plan.pieces)]
        assert all(one.end == other.start for one, other in itertools.pairwise(spans))
        assert "opens with" in str(plan)
        assert "1d from 2023-12-28T00:00:00Z, 1h from 2024-01-03T00:00:00Z" in str(plan)
        assert "5s from 2024-01-03T10:07:05Z to 2024-01-03T10:08:00Z" in str(plan)
        assert asked.rows(text, "acme") == [(1,)]

    def test_states_carry_whatever_fill_says_and_transitions_do_not(self, desk, m5):
        text = "SELECT states, transitions FROM plant.orders USING ROLLUP 1m FILL {}"
        for fill, gap in (("null", None), ("zero", 0), ("carry", 1)):
            rows = desk(m5).rows(text.format(fill))
            assert rows == [("10:00:00", 1, 1), ("10:01:00", 1, gap), ("10:02:00", 1, 1)]

    def test_named_transitions(self, desk, sight):
        steps = [("a", "NEW"), ("a", "DONE"), ("b", "NEW"), ("b", "WORK")]
        asked = desk([sight(f"10:00:{i:02}", order=o, status=s) for i, (o, s) in enumerate(steps)])
        text = "SELECT transitions, transitions(change) AS c, transitions(finished) FROM plant.orders"
        assert asked.rows(text) == [(4, 4, 1)]
        assert asked.ask(text).table.column_names == ["transitions", "c", "transitions(finished)"]
        text = "SELECT transitions(finished) FROM plant.orders WHERE from_state = 'NEW' GROUP BY to_state"
        assert asked.rows(text) == [("DONE", 1)]

    def test_a_total_says_the_states_at_the_end_of_the_span(self, desk, m5):
        """A group that all objects have left has no row; without groups there is always one."""
        span = "BETWEEN 2024-01-01T10:00:00Z AND 2024-01-01T10:0{}:00Z"
        text = f"SELECT states FROM plant.orders {span} GROUP BY state"
        assert desk(m5).rows(text.format(2)) == [("ACTIVE", 1)]
        assert desk(m5).rows(text.format(3)) == [("BLOCKED", 1)]
        total = "SELECT states FROM plant.orders GROUP BY state"
        assert desk(m5).rows(total) == [("BLOCKED", 1)]
        for level in ("5s", "1m"):  # there were active ones at the end of some intervals
            last = desk(m5).rows(f"SELECT states FROM plant.orders USING ROLLUP {level} GROUP BY state")[-2:]
            assert [row[1:] for row in last] == [("ACTIVE", 0), ("BLOCKED", 1)]
        for level in ("1h", "1d", "7d"):
            rows = desk(m5).rows(f"SELECT states FROM plant.orders USING ROLLUP {level} GROUP BY state")
            assert [row[1:] for row in rows] == [("BLOCKED", 1)]
        assert desk(m5).rows(f"{total}, region") == [("BLOCKED", "eu", 1)]
        assert desk(m5).rows("SELECT states FROM plant.orders WHERE state = 'ACTIVE'") == [(0,)]


@pytest.mark.parametrize("end", ["10:00:05", "10:01:00", "11:00:00"])
def test_a_state_that_all_objects_left_has_no_row_whatever_level_is_read(desk, sight, end):
    """An object that is new and at work within the same 5 s."""
    events = [sight("10:00:00", order="a", status="NEW"), sight("10:00:01", order="a", status="WORK")]
    span = f"BETWEEN 2024-01-01T10:00:00Z AND 2024-01-01T{end}Z"
    assert desk(events).rows(f"SELECT states FROM plant.orders {span} GROUP BY state") == [("WORK", 1)]
    series = f"SELECT states FROM plant.orders {span} USING ROLLUP 5s GROUP BY state"
    assert {row[1:] for row in desk(events).rows(series)} == {("WORK", 1)}
    both = f"SELECT states, transitions FROM plant.orders {span} GROUP BY region"
    assert desk(events).rows(both) == [("eu", 1, 2)]


def test_fill_carry_takes_the_last_value_of_the_group(desk, sight):
    events = [
        sight("10:01:00", temp=D(5), region="a"),
        sight("10:02:00", temp=D(7), region="b"),
        sight("10:03:00", region="a"),  # an event without a value: it is counted, and changes no value
    ]
    span = "BETWEEN 2024-01-01T10:00:00Z AND 2024-01-01T10:05:00Z"
    text = (
        f"SELECT value, count FROM plant.heat {span} USING ROLLUP 1m GROUP BY region FILL carry FORMAT series"
    )
    minutes = [f"10:0{i}:00" for i in range(5)]
    assert desk(events).rows(text) == [
        (minutes, "a", [None, D(5), D(5), D(5), D(5)], [None, 1, 1, 0, 0]),
        (minutes, "b", [None, None, D(7), D(7), D(7)], [None, None, 1, 1, 1]),
    ]


def test_fill_carry_looks_before_the_span(desk, sight):
    """A region that spoke last an hour or a month ago still has its value; one without any has none."""
    events = [
        sight("09:00:10", temp=D(5), region="a"),
        sight("09:30:20", temp=D(6), region="a"),
        sight("09:40:00", region="a"),  # no value
        sight("10:02:00", temp=D(8), region="a"),
        sight("10:01:00", temp=D(7), region="b"),
        sight("2023-11-20T10:00:00Z", temp=D(3), region="c"),
        sight("10:07:00", temp=D(9), region="d"),  # after the span
    ]
    span = "BETWEEN 2024-01-01T10:00:00Z AND 2024-01-01T10:03:00Z"
    text = f"SELECT value FROM plant.heat {span} INTERVAL 1m GROUP BY region FILL carry FORMAT series"
    minutes = ["10:00:00", "10:01:00", "10:02:00"]
    assert desk(events).rows(text) == [
        (minutes, "a", [D(6), D(6), D(8)]),
        (minutes, "b", [None, D(7), D(7)]),
        (minutes, "c", [D(3), D(3), D(3)]),
    ]


def test_fill_carry_takes_the_part_of_the_first_interval_before_the_span(desk, sight):
    events = [sight("09:59:00", temp=D(4)), sight("10:10:00", temp=D(5)), sight("11:30:00", temp=D(6))]
    span = "BETWEEN 2024-01-01T10:20:00Z AND 2024-01-01T12:00:00Z"
    text = f"SELECT value FROM plant.heat {span} INTERVAL 1h FILL carry"
    assert desk(events).rows(text) == [("10:00:00", D(5)), ("11:00:00", D(6))]
    where = f"SELECT value FROM plant.heat {span} WHERE region = 'nowhere' INTERVAL 1h FILL carry"
    assert desk(events).rows(where) == [("10:00:00", None), ("11:00:00", None)]


def test_fill_carry_gives_an_interval_of_events_without_a_value_the_value_before_the_span(desk, sight):
    events = [
        sight("09:59:00", temp=D(4)),
        sight("10:00:10"),
        sight("10:01:10"),
        sight("10:02:10", temp=D(6)),
    ]
    span = "BETWEEN 2024-01-01T10:00:00Z AND 2024-01-01T10:03:00Z"
    text = f"SELECT value, first, avg, count, count_all FROM plant.heat {span} INTERVAL 1m"
    four = (D(4), D(4), D(4))
    last = ("10:02:00", D(6), D(6), D(6), 1, 1)
    assert desk(events).rows(f"{text} FILL carry") == [
        ("10:00:00", *four, 0, 1),
        ("10:01:00", *four, 0, 1),
        last,
    ]
    for fill in ("drop", "null", "zero"):  # none of them invents a value
        nothing = (None, None, None)
        assert desk(events).rows(f"{text} FILL {fill}") == [
            ("10:00:00", *nothing, 0, 1),
            ("10:01:00", *nothing, 0, 1),
            last,
        ]


def test_carry_does_not_take_what_edges_hide(desk, sight):
    events = [sight("10:00:40", temp=D(5)), sight("10:02:00", temp=D(7))]
    span = "BETWEEN 2024-01-01T10:00:30Z AND 2024-01-01T10:04:30Z"
    text = f"SELECT value FROM plant.heat {span} INTERVAL 1m EDGES null FILL carry"
    assert desk(events).rows(text.replace("1m", "60s")) == [
        ("10:00:00", None),
        ("10:01:00", None),
        ("10:02:00", D(7)),
        ("10:03:00", D(7)),
        ("10:04:00", None),
    ]


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        (
            "SELECT median FROM plant.heat",
            7,
            "values: value, avg, min, max, first, last, sum, count, count(*), ",
        ),
        ("SELECT p50 FROM plant.heat", 7, "values: value, avg"),
        ("SELECT first FROM plant.delay", 7, "percentile(0.5)"),
        ("SELECT count FROM plant.orders", 7, "values: states, transitions, transitions(rule), ratio(a, b)"),
        ("SELECT count FROM plant.direct", 7, "values: ratio, ratio(a, b)"),
        ("SELECT ratio FROM plant.made", 7, "values: count, count(*), count_all, rate"),
        ("SELECT p0 FROM plant.delay", 7, "above p0 up to p100"),
        ("SELECT p101 FROM plant.delay", 7, "above p0 up to p100"),
        ("SELECT percentile(1.5) FROM plant.delay", 18, "with q above 0 up to 1"),
        ("SELECT percentile FROM plant.delay", 7, "write percentile(0.99), or p99"),
        ("SELECT percentile(latency) FROM plant.delay", 7, "write percentile(0.99), or p99"),
        ("SELECT p50(temp) FROM plant.delay", 11, "values: latency"),
        ("SELECT avg(1) FROM plant.heat", 7, "write avg or avg(temp)"),
        ("SELECT states(x) FROM plant.orders", 14, "write states"),
        ("SELECT transitions(gone) FROM plant.orders", 19, "rules: change, finished"),
        ("SELECT transitions(1) FROM plant.orders", 7, "rule one of: change, finished"),
        ("SELECT ratio(made) FROM plant", 7, "of: failures, made, orders, successes"),
        ("SELECT ratio(made, gone) FROM plant", 19, "counters and state metrics: failures, made"),
        ("SELECT ratio(made, heat) FROM plant", 19, "of: failures, made, orders, successes"),
        ("SELECT count, ratio(made, failures) FROM plant", 41, "FROM one of plant.delay"),
        ("SELECT states FROM plant.orders GROUP BY to_state", 41, "dimensions here: region, state, tenant"),
        ("SELECT transitions FROM plant.orders WHERE state = 'x'", 43, "from_state and to_state"),
        (
            "SELECT states, transitions FROM plant.orders GROUP BY state",
            54,
            "dimensions here: region, tenant",
        ),
        ("SELECT count FROM plant.made WHERE state = 'x'", 35, "dimensions here: line, ok, region, tenant"),
    ],
)
def test_what_does_not_go_with_a_kind_is_refused_with_what_does(desk, sight, text, position, hint):
    with pytest.raises(QueryError) as caught:
        desk([sight("10:00:00")]).rows(text)
    assert hint in caught.value.hint
    assert caught.value.position == position
