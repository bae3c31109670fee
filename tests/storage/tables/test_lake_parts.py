"""Parts: what their bytes, statistics and footers promise."""

from __future__ import annotations

import json
import os
import pickle
import secrets
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.patience import PATIENCE

from tidemill.model.errors import StorageError
from tidemill.storage.checksums import check_file, write_checked
from tidemill.storage.files import atomic_write, attempt, storage_errors
from tidemill.storage.tables.part_checksums import without_checksums
from tidemill.storage.tables.parts import StagedPart, is_ours, read_footer, read_part, write_part
from tidemill.storage.tables.stats import STRING_LIMIT, bounds, delta_stats, lower_text, upper_text

US = pa.timestamp("us", "UTC")


def sample(count: int = 1000) -> pa.Table:
    return pa.table(
        {
            "tenant": pa.array([f"t{i % 3}" for i in range(count)]).dictionary_encode(),
            "ts": pa.array([i * 1_000_000 for i in range(count)], US),
            "payload": [json.dumps({"id": i, "text": "x" * (i % 50)}) for i in range(count)],
        }
    )


def write(folder: Path, table: pa.Table, name: str = "p.parquet", **options: object) -> StagedPart:
    chosen: dict[str, object] = {
        "partition": {"day": "2024-01-01"},
        "footer": {"kind": "raw", "slices": ["b", "a"], "n": 1},
        "stats_columns": ["tenant", "ts"],
        **options,
    }
    return write_part(folder, name, table, **chosen)  # type: ignore[arg-type]


def test_part_reads_back_as_written_by_pyarrow_and_duckdb(tmp_path: Path) -> None:
    part = write(tmp_path, sample(), row_group_rows=300)
    back = pq.read_table(part.path, partitioning=None)
    assert back.schema.types == [pa.string(), US, pa.string()]
    assert back.to_pylist() == sample().to_pylist()
    assert (part.rows, part.size, without_checksums(part.name)) == (
        1000,
        Path(part.path).stat().st_size,
        "p.parquet",
    )
    counted = duckdb.sql(f"select count(*), min(ts)::varchar, max(tenant) from '{part.path}'").fetchone()
    assert counted == (1000, "1970-01-01 00:00:00+00", "t2")
    metadata = pq.read_metadata(part.path)
    assert metadata.num_row_groups == 4
    column = metadata.row_group(0).column(1)
    assert column.compression == "ZSTD"
    assert column.statistics.has_min_max
    assert metadata.row_group(0).column(2).statistics is None


def test_only_named_and_dictionary_columns_are_dictionary_encoded(tmp_path: Path) -> None:
    part = write(tmp_path, sample(), dictionary=["ts"])
    group = pq.read_metadata(part.path).row_group(0)
    encoded = {group.column(i).path_in_schema: group.column(i).has_dictionary_page for i in range(3)}
    assert encoded == {"tenant": True, "ts": True, "payload": False}


def test_numbers_are_stored_by_their_differences_and_read_back_to_the_last_bit(tmp_path: Path) -> None:
    """The least, the greatest, none, and decimals that fit 4, 8 and 16 bytes."""
    table = pa.table(
        {
            "small": pa.array([-(2**31), None, 2**31 - 1, 0], pa.int32()),
            "large": pa.array([2**63 - 1, -(2**63), None, -1], pa.int64()),
            "price": pa.array(
                [Decimal("-999.99"), Decimal("0.01"), None, Decimal("999.99")], pa.decimal128(5, 2)
            ),
            "total": pa.array(
                [Decimal(10**18 - 1).scaleb(-3), None, Decimal(1 - 10**18).scaleb(-3), Decimal(0)],
                pa.decimal128(18, 3),
            ),
            "sum": pa.array(
                [Decimal(10**38 - 1), Decimal(1 - 10**38), None, Decimal(7)], pa.decimal128(38, 0)
            ),
        }
    )
    part = write(tmp_path, table, stats_columns=["large"])
    group = pq.read_metadata(part.path).row_group(0)
    stored = {
        column.path_in_schema: (column.physical_type, "DELTA_BINARY_PACKED" in column.encodings)
        for column in map(group.column, range(5))
    }
    assert stored == {
        "small": ("INT32", True),
        "large": ("INT64", True),
        "price": ("INT32", True),
        "total": ("INT64", True),
        "sum": ("FIXED_LEN_BYTE_ARRAY", False),
    }
    assert read_part(part.path).to_pylist() == table.to_pylist()
    assert duckdb.sql(f"select * from '{part.path}'").to_arrow_table().to_pylist() == table.to_pylist()


def test_partition_columns_stay_out_of_the_file(tmp_path: Path) -> None:
    table = sample(2).append_column("day", pa.array(["2024-01-01"] * 2))
    part = write(tmp_path, table)
    assert pq.read_schema(part.path).names == ["tenant", "ts", "payload"]
    assert part.partition == (("day", "2024-01-01"),)


def test_same_rows_give_the_same_bytes_however_they_are_chunked(tmp_path: Path) -> None:
    table = sample(5000)
    borders = [0, 1, 1024, 1700, 5000]
    chunked = pa.concat_tables([table.slice(a, b - a) for a, b in pairwise(borders)]).replace_schema_metadata(
        {"made": "elsewhere"}
    )
    first = write(tmp_path, table, "a.parquet", row_group_rows=2000)
    second = write(tmp_path, chunked, "b.parquet", row_group_rows=2000)
    assert Path(first.path).read_bytes() == Path(second.path).read_bytes()
    assert first.stats == second.stats


def test_empty_part(tmp_path: Path) -> None:
    part = write(tmp_path, sample().slice(0, 0))
    assert part.rows == 0
    assert json.loads(part.stats) == {
        "numRecords": 0,
        "minValues": {},
        "maxValues": {},
        "nullCount": {"tenant": 0, "ts": 0},
    }
    assert duckdb.sql(f"select count(*) from '{part.path}'").fetchone() == (0,)
    assert read_footer(part.path)["kind"] == "raw"


def test_footer_says_what_the_part_was_made_of(tmp_path: Path) -> None:
    part = write(tmp_path, sample(1))
    assert read_footer(part.path) == {"kind": "raw", "slices": ["b", "a"], "n": 1}


def test_footer_of_a_foreign_or_damaged_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(sample(1), tmp_path / "foreign.parquet")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and then nothing")
    for name in ("foreign.parquet", "cut.parquet"):
        assert not is_ours(tmp_path / name)
        with pytest.raises(StorageError, match=r"the part (is not one that Tidemill wrote|cannot be read)"):
            read_footer(tmp_path / name)


def test_staged_part_travels_by_pickle(tmp_path: Path) -> None:
    part = write(tmp_path, sample(3), partition={"day": "2024-01-01", "level": "5s"})
    assert pickle.loads(pickle.dumps(part)) == part  # noqa: S301


def test_statistics_of_every_type() -> None:
    table = pa.table(
        {
            "i": pa.array([9_007_199_254_740_993, -5, None], pa.int64()),
            "s": pa.array(["b", "a", None]),
            "view": pa.array(["d", "c", "e"], pa.string_view()),
            "dec": pa.array([Decimal("-1.50"), Decimal("123456789012345678901234567890.25"), None]),
            "f": [1.5, -2.25, 0.0],
            "d": pa.array([date(2024, 2, 1), date(2024, 1, 1), None]),
            "ok": [True, False, None],
            "none": pa.array([None] * 3, pa.string()),
        }
    )
    stats = delta_stats(table, table.column_names)
    mins, maxs = bounds(stats, table.schema)
    assert mins == {
        "i": -5,
        "s": "a",
        "view": "c",
        "dec": Decimal("-1.50"),
        "f": -2.25,
        "d": date(2024, 1, 1),
    }
    assert maxs == {
        "i": 9_007_199_254_740_993,
        "s": "b",
        "view": "e",
        "dec": Decimal("123456789012345678901234567890.25"),
        "f": 1.5,
        "d": date(2024, 2, 1),
    }
    assert json.loads(stats)["nullCount"] == {
        "i": 1, "s": 1, "view": 0, "dec": 1, "f": 0, "d": 1, "ok": 1, "none": 3,
    }  # fmt: skip


def test_time_bounds_go_out_to_whole_milliseconds() -> None:
    table = pa.table({"ts": pa.array([1_704_067_200_000_001, 1_704_067_200_001_001], US)})
    stats = delta_stats(table, ["ts"])
    assert json.loads(stats)["minValues"] == {"ts": "2024-01-01T00:00:00.000Z"}
    assert json.loads(stats)["maxValues"] == {"ts": "2024-01-01T00:00:00.002Z"}


def test_time_bounds_before_the_epoch_and_at_the_end_of_time() -> None:
    table = pa.table({"ts": pa.array([-1, 253_402_300_799_999_999], US)})
    parsed = json.loads(delta_stats(table, ["ts"]))
    assert parsed["minValues"] == {"ts": "1969-12-31T23:59:59.999Z"}
    assert parsed["maxValues"] == {}  # the year 10000 has no spelling: no bound rather than a wrong one


def test_bounds_that_engines_would_read_differently_are_left_out() -> None:
    table = pa.table({"nan": [1.0, float("nan")], "inf": [1.0, float("inf")]})
    assert bounds(delta_stats(table, ["nan", "inf"]), table.schema) == ({}, {})


def test_values_a_dictionary_holds_but_no_row_uses_do_not_widen_the_bounds() -> None:
    unused = pa.DictionaryArray.from_arrays(pa.array([1, None, 1], pa.int8()), ["a", "m", "z"])
    other = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), ["n", "zz"])
    table = pa.table({"s": pa.chunked_array([unused, other])})
    assert bounds(delta_stats(table, ["s"]), table.schema) == ({"s": "m"}, {"s": "n"})


@given(st.text(alphabet=st.sampled_from(["a", "é", "\uffff", "\U0010ffff"]), max_size=STRING_LIMIT + 5))
def test_text_bounds_hold_the_text(text: str) -> None:
    assert lower_text(text).encode() <= text.encode() <= upper_text(text).encode()


def test_long_texts_are_cut_on_the_safe_side() -> None:
    text = "k" * 1000
    assert lower_text(text) == "k" * STRING_LIMIT
    assert upper_text(text) == "k" * STRING_LIMIT + "\U0010ffff"


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    """What names of temporary files have in them."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0" * 16)
    return "0" * 16


def test_full_disk_is_a_storage_error_and_leaves_nothing_behind(tmp_path: Path, token: str) -> None:
    (tmp_path / f".p.parquet.{token}.tmp").symlink_to("/dev/full")  # the real ENOSPC
    with pytest.raises(StorageError, match="No space left on device") as caught:
        write(tmp_path, sample())
    assert "disk is full" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_full_disk_while_syncing_is_a_storage_error_too(tmp_path: Path, token: str) -> None:
    (tmp_path / f".x.{token}.tmp").symlink_to("/dev/full")
    with (
        pytest.raises(StorageError, match="No space left on device"),
        storage_errors("write", tmp_path / "x"),
        attempt(tmp_path / "x") as temporary,
    ):
        temporary.write_bytes(b"content")
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        write(tmp_path / "nowhere", sample(1))


def test_atomic_write_replaces_whole_and_syncs_file_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    synced: list[str] = []
    real = os.fsync

    def spy(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", spy)
    atomic_write(tmp_path / "x", b"one")
    atomic_write(tmp_path / "x", b"two")
    assert (tmp_path / "x").read_bytes() == b"two"
    assert synced == [str(tmp_path / f".x.{token}.tmp"), str(tmp_path)] * 2


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts, each held up before it makes its file durable until the other is there, too."""
    both, real = threading.Barrier(2, timeout=PATIENCE), os.fsync

    def sync(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            both.wait()
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)


@pytest.mark.usefixtures("together")
def test_two_attempts_at_one_part_do_not_write_into_one_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda rows: write(tmp_path, sample(rows)), (100, 100))
    assert first == second
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    assert read_part(tmp_path / first.name).num_rows == 100


def put_checked(path: Path, content: bytes) -> None:
    write_checked(path, lambda file: file.write(content))


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("put", [atomic_write, put_checked])
def test_two_attempts_at_one_file_leave_one_of_them_whole(
    tmp_path: Path, put: Callable[[Path, bytes], None]
) -> None:
    contents = [b"A" * 70_000, b"B" * 80_000]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda content: put(tmp_path / "x", content), contents))
    assert any((tmp_path / "x").read_bytes().startswith(content) for content in contents)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    if put is put_checked:
        assert check_file(tmp_path / "x")


def test_what_a_dead_process_left_of_an_attempt_goes_with_the_next_one(tmp_path: Path) -> None:
    (tmp_path / ".x.00aa.tmp").write_bytes(b"half")
    (tmp_path / ".y.00aa.tmp").write_bytes(b"of another file")
    with attempt(tmp_path / "x") as alive:
        atomic_write(tmp_path / "x", b"whole")
        assert {path.name for path in tmp_path.iterdir()} == {"x", ".y.00aa.tmp", alive.name}
