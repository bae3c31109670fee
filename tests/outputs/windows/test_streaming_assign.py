"""Assigned windows are those that plain Python finds row by row, and the golden cases come out as written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.model.conditions.declared import parse_condition
from tidemill.model.streaming import WindowKind, WindowSpec
from tidemill.outputs.windows.assign import Assigned, assign
from tidemill.testing.conditions import condition_is

CODED = pa.dictionary(pa.int32(), pa.string())
seeded = examples(150)

Row = tuple[str, int, str | None, int | None]  # tenant, at, b, a
Window = tuple[int, int, int, bool, list[int]]  # start, end, ordinal, closed, rows


def table_of(rows: Sequence[Row]) -> pa.Table:
    """In the order they are in, which is by `at`."""
    tenant, at, b, a = zip(*rows, strict=True) if rows else [()] * 4
    return pa.table(
        {
            "at": pa.array(at, pa.int64()),
            "tenant": pa.array(tenant, pa.string()).dictionary_encode().cast(CODED),
            "f.b": pa.array(b, pa.string()),
            "f.a": pa.array(a, pa.int64()),
        }
    )


def at_instants(*instants: int) -> pa.Table:
    return table_of([("t", at, None, None) for at in instants])


def windows(assigned: Assigned) -> list[Window]:
    """As plain values; what must hold of every answer is checked on the way."""
    held: list[list[int]] = [[] for _ in assigned.start]
    for row, window in zip(assigned.row.tolist(), assigned.window.tolist(), strict=True):
        held[window].append(row)
    assert [rows[0] for rows in held] == assigned.head.tolist()
    assert (np.diff(assigned.window) >= 0).all()
    ages = list(zip(assigned.start.tolist(), assigned.head.tolist(), strict=True))
    assert ages == sorted(ages)
    return list(
        zip(
            assigned.start.tolist(),
            assigned.end.tolist(),
            assigned.ordinal.tolist(),
            assigned.closed.tolist(),
            held,
            strict=True,
        )
    )


def tumbling(size: int) -> WindowSpec:
    return WindowSpec("s", "w", WindowKind.TUMBLING, size=size, step=size)


def sliding(size: int, step: int) -> WindowSpec:
    return WindowSpec("s", "w", WindowKind.SLIDING, size=size, step=step)


def session(gap: int, *key: str, inclusive: bool = True) -> WindowSpec:
    return WindowSpec("s", "w", WindowKind.SESSION, gap=gap, inclusive=inclusive, key=key)


def count(n: int, *key: str) -> WindowSpec:
    return WindowSpec("s", "w", WindowKind.COUNT, count=n, key=key)


def state(opens: str, emits: str, *key: str) -> WindowSpec:
    spec = WindowSpec("s", "w", WindowKind.STATE, key=key)
    return replace(spec, open=parse_condition(opens), emit=parse_condition(emits))


# -- tumbling and sliding


def test_d8_a_quiet_time_leaves_no_window_stuck() -> None:
    found = windows(assign(tumbling(100), at_instants(10, 50, 350), 400, flush=False))
    assert found == [(0, 100, 0, True, [0, 1]), (300, 400, 0, True, [2])]


def test_a_window_of_the_grid_closes_when_the_watermark_reaches_its_end() -> None:
    rows = at_instants(10, 50, 350)
    assert [w[3] for w in windows(assign(tumbling(100), rows, 99, flush=False))] == [False, False]
    assert [w[3] for w in windows(assign(tumbling(100), rows, 100, flush=False))] == [True, False]
    assert [w[3] for w in windows(assign(tumbling(100), rows, None, flush=False))] == [False, False]
    assert [w[3] for w in windows(assign(tumbling(100), rows, None, flush=True))] == [True, True]


def test_tenants_have_windows_of_their_own() -> None:
    rows = table_of([("b", 1, None, None), ("a", 2, None, None), ("b", 3, None, None), ("a", 11, None, None)])
    assert windows(assign(tumbling(10), rows, 10, flush=False)) == [
        (0, 10, 0, True, [0, 2]),
        (0, 10, 0, True, [1]),
        (10, 20, 0, False, [3]),
    ]


def test_instants_before_the_epoch_lie_on_the_same_grid() -> None:
    found = windows(assign(tumbling(10), at_instants(-11, -10, -1, 0), None, flush=False))
    assert [(w[0], w[4]) for w in found] == [(-20, [0]), (-10, [1, 2]), (0, [3])]


def test_rows_between_windows_that_leave_gaps_are_in_none() -> None:
    found = windows(assign(sliding(3, 10), at_instants(0, 2, 3, 9, 10), 13, flush=False))
    assert found == [(0, 3, 0, True, [0, 1]), (10, 13, 0, True, [4])]


INSTANTS = st.one_of(st.integers(-40, 40), st.sampled_from([-(2**55), 2**55, 2**55 + 1]))
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["", "acme", "é"]),
        INSTANTS,
        st.sampled_from([None, "", "x", "y"]),
        st.one_of(st.none(), st.integers(0, 4)),
    ),
    max_size=40,
).map(lambda rows: sorted(rows, key=lambda row: row[1]))
WATERMARKS = st.one_of(st.none(), INSTANTS)


@seeded
@given(ROWS, st.integers(1, 30), st.integers(1, 12), WATERMARKS, st.booleans())
def test_a_row_is_in_the_windows_that_hold_its_instant(
    rows: list[Row], size: int, step: int, watermark: int | None, flush: bool
) -> None:
    for spec in (sliding(size, step), tumbling(size)):
        held: dict[tuple[str, int, int], list[int]] = {}
        for i, (tenant, at, _, _) in enumerate(rows):
            for interval in spec.windows_at(at):
                held.setdefault((tenant, interval.start, interval.end), []).append(i)
        expected = [
            (start, end, 0, flush or (watermark is not None and end <= watermark), members)
            for (_, start, end), members in held.items()
        ]
        expected.sort(key=lambda window: (window[0], window[4][0]))
        assert windows(assign(spec, table_of(rows), watermark, flush=flush)) == expected


# -- sessions


def test_a_row_at_exactly_the_gap_is_of_the_same_session() -> None:
    rows = at_instants(0, 10, 20, 31)
    assert windows(assign(session(10), rows, 30, flush=False)) == [(0, 30, 0, True, [0, 1, 2])]
    assert windows(assign(session(10), rows, 31, flush=False)) == [
        (0, 30, 0, True, [0, 1, 2]),
        (31, 41, 0, False, [3]),
    ]


def test_exclusive_a_row_at_exactly_the_gap_begins_the_next_session() -> None:
    exclusive = session(10, inclusive=False)
    assert windows(assign(exclusive, at_instants(0, 9, 18, 28), 27, flush=False)) == [
        (0, 28, 0, False, [0, 1, 2])
    ]
    assert windows(assign(exclusive, at_instants(0, 9, 18, 28), 28, flush=False)) == [
        (0, 28, 0, True, [0, 1, 2]),
        (28, 38, 0, False, [3]),
    ]


def test_each_key_has_its_own_sessions_and_a_missing_key_is_one() -> None:
    rows = table_of(
        [("t", 0, "x", 0), ("t", 5, None, 0), ("t", 9, "x", 0), ("u", 9, "x", 0), ("t", 14, None, 0)]
    )
    assert windows(assign(session(10, "b"), rows, 100, flush=False)) == [
        (0, 19, 0, True, [0, 2]),
        (5, 24, 0, True, [1, 4]),
        (9, 19, 0, True, [3]),
    ]


def test_without_a_watermark_no_row_is_released() -> None:
    specs = [session(5), count(1), state("a = 1", "a = 1")]
    rows = table_of([("t", 0, None, 1), ("t", 9, None, 1)])
    for spec in specs:
        assert windows(assign(spec, rows, None, flush=False)) == []
        assert len(windows(assign(spec, rows, None, flush=True))) == 2
        assert [w[4] for w in windows(assign(spec, rows, 8, flush=False))] == [[0]]


# -- counts and states


def test_v17_count_windows_hold_as_many_rows_as_declared() -> None:
    rows = table_of([("t", i, None, 10 * i) for i in range(1, 6)])
    assert windows(assign(count(2), rows, 5, flush=False)) == [
        (1, 3, 0, True, [0, 1]),
        (3, 5, 0, True, [2, 3]),
        (5, 6, 0, False, [4]),
    ]


def test_windows_that_begin_at_the_same_instant_are_numbered() -> None:
    rows = table_of(
        [("t", 7, "x", 1), ("t", 7, "y", 1), ("t", 7, "x", 1), ("t", 8, "x", 1), ("t", 8, "x", 1)]
    )
    found = windows(assign(count(1, "b"), rows, 8, flush=False))
    assert [(w[0], w[2], w[4]) for w in found] == [
        (7, 0, [0]), (7, 0, [1]), (7, 1, [2]), (8, 0, [3]), (8, 1, [4]),
    ]  # fmt: skip
    same = windows(assign(state("a = 1", "a = 1", "b"), rows, 8, flush=False))
    assert same == found


def test_v20_a_state_window_runs_from_open_to_emit() -> None:
    rows = table_of([("t", 1, "1", 1), ("t", 2, "2", 2), ("t", 3, "1", 4)])
    assert windows(assign(state("a = 1", "a = 4"), rows, 3, flush=False)) == [(1, 4, 0, True, [0, 1, 2])]


def test_rows_outside_any_state_window_are_in_none() -> None:
    rows = table_of([("t", i, None, a) for i, a in enumerate([4, 2, 1, 1, 3, 4, 4, None, 1, 2])])
    assert windows(assign(state("a = 1", "a = 4"), rows, 9, flush=False)) == [
        (2, 6, 0, True, [2, 3, 4, 5]),
        (8, 10, 0, False, [8, 9]),
    ]
    assert [w[3] for w in windows(assign(state("a = 1", "a = 4"), rows, 9, flush=True))] == [True, True]


def test_the_row_that_opens_may_be_the_one_that_emits() -> None:
    rows = table_of([("t", 1, None, 3), ("t", 2, None, 2), ("t", 3, None, 3)])
    found = windows(assign(state("a >= 2", "a = 3"), rows, 3, flush=False))
    assert found == [(1, 2, 0, True, [0]), (2, 4, 0, True, [1, 2])]


# -- one row after another


def by_hand(spec: WindowSpec, rows: Sequence[Row], watermark: int | None, flush: bool) -> list[Window]:
    """Sessions, counts and states as they are defined."""
    released = [
        (i, row) for i, row in enumerate(rows) if flush or (watermark is not None and row[1] <= watermark)
    ]
    keyed: dict[tuple[str, object], list[tuple[int, Row]]] = {}
    for i, row in released:
        keyed.setdefault((row[0], row[2] if spec.key else None), []).append((i, row))
    found: list[Window] = []
    for of_key in keyed.values():
        mine: list[Window] = []
        for members, done in cut(spec, of_key):
            start, last = rows[members[0]][1], rows[members[-1]][1]
            end = last + (spec.gap if spec.kind is WindowKind.SESSION else 1)
            if spec.kind is WindowKind.SESSION:
                done = watermark is not None and end <= watermark
            mine.append((start, end, sum(w[0] == start for w in mine), done or flush, members))
        found.extend(mine)
    return sorted(found, key=lambda window: (window[0], window[4][0]))


def cut(spec: WindowSpec, rows: Sequence[tuple[int, Row]]) -> Iterable[tuple[list[int], bool]]:
    """Rows of each window of one key, and whether a count or state has its last one."""
    members: list[int] = []
    last = 0
    for i, (_, at, _, a) in rows:
        if spec.kind is WindowKind.SESSION:
            quiet = at - last
            if members and (quiet > spec.gap or (quiet == spec.gap and not spec.inclusive)):
                yield members, False
                members = []
            members.append(i)
            last = at
        elif spec.kind is WindowKind.COUNT:
            members.append(i)
            if len(members) == spec.count:
                yield members, True
                members = []
        else:
            assert spec.open is not None
            assert spec.emit is not None
            if members or condition_is(spec.open.condition, lambda _, a=a: a):
                members.append(i)
                if condition_is(spec.emit.condition, lambda _, a=a: a):
                    yield members, True
                    members = []
    if members:
        yield members, False


CONDITIONS = ("a = 1", "a = 4", "a < 3", "a is null", "not a = 2", "a in (1, 3)", "a not between 1 and 3")
SEQUENTIAL = st.one_of(
    st.builds(session, st.integers(1, 20)),
    st.builds(session, st.integers(1, 20), st.just("b")),
    st.builds(count, st.integers(1, 4)),
    st.builds(count, st.integers(1, 4), st.just("b")),
    st.builds(state, st.sampled_from(CONDITIONS), st.sampled_from(CONDITIONS)),
    st.builds(state, st.sampled_from(CONDITIONS), st.sampled_from(CONDITIONS), st.just("b")),
)


@examples(500)
@given(SEQUENTIAL, ROWS, WATERMARKS, st.booleans())
def test_windows_that_follow_from_rows_are_those_found_one_by_one(
    spec: WindowSpec, rows: list[Row], watermark: int | None, flush: bool
) -> None:
    found = windows(assign(spec, table_of(rows), watermark, flush=flush))
    assert found == by_hand(spec, rows, watermark, flush)


@pytest.mark.parametrize(
    "spec", [tumbling(5), sliding(6, 4), session(3, "b"), count(2), state("a = 1", "a = 2")]
)
def test_no_rows_no_windows(spec: WindowSpec) -> None:
    assert windows(assign(spec, table_of([]), 5, flush=True)) == []


def test_many_keys_are_told_apart_by_every_value() -> None:
    """Keys of every type, and more combinations of their values than a table is made for."""
    n = 6_000
    rows = pa.table(
        {
            "at": pa.array(np.arange(n) // 7),
            "tenant": pa.array(["t"] * n).dictionary_encode().cast(CODED),
            "f.i": pa.array(np.arange(n) % 3_000 - 2**62),
            "f.d": pa.array([Decimal(i % 3_000) for i in range(n)], pa.decimal128(18, 0)),
            "f.f": pa.array(np.where(np.arange(n) % 2, 0.0, -0.0)),
            "f.o": pa.array([i % 3 == 0 for i in range(n)]),
        }
    )
    spec = WindowSpec("s", "w", WindowKind.COUNT, count=2, key=("i", "d", "f", "o"))
    found = windows(assign(spec, rows, n, flush=False))
    assert [w[4] for w in found] == [[i, i + 3_000] for i in range(3_000)]
    assert all(w[3] for w in found)
