"""Rounds are bounded: a flood of old windows or tiles holds up neither other streams nor what is live."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tidemill.mill import Mill
from tidemill.outputs.datasets import builder
from tidemill.outputs.rollups import roller
from tidemill.pipeline import rounds

STREAM = """
    schema:
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
    tenant: {value: acme}
    aggregation_span: 1h
    allow_incomplete_windows: true
    metrics: {hits: {kind: counter}}
"""
PROJECT = f"version: 1\nengine: {{cores: 2, memory: 1g}}\nstreams:\n  flood: {STREAM}\n  live: {STREAM}"
OLD = datetime(1990, 1, 1, tzinfo=UTC)
FLOOD = 60  # events, each in an hour of another day


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[Mill]:
    (tmp_path / "tidemill.yaml").write_text(PROJECT)
    with Mill.open(tmp_path) as found:
        yield found


@pytest.fixture(autouse=True)
def _small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "BUILDS_PER_ROUND", 24)
    monkeypatch.setattr(builder, "RUN", 4)
    monkeypatch.setattr(builder, "BACKLOG", 8)
    monkeypatch.setattr(roller, "TILES_PER_ROUND", 10)


def land(mill: Mill, stream: str, times: list[datetime]) -> None:
    lines = (json.dumps({"event_id": f"{stream}-{at}", "ts": at.isoformat()}) for at in times)
    mill.land(stream, "\n".join(lines).encode())


def flood(mill: Mill) -> list[datetime]:
    times = [OLD + timedelta(days=day) for day in range(FLOOD)]
    land(mill, "flood", times)
    return times


def built(mill: Mill, stream: str) -> set[datetime]:
    return {datetime.fromtimestamp(one.key.start / 1e6, UTC) for one in mill.windows.datasets(stream)}


def count(mill: Mill, stream: str) -> tuple[int, list[str]]:
    """How many events a query finds, and what it names as pending."""
    answer = mill.ask(f"SELECT count FROM {stream}.hits")
    (found,) = answer.table.column("count").to_pylist()
    return found, [one.what for one in answer.completeness.pending]


def test_the_backlog_of_one_stream_does_not_hold_up_another(mill: Mill) -> None:
    flood(mill)
    now = datetime(2026, 1, 5, 10, tzinfo=UTC)
    land(mill, "live", [now, now + timedelta(hours=1)])
    report = mill.tick()
    assert len(report.builds) == 24
    assert built(mill, "live") == {now, now + timedelta(hours=1)}
    assert 0 < len(built(mill, "flood")) <= 22
    mill.run_until_idle()
    assert len(built(mill, "flood")) == FLOOD


def test_a_round_ends_early_when_something_has_landed_meanwhile(mill: Mill) -> None:
    flood(mill)
    now = datetime(2026, 1, 5, 10, tzinfo=UTC)
    land(mill, "live", [now])
    landed = threading.Event()
    landed.set()
    with mill.warehouse.sharing() as leases:
        report = rounds.tick(mill.workers, mill.clock, leases, patient=True, wake=landed)
    assert 0 < len(report.builds) < rounds.BUILDS_PER_ROUND
    assert built(mill, "live") == {now}  # each stream has had its turns
    assert {OLD, OLD + timedelta(days=FLOOD - 1)} <= built(mill, "flood")


def test_the_newest_window_does_not_wait_for_a_flood_of_old_ones(mill: Mill) -> None:
    times = flood(mill)
    now = datetime(2026, 1, 5, 10, tzinfo=UTC)
    land(mill, "flood", [now])
    mill.tick()
    first = built(mill, "flood")
    assert len(first) == 24
    assert {now, times[0]} <= first
    mill.run_until_idle()
    assert built(mill, "flood") == {now, *times}


@pytest.mark.long
def test_a_round_builds_so_many_tiles_and_the_next_goes_on(mill: Mill) -> None:
    flood(mill)
    land(mill, "live", [datetime(2026, 1, 5, 10, tzinfo=UTC)])
    mill.tick()
    assert count(mill, "flood") == (10, ["tiles"])
    assert count(mill, "live") == (1, [])
    mill.tick()
    assert count(mill, "flood") == (20, ["tiles"])
    mill.run_until_idle()
    assert count(mill, "flood") == (FLOOD, [])
    assert mill.verify().ok
