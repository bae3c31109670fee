"""Rollups and index made again from raw are what was there; levels that are kept no more leave the coarser
ones exact, whatever comes late or is taken back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tidemill.mill import Mill, recover
from tidemill.model.levels import NAMES
from tidemill.model.time import DAY, HOUR, parse_instant
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = parse_instant("2024-01-04T00:00:00Z")  # a Thursday: a 7d bucket begins
PROJECT = """
version: 1
streams:
  shop:
    schema:
      id: {{type: string, required: true}}
      ts: integer
      order: string
      status: string
      region: string
      ms: {{type: decimal, scale: 1}}
    identity: id
    event_time: {{column: ts, type: unixtimestamp_s}}
    skew: {{future: 400d}}
    indexed: [region, order]
    metrics:
      events: {{kind: counter, dimensions: [region], measures: [ms]}}
      few: {{kind: counter, dimensions: [order], max_cardinality: 3}}
      took: {{kind: histogram, value: ms, dimensions: [region]}}
      level: {{kind: gauge, value: ms}}
      life:
        kind: state
        object: order
        state: status
        dimensions: [region]
        transitions: {{done: {{from: any, to: DONE, until: [DONE]}}}}
    {retention}
"""
STATES = ("NEW", "PAID", "SENT", "DONE")


def events(first: int, hours: range, step: int = 7) -> bytes:
    """Some for each hour; orders and states go round at different speeds."""
    lines = []
    for number, hour in enumerate(hour for hour in hours for _ in range(step)):
        n = first + number
        lines.append(
            json.dumps(
                {
                    "id": f"e{n}",
                    "ts": START // 1_000_000 + hour * 3600 + n * 37 % 3600,
                    "order": f"o{n % 5}",
                    "status": STATES[n % 4],
                    "region": ("eu", "us")[n % 3 == 0],
                    "ms": n % 11 - 2,
                }
            )
        )
    return "\n".join(lines).encode()


class Shop:
    def __init__(self, root: Path, spark: SparkSession, retention: str = "") -> None:
        self.root, self.spark = root, spark
        root.mkdir(parents=True, exist_ok=True)
        (root / "tidemill.yaml").write_text(PROJECT.format(retention=retention))
        self.clock = FakeClock(START + 3 * DAY)
        self.mill = Mill.open(root, spark=spark, clock=self.clock)

    def load(self, content: bytes) -> str:
        landed = self.mill.land("shop", content, format="ndjson")
        self.mill.run_until_idle()
        return landed.entry.id

    def rows(self, *levels: str) -> dict[str, list[str]]:
        table = Table.existing(self.root / "warehouse" / "rollups" / "shop")
        assert table is not None
        snapshot = table.snapshot()
        return {
            level: sorted(
                json.dumps(row, default=str, sort_keys=True)
                for path in snapshot.paths(snapshot.select({"level": [level]}))
                for row in pq.read_table(path, partitioning=None).to_pylist()
            )
            for level in levels or NAMES
        }

    def index(self) -> dict[str, str]:
        table = Table.existing(self.root / "warehouse" / "index" / "shop")
        assert table is not None
        paths = table.snapshot().paths()
        return {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths}


@pytest.fixture
def new_shop(tmp_path: Path, spark: SparkSession) -> Iterator[Callable[[str, str], Shop]]:
    shops: list[Shop] = []

    def make(name: str, retention: str = "") -> Shop:
        shops.append(Shop(tmp_path / name, spark, retention))
        return shops[-1]

    yield make
    for shop in shops:
        shop.mill.close()


SLICES = (events(0, range(30)), events(1000, range(5, 12)), events(2000, range(3, 50, 9)))


def test_rollups_made_again_from_raw_are_what_was_there(new_shop: Callable[..., Shop]) -> None:
    shop = new_shop("shop")
    for content in SLICES:
        shop.load(content)
    before = shop.rows()
    part = shop.mill.remake.rollups("shop", START + 5 * HOUR, START + 6 * HOUR)
    assert {tile.key.level for tile in part.tiles} == set(NAMES)
    assert all(tile.key.start == START + 5 * HOUR for tile in part.tiles if tile.key.level == "1m")
    assert shop.rows() == before
    whole = shop.mill.remake.rollups("shop")
    assert (len(whole.tiles) > len(part.tiles), whole.sealed) == (True, 0)
    assert shop.rows() == before
    assert shop.mill.tick().idle
    assert shop.mill.verify().findings == []


def test_a_metric_that_is_declared_late_gets_its_past(new_shop: Callable[..., Shop]) -> None:
    """The next tick makes all tiles again that were made for metrics declared otherwise, once."""
    shop, late = new_shop("shop"), new_shop("late")
    for content in SLICES:
        shop.load(content)
    config = late.root / "tidemill.yaml"
    full = config.read_text()
    late.mill.close()
    config.write_text(full[: full.index("      few:")])
    late.mill = Mill.open(late.root, spark=late.spark, clock=late.clock)
    for content in SLICES:
        late.load(content)
    late.mill.close()
    config.write_text(full)
    late.mill = Mill.open(late.root, spark=late.spark, clock=late.clock)
    assert len(late.mill.tick().streams[0].tiles) == sum(late.mill.status()[0].tiles.values())
    assert late.mill.tick().idle
    assert late.rows() == shop.rows()
    assert late.mill.verify().findings == []
    late.mill.close()
    config.write_text(full.replace("kind: gauge, value: ms", "kind: gauge, value: ms, policy: max"))
    late.mill = Mill.open(late.root, spark=late.spark, clock=late.clock)
    assert late.mill.tick().idle
    late.mill.close()
    config.write_text(full.replace("value: ms, dimensions: [region]", "value: ms, bounds: [0, 5]"))
    late.mill = Mill.open(late.root, spark=late.spark, clock=late.clock)
    late.load(events(9000, range(4)))
    assert late.mill.verify().findings == []


def test_the_index_made_again_has_the_same_bytes(new_shop: Callable[..., Shop]) -> None:
    shop = new_shop("shop")
    for content in SLICES:
        shop.load(content)
    before = shop.index()
    assert shop.mill.remake.index("shop").built == len(before)
    assert shop.index() == before
    damaged = Path(next(iter(before)))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    shop.mill.remake.index("shop")
    assert shop.index() == before


EXPIRING = "retention: {rollups: {5s: 1d, 1m: 2d}}"


@pytest.mark.parametrize("what", ["late", "retracted"])
def test_levels_that_are_kept_no_more_leave_the_coarser_ones_exact(
    new_shop: Callable[..., Shop], what: str
) -> None:
    """Once 5s and 1m of the first days are gone: a late slice there, and one that is taken back."""
    kept, shop = new_shop("kept"), new_shop("shop", EXPIRING)
    for each in (kept, shop):
        for content in SLICES:
            each.load(content)
    assert {step.what for step in shop.mill.retention.plan().due} == set()
    assert len(shop.rows("5s")["5s"]) < len(kept.rows("5s")["5s"])
    for each in (kept, shop):
        if what == "late":
            each.load(events(5000, range(2, 9)))
        else:
            entry = each.mill.ledger("shop")[-2]
            each.mill.retract(each.mill.plan_retraction(entry.id, "it was wrong"))
            each.mill.run_until_idle()
    coarse = ("1h", "1d", "7d")
    assert shop.rows(*coarse) == kept.rows(*coarse)
    assert set(shop.rows("1m")["1m"]) <= set(kept.rows("1m")["1m"])
    assert shop.mill.verify().findings == []
    shop.mill.remake.rollups("shop")
    assert shop.rows(*coarse) == kept.rows(*coarse)
    shop.mill.close()
    recover(shop.root, spark=shop.spark, clock=shop.clock)
    shop.mill = Mill.open(shop.root, spark=shop.spark, clock=shop.clock)
    assert shop.mill.tick().idle
    assert shop.rows(*coarse) == kept.rows(*coarse)
