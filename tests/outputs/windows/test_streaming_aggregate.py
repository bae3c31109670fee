"""Aggregates are what plain Python makes of the same rows with fractions, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from random import Random

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.config.stream import Stream
from tidemill.model.conditions.declared import parse_condition
from tidemill.model.slices import set_hash
from tidemill.model.streaming import Aggregate, Function, WindowKind, WindowSpec
from tidemill.outputs.windows.aggregate import aggregate, fresh_schema, value_type
from tidemill.outputs.windows.assign import assign
from tidemill.outputs.windows.extract import row_schema

STREAM = Stream.model_validate(
    {
        "name": "s",
        "schema": {
            "a": "integer",
            "b": "string",
            "d": {"type": "decimal", "scale": 3},
            "f": "float",
            "o": "boolean",
            "j": "any",
        },
    }
)
SCALES = {"d": 3}
seeded = examples(200)

Plain = str | int | float | bool | Decimal | None


def made(name: str, function: Function, column: str | None = None, percent: str | None = None) -> Aggregate:
    kind = STREAM.fields[column].type if column is not None else None
    return Aggregate(name, function, column, kind, SCALES.get(column or "", 0), percent)


def table_of(spec: WindowSpec, rows: Sequence[dict[str, Plain]]) -> pa.Table:
    """Rows that say of themselves what matters; the rest is filled in."""
    schema = row_schema(spec, STREAM)
    columns: dict[str, list[Plain]] = {name: [] for name in schema.names}
    for line, row in enumerate(rows):
        full = {
            "time": row["at"],
            "seq": 1,
            "line": line,
            "name": "n1",
            "late": False,
            "bytes": 1,
            "tenant": "t",
        }
        full |= row
        for name, values in columns.items():
            values.append(full.get(name.removeprefix("f.")))
    return pa.table(
        {
            field.name: (
                pa.array(columns[field.name], pa.string()).dictionary_encode()
                if pa.types.is_dictionary(field.type)
                else pa.array(columns[field.name], field.type)
            )
            for field in schema
        },
        schema=schema,
    )


def results(
    spec: WindowSpec, rows: Sequence[dict[str, Plain]], watermark: int | None = None, *, flush: bool = False
) -> pa.Table:
    table = table_of(spec, rows)
    found = aggregate(spec, STREAM, table, assign(spec, table, watermark, flush=flush))
    assert found.schema == fresh_schema(spec, STREAM)
    found.validate(full=True)
    return found


def values(spec: WindowSpec, rows: Sequence[dict[str, Plain]], column: str) -> list[Plain]:
    listed: list[Plain] = results(spec, rows, flush=True).column(column).to_pylist()
    return listed


SUM_A = (made("sum_a", Function.SUM, "a"),)
TUMBLING = WindowSpec("s", "w", WindowKind.TUMBLING, size=10, step=10, aggregates=SUM_A)


# -- golden cases


def test_d8_counts_of_windows_with_a_quiet_time_between() -> None:
    spec = replace(TUMBLING, size=100, step=100, aggregates=(made("n", Function.COUNT),))
    found = results(spec, [{"at": 10}, {"at": 50}, {"at": 350}], 400)
    assert found.select(["start", "end", "a.n", "closed"]).to_pylist() == [
        {"start": 0, "end": 100, "a.n": 2, "closed": True},
        {"start": 300, "end": 400, "a.n": 1, "closed": True},
    ]


def test_v10_sums_by_group() -> None:
    spec = replace(TUMBLING, group_by=("b",))
    rows: list[dict[str, Plain]] = [
        {"at": 1, "a": 2, "b": "1"},
        {"at": 2, "a": 4, "b": "2"},
        {"at": 3, "a": 3, "b": "1"},
        {"at": 11, "a": 7, "b": "2"},
    ]
    wanted = ["start", "g.b", "a.sum_a", "closed"]
    assert [tuple(row.values()) for row in results(spec, rows[:3], 10).select(wanted).to_pylist()] == [
        (0, "1", Decimal(5), True),
        (0, "2", Decimal(4), True),
    ]
    assert [tuple(row.values()) for row in results(spec, rows, 20).select(wanted).to_pylist()] == [
        (0, "1", Decimal(5), True),
        (0, "2", Decimal(4), True),
        (10, "2", Decimal(7), True),
    ]


def test_v17_sums_of_count_windows() -> None:
    spec = WindowSpec("s", "w", WindowKind.COUNT, count=2, aggregates=SUM_A)
    found = results(spec, [{"at": i, "a": 10 * i} for i in range(1, 6)], 5)
    assert found.column("a.sum_a").to_pylist() == [30, 70, 50]
    assert found.column("closed").to_pylist() == [True, True, False]


def test_v20_a_state_window_by_group() -> None:
    spec = WindowSpec(
        "s",
        "w",
        WindowKind.STATE,
        open=parse_condition("a = 1"),
        emit=parse_condition("a = 4"),
        group_by=("b",),
        aggregates=SUM_A,
    )
    rows: list[dict[str, Plain]] = [
        {"at": 1, "a": 1, "b": "1"},
        {"at": 2, "a": 2, "b": "2"},
        {"at": 3, "a": 4, "b": "1"},
    ]
    found = results(spec, rows, 3)
    assert found.column("g.b").to_pylist() == ["1", "2"]
    assert found.column("a.sum_a").to_pylist() == [5, 2]
    assert found.column("closed").to_pylist() == [True, True]


# -- what a result tells of its rows


def test_a_result_tells_its_rows_times_bytes_and_slices() -> None:
    spec = replace(TUMBLING, group_by=("b",))
    rows: list[dict[str, Plain]] = [
        {"at": 2, "time": 2, "b": "x", "name": "n2", "bytes": 10},
        {"at": 4, "time": 1, "b": "x", "name": "n1", "bytes": 20, "late": True},
        {"at": 5, "time": 5, "b": "x", "name": "n2", "bytes": 30},
        {"at": 5, "time": 5, "b": None, "name": "n3", "bytes": 40},
    ]
    nobody, x = results(spec, rows).to_pylist()
    assert x == {
        "tenant": "t", "start": 0, "end": 10, "ordinal": 0, "g.b": "x",
        "rows": 3, "late_rows": 1, "first_time": 1, "last_time": 5, "bytes": 60,
        "slices": 2, "hash": set_hash(["n1", "n2"]), "closed": False, "a.sum_a": None,
    }  # fmt: skip
    assert (nobody["g.b"], nobody["slices"], nobody["hash"]) == (None, 1, set_hash(["n3"]))


def test_results_come_by_start_tenant_ordinal_and_group_with_nulls_first_and_text_by_its_bytes() -> None:
    spec = replace(TUMBLING, group_by=("b", "f"), aggregates=())
    texts = [None, "", "Z", "a", "é", "\uffff", "\U0001f600"]  # in UTF-16, the last but one would be the last
    floats = [None, -math.inf, -1.5, 0.0, 1e-300, math.inf]
    rows: list[dict[str, Plain]] = [
        {"at": start, "tenant": tenant, "b": b, "f": f}
        for start in (0, 10)
        for tenant in ("A", "b", "\uffff", "\U0001f600")
        for b in texts
        for f in floats
    ]
    in_order = [(row["at"], row["tenant"], row["b"], row["f"]) for row in rows]
    Random(5).shuffle(rows)
    rows.sort(key=lambda row: row["at"] or 0)
    found = results(spec, rows).select(["start", "tenant", "g.b", "g.f"]).to_pylist()
    assert [tuple(row.values()) for row in found] == in_order


def test_no_rows_give_the_empty_table_of_the_same_schema() -> None:
    assert results(TUMBLING, [], flush=True).num_rows == 0


def test_the_same_rows_give_the_same_bytes_whatever_their_dictionaries_and_offsets() -> None:
    spec = replace(TUMBLING, group_by=("b",), aggregates=EVERYTHING)
    rows: list[dict[str, Plain]] = [
        {
            "at": i // 2,
            "name": f"n{i % 3}",
            "b": "xy"[i % 2],
            "a": i,
            "d": Decimal(i) if i % 5 else None,
            "f": i / 7 if i % 6 else None,
            "o": i % 3 == 0,
        }
        for i in range(60)
    ]
    table = table_of(spec, rows)
    longer = pa.concat_tables([table_of(spec, [{"at": -5, "tenant": "u", "name": "n9"}]), table])
    other = longer.unify_dictionaries().combine_chunks().slice(1)
    assert other.drop_columns("line").to_pylist() == table.drop_columns("line").to_pylist()

    def written(part: pa.Table) -> bytes:
        found = aggregate(spec, STREAM, part, assign(spec, part, 20, flush=False))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, found.schema) as writer:
            writer.write_table(found)
        return bytes(sink.getvalue())

    assert written(table) == written(other)


@pytest.mark.parametrize(
    ("function", "column", "kind"),
    [
        (Function.COUNT, None, pa.int64()),
        (Function.COUNT, "b", pa.int64()),
        (Function.SUM, "a", pa.decimal128(38, 0)),
        (Function.SUM, "d", pa.decimal128(38, 3)),
        (Function.SUM, "f", pa.float64()),
        (Function.AVG, "d", pa.float64()),
        (Function.STDDEV, "a", pa.float64()),
        (Function.MIN, "d", pa.decimal128(18, 3)),
        (Function.MAX, "b", pa.string()),
        (Function.FIRST, "o", pa.bool_()),
        (Function.LAST, "j", pa.string()),
        (Function.LAST, "f", pa.float64()),
    ],
)
def test_the_type_of_an_aggregate(function: Function, column: str | None, kind: pa.DataType) -> None:
    assert value_type(made("x", function, column)) == kind


# -- functions


@pytest.mark.parametrize(
    ("percent", "expected"),
    [("0", 1), ("0.1", 1), ("10", 1), ("10.01", 2), ("50", 5), ("99.9", 10), ("100", 10)],
)
def test_a_percentile_is_the_value_of_the_nearest_rank(percent: str, expected: int) -> None:
    spec = replace(TUMBLING, aggregates=(made("p", Function.PERCENTILE, "a", percent),))
    rows: list[dict[str, Plain]] = [{"at": 0, "a": value} for value in (7, 3, 10, 1, 9, 2, 8, 4, 6, 5, None)]
    assert values(spec, rows, "a.p") == [expected]


def test_first_and_last_are_of_the_rows_that_have_a_value() -> None:
    spec = replace(TUMBLING, aggregates=(made("x", Function.FIRST, "b"), made("y", Function.LAST, "b")))
    rows: list[dict[str, Plain]] = [{"at": i, "b": b} for i, b in enumerate([None, "m", "z", "a", None])]
    assert values(spec, rows, "a.x") == ["m"]
    assert values(spec, rows, "a.y") == ["a"]


def test_averages_and_deviations_are_rounded_once() -> None:
    spec = replace(TUMBLING, aggregates=(made("avg", Function.AVG, "a"), made("dev", Function.STDDEV, "a")))
    big = 2**62 + 1
    rows: list[dict[str, Plain]] = [{"at": 0, "a": value} for value in (big, big + 1, big + 3)]
    assert values(spec, rows, "a.avg") == [float(Fraction(3 * big + 4, 3))]
    assert values(spec, rows, "a.dev") == [math.sqrt(7 / 3)]  # exact squares, however far from zero


@pytest.mark.parametrize(
    ("held", "total", "average", "deviation"),
    [
        ([math.inf, 1.0], math.inf, math.inf, math.nan),
        ([-math.inf, -math.inf], -math.inf, -math.inf, math.nan),
        ([math.inf, -math.inf, 5.0], math.nan, math.nan, math.nan),
        ([math.inf], math.inf, math.inf, None),
        ([1e308, 1e308, math.inf], math.inf, math.inf, math.nan),
        ([1e308, 1e308, math.inf, -math.inf], math.nan, math.nan, math.nan),
        ([1e308, 1e308], math.inf, math.inf, 0.0),
        ([1e308, 1e308, -1e308], 1e308, 1e308 / 3, 1.1547005383792515e308),
        ([-0.0, -0.0], 0.0, 0.0, 0.0),
        ([5e-324, 0.0], 5e-324, 0.0, 5e-324),
        ([0.1] * 10, 1.0, 0.1, 0.0),
        ([], None, None, None),
    ],
)
def test_floats_add_up_to_what_is_nearest_and_to_nan_where_nothing_is(
    held: list[float], total: float | None, average: float | None, deviation: float | None
) -> None:
    functions = (Function.SUM, Function.AVG, Function.STDDEV)
    spec = replace(TUMBLING, aggregates=tuple(made(f.value, f, "f") for f in functions))
    rows: list[dict[str, Plain]] = [{"at": 0, "f": value} for value in [*held, None]]
    for ordered in (rows, rows[::-1]):
        (found,) = results(spec, ordered).to_pylist()
        reported = [found["a.sum"], found["a.avg"], found["a.stddev"]]
        assert list(map(repr, reported)) == list(map(repr, [total, average, deviation]))


# -- by fractions


def exactly(each: Aggregate, rows: Sequence[dict[str, Plain]]) -> Plain:
    """One aggregate by its definition."""
    if each.column is None:
        return len(rows)
    held = [value for row in rows if (value := row.get(each.column)) is not None]
    if each.function is Function.COUNT:
        return len(held)
    if not held:
        return None
    in_order = sorted(held, key=lambda v: v.encode() if isinstance(v, str) else v)
    match each.function:
        case Function.FIRST:
            return held[0]
        case Function.LAST:
            return held[-1]
        case Function.MIN:
            return in_order[0]
        case Function.MAX:
            return in_order[-1]
        case Function.PERCENTILE:
            return in_order[max(1, math.ceil(each.quantile * len(held))) - 1]
    numbers = [Fraction(value) for value in held if not isinstance(value, str)]
    total = sum(numbers, Fraction(0))
    if each.function is Function.SUM:
        return nearest(total) if each.type == "float" else total.numerator * Decimal(1) / total.denominator
    if each.function is Function.AVG:
        return nearest(total) / len(held) if each.type == "float" else nearest(total / len(held))
    if len(held) < 2:
        return None
    mean = total / len(held)
    variance = sum(((number - mean) ** 2 for number in numbers), Fraction(0)) / (len(held) - 1)
    with localcontext(Context(prec=200, Emax=10**6, Emin=-(10**6))):
        return float((Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt())


def nearest(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def expected_results(spec: WindowSpec, rows: Sequence[dict[str, Plain]]) -> list[dict[str, Plain]]:
    groups: dict[tuple[Plain, ...], list[dict[str, Plain]]] = {}
    for row in rows:
        at = row["at"]
        assert isinstance(at, int)
        for interval in spec.windows_at(at):
            key = (interval.start, row["tenant"], *(row[name] for name in spec.grouped_by))
            groups.setdefault(key, []).append(row)
    reported: list[dict[str, Plain]] = []
    for key in sorted(groups, key=lambda key: [ranking(value) for value in key]):
        mine = groups[key]
        start = key[0]
        assert isinstance(start, int)
        reported.append(
            {"tenant": key[1], "start": start, "end": start + spec.size, "ordinal": 0}
            | {f"g.{name}": value for name, value in zip(spec.grouped_by, key[2:], strict=True)}
            | {
                "rows": len(mine),
                "late_rows": sum(row["late"] is True for row in mine),
                "first_time": min(int(str(row["time"])) for row in mine),
                "last_time": max(int(str(row["time"])) for row in mine),
                "bytes": sum(int(str(row["bytes"])) for row in mine),
                "slices": len({row["name"] for row in mine}),
                "hash": set_hash(str(row["name"]) for row in mine),
                "closed": True,
            }
            | {f"a.{each.name}": exactly(each, mine) for each in spec.aggregates}
        )
    return reported


def ranking(value: Plain) -> tuple[bool, Plain | bytes]:
    if value is None:
        return False, 0
    return True, value.encode() if isinstance(value, str) else value


def comparable(rows: Sequence[dict[str, Plain]]) -> list[dict[str, str]]:
    """Floats by all their digits and their sign; decimals without regard to trailing zeros."""
    return [
        {name: repr(Fraction(v) if isinstance(v, Decimal) else v) for name, v in row.items()} for row in rows
    ]


INT64 = st.one_of(
    st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**32), 2**31, 2**53 + 1]),
    st.integers(-5, 5),
    st.integers(-(2**63), 2**63 - 1),
)
DECIMALS = st.one_of(st.integers(-5000, 5000), st.integers(1 - 10**18, 10**18 - 1)).map(
    lambda n: Decimal(n).scaleb(-3, Context(prec=40))
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0)
TEXTS = st.sampled_from(["", "a", "b", "é", "\uffff", "\U0001f600"])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "tenant": st.sampled_from(["t", "u"]),
            "at": st.integers(-12, 12),
            "time": st.integers(-(2**55), 2**55),
            "late": st.booleans(),
            "bytes": st.integers(0, 1000),
            "name": st.sampled_from(["n1", "n2", "n3~1"]),
            "a": st.none() | INT64,
            "b": st.none() | TEXTS,
            "d": st.none() | DECIMALS,
            "f": st.none() | st.sampled_from([0.0, 0.1, 0.5, 1e16, -1e308]) | FLOATS,
            "o": st.none() | st.booleans(),
        }
    ),
    max_size=30,
).map(lambda rows: sorted(rows, key=lambda row: row["at"]))

ORDERED = [
    made(f"{f.value}_{column}", f, column)
    for column in "abdfo"
    for f in (Function.COUNT, Function.MIN, Function.MAX, Function.FIRST, Function.LAST)
]
ADDED = [
    made(f"{f.value}_{column}", f, column)
    for column in "adf"
    for f in (Function.SUM, Function.AVG, Function.STDDEV)
]
PERCENTILES = [
    made(f"p{n}_{column}", Function.PERCENTILE, column, percent)
    for column in "abdfo"
    for n, percent in enumerate(("0", "33.3", "50", "99.99999999999999999", "100"))
]
EVERYTHING = (made("n", Function.COUNT), *ORDERED, *ADDED, *PERCENTILES)


@seeded
@given(
    ROWS,
    st.lists(st.sampled_from("abdfo"), max_size=3, unique=True),
    st.sampled_from([(10, 10), (10, 4)]),
)
@example([], [], (10, 10))
def test_every_aggregate_of_every_type_is_the_exact_one(
    rows: list[dict[str, Plain]], group_by: list[str], grid: tuple[int, int]
) -> None:
    size, step = grid
    kind = WindowKind.TUMBLING if size == step else WindowKind.SLIDING
    spec = WindowSpec("s", "w", kind, size=size, step=step, group_by=tuple(group_by), aggregates=EVERYTHING)
    assert comparable(results(spec, rows, flush=True).to_pylist()) == comparable(expected_results(spec, rows))


def test_sums_of_many_huge_values_do_not_overflow() -> None:
    functions = (Function.SUM, Function.AVG, Function.STDDEV)
    spec = replace(TUMBLING, aggregates=tuple(made(f.value, f, "a") for f in functions))
    random = Random(11)
    huge = [random.choice([2**63 - 1, -(2**63), random.randrange(-(2**63), 2**63)]) for _ in range(5_000)]
    rows: list[dict[str, Plain]] = [{"at": 10 * (i // 1_000), "a": value} for i, value in enumerate(huge)]
    found = results(spec, rows).to_pylist()
    for number, result in enumerate(found):
        mine = rows[1_000 * number : 1_000 * (number + 1)]
        assert comparable([{each.name: result[f"a.{each.name}"] for each in spec.aggregates}]) == comparable(
            [{each.name: exactly(each, mine) for each in spec.aggregates}]
        )


@pytest.mark.parametrize("names", [3, 9_000])
def test_slices_are_told_apart_in_many_results(names: int) -> None:
    """By a table of all pairs of result and slice, or by sorting where that would be too large."""
    spec = replace(TUMBLING, size=1, step=1)
    rows: list[dict[str, Plain]] = [{"at": i // 2, "name": f"n{i * 7 % names}"} for i in range(9_000)]
    found = results(spec, rows)
    assert found.column("slices").to_pylist() == [2] * 4_500
    assert found.column("hash").to_pylist() == [
        set_hash([f"n{2 * i * 7 % names}", f"n{(2 * i + 1) * 7 % names}"]) for i in range(4_500)
    ]
