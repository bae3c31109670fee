"""Cells against a dictionary of Python integers, and the laws of merging: any order, the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemill.model.levels import LEVELS
from tidemill.rollups.cells import accumulate, from_rows, merge, no_cells, to_rows
from tidemill.rollups.spec import Dimension, Measure, Metric, RollupSpec

INT64 = st.one_of(
    st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**32), 2**31, 10**18 - 1, 1 - 10**18]),
    st.integers(-(2**63), 2**63 - 1),
)
SPEC = RollupSpec(
    stream="s",
    dimensions=(Dimension("api", "string"), Dimension("status", "integer"), Dimension("ok", "boolean")),
    measures=(Measure("bytes", "integer", 0), Measure("latency", "decimal", 3)),
    metrics=(
        Metric("all", (0, 1, 2), (0, 1)),
        Metric("by_ok", (2,), (1,)),
        Metric("plain", (), ()),
        Metric("sizes", (1,), (0,)),
    ),
)
WIDTH = LEVELS[0].width

Event = tuple[str, int, str | None, int | None, bool | None, int | None, int | None]
Key = tuple[str, str, str | None, int | None, bool | None, int]
Value = tuple[int, tuple[tuple[int, int, int | None, int | None], ...]]
Cells = dict[Key, Value]

TIMES = st.one_of(
    st.builds(lambda n, us: n * WIDTH + us, st.integers(-4, 4), st.sampled_from([0, 1, WIDTH - 1])),
    st.builds(lambda day, us: day * 86_400_000_000 + us, st.integers(-20_000, 40_000), st.integers(0, WIDTH)),
    st.integers(-(2**55), 2**57),
)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["", "acme", "ténant", "\x00"]),
        TIMES,
        st.sampled_from([None, "", "a", "b", "é"]),
        st.one_of(st.none(), st.sampled_from([0, 1, -1]), INT64),
        st.sampled_from([None, True, False]),
        st.one_of(st.none(), INT64),
        st.one_of(st.none(), st.integers(1 - 10**18, 10**18 - 1)),
    ),
    max_size=30,
)
seeded = settings(max_examples=120, deadline=None, derandomize=True)


def table_of(events: Sequence[Event]) -> pa.Table:
    tenant, time, *rest = zip(*events, strict=True) if events else [()] * 7
    kinds = [pa.string(), pa.int64(), pa.bool_(), pa.int64(), pa.int64()]
    columns = {
        "tenant": pa.array(tenant, pa.string()).dictionary_encode(),
        "event_time": pa.array(time, pa.int64()),
    }
    for name, values, kind in zip(["d0", "d1", "d2", "m0", "m1"], rest, kinds, strict=True):
        column = pa.array(values, kind)
        columns[name] = column.dictionary_encode() if kind == pa.string() else column
    return pa.table(columns)


def by_hand(events: Sequence[Event], width: int) -> Cells:
    """The same rollup with Python integers, which never wrap."""
    found: dict[Key, list[Event]] = {}
    for metric in SPEC.metrics:
        for event in events:
            tenant, time, *rest = event
            dimensions = [rest[i] if i in metric.dimensions else None for i in range(3)]
            found.setdefault((metric.name, tenant, *dimensions, time // width * width), []).append(event)  # type: ignore[arg-type]
    cells: Cells = {}
    for key, members in found.items():
        metric = next(m for m in SPEC.metrics if m.name == key[0])
        measures = []
        for i in range(2):
            values = [e[5 + i] for e in members if e[5 + i] is not None] if i in metric.measures else []
            numbers = [int(v) for v in values if v is not None]
            measures.append(
                (len(numbers), sum(numbers), min(numbers, default=None), max(numbers, default=None))
            )
        cells[key] = (len(members), tuple(measures))
    return cells


def plain(cells: pa.Table) -> Cells:
    """A table of cells as a dictionary; no key may stand there twice."""
    found: Cells = {}
    for row in cells.to_pylist():
        key = (row["metric"], row["tenant"], row["d0"], row["d1"], row["d2"], row["bucket"])
        assert key not in found, key
        measures = tuple(
            (
                row[f"m{i}_count"],
                (row[f"m{i}_high"] << 64) + row[f"m{i}_low"],
                row[f"m{i}_min"],
                row[f"m{i}_max"],
            )
            for i in range(2)
        )
        found[key] = (row["count"], measures)
    return found


def bits(cells: pa.Table) -> list[dict[str, object]]:
    """Every value in the order of the rows: what a tile's file holds."""
    return cells.to_pylist()


def rolled(events: Sequence[Event], width: int = WIDTH) -> pa.Table:
    return merge(SPEC, [accumulate(SPEC, table_of(events), width)], width)


@seeded
@given(events=EVENTS)
@example(
    events=[("acme", 0, "a", 1, True, 2**63 - 1, 0)] * 9 + [("acme", 4, "a", 1, True, -(2**63), None)] * 7
)
@example(events=[("acme", 0, None, None, None, None, None)])
@example(events=[])
def test_cells_are_what_a_dictionary_of_integers_says(events: list[Event]) -> None:
    assert plain(accumulate(SPEC, table_of(events), WIDTH)) == by_hand(events, WIDTH)
    for level in LEVELS:
        assert plain(accumulate(SPEC, table_of(events), level.width)) == by_hand(events, level.width)


@seeded
@given(events=EVENTS)
def test_each_level_from_the_one_below_is_the_level_from_the_events(events: list[Event]) -> None:
    cells = rolled(events)
    for level in LEVELS:
        cells = merge(SPEC, [cells], level.width)
        assert bits(cells) == bits(rolled(events, level.width))
        assert plain(cells) == by_hand(events, level.width)


@seeded
@given(parts=st.lists(EVENTS, min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_merging_is_commutative_associative_and_the_empty_table_changes_nothing(
    parts: list[list[Event]], seed: int
) -> None:
    tables = [rolled(part) for part in parts]
    whole = merge(SPEC, tables, WIDTH)
    assert plain(whole) == by_hand([event for part in parts for event in part], WIDTH)
    shuffled = list(tables)
    Random(seed).shuffle(shuffled)
    assert bits(merge(SPEC, [no_cells(SPEC), *shuffled, no_cells(SPEC)], WIDTH)) == bits(whole)
    nested = no_cells(SPEC)
    for table in reversed(tables):
        nested = merge(SPEC, [table, nested], WIDTH)
    assert bits(nested) == bits(whole)
    assert bits(merge(SPEC, [whole], WIDTH)) == bits(whole)


@seeded
@given(events=EVENTS, cut=st.integers(0, 30))
def test_rows_of_the_table_are_the_cells_again(events: list[Event], cut: int) -> None:
    cells = rolled(events)
    rows = to_rows(SPEC, cells)
    assert bits(from_rows(SPEC, rows)) == bits(cells)
    for row, cell in zip(rows.to_pylist(), cells.to_pylist(), strict=True):
        total = (cell["m1_high"] << 64) + cell["m1_low"]
        assert row["latency__sum"].scaleb(3) == total
        assert (row["latency__min"] is None) == (cell["m1_count"] == 0) == (row["latency__max"] is None)
    # a slice of a larger table, as a reader of row groups has it
    part = rows.slice(cut)
    assert bits(from_rows(SPEC, part)) == bits(cells.slice(cut))
    assert from_rows(SPEC, rows.slice(0, 0)).num_rows == 0


@seeded
@given(events=EVENTS)
def test_cells_are_sorted_by_metric_tenant_dimensions_and_bucket(events: list[Event]) -> None:
    def rank(value: object) -> tuple[bool, object]:
        return (value is not None, value.encode() if isinstance(value, str) else value)

    rows = rolled(events).to_pylist()
    keys = [
        tuple(rank(row[name]) for name in ("metric", "tenant", "d0", "d1", "d2", "bucket")) for row in rows
    ]
    assert keys == sorted(keys)


def test_sums_beyond_64_bits_are_exact_over_many_merges() -> None:
    """2^63-1 summed 3 x 4^10 times is far beyond 64 bits; the count says how often."""
    cells = rolled([("acme", 0, "a", 1, True, 2**63 - 1, 10**18 - 1)] * 3)
    for _ in range(10):
        cells = merge(SPEC, [cells] * 4, WIDTH)
    times = 3 * 4**10
    (value,) = [v for k, v in plain(cells).items() if k[0] == "all"]
    assert value == (
        times,
        (
            (times, times * (2**63 - 1), 2**63 - 1, 2**63 - 1),
            (times, times * (10**18 - 1), 10**18 - 1, 10**18 - 1),
        ),
    )


def test_a_stream_without_metrics_has_no_cells() -> None:
    empty = RollupSpec("s", (), (), ())
    events = pa.table({"tenant": pa.array(["t"]).dictionary_encode(), "event_time": pa.array([1])})
    assert accumulate(empty, events, WIDTH).num_rows == 0
