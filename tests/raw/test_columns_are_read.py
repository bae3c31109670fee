"""Whoever reads accepted events reads their columns: with other payloads in raw, every answer is the same.

All payloads say nothing (`{}`), with right checksums: a reader that parsed one would find null."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.forged_parts import replace_part

from tidemill import Mill
from tidemill.model.time import MINUTE, SECOND, format_instant, parse_instant
from tidemill.raw.tables import RAW_STATS
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

pytestmark = pytest.mark.long

NOON = parse_instant("2024-01-15T12:00:00Z")
CONFIG = """
version: 1
engine: {cores: 2}
streams:
  orders:
    schema:
      id: {type: string, required: true}
      at: {type: integer, required: true}
      region: string
      site.name: string
      amount: {type: decimal, scale: 2}
      waited: integer
      weight: float
      paid: boolean
      stage: string
    event_time: {column: at, type: unixtimestamp_us, late_tolerance: 1s}
    identity: id
    indexed: [region, waited, amount, paid, site.name]
    metrics:
      sold: {kind: counter, dimensions: [region, site.name], measures: [amount], filter: "waited > 3"}
      price: {kind: gauge, value: amount, dimensions: [region]}
      waiting: {kind: histogram, value: waited, bounds: [0, 10, 20]}
      stages: {kind: state, object: region, state: stage}
    aggregation_span: 1m
    allow_incomplete_windows: true
    windows:
      ten:
        kind: tumbling
        size: 10s
        group_by: region
        aggregates: {n: count, total: sum(amount), heavy: max(weight)}
  embeddings:
    kind: delta
    vector: {dimension: 3}
    schema:
      delta_id: {type: string, required: true}
      at: {type: integer, required: true}
    event_time: {column: at, type: unixtimestamp_us}
    aggregation_span: 1m
    allow_incomplete_windows: true
"""
SPAN = f"{format_instant(NOON + 3_500_000)} AND {format_instant(NOON + 41_700_000)}"
QUERIES = (
    f"SELECT count, sum(amount) FROM orders.sold BETWEEN {SPAN} GROUP BY region",
    f"SELECT min(amount), max(amount), last(amount) FROM orders.price BETWEEN {SPAN} INTERVAL 5s",
    f"SELECT count FROM orders.sold BETWEEN {SPAN} FILTER paid = true AND amount < 7 GROUP BY site.name",
    f"SELECT p50 FROM orders.waiting BETWEEN {SPAN}",
    f"SELECT count, sum(amount) FROM orders.sold BETWEEN {SPAN} AS OF {format_instant(NOON + 5 * MINUTE)}",
)
SEARCHES = (
    "FILTER amount >= 2.5 AND region != 'eu' LIMIT 100",
    "FILTER weight > 1.5 AND weight <= 6.25 LIMIT 100",
    "FILTER site.name = 's1' AND (waited IN (4, 5) OR paid = false) LIMIT 100",
    "WHERE waited = 7 AND region = 'us' FILTER stage LIKE 'p%' LIMIT 100",
)
SQL = (
    "SELECT region, site.name, count(*), sum(amount), max(weight) FROM raw.orders GROUP BY ALL ORDER BY ALL",
    "SELECT vector_id, op, len(values), indices FROM raw.embeddings ORDER BY ALL",
)


def order(number: int) -> dict[str, object]:
    return {
        "id": f"o{number}", "at": NOON + number * SECOND // 2, "region": ("eu", "us", "as")[number % 3],
        "site": {"name": f"s{number % 4}"}, "amount": number % 40 / 4, "waited": number * 7 % 11,
        "weight": number / 16, "paid": number % 2 == 0, "stage": ("new", "paid", "sent")[number // 9 % 3],
    }  # fmt: skip


def delta(number: int) -> dict[str, object]:
    what: dict[str, object] = {"op": "add", "values": [number / 8, -0.0], "indices": [number % 2, 2]}
    if number < 4:
        what = {"op": "replace", "values": [1.5, number, -0.25]}
    elif number % 5 == 0:
        what = {"op": "offset", "values": [0.5]}
    return {"delta_id": f"d{number}", "vector_id": f"v{number % 4}", "at": NOON + number * SECOND, **what}


def land(mill: Mill, stream: str, records: list[dict[str, object]]) -> None:
    mill.land(stream, "".join(f"{json.dumps(record)}\n" for record in records).encode())
    mill.run_until_idle()


def opened(folder: Path) -> Mill:
    return Mill.open(folder, clock=FakeClock(NOON + 10 * MINUTE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("columns") / "project"
    made.mkdir()
    (made / "tidemill.yaml").write_text(CONFIG)
    with opened(made) as mill:
        for turn in range(2):
            land(mill, "orders", [order(40 * turn + n) for n in range(40)])
            land(mill, "embeddings", [delta(20 * turn + n) for n in range(20)])
    return made


def rows(found: object) -> list[object]:
    assert isinstance(found, pa.Table)
    return found.to_pylist()


def answers(mill: Mill) -> dict[str, object]:
    """What is read of raw, and of what is made of it."""
    found: dict[str, object] = {text: rows(mill.query(text)) for text in QUERIES}
    for text in SEARCHES:
        page = mill.search("orders", text)
        found[text] = page.rows.drop_columns(["payload"]).to_pylist()
    for text in SQL:
        found[text] = rows(mill.sql(text, all_tenants=True).table)
    found["vectors"] = rows(mill.vectors("embeddings", ["v0", "v1", "v2", "v3"]))
    at = NOON + 12 * SECOND
    found["vectors then"] = rows(mill.vectors("embeddings", ["v0", "v1"], at=at))
    found["results"] = rows(mill.results("orders", "ten").select(["start", "region", "n", "total", "heavy"]))
    found["tail"] = [
        (row["event_id"], row["event_time"])
        for item in mill.tail("orders", ordered=False)
        if isinstance(item, pa.RecordBatch)
        for row in item.to_pylist()
    ]
    return found


@pytest.fixture(scope="module")
def before(folder: Path) -> dict[str, object]:
    with opened(folder) as mill:
        assert mill.verify().findings == []
        return answers(mill)


@pytest.fixture(scope="module")
def forged(folder: Path, before: dict[str, object]) -> Path:
    def without(found: pa.Table, _footer: dict[str, object]) -> pa.Table:
        nothing = pa.array(["{}"] * found.num_rows)
        return found.set_column(found.schema.get_field_index("payload"), "payload", nothing)

    for stream in ("orders", "embeddings"):
        table = Table.existing(folder / "warehouse" / "raw" / stream)
        assert table is not None
        for part in [one for one in table.snapshot().parts if one.rows]:
            name = Path(part.path).name.partition(".")[0]
            replace_part(table, part, without, name=name, stats=RAW_STATS)
    with opened(folder) as mill:
        assert mill.remake.index("orders").built, "each part of raw has its own"
    return folder


def test_answers_come_from_columns(forged: Path, before: dict[str, object]) -> None:
    with opened(forged) as mill:
        assert answers(mill) == before
        pages = mill.search("orders", "LIMIT 3").rows.column("payload").to_pylist()
    assert pages == ["{}"] * 3, "the payloads are the forged ones"


def test_outputs_are_made_from_columns(forged: Path) -> None:
    """`verify` makes each of them again from raw: only raw itself differs, from the slices."""
    with opened(forged) as mill:
        audit = mill.verify()
    assert {finding.what for finding in audit.findings} == {"raw"}
    orders, embeddings = audit.streams
    counted = (orders.tiles, orders.index, orders.datasets)
    assert all(counted), counted
    assert embeddings.chains == 4
    assert embeddings.datasets


def results_again(mill: Mill) -> object:
    """Results of streaming windows are made again where they are damaged."""
    for path in (mill.project.warehouse / "windows" / "orders" / "ten").rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[:-1])
    return mill.remake.results("orders", "ten").results


REBUILDS: dict[str, Callable[[Mill], object]] = {
    "rollups": lambda mill: mill.remake.rollups("orders").tiles,
    "datasets": lambda mill: mill.rebuild(mill.windows.plan_rebuild("orders")),
    "results": results_again,
    "datasets of deltas": lambda mill: mill.rebuild(mill.windows.plan_rebuild("embeddings")),
}


@pytest.mark.parametrize("what", REBUILDS)
def test_rebuilding_reads_columns(forged: Path, before: dict[str, object], what: str) -> None:
    with opened(forged) as mill:
        assert REBUILDS[what](mill)
        assert answers(mill) == before
        assert {finding.what for finding in mill.verify().findings} == {"raw"}
