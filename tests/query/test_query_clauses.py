"""Each clause of a query by value, on small tables written by hand."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from tidemill.model.completeness import Arrivals
from tidemill.model.errors import QueryError
from tidemill.model.time import DAY, HOUR, Interval, format_instant, parse_instant

SPAN = "BETWEEN 2024-01-01T10:00:00Z AND 2024-01-01T11:00:00Z"


@pytest.fixture
def small(desk, event):
    return desk(
        [
            event("10:00:00", api="/a", region="eu", latency=10, price=Decimal("1.10")),
            event("10:00:01", api="/a", region="us", latency=15, price=Decimal("0.25")),
            event("10:00:07", api="/b", region="eu", status=500, ok=False, latency=-4),
            event("10:01:59", api="/a", region="eu", latency=None),
            event("10:03:00", api=None, region="eu", latency=7),
            event("10:03:30", api="/a", region="eu", latency=1, tenant="umbra"),
            event("10:05:00", api="/a", metric="failures", status=None, ok=None, region=None),
        ]
    )


class TestSelect:
    def test_total_over_all_data(self, small):
        answer = small.ask("SELECT count, sum(latency_ms), min(latency_ms), max(latency_ms) FROM requests")
        assert answer.table.to_pylist() == [
            {"count": 6, "sum(latency_ms)": Decimal(29), "min(latency_ms)": -4, "max(latency_ms)": 15}
        ]
        assert (answer.level, answer.interval, answer.span) == ("7d", None, None)

    def test_types(self, small):
        table = small.ask(
            f"SELECT count, rate, sum(price), avg(price), min(price), max(latency_ms) FROM requests {SPAN} "
            "USING ROLLUP 1m GROUP BY api, http.status, ok"
        ).table
        assert [(field.name, field.type) for field in table.schema] == [
            ("bucket", pa.timestamp("us", tz="UTC")),
            ("api", pa.string()),
            ("http.status", pa.int64()),
            ("ok", pa.bool_()),
            ("count", pa.int64()),
            ("rate", pa.decimal128(38, 6)),
            ("sum(price)", pa.decimal128(38, 2)),
            ("avg(price)", pa.decimal128(38, 8)),
            ("min(price)", pa.decimal128(18, 2)),
            ("max(latency_ms)", pa.int64()),
        ]

    def test_types_are_the_same_without_a_row(self, small):
        text = "SELECT count, rate, avg(price), min(price) FROM requests WHERE api = '{}' USING ROLLUP 1m"
        empty, full = (small.ask(text.format(api)).table for api in ("/none", "/a"))
        assert empty.num_rows == 0
        assert empty.schema == full.schema

    def test_average_is_exact_and_of_events_with_a_value(self, small):
        assert small.rows("SELECT avg(latency_ms), avg(price) FROM requests WHERE api = '/a'", "acme") == [
            (Decimal("12.500000"), Decimal("0.67500000"))
        ]

    def test_average_of_no_value_is_null_and_their_sum_0(self, small):
        text = "SELECT count, sum(price), avg(price), min(price) FROM requests WHERE api = '/b'"
        assert small.rows(text) == [(1, Decimal("0.00"), None, None)]

    def test_rate_is_per_second_of_the_bucket(self, small):
        assert small.rows("SELECT rate FROM requests USING ROLLUP 1m", "acme") == [
            ("10:00:00", Decimal("0.050000")),
            ("10:01:00", Decimal("0.016667")),
            ("10:03:00", Decimal("0.016667")),
        ]

    def test_rate_of_a_total_is_per_second_of_the_span(self, small):
        assert small.rows(f"SELECT rate FROM requests {SPAN}") == [(Decimal("0.001667"),)]

    def test_rate_of_a_partial_cell_is_per_second_of_the_part(self, small):
        text = "SELECT rate FROM requests BETWEEN 2024-01-01T09:00:00Z AND 2024-01-01T10:01:00Z INTERVAL 10m"
        assert small.rows(text, "acme") == [("10:00:00", Decimal("0.050000"))]

    def test_alias_and_upper_case(self, small):
        answer = small.ask("select COUNT As n, Sum(latency_ms) AS `total of ms` FROM requests")
        assert answer.table.to_pylist() == [{"n": 6, "total of ms": Decimal(29)}]

    def test_no_rows_is_one_total_of_nothing(self, small):
        assert small.rows("SELECT count, sum(price), max(price) FROM requests WHERE api = '/none'") == [
            (0, Decimal("0.00"), None)
        ]

    def test_grouped_total_of_nothing_has_no_rows(self, small):
        assert small.rows("SELECT count FROM requests WHERE api = '/none' GROUP BY region") == []


class TestFrom:
    def test_metric_by_name(self, small):
        assert small.rows("SELECT count FROM requests.failures") == [(1,)]
        assert small.rows("SELECT count FROM `requests`.`failures`") == [(1,)]

    def test_stream_alone_means_the_metric_of_its_name(self, small):
        assert small.ask("SELECT count FROM requests").metric == "requests"

    def test_stream_alone_means_its_only_metric(self, small):
        assert small.ask("SELECT count FROM one").metric == "only"


class TestWhere:
    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            ("api = '/a'", 4),
            ('api = "/a"', 4),
            ("api != '/a'", 1),
            ("api <> '/a'", 1),
            ("api > '/a'", 1),
            ("api >= '/a' AND api < '/b'", 4),
            ("http.status = 500", 1),
            ("http.status <= 499", 5),
            ("http.status > -1", 6),
            ("ok = false", 1),
            ("ok != false", 5),
            ("ok IN (true, false)", 6),
            ("api IN ('/a', '/b')", 5),
            ("api NOT IN ('/a')", 1),
            ("http.status IN (500, 501)", 1),
            ("api LIKE '/%'", 5),
            ("api NOT LIKE '%a'", 1),
            ("region LIKE '_u'", 5),
            ("api LIKE '/\\%'", 0),
            ("api IS NULL", 1),
            ("api IS NOT NULL", 5),
            ("api = '/b' OR region = 'us'", 2),
            ("api = '/b' OR region = 'us' AND ok = false", 1),
            ("(api = '/b' OR region = 'us') AND ok = false", 1),
            ("NOT api = '/a'", 1),
            ("NOT (api = '/a' OR api IS NULL)", 1),
            ("NOT NOT api = '/a'", 4),
            ("tenant = 'umbra'", 1),
            ("`api` = '/a' and `http`.`status` = 200", 4),
        ],
    )
    def test_condition(self, small, condition, expected):
        assert small.rows(f"SELECT count FROM requests WHERE {condition}") == [(expected,)]

    def test_strings_with_quotes_and_escapes(self, desk, event):
        names = ["it's", 'say "hi"', "a\\b", "tab\there", "%", "naïve ☃"]
        asked = desk([event("10:00:00", api=name) for name in names])
        for text in ("'it''s'", "'it\\'s'", '"it\'s"', '"say ""hi"""', '"say \\"hi\\""', "'say \"hi\"'"):
            assert asked.rows(f"SELECT count FROM requests WHERE api = {text}") == [(1,)], text
        for text in ("'a\\\\b'", "'tab\\there'", "'tab\there'", "'naïve ☃'"):
            assert asked.rows(f"SELECT count FROM requests WHERE api = {text}") == [(1,)], text
        assert asked.rows("SELECT count FROM requests WHERE api LIKE '\\%'") == [(1,)]


class TestGroupBy:
    def test_m8_other_dimensions_are_summed_over(self, small):
        assert small.rows("SELECT count, sum(latency_ms) FROM requests GROUP BY region") == [
            ("eu", 5, Decimal(14)),
            ("us", 1, Decimal(15)),
        ]

    def test_no_value_is_a_group_and_comes_last(self, small):
        assert small.rows("SELECT count FROM requests GROUP BY api, http.status") == [
            ("/a", 200, 4),
            ("/b", 500, 1),
            (None, 200, 1),
        ]

    def test_rows_come_by_bucket_then_group(self, small):
        assert small.rows("SELECT count FROM requests USING ROLLUP 1m GROUP BY api") == [
            ("10:00:00", "/a", 2),
            ("10:00:00", "/b", 1),
            ("10:01:00", "/a", 1),
            ("10:03:00", "/a", 1),
            ("10:03:00", None, 1),
        ]


class TestTenant:
    def test_a_tenant_sees_only_its_own(self, small):
        assert small.rows("SELECT count FROM requests", "acme") == [(5,)]
        assert small.rows("SELECT count FROM requests", "umbra") == [(1,)]
        assert small.rows("SELECT count FROM requests", "nobody") == [(0,)]
        assert small.rows("SELECT count FROM requests", "acme' OR '1'='1") == [(0,)]

    def test_all_tenants_can_be_told_apart(self, small):
        assert small.rows("SELECT count FROM requests GROUP BY tenant") == [("acme", 5), ("umbra", 1)]

    @pytest.mark.parametrize("clause", ["GROUP BY tenant", "WHERE tenant = 'umbra'", "WHERE tenant IS NULL"])
    def test_one_tenant_cannot_name_tenants(self, small, clause):
        with pytest.raises(QueryError, match="one tenant") as caught:
            small.rows(f"SELECT count FROM requests {clause}", "acme")
        assert caught.value.hint == "dimensions: api, http.status, ok, region"

    def test_completeness_says_nothing_of_other_tenants(self, small):
        data = small.ask("SELECT count FROM requests USING ROLLUP 1m", "acme").completeness.data
        assert format_instant(data.end) == "2024-01-01T10:04:00Z"
        assert small.ask("SELECT count FROM requests", "nobody").completeness.data is None


class TestTime:
    def test_between_is_half_open(self, small):
        span = "BETWEEN '2024-01-01T10:00:00Z' AND '2024-01-01 10:03:00'"
        assert small.rows(f"SELECT count FROM requests {span} USING ROLLUP 1m") == [
            ("10:00:00", 3),
            ("10:01:00", 1),
        ]

    @pytest.mark.parametrize(
        ("span", "level", "count"),
        [
            ("2024-01-01 AND 2024-01-02", "1d", 6),
            ("2024-01-01T10:00:00Z AND 2024-01-01T11:00:00Z", "1h", 6),
            ("2024-01-01T10:00:00Z AND 2024-01-01T10:03:00Z", "1m", 4),
            ("2024-01-01T10:00:00Z AND 2024-01-01T10:00:05Z", "5s", 2),
            ("2023-12-28 AND 2024-01-04", "7d", 6),
            ("2024-01-01T11:00:00+01:00 AND 2024-01-01T12:00:00+01:00", "1h", 6),
            ("2024-01-01T10:00:00Z AND 2024-01-01T10:00:00Z", "5s", 0),
        ],
    )
    def test_total_reads_the_coarsest_level_that_tiles_the_span(self, small, span, level, count):
        answer = small.ask(f"SELECT count FROM requests BETWEEN {span}")
        assert (answer.level, answer.table.to_pylist()) == (level, [{"count": count}])

    @pytest.mark.parametrize(
        ("span", "count"),
        [
            ("2024-01-01T10:00:00.5Z AND 2024-01-01T11:00:00Z", 5),
            ("2024-01-01T10:00:01Z AND 2024-01-01T10:03:00.000001Z", 4),
            ("2024-01-01T10:00:01Z AND 2024-01-01T10:00:01.000001Z", 1),
            ("2024-01-01T10:00:01.000001Z AND 2024-01-01T10:00:07Z", 0),
        ],
    )
    def test_a_total_over_any_span_is_exact(self, small, span, count):
        assert small.rows(f"SELECT count FROM requests BETWEEN {span}") == [(count,)]

    def test_since_is_exactly_that_long(self, small):
        answer = small.ask("SELECT count FROM requests SINCE 14h USING ROLLUP 1h")  # now is 00:00:07
        assert str(answer.span) == "[2024-01-01T10:00:07Z, 2024-01-02T00:00:07Z)"
        assert answer.table.column("count").to_pylist() == [4]
        total = small.ask("SELECT count FROM requests SINCE 'PT14H'")
        assert total.span == answer.span
        assert (total.level, total.table.to_pylist()) == ("1h", [{"count": 4}])


class TestBuckets:
    @pytest.mark.parametrize(
        ("interval", "level"), [("30s", "5s"), ("3h", "1h"), ("15m", "1m"), ("9d", "1d"), ("14d", "7d")]
    )
    def test_m10_the_largest_level_that_divides_the_interval(self, small, interval, level):
        answer = small.ask(f"SELECT count FROM requests INTERVAL {interval}")
        assert answer.level == level
        assert sum(answer.table.column("count").to_pylist()) == 6

    @pytest.mark.parametrize("interval", ["7s", "0s", "1ms", "61s"])
    def test_m11_an_interval_that_no_level_divides_is_refused(self, small, interval):
        with pytest.raises(QueryError, match="no rollup level divides") as caught:
            small.ask(f"SELECT count FROM requests INTERVAL {interval}")
        assert "5s, 1m, 1h, 1d, 7d" in caught.value.hint
        assert caught.value.position == 36

    def test_m4_hour_reads_1h_rows_and_equals_the_sum_of_the_5s_rows(self, small):
        hour = small.ask("SELECT count, sum(latency_ms) FROM requests INTERVAL 1h GROUP BY api")
        assert (hour.level, hour.interval) == ("1h", HOUR)
        fine = small.ask("SELECT count, sum(latency_ms) FROM requests USING ROLLUP 5s GROUP BY api").table
        summed = fine.group_by("api").aggregate([("count", "sum"), ("sum(latency_ms)", "sum")])
        assert sorted(map(str, summed.select([0, 1, 2]).to_pylist())) == sorted(
            str({"api": row["api"], "count_sum": row["count"], "sum(latency_ms)_sum": row["sum(latency_ms)"]})
            for row in hour.table.to_pylist()
        )

    def test_m9_a_late_success_changes_its_own_minute(self, desk, event):
        first = event("10:02:08", ok=True)
        failure = event("10:01:38", ok=False)
        late = event("10:02:55", ok=True)  # arrives at 10:03:15
        text = "SELECT count FROM requests WHERE ok = {} BETWEEN {} AND {} USING ROLLUP 1m FILL zero"
        span = "2024-01-01T10:01:00Z", "2024-01-01T10:04:00Z"
        successes, failures = text.format("true", *span), text.format("false", *span)
        before = desk([first, failure])
        assert before.rows(successes) == [("10:01:00", 0), ("10:02:00", 1), ("10:03:00", 0)]
        after = desk([first, failure, late])
        assert after.rows(successes) == [("10:01:00", 0), ("10:02:00", 2), ("10:03:00", 0)]
        assert after.rows(failures) == [("10:01:00", 1), ("10:02:00", 0), ("10:03:00", 0)]

    def test_grid_is_aligned_to_the_epoch(self, small):
        assert small.rows("SELECT count FROM requests INTERVAL 7d") == [("2023-12-28T00:00:00", 6)]
        assert small.rows("SELECT count FROM requests INTERVAL 2m") == [("10:00:00", 4), ("10:02:00", 2)]

    def test_times_before_1970(self, desk, event):
        asked = desk([event("1969-12-31T23:59:58Z"), event("1970-01-01T00:00:00Z")])
        answer = asked.ask("SELECT count FROM requests INTERVAL 10s").table
        assert answer.column("bucket").cast(pa.int64()).to_pylist() == [-10_000_000, 0]

    def test_interval_is_bounded(self, small):
        with pytest.raises(QueryError, match="too long"):
            small.ask("SELECT count FROM requests INTERVAL 36501d")


class TestEdges:
    # 10:00:00 and 10:00:01 -> 2, 10:00:07 -> 1, 10:01:59 -> 1, 10:03:00 -> 1, 10:03:30 -> 1
    UNALIGNED = "BETWEEN 2024-01-01T10:00:05Z AND 2024-01-01T10:03:10Z INTERVAL 2m"
    OFF_LEVEL = "BETWEEN 2024-01-01T10:00:30Z AND 2024-01-01T10:03:30Z USING ROLLUP 1m"

    def test_include_counts_what_lies_inside(self, small):
        assert small.rows(f"SELECT count FROM requests {self.UNALIGNED}") == [
            ("10:00:00", 2),
            ("10:02:00", 1),
        ]
        finer = self.UNALIGNED.replace("2m", "50s")
        assert small.rows(f"SELECT count FROM requests {finer}") == [
            ("10:00:00", 1),
            ("10:01:40", 1),
            ("10:02:30", 1),
        ]
        total = self.UNALIGNED.removesuffix("INTERVAL 2m")
        assert small.rows(f"SELECT count FROM requests {total}") == [(3,)]

    def test_a_rate_is_of_the_part_that_lies_inside(self, small):
        # 55 s of the first two minutes
        inside = "BETWEEN 2024-01-01T10:01:05Z AND 2024-01-01T10:03:00.500000Z INTERVAL 2m"
        assert small.rows(f"SELECT count, rate FROM requests {inside}") == [
            ("10:00:00", 1, Decimal("0.018182")),
            ("10:02:00", 1, Decimal("0.016529")),  # of 60.5 s
        ]

    def test_exclude_drops_partial_cells(self, small):
        assert small.rows(f"SELECT count FROM requests {self.UNALIGNED} EDGES exclude") == []
        text = f"SELECT count FROM requests {self.UNALIGNED.replace('2m', '50s')} EDGES exclude FILL zero"
        assert small.rows(text) == [("10:00:50", 0), ("10:01:40", 1)]

    def test_null_keeps_the_row_without_a_number(self, small):
        assert small.rows(f"SELECT count, rate FROM requests {self.UNALIGNED} EDGES null") == [
            ("10:00:00", None, None),
            ("10:02:00", None, None),
        ]
        text = f"SELECT count FROM requests {self.UNALIGNED.replace('2m', '50s')} EDGES null FILL zero"
        assert small.rows(text) == [
            ("10:00:00", None),
            ("10:00:50", 0),
            ("10:01:40", 1),
            ("10:02:30", None),
        ]

    def test_a_bucket_of_the_level_that_straddles_a_bound_is_counted_in_part(self, small):
        assert small.rows(f"SELECT count FROM requests {self.OFF_LEVEL} FILL zero") == [
            ("10:00:00", 0),
            ("10:01:00", 1),
            ("10:02:00", 0),
            ("10:03:00", 1),
        ]
        assert small.rows(f"SELECT count FROM requests {self.OFF_LEVEL} EDGES null FILL zero") == [
            ("10:00:00", None),
            ("10:01:00", 1),
            ("10:02:00", 0),
            ("10:03:00", None),
        ]

    def test_aligned_bounds_have_no_edges(self, small):
        for edges in ("include", "exclude", "null"):
            text = f"SELECT count FROM requests {SPAN} INTERVAL 2m EDGES {edges}"
            assert small.rows(text) == [("10:00:00", 4), ("10:02:00", 2)]

    def test_span_inside_one_bucket(self, small):
        inside = "BETWEEN 2024-01-01T10:00:10Z AND 2024-01-01T10:00:50Z USING ROLLUP 1m"
        assert small.rows(f"SELECT count FROM requests {inside} FILL zero") == [("10:00:00", 0)]
        wider = inside.replace("10:00:10", "10:00:07")
        assert small.rows(f"SELECT count FROM requests {wider}") == [("10:00:00", 1)]
        assert small.rows(f"SELECT count FROM requests {inside} EDGES exclude FILL zero") == []
        assert small.rows(f"SELECT count FROM requests {inside} EDGES null") == [("10:00:00", None)]


class TestFill:
    def test_gaps_are_dropped_unless_asked(self, small):
        text = "SELECT count FROM requests WHERE api = '/a' USING ROLLUP 1m"
        dropped = [("10:00:00", 2), ("10:01:00", 1), ("10:03:00", 1)]
        assert small.rows(text) == dropped
        assert small.rows(f"{text} FILL drop") == dropped

    def test_zero_is_for_what_is_counted_and_null_for_what_is_not(self, small):
        text = (
            "SELECT count, sum(price), rate, avg(price), min(price), max(price) FROM requests "
            "BETWEEN 2024-01-01T10:02:00Z AND 2024-01-01T10:03:00Z USING ROLLUP 1m FILL "
        )
        assert small.rows(f"{text} zero") == [
            ("10:02:00", 0, Decimal("0.00"), Decimal("0.000000"), None, None, None)
        ]
        assert small.rows(f"{text} null") == [("10:02:00", None, None, None, None, None, None)]

    def test_every_group_gets_every_cell(self, small):
        span = "BETWEEN 2024-01-01T10:02:00Z AND 2024-01-01T10:04:00Z"
        assert small.rows(f"SELECT count FROM requests {span} USING ROLLUP 1m GROUP BY api FILL zero") == [
            ("10:02:00", "/a", 0),
            ("10:02:00", None, 0),
            ("10:03:00", "/a", 1),
            ("10:03:00", None, 1),
        ]

    def test_without_a_time_clause_gaps_lie_between_the_first_and_last_bucket_there_is(self, small):
        text = "SELECT count FROM requests WHERE api = '/b' USING ROLLUP 1m FILL zero"
        assert small.rows(text) == [("10:00:00", 1), ("10:01:00", 0), ("10:02:00", 0), ("10:03:00", 0)]

    def test_filling_is_bounded(self, small):
        with pytest.raises(QueryError, match="more than 1000000 rows") as caught:
            small.ask(
                "SELECT count FROM requests BETWEEN 0001-01-01 AND 9999-01-01 USING ROLLUP 5s FILL zero"
            )
        assert "FILL drop" in caught.value.hint


class TestOrderAndLimit:
    def test_order_by_value_then_default(self, small):
        assert small.rows("SELECT count FROM requests USING ROLLUP 1m GROUP BY api ORDER BY count DESC") == [
            ("10:00:00", "/a", 2),
            ("10:00:00", "/b", 1),
            ("10:01:00", "/a", 1),
            ("10:03:00", "/a", 1),
            ("10:03:00", None, 1),
        ]

    @pytest.mark.parametrize(
        ("order", "expected"),
        [
            ("api DESC", ["/b", "/a", None]),
            ("api", ["/a", "/b", None]),
            ("avg(latency_ms) DESC", ["/a", None, "/b"]),
            ("total", ["/b", None, "/a"]),
            ("sum(latency_ms) ASC", ["/b", None, "/a"]),
            ("count, api DESC", ["/b", None, "/a"]),
        ],
    )
    def test_order_by(self, small, order, expected):
        text = "SELECT count, avg(latency_ms), sum(latency_ms) AS total FROM requests GROUP BY api"
        assert [row[0] for row in small.rows(f"{text} ORDER BY {order}", "acme")] == expected

    def test_nulls_come_last_in_either_direction(self, small):
        for direction in ("ASC", "DESC"):
            text = f"SELECT min(price) FROM requests GROUP BY api, region ORDER BY min(price) {direction}"
            assert [row[2] for row in small.rows(text)][-2:] == [None, None]

    def test_limit(self, small):
        text = "SELECT count FROM requests GROUP BY api ORDER BY count DESC LIMIT"
        assert small.rows(f"{text} 1") == [("/a", 4)]
        assert small.rows(f"{text} 0") == []
        assert len(small.rows(f"{text} 100")) == 3

    def test_clauses_come_in_any_order(self, small):
        assert small.rows("SELECT count FROM requests LIMIT 1 GROUP BY api WHERE region = 'us';") == [
            ("/a", 1)
        ]


class TestSeries:
    def test_one_row_for_each_group_with_aligned_lists(self, small):
        span = "BETWEEN 2024-01-01T10:00:00Z AND 2024-01-01T10:02:00Z"
        answer = small.ask(
            f"SELECT count, avg(price) FROM requests {span} INTERVAL 1m GROUP BY api FORMAT series"
        )
        assert answer.table.column_names == ["bucket", "api", "count", "avg(price)"]
        times = ["10:00:00", "10:01:00"]
        assert small.rows(
            f"SELECT count, avg(price) FROM requests {span} INTERVAL 1m GROUP BY api FORMAT series"
        ) == [
            (times, "/a", [2, 1], [Decimal("0.67500000"), None]),
            (times, "/b", [1, None], [None, None]),
        ]

    def test_gaps_can_be_dropped(self, small):
        text = "SELECT count FROM requests USING ROLLUP 1m GROUP BY api FILL drop FORMAT series"
        assert small.rows(f"{text} ORDER BY api DESC LIMIT 2") == [
            (["10:00:00"], "/b", [1]),
            (["10:00:00", "10:01:00", "10:03:00"], "/a", [2, 1, 1]),
        ]

    def test_without_groups_there_is_one_series(self, small):
        text = "SELECT count FROM requests WHERE api = '{}' USING ROLLUP 1m FILL drop FORMAT series"
        assert small.rows(text.format("/b")) == [(["10:00:00"], [1])]
        assert small.rows(text.format("/none")) == [([], [])]
        assert small.rows(text.format("/none") + " LIMIT 0") == []

    def test_groups_of_nothing_have_no_series(self, small):
        assert (
            small.rows(
                "SELECT count FROM requests WHERE api = 'x' USING ROLLUP 1m GROUP BY api FORMAT series"
            )
            == []
        )


class TestAnswer:
    def test_says_what_it_read(self, small):
        answer = small.ask(f"SELECT count FROM requests {SPAN} INTERVAL 2m")
        assert (answer.stream, answer.metric, answer.level) == ("requests", "requests", "1m")
        assert (answer.files_read, answer.rows_read, answer.version) == (2, 7, 7)

    def test_completeness_is_of_the_level_whatever_where_says(self, small):
        text = f"SELECT count FROM requests WHERE api = '/b' {SPAN} USING ROLLUP 1m"
        data = Interval(parse_instant("2024-01-01T10:00:00Z"), parse_instant("2024-01-01T10:04:00Z"))
        assert small.ask(text).completeness.data == data

    @pytest.mark.parametrize(
        ("watermark", "complete", "up_to"),
        [
            (None, False, None),
            ("2024-01-01T10:30:00Z", False, "2024-01-01T10:30:00Z"),
            ("2024-01-01T11:00:00Z", True, "2024-01-01T11:00:00Z"),
            ("2024-01-05T00:00:00Z", True, "2024-01-01T11:00:00Z"),
        ],
    )
    def test_span_at_or_before_the_watermark_is_complete(self, small, watermark, complete, up_to):
        mark = parse_instant(watermark) if watermark else None
        found = small.ask(f"SELECT count FROM requests {SPAN} USING ROLLUP 1m", watermark=mark).completeness
        assert found.complete is complete
        assert found.complete_through == (parse_instant(up_to) if up_to else None)

    def test_arrivals_can_be_looked_up_by_stream_and_span(self, small):
        asked = []

        def arrivals(name, span):
            asked.append((name, span))
            return Arrivals(DAY)

        answer = small.querier.ask("SELECT count FROM requests", tenant=None, now=0, arrivals=arrivals)
        assert (asked, answer.completeness.watermark) == ([("requests", None)], DAY)

    def test_explain_says_what_would_run(self, small):
        text = f"SELECT count FROM requests WHERE api = '/a' {SPAN} INTERVAL 2m GROUP BY region"
        plan = small.querier.ask(f"EXPLAIN {text}", tenant="acme", now=0)
        assert plan == small.querier.explain(text, tenant="acme", now=0)
        assert (plan.level, plan.interval, plan.cells, plan.files, plan.rows) == ("1m", 120_000_000, 30, 2, 7)
        assert plan.parameters["tenant"] == "acme"
        assert "/a" in plan.parameters.values()
        assert "/a" not in plan.sql
        assert "level        1m" in str(plan)
