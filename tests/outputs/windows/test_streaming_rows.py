"""Extracted rows are what plain Python takes from the same rows of raw, one by one, by the model's rules."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.config import Stream
from tidemill.formats.payload_columns import columns_of, typed
from tidemill.model.errors import StorageError
from tidemill.model.streaming import (
    Aggregate,
    Close,
    Fate,
    Function,
    LatePolicy,
    Value,
    WindowKind,
    WindowSpec,
)
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, SECOND, Interval
from tidemill.outputs.windows.extract import (
    ExtractUnit,
    RowPosition,
    RowScope,
    extract,
    field_type,
    row_schema,
    rows_of,
)
from tidemill.outputs.windows.grid import Grid
from tidemill.outputs.windows.keys import Key, bucket_of, buckets_of
from tidemill.outputs.windows.row_fates import fates
from tidemill.outputs.windows.row_group_cache import Narrow, RowGroup, RowGroups, Wide
from tidemill.raw.tables import RAW
from tidemill.storage.tables.parts import write_part

ALL = Interval(MIN_INSTANT, MAX_INSTANT)
STREAM = Stream.model_validate(
    {
        "name": "trips",
        "schema": {
            "id": "string",
            "ts": "integer",
            "user": "string",
            "lane": "integer",
            "fast": "boolean",
            "fare": {"type": "decimal", "scale": 2},
            "tenant": "string",
            "deep.kind": "string",
        },
        "identity": "id",
    }
)
STATS = ("tenant", "event_time", "slice")
WITH_WATERMARKS = (*STATS, "watermark")
LEDGER = {"s1": RowPosition(1, "s1"), "s2": RowPosition(2, "s2~1"), "s3": RowPosition(3, "s3")}


@dataclass(frozen=True)
class Row:
    """A row of raw."""

    time: int
    met: int | None = None
    slice: str = "s1"
    line: int = 0
    tenant: str = "a"
    values: Mapping[str, object] | None = None

    @property
    def payload(self) -> str:
        return json.dumps({"id": f"{self.slice}-{self.line}", **(self.values or {})}, ensure_ascii=False)


def part(folder: Path, name: str, rows: Sequence[Row], stats: Sequence[str] = STATS, group: int = 4) -> str:
    table = pa.Table.from_pydict(
        {
            "day": ["x"] * len(rows),
            "tenant": [row.tenant for row in rows],
            "event_time": [row.time for row in rows],
            "event_id": ["e"] * len(rows),
            "event_type": [None] * len(rows),
            "arrival": [row.time for row in rows],
            "watermark": [row.met for row in rows],
            "slice": [row.slice for row in rows],
            "line": [row.line for row in rows],
            "payload": [row.payload for row in rows],
        },
        schema=RAW,
    )
    partition = {"day": "x"}
    written = write_part(
        folder,
        f"{name}.parquet",
        table,
        partition=partition,
        footer={},
        stats_columns=stats,
        row_group_rows=group,
    )
    return written.path


def spec_of(kind: WindowKind = WindowKind.TUMBLING, **reported: object) -> WindowSpec:
    first = WindowSpec("trips", "w", kind, size=10, step=10, gap=5, count=2)
    spec = replace(first, **reported)  # type: ignore[arg-type]
    total = Aggregate("total", Function.SUM, "fare", "decimal", 2)
    return replace(spec, aggregates=(total,)) if not spec.aggregates else spec


def run(
    folder: Path,
    spec: WindowSpec,
    parts: Sequence[str],
    wanted: RowScope,
    cuts: Sequence[int] = (),
    buckets: int = 1,
) -> dict[int, pa.Table]:
    """By bucket; the same whether it is read by itself, or decoded for several windows, before or now."""
    alone = ExtractUnit(spec, STREAM, parts, LEDGER, wanted, cuts, buckets, str(folder), "u0")
    shared = replace(alone, shared=RowGroups(["fast", *spec.columns]))
    found = []
    for unit in (alone, shared, shared):
        (done,) = extract(unit)
        tables = {bucket: rows_of(spec, STREAM, [file]) for bucket, file in done.files.items()}
        assert done.rows == sum(table.num_rows for table in tables.values())
        found.append({bucket: table.to_pylist() for bucket, table in tables.items()})
    assert found[0] == found[1] == found[2]
    return tables


def extracted(
    spec: WindowSpec, rows: Sequence[Row], wanted: RowScope | None = None
) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        tables = run(Path(folder), spec, [part(Path(folder), "p", rows)], wanted or RowScope(ALL))
        assert set(tables) <= {0}
        found: list[dict[str, object]] = tables[0].to_pylist() if tables else []
        return found


# -- single rules


def test_a_row_has_its_instant_its_place_and_its_fields() -> None:
    spec = spec_of(key=("user",), group_by=("deep.kind",), kind=WindowKind.SESSION)
    values = {"user": "ü\n", "fare": 1.5, "deep": {"kind": "k"}, "lane": 7}
    row = Row(30, 20, "s2", 8, "t", values)
    assert extracted(spec, [row]) == [
        {
            "at": 30,
            "time": 30,
            "seq": 2,
            "line": 8,
            "name": "s2~1",
            "late": False,
            "bytes": len(row.payload.encode()),
            "tenant": "t",
            "f.user": "ü\n",
            "f.deep.kind": "k",
            "f.fare": Decimal("1.50"),
        }
    ]


def test_a_value_that_does_not_fit_its_type_is_null() -> None:
    spec = spec_of(group_by=("lane", "fast", "user"))
    (row,) = extracted(spec, [Row(1, values={"lane": "x", "fast": 1, "user": 2, "fare": "x"})])
    assert [row[f"f.{name}"] for name in ("lane", "fast", "user", "fare")] == [None] * 4


def test_a_field_with_the_name_of_a_column_of_raw_is_read_from_the_payload() -> None:
    (row,) = extracted(spec_of(group_by=("tenant",)), [Row(1, tenant="a", values={"tenant": "b"})])
    assert (row["tenant"], row["f.tenant"]) == ("a", "b")


def test_types_are_those_of_the_readers_of_payloads() -> None:
    columns = columns_of(STREAM)
    read = typed(columns, pa.array(["{}"], pa.string())).arrays
    for column, array in zip(columns.columns, read, strict=True):
        assert field_type(STREAM, column.name) == array.type


def test_rows_of_slices_that_are_not_in_the_ledger_are_left_out() -> None:
    rows = [Row(1, slice="gone"), Row(2, slice="s3"), Row(3, slice="gone")]
    assert [row["time"] for row in extracted(spec_of(), rows)] == [2]
    assert extracted(spec_of(), rows[:1]) == []


def test_next_window_finds_late_rows_by_the_watermark_they_met() -> None:
    """Their event times lie long before the span, with and without statistics of watermarks."""
    spec = spec_of(late=LatePolicy.NEXT_WINDOW)
    rows = [Row(1, 105, line=1), Row(2, 205, line=2), Row(110, 105, line=3), Row(120, None, line=4)]
    for stats in (STATS, WITH_WATERMARKS):
        with tempfile.TemporaryDirectory() as folder:
            path = part(Path(folder), "p", rows, stats, group=1)
            (table,) = run(Path(folder), spec, [path], RowScope(Interval(100, 120))).values()
            assert table.select(["at", "time", "late"]).to_pylist() == [
                {"at": 105, "time": 1, "late": True},
                {"at": 110, "time": 110, "late": False},
            ]


def test_row_groups_without_a_wanted_row_are_not_read() -> None:
    """A payload that is no JSON tells when it is looked into."""

    @dataclass(frozen=True)
    class Broken(Row):
        @property
        def payload(self) -> str:
            return "no JSON"

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = part(folder, "p", [Row(5), Broken(15), Row(25, line=9)], group=1)
        wanted = RowScope(ALL, starts=[Interval(0, 10), Interval(20, 30)])
        (table,) = run(folder, spec_of(), [path], wanted).values()
        assert table.column("time").to_pylist() == [5, 25]
        with pytest.raises(StorageError, match="no JSON object"):
            run(folder, spec_of(), [path], RowScope(ALL))


def test_a_damaged_part_says_so(tmp_path: Path) -> None:
    (tmp_path / "p.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(StorageError, match="cannot be read"):
        run(tmp_path, spec_of(), [str(tmp_path / "p.parquet")], RowScope(ALL))


def test_sliding_rows_are_in_every_bucket_that_holds_one_of_their_windows(tmp_path: Path) -> None:
    spec = spec_of(WindowKind.SLIDING, size=20, step=5)
    path = part(tmp_path, "p", [Row(21, line=1), Row(31, line=2)])
    tables = run(tmp_path, spec, [path], RowScope(ALL), cuts=[10, 20])  # windows 5 to 20, and 15 to 30
    assert {b: t.column("line").to_pylist() for b, t in tables.items()} == {0: [1], 1: [1, 2], 2: [1, 2]}


def test_no_rows_have_the_schema_too() -> None:
    spec = spec_of(key=("user",), kind=WindowKind.SESSION)
    table = rows_of(spec, STREAM, [])
    assert table.num_rows == 0
    assert table.schema == row_schema(spec, STREAM)


# -- against the rules, one row at a time

instants = st.integers(-60, 60)
values = st.fixed_dictionaries(
    {},
    optional={
        "user": st.sampled_from(["u", 'q"\\', "\n\u00fc", "", None, 5]),
        "lane": st.sampled_from([1, 2, None, "x"]),
        "fast": st.sampled_from([True, False, None]),
        "fare": st.sampled_from([1, "2", 0.25]),
    },
)
raws = st.lists(
    st.builds(
        Row,
        time=instants,
        met=st.none() | instants,
        slice=st.sampled_from(["s1", "s2", "s3", "gone"]),
        tenant=st.sampled_from(["a", "b\u00e9"]),
        values=values,
    ),
    max_size=24,
).map(lambda rows: [replace(row, line=number) for number, row in enumerate(rows)])
lates = st.fixed_dictionaries(
    {
        "late": st.sampled_from(LatePolicy),
        "max_lateness": st.integers(0, 30),
        "close": st.sampled_from(Close),
    }
)


def disjoint(points: list[int]) -> list[Interval]:
    ordered = sorted(set(points))
    return [Interval(a, b) for a, b in zip(ordered[::2], ordered[1::2], strict=False)]


intervals = st.lists(st.integers(-80, 80), max_size=6).map(disjoint)
spans = st.just(ALL) | st.tuples(instants, instants).map(lambda two: Interval(min(two), max(two)))


def checked(tables: Mapping[int, pa.Table], expected: Mapping[int, Sequence[Row]], spec: WindowSpec) -> None:
    """The same rows in the same order in every bucket."""
    assert set(tables) == set(expected)
    for bucket, table in tables.items():
        table.validate(full=True)
        assert all(column.num_chunks == 1 for column in table.columns)
        assert table.schema == row_schema(spec, STREAM)
        rows = sorted(
            expected[bucket], key=lambda r: (spec.counts_at(r.time, r.met), LEDGER[r.slice].seq, r.line)
        )
        found = table.to_pylist()
        assert [row["line"] for row in found] == [row.line for row in rows]
        for got, row in zip(found, rows, strict=True):
            assert got["at"] == spec.counts_at(row.time, row.met)
            assert got["time"] == row.time
            assert (got["seq"], got["name"]) == (LEDGER[row.slice].seq, LEDGER[row.slice].name)
            assert got["late"] == (spec.fate(row.time, row.met) is not Fate.ON_TIME)
            assert got["bytes"] == len(row.payload.encode())
            assert got["tenant"] == row.tenant


def used(spec: WindowSpec, row: Row, wanted: RowScope) -> bool:
    inside = row.slice in LEDGER and spec.fate(row.time, row.met).used
    if wanted.slices is not None:
        built = [row.slice in ids for window, ids in wanted.slices.items() if window.holds(row.time)]
        inside = inside and built == [True]
    return inside and wanted.span.holds(spec.counts_at(row.time, row.met))


slices = st.none() | st.tuples(intervals, st.lists(st.sets(st.sampled_from(["s1", "s2", "s3"])))).map(
    lambda two: {window: frozenset(ids) for window, ids in zip(*two, strict=False)}
)


@examples(150)
@given(
    rows=raws,
    late=lates,
    size=st.integers(1, 40),
    step=st.integers(1, 40),
    span=spans,
    starts=st.none() | intervals,
    cuts=st.lists(st.integers(-80, 80), max_size=4, unique=True).map(sorted),
    slices=slices,
    group=st.integers(1, 8),
    watermarks=st.booleans(),
)
def test_rows_of_the_grid_are_those_of_the_rules(
    rows: list[Row],
    late: dict[str, object],
    size: int,
    step: int,
    span: Interval,
    starts: list[Interval] | None,
    cuts: list[int],
    slices: dict[Interval, frozenset[str]] | None,
    group: int,
    watermarks: bool,
) -> None:
    spec = spec_of(WindowKind.SLIDING, size=size, step=step, group_by=("user",), **late)
    wanted = RowScope(span, starts, slices=slices)
    expected: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if used(spec, row, wanted):
            windows = spec.windows_at(spec.counts_at(row.time, row.met))
            ours = [w.start for w in windows if starts is None or any(s.holds(w.start) for s in starts)]
            for bucket in {sum(cut <= start for cut in cuts) for start in ours}:
                expected[bucket].append(row)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stats = WITH_WATERMARKS if watermarks else STATS
        halves = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
        parts = [part(folder, f"p{number}", half, stats, group) for number, half in enumerate(halves)]
        checked(run(folder, spec, parts, wanted, cuts), expected, spec)


KEYS = st.sampled_from([(), ("user",), ("lane", "fast"), ("user", "lane", "fast")])


def key_of(spec: WindowSpec, row: Row) -> Key:
    kinds: dict[str, type] = {"user": str, "lane": int, "fast": bool}
    found: list[Value] = []
    for name in spec.key:
        value = (row.values or {}).get(name)
        found.append(value if isinstance(value, kinds[name]) else None)  # type: ignore[arg-type]
    return row.tenant, tuple(found)


@examples(150)
@given(
    rows=raws,
    late=lates,
    key=KEYS,
    span=spans,
    again=st.none() | st.lists(st.tuples(st.integers(0, 30), instants), max_size=3),
    since=st.none() | instants,
    buckets=st.integers(1, 4),
    group=st.integers(1, 8),
)
def test_rows_by_key_are_those_of_the_rules(
    rows: list[Row],
    late: dict[str, object],
    key: tuple[str, ...],
    span: Interval,
    again: list[tuple[int, int]] | None,
    since: int | None,
    buckets: int,
    group: int,
) -> None:
    spec = spec_of(WindowKind.SESSION, key=key, group_by=("user",), **late)
    chosen = None
    if again is not None:
        chosen = {key_of(spec, rows[n % len(rows)]) if rows else ("a", ()): at for n, at in again}
    wanted = RowScope(span, again=chosen, since=since)
    expected: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        at = spec.counts_at(row.time, row.met)
        mine = key_of(spec, row)
        asked = chosen is None or (since is not None and at >= since)
        if used(spec, row, wanted) and (
            asked or (chosen is not None and at >= chosen.get(mine, MAX_INSTANT))
        ):
            expected[bucket_of(mine, buckets)].append(row)
    with tempfile.TemporaryDirectory() as name:
        path = part(Path(name), "p", rows, group=group)
        checked(run(Path(name), spec, [path], wanted, buckets=buckets), expected, spec)


@given(times=st.lists(st.tuples(instants, st.none() | instants)), late=lates)
def test_fates_of_many_rows_are_those_of_each(
    times: list[tuple[int, int | None]], late: dict[str, object]
) -> None:
    spec = spec_of(WindowKind.TUMBLING, **late)
    time = np.array([t for t, _ in times], np.int64)
    met = np.array([m or 0 for _, m in times], np.int64)
    found = fates(spec, time, met, np.array([m is not None for _, m in times], np.bool_))
    assert found.used.tolist() == [spec.fate(t, m).used for t, m in times]
    assert found.late.tolist() == [spec.fate(t, m) is not Fate.ON_TIME for t, m in times]
    instant = [spec.counts_at(t, m) for t, m in times if spec.fate(t, m).used]
    assert found.at[found.used].tolist() == instant


@given(
    at=st.lists(st.integers(MIN_INSTANT, MAX_INSTANT), min_size=1),
    size=st.integers(1, 10**12),
    step=st.integers(1, 10**12),
)
def test_the_grid_holds_what_lies_in_a_window(at: list[int], size: int, step: int) -> None:
    size = min(size, step * 50)
    spec = spec_of(WindowKind.SLIDING, size=size, step=step)
    held = Grid(spec, None, []).holds(np.array(at, np.int64)).tolist()
    assert held == [bool(spec.windows_at(instant)) for instant in at]


@given(
    rows=st.lists(
        st.tuples(
            st.text(), st.none() | st.text(), st.none() | st.integers(-(2**63), 2**63 - 1), st.booleans()
        )
    ),
    width=st.integers(0, 3),
    buckets=st.integers(1, 100),
)
def test_buckets_of_many_keys_are_those_of_each(
    rows: list[tuple[str, str | None, int | None, bool]], width: int, buckets: int
) -> None:
    kinds = (pa.string(), pa.string(), pa.int64(), pa.bool_())
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    found = buckets_of(columns[0].dictionary_encode(), columns[1 : 1 + width], buckets)
    assert found.tolist() == [bucket_of((row[0], row[1 : 1 + width]), buckets) for row in rows]


def test_many_rows_keep_their_order_over_several_batches(tmp_path: Path) -> None:
    """More than one batch of payloads, ties at every instant, two files of one bucket."""
    rows = [
        Row(SECOND * (n % 50), slice=("s1", "s2", "s3")[n % 3], line=n, values={"lane": n % 7})
        for n in range(80_000)
    ]
    halves = [part(tmp_path, f"p{n}", rows[n::2], group=50_000) for n in range(2)]
    spec = spec_of(WindowKind.SESSION, key=("lane",))
    files = []
    for number, path in enumerate(halves):
        unit = ExtractUnit(
            spec, STREAM, [path], LEDGER, RowScope(ALL), folder=str(tmp_path), name=f"u{number}"
        )
        (done,) = extract(unit)
        files.append(done.files[0])
    table = rows_of(spec, STREAM, files)
    found = list(zip(*(table.column(name).to_pylist() for name in ("at", "seq", "line")), strict=True))
    assert found == sorted((row.time, LEDGER[row.slice].seq, row.line) for row in rows)
    assert table.column("f.lane").to_pylist() == [line % 7 for _, _, line in found]


# -- row groups that windows share


def row_group(rows: int) -> RowGroup:
    numbers = np.arange(rows, dtype=np.int64)
    words = pa.array(["s"] * rows).dictionary_encode()
    return RowGroup(
        Narrow(numbers, pa.array(numbers), words), Wide(words, pa.array(numbers), pa.array(numbers), {})
    )


def test_a_row_group_is_decoded_once_and_those_used_last_are_kept() -> None:
    one = row_group(100)
    shared = RowGroups(limit=2 * one.nbytes)
    decoded: list[int] = []

    def get(number: int) -> None:
        def decode() -> RowGroup:
            decoded.append(number)
            return one

        assert shared.get(("p", 1, 1, number), decode) is one

    for number in (0, 1, 0, 1):
        get(number)
    assert decoded == [0, 1]
    assert shared.find(("p", 1, 1, 0)) is one  # used after the other
    get(2)
    assert [shared.find(("p", 1, 1, number)) for number in range(3)] == [one, None, one]
    assert shared.find(("p", 2, 1, 0)) is None  # a part of the same name with other bytes


def test_a_row_group_that_cannot_be_decoded_is_tried_again() -> None:
    shared = RowGroups()

    def fail() -> RowGroup:
        raise StorageError("damaged")

    for _ in range(2):
        with pytest.raises(StorageError, match="damaged"):
            shared.get(("p", 1, 1, 0), fail)
    found = row_group(1)
    assert shared.get(("p", 1, 1, 0), lambda: found) is found


def test_a_copy_in_another_process_keeps_nothing() -> None:
    copy = pickle.loads(pickle.dumps(RowGroups(["fare"])))  # noqa: S301 - pickled here
    assert copy.columns == ("fare",)
    assert not copy.is_on
