"""Every case of the benchmark runs, and its answers agree, on a size too small to time anything."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("polars", reason="the benchmark needs its own dependencies")
pytest.importorskip("psutil", reason="the benchmark needs its own dependencies")

if TYPE_CHECKING:
    from bench.running import Bench
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def tiny(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """One run over all cases, with its files in a folder of its own."""
    os.environ["TIDEMILL_BENCH_WORK"] = str(tmp_path_factory.mktemp("bench"))
    try:
        running = importlib.import_module("bench.running")
        ours = importlib.import_module("bench.ours")
    finally:
        del os.environ["TIDEMILL_BENCH_WORK"]
    importlib.import_module("bench.cases").clean()
    return running.Bench(running.TINY, ours.Tidemill(spark, warmed=False), lambda _text: None)


NAMES = (
    "cold_start",
    "startup",
    "whole_job",
    "floor",
    "raw_size",
    "peak_memory",
    "late_slice",
    "metrics_kinds",
    "query_raw",
    "search_selective",
    "filter_all",
    "spans",
    "many_tenants",
    "flat_cost",
    "late_after_20m",
    "driver_memory",
    "gate_flat",
    "bucket",
    "windows_whole",
    "windows_late",
    "windows_tick",
    "windows_memory",
    "pack",
    "streaming_windows",
    "streaming_ordered",
    "streaming_live",
    "year",
    "hourly",
    "many_slices",
    "gateway",
    "gateway_visible",
    "chains",
)


@pytest.mark.parametrize("name", NAMES)
def test_case_runs_and_agrees(tiny: Bench, name: str) -> None:
    from bench.cases import CASES
    from bench.running import Skipped

    try:
        results = CASES[name](tiny)
    except Skipped as reason:
        pytest.skip(str(reason))
    assert results
    if name in ("year", "hourly", "many_slices"):  # files go by the amount of data, which is small here
        (files,) = (result for result in results if result.unit == "files")
        assert files.ours <= 40, files


def test_every_case_is_tried(tiny: Bench) -> None:
    from bench.cases import CASES

    assert tuple(CASES) == NAMES


def test_the_cost_of_each_stage_is_measured(tiny: Bench, spark: SparkSession, tmp_path: Path) -> None:
    from bench.scale import REST, measure, tables

    cost = measure(spark, 2, 400, tmp_path / "scale")
    assert {*cost.cpu} == {"land", "read and check", "gate", "write raw", "rollups", REST}
    assert all(seconds >= 0 for seconds in cost.cpu.values())
    assert cost.files["slices"] >= 20  # those of the feed, and logs beside them
    assert cost.bytes["slices"] > cost.input_bytes
    assert cost.commits >= 3  # raw, quarantine, rollups
    assert cost.statements > 20  # each slice lands by itself
    assert len(list(tables([cost]))) == 7


def test_large_feeds_are_extrapolated_from_what_was_measured() -> None:
    from bench.scale import FOLDERS, Cost, extrapolate

    held = dict(zip(FOLDERS, (50_000, 100_000, 20_000, 30_000, 0), strict=True))
    small = Cost(2, 1_000, 100_000, {"gate": 1.0}, held, dict.fromkeys(FOLDERS, 1), 3, 50)
    large = Cost(2, 2_000, 200_000, {"gate": 1.004}, held, dict.fromkeys(FOLDERS, 1), 3, 50)
    said = list(extrapolate([small, large]))
    assert said[0].startswith("CPU of one more event: 4.00 us (2 tasks);")  # 4 ms for 1,000 more
    assert said[1].endswith("= 4.0")  # cores at a million a second
    assert said[2].endswith("x 100 B = 100 MB/s")
    assert said[3].endswith("= 100.0 B")  # 200,000 B of 2,000 events
    assert "= 1.00e+12, 11.6 days" in said[4]  # 100 TB / 100 B; 10^12 / 10^6 / 86,400
    assert said[5].endswith("= 15.0 TB")  # 15 of the 100 B are ids
