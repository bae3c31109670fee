"""`export`: the dataset of a window as a file of another format, the same rows in each."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

ONE = "2024-01-15T13:00:00Z"


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv"])
def test_export_writes_the_rows_of_a_window(built, tmp_path, kind):
    out = ["--to", kind, "-o", f"{tmp_path}/new/"]
    (file,) = built.json("export", "weather", "--window", "2024-01-15T13:30:00Z", *out)["files"]
    assert file == str(tmp_path / "new" / f"weather_20240115T130000Z_1h_r1.{kind}")
    rows = {"parquet": read_parquet, "arrow": read_arrow, "csv": read_csv}[kind](file)
    assert rows.num_rows == 3
    assert rows.column("station").to_pylist() == ["a"] * 3


def test_several_windows_go_into_one_file_or_into_one_each(weather, tmp_path):
    for hour in (10, 11):
        weather.land(f"{hour}:00", f"{hour + 1}:00", f"{hour}:30")
    weather.set("2024-01-16T00:00:00Z")
    weather.run()
    both = ["--window", "2024-01-15T10:00:00Z", "--window", "2024-01-15T11:00:00Z", "--to", "parquet"]
    (one,) = weather.json("export", "weather", *both, "-o", tmp_path / "both.parquet")["files"]
    assert read_parquet(one).num_rows == 2
    assert len(weather.json("export", "weather", *both, "-o", f"{tmp_path}/apart/")["files"]) == 2


def test_export_of_an_older_revision_into_a_file(built, tmp_path):
    built.cli("rebuild", "weather")
    target = tmp_path / "first.parquet"
    done = built.cli("export", "weather", "--window", ONE, "--to", "parquet", "--revision", 1, "-o", target)
    assert (done.code, done.out) == (0, f"wrote {target}\n")
    wrong = built.cli("export", "weather", "--window", ONE, "--to", "parquet", "--revision", 9, "-o", target)
    assert wrong.code == 2
    assert f"`tidemill window weather {ONE}` shows its state" in wrong.err
    assert built.cli("window", "weather", ONE).code == 0
    assert built.cli("export", "weather", "--window", ONE, "--to", "xml").code == 2
    assert "parquet" in built.cli("export", "weather", "--window", ONE, "--to", "xml").err
    assert built.cli("export", "weather", "--window", "2024-01-15T15:00:00Z", "--to", "csv").code == 2


def read_parquet(file):
    return pq.read_table(file)


def read_csv(file):
    return csv.read_csv(file)


def read_arrow(file):
    with pa.memory_map(file) as content:
        return pa.ipc.open_file(content).read_all()
