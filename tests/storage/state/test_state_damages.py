"""Damaged files and heads of logs in the state: known until they are cleared, never part of a recovery."""

from __future__ import annotations

from tidemill.model.damage import Damage, FileKind, KnownDamage
from tidemill.storage.log_chain import LogHead
from tidemill.storage.state.protocol import State

RUN = Damage("gate/orders/a.run", FileKind.ACCEPTED_IDS, "orders", "the file is empty")
LOG = Damage("slices/landings.ndjson", FileKind.SLICE_LOG, "", "line 3 is not the one that was written there")


def test_damage_is_known_until_it_is_cleared(state: State) -> None:
    assert state.damages() == []
    state.record_damages([LOG, RUN], 100)
    assert state.damages() == [KnownDamage(RUN, 100), KnownDamage(LOG, 100)]
    assert state.damages("orders") == [KnownDamage(RUN, 100)]
    worse = Damage(RUN.file, RUN.kind, RUN.stream, "the file is missing")
    state.record_damages([worse], 200)
    assert state.damages("orders") == [KnownDamage(worse, 100)]  # when it was found first
    state.clear_damages([RUN.file, "nothing"])
    assert state.damages() == [KnownDamage(LOG, 100)]


def test_the_head_of_a_log_is_what_was_recorded_last(state: State) -> None:
    assert state.log_head("expiries.ndjson") is None
    state.record_log("expiries.ndjson", LogHead(2, "ab"), [b"one\n", b"two\n"])
    state.record_log("expiries.ndjson", LogHead(3, "cd"), [b"three\n"])
    assert state.log_head("expiries.ndjson") == LogHead(3, "cd")
    assert state.log_lines("expiries.ndjson") == [b"one\n", b"two\n", b"three\n"]
    assert state.log_head("landings.ndjson") is None
    state.forget_log("expiries.ndjson")
    assert state.log_head("expiries.ndjson") is None
    assert state.log_lines("expiries.ndjson") == []


def test_neither_is_what_a_recovery_has_to_reproduce(state: State) -> None:
    before = state.dump()
    state.record_damages([RUN], 100)
    state.record_log("expiries.ndjson", LogHead(1, "ab"), [b"one\n"])
    assert state.dump() == before
