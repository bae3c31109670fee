"""Queries over a real table: files found by its log and statistics, columns that came late, odd folders."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.model.completeness import Available
from tidemill.model.errors import DamageError, QueryError
from tidemill.model.levels import LEVELS
from tidemill.model.time import DAY, parse_instant
from tidemill.query import Answer, Files, NoRollups, Querier, SnapshotSource
from tidemill.storage.tables.parts import write_part
from tidemill.storage.tables.table import Table

START = parse_instant("2024-01-01T00:00:00Z")


@pytest.fixture
def table(tmp_path: Path, kit) -> Table:
    """Three days of one event an hour, a part for each level and day."""
    schema = pa.schema([pa.field("level", pa.string()), *kit.SCHEMA])
    opened = Table.open(tmp_path / "rollups", schema=schema, partition_by=["level"], name="rollups")
    staged = []
    for day in range(3):
        events = [kit.Event(START + day * DAY + hour * DAY // 24, latency=hour) for hour in range(24)]
        for level in LEVELS[:4]:
            rows = pa.Table.from_pylist(kit.rolled(events, level.width), schema=kit.SCHEMA)
            staged.append(
                write_part(
                    opened.staging(f"d{day}"),
                    f"{day}-{level.name}.parquet",
                    rows,
                    partition={"level": level.name},
                    footer={"kind": "rollups"},
                    stats_columns=["bucket", "tenant"],
                )
            )
    opened.commit(opened.publish(staged), info={})
    return opened


def ask(querier: Querier, text: str) -> Answer:
    answer = querier.ask(text, tenant=None, now=START)
    assert isinstance(answer, Answer)
    return answer


def test_only_files_of_the_level_and_span_are_read(table, kit):
    source = SnapshotSource(table.snapshot())
    querier = Querier({"requests": kit.SHOP}, lambda name: source)
    day = ask(
        querier,
        "SELECT count, sum(latency_ms) FROM requests BETWEEN 2024-01-02 AND 2024-01-03 USING ROLLUP 1h",
    )
    assert (day.files_read, day.rows_read, day.version) == (1, 24, table.version)
    assert day.table.column("count").to_pylist() == [1] * 24
    all_days = ask(querier, "SELECT count FROM requests INTERVAL 3d")
    assert (all_days.level, all_days.files_read, all_days.rows_read) == ("1d", 3, 3)
    assert sum(all_days.table.column("count").to_pylist()) == 72
    nothing = ask(querier, "SELECT count FROM requests BETWEEN 2024-01-02 AND 2024-01-02")
    assert (nothing.files_read, nothing.table.to_pylist()) == (0, [{"count": 0}])


def test_a_stream_without_rollups_answers_with_nothing(kit):
    querier = Querier({"requests": kit.SHOP}, lambda name: NoRollups())
    text = "SELECT count, avg(price) FROM requests BETWEEN 2024-01-01 AND 2024-01-02 USING ROLLUP 1d"
    assert ask(querier, f"{text} GROUP BY api").table.num_rows == 0
    total = ask(querier, "SELECT count, sum(price) FROM requests")
    assert total.table.column("count").to_pylist() == [0]
    assert total.completeness.data is None


class Pile:
    """Just these files."""

    version, available, raw = 1, Available(), None

    def __init__(self, *paths: Path) -> None:
        self.paths = [str(path) for path in paths]

    def files_for(self, level: str, spans: object) -> Files:
        return Files(self.paths, 0)


def test_a_dimension_declared_later_is_null_in_older_files(tmp_path, kit):
    rows = pa.Table.from_pylist(kit.rolled([kit.Event(START)], DAY), schema=kit.SCHEMA)
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    pq.write_table(rows.drop_columns(["region", "price__sum", "price__count"]), old)
    pq.write_table(rows, new)
    text = "SELECT count, sum(price), avg(price) FROM requests USING ROLLUP 1d GROUP BY region"
    both = Querier({"requests": kit.SHOP}, lambda name: Pile(old, new))
    assert [(r["region"], r["count"]) for r in ask(both, text).table.to_pylist()] == [("eu", 1), (None, 1)]
    only = Querier({"requests": kit.SHOP}, lambda name: Pile(old))
    assert [(r["region"], r["count"]) for r in ask(only, text).table.to_pylist()] == [(None, 1)]


def test_a_folder_name_is_never_a_pattern_or_a_partition(tmp_path, kit):
    folder = tmp_path / "it's [1] * ? $files" / "level=9x" / "region=moon"
    folder.mkdir(parents=True)
    rows = pa.Table.from_pylist(kit.rolled([kit.Event(START)], DAY), schema=kit.SCHEMA)
    pq.write_table(rows, folder / "a[b].parquet")
    querier = Querier({"requests": kit.SHOP}, lambda name: Pile(folder / "a[b].parquet"))
    text = "SELECT count FROM requests USING ROLLUP 1d GROUP BY region"
    assert [(r["region"], r["count"]) for r in ask(querier, text).table.to_pylist()] == [("eu", 1)]


def test_a_file_that_is_gone_or_damaged_is_named(tmp_path, kit):
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 not at all PAR1")
    for path in (tmp_path / "gone.parquet", damaged):
        querier = Querier({"requests": kit.SHOP}, lambda name, path=path: Pile(path))
        with pytest.raises(DamageError, match=r"the part (is missing|cannot be read)"):
            ask(querier, "SELECT count FROM requests")


def test_the_largest_sums_are_exact_and_a_count_beyond_64_bits_is_refused(tmp_path, kit):
    """A value has 63 bits and so has a count: no sum can leave 38 digits before the count is refused."""
    (row,) = kit.rolled([kit.Event(START)], DAY)
    half, most = 2**62, 2**63 - 1
    row |= {"count": half - 1, "latency_ms__count": half - 1, "latency_ms__sum": Decimal((half - 1) * most)}
    one, two, three = (tmp_path / f"{name}.parquet" for name in ("one", "two", "three"))
    for path in (one, two, three):
        pq.write_table(pa.Table.from_pylist([row], schema=kit.SCHEMA), path)
    text = "SELECT count, sum(latency_ms), avg(latency_ms) FROM requests"
    both = Querier({"requests": kit.SHOP}, lambda name: Pile(one, two))
    assert ask(both, text).table.to_pylist() == [
        {
            "count": 2**63 - 2,
            "sum(latency_ms)": (2**63 - 2) * most,
            "avg(latency_ms)": most,
        }
    ]
    all_three = Querier({"requests": kit.SHOP}, lambda name: Pile(one, two, three))
    with pytest.raises(QueryError, match="64 bits"):
        ask(all_three, text)


def test_threads_share_one_querier(table, kit):
    source = SnapshotSource(table.snapshot())
    querier = Querier({"requests": kit.SHOP}, lambda name: source)
    texts = [
        f"SELECT count FROM requests BETWEEN 2024-01-01 AND 2024-01-0{2 + i % 3} INTERVAL 1h FILL zero"
        for i in range(24)
    ]
    with ThreadPoolExecutor(4) as pool:
        sums = list(pool.map(lambda text: sum(ask(querier, text).table.column("count").to_pylist()), texts))
    assert sums == [24 * (1 + i % 3) for i in range(24)]


def test_importing_the_room_loads_no_engine():
    engines = {"duckdb", "pyarrow", "numpy", "pydantic"}
    code = f"import sys, tidemill.query; print(sorted({engines} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
