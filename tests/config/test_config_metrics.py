"""Metrics of every kind: what can be declared, and what is wrong with one that cannot, with its line."""

from __future__ import annotations

import pickle
from decimal import Decimal
from pathlib import Path

import pytest

from tidemill.config import Counter, Gauge, Histogram, Ratio, StateMetric, Stream, parse_project
from tidemill.config.metrics import MAX_BOUNDS, filter_of
from tidemill.model.errors import ConfigError
from tidemill.model.metrics import CHANGE, TransitionRule, log_scaled
from tidemill.model.names import column_name
from tidemill.outputs.rollups.spec import measure_fields, spec_for

FILE = Path("tidemill.yaml")

STREAM = """\
version: 1
streams:
  orders:
    schema:
      id: string
      ts: integer
      order: string
      status: string
      step: integer
      open: boolean
      shop: string
      state: string
      price: {type: decimal, scale: 2}
      weight: float
      tags: array
      user: string
    event_time: {column: ts, type: unixtimestamp_ms}
    identity: id
    tenant: user
    metrics:
      METRIC
      orders: {kind: counter}
      paid: {kind: counter, filter: status = 'paid'}
      follow: {kind: state, object: order, state: status, transitions: {lost: {from: any, to: gone}}}
      level: {kind: gauge, value: step}
      share: {kind: ratio, numerator: paid, denominator: orders}
"""


def stream(metric: str) -> Stream:
    text = STREAM.replace("METRIC", f"one: {metric}")
    return parse_project(text, FILE, ("unixtimestamp_ms",), {}).stream("orders")


def refused(metric: str, text: str = STREAM) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_project(text.replace("METRIC", f"one: {metric}"), FILE, ("unixtimestamp_ms",), {})
    return caught.value


# -- what can be declared


def test_counter_with_a_filter_and_a_limit() -> None:
    declared = stream(
        "{kind: counter, dimensions: [shop], measures: [price], filter: price >= 0.5, max_cardinality: 10}"
    ).metrics["one"]
    assert isinstance(declared, Counter)
    condition = filter_of(declared)
    assert condition is not None
    assert condition.columns == ("price",)
    assert (declared.numbers, declared.max_cardinality) == (("price",), 10)


@pytest.mark.parametrize("policy", ["avg", "min", "max", "first", "last"])
def test_gauge_by_policy(policy: str) -> None:
    declared = stream(f"{{kind: gauge, value: price, policy: {policy}}}").metrics["one"]
    assert isinstance(declared, Gauge)
    assert (declared.numbers, declared.policy) == (("price",), policy)


def test_gauge_shows_the_last_value_unless_told() -> None:
    declared = stream("{kind: gauge, value: step}").metrics["one"]
    assert isinstance(declared, Gauge)
    assert declared.policy == "last"


def test_histogram_has_an_accuracy_of_one_percent_unless_told() -> None:
    declared = stream("{kind: histogram, value: price}").metrics["one"]
    assert isinstance(declared, Histogram)
    assert declared.bins(2) is log_scaled(Decimal("0.01"))


def test_histogram_reads_numbers_without_a_detour_over_binary_fractions() -> None:
    declared = stream("{kind: histogram, value: price, accuracy: 0.1}").metrics["one"]
    assert isinstance(declared, Histogram)
    assert declared.bins(2) is log_scaled(Decimal("0.1"))


def test_histogram_with_declared_bounds() -> None:
    declared = stream("{kind: histogram, value: price, bounds: [-1, 0, 0.1, 2.5]}").metrics["one"]
    assert isinstance(declared, Histogram)
    assert declared.bins(2).bounds == (-100, 0, 10, 250)


def test_state_counts_every_change_and_the_declared_ones() -> None:
    declared = stream(
        "{kind: state, object: order, state: status, transitions: "
        "{lost: {from: [new, paid], to: gone, until: [sent, gone]}, back: {from: any}, next: {}}}"
    ).metrics["one"]
    assert isinstance(declared, StateMetric)
    assert declared.rules == (
        TransitionRule(CHANGE),
        TransitionRule("back", from_last=False),
        TransitionRule(
            "lost", from_last=False, from_states=("new", "paid"), to=("gone",), until=("sent", "gone")
        ),
        TransitionRule("next"),
    )


@pytest.mark.parametrize("state", ["status", "step", "open"])
@pytest.mark.parametrize("whose", ["order", "ts"])
def test_objects_are_told_by_text_or_integers_and_states_are_also_booleans(whose: str, state: str) -> None:
    declared = stream(f"{{kind: state, object: {whose}, state: {state}}}")
    following = spec_for(declared).metric("one").following
    assert following is not None
    assert declared.key_columns[following.object] == whose
    assert declared.key_columns[following.state] == state


def test_ratio_of_counters_and_transitions() -> None:
    declared = stream(
        "{kind: ratio, numerator: [paid, {metric: follow, transition: lost, from: new, to: [gone]}], "
        "denominator: {metric: follow, transition: change, from: (none)}}"
    ).metrics["one"]
    assert isinstance(declared, Ratio)
    assert [term.metric for term in declared.terms] == ["paid", "follow", "follow"]
    assert declared.numerator[1].from_ == ("new",)
    assert declared.denominator[0].from_ == ("(none)",)


def test_what_metrics_read_is_each_column_once() -> None:
    declared = stream("{kind: gauge, value: price, dimensions: [shop], filter: open = true and price > 1}")
    assert declared.number_columns == ("price", "step")
    assert declared.key_columns == ("shop", "order", "status", "open")


def test_metrics_travel_to_other_processes() -> None:
    declared = stream("{kind: histogram, value: price, bounds: [1]}")
    assert pickle.loads(pickle.dumps(declared)) == declared  # noqa: S301


# -- what cannot

_DECIMAL = "declare a decimal with a scale, such as {type: decimal, scale: 3}"
_OF_A_RATIO = "a ratio is made of counters and of transitions of state metrics"


@pytest.mark.parametrize(
    ("metric", "message", "hint"),
    [
        ("{kind: summary}", "kind: 'summary' is not a valid kind", "counter, gauge, histogram, state, ratio"),
        ("{kind: gauge}", ": value is missing", "add value"),
        ("{kind: gauge, value: prise}", "value: column 'prise' is not in the schema", "did you mean price?"),
        ("{kind: gauge, value: weight}", "value: column 'weight' is of type float", _DECIMAL),
        ("{kind: gauge, value: status}", "value: column 'status' is of type string", "integer or decimal"),
        ("{kind: gauge, value: step, policy: p99}", "policy: 'p99' is not a valid policy", "avg, min, max"),
        ("{kind: gauge, value: step, measures: [ts]}", "measures: unknown key", "keys: kind, value, policy"),
        ("{kind: histogram, value: weight}", "value: column 'weight' is of type float", _DECIMAL),
        (
            "{kind: histogram, value: step, bounds: [1], accuracy: 0.01}",
            ": bounds and accuracy cannot be combined",
            "use one of them",
        ),
        (
            "{kind: histogram, value: step, accuracy: 0.0001}",
            "accuracy: an accuracy of 0.0001 is out of range",
            "use 0.0005 to 0.5",
        ),
        ("{kind: histogram, value: step, accuracy: fine}", "accuracy: 'fine' should be a number", "0.5"),
        ("{kind: histogram, value: step, accuracy: true}", "accuracy: true is not a number", "0.5"),
        ("{kind: histogram, value: step, bounds: []}", "bounds: a list should not be empty", "at least one"),
        ("{kind: histogram, value: step, bounds: [x]}", "bounds[0]: 'x' should be a number", "0.5"),
        ("{kind: histogram, value: step, bounds: [1, 1]}", "bounds: bounds do not ascend", "each once"),
        (
            f"{{kind: histogram, value: step, bounds: {[*range(MAX_BOUNDS + 1)]}}}",
            "bounds: a list has more than 1000 items",
            "leave some out",
        ),
        (
            "{kind: histogram, value: price, bounds: [1, 100000000000000000]}",
            "bounds[1]: no value of 'price' is as far from 0 as 100000000000000000",
            "what is above the last bound has a bin",
        ),
        (
            "{kind: histogram, value: price, bounds: ['1e-99999999']}",
            "bounds[0]: the number 1E-9",
            "40 digits",
        ),
        ("{kind: state, object: order}", ": state is missing", "add state"),
        ("{kind: state, object: open, state: status}", "object: column 'open' is of type boolean", "integer"),
        ("{kind: state, object: ordr, state: status}", "object: column 'ordr' is not in", "mean order?"),
        ("{kind: state, object: order, state: price}", "state: column 'price' is of type decimal", "boolean"),
        ("{kind: state, object: order, state: weight}", "state: column 'weight' is of type float", "boolean"),
        ("{kind: state, object: order, state: 7}", "state: 7 should be text", "quotes"),
        (
            "{kind: state, object: order, state: order}",
            "state: column 'order' cannot be both the object and its state",
            "what state the object is in",
        ),
        (
            "{kind: state, object: order, state: status, dimensions: [shop, state]}",
            "dimensions[1]: 'state' is what queries of a state metric call something else",
            "queries know state, from_state or to_state",
        ),
        ("{kind: counter, max_cardinality: 0}", "max_cardinality: 0 should be at least 1", "larger"),
        (
            "{kind: counter, max_cardinality: 9999999}",
            "max_cardinality: 9999999 should be at most",
            "smaller",
        ),
        (
            "{kind: counter, max_cardinality: 10}",
            "max_cardinality: there is no dimension that could say __other__",
            "add a dimension of type string",
        ),
        (
            "{kind: gauge, value: ts, max_cardinality: 10, dimensions: [step, open]}",
            "max_cardinality: there is no dimension that could say __other__",
            "add a dimension of type string",
        ),
        (
            "{kind: counter, filter: status =}",
            "filter: unexpected end of the condition at character 9",
            "expected a string in quotes",
        ),
        ("{kind: counter, filter: statu = 'a'}", "filter: column 'statu' at character 1 is not in", "status"),
        ("{kind: counter, filter: weight > 1}", "filter: column 'weight' at character 1 is of", _DECIMAL),
        ("{kind: counter, filter: weight is null}", "filter: column 'weight' at character 1 is of", _DECIMAL),
        (
            "{kind: counter, filter: tags is null}",
            "filter: column 'tags' at character 1 is of type",
            "decimal",
        ),
        (
            "{kind: counter, filter: step = '1'}",
            "filter: 'step' is of type integer, and '1' at character 8 is a string",
            "number",
        ),
        ("{kind: ratio, numerator: paid}", ": denominator is missing", "add denominator"),
        ("{kind: ratio, numerator: [], denominator: paid}", "numerator: a list should not be empty", "one"),
        (
            "{kind: ratio, numerator: payed, denominator: [orders]}",
            "numerator[0]: there is no metric 'payed'",
            "did you mean paid? counters and state metrics: orders, paid, follow",
        ),
        (
            "{kind: ratio, numerator: level, denominator: paid}",
            "numerator[0]: 'level' is a gauge",
            _OF_A_RATIO,
        ),
        (
            "{kind: ratio, numerator: paid, denominator: [paid, share]}",
            "denominator[1]: 'share' is a ratio",
            _OF_A_RATIO,
        ),
        ("{kind: ratio, numerator: one, denominator: paid}", "numerator[0]: 'one' is a ratio", _OF_A_RATIO),
        (
            "{kind: ratio, numerator: {metric: follow, transition: lots}, denominator: orders}",
            "numerator[0].transition: 'follow' has no transition 'lots'",
            "did you mean lost? transitions: change, lost",
        ),
        *(
            (
                f"{{kind: ratio, numerator: {{metric: paid, {key}: x}}, denominator: orders}}",
                f"numerator[0].{key}: 'paid' is a counter and has no transitions",
                f"leave {key} out, or name a state metric",
            )
            for key in ("transition", "from", "to")
        ),
        (
            "{kind: ratio, numerator: {metric: follow, from: [a, a]}, denominator: orders}",
            "numerator[0].from: 'a' is listed 2 times",
            "once",
        ),
        (
            "{kind: ratio, numerator: {metric: follow, to: (none)}, denominator: orders}",
            "numerator[0].to: no object is ever seen in (none)",
            "leave it out",
        ),
        (
            "{kind: ratio, numerator: {metrics: follow, metric: paid}, denominator: orders}",
            "numerator.metrics: unknown key",
            "did you mean metric? keys: metric, transition, from, to",
        ),
        (
            "{kind: ratio, numerator: paid, denominator: orders, filter: a = 1}",
            "filter: unknown key",
            "keys: kind, numerator, denominator",
        ),
    ],
)
def test_mistake(metric: str, message: str, hint: str) -> None:
    error = refused(metric)
    assert error.where == "tidemill.yaml:21"
    at = message if message.startswith(":") else f".{message}"
    assert error.message.startswith(f"streams.orders.metrics.one{at}"), error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("transition", "message", "hint"),
    [
        ("x: {from: []}", "x.from: a list should not be empty", "at least one"),
        ("x: {to: []}", "x.to: a list should not be empty", "at least one"),
        ("x: {until: []}", "x.until: a list should not be empty", "at least one"),
        ("x: {from: [a, b, a]}", "x.from: 'a' is listed 2 times", "once"),
        ("x: {to: [a, a]}", "x.to: 'a' is listed 2 times", "once"),
        ("x: {until: [a, a]}", "x.until: 'a' is listed 2 times", "once"),
        ("x: {from: [1]}", "x.from[0]: 1 should be text", "put quotes around it"),
        ("x: {from: 1}", "x.from: 1 should be text", "put quotes around it"),
        ("x: {to: [true]}", "x.to[0]: True should be text", "put quotes around it"),
        ("x: {until: 2}", "x.until: 2 should be text", "put quotes around it"),
        ("x: {from: [(none)]}", "x.from: no object is ever seen in (none)", "with from: last"),
        ("x: {to: (none)}", "x.to: no object is ever seen in (none)", "leave it out"),
        ("x: {form: last}", "x.form: unknown key", "did you mean from? keys: from, to, until"),
        ("x: last", "x: 'last' should be a section", "key: value"),
        (
            "change: {to: a}",
            "change: 'change' is reserved: those transitions are always counted",
            "other",
        ),
        ("To-x: {to: a}", "To-x: name 'To-x' is not allowed", "lower-case"),
    ],
)
def test_mistake_about_a_transition(transition: str, message: str, hint: str) -> None:
    error = refused(f"{{kind: state, object: order, state: status, transitions: {{{transition}}}}}")
    assert error.where == "tidemill.yaml:21"
    assert error.message.startswith(f"streams.orders.metrics.one.transitions.{message}")
    assert hint in error.hint


def test_all_mistakes_of_a_metric_are_told_at_once() -> None:
    error = refused("{kind: gauge, value: weight, dimensions: [price], filter: statu = 'x'}")
    assert [line.partition("metrics.one.")[2].partition(":")[0] for line in str(error).splitlines()] == [
        "value", "dimensions[0]", "filter",
    ]  # fmt: skip


def test_nothing_is_said_about_ratios_of_metrics_that_are_broken_themselves() -> None:
    text = STREAM.replace("{kind: counter, filter: status = 'paid'}", "{kind: counter, filter: 7}")
    text = text.replace("{lost: {from: any, to: gone}}", "{lost: {from: [], to: gone}}")
    error = refused(
        "{kind: ratio, numerator: {metric: follow, transition: lost}, denominator: [paid, gone]}",
        text.replace("orders: {kind: counter}", "gone: {kind: nothing}"),
    )
    said = [line.partition("metrics.")[2].partition(":")[0] for line in str(error).splitlines()]
    assert said == ["gone.kind", "paid.filter", "follow.transitions.lost.from", "share.denominator[0]"]


# -- columns of the table

COLUMNS = """\
version: 1
streams:
  s:
    schema: {id: string, state: object, histogram: object, FIELDS}
    identity: id
    metrics:
      a: FIRST
      b: SECOND
"""


def columns(fields: str, first: str, second: str) -> str:
    return COLUMNS.replace("FIELDS", fields).replace("FIRST", first).replace("SECOND", second)


@pytest.mark.parametrize(
    ("fields", "first", "second", "message", "taken"),
    [
        (
            "state.is: string, o: string",
            "{kind: counter, dimensions: [state.is]}",
            "{kind: state, object: o, state: id}",
            "a.dimensions: dimension 'state.is' would be kept in column state__is",
            "the table's own column state__is",
        ),
        (
            "histogram.bins: string, n: integer",
            "{kind: histogram, value: n}",
            "{kind: counter, dimensions: [histogram.bins]}",
            "b.dimensions: dimension 'histogram.bins' would be kept in column histogram__bins",
            "the table's own column histogram__bins",
        ),
        (
            "n: integer, N: integer",
            "{kind: gauge, value: n}",
            "{kind: histogram, value: N}",
            "b.value: value 'N' would be kept in column N__count",
            "value 'n'",
        ),
        (
            "n: integer, n__last_time: string",
            "{kind: counter, dimensions: [n__last_time], measures: [n]}",
            "{kind: gauge, value: n}",
            "a.measures: measure 'n' would be kept in column n__last_time",
            "dimension 'n__last_time'",
        ),
        (
            "tenant: string",
            "{kind: counter}",
            "{kind: counter, dimensions: [tenant]}",
            "b.dimensions: dimension 'tenant' would be kept in column tenant",
            "the table's own column tenant",
        ),
    ],
)
def test_no_two_fields_share_a_column_of_the_rollups(
    fields: str, first: str, second: str, message: str, taken: str
) -> None:
    error = refused("", columns(fields, first, second))
    said = str(error).split("streams.s.metrics.")[1]
    assert said.startswith(f"{message}, which is taken by {taken}"), said
    assert "rename one of the two fields in the feed" in f"{error.message} {error.hint}"


@pytest.mark.parametrize(
    ("fields", "first", "second"),
    [
        (
            "state.is: string, n: integer",
            "{kind: counter, dimensions: [state.is]}",
            "{kind: gauge, value: n}",
        ),
        (
            "n: integer, n__last: string",
            "{kind: counter, measures: [n]}",
            "{kind: counter, dimensions: [n__last]}",
        ),
        ("n: integer", "{kind: gauge, value: n}", "{kind: counter, dimensions: [n], measures: [n]}"),
    ],
)
def test_columns_that_no_metric_of_the_stream_has_are_free(fields: str, first: str, second: str) -> None:
    assert parse_project(columns(fields, first, second), FILE, (), {}).streams


def test_the_columns_that_are_checked_are_those_of_the_table() -> None:
    """Every column of a number of a gauge is refused as a dimension, and every other one of the table."""
    declared = stream("{kind: histogram, value: step, dimensions: [shop]}")
    spec = spec_for(declared)
    gauge = spec.metric("level")
    kept = [field.name for field in measure_fields(gauge.measures[0], ends=True)]
    own = [name for name in spec.schema.names if name not in (*kept, column_name("shop"))]
    assert len(kept) == 10
    for name in (*kept, *own):
        text = STREAM.replace("      shop: string", f"      shop: string\n      {name}: string")
        error = refused(f"{{kind: histogram, value: step, dimensions: [{name}]}}", text)
        assert f"would be kept in column {name}" in error.message, name
