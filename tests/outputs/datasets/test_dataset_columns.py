"""Typed columns of a dataset are what plain Python reads from the payloads, value by value: every type, any
spelling of the same JSON, and values that a schema declared since cannot hold."""

from __future__ import annotations

import json
from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples
from tests.support.oracles.project import section
from tests.support.oracles.spelling import respelled
from tests.support.oracles.stream import OracleField, OracleStream
from tests.support.strategies.feeds import events, spoils

from tidemill.config import Stream
from tidemill.formats.decide import Number, parse
from tidemill.formats.json_values import at
from tidemill.formats.payload_columns import columns_of, typed
from tidemill.model.errors import StorageError
from tidemill.outputs.datasets.dataset import dataset_schema

FIELDS = {
    "event_id": OracleField("string", required=True),
    "n": OracleField("integer"),
    "price": OracleField("decimal", scale=2),
    "fine": OracleField("decimal", scale=15),
    "whole": OracleField("decimal", scale=0),
    "ratio": OracleField("float"),
    "flag": OracleField("boolean"),
    "name": OracleField("string"),
    "body": OracleField("object"),
    "body.price": OracleField("decimal", scale=3),
    "body.deep.er": OracleField("string"),
    "tags": OracleField("array"),
    "free": OracleField("any"),
    "lone.some": OracleField("integer"),
}
ORACLE = OracleStream(name="s", fields=FIELDS, identity=("event_id",), tenant_value="one")
STREAM = Stream.model_validate({"name": "s", **section(ORACLE)})
COLUMNS = columns_of(STREAM)


def column(rows: list[str], name: str) -> list[object]:
    read = typed(COLUMNS, pa.array(rows, pa.string()))
    kinds = dataset_schema(STREAM)
    array = read.arrays[[c.name for c in COLUMNS.columns].index(name)]
    array.validate(full=True)
    assert array.type == kinds.field(name).type
    values: list[object] = array.to_pylist()
    return values


def misfits(rows: list[str]) -> dict[str, list[int]]:
    read = typed(COLUMNS, pa.array(rows, pa.string()))
    return {name: at_rows.tolist() for name, at_rows in read.misfits}


def expected(found: object, declared: OracleField) -> tuple[object, bool]:
    """The slow model: the value of a column, and whether the type could hold it."""
    if found is None:
        return None, True
    match declared.type:
        case "string":
            return (found, True) if isinstance(found, str) else (None, False)
        case "boolean":
            return (found, True) if isinstance(found, bool) else (None, False)
        case "integer":
            value = found.integer() if isinstance(found, Number) else None
            return value, value is not None
        case "decimal":
            scale = declared.scale or 0
            scaled = found.scaled(scale) if isinstance(found, Number) else None
            return None if scaled is None else Decimal(scaled).scaleb(-scale), scaled is not None
        case "float":
            return (float(found.text), True) if isinstance(found, Number) else (None, False)
        case "object":
            return (found, True) if isinstance(found, dict) else (None, False)
        case "array":
            return (found, True) if isinstance(found, list) else (None, False)
    return found, True


def as_values(value: object) -> object:
    """JSON with numbers as they were spelled, comparable."""
    if isinstance(value, Number):
        return ("number", value.text)
    if isinstance(value, dict):
        return {key: as_values(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_values(inner) for inner in value]
    return value


def assert_as_the_model_says(records: list[str]) -> None:
    read = typed(COLUMNS, pa.array(records, pa.string()))
    wrong: dict[str, list[int]] = {}
    arrays = dict(zip([c.name for c in COLUMNS.columns], read.arrays, strict=True))
    values = {name: array.to_pylist() for name, array in arrays.items()}
    for row, record in enumerate(records):
        whole = parse(record.encode(), 64)
        for name, array in arrays.items():
            value, fits = expected(at(whole, name), FIELDS[name])
            got = values[name][row]
            if FIELDS[name].type in ("object", "array", "any") and got is not None:
                assert got in record
                got = parse(f'{{"v":{got}}}'.encode(), 64)["v"]
            assert as_values(got) == as_values(value), (name, record)
            assert array.type == dataset_schema(STREAM).field(name).type
            if not fits:
                wrong.setdefault(name, []).append(row)
    assert {name: rows.tolist() for name, rows in read.misfits} == wrong


@examples(150)
@given(st.data())
def test_every_spelling_of_every_type_is_read_as_the_model_reads_it(data: st.DataObject) -> None:
    random = Random(data.draw(st.integers(0, 2**32)))
    schema_changes = [way for rule, ways in spoils(ORACLE).items() if rule == "schema" for way in ways]
    records = []
    for number in range(data.draw(st.integers(1, 6))):
        event = data.draw(events(ORACLE, number))
        if random.random() < 0.4:
            random.choice(schema_changes)(event)
        records.append(respelled(event, random))
    assert_as_the_model_says(records)


def test_a_large_sample_of_hand_picked_values() -> None:
    numbers = [
        "0",
        "-0",
        "7",
        "7.0",
        "7e0",
        "70e-1",
        "1.10",
        "1e2",
        "1E+2",
        "-1.5",
        "1.5e0",
        "0.005",
        "0.015",
    ]
    numbers += ["2.675", "0.015", "-2.665", "0.0049999999999999999999", "0.00500000000000000000001"]
    numbers += [str(n) for n in (2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**18 - 1, 10**18, 2**53 + 1)]
    numbers += [
        "9223372036854775807.0",
        "92233720368547758070e-1",
        "999999999999999999.4",
        "0.1e1",
        "123e-2",
        "1e-400",
    ]
    numbers += ["1" * 50, "0." + "0" * 60 + "1", "1e0000000000000000000002", "-0.0", "0e999999999", "1e400"]
    texts = [
        '""',
        '"a"',
        '"é"',
        '"日本"',
        '"😀"',
        r'"\ud83d\ude00"',
        r'"\u00e9\n\t\"\\\/"',
        '"null"',
        '"1"',
        '" "',
    ]
    texts += ['" "', '"\\u0000"']
    others = ["null", "true", "false", "{}", "[]", '{"price":1.5}', '{"deep":{"er":"x"}}', '[{"n":1},"]}"]']
    records = [
        f'{{"{name.split(".")[0]}" : {value} , "z":"}}"}}'
        for name in ("n", "price", "fine", "whole", "ratio", "flag", "name", "body", "tags", "free", "lone")
        for value in [*numbers, *texts, *others]
    ]
    records += [
        f'{{"body":{{"price":{value},"deep":{{"er":{text}}}}}}}' for value in numbers for text in texts
    ]
    records += ["{}", " { } ", r'{"\u006e":5}', r'{"n":1,"\u0000":2}', '{"lone":{"some":3}}', '{"body":null}']
    assert_as_the_model_says(records)


def test_integers_are_exact_to_the_last_of_64_bits() -> None:
    rows = [f'{{"n":{n}}}' for n in (2**63 - 1, -(2**63), 2**53 + 1)]
    assert column(rows, "n") == [2**63 - 1, -(2**63), 2**53 + 1]


def test_decimals_are_read_from_their_text_and_rounded_half_to_even() -> None:
    rows = [f'{{"price":{n}}}' for n in ("1.10", "1e2", "0.125", "0.135", "-2.675", "0.1")]
    assert column(rows, "price") == [Decimal(t) for t in ("1.10", "100.00", "0.12", "0.14", "-2.68", "0.10")]


def test_a_value_that_the_declared_type_cannot_hold_is_null_and_told() -> None:
    rows = ['{"n":1}', '{"n":"1"}', '{"n":1.5}', '{"n":null}', "{}", '{"n":9223372036854775808}']
    assert column(rows, "n") == [1, None, None, None, None, None]
    assert misfits(rows) == {"n": [1, 2, 5]}


def test_a_nested_column_is_a_path_and_never_a_key_with_a_dot() -> None:
    rows = ['{"lone":{"some":1}}', '{"lone.some":2}', '{"lone":[{"some":3}]}', '{"lone":{"x":{"some":4}}}']
    assert column(rows, "lone.some") == [1, None, None, None]


def test_json_text_stands_as_it_was_sent() -> None:
    rows = ['{"free": {"b" : 1.10, "a":"\\u00e9"} }', '{"free":"x\\"y"}', '{"free":1.10}', '{"tags":[ 1 ]}']
    assert column(rows, "free") == ['{"b" : 1.10, "a":"\\u00e9"}', '"x\\"y"', "1.10", None]
    assert column(rows, "tags") == [None, None, None, "[ 1 ]"]
    assert json.loads(str(column(rows, "free")[1])) == 'x"y'


def test_an_object_and_what_lies_in_it_can_both_be_declared() -> None:
    rows = ['{"body":{"x":{"y":[1]},"price":2.5,"deep":{"er":"d"}},"n":1}']
    assert column(rows, "body") == ['{"x":{"y":[1]},"price":2.5,"deep":{"er":"d"}}']
    assert column(rows, "body.price") == [Decimal("2.500")]
    assert column(rows, "body.deep.er") == ["d"]
    assert column(rows, "n") == [1]


def test_a_float_beyond_the_largest_is_infinite_and_one_below_the_least_is_zero() -> None:
    assert column(['{"ratio":1e400}', '{"ratio":-1e400}', '{"ratio":1e-400}'], "ratio") == [
        float("inf"),
        float("-inf"),
        0.0,
    ]


@pytest.mark.parametrize("record", ["", "[]", '{"n":1', '{"n" 1}', '{"n":1}}', '{"n":"x}', '{"n":[1}', "{,}"])
def test_a_damaged_payload_is_an_error_and_no_row(record: str) -> None:
    with pytest.raises(StorageError, match="no JSON object"):
        typed(COLUMNS, pa.array(['{"n":1}', record]))


def test_a_slice_of_an_array_is_read_from_where_it_begins() -> None:
    rows = pa.array([f'{{"n":{n}}}' for n in range(5)])
    assert typed(COLUMNS, rows.slice(2, 2)).arrays[0].to_pylist() == [2, 3]
