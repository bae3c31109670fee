"""Quarantine judged again: what a fix makes right is accepted, the rest returns once, nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.pipeline import CONFIG, Plant, ndjson, request

from tidemill.mill import Mill
from tidemill.model.errors import InputError
from tidemill.model.failpoints import observed

EVENTS = [request(n) for n in range(6)]
FIXED = CONFIG.replace("allowed: [request]", "allowed: [request, other]")


def spoiled(plant: Plant) -> Mill:
    """Six good events, three of another type, two that stay bad, one conflict."""
    mill = plant.open()
    others = [request(20 + n, event_type="other") for n in range(3)]
    mill.land("requests", ndjson(*EVENTS, *others, b"{", request(30, ts="never"), request(0, api="/else")))
    mill.tick()
    return mill


def reasons(mill: Mill) -> list[str]:
    return sorted(str(reason) for reason in mill.quarantine("requests").column("reason").to_pylist())


ALL = ["bad_time", "conflict", "malformed", "unknown_type", "unknown_type", "unknown_type"]


def test_quarantine_replayed_after_a_fix_is_accepted_and_the_rest_stays(plant: Plant) -> None:
    with spoiled(plant) as mill:
        assert reasons(mill) == ALL
    plant.configure(FIXED)
    with plant.open() as mill:
        [landed] = mill.replay("requests", reason="unknown_type")
        assert (landed.new, landed.entry.slice.source) == (True, "replay")
        assert reasons(mill) == ["bad_time", "conflict", "malformed"]
        assert mill.replay("requests", reason="unknown_type") == []
        mill.run_until_idle()
        assert mill.slice(landed.entry.id).counts.accepted == 3
        assert reasons(mill) == ["bad_time", "conflict", "malformed"]
        assert mill.status()[0].raw_rows == 9
        assert mill.verify().findings == []


def test_what_is_still_bad_returns_to_quarantine_once_however_often_it_is_replayed(plant: Plant) -> None:
    with spoiled(plant) as mill:
        for _ in range(3):
            [landed] = mill.replay("requests")
            assert landed.new
            assert reasons(mill) == []
            mill.run_until_idle()
            assert reasons(mill) == ALL
            assert {row["slice"] for row in plant.quarantine()} == {landed.entry.id}
        payloads = [row["payload"] for row in plant.quarantine()]
    plant.configure(FIXED)
    with plant.open() as mill:
        mill.replay("requests")
        mill.run_until_idle()
        assert reasons(mill) == ["bad_time", "conflict", "malformed"]
        assert mill.status()[0].raw_rows == 9
        assert mill.verify().findings == []
    assert {row["payload"] for row in plant.quarantine()} < set(payloads)
    assert plant.leftovers() == []


@pytest.mark.parametrize("reason", [None, "unknown_type"])
def test_a_replay_that_dies_half_way_is_finished_by_the_next_tick(
    plant: Plant, tmp_path: Path, reason: str | None
) -> None:
    copies: list[Plant] = []

    def keep(point: str) -> None:
        if point == "landing.after_ledger":
            copies.append(plant.copy(tmp_path / "corpse"))

    with spoiled(plant) as mill, observed(keep):
        mill.replay("requests", reason=reason)
    (corpse,) = copies
    with corpse.open() as mill:
        assert reasons(mill) == ALL  # its slice has landed, and the records have not left
        mill.run_until_idle()
        assert reasons(mill) == ALL  # still bad: there again, and once
        assert mill.status()[0].totals["rejected"] == (10 if reason is None else 8)
        assert mill.verify().findings == []


def test_nothing_in_quarantine_is_nothing_to_replay(plant: Plant) -> None:
    with plant.open() as mill:
        assert mill.replay("requests") == []
        mill.land("requests", ndjson(*EVENTS))
        mill.tick()
        assert mill.replay("requests") == []
        with pytest.raises(InputError, match="there is no reason 'nonsense'") as caught:
            mill.replay("requests", reason="nonsense")
        assert "unknown_type" in caught.value.hint
