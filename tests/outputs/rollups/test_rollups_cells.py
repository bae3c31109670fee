"""Cells of every kind against Python's own integers, and the laws of merging: any split, order and nesting of
merges gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.model.conditions.declared import parse_condition
from tidemill.model.levels import LEVELS
from tidemill.model.metrics import MetricKind, TransitionRule, bounded, log_scaled
from tidemill.model.time import Interval
from tidemill.outputs.rollups.cell_files import read_cells, read_partial, write_cells, write_partial
from tidemill.outputs.rollups.cells import Cells, accumulate, cell_schema, merge, no_cells, of_tiles
from tidemill.outputs.rollups.events import passing
from tidemill.outputs.rollups.rows import from_rows, read_part, row_buckets, to_rows
from tidemill.outputs.rollups.spec import Dimension, Filter, Following, Measure, Metric, RollupSpec
from tidemill.storage.tables.parts import write_part

COUNTER, GAUGE, HISTOGRAM, STATE = (
    MetricKind.COUNTER,
    MetricKind.GAUGE,
    MetricKind.HISTOGRAM,
    MetricKind.STATE,
)
API, STATUS, OK = (
    Dimension("api", "string", 0),
    Dimension("status", "integer", 1),
    Dimension("ok", "boolean", 2),
)
BYTES, LATENCY = Measure("bytes", "integer", 0, 0), Measure("latency", "decimal", 3, 1)
FAST = Filter(
    parse_condition("latency < 0.250 AND NOT api = 'b'").condition, (("latency", "m1", 3), ("api", "d0", 0))
)
BOUNDS = bounded([Decimal("-1.5"), Decimal(0), Decimal("0.0105"), Decimal("1e16")], 3)
SPEC = RollupSpec(
    "s",
    (
        Metric("all", COUNTER, (API, STATUS, OK), (BYTES, LATENCY)),
        Metric("bins", HISTOGRAM, (API,), (LATENCY,), bins=BOUNDS),
        Metric("by_ok", COUNTER, (OK,), (LATENCY,)),
        Metric("fast", COUNTER, (OK,), (BYTES,), filter=FAST),
        Metric("level", GAUGE, (API,), (BYTES,)),
        Metric("level_fast", GAUGE, (), (LATENCY,), filter=FAST),
        Metric("plain", COUNTER),
        Metric("sizes", HISTOGRAM, (API, OK), (BYTES,), bins=log_scaled(Decimal("0.01"))),
        Metric("sizes_fast", HISTOGRAM, (), (BYTES,), filter=FAST, bins=log_scaled(Decimal("0.5"))),
        Metric(
            "stage", STATE, (API,), following=Following(0, "string", 0, "string", (TransitionRule("change"),))
        ),
    ),
)
WIDTH = LEVELS[0].width

INT64 = st.one_of(
    st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**32), 2**31, 10**18 - 1, 1 - 10**18]),
    st.integers(-(2**63), 2**63 - 1),
)
TIMES = st.one_of(
    st.builds(lambda n, us: n * WIDTH + us, st.integers(-4, 4), st.sampled_from([0, 1, WIDTH - 1])),
    st.builds(lambda day, us: day * 86_400_000_000 + us, st.integers(-20_000, 40_000), st.integers(0, WIDTH)),
    st.integers(-(2**55), 2**57),
)


@dataclass(frozen=True, slots=True)
class Event:
    tenant: str
    time: int
    id: str
    d: tuple[str | None, int | None, bool | None]
    m: tuple[int | None, int | None]


EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from(["", "acme", "ténant", "\x00"]),
        TIMES,
        st.sampled_from(["", "a", "aa", "b", "é", "\U0001f30a", "\uffff"]),
        st.tuples(
            st.sampled_from([None, "", "a", "b", "é"]),
            st.one_of(st.none(), st.sampled_from([0, 1, -1]), INT64),
            st.sampled_from([None, True, False]),
        ),
        st.tuples(
            st.one_of(st.none(), st.integers(-3, 3), INT64),
            st.one_of(st.none(), st.integers(-20, 300), st.integers(1 - 10**18, 10**18 - 1)),
        ),
    ),
    max_size=30,
)
StateCell = tuple[str, str | None, str | None, tuple[str | None, str | None, str | None], int, int]
STATE_CELLS = st.lists(
    st.tuples(
        st.sampled_from(["acme", "é"]),
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([None, "NEW", "DONE"]),
        st.sampled_from([(None, None, None), ("change", "(none)", "NEW"), ("change", "NEW", "DONE")]),
        st.builds(lambda n: n * WIDTH, st.integers(-3, 30)),
        st.integers(-2, 2),
    ),
    max_size=20,
)
seeded = examples(20)
seeded_few = examples(8)  # of what takes long


def text(values: Sequence[str | None]) -> pa.DictionaryArray:
    return pa.array(values, pa.string()).dictionary_encode()


def table_of(events: Sequence[Event]) -> pa.Table:
    return pa.table(
        {
            "tenant": text([e.tenant for e in events]),
            "event_time": pa.array([e.time for e in events], pa.int64()),
            "event_id": pa.array([e.id for e in events], pa.string()),
            "d0": text([e.d[0] for e in events]),
            "d1": pa.array([e.d[1] for e in events], pa.int64()),
            "d2": pa.array([e.d[2] for e in events], pa.bool_()),
            "m0": pa.array([e.m[0] for e in events], pa.int64()),
            "m1": pa.array([e.m[1] for e in events], pa.int64()),
        }
    )


def state_cells(rows: Sequence[StateCell]) -> Cells:
    """Cells of the state metric alone, as the follower of states would hand them in."""
    tenant, api, state, moves, bucket, count = zip(*rows, strict=True) if rows else [()] * 6
    columns = [text(tenant), text(api), text(state)]
    columns += [text([move[i] for move in moves]) for i in range(3)]
    columns += [pa.array(bucket, pa.int64()), pa.array(count, pa.int64())]
    return {"stage": pa.Table.from_arrays(columns, schema=cell_schema(SPEC.metric("stage")))}


Plain = dict[str, dict[tuple[object, ...], dict[str, object]]]


def by_hand(events: Sequence[Event], width: int) -> Plain:
    """The same rollup with Python's integers, which never wrap, and its order of tuples."""
    found: Plain = {metric.name: {} for metric in SPEC.metrics}
    for metric in SPEC.metrics:
        if metric.kind is STATE:
            continue
        groups: dict[tuple[object, ...], list[Event]] = {}
        for event in events:
            if metric.filter is None or (
                event.m[1] is not None and event.m[1] < 250 and event.d[0] in ("", "a", "é")
            ):
                key = (event.tenant, *(event.d[d.at] for d in metric.dimensions), event.time // width * width)
                groups.setdefault(key, []).append(event)
        for key, members in groups.items():
            found[metric.name][key] = kept(metric, members)
    return found


def kept(metric: Metric, members: Sequence[Event]) -> dict[str, object]:
    row: dict[str, object] = {"count": len(members)}
    for i, m in enumerate(metric.measures):
        numbers = [value for e in members if (value := e.m[m.at]) is not None]
        row[f"v{i}_count"], row[f"v{i}_sum"] = len(numbers), sum(numbers)
        row[f"v{i}_min"], row[f"v{i}_max"] = min(numbers, default=None), max(numbers, default=None)
    if metric.kind is GAUGE:
        at = metric.measures[0].at
        ends = sorted((e.time, e.id.encode(), e.m[at]) for e in members if e.m[at] is not None)
        for end, place in (("first", 0), ("last", -1)):
            time, id, value = ends[place] if ends else (None, None, None)
            row |= {f"v0_{end}": value, f"v0_{end}_time": time, f"v0_{end}_id": id and id.decode()}
            if id == b"":
                row[f"v0_{end}_id"] = ""
    if metric.bins is not None:
        of = [metric.bins.of(value) for e in members if (value := e.m[metric.measures[0].at]) is not None]
        row["bins"] = sorted(set(of))
        row["bin_counts"] = [of.count(bin) for bin in sorted(set(of))]
    return row


def plain(cells: Cells) -> Plain:
    """Cells as dictionaries, sums as one number; no key may stand there twice."""
    found: Plain = {}
    for name, table in cells.items():
        assert table.schema == cell_schema(SPEC.metric(name)), name
        keys = table.column_names[: table.column_names.index("bucket") + 1]
        found[name] = {}
        for row in table.to_pylist():
            key = tuple(row.pop(column) for column in keys)
            assert key not in found[name], key
            for i in range(len(SPEC.metric(name).measures)):
                row[f"v{i}_sum"] = (row.pop(f"v{i}_high") << 64) + row.pop(f"v{i}_low")
            found[name][key] = row
    return found


def part_bytes(cells: Cells) -> bytes:
    """What a tile's part holds, byte for byte."""
    rows, sink = to_rows(SPEC, cells), pa.BufferOutputStream()
    coded = [field.name for field in rows.schema if pa.types.is_dictionary(field.type)]
    pq.write_table(rows.combine_chunks(), sink, compression="none", use_dictionary=coded, store_schema=False)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def rolled(events: Sequence[Event], width: int = WIDTH, states: Sequence[StateCell] = ()) -> Cells:
    return merge(SPEC, [accumulate(SPEC, table_of(events), width), state_cells(states)], width)


EXTREMES = [Event("acme", 0, "a", ("a", 1, True), (2**63 - 1, 0))] * 9 + [
    Event("acme", 4, "b", ("a", 1, True), (-(2**63), None))
] * 7


@seeded
@given(events=EVENTS)
@example(events=EXTREMES)
@example(events=[Event("acme", 0, "", (None, None, None), (None, None))])
@example(events=[])
def test_cells_are_what_python_says(events: list[Event]) -> None:
    for level in LEVELS:
        assert plain(accumulate(SPEC, table_of(events), level.width)) == by_hand(events, level.width)


@seeded_few
@given(events=EVENTS, states=STATE_CELLS)
def test_each_level_from_the_one_below_is_the_level_from_the_events(
    events: list[Event], states: list[StateCell]
) -> None:
    cells = rolled(events, states=states)
    for level in LEVELS:
        cells = merge(SPEC, [cells], level.width)
        assert part_bytes(cells) == part_bytes(rolled(events, level.width, states))
        assert plain(cells) | {"stage": {}} == by_hand(events, level.width)


@seeded_few
@given(parts=st.lists(st.tuples(EVENTS, STATE_CELLS), min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_any_split_order_and_nesting_of_merges_gives_the_same_bytes(
    parts: list[tuple[list[Event], list[StateCell]]], seed: int
) -> None:
    events = [event for part, _ in parts for event in part]
    states = [row for _, part in parts for row in part]
    whole = rolled(events, states=states)
    tables = [rolled(own, states=changes) for own, changes in parts]
    merged = part_bytes(whole)
    shuffled = list(tables)
    Random(seed).shuffle(shuffled)
    assert part_bytes(merge(SPEC, [no_cells(SPEC), *shuffled, no_cells(SPEC)], WIDTH)) == merged
    left, right = no_cells(SPEC), no_cells(SPEC)
    for table in shuffled:
        left, right = merge(SPEC, [left, table], WIDTH), merge(SPEC, [table, right], WIDTH)
    assert part_bytes(left) == part_bytes(right) == merged
    assert part_bytes(merge(SPEC, [whole], WIDTH)) == merged
    assert plain(whole) | {"stage": {}} == by_hand(events, WIDTH)


@seeded
@given(events=EVENTS, states=STATE_CELLS, cut=st.integers(0, 30))
def test_rows_of_the_table_are_the_cells_again(
    events: list[Event], states: list[StateCell], cut: int
) -> None:
    cells = rolled(events, states=states)
    rows = to_rows(SPEC, cells)
    rows.validate(full=True)
    assert rows.num_rows == row_buckets(cells).size
    assert plain(from_rows(SPEC, rows)) == plain(cells)
    names = rows.column("metric").to_pylist()
    assert names == sorted(names)
    for name, table in cells.items():
        own = [row for row in rows.to_pylist() if row["metric"] == name]
        for row, cell in zip(own, table.to_pylist(), strict=True):
            if LATENCY in SPEC.metric(name).measures:
                i = SPEC.metric(name).measures.index(LATENCY)
                assert row["latency__sum"].scaleb(3) == (cell[f"v{i}_high"] << 64) + cell[f"v{i}_low"]
                assert (row["latency__min"] is None) == (cell[f"v{i}_count"] == 0)
            assert (row["histogram__bins"], row["histogram__counts"]) == (
                cell.get("bins"),
                cell.get("bin_counts"),
            )
    # a slice of a larger table, as a reader of row groups has it
    part = from_rows(SPEC, rows.slice(cut))
    assert sum(table.num_rows for table in part.values()) == max(0, rows.num_rows - cut)
    assert plain(from_rows(SPEC, to_rows(SPEC, part))) == plain(part)
    assert all(not table.num_rows for table in from_rows(SPEC, rows.slice(0, 0)).values())


@seeded
@given(events=EVENTS, states=STATE_CELLS)
def test_cells_are_sorted_by_their_keys_nothing_first(events: list[Event], states: list[StateCell]) -> None:
    def rank(value: object) -> tuple[bool, object]:
        return (value is not None, value.encode() if isinstance(value, str) else value)

    for table in rolled(events, states=states).values():
        names = table.column_names[: table.column_names.index("bucket") + 1]
        keys = [tuple(rank(row[name]) for name in names) for row in table.to_pylist()]
        assert keys == sorted(keys)


@seeded
@given(rows=STATE_CELLS, more=STATE_CELLS)
def test_a_correction_of_states_leaves_what_a_rebuild_would(
    rows: list[StateCell], more: list[StateCell]
) -> None:
    """What was counted and is then taken back leaves no row behind, not even one that counts 0."""
    taken_back = [(*row[:5], -row[5]) for row in rows]
    corrected = merge(SPEC, [state_cells([*rows, *more]), state_cells(taken_back)], WIDTH)
    assert part_bytes(corrected) == part_bytes(merge(SPEC, [state_cells(more)], WIDTH))
    assert all(row["count"] for row in corrected["stage"].to_pylist())
    assert not merge(SPEC, [state_cells(rows), state_cells(taken_back)], WIDTH)["stage"].num_rows


def test_sums_beyond_64_bits_are_exact_over_many_merges() -> None:
    """2^63-1 summed 3 x 4^10 times is far beyond 64 bits; the count says how often."""
    cells = rolled([Event("acme", 0, "a", ("a", 1, True), (2**63 - 1, 10**18 - 1))] * 3)
    for _ in range(10):
        cells = merge(SPEC, [cells] * 4, WIDTH)
    times = 3 * 4**10
    (value,) = plain(cells)["all"].values()
    assert (value["count"], value["v0_count"], value["v1_count"]) == (times, times, times)
    assert (value["v0_sum"], value["v1_sum"]) == (times * (2**63 - 1), times * (10**18 - 1))
    assert plain(cells)["sizes"]["acme", "a", True, 0]["bin_counts"] == [times]
    assert from_rows(SPEC, to_rows(SPEC, cells))["all"].equals(cells["all"])


def test_first_and_last_of_one_instant_are_told_by_id_and_then_by_value() -> None:
    def event(id: str, value: int | None, time: int = 7) -> Event:
        return Event("t", time, id, ("a", None, None), (value, None))

    def ends(*events: Event) -> tuple[object, ...]:
        (cell,) = plain(rolled(events))["level"].values()
        return tuple(cell[f"v0_{name}"] for name in ("first", "first_id", "last", "last_id"))

    assert ends(event("b", 1), event("a", 2), event("ab", 3)) == (2, "a", 1, "b")
    assert ends(event("\uffff", 1), event("\U0001f30a", 2)) == (
        1,
        "\uffff",
        2,
        "\U0001f30a",
    )  # by their bytes
    assert ends(event("a", 5), event("a", -5), event("a", 0)) == (-5, "a", 5, "a")
    assert ends(event("z", 1, 8), event("a", 2, 9), event("m", 3, 7)) == (3, "m", 2, "a")
    assert ends(event("a", None, 1), event("b", 4), event("c", None, 9)) == (4, "b", 4, "b")
    assert ends(event("a", None)) == (None, None, None, None)


def test_an_event_counts_where_the_filter_is_true_and_not_where_it_is_unknown() -> None:
    events = [
        Event("t", 0, "1", ("a", None, None), (None, 249)),
        Event("t", 0, "2", ("a", None, None), (None, 250)),
        Event("t", 0, "3", ("b", None, None), (None, 0)),
        Event("t", 0, "4", (None, None, None), (None, 0)),
        Event("t", 0, "5", ("a", None, None), (None, None)),
    ]
    mask = passing(SPEC.metric("fast"), table_of(events))
    assert mask is not None
    assert mask.tolist() == [True, False, False, False, False]
    assert passing(SPEC.metric("all"), table_of(events)) is None
    assert [row["count"] for row in rolled(events)["fast"].to_pylist()] == [1]


def test_keys_that_do_not_fit_a_word_together_are_still_told_apart() -> None:
    wide = tuple(Dimension(f"n{i}", "integer", i) for i in range(4))
    spec = RollupSpec("s", (Metric("x", COUNTER, wide),))
    values = [[-(2**63), 0, 2**63 - 1, None][i % 4] for i in range(256)]
    columns = {f"d{k}": pa.array([values[i >> (2 * k)] for i in range(256)], pa.int64()) for k in range(4)}
    times = [(i % 2) * 2**56 for i in range(512)]
    events = pa.table({name: pa.concat_arrays([column, column]) for name, column in columns.items()})
    events = events.append_column("tenant", text(["t"] * 512)).append_column("event_time", pa.array(times))
    cells = accumulate(spec, events, WIDTH)["x"]
    assert cells.num_rows == 256
    assert set(cells.column("count").to_pylist()) == {2}


@seeded
@given(events=EVENTS, start=st.integers(-5, 5), width=st.integers(0, 5))
def test_files_of_cells_are_read_back_whole_or_for_a_span(
    events: list[Event], start: int, width: int
) -> None:
    cells = rolled(events, states=[("acme", "a", "NEW", (None, None, None), 0, 1)])
    span = Interval(start * WIDTH, (start + width) * WIDTH)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.cells"
        write_cells(path, cells)
        assert {name: t.to_pylist() for name, t in read_cells(str(path)).items()} == {
            name: t.to_pylist() for name, t in cells.items()
        }
        write_partial(path, cells)
        assert part_bytes(merge(SPEC, [read_cells(str(path))], WIDTH)) == part_bytes(cells)
        within = merge(SPEC, [read_partial(str(path), span)], WIDTH)
        assert part_bytes(within) == part_bytes(of_tiles(cells, [span.start], span.end - span.start))


def test_a_part_is_read_whatever_was_declared_when_it_was_written(tmp_path: Path) -> None:
    """Columns and metrics that came later are empty; rows of metrics that are gone are left out."""
    before = RollupSpec(
        "s",
        (
            Metric("all", COUNTER, (API, STATUS, OK), (BYTES,)),
            Metric("bins", COUNTER, (API,), (LATENCY,)),
            Metric("gone", GAUGE, (Dimension("was", "string", 0),), (Measure("old", "integer", 0, 0),)),
            Metric("level", COUNTER, (), (BYTES,)),
        ),
    )
    events = [Event("t", 0, "1", ("a", 200, True), (5, 7)), Event("t", 9, "2", ("a", 200, True), (6, 8))]
    rows = to_rows(before, merge(before, [accumulate(before, table_of(events), WIDTH)], WIDTH))
    part = write_part(tmp_path, "x.parquet", rows, partition={}, footer={}, stats_columns=["bucket"])
    assert "gone" in pq.read_table(part.path).column("metric").to_pylist()
    cells = from_rows(SPEC, read_part(SPEC, part.path))
    assert list(cells) == [metric.name for metric in SPEC.metrics]
    found = plain(merge(SPEC, [cells], WIDTH))
    assert {name for name, rows in found.items() if rows} == {"all", "bins", "level"}
    assert found["all"]["t", "a", 200, True, 0] == {
        "count": 2, "v0_count": 2, "v0_sum": 11, "v0_min": 5, "v0_max": 6,
        "v1_count": 0, "v1_sum": 0, "v1_min": None, "v1_max": None,
    }  # fmt: skip
    assert found["bins"]["t", "a", 0]["bins"] == []
    assert found["bins"]["t", "a", 0]["v0_sum"] == 15
    assert found["level"]["t", None, 0]["v0_last"] is None
    assert "gone" not in to_rows(SPEC, merge(SPEC, [cells], WIDTH)).column("metric").to_pylist()


def test_a_part_holds_only_the_texts_it_uses() -> None:
    events = [Event("t", n * WIDTH, str(n), (str(n), None, None), (n, None)) for n in range(100)]
    tile = of_tiles(rolled(events), [0], WIDTH)
    assert to_rows(SPEC, tile).column("api").combine_chunks().dictionary.to_pylist() == ["0"]


def test_a_stream_without_metrics_has_no_cells() -> None:
    empty = RollupSpec("s", ())
    events = pa.table({"tenant": pa.array(["t"]).dictionary_encode(), "event_time": pa.array([1])})
    assert accumulate(empty, events, WIDTH) == {}
    assert merge(empty, [{}], WIDTH) == {}
    assert to_rows(empty, {}).num_rows == 0
