"""Retractions in every store: ledger, totals, batches, clocks, tiles, windows as if it had never arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.storage.state.conftest import (
    TILE,
    NewStore,
    accept,
    assign,
    batch_of,
    build_all,
    build_of,
    dataset_of,
    judge_due,
    key_of,
    members_at,
    name_of,
    queue,
    result_of,
    slice_of,
    verdict_of,
    window_at,
)

from tidemill.model.errors import StorageError
from tidemill.model.levels import TileKey
from tidemill.model.slices import Counts, SliceStatus, contribution_name, set_hash
from tidemill.model.time import MINUTE
from tidemill.model.windows import Phase
from tidemill.storage.state.protocol import ClockState, Retraction, State, TileBuild


def retract(
    state: State, number: int, again: Mapping[int, int] | None = None, *, n: int = 1, version: int = 5
) -> bool:
    sent_back = {name_of(other): accepted for other, accepted in (again or {}).items()}
    act = Retraction(n, "requests", name_of(number), "sent twice", 99, sent_back)
    return state.apply_retraction(act, [ClockState("file", 10, 9)], version, version + 10)


# -- the ledger


def test_a_retracted_slice_stays_in_the_ledger_with_its_story(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2), slice_of(2)])
    state.apply_batch(batch_of("b1", [1, 2]))
    before = state.slice(name_of(1))
    assert before is not None
    assert state.retractions() == 0
    assert retract(state, 1)
    assert state.retractions() == 1
    assert state.slice(name_of(1)) == replace(
        before, status=SliceStatus.RETRACTED, batch=None, retracted_at=99, retract_reason="sent twice"
    )
    assert before.counts == result_of(1).counts
    totals = state.totals("requests")
    assert (totals["accepted_slices"], totals["retracted_slices"]) == (1, 1)
    assert (totals["records"], totals["accepted"], totals["late"], totals["reject_skew"]) == (10, 8, 3, 1)
    assert (totals["landings"], totals["bytes"]) == (3, 200)  # it did arrive, and its file is there
    assert state.landings() == 3
    assert [entry.id for entry in state.slices(status=SliceStatus.RETRACTED)] == [name_of(1)]


def test_a_retraction_is_applied_once(state: State) -> None:
    accept(state, 1, 2, 3)
    assert retract(state, 1, n=1)
    before = state.dump()
    assert not retract(state, 1, n=1)
    assert state.dump() == before
    assert retract(state, 2, n=3)  # the second act is of another stream, and not applied yet
    assert state.retractions() == 2


def test_a_retraction_of_an_unknown_slice_changes_nothing(state: State) -> None:
    accept(state, 1)
    accept(state, 7, stream="other")
    before = state.dump()
    for number, again in ((2, {}), (1, {2: 3}), (7, {})):
        with pytest.raises(StorageError, match="not in the ledger"):
            retract(state, number, again)
    assert state.dump() == before
    assert state.retractions() == 0


def test_a_slice_that_is_sent_back_is_pending_again(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2), slice_of(3)])
    state.apply_batch(batch_of("b1", [1]))
    state.apply_batch(replace(batch_of("b2", []), results=[result_of(2, 0, "damaged")]))
    state.apply_batch(batch_of("b3", [3], version=3))
    assert retract(state, 1, {3: 8, 2: 0})
    second, third = state.slices("requests", SliceStatus.PENDING)
    assert (third.counts, third.observed, third.watermark, third.batch) == (Counts(), None, None, None)
    assert (third.attempt, third.decision, third.accepted_before) == (1, 0, 8)
    assert (second.error, second.attempt, second.accepted_before) == (None, 1, 0)
    assert [entry.seq for entry in state.pending("requests", 1 << 40)] == [2, 3]
    totals = state.totals("requests")
    assert (totals["pending_slices"], totals["accepted_slices"], totals["failed_slices"]) == (2, 0, 0)
    assert (totals["records"], totals["accepted"], totals["reject_skew"]) == (0, 0, 0)
    state.apply_batch(replace(batch_of("b4", [2]), results=[result_of(3, 9, decision=1)]))
    decided = state.slice(name_of(3))
    assert decided is not None
    assert (decided.status, decided.decision, decided.attempt) == (SliceStatus.ACCEPTED, 1, 1)
    assert (decided.accepted_before, decided.name) == (None, f"{name_of(3)}~1")
    assert retract(state, 2, {3: 9}, n=2)
    again = state.slice(name_of(3))
    assert again is not None
    assert (again.attempt, again.decision, again.accepted_before) == (2, 1, 9)


def test_what_was_not_accepted_can_be_retracted_too(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2)])
    state.apply_batch(replace(batch_of("b1", []), results=[result_of(1, 0, "damaged")]))
    assert retract(state, 1, n=1)
    assert retract(state, 2, n=2)
    assert {entry.status for entry in state.slices()} == {SliceStatus.RETRACTED}
    assert state.pending("requests", 1 << 40) == []
    assert state.totals("requests")["records"] == 0
    first = state.slice(name_of(1))
    assert first is not None
    assert first.error == "damaged"


def test_a_retracted_slice_that_lands_again_stays_retracted(state: State) -> None:
    accept(state, 1)
    retract(state, 1)
    entry = state.enter(slice_of(1))
    assert (entry.status, entry.landings) == (SliceStatus.RETRACTED, 2)
    assert state.pending("requests", 1 << 40) == []
    with pytest.raises(StorageError, match="retracted"):
        state.apply_batch(batch_of("b9", [1]))


def test_batches_are_forgotten_when_nothing_is_left_in_them(state: State) -> None:
    state.enter_all([slice_of(number) for number in range(1, 6)])
    for batch, numbers in (("b1", [1, 2]), ("b2", [3]), ("b3", [4, 5])):
        state.apply_batch(batch_of(batch, numbers))
    assert retract(state, 1, {3: 8, 4: 8})
    assert [state.has_batch("requests", batch) for batch in ("b1", "b2", "b3")] == [True, False, True]
    assert retract(state, 2, n=2)
    assert not state.has_batch("requests", "b1")
    assert state.apply_batch(replace(batch_of("b2", [3]), runs=()))  # the same batch again: it is not known


def test_clocks_become_what_they_would_have_been(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2)])
    state.apply_batch(
        replace(batch_of("b1", [1], version=7), clocks=[ClockState("file", 500, 400), ClockState("x", 1, 0)])
    )
    state.apply_batch(replace(batch_of("b1", []), stream="other"))
    assert retract(state, 1, version=3)
    assert state.clocks("requests") == [ClockState("file", 10, 9)]
    assert state.clocks("other") == [ClockState("file", 1000, 900)]
    assert state.table_versions("requests") == {"raw": 7, "quarantine": 17}
    assert retract(state, 2, n=2, version=8)
    assert state.table_versions("requests") == {"raw": 8, "quarantine": 18}


# -- tiles


def test_tiles_of_a_retracted_slice_are_stale(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2)])
    state.apply_batch(batch_of("b1", [1, 2], {0: [1, 2], TILE: [2], 2 * TILE: [1]}))
    state.apply_tiles("requests", 1, [build_of(0, [1, 2]), build_of(TILE, [2]), build_of(2 * TILE, [1])])
    assert retract(state, 1)
    first, last = state.stale_tiles("requests")
    assert (first.desired, first.observed) == ({name_of(2)}, {name_of(1), name_of(2)})
    assert (last.state.key.start, last.desired, last.observed) == (2 * TILE, frozenset(), {name_of(1)})
    state.apply_tiles("requests", 2, [build_of(0, [2], 2), build_of(2 * TILE, [], 2)])
    assert state.stale_tiles("requests") == []
    (emptied,) = state.base_tiles("requests", [2 * TILE])
    assert (emptied.desired, emptied.observed, emptied.state.revision) == (frozenset(), frozenset(), 2)


def test_a_tile_that_a_retracted_slice_touched_is_stale(state: State) -> None:
    accept(state, 1)
    accept(state, 2)
    state.touch_tiles("requests", {0: frozenset([name_of(1), name_of(2)]), TILE: frozenset([name_of(2)])})
    state.apply_tiles("requests", 1, [build_of(0, [1, 2])])
    assert retract(state, 2)
    (tile,) = state.stale_tiles("requests")
    assert (tile.state.key.start, tile.desired) == (0, {name_of(1)})
    assert state.base_tiles("requests", [TILE]) == []


def test_a_tile_that_was_never_built_and_has_nothing_left_is_forgotten(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2)])
    state.apply_batch(batch_of("b1", [1, 2], {0: [1], TILE: [1, 2]}))
    assert retract(state, 1)
    (tile,) = state.stale_tiles("requests")
    assert (tile.state.key.start, tile.desired) == (TILE, {name_of(2)})
    assert state.base_tiles("requests", [0]) == []


def test_a_slice_that_comes_back_as_it_was_makes_no_tile_stale(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2)])
    state.apply_batch(batch_of("b1", [1], {0: [1]}))
    state.apply_batch(batch_of("b2", [2], {TILE: [2]}))
    state.apply_tiles("requests", 1, [build_of(0, [1]), build_of(TILE, [2])])
    assert retract(state, 1, {2: 8})
    assert [tile.state.key.start for tile in state.stale_tiles("requests")] == [0, TILE]
    state.apply_batch(batch_of("b3", [2], {TILE: [2]}))
    assert [tile.state.key.start for tile in state.stale_tiles("requests")] == [0]


def test_a_slice_that_was_decided_again_has_another_name_in_its_tiles(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2)])
    state.apply_batch(batch_of("b1", [1, 2], {0: [1, 2]}))
    state.apply_tiles("requests", 1, [build_of(0, [1, 2])])
    assert retract(state, 1, {2: 7})
    state.apply_batch(replace(batch_of("b2", [], {0: [2]}), results=[result_of(2, decision=1)]))
    anew = contribution_name(name_of(2), 1)
    (tile,) = state.stale_tiles("requests")
    assert (tile.desired, tile.observed) == ({anew}, {name_of(1), name_of(2)})
    build = TileBuild(TileKey("5s", 0), set_hash([anew]), 2, "p2.parquet", 10, frozenset([anew]))
    state.apply_tiles("requests", 2, [build])
    assert state.stale_tiles("requests") == []
    (built,) = state.base_tiles("requests", [0])
    assert built.observed == {anew}


# -- windows


def test_a_retracted_slice_leaves_its_windows_which_are_due(state: State) -> None:
    queue(state, {1: [10, 11], 2: [10, 12]})
    build_all(state)
    assert retract(state, 1)
    assert state.windows_of(name_of(1)) == []
    due = state.due("requests", 0, 10)
    assert [window.key for window, _ in due] == [key_of(10), key_of(11)]
    window = window_at(state, 10)
    assert (window.phase, window.ready, window.desired) == (Phase.WAITING, False, None)
    assert (window.observed, window.revision) == (set_hash([name_of(1), name_of(2)]), 1)
    assert {number: member.observed for number, member in members_at(state, 10).items()} == {2: True}
    assert window_at(state, 12).phase is Phase.BUILT
    judge_due(state)
    assert window_at(state, 10).phase is Phase.QUEUED
    (build,) = state.take("me", 0, MINUTE, 1)
    assert ([member.slice for member in build.members], build.supersedes) == ([name_of(2)], 1)


def test_a_window_with_a_dataset_outlives_its_last_member_the_others_do_not(state: State) -> None:
    queue(state, {1: [10]})
    build_all(state)
    accept(state, 2)
    assign(state, {2: [11]})
    assert retract(state, 1, n=1)
    assert retract(state, 2, n=2)
    verdicts = [
        replace(verdict_of(*found, ready=False), reason="empty", withdraw=found[0].observed is not None)
        for found in state.due("requests", 0, 10)
    ]
    assert state.evaluate(verdicts) == []
    (window,) = state.windows()
    assert (window.key, window.phase, window.reason) == (key_of(10), Phase.WAITING, "empty")
    assert (window.revision, window.observed, window.file) == (1, None, None)
    assert state.dump()["window_slices"] == []


@pytest.mark.parametrize(("gone", "sealed"), [(1, None), (2, 1)], ids=["it counted", "it was ignored"])
def test_a_window_is_no_longer_sealed_when_a_slice_that_counted_is_retracted(
    state: State, gone: int, sealed: int | None
) -> None:
    accept(state, 1, 2)
    assign(state, {1: [10], 2: [10]})
    ((window, members),) = state.due("requests", 0, 10)
    assert state.evaluate([replace(verdict_of(window, members, [1]), seal=1)]) == []
    build_all(state)
    assert window_at(state, 10).sealed == 1
    assert retract(state, gone)
    after = window_at(state, 10)
    assert after.sealed == sealed
    if gone == 2:  # what is desired stands, but must be looked at again
        assert (after.phase, after.desired) == (Phase.BUILT, set_hash([name_of(1)]))
    assert [found.key for found, _ in state.due("requests", 0, 10)] == [key_of(10)]


def test_a_window_is_no_longer_sealed_when_a_slice_that_was_sent_back_is_retracted(state: State) -> None:
    accept(state, 1, 2)
    assign(state, {1: [10], 2: [11]})
    found = state.due("requests", 0, 10)
    assert state.evaluate([replace(verdict_of(w, m, [m[0].seq]), seal=m[0].seq) for w, m in found]) == []
    build_all(state)
    assert retract(state, 1, {2: 1})
    assert [window_at(state, hour).sealed for hour in (10, 11)] == [None, 2]
    assert retract(state, 2, n=2)
    assert [window_at(state, hour).sealed for hour in (10, 11)] == [None, None]


@pytest.mark.parametrize("failed", [False, True])
def test_a_window_that_lost_a_slice_is_not_in_the_queue_before_it_is_judged(
    state: State, failed: bool
) -> None:
    queue(state, {1: [10], 2: [10]})
    if failed:
        (build,) = state.take("me", 0, MINUTE, 1)
        assert state.fail(build, "broken", 0, 1)
    assert retract(state, 1)
    assert (state.queue_length(), state.take("me", 0, MINUTE, 10)) == (0, [])
    assert state.retry("requests") == 0
    judge_due(state)
    (again,) = state.take("me", 0, MINUTE, 10)
    assert (again.attempt, [member.slice for member in again.members]) == (1, [name_of(2)])


def test_what_is_being_built_from_a_retracted_slice_is_not_recorded(state: State) -> None:
    queue(state, {1: [10, 11], 2: [10]})
    first, second = state.take("me", 0, MINUTE, 10)
    assert retract(state, 2)
    assert state.renew("me", [first.key, second.key], 2 * MINUTE) == [second.key]
    assert not state.complete(first, dataset_of(first), 1)
    assert not state.fail(first, "broken", 0, 3)
    assert state.complete(second, dataset_of(second), 1)
    assert state.window_counts("requests")[Phase.WAITING] == 1


def test_a_slice_that_comes_back_as_it_was_leaves_the_window_as_it_was_built(state: State) -> None:
    queue(state, {1: [10]})
    queue(state, {2: [11]})
    build_all(state)
    before = window_at(state, 11)
    assert retract(state, 1, {2: 8})
    assert state.unassigned_slices("requests", 10) == []
    assert members_at(state, 11) == {}
    state.apply_batch(batch_of("again", [2]))
    assert [entry.id for entry in state.unassigned_slices("requests", 10)] == [name_of(2)]
    assign(state, {2: [11]})
    judge_due(state)
    after = window_at(state, 11)
    assert (after.phase, after.revision, after.file) == (Phase.BUILT, 1, before.file)
    assert members_at(state, 11)[2].observed


def test_a_slice_that_was_decided_again_has_another_name_in_its_windows(state: State) -> None:
    queue(state, {1: [10]})
    queue(state, {2: [10]})
    build_all(state)
    assert retract(state, 1, {2: 7})
    accept(state, 2, decision=1)
    assign(state, {2: [10]})
    (member,) = members_at(state, 10).values()
    assert (member.name, member.slice, member.observed) == (f"{name_of(2)}~1", name_of(2), False)
    judge_due(state)
    (build,) = build_all(state)
    assert build.desired == set_hash([f"{name_of(2)}~1"])
    (member,) = members_at(state, 10).values()
    assert member.observed
    assert window_at(state, 10).revision == 2


def test_an_unlaid_slice_that_is_retracted_or_sent_back_is_not_unlaid(state: State) -> None:
    accept(state, 1, 2, 3)
    assert retract(state, 1, {2: 8})
    assert [entry.id for entry in state.unassigned_slices("requests", 10)] == [name_of(3)]


# -- recovered


def test_a_restored_state_has_its_retractions(state: State, new_store: NewStore) -> None:
    state.enter_all([slice_of(1), slice_of(2), slice_of(3)])
    state.apply_batch(batch_of("b1", [1], {0: [1]}))
    state.apply_batch(batch_of("b2", [2], {0: [2]}))
    assert retract(state, 1, {2: 8}, version=1)
    decided = replace(batch_of("b3", [], {0: [2]}), results=[result_of(2, 9, decision=1)])
    decided = replace(decided, clocks=[ClockState("file", 30, 20)])
    state.apply_batch(decided)
    told = state.slices()
    entries = [
        told[0],
        replace(told[1], status=SliceStatus.PENDING, counts=Counts(), observed=None, batch=None, decision=0),
        told[2],
    ]
    other = new_store()()
    other.restore(entries, [replace(decided, runs=["run-b1", "run-b2", "run-b3"])])
    assert other.retractions() == 1
    assert not retract(other, 1, {2: 8})
    assert other.dump() == state.dump()
    other.close()
