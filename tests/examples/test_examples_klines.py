"""The candles example: its feed is the same each time, and raw holds just what was complete."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tidemill.ingest.manifests import RawManifest, read_manifest
from tidemill.mill import Mill
from tidemill.model.time import parse_instant
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

EXAMPLE = Path(__file__).parents[2] / "examples" / "klines"
SYMBOLS = ("BTCUSDT", "ETHUSDT", "SOLUSDT")
COLUMNS = (
    "open_time", "open", "high", "low", "close", "volume", "close_time", "quote_volume", "trades",
    "taker_base", "taker_quote", "unused",
)  # fmt: skip

Candles = Callable[[str, int], list[list[object]]]


@pytest.fixture
def klines(tmp_path: Path) -> Path:
    root = tmp_path / "klines"
    shutil.copytree(EXAMPLE, root, ignore=shutil.ignore_patterns("data", "warehouse"))
    return root


def make(root: Path, *options: str) -> str:
    output = subprocess.run(
        [sys.executable, "make.py", *options], cwd=root, capture_output=True, check=True, text=True
    )
    return output.stdout


def folder(root: Path, symbol: str) -> Path:
    return root / "data" / "binance" / "klines" / "raw" / symbol / "1m" / "limit=100"


def manifest(root: Path, symbol: str) -> RawManifest:
    where = folder(root, symbol)
    return read_manifest((where / "manifest.json").read_bytes(), symbol, where)


def candles_of(root: Path, stream: str) -> list[dict[str, object]]:
    """What raw holds, by time."""
    table = Table.existing(root / "warehouse" / "raw" / stream)
    assert table is not None
    rows = [
        row for path in table.snapshot().paths() for row in pq.read_table(path, partitioning=None).to_pylist()
    ]
    found = [json.loads(row["payload"]) for row in rows]
    return sorted(found, key=lambda candle: int(candle["open_time"]))


def test_the_feed_has_the_shape_of_seed_5_and_every_status(klines: Path) -> None:
    assert make(klines) == "wrote 45 slices to data: 5 empty, 2 failed, 1 missing, 34 ok, 3 partial\n"
    files = {path.relative_to(klines): path.read_bytes() for path in (klines / "data").rglob("*.json")}
    assert len(files) == 3 + 34 + 3
    for symbol in SYMBOLS:
        found = manifest(klines, symbol)
        assert found.wrong == ()
        assert found.dataset.name == f"binance/klines/{symbol}/1m/limit=100"
    assert manifest(klines, "ETHUSDT").counts == {"ok": 12, "partial": 1, "failed": 1, "missing": 1}
    make(klines)
    assert {
        path.relative_to(klines): path.read_bytes() for path in (klines / "data").rglob("*.json")
    } == files


def test_raw_holds_the_complete_slices_and_later_all_of_them(klines: Path) -> None:
    candles: Candles = runpy.run_path(str(klines / "make.py"))["candles"]
    clock = FakeClock(parse_instant("2024-01-16T12:00:00Z"))
    for later in (False, True):
        make(klines, *(["--later"] if later else []))
        with Mill.open(klines, clock=clock) as mill:
            mill.run_until_idle()
        for symbol in SYMBOLS:
            sealed = [one for one in manifest(klines, symbol).slices if one.status == "ok"]
            wanted = [
                dict(zip(COLUMNS, candle, strict=True))
                for one in sealed
                if one.declared is not None
                for candle in candles(symbol, one.declared.start // 1000)
            ]
            assert candles_of(klines, symbol.lower()) == wanted, (symbol, later)
            with Mill.open(klines, clock=clock) as mill:
                named = {entry.slice.name for entry in mill.state.slices(symbol.lower())}
            assert named == {one.hash for one in sealed}
