"""kill -9 under load: what was acknowledged is stored, each event once, and every metric is exact."""

from __future__ import annotations

import fcntl
import random
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
from tests.support.patience import PATIENCE
from tests.support.server_process import Clients, Server
from tests.support.soak_counts import record, seeds

from tidemill.mill import Mill
from tidemill.model.time import Interval, parse_instant
from tidemill.storage.layout import LANDINGS


def killed_at_random(folder: Path, spark, *, kills: int, events: int, seed: int) -> None:
    server = Server(folder)
    chance = random.Random(seed)
    server.start()
    clients = Clients(server, 4, events, 40)
    stops = 0
    for _ in range(kills):
        clients.ended(chance.uniform(0.05, 1.0))  # a moment that nobody chose
        if chance.random() < 0.3:
            stops += 1
            server.pause()
            clients.ended(chance.uniform(0.05, 0.5))
            server.resume()
            continue
        server.kill()
        server.start()
    said = clients.done()
    assert all(one["left"] == 0 for one in said), said
    server.kill()  # once more, with whatever is in the log
    acknowledged = clients.acknowledged()
    assert len(acknowledged) == 4 * events
    with Mill.open(folder, spark=spark) as mill:
        mill.run_until_idle()  # takes up what the last one left
        found = mill.query("SELECT count, sum(amount) FROM requests.requests", all_tenants=True).to_pylist()
        stored = mill.warehouse.existing("raw", "requests").snapshot()
        import pyarrow.parquet as pq

        ids = [
            id_
            for path in stored.paths(stored.parts)
            for id_ in pq.read_table(path, columns=["event_id"], partitioning=None)["event_id"].to_pylist()
        ]
        assert not mill.quarantine("requests").num_rows
        assert mill.verify().ok
    lost, doubled = len(set(acknowledged) - set(ids)), len(ids) - len(set(ids))
    record(kills=kills - stops + 1, stops=stops, acknowledged=len(acknowledged), lost=lost, doubled=doubled)
    assert (lost, doubled) == (0, 0)
    assert sorted(ids) == sorted(acknowledged)
    total = 4 * sum((Decimal(n % 100) + Decimal("0.25") for n in range(events)), Decimal(0))
    assert sum(row["count"] for row in found) == 4 * events
    assert sum(row["sum(amount)"] for row in found) == total
    assert not list((folder / "warehouse" / "wal").iterdir())


def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, spark) -> None:
    killed_at_random(tmp_path / "p", spark, kills=3, events=3_000, seed=11)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
def test_nothing_acknowledged_is_lost_or_doubled_at_length(tmp_path: Path, spark, seed: int) -> None:
    killed_at_random(tmp_path / "p", spark, kills=20, events=10_000, seed=seed)


HOURLY = """
version: 1
streams:
  visits:
    schema: {id: {type: string, required: true}, at: {type: string, required: true}}
    event_time: {column: at, type: iso8601}
    identity: id
    aggregation_span: 1h
    coverage: declared
"""
START, END = "2024-01-15T10:00:00Z", "2024-01-15T11:00:00Z"


def test_declared_bounds_survive_a_server_that_is_killed_after_it_acknowledged_them(tmp_path: Path) -> None:
    server = Server(tmp_path / "p")
    (server.folder / "tidemill.yaml").write_text(HOURLY)
    server.start()
    slices = server.folder / "warehouse" / "slices"
    slices.mkdir(parents=True, exist_ok=True)
    with (slices / f".{LANDINGS}.lock").open("ab") as lock:
        fcntl.flock(
            lock, fcntl.LOCK_EX
        )  # nothing lands: what is acknowledged is in the log of the gateway only
        answer = httpx.post(
            f"http://127.0.0.1:{server.port}/v1/streams/visits/events",
            params={"start": START, "end": END},
            json=[{"id": "a", "at": "2024-01-15T10:30:00Z"}],
            timeout=PATIENCE,
        )
        assert answer.status_code == 202, answer.text
        server.kill()
        assert not (slices / LANDINGS).exists()
    server.start()
    server.stop()  # what it took up from the log is worked off before it ends
    with Mill.open(server.folder) as mill:
        mill.run_until_idle()
        (entry,) = mill.ledger("visits")
        assert entry.slice.declared == Interval(parse_instant(START), parse_instant(END))
        assert entry.counts.accepted == 1
        (window,) = mill.windows.windows("visits")
        assert (window.status.value, window.window.rows) == ("final", 1)
        assert mill.verify().ok
    assert not list((server.folder / "warehouse" / "wal").iterdir())
