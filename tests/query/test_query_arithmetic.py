"""Arithmetic, HAVING, OFFSET, bins and more of what analysts write, by examples that are checked by hand."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from tidemill.model.errors import QueryError

D = Decimal


@pytest.fixture
def shop(desk, event):
    return desk(
        [
            event("10:00:00", api="/a", latency=10, price=D("1.25")),
            event("10:00:01", api="/a", latency=20, price=D("2.50")),
            event("10:00:02", api="/a", latency=3, price=None),
            event("10:01:00", api="/b", latency=7, price=D("0.10")),
            event("10:03:00", api="/c", latency=0, price=D("0.00"), status=500),
        ]
    )


class TestArithmetic:
    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            ("sum(latency_ms) / count", [D("11.000000"), D("7.000000"), D("0.000000")]),
            ("sum(latency_ms) / count * 100", [D("1100.000000"), D("700.000000"), D("0.000000")]),
            ("count * 2 + 1", [D(7), D(3), D(3)]),
            ("-count", [D(-3), D(-1), D(-1)]),
            ("2 - (count - 1) * 0.5", [D("1.0"), D("2.0"), D("2.0")]),
            ("sum(price) * 2", [D("7.50"), D("0.20"), D("0.00")]),
            ("sum(price) * 1.5", [D("5.625"), D("0.150"), D("0.000")]),
            ("sum(price) / count", [D("1.25000000"), D("0.10000000"), D("0.00000000")]),
            ("1 / sum(latency_ms)", [D("0.030303"), D("0.142857"), None]),  # 1 / 33, 1 / 7, 1 / 0
            ("10 / sum(price) * 0", [D("0.00000000"), D("0.00000000"), None]),
            ("max(latency_ms) - min(latency_ms)", [D(17), D(0), D(0)]),
            ("count / 3 * 3", [D("3.000000"), D("1.000000"), D("1.000000")]),  # rounded once, at the end
            ("-1 / 8 + 0 * count", [D("-0.125000")] * 3),
            ("count(*) + count_all", [D(6), D(2), D(2)]),
        ],
    )
    def test_expressions(self, shop, expression, expected):
        rows = shop.rows(f"SELECT {expression} AS x FROM requests GROUP BY api")
        assert [row[1] for row in rows] == expected
        assert [str(row[1]) for row in rows] == [str(each) for each in expected]  # with the same digits

    def test_halves_are_rounded_to_even(self, desk, event):
        asked = desk([event("10:00:00", latency=5), event("10:00:01", latency=15, api="/b")])
        rows = asked.rows("SELECT sum(latency_ms) / 10000000 AS x FROM requests GROUP BY api")
        assert [row[1] for row in rows] == [D("0.000000"), D("0.000002")]

    def test_columns_are_named_as_they_are_written(self, shop):
        table = shop.ask("SELECT count, sum(price)/ (count+1), avg(price) AS mean FROM requests").table
        assert table.column_names == ["count", "sum(price) / (count + 1)", "mean"]
        assert table.schema.field(1).type == pa.decimal128(38, 8)

    def test_gaps_are_filled_before_anything_is_computed(self, shop):
        span = "BETWEEN 2024-01-01T10:00:00Z AND 2024-01-01T10:04:00Z INTERVAL 1m"
        text = f"SELECT count + 1 AS x, sum(latency_ms) / count AS y FROM requests {span} FILL zero"
        assert shop.rows(text) == [
            ("10:00:00", D(4), D("11.000000")),
            ("10:01:00", D(2), D("7.000000")),
            ("10:02:00", D(1), None),
            ("10:03:00", D(2), D("0.000000")),
        ]

    def test_order_by_what_is_computed(self, shop):
        for key in ("x", "count / sum(latency_ms)"):
            rows = shop.rows(
                f"SELECT count / sum(latency_ms) AS x FROM requests GROUP BY api ORDER BY {key} DESC"
            )
            assert [row[0] for row in rows] == ["/b", "/a", "/c"]

    @pytest.mark.parametrize(
        ("text", "position", "hint"),
        [
            ("SELECT 1 + 1 FROM requests", 7, "write count, for example"),
            ("SELECT count + cuont FROM requests", 15, "did you mean count?"),
            ("SELECT count * 1e30 * 1e30 FROM requests", 7, "multiply by less"),
            ("SELECT count / 2, count / 2 FROM requests", 18, "give one another name with AS"),
        ],
    )
    def test_what_is_refused(self, shop, text, position, hint):
        with pytest.raises(QueryError) as caught:
            shop.rows(text)
        assert hint in caught.value.hint
        assert caught.value.position == position


class TestHaving:
    @pytest.mark.parametrize(
        ("condition", "kept"),
        [
            ("count > 1", ["/a"]),
            ("count >= 1 AND sum(latency_ms) < 10", ["/b", "/c"]),
            ("NOT count > 1", ["/b", "/c"]),
            ("n = 1", ["/b", "/c"]),
            ("mean * 2 > 14", ["/a"]),
            ("sum(latency_ms) / count BETWEEN 1 AND 10", ["/b"]),
            ("count / sum(latency_ms) IS NULL", ["/c"]),
            ("count / sum(latency_ms) IS NOT NULL", ["/a", "/b"]),
            ("1 / sum(latency_ms) > 0", ["/a", "/b"]),  # unknown is not kept,
            ("NOT 1 / sum(latency_ms) > 0", []),  # nor is its negation
            ("1 / sum(latency_ms) > 0 OR count = 1", ["/a", "/b", "/c"]),
            ("avg(price) = 1.875", ["/a"]),
        ],
    )
    def test_conditions(self, shop, condition, kept):
        text = f"SELECT count AS n, avg(latency_ms) AS mean FROM requests GROUP BY api HAVING {condition}"
        rows = shop.rows(text)
        assert [row[0] for row in rows] == kept
        assert all(len(row) == 3 for row in rows)

    def test_it_comes_after_filling_and_before_limit(self, shop):
        span = "BETWEEN 2024-01-01T10:00:00Z AND 2024-01-01T10:04:00Z INTERVAL 1m"
        text = f"SELECT count FROM requests {span} FILL zero HAVING count < 2 ORDER BY count LIMIT 2"
        assert shop.rows(text) == [("10:02:00", 0), ("10:01:00", 1)]

    def test_dimensions_are_for_where(self, shop):
        with pytest.raises(QueryError) as caught:
            shop.rows("SELECT count FROM requests GROUP BY api HAVING api = 1")
        assert "WHERE" in caught.value.hint


class TestOffset:
    def test_rows(self, shop):
        text = "SELECT count FROM requests GROUP BY api"
        assert [row[0] for row in shop.rows(f"{text} OFFSET 1")] == ["/b", "/c"]
        assert [row[0] for row in shop.rows(f"{text} LIMIT 1 OFFSET 1")] == ["/b"]
        assert shop.rows(f"{text} OFFSET 9") == []

    def test_series(self, shop):
        text = "SELECT count FROM requests INTERVAL 1h GROUP BY api FORMAT series"
        assert [row[1] for row in shop.rows(f"{text} LIMIT 1 OFFSET 1")] == ["/b"]
        assert [row[1:] for row in shop.rows(f"{text} OFFSET 2")] == [("/c", [1])]
        assert shop.rows(f"{text} OFFSET 9") == []


class TestConditions:
    @pytest.mark.parametrize(
        ("condition", "kept"),
        [
            ("http.status BETWEEN 200 AND 499", 4),
            ("http.status BETWEEN 500 AND 500", 1),
            ("http.status NOT BETWEEN 200 AND 499", 1),
            ("api BETWEEN '/a' AND '/b'", 4),
            ("api ILIKE '/A'", 3),
            ("api NOT ILIKE '/A%'", 2),
            ("api ILIKE '\\_%'", 0),
            ("http.status == +200 OR ok <= false", 4),
            ("ok BETWEEN false AND true", 5),
        ],
    )
    def test_conditions(self, shop, condition, kept):
        assert shop.rows(f"SELECT count FROM requests WHERE {condition}") == [(kept,)]

    def test_ilike_lowers_each_character_by_itself(self, desk, event):
        names = ["İstanbul", "ΣΑΣ", "MÜNCHEN", "Ⅷ"]
        asked = desk([event("10:00:00", api=name) for name in names])
        for pattern, found in (("istanbul", 1), ("σας", 0), ("σασ", 1), ("münch%", 1), ("ⅷ", 1)):
            assert asked.rows(f"SELECT count FROM requests WHERE api ILIKE '{pattern}'") == [(found,)], (
                pattern
            )

    @pytest.mark.parametrize(
        ("condition", "hint"),
        [("http.status BETWEEN '1' AND '2'", "a number"), ("http.status < 1.5", "a whole number")],
    )
    def test_what_is_refused(self, shop, condition, hint):
        with pytest.raises(QueryError) as caught:
            shop.rows(f"SELECT count FROM requests WHERE {condition}")
        assert hint in caught.value.hint


class TestTime:
    def test_now_and_epoch_numbers(self, shop):
        assert shop.rows("SELECT count FROM requests BETWEEN now-15h AND now") == [(5,)]
        assert shop.rows("SELECT count FROM requests SINCE 1704103260") == [(2,)]  # 10:01:00
        assert shop.rows("SELECT count FROM requests BETWEEN 1704103260000 AND 1704103380000") == [(1,)]
        assert shop.rows("SELECT count FROM requests SINCE 2024-01-01T10:01") == [(2,)]

    def test_a_reversed_span_is_refused_where_it_stands(self, shop):
        with pytest.raises(QueryError) as caught:
            shop.rows("SELECT count FROM requests BETWEEN now AND 2024-01-01T10:01:00Z")
        assert caught.value.position == 35


class TestBins:
    def test_declared_bounds(self, desk, sight):
        """Bounds -10, 0, 0.5, 20: five bins, the first and the last without an end."""
        events = [
            sight("10:00:00", temp=D(value)) for value in ("-11", "-10", "0.5", "0.51", "20", "20.01", "21")
        ]
        asked = desk([*events, sight("10:00:00", temp=None)])
        table = asked.ask("SELECT bins FROM plant.warmth").table
        assert table.column_names == ["lower", "upper", "count"]
        assert [tuple(row.values()) for row in table.to_pylist()] == [
            (None, D("-10.00"), 2),
            (D("0.00"), D("0.50"), 1),
            (D("0.50"), D("20.00"), 2),
            (D("20.00"), None, 2),
        ]

    def test_log_scale(self, desk, sight):
        events = [sight("10:00:00", latency=value) for value in (0, 1, 2, 2, -3)]
        assert desk(events).rows("SELECT bins FROM plant.delay") == [
            (D(-3), D(-2), 1),
            (D(0), D(0), 1),
            (D(0), D(1), 1),
            (D(1), D(2), 2),
        ]

    def test_rows_of_a_heatmap(self, desk, sight):
        events = [
            sight("10:00:01", latency=1, region="a"),
            sight("10:00:59", latency=2, region="a"),
            sight("10:02:00", latency=1, region="a"),
            sight("10:02:00", latency=1, region="b"),
        ]
        asked = desk(events)
        span = "BETWEEN 2024-01-01T10:00:00Z AND 2024-01-01T10:03:00Z"
        text = f"SELECT bins FROM plant.delay {span} INTERVAL 1m GROUP BY region"
        assert asked.rows(text) == [
            ("10:00:00", "a", D(0), D(1), 1),
            ("10:00:00", "a", D(1), D(2), 1),
            ("10:02:00", "a", D(0), D(1), 1),
            ("10:02:00", "b", D(0), D(1), 1),
        ]
        assert asked.rows(f"{text} FILL zero LIMIT 4") == [
            ("10:00:00", "a", D(0), D(1), 1),
            ("10:00:00", "a", D(1), D(2), 1),
            ("10:00:00", "b", D(0), D(1), 0),
            ("10:01:00", "a", D(0), D(1), 0),
        ]
        minutes = ["10:00:00", "10:01:00", "10:02:00"]
        assert asked.rows(f"{text} FORMAT series") == [
            (minutes, "a", D(0), D(1), [1, 0, 1]),
            (minutes, "a", D(1), D(2), [1, 0, 0]),
            (minutes, "b", D(0), D(1), [0, 0, 1]),
        ]
        assert asked.rows(f"{text} ORDER BY count DESC, upper DESC LIMIT 1") == [
            ("10:00:00", "a", D(1), D(2), 1)
        ]

    def test_cells_at_the_ends_have_no_number_under_edges_null(self, desk, sight):
        events = [sight("10:00:30", latency=1), sight("10:01:30", latency=1)]
        span = "BETWEEN 2024-01-01T10:00:20Z AND 2024-01-01T10:02:00Z"
        assert desk(events).rows(f"SELECT bins FROM plant.delay {span} INTERVAL 1m EDGES null") == [
            ("10:00:00", D(0), D(1), None),
            ("10:01:00", D(0), D(1), 1),
        ]

    def test_without_samples_there_are_no_bins(self, desk, sight):
        assert desk([sight("10:00:00")]).rows("SELECT bins FROM plant.delay") == []

    @pytest.mark.parametrize(
        ("text", "hint"),
        [
            ("SELECT bins, count FROM plant.delay", "SELECT bins, without AS"),
            ("SELECT bins + 1 FROM plant.delay", "SELECT bins, without AS"),
            ("SELECT bins AS b FROM plant.delay", "SELECT bins, without AS"),
            ("SELECT bins FROM plant.delay HAVING bins > 1", "SELECT bins, without AS"),
            ("SELECT bins FROM plant.delay INTERVAL 1h FILL carry", "FILL zero, null or drop"),
            ("SELECT bins FROM plant.heat", "declare a histogram"),
            ("SELECT p95 FROM plant.made", "for percentiles, declare a histogram of the column"),
            ("SELECT percentile(0.95) FROM plant.heat", "for percentiles, declare a histogram of the column"),
        ],
    )
    def test_what_is_refused(self, desk, sight, text, hint):
        with pytest.raises(QueryError) as caught:
            desk([sight("10:00:00")]).rows(text)
        assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("SELECT count FROM request", "did you mean requests? streams:"),
        ("SELECT count FROM requests.failure", "did you mean failures? metrics:"),
        ("SELECT count FROM requests GROUP BY regoin", "did you mean region? dimensions:"),
        ("SELECT sum(latency) FROM requests", "did you mean latency_ms? measures:"),
        ("SELECT average(latency_ms) FROM requests", "did you mean avg? values:"),
        ("SELECT count FROM requests ORDER BY cuont", "did you mean count? columns:"),
    ],
)
def test_a_name_that_is_nearly_right_is_suggested(shop, text, hint):
    with pytest.raises(QueryError) as caught:
        shop.rows(text)
    assert caught.value.hint.startswith(hint)
