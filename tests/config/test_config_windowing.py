"""Streaming windows as declared: what each kind has, what its columns may be, and the window made of it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config import Project, parse_aggregate, parse_project
from tidemill.model.conditions.declared import parse_condition
from tidemill.model.errors import ConfigError, InputError
from tidemill.model.names import RESULT_COLUMNS
from tidemill.model.streaming import Aggregate, Close, Function, LateBy, LatePolicy, WindowKind, WindowSpec
from tidemill.model.time import DAY, HOUR, MILLISECOND, MINUTE, SECOND

FILE = Path("tidemill.yaml")
TYPES = ("iso8601", "unixtimestamp_ms")

ORDERS = """\
version: 1
streams:
  orders:
    schema:
      id: string
      at: integer
      account: string
      shop.name: string
      shop__name: string
      units: integer
      amount: {type: decimal, scale: 2}
      weight: float
      gift: boolean
      tags: array
      more: any
      count: integer
      Bytes: integer
    identity: id
    event_time: {column: at, type: unixtimestamp_ms}
    tenant: account
"""
LINE = 1 + ORDERS.count("\n") + 1  # of the window in `declared`


def declared(window: str, extra: str = "") -> str:
    return f"{ORDERS}{extra}    windows:\n      w: {window}\n"


def load(text: str) -> Project:
    return parse_project(text, FILE, TYPES, {})


def spec(window: str, extra: str = "") -> WindowSpec:
    (found,) = load(declared(window, extra)).stream("orders").window_specs
    return found


def refused(window: str, extra: str = "") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(declared(window, extra))
    return caught.value


ALL = "count, sum, avg, min, max, first, last, stddev, p50 (p and a percentage, such as p99.9)"
COUNTED = (Aggregate("count", Function.COUNT),)


# -- kinds


@pytest.mark.parametrize("kind", ["tumbling", "fixed"])
def test_fixed_is_tumbling(kind: str) -> None:
    assert spec(f"{{kind: {kind}, size: 10s}}") == WindowSpec(
        "orders", "w", WindowKind.TUMBLING, size=10 * SECOND, step=10 * SECOND, aggregates=COUNTED
    )


def test_sliding() -> None:
    found = spec("{kind: sliding, size: 1h, step: 5m, group_by: [shop.name, gift]}")
    assert found == WindowSpec(
        "orders", "w", WindowKind.SLIDING, size=HOUR, step=5 * MINUTE, group_by=("shop.name", "gift"),
        aggregates=COUNTED,
    )  # fmt: skip


def test_session_of_a_key() -> None:
    exclusive = spec("{kind: session, gap: {duration: 30m, inclusive: false}}")
    assert (exclusive.gap, exclusive.inclusive) == (30 * MINUTE, False)
    assert spec("{kind: session, gap: {duration: 30m}}").inclusive
    assert spec("{kind: session, gap: 30m, key: units}") == WindowSpec(
        "orders", "w", WindowKind.SESSION, gap=30 * MINUTE, key=("units",), aggregates=COUNTED
    )


def test_v17_count_window() -> None:
    found = spec("{kind: count, n: 2, aggregates: {total: sum(units)}}")
    assert (found.kind, found.count, found.key) == (WindowKind.COUNT, 2, ())
    assert found.aggregates == (Aggregate("total", Function.SUM, "units", "integer"),)


def test_v20_state_window_grouped_by_another_column() -> None:
    found = spec("{kind: state, open: units = 1, emit: units = 4, group_by: shop.name}")
    assert (found.open, found.emit) == (parse_condition("units = 1"), parse_condition("units = 4"))
    assert (found.key, found.group_by, found.grouped_by) == ((), ("shop.name",), ("shop.name",))
    assert found.columns == ("shop.name", "units")


@pytest.mark.parametrize(
    ("written", "microseconds"),
    [
        ("1ms", MILLISECOND),
        ("250ms", 250 * MILLISECOND),
        ("7s", 7 * SECOND),
        ("90m", 90 * MINUTE),
        ("7h", 7 * HOUR),
        ("1d", DAY),
        ("2w", 14 * DAY),
        ("P1W", 7 * DAY),
        ("PT0.5S", SECOND // 2),
    ],
)
def test_windows_of_any_unit_from_milliseconds_to_weeks(written: str, microseconds: int) -> None:
    assert spec(f"{{kind: tumbling, size: {written}}}").size == microseconds
    assert spec(f"{{kind: session, gap: {written}}}").gap == microseconds


def test_windows_come_in_order_of_declaration_and_travel_to_other_processes() -> None:
    text = declared("{kind: count, n: 2}") + "      a: {kind: state, open: gift = true, emit: units > 1}\n"
    stream = load(text).stream("orders")
    assert [found.name for found in stream.window_specs] == ["w", "a"]
    there = pickle.loads(pickle.dumps(stream))  # noqa: S301
    assert there == stream
    assert there.window_specs == stream.window_specs
    assert pickle.loads(pickle.dumps(stream.window_specs)) == stream.window_specs  # noqa: S301


def test_windows_need_no_gate_and_no_event_time() -> None:
    text = declared("{kind: tumbling, size: 1s}").replace("identity: id", "gate: none")
    text = text.replace("    event_time: {column: at, type: unixtimestamp_ms}\n", "")
    stream = load(text).stream("orders")
    assert len(stream.window_specs) == 1
    assert not stream.in_event_time


@pytest.mark.parametrize(
    ("window", "message", "hint"),
    [
        ("{size: 1s}", "kind is missing", "tumbling | fixed | sliding | session | count | state"),
        ("{kind: tumblin, size: 1s}", "'tumblin' is not a valid kind", "did you mean tumbling?"),
        ("{kind: tumbling}", "size is missing", "a tumbling window needs size"),
        ("{kind: fixed}", "size is missing", "a fixed window needs size"),
        ("{kind: sliding}", "size and step are missing", "a sliding window needs size and step"),
        ("{kind: sliding, size: 1s}", "step is missing", "needs size and step"),
        ("{kind: session, key: id}", "gap is missing", "a session window needs gap, and may have a key"),
        ("{kind: count}", "n is missing", "a count window needs n"),
        ("{kind: state, open: units = 1}", "emit is missing", "a state window needs open and emit"),
        ("{kind: tumbling, size: 1s, gap: 1s, n: 1}", "a tumbling window has no gap or n", "needs size"),
        ("{kind: session, size: 1s}", "a session window has no size", "needs gap, and may have a key"),
        ("{kind: tumbling, size: 1s, key: id}", "a tumbling window has no key", "group_by separates results"),
        ("{kind: count, n: 2, step: 1s}", "a count window has no step", "a count window needs n"),
        ("{kind: sliding, size: 1s, step: 2s}", "a step of 2s leaves holes between windows of 1s", "shorter"),
        ("{kind: sliding, size: 1w, step: 1ms}", "every row would be in 604800000 windows", "20000 windows"),
        ("{kind: tumbling, size: 0s}", "w.size: a duration of 0 is too short", "longer"),
        ("{kind: tumbling, size: 10}", "w.size: duration 10 has no unit", "5s"),
        ("{kind: count, n: 0}", "w.n: 0 should be at least 1", "larger"),
        ("{kind: count, n: 1.5}", "w.n: 1.5 should be a whole number", "digits"),
        (
            "{kind: tumbling, size: 1s, every: 1s}",
            "w.every: unknown key",
            "keys: kind, size, step",
        ),
        ("{kind: sliding, size: 1s, step: rows}", "w.step: 'rows' is not a duration", "5s"),
        ("{kind: sliding, size: 1s, step: 1s, lookahead: 1s}", "has no lookahead", "needs size and step"),
        ("{kind: sliding, size: 1s, step: row, gap: 1s}", "has no gap", "may have lookahead and a key"),
        (
            "{kind: count, n: 2, late: {by: window}}",
            "no row is late for a count window",
            "sliding and session",
        ),
        ("{kind: count, n: 2, emit_on_open: false}", "has no emit_on_open", "may have a key"),
        ("tumbling", "'tumbling' should be a section of keys and values", "{key: value}"),
    ],
)
def test_mistake_in_a_kind(window: str, message: str, hint: str) -> None:
    error = refused(window)
    assert error.where == f"tidemill.yaml:{LINE}"
    assert error.message.startswith("streams.orders.windows.w")
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("aggregation", "'aggregation' is the name of the windows that become datasets", "another name"),
        ("Fast", "name 'Fast' is not allowed", "lower-case letter"),
        ("../x", "name '../x' is not allowed", "lower-case letter"),
    ],
)
def test_names_that_a_window_cannot_have(name: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(declared("{kind: count, n: 2}").replace("      w:", f"      {name}:"))
    assert caught.value.where == f"tidemill.yaml:{LINE}"
    assert message in caught.value.message
    assert hint in caught.value.hint


# -- late rows and closing


@pytest.mark.parametrize(
    ("written", "policy", "lateness"),
    [
        ("discard", LatePolicy.DISCARD, 0),
        ("next_window", LatePolicy.NEXT_WINDOW, 0),
        ("{policy: next_window}", LatePolicy.NEXT_WINDOW, 0),
        ("{policy: reemit, max_lateness: 1h}", LatePolicy.REEMIT, HOUR),
    ],
)
def test_late_rows(written: str, policy: LatePolicy, lateness: int) -> None:
    found = spec(f"{{kind: session, gap: 1m, late: {written}}}")
    assert (found.late, found.max_lateness) == (policy, lateness)
    assert found.late_by is LateBy.ROW
    by_window = spec("{kind: sliding, size: 1m, step: 1s, late: {by: window}}")
    assert (by_window.late, by_window.late_by) == (LatePolicy.DISCARD, LateBy.WINDOW)


def test_what_was_declared_before_there_were_more_choices_keeps_its_results() -> None:
    """The fingerprint of a declaration that says nothing of them is the one it always had."""
    reported = spec("{kind: tumbling, size: 1m}")
    assert reported.fingerprint == "3f1787aecc7de639"
    assert replace(reported, late_by=LateBy.WINDOW).fingerprint != reported.fingerprint


@pytest.mark.parametrize(
    ("having", "message", "hint"),
    [
        ("totl > 1", "column 'totl' at character 1 is not in the results", "total"),
        ("units > 1", "column 'units' at character 1 is not in the results", "total"),
        ("total = 'x'", "'total' is of type integer, and 'x' at character 9 is a string", "a number"),
    ],
)
def test_mistake_in_a_condition_on_results(having: str, message: str, hint: str) -> None:
    error = refused(f'{{kind: count, n: 2, key: id, aggregates: {{total: sum(units)}}, having: "{having}"}}')
    assert error.message.startswith("streams.orders.windows.w.having")
    assert message in error.message
    assert hint in error.hint


def test_a_condition_on_results_names_aggregates_and_groups() -> None:
    window = "{kind: count, n: 2, key: id, aggregates: {n2: count, m: avg(units)}, having: %s}"
    found = spec(window % "n2 > 1 and m < 2.5")
    assert found.having is not None
    assert found.having.columns == ("n2", "m")


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("reemit", "reemit needs max_lateness", "{policy: reemit, max_lateness: 1h}"),
        ("{policy: discard, max_lateness: 1h}", "discard has no max_lateness", "use policy: reemit"),
        ("{policy: next_window, max_lateness: 1h}", "next_window has no max_lateness", "use policy: reemit"),
        ("{by: time}", "'time' is not a valid by", "choices: row, window"),
        ("drop", "'drop' is not a valid policy", "choices: discard, next_window, reemit"),
    ],
)
def test_mistake_about_late_rows(written: str, message: str, hint: str) -> None:
    error = refused(f"{{kind: count, n: 2, late: {written}}}")
    assert error.message.startswith("streams.orders.windows.w.late")
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize("window", ["kind: tumbling, size: 2h", "kind: sliding, size: 2h, step: 1h"])
def test_window_that_closes_when_it_is_complete(window: str) -> None:
    found = spec(f"{{{window}, close: complete}}", "    aggregation_span: 1h\n")
    assert (found.close, found.late) == (Close.COMPLETE, LatePolicy.DISCARD)


@pytest.mark.parametrize(
    ("window", "extra", "message", "hint"),
    [
        ("{kind: tumbling, size: 1h, close: complete}", "", "w.close: complete windows need datasets",
         "add aggregation_span"),
        ("{kind: session, gap: 1h, close: complete}", "    aggregation_span: 1h\n",
         "a session window cannot close when it is complete", "tumbling and sliding"),
        ("{kind: count, n: 2, close: complete}", "    aggregation_span: 1h\n",
         "a count window cannot close when it is complete", "use close: watermark"),
        ("{kind: tumbling, size: 1h, close: complete, late: next_window}", "    aggregation_span: 1h\n",
         "a window that closes when it is complete has no late rows", "late_slices"),
        ("{kind: tumbling, size: 1h, close: never}", "", "'never' is not a valid close", "watermark,"),
    ],
)  # fmt: skip
def test_mistake_about_closing(window: str, extra: str, message: str, hint: str) -> None:
    error = refused(window, extra)
    assert message in error.message
    assert hint in error.hint


def test_a_broken_span_is_told_once() -> None:
    error = refused("{kind: tumbling, size: 1h, close: complete}", "    aggregation_span: soon\n")
    assert error.message == "streams.orders.aggregation_span: 'soon' is not a duration"


# -- aggregates


@pytest.mark.parametrize(
    ("text", "aggregate"),
    [
        ("count", Aggregate("x", Function.COUNT)),
        ("count(*)", Aggregate("x", Function.COUNT)),
        ("count()", Aggregate("x", Function.COUNT)),
        ("count(tags)", Aggregate("x", Function.COUNT, "tags", "array")),
        ("sum(units)", Aggregate("x", Function.SUM, "units", "integer")),
        ("sum(amount)", Aggregate("x", Function.SUM, "amount", "decimal", 2)),
        ("  AVG ( weight ) ", Aggregate("x", Function.AVG, "weight", "float")),
        ("stddev(amount)", Aggregate("x", Function.STDDEV, "amount", "decimal", 2)),
        ("min(shop.name)", Aggregate("x", Function.MIN, "shop.name", "string")),
        ("max(amount)", Aggregate("x", Function.MAX, "amount", "decimal", 2)),
        ("first(gift)", Aggregate("x", Function.FIRST, "gift", "boolean")),
        ("last(id)", Aggregate("x", Function.LAST, "id", "string")),
        ("p50(units)", Aggregate("x", Function.PERCENTILE, "units", "integer", percent="50")),
        ("p99.9(amount)", Aggregate("x", Function.PERCENTILE, "amount", "decimal", 2, "99.9")),
        ("p99.90(weight)", Aggregate("x", Function.PERCENTILE, "weight", "float", percent="99.9")),
        ("p100(units)", Aggregate("x", Function.PERCENTILE, "units", "integer", percent="100")),
        ("p0.001(units)", Aggregate("x", Function.PERCENTILE, "units", "integer", percent="0.001")),
    ],
)
def test_aggregate(text: str, aggregate: Aggregate) -> None:
    assert spec(f"{{kind: tumbling, size: 1s, aggregates: {{x: '{text}'}}}}").aggregates == (aggregate,)


def test_percentiles_are_exact() -> None:
    (found,) = spec("{kind: count, n: 2, aggregates: {x: p99.9(units)}}").aggregates
    assert found.quantile == Fraction(999, 1000)


@pytest.mark.parametrize("written", ["", ", aggregates: {}", ", aggregates: null"])
def test_without_aggregates_rows_are_counted(written: str) -> None:
    assert spec(f"{{kind: tumbling, size: 1s{written}}}").aggregates == COUNTED


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("summ(units)", "there is no function 'summ'", f"did you mean sum? functions: {ALL}"),
        ("percentile(units)", "there is no function 'percentile'", f"functions: {ALL}"),
        ("sum", "sum needs a column", "write sum(COLUMN)"),
        ("p50()", "p50 needs a column", "write p50(COLUMN)"),
        ("p0(units)", "there is no percentile p0", "more than p0, and p100 at most"),
        ("p100.1(units)", "there is no percentile p100.1", "p100 at most"),
        ("sum(units", "'sum(units' is not an aggregate", "functions: count, sum"),
        ("sum(units) + 1", "'sum(units) + 1' is not an aggregate", "functions: count, sum"),
        ("sum((units))", "'sum((units))' is not an aggregate", "functions: count, sum"),
        ("", "'' is not an aggregate", "functions: count, sum"),
        ("sum(unit)", "column 'unit' is not in the schema", "did you mean units?"),
        ("sum(*)", "column '*' is not in the schema", "columns that can be used here: at, units, amount"),
        ("sum(id)", "column 'id' is of type string", "sum is of integer, decimal or float"),
        ("avg(gift)", "column 'gift' is of type boolean", "avg is of integer, decimal or float"),
        ("stddev(more)", "column 'more' is of type any", "stddev is of integer, decimal or float"),
        ("p50(id)", "column 'id' is of type string", "a percentile is of integer, decimal or float"),
        ("min(gift)", "column 'gift' is of type boolean", "min is of integer, decimal, float or string"),
        ("first(tags)", "column 'tags' is of type array", "decimal, float, string or boolean"),
    ],
)  # fmt: skip
def test_mistake_in_an_aggregate(text: str, message: str, hint: str) -> None:
    error = refused(f"{{kind: tumbling, size: 1s, aggregates: {{x: '{text}'}}}}")
    assert error.where == f"tidemill.yaml:{LINE}"
    assert error.message == f"streams.orders.windows.w.aggregates.x: {message}"
    assert hint in error.hint


@given(st.text() | st.from_regex(r"\A *(sum|p[0-9.]{1,5}|count)\(?[a-z*]{0,3}\)? *\Z"))
def test_any_text_is_an_aggregate_or_an_error(text: str) -> None:
    try:
        found = parse_aggregate(text)
    except InputError:
        return
    assert (found.column is not None) or found.function is Function.COUNT
    assert (found.percent is not None) == (found.function is Function.PERCENTILE)


# -- keys, groups and the columns of the results


@pytest.mark.parametrize(
    ("window", "message", "hint"),
    [
        ("{kind: session, gap: 1s, key: user}", "w.key[0]: column 'user' is not in the schema", "account"),
        ("{kind: session, gap: 1s, key: amount}", "w.key[0]: column 'amount' is of type decimal",
         "a key is string, integer or boolean"),
        ("{kind: tumbling, size: 1s, group_by: [id, weight]}", "[1]: column 'weight' is of type float",
         "a group is string, integer or boolean"),
        ("{kind: count, n: 2, key: [id, id]}", "w.key: 'id' is listed 2 times", "list it once"),
        ("{kind: count, n: 2, key: account}", "w.key[0]: column 'account' is the tenant, and results are by",
         "leave it out"),
        ("{kind: count, n: 2, group_by: [id, account]}", "w.group_by[1]: column 'account' is the tenant",
         "leave it out"),
        ("{kind: tumbling, size: 1s, group_by: Bytes}",
         "column 'Bytes' would be kept in column Bytes, which is taken by the results' own column bytes",
         "rename"),
        ("{kind: tumbling, size: 1s, group_by: [shop.name, shop__name]}",
         "group_by[1]: column 'shop__name' would be kept in column shop__name, which is taken by",
         "rename"),
        ("{kind: tumbling, size: 1s, aggregates: {Rows: count}}",
         "w.aggregates.Rows: aggregate 'Rows' has the name of the results' own column rows", "another name"),
        ("{kind: tumbling, size: 1s, aggregates: {total: count, Total: sum(units)}}",
         "w.aggregates.Total: aggregate 'Total' has the name of aggregate 'total'", "another name"),
        ("{kind: tumbling, size: 1s, group_by: id, aggregates: {ID: count}}",
         "w.aggregates.ID: aggregate 'ID' has the name of column 'id'", "another name"),
        ("{kind: tumbling, size: 1s, group_by: count}",
         "aggregate 'count' has the name of column 'count'", "another name"),
        ("{kind: tumbling, size: 1s, aggregates: {a.b: count}}", "'a.b' cannot be the name of a", "letter"),
        ("{kind: tumbling, size: 1s, aggregates: {1st: count}}", "'1st' cannot be the name of a", "letter"),
    ],
)  # fmt: skip
def test_mistake_in_what_the_results_are_by(window: str, message: str, hint: str) -> None:
    error = refused(window)
    assert error.where == f"tidemill.yaml:{LINE}"
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize("column", RESULT_COLUMNS)
def test_no_aggregate_hides_a_column_of_the_results(column: str) -> None:
    error = refused(f"{{kind: count, n: 2, aggregates: {{{column}: count}}}}")
    assert f"has the name of the results' own column {column}" in error.message


def test_a_column_that_is_key_and_group_is_one_column() -> None:
    found = spec("{kind: count, n: 2, key: [units], group_by: [units, gift]}")
    assert found.grouped_by == ("units", "gift")


# -- conditions


@pytest.mark.parametrize(
    "condition",
    [
        "units = 1 and amount >= 2.5 or weight < 1e3",
        "id in ('a', 'b') and not shop.name is null",
        "gift = true or gift != false or gift is null",
        "tags is null or more is not null",
        "id > 'm'",
        "id like 'a%' or shop.name not ilike '%x' or units between 1 and 2.5",
        "gift in (true) or gift > false",
    ],
)
def test_conditions_that_suit_the_columns(condition: str) -> None:
    text = f'{{kind: state, open: "{condition}", emit: units = 4, key: id}}'
    assert spec(text).open == parse_condition(condition)


@pytest.mark.parametrize(
    ("condition", "message", "hint"),
    [
        ("units = ", "unexpected end of the condition at character 8", "expected a string in quotes"),
        ("units => 1", "unexpected '>' at character 8", "a number"),
        ("unit = 1", "column 'unit' at character 1 is not in the schema", "did you mean units?"),
        ("units = 1 and (gone is null)", "column 'gone' at character 16 is not in the schema", "columns"),
        ("units = 'x'", "'units' is of type integer, and 'x' at character 9 is a string",
         "compare it with a number without quotes"),
        ("units in (1, true)", "'units' is of type integer, and true at character 14 is a boolean", "a num"),
        ("units like '1%'", "'units' is of type integer, and '1%' at character 12 is a string", "a number"),
        ("id = 1", "'id' is of type string, and 1 at character 6 is a number", "in quotes, such as 'eu'"),
        ("id in ('a') or id > 2", "'id' is of type string, and 2 at character 21 is a number", "a string"),
        ("gift = 'true'", "'gift' is of type boolean, and 'true' at character 8 is a string", "true or fal"),
        ("more = 1", "column 'more' at character 1 is of type any", "others can be IS NULL"),
        ("tags = 'x'", "column 'tags' at character 1 is of type array", "string or boolean"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["open", "emit"])
def test_mistake_in_a_condition(key: str, condition: str, message: str, hint: str) -> None:
    other = "emit" if key == "open" else "open"
    error = refused(f'{{kind: state, {key}: "{condition}", {other}: units = 4}}')
    assert error.where == f"tidemill.yaml:{LINE}"
    assert error.message == f"streams.orders.windows.w.{key}: {message}"
    assert hint in error.hint


def test_every_mistake_is_told_at_its_line() -> None:
    error = refused(
        "\n        kind: state\n        open: unit = 1\n        emit: units = 'x'\n"
        "        key: user\n        aggregates:\n          a: sum(id)\n          b: smu(units)"
    )
    assert error.hint == "5 problems, one on each line"
    lines = f"{error.where}: {error.message}".splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [f"tidemill.yaml:{LINE + 2}", "streams.orders.windows.w.open"],
        [f"tidemill.yaml:{LINE + 3}", "streams.orders.windows.w.emit"],
        [f"tidemill.yaml:{LINE + 4}", "streams.orders.windows.w.key[0]"],
        [f"tidemill.yaml:{LINE + 6}", "streams.orders.windows.w.aggregates.a"],
        [f"tidemill.yaml:{LINE + 7}", "streams.orders.windows.w.aggregates.b"],
    ]


def test_columns_with_a_broken_declaration_are_not_told_twice() -> None:
    text = declared("{kind: count, n: 2, key: units, aggregates: {x: sum(units)}}")
    with pytest.raises(ConfigError) as caught:
        load(text.replace("units: integer", "units: int"))
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith("streams.orders.schema.units")
