"""A small warehouse with one of everything that can be damaged, made once and copied; what it answers, and
what it must answer by its input alone. No Spark: the work is small enough to be done in the process.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidemill.mill import Mill
from tidemill.model.names import EXPIRED_PART, PACKED_PART, REST_PART, TOMBSTONE_PART
from tidemill.model.time import HOUR, MINUTE, SECOND, parse_instant
from tidemill.storage.bucket_path import local_copy
from tidemill.testing import FakeClock

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

NOON = parse_instant("2024-01-15T12:00:00Z")
BEGIN = parse_instant("2024-01-14T00:00:00Z")
SLICES, EVENTS = 4, 40  # of each stream, and of each slice
_STREAM = """
  %(name)s:
    schema:
      id: {type: string, required: true}
      at: {type: integer, required: true}
      shop: string
      order: string
      status: string
      amount: {type: decimal, scale: 2}
    event_time: {column: at, type: unixtimestamp_ms, late_tolerance: 10s}
    identity: id
    indexed: [shop]
    aggregation_span: 6h
    coverage: watermark
    pack: {slices: 3}
    metrics:
      sales: {kind: counter, dimensions: [shop], measures: [amount]}
      capped: {kind: counter, dimensions: [shop], max_cardinality: 2}
      progress: {kind: state, object: order, state: status}
    windows:
      ten: {kind: tumbling, size: 10m, aggregates: {n: count}}
      visit: {kind: session, gap: 20m, key: shop, aggregates: {n: count, spread: "stddev(amount)"}}
"""
CONFIG = (
    "version: 1\nengine: {cores: 2, memory: 512m}\nstreams:"
    + _STREAM % {"name": "orders"}
    + _STREAM % {"name": "visits"}
    + """
  embeddings:
    kind: delta
    vector: {dimension: 2}
    compaction: {strategy: tiered_merge, keep_recent: 2, delta_threshold: 4}
    schema:
      delta_id: {type: string, required: true}
      vector_id: {type: string, required: true}
      at: {type: integer, required: true}
      op: {type: string, required: true}
      values: array
    identity: delta_id
    event_time: {column: at, type: unixtimestamp_ms, late_tolerance: 10s}
    metrics:
      deltas: {kind: counter, dimensions: [op]}
"""
)
EVENT_STREAMS = ("orders", "visits")

Event = dict[str, object]


def events_of(stream: str, number: int) -> list[Event]:
    """The records of one slice: in order but for a late one, over some hours; each slice repeats an event of
    the one before, contradicts another, and has one that is no event at all."""
    first = number * EVENTS
    found: list[Event] = []
    for place in range(first, first + EVENTS):
        at = BEGIN + place * 8 * MINUTE
        if place % EVENTS == 7 and number:
            at -= HOUR
        found.append(
            {
                "id": f"{stream}-{place}",
                "at": at // 1000,
                "shop": ("north", "south", "east", "west")[place % 4],
                "order": f"o{place % 9}",
                "status": ("NEW", "PAID", "SENT")[place % 3],
                "amount": place + 0.25,
            }
        )
    if number:
        found.append(events_of(stream, number - 1)[1])
        found.append({**events_of(stream, number - 1)[2], "amount": 1})
    found.append({"id": f"{stream}-bad-{number}", "at": "soon"})
    return found


def deltas_of(number: int) -> list[Event]:
    return [
        {
            "delta_id": f"d{place}",
            "vector_id": f"v{place % 3}",
            "at": (BEGIN + place * MINUTE) // 1000,
            "op": "set" if place < 3 else "add",
            "values": [place, 1],
        }
        for place in range(number * 12, number * 12 + 12)
    ]


def content(records: list[Event]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


# -- what the input says, in the plainest way


def accepted(stream: str, slices: int = SLICES) -> dict[str, Event]:
    """The events that count: the first of each id whose time can be read."""
    found: dict[str, Event] = {}
    for number in range(slices):
        for event in events_of(stream, number):
            if isinstance(event["at"], int):
                found.setdefault(str(event["id"]), event)
    return found


def vectors(slices: int = SLICES) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for number in range(slices):
        for delta in deltas_of(number):
            values = [float(str(value)) for value in _listed(delta["values"])]
            old = found.get(str(delta["vector_id"]), [0.0, 0.0])
            new = values if delta["op"] == "set" else [a + b for a, b in zip(old, values, strict=True)]
            found[str(delta["vector_id"])] = new
    return found


def _listed(values: object) -> list[object]:
    assert isinstance(values, list)
    return values


def expected(stream: str, slices: int = SLICES) -> dict[str, object]:
    """Of `answers`, what can be said without knowing anything about how it is kept."""
    rows = accepted(stream, slices)
    hours = Counter((int(str(e["at"])) // 3_600_000, str(e["shop"])) for e in rows.values())
    sums: Counter[str] = Counter()
    for event in rows.values():
        sums[str(event["shop"])] += round(float(str(event["amount"])) * 100)
    last: dict[str, tuple[int, str, str]] = {}
    for event in rows.values():
        key = (int(str(event["at"])), str(event["id"]), str(event["status"]))
        last[str(event["order"])] = max(last.get(str(event["order"]), key), key)
    return {
        "raw": sorted(rows),
        "hours": {f"{hour} {shop}": count for (hour, shop), count in sorted(hours.items())},
        "sums": dict(sorted(sums.items())),
        "states": dict(sorted(Counter(status for _, _, status in last.values()).items())),
        "found": sorted(name for name, event in rows.items() if event["shop"] == "north"),
    }


# -- what the warehouse says


def answers(mill: Mill, stream: str) -> dict[str, object]:
    """All that can be asked of a stream with events."""
    day = "BETWEEN 2024-01-13 AND 2024-01-16"
    hours = mill.query(f"SELECT count FROM {stream}.sales {day} USING ROLLUP 1h GROUP BY shop").to_pylist()
    sums = mill.query(f"SELECT sum(amount) AS s FROM {stream}.sales {day} GROUP BY shop").to_pylist()
    states = mill.query(f"SELECT states FROM {stream}.progress {day} GROUP BY state").to_pylist()
    page = mill.search(stream, "WHERE shop = 'north' LIMIT 1000")
    return {
        "raw": sorted(raw_rows(mill, stream)),
        "hours": {
            f"{_hour(row)} {row['shop']}": row["count"]
            for row in sorted(hours, key=lambda row: (_hour(row), row["shop"]))
        },
        "sums": {row["shop"]: round(float(row["s"]) * 100) for row in sorted(sums, key=lambda r: r["shop"])},
        "states": {
            row["state"]: row["states"]
            for row in sorted(states, key=lambda row: row["state"])
            if row["states"]
        },
        "found": sorted(row["event_id"] for row in page.rows.to_pylist()),  # type: ignore[union-attr]
    }


def _hour(row: dict[str, object]) -> int:
    at = row["bucket"]
    assert isinstance(at, datetime)
    return int(at.replace(tzinfo=UTC).timestamp()) // 3600


def raw_rows(mill: Mill, stream: str) -> list[str]:
    import pyarrow.parquet as pq

    snapshot = mill.snapshot("raw", stream)
    assert snapshot is not None
    return [
        str(name)
        for path in snapshot.paths()
        for name in pq.read_table(local_copy(path), partitioning=None, columns=["event_id"])[
            "event_id"
        ].to_pylist()
    ]


def details(mill: Mill, stream: str) -> dict[str, object]:
    """What an oracle would have to know Tidemill for; it must be the same before and after."""
    refused = mill.quarantine(stream).select(["reason", "slice", "line"]).to_pylist()
    return {
        "ten": _results(mill, stream, "ten"),
        "visit": _results(mill, stream, "visit"),
        "quarantine": sorted(map(str, refused)),
        "capped": sorted(
            map(str, mill.query(f"SELECT count FROM {stream}.capped GROUP BY shop").to_pylist())
        ),
        "datasets": sorted((str(one.key.interval), one.rows) for one in mill.windows.datasets(stream)),
        "totals": {
            name: count
            for name, count in mill.state.totals(stream).items()
            if name not in ("landings", "retried")
        },
    }


def _results(mill: Mill, stream: str, window: str) -> list[str]:
    rows = mill.results(stream, window).to_pylist()
    return sorted(str((row["start"], row["end"], row["n"], row.get("spread"))) for row in rows)


def composed(mill: Mill) -> dict[str, list[float]]:
    rows = mill.vectors("embeddings", sorted(vectors())).to_pylist()
    return {row["vector_id"]: list(row["values"]) for row in rows}


# -- the template


@dataclass
class Shop:
    """A project on disk whose clock is passed in."""

    root: Path
    clock: FakeClock = field(default_factory=lambda: FakeClock(NOON))

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    def open(self) -> Mill:
        return Mill.open(self.root, clock=self.clock)

    def land(self, mill: Mill, number: int) -> None:
        for stream in EVENT_STREAMS:
            mill.land(stream, content(events_of(stream, number)), name=f"{stream} {number}")
        mill.land("embeddings", content(deltas_of(number)), name=f"deltas {number}")

    def parts(self, folder: str) -> list[Path]:
        """The parts of a table that count, by their names."""
        from tidemill.storage.tables.table import Table

        table = Table.existing(self.warehouse / folder)
        assert table is not None, folder
        return [Path(path) for path in table.snapshot().paths()]


NewShop = Callable[[], Shop]


@pytest.fixture(scope="session")
def shop_template(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    (shop.root / "tidemill.yaml").write_text(CONFIG)
    with shop.open() as mill:
        for number in range(SLICES):
            shop.land(mill, number)
            mill.tick()
            shop.clock.advance(SECOND)
        mill.run_until_idle()
    return shop


@pytest.fixture
def shop(shop_template: Shop, tmp_path: Path) -> Shop:
    root = tmp_path / "shop"
    shutil.copytree(shop_template.root, root)
    return Shop(root, FakeClock(shop_template.clock()))


# -- what can be damaged, and how

Find = Callable[[Shop], Path]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


HARMS: dict[str, Callable[[Path], object]] = {"flipped": flip, "cut": cut, "deleted": Path.unlink}


def part(table: str, begins: str = "") -> Find:
    def find(shop: Shop) -> Path:
        return next(path for path in shop.parts(table) if path.name.startswith(begins))

    return find


def own_part(shop: Shop) -> Path:
    """Of raw, with the rows of one batch."""
    marks = tuple(f"{mark}-" for mark in (PACKED_PART, TOMBSTONE_PART, REST_PART, EXPIRED_PART))
    return next(path for path in shop.parts("raw/orders") if not path.name.startswith(marks))


def file(pattern: str, *, last: bool = False) -> Find:
    def find(shop: Shop) -> Path:
        return sorted(shop.warehouse.glob(pattern))[-1 if last else 0]

    return find


KINDS: dict[str, Find] = {
    "raw": own_part,
    "packed raw": part("raw/orders", PACKED_PART),
    "word of raw": part("raw/orders", TOMBSTONE_PART),
    "raw of deltas": part("raw/embeddings"),
    "quarantine": part("quarantine/orders"),
    **{f"rollups {level}": part("rollups/orders", f"{level}-") for level in ("5s", "1m", "1h", "1d", "7d")},
    "results": part("windows/orders/ten"),
    "results of sessions": part("windows/orders/visit"),
    "open windows": file("windows/orders/visit/_open/*"),
    "index": part("index/orders"),
    "chains": part("chains/embeddings"),
    "dataset": file("datasets/orders/*/*/r1.arrow"),
    "accepted ids": file("gate/orders/*.run"),
    "observations": file("trails/orders/*.trail"),
    "admitted keys": file("trails/orders/*.roster"),
    "first entry of a log": file("raw/orders/_delta_log/*.json"),
    "middle entry of a log": file("rollups/orders/_delta_log/*3.json"),
    "last entry of a log": file("raw/visits/_delta_log/*.json", last=True),
    "last entry of the log of results": file("windows/orders/ten/_delta_log/*.json", last=True),
    "log of observations": file("trails/orders/trails.log"),
    "log of landings": file("slices/landings.ndjson"),
    "log of declarations": file("slices/declarations.ndjson"),
}


def harmed(
    harms: Iterable[str], kinds: Iterable[str] = KINDS, *, share: int = 1, first: int = 0
) -> list[ParameterSet]:
    """Each kind of file with each harm, by their names. The normal run tries one kind in `share`, each with
    one of the harms, in turns; a soak tries the others."""
    every = list(harms)
    return [
        pytest.param(kind, harm, marks=() if is_normal else pytest.mark.soak)
        for number, kind in enumerate(kinds)
        for turn, harm in enumerate(every)
        for is_normal in [number % share == first and turn == number // share % len(every)]
    ]


def harm_all(shop: Shop, turn: int) -> dict[str, Path]:
    """Damage a file of every kind, with the harms in turns. Returns the files, by kind."""
    found = {kind: find(shop) for kind, find in KINDS.items()}
    harms = list(HARMS.values())
    for number, path in enumerate(found.values()):
        harms[(number + turn) % len(harms)](path)
    return found


def check_answers(mill: Mill) -> None:
    """Everything that was sent is in the answers."""
    for stream in ("orders", "visits"):
        assert answers(mill, stream) == expected(stream)
    assert composed(mill) == vectors()


def check_restored(mill: Mill, before: tuple[dict[str, object], dict[str, object]]) -> None:
    """And all is as it was before the damage: the details of both streams, no fault, no finding."""
    check_answers(mill)
    assert (details(mill, "orders"), details(mill, "visits")) == before
    assert not any(one.faults for one in mill.status())
    assert mill.verify().findings == []
