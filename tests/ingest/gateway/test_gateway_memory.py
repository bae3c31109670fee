"""Under more load than can be taken, memory stays within its budget, and nothing that was taken is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.server_process import Clients, Server

from tidemill.formats.stored_slice import content_bytes
from tidemill.mill import Mill

MIB = 1 << 20
# What a budget does not count: compiled parts, threads, allocators that give back late. Fixed.
BASE = 64 * MIB
TIGHT = """
gateway:
  window: {kind: fixed, size: 36500d}
  triggers: {count: null, bytes: null, rate_change: null}
  memory: {max: 24MiB, buffer: 16MiB, requests: 8MiB, windows: 64KiB, rates: 64KiB}
  requests: {body: 4MiB}
"""


def hammered(folder: Path, *, events: int, deadline: float) -> None:
    """Windows are let out for want of memory only, so it is always at its mark; senders come again as soon as
    they are told to wait."""
    server = Server(folder, TIGHT)
    server.start()
    warm = Clients(server, 1, 200, 20)  # so that what is compiled and loaded once is in the base
    warm.done()
    reported = len(warm.acknowledged())
    before = server.resident()
    clients = Clients(server, 6, events, 200, deadline=deadline, text=2_000)
    most = 0
    while not clients.ended(0.01):
        most = max(most, server.resident())
    said = clients.done()
    assert server.stop() == 0
    assert sum(one["slowed"] for one in said) > 0, "the load was too small to say anything"
    assert most - before <= 24 * MIB + BASE, (before, most)
    reported += len(clients.acknowledged())
    with Mill.open(folder) as mill:
        slices = [mill.project.warehouse / entry.slice.path for entry in mill.ledger("requests")]
    stored = sum(content_bytes(path).count(b"\n") for path in slices)
    assert stored == reported


def test_memory_stays_within_its_budget(tmp_path: Path) -> None:
    hammered(tmp_path / "p", events=15_000, deadline=10.0)


@pytest.mark.soak
def test_memory_stays_within_its_budget_at_length(tmp_path: Path) -> None:
    hammered(tmp_path / "p", events=300_000, deadline=180.0)
