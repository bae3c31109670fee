"""Every case of the benchmark runs, and its answers agree, on a size too small to time anything."""

from __future__ import annotations

import importlib
import os
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
    "peak_memory",
    "late_slice",
    "metrics_kinds",
    "query_raw",
    "search_selective",
    "spans",
    "many_tenants",
    "flat_cost",
    "late_after_20m",
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

    results = CASES[name](tiny)
    assert results
    if name in ("year", "hourly", "many_slices"):  # files go by the amount of data, which is small here
        (files,) = (result for result in results if result.unit == "files")
        assert files.ours <= 40, files


def test_every_case_is_tried(tiny: Bench) -> None:
    from bench.cases import CASES

    assert tuple(CASES) == NAMES
