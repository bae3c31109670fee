"""What a query text can get wrong: each error points at the character and names what could stand there."""

from __future__ import annotations

import pytest

from tidemill.model.errors import QueryError


@pytest.fixture
def refused(desk, event):
    asked = desk([event("10:00:00", latency=1)])

    def refuse(text: str) -> QueryError:
        with pytest.raises(QueryError) as caught:
            asked.ask(text)
        return caught.value

    return refuse


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        ("SELECT count FROM nothing", 18, "streams: bare, many, one, plant, requests"),
        ("SELECT count FROM requests.nothing", 18, "metrics: failures, requests"),
        ("SELECT count FROM many", 18, "FROM one of many.first, many.second"),
        ("SELECT count FROM bare", 18, "declare a metric"),
        (
            "SELECT median FROM requests",
            7,
            "values: count, count(*), count_all, rate, sum(measure), min(measure), max(measure)",
        ),
        ("SELECT sum FROM requests", 7, "write sum(m) with m one of: latency_ms, price"),
        ("SELECT sum(api) FROM requests", 11, "measures: latency_ms, price"),
        ("SELECT sum(x) FROM requests.failures", 11, "there are no measures"),
        ("SELECT count(api) FROM requests", 13, "write count"),
        ("SELECT count FROM requests GROUP BY apy", 36, "dimensions: api, http.status, ok, region, tenant"),
        ("SELECT count FROM requests WHERE latency_ms > 3", 33, "dimensions: api"),
        ("SELECT count FROM requests WHERE NOT (api = 'a' OR x IS NULL)", 51, "dimensions: api"),
        ("SELECT count FROM requests WHERE http.status = '200'", 47, "compare it with a number"),
        ("SELECT count FROM requests WHERE api = 5", 39, "compare it with a string in quotes"),
        ("SELECT count FROM requests WHERE ok = 1", 38, "compare it with true or false"),
        ("SELECT count FROM requests WHERE http.status = true", 47, "compare it with a number"),
        ("SELECT count FROM requests WHERE ok LIKE 'x'", 41, "compare it with true or false"),
        ("SELECT count FROM requests WHERE http.status IN (1, 'x')", 52, "compare it with a number"),
        ("SELECT count FROM requests WHERE api LIKE 'a\\\\'", 42, "write \\\\\\\\ for one backslash"),
        ("SELECT count FROM requests WHERE http.status = 1.5", 47, "compare it with a whole number"),
        (
            "SELECT count FROM requests WHERE http.status = 9223372036854775808",
            47,
            "use a number from -9223372036854775808",
        ),
        ("SELECT count FROM requests LIMIT -1", 33, "use 0 or more"),
        ("SELECT count FROM requests USING ROLLUP 2m", 40, "levels: 5s, 1m, 1h, 1d, 7d"),
        ("SELECT count FROM requests INTERVAL 5x", 36, "use 250ms, 5s, 1m"),
        ("SELECT count FROM requests BETWEEN 2024-13-01 AND 2024-12-01", 35, "use RFC 3339"),
        ("SELECT count FROM requests BETWEEN 2024-02-01 AND 'soon'", 50, "use RFC 3339"),
        ("SELECT count FROM requests BETWEEN 2024-02-01 AND 2024-01-01", 50, "start <= end"),
        ("SELECT count FROM requests SINCE 9999999d", 33, "use a shorter duration"),
        ("SELECT count FROM requests SINCE 1h SINCE 2h", 36, "each clause once"),
        ("SELECT count FROM requests USING ROLLUP 1m INTERVAL 1h", 43, "each clause once"),
        ("SELECT count, count FROM requests", 14, "give one another name with AS"),
        ("SELECT count AS api FROM requests GROUP BY api", 16, "give one another name with AS"),
        ("SELECT count AS bucket FROM requests USING ROLLUP 1m", 16, "give one another name with AS"),
        ("SELECT count FROM requests GROUP BY api, api", 41, "give one another name with AS"),
        ("SELECT count FROM requests ORDER BY bucket", 36, "columns: count"),
        ("SELECT count FROM requests ORDER BY api", 36, "columns: count"),
        (
            "SELECT count FROM requests USING ROLLUP 1m GROUP BY api ORDER BY count FORMAT series",
            65,
            "columns: api",
        ),
        ("SELECT rate FROM requests", 7, "add BETWEEN, SINCE, USING ROLLUP or INTERVAL"),
        ("SELECT count FROM requests FILL zero", 27, "add USING ROLLUP 5s|1m|1h|1d|7d or INTERVAL"),
        ("SELECT count FROM requests EDGES null", 27, "add USING ROLLUP"),
        ("SELECT count FROM requests FORMAT series", 27, "add USING ROLLUP"),
    ],
)
def test_meaning(refused, text, position, hint):
    error = refused(text)
    assert error.position == position
    assert hint in error.hint


def test_the_caret_stands_under_the_character(refused):
    error = refused("SELECT count\nFROM requests\nGROUP BY apy")
    assert error.message.splitlines()[1:] == ["  GROUP BY apy", "           ^"]
    assert error.where == "query, character 37"


def test_long_lines_are_cut_around_the_caret(refused):
    error = refused(f"SELECT count FROM requests WHERE api = '{'x' * 500}' GROUP BY apy")
    line, caret = error.message.splitlines()[1:]
    assert line.endswith("GROUP BY apy")
    assert line[caret.index("^") :] == "apy"
    assert len(line) < 100


def test_deep_parentheses_and_long_chains_are_fine(desk, event):
    asked = desk([event("10:00:00")])
    assert asked.rows(f"SELECT count FROM requests WHERE {'(' * 3000}api = '/a'{')' * 3000}") == [(1,)]
    chain = " OR ".join(["api = '/a'"] * 900)
    assert asked.rows(f"SELECT count FROM requests WHERE {chain}") == [(1,)]
    values = ", ".join(["'/a'"] * 1000)
    assert asked.rows(f"SELECT count FROM requests WHERE api IN ({values})") == [(1,)]


@pytest.mark.parametrize(
    "evil",
    [
        "' OR 1=1 --",
        "'; DROP TABLE hits; --",
        "\"; ATTACH 'x' AS y; --",
        "$files",
        "?",
        "') OR ('1'='1",
        "\\",
    ],
)
def test_injection_in_strings_is_just_a_value(desk, event, evil):
    asked = desk([event("10:00:00"), event("10:00:01", api=evil)])
    quoted = "'" + evil.replace("\\", "\\\\").replace("'", "''") + "'"
    assert asked.rows(f"SELECT count FROM requests WHERE api = {quoted}") == [(1,)]
    assert asked.rows(f"SELECT count FROM requests WHERE api IN ({quoted})") == [(1,)]
    assert asked.rows("SELECT count FROM requests", tenant=evil) == [(0,)]


@pytest.mark.parametrize(
    "evil", ['api" OR 1=1 --', "count", "api) FROM read_csv('/etc/passwd') --", '"', "``"]
)
def test_injection_in_names_is_an_unknown_name_or_just_a_label(desk, event, evil):
    asked = desk([event("10:00:00")])
    for clause in (f"WHERE `{evil}` = 'x'", f"GROUP BY `{evil}`", f"GROUP BY api ORDER BY `{evil}x`"):
        with pytest.raises(QueryError):
            asked.ask(f"SELECT count FROM requests {clause}")
    with pytest.raises(QueryError):
        asked.ask(f"SELECT count FROM `{evil}`")
    answer = asked.ask(f"SELECT count AS `{evil}` FROM requests")
    assert answer.table.to_pylist() == [{evil.replace("``", "`"): 1}]
