"""Building windows: exactly the rows of their slices and span, in one order, to the same bytes however raw is
cut and however little memory there is; published once, adopted after a crash."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from tidemill.config import Stream
from tidemill.engine import Engine
from tidemill.model.failpoints import EXIT_CODE, observed
from tidemill.model.slices import set_hash
from tidemill.model.time import HOUR, MINUTE, SECOND, parse_instant, to_datetime
from tidemill.model.windows import Build, Dataset, Member, WindowKey
from tidemill.outputs.datasets.catalog import datasets_of, open_dataset
from tidemill.outputs.datasets.dataset import (
    FIRST_LAYOUT,
    clean_temporaries,
    columns_of_file,
    layout_of,
    read_dataset,
    stored_metadata,
)
from tidemill.outputs.datasets.kernel import BuildUnit, BuiltWindow, Sizes, WindowUnit, build_windows
from tidemill.outputs.datasets.row_order import BATCH_ROWS
from tidemill.storage import layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEN = parse_instant("2024-01-15T10:00:00Z")
TINY = Sizes(memory=1, bucket=4_000, buffer=9_000, batch=2_000)  # everything is spilled, and parted again
Row = tuple[int, str, str, str, int, str]  # event time, tenant, event id, slice, line, payload


def stream(**changed: object) -> Stream:
    declared: dict[str, object] = {
        "name": "weather",
        "schema": {
            "event_id": "string",
            "ts": "integer",
            "station": "string",
            "temperature": {"type": "decimal", "scale": 2},
            "count": "integer",
            "raining": "boolean",
            "wind.speed": "float",
            "notes": "any",
        },
        "event_time": {"column": "ts", "type": "unixtimestamp_us"},
        "identity": "event_id",
        "tenant": {"value": "default"},
        "aggregation_span": "1h",
    }
    return Stream.model_validate(declared | changed)


def row(number: int, time: int, slice_id: str = "a" * 64, tenant: str = "acme", **more: object) -> Row:
    payload = {"event_id": f"e{number:06d}", "ts": time, "count": number, **more}
    return time, tenant, f"e{number:06d}", slice_id, number, json.dumps(payload)


def write_part(path: Path, rows: Iterable[Row], row_group: int = 131_072) -> str:
    """A raw part as accept writes it, as far as a builder looks at it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(rows, key=lambda r: (r[1], r[0]))
    table = pa.table(
        {
            "tenant": pa.array([r[1] for r in ordered], pa.string()),
            "event_time": pa.array([r[0] for r in ordered], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "event_id": pa.array([r[2] for r in ordered], pa.string()),
            "slice": pa.array([r[3] for r in ordered], pa.string()),
            "line": pa.array([r[4] for r in ordered], pa.int64()),
            "payload": pa.array([r[5] for r in ordered], pa.string()),
        }
    )
    pq.write_table(table, path, row_group_size=row_group, compression="zstd")
    return str(path)


def order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda r: (r[0], r[2].encode(), r[1].encode(), r[3], r[4]))


def a_build(slices: Sequence[str], start: int = TEN, span: int = HOUR, revision: int = 1) -> Build:
    members = tuple(
        Member(slice=name.partition("~")[0], seq=seq, name=name, arrival=0, bounds=None, desired=True)
        for seq, name in enumerate(slices, start=1)
    )
    key = WindowKey("weather", start, span)
    return Build(key, "me", 0, 1, revision, None, set_hash(slices), members, "arrival", seal=len(slices))


def build(
    warehouse: Path, *windows: WindowUnit, sizes: Sizes | None = None, **changed: object
) -> list[BuiltWindow]:
    warehouse.mkdir(exist_ok=True)
    unit = BuildUnit(stream(**changed), str(warehouse), windows, sizes=sizes or Sizes())
    return list(build_windows(unit))


def built(results: Sequence[BuiltWindow]) -> Dataset:
    assert [result.error for result in results] == [None]
    dataset = results[0].dataset
    assert dataset is not None
    return dataset


def rows_of(warehouse: Path, dataset: Dataset) -> list[tuple[int, str, str]]:
    table = read(warehouse, dataset)
    time = table.column("event_time").cast(pa.int64()).to_pylist()
    return list(
        zip(time, table.column("tenant").to_pylist(), table.column("event_id").to_pylist(), strict=True)
    )


def read(warehouse: Path, dataset: Dataset) -> pa.Table:
    table: pa.Table = ipc.open_file(warehouse / dataset.file).read_all()
    table.validate(full=True)
    return table


A, B, C = "a" * 64, "b" * 64, "c" * 64


def as_read(dataset: Dataset) -> Dataset:
    """A file says whether its window is sealed; at which place, only the ledger knows."""
    return replace(dataset, sealed=None if dataset.sealed is None else 0)


def test_a_window_holds_the_rows_of_its_slices_and_its_span_and_no_others(tmp_path: Path) -> None:
    rows = [
        row(1, TEN, A),
        row(2, TEN + HOUR - 1, B),
        row(3, TEN - 1, A),  # before
        row(4, TEN + HOUR, A),  # at the end, which is not in it
        row(5, TEN + MINUTE, C),  # of a slice that is not used
    ]
    part = write_part(tmp_path / "raw/p.parquet", rows)
    dataset = built(build(tmp_path / "w", WindowUnit(a_build([A, B]), [part])))
    assert rows_of(tmp_path / "w", dataset) == [
        (TEN, "acme", "e000001"),
        (TEN + HOUR - 1, "acme", "e000002"),
    ]
    assert dataset == Dataset(
        key=WindowKey("weather", TEN, HOUR),
        revision=1,
        hash=set_hash([A, B]),
        slices=(A, B),
        rows=2,
        bytes=(tmp_path / "w" / dataset.file).stat().st_size,
        file="datasets/weather/aggregation/20240115T100000Z_1h/r1.arrow",
        sealed=2,
        columns=columns_of_file(tmp_path / "w", dataset.file),
    )
    assert read_dataset(tmp_path / "w", dataset.file) == as_read(dataset)


def test_columns_are_the_three_of_every_event_then_the_declared_ones_with_their_types(tmp_path: Path) -> None:
    full = row(1, TEN, station="é", temperature=1.1, raining=True, wind={"speed": 2.5}, notes=[1, "x"])
    part = write_part(tmp_path / "raw/p.parquet", [full, row(2, TEN + 1)])
    dataset = built(build(tmp_path / "w", WindowUnit(a_build([A]), [part])))
    table = read(tmp_path / "w", dataset)
    assert [(f.name, str(f.type)) for f in table.schema] == [
        ("event_time", "timestamp[us, tz=UTC]"),
        ("tenant", "string"),
        ("event_id", "string"),
        ("ts", "int64"),
        ("station", "string"),
        ("temperature", "decimal128(18, 2)"),
        ("count", "int64"),
        ("raining", "bool"),
        ("wind.speed", "double"),
        ("notes", "string"),
    ]
    first, second = table.to_pylist()
    assert str(first.pop("temperature")) == "1.10"
    assert first == {
        "event_time": to_datetime(TEN), "tenant": "acme", "event_id": "e000001", "ts": TEN, "station": "é",
        "count": 1, "raining": True, "wind.speed": 2.5, "notes": '[1, "x"]',
    }  # fmt: skip
    assert [second[name] for name in table.schema.names[4:]] == [None, None, 2, None, None, None]


def test_rows_are_in_order_of_time_then_id_then_tenant(tmp_path: Path) -> None:
    random = Random(7)
    rows = [
        row(random.randrange(50), TEN + random.choice([0, 1, SECOND]), A, random.choice(["é", "z", "acme"]))
        for _ in range(60)
    ]
    rows = list({r[:3]: r for r in rows}.values())
    part = write_part(tmp_path / "raw/p.parquet", rows)
    dataset = built(build(tmp_path / "w", WindowUnit(a_build([A]), [part])))
    assert rows_of(tmp_path / "w", dataset) == [r[:3] for r in order(rows)]


def test_rows_that_have_all_of_that_in_common_are_in_order_of_slice_and_line(tmp_path: Path) -> None:
    """A stream without a gate has no ids."""
    rows: list[Row] = [
        (TEN, "acme", "", name, line, f'{{"count":{line}}}') for name in (B, A) for line in (9, 2)
    ]
    part = write_part(tmp_path / "raw/p.parquet", rows)
    for sizes in (Sizes(), TINY):
        results = build(
            tmp_path / str(sizes.memory), WindowUnit(a_build([A, B]), [part]), sizes=sizes, gate="none"
        )
        table = read(tmp_path / str(sizes.memory), built(results))
        assert table.column("count").to_pylist() == [2, 9, 2, 9]


def many_rows(count: int = 900, seed: int = 3) -> list[Row]:
    """Rows of three slices: some in crowds of one instant, nulls in every column, long and short texts."""
    random = Random(seed)
    rows = []
    for number in range(count):
        crowded = random.random() < 0.4
        more: dict[str, object] = {}
        if random.random() < 0.6:
            more |= {"temperature": random.randrange(-(10**5), 10**5) / 100, "raining": random.random() < 0.5}
        if random.random() < 0.6:
            more |= {
                "station": random.choice(["", "é", "x" * 50, 'q"\n']),
                "wind": {"speed": random.random()},
            }
        if random.random() < 0.3:
            more["notes"] = {"deep": [number]}
        time = TEN + (17 * MINUTE if crowded else random.randrange(HOUR))
        rows.append(row(number, time, random.choice([A, B, C]), random.choice(["acme", "globex"]), **more))
    return rows


def test_the_same_set_gives_the_same_bytes_however_raw_is_cut_and_however_little_memory(
    tmp_path: Path,
) -> None:
    """Property over cuts and sizes: what is spilled, parted again or read in pieces leaves no trace."""
    rows = many_rows()
    wanted = None
    for number, sizes in enumerate(
        [Sizes(), TINY, replace(TINY, bucket=100_000), replace(TINY, buffer=1), Sizes(batch=1)]
    ):
        random = Random(number)
        random.shuffle(rows)
        cuts = [0, *sorted(random.sample(range(len(rows)), number)), len(rows)]
        parts = [
            write_part(
                tmp_path / f"raw{number}/p{cut}.parquet", rows[start:cut], random.choice([7, 100, 5_000])
            )
            for start, cut in pairwise(cuts)
        ]
        warehouse = tmp_path / f"w{number}"
        dataset = built(build(warehouse, WindowUnit(a_build([A, B, C]), parts), sizes=sizes))
        assert rows_of(warehouse, dataset) == [r[:3] for r in order(rows)]
        content = hashlib.sha256((warehouse / dataset.file).read_bytes()).hexdigest()
        wanted = wanted or content
        assert content == wanted, sizes
        assert list(layout.dataset_staging(warehouse, "weather").iterdir()) == []


def test_a_crowd_of_one_instant_is_parted_by_id(tmp_path: Path) -> None:
    rows = [row(number, TEN + MINUTE) for number in range(500)]
    part = write_part(tmp_path / "raw/p.parquet", rows, 50)
    dataset = built(build(tmp_path / "w", WindowUnit(a_build([A]), [part]), sizes=TINY))
    assert [r[2] for r in rows_of(tmp_path / "w", dataset)] == [f"e{n:06d}" for n in range(500)]


def quarters(warehouse: Path, dataset: Dataset) -> list[list[int]]:
    """The quarters of the hour that each record batch has rows of."""
    reader = ipc.open_file(warehouse / dataset.file)
    found = [
        reader.get_batch(n).column("event_time").cast(pa.int64()) for n in range(reader.num_record_batches)
    ]
    return [sorted({(time - TEN) // (15 * MINUTE) for time in batch.to_pylist()}) for batch in found]


def test_few_rows_share_a_record_batch(tmp_path: Path) -> None:
    part = write_part(tmp_path / "raw/p.parquet", many_rows())
    dataset = built(build(tmp_path / "w", WindowUnit(a_build([A, B, C]), [part])))
    assert quarters(tmp_path / "w", dataset) == [[0, 1, 2, 3]]


def test_a_record_batch_with_enough_rows_ends_with_its_quarter_of_an_hour(tmp_path: Path) -> None:
    rows = [row(number, TEN + number * (HOUR // 20_000)) for number in range(20_000)]  # 5,000 in a quarter
    part = write_part(tmp_path / "raw/p.parquet", rows)
    for sizes in (Sizes(), Sizes(memory=1, bucket=200_000, buffer=400_000)):
        warehouse = tmp_path / f"w{sizes.memory}"
        dataset = built(build(warehouse, WindowUnit(a_build([A]), [part]), sizes=sizes))
        assert quarters(warehouse, dataset) == [[0, 1], [2, 3]]


def test_datasets_of_the_first_layout_are_built_again_by_it(tmp_path: Path) -> None:
    part = write_part(tmp_path / "raw/p.parquet", many_rows())
    unit = BuildUnit(stream(), str(tmp_path), [WindowUnit(a_build([A, B, C]), [part])], layout=FIRST_LAYOUT)
    (found,) = build_windows(unit)
    assert found.dataset is not None
    assert quarters(tmp_path, found.dataset) == [[0], [1], [2], [3]]
    assert layout_of(tmp_path / found.dataset.file) == FIRST_LAYOUT


def test_a_record_batch_has_a_bounded_number_of_rows(tmp_path: Path) -> None:
    rows = [row(number, TEN + number) for number in range(BATCH_ROWS + 10)]
    part = write_part(tmp_path / "raw/p.parquet", rows)
    for sizes in (Sizes(), Sizes(memory=1, bucket=500_000, buffer=1_000_000)):
        warehouse = tmp_path / f"w{sizes.memory}"
        reader = ipc.open_file(
            warehouse / built(build(warehouse, WindowUnit(a_build([A]), [part]), sizes=sizes)).file
        )
        assert [reader.get_batch(n).num_rows for n in range(reader.num_record_batches)] == [BATCH_ROWS, 10]


def test_no_rows_is_a_dataset_that_says_so(tmp_path: Path) -> None:
    part = write_part(tmp_path / "raw/p.parquet", [row(1, TEN - 1)])
    for raw in ([], [part]):
        warehouse = tmp_path / f"w{len(raw)}"
        dataset = built(build(warehouse, WindowUnit(a_build([A]), raw)))
        assert dataset.rows == 0
        assert read(warehouse, dataset).num_rows == 0
        assert datasets_of(warehouse, "weather") == [as_read(dataset)]
        assert open_dataset(warehouse, dataset).metadata["hash"] == dataset.hash
        assert not (warehouse / layout.dataset_folder(dataset.key)).exists()  # no file, no folder
        assert pytest.importorskip("polars").read_ipc(warehouse / dataset.file).shape == (0, 10)


def test_pyarrow_duckdb_and_polars_read_it(tmp_path: Path) -> None:
    rows = many_rows(300)
    part = write_part(tmp_path / "raw/p.parquet", rows)
    dataset = built(build(tmp_path / "w", WindowUnit(a_build([A, B, C]), [part])))
    path = tmp_path / "w" / dataset.file
    wanted = read(tmp_path / "w", dataset).to_pylist()
    assert pads.dataset(path, format="ipc").to_table().to_pylist() == wanted
    there = pads.dataset(path, format="ipc")  # noqa: F841 - DuckDB finds it by its name
    query = 'SELECT count(*), count(temperature), sum(temperature), max("wind.speed") FROM there'
    temperatures = [r["temperature"] for r in wanted if r["temperature"] is not None]
    speeds = [r["wind.speed"] for r in wanted if r["wind.speed"] is not None]
    assert duckdb.sql(query).fetchone() == (300, len(temperatures), sum(temperatures), max(speeds))
    frame = pytest.importorskip("polars").read_ipc(path)
    assert frame["event_id"].to_list() == [r["event_id"] for r in wanted]
    assert frame["temperature"].to_list() == [r["temperature"] for r in wanted]


def test_a_file_says_of_itself_what_it_is(tmp_path: Path) -> None:
    wrong = [row(1, TEN, temperature="warm"), row(2, TEN + 1, temperature="hot", raining=1), row(3, TEN + 2)]
    part = write_part(tmp_path / "raw/p.parquet", wrong)
    dataset = built(build(tmp_path / "w", WindowUnit(a_build([f"{A}~1"]), [part])))
    said = stored_metadata(tmp_path / "w" / dataset.file)
    assert re.fullmatch("[0-9a-f]{8}", str(said.pop("tidemill_crc32")))
    assert said == {
        "kind": "dataset",
        "layout": 3,
        "stream": "weather",
        "window": "[2024-01-15T10:00:00Z, 2024-01-15T11:00:00Z)",
        "start": TEN,
        "span": HOUR,
        "revision": 1,
        "hash": set_hash([f"{A}~1"]),
        "slices": [f"{A}~1"],
        "rows": 3,
        "sealed": True,
        "misfits": {"temperature": 2, "raining": 1},
        "schema": {
            "event_id": "string", "ts": "integer", "station": "string", "temperature": "decimal(2)",
            "count": "integer", "raining": "boolean", "wind.speed": "float", "notes": "any",
        },
    }  # fmt: skip


def hourly(tmp_path: Path, hours: int, row_group: int = 131_072) -> tuple[list[Row], list[WindowUnit]]:
    rows = [row(n, TEN + n * HOUR * hours // 600, [A, B][n % 2], f"t{n % 7}") for n in range(600)]
    part = write_part(tmp_path / "raw/p.parquet", rows, row_group)
    return rows, [WindowUnit(a_build([A, B][: 1 + h % 2], TEN + h * HOUR), [part]) for h in range(hours)]


@pytest.mark.parametrize("sizes", [Sizes(), TINY])
def test_windows_that_share_parts_are_read_together_and_built_apart(
    tmp_path: Path, sizes: Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, windows = hourly(tmp_path, 12)
    opened: list[str] = []
    real = pq.ParquetFile

    def counted(path: str, **options: object) -> pq.ParquetFile:
        opened.append(path)
        return real(path, **options)

    monkeypatch.setattr(pq, "ParquetFile", counted)
    results = build(tmp_path / "w", *windows, sizes=sizes)
    assert len(opened) == (2 if sizes == Sizes() else 3)  # footer, histogram where it is needed, rows
    assert [result.key.start for result in results] == [TEN + h * HOUR for h in range(12)]
    for hour, result in enumerate(results):
        wanted = [
            r for r in order(rows) if r[0] // HOUR == TEN // HOUR + hour and r[3] in [A, B][: 1 + hour % 2]
        ]
        assert rows_of(tmp_path / "w", built([result])) == [r[:3] for r in wanted]


def test_a_window_that_cannot_be_built_does_not_stop_the_others(tmp_path: Path) -> None:
    _, (first, second, third) = hourly(tmp_path, 3)
    damaged = tmp_path / "raw/damaged.parquet"
    damaged.write_bytes(b"PAR1 this is no part PAR1")
    gone = replace(second, raw=[*second.raw, str(tmp_path / "raw/gone.parquet")])
    results = build(tmp_path / "w", first, gone, replace(third, raw=[str(damaged)]), third)
    assert [result.error is None for result in results] == [True, False, False, True]
    assert "gone.parquet: the part is missing" in str(results[1].error)
    assert "damaged.parquet: the part cannot be read" in str(results[2].error)
    assert results[1].dataset is None
    assert [d.key.start for d in datasets_of(tmp_path / "w", "weather")] == [TEN, TEN + 2 * HOUR]


def test_damage_inside_a_part_fails_only_the_windows_that_need_it(tmp_path: Path) -> None:
    good = write_part(tmp_path / "raw/good.parquet", [row(1, TEN), row(2, TEN + HOUR)])
    bad = write_part(tmp_path / "raw/bad.parquet", [(TEN + HOUR, "acme", "e3", A, 3, "not json")])
    windows = [WindowUnit(a_build([A], TEN + h * HOUR), [good, bad]) for h in range(2)]
    for sizes in (Sizes(), TINY):
        results = build(tmp_path / f"w{sizes.memory}", *windows, sizes=sizes)
        assert results[0].dataset is not None
        assert "no JSON object: 'not json'" in str(results[1].error)
        assert list(layout.dataset_staging(tmp_path / f"w{sizes.memory}", "weather").iterdir()) == []


# -- publishing


def test_what_a_dead_builder_published_is_adopted_as_it_is(tmp_path: Path) -> None:
    part = write_part(tmp_path / "raw/p.parquet", [row(1, TEN)])
    first = built(build(tmp_path / "w", WindowUnit(a_build([A]), [part])))
    before = (tmp_path / "w" / first.file).stat()
    again = build(tmp_path / "w", WindowUnit(a_build([A]), [str(tmp_path / "not even read")]))
    assert (built(again), again[0].adopted) == (first, True)
    assert (tmp_path / "w" / first.file).stat() == before


@pytest.mark.parametrize("why", ["another set", "another schema", "another seal"])
def test_a_number_that_is_taken_by_something_else_is_never_overwritten(tmp_path: Path, why: str) -> None:
    part = write_part(tmp_path / "raw/p.parquet", [row(1, TEN, A), row(2, TEN + 1, B)])
    first = built(build(tmp_path / "w", WindowUnit(a_build([A]), [part])))
    content = (tmp_path / "w" / first.file).read_bytes()
    changed: dict[str, object] = {"tenant": {"value": "default"}}
    wanted = a_build([A])
    if why == "another set":
        wanted = a_build([A, B])
    elif why == "another schema":
        changed = {"schema": {"event_id": "string", "ts": "integer", "count": "string"}}
    else:
        wanted = replace(wanted, seal=None)
    results = build(tmp_path / "w", WindowUnit(wanted, [part]), **changed)
    second = built(results)
    assert (second.revision, results[0].adopted) == (2, False)
    assert (tmp_path / "w" / first.file).read_bytes() == content
    assert stored_metadata(tmp_path / "w" / second.file)["revision"] == 2
    assert datasets_of(tmp_path / "w", "weather", second.key) == [as_read(first), as_read(second)]


@pytest.mark.parametrize(("other", "wanted", "adopted"), [([A], 1, True), ([A, B], 2, False)])
def test_of_two_builders_at_the_same_number_the_first_to_link_has_it(
    tmp_path: Path, other: list[str], wanted: int, adopted: bool
) -> None:
    """W19 on disk: the slower one adopts what is the same, and takes the next number otherwise."""
    part = write_part(tmp_path / "raw/p.parquet", many_rows(50))
    racing: list[Dataset] = []

    def overtake(point: str) -> None:
        if point == "dataset.after_temp" and not racing:
            racing.append(Dataset(WindowKey("weather", TEN, HOUR), 0, "", (), 0, 0, ""))
            racing[0] = built(build(tmp_path / "w", WindowUnit(a_build(other), [part])))

    with observed(overtake):
        results = build(tmp_path / "w", WindowUnit(a_build([A]), [part]))
    dataset = built(results)
    assert racing[0].revision == 1
    assert (dataset.revision, results[0].adopted) == (wanted, adopted)
    assert read_dataset(tmp_path / "w", dataset.file) == as_read(dataset)
    assert rows_of(tmp_path / "w", dataset) == [r[:3] for r in order(many_rows(50)) if r[3] == A]
    alone = built(build(tmp_path / "alone", WindowUnit(a_build([A], revision=wanted), [part])))
    assert (tmp_path / "w" / dataset.file).read_bytes() == (tmp_path / "alone" / alone.file).read_bytes()
    assert list(layout.dataset_staging(tmp_path / "w", "weather").iterdir()) == []


@pytest.mark.parametrize(
    ("point", "published"), [("dataset.after_temp", False), ("dataset.after_link", True)]
)
def test_death_while_publishing_leaves_a_whole_dataset_or_none_and_a_leftover_that_is_cleaned(
    tmp_path: Path, point: str, published: bool
) -> None:
    script = (
        "import pickle, sys\n"
        "from tidemill.outputs.datasets.kernel import build_windows\n"
        "list(build_windows(pickle.load(sys.stdin.buffer)))\n"
    )
    part = write_part(tmp_path / "raw/p.parquet", many_rows(50))
    warehouse = tmp_path / "w"
    warehouse.mkdir()
    unit = BuildUnit(stream(), str(warehouse), [WindowUnit(a_build([A]), [part])])
    died = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps(unit),
        env={**os.environ, "TIDEMILL_FAILPOINT": point},
        check=False,
    )
    assert died.returncode == EXIT_CODE
    assert len(list(layout.dataset_staging(warehouse, "weather").iterdir())) == 1
    assert len(datasets_of(warehouse, "weather")) == published
    assert clean_temporaries(warehouse, "weather") == 1
    results = list(build_windows(unit))
    assert (built(results).revision, results[0].adopted) == (1, published)
    assert list(layout.dataset_staging(warehouse, "weather").iterdir()) == []


def test_cleaning_leaves_alone_what_is_being_written(tmp_path: Path) -> None:
    part = write_part(tmp_path / "raw/p.parquet", [row(1, TEN)])
    cleaned: list[int] = []

    def clean(point: str) -> None:
        if point == "dataset.after_temp":
            cleaned.append(clean_temporaries(tmp_path / "w", "weather"))

    with observed(clean):
        built(build(tmp_path / "w", WindowUnit(a_build([A]), [part])))
    assert cleaned == [0]
    assert clean_temporaries(tmp_path / "w", "weather") == 0
    assert clean_temporaries(tmp_path / "w", "no such stream") == 0


@pytest.mark.parametrize(
    ("start", "span", "folder"),
    [
        (TEN, HOUR, "20240115T100000Z_1h"),
        (TEN + 250_000, 250_000, "20240115T100000.250000Z_250ms"),
        (-7 * HOUR, 7 * HOUR, "19691231T170000Z_7h"),
        (parse_instant("0001-01-01T00:00:00Z") - HOUR, 7 * HOUR, "-62135600400000000us_7h"),
    ],
)
def test_a_window_has_a_folder_that_sorts_by_time(start: int, span: int, folder: str) -> None:
    key = WindowKey("weather", start, span)
    assert layout.dataset_folder(key) == f"datasets/weather/aggregation/{folder}"
    assert layout.dataset(key, 12) == f"datasets/weather/aggregation/{folder}/r12.arrow"


def test_on_spark_the_same_bytes(tmp_path: Path, spark: SparkSession) -> None:
    _, windows = hourly(tmp_path, 4)

    def content(warehouse: Path, run: Callable[[list[BuildUnit]], list[BuiltWindow]]) -> list[bytes]:
        warehouse.mkdir()
        units = [BuildUnit(stream(), str(warehouse), windows[at : at + 2]) for at in (0, 2)]
        return [(warehouse / built([result]).file).read_bytes() for result in run(units)]

    here = content(tmp_path / "here", lambda units: [r for unit in units for r in build_windows(unit)])
    there = content(
        tmp_path / "there", lambda units: Engine(spark).run(build_windows, units, "build windows")
    )
    assert here == there
    assert len(here) == 4
