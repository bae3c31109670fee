"""Slices that failed, in every store: when each is due, what it says meanwhile, and how it is tried again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.storage.state.conftest import (
    NewStore,
    accept,
    assign,
    batch_of,
    build_all,
    build_of,
    judge_due,
    members_at,
    name_of,
    queue,
    result_of,
    slice_of,
    window_at,
)

from tidemill.model.errors import StorageError
from tidemill.model.slices import Counts, SliceEntry, SliceStatus
from tidemill.model.windows import Phase
from tidemill.storage.state.protocol import BatchRecord, ClockState, Retraction, SliceResult, State

NOW = 1_704_067_300_000_000


def failed(number: int, *, retry_at: int | None = None, failed_as: str | None = None) -> SliceResult:
    unread = SliceResult(name_of(number), Counts(), None, None, "not there", 0)
    return replace(unread, retry_at=retry_at, failed_as=failed_as)


def decide(state: State, batch: str, *results: SliceResult) -> None:
    state.enter_all([slice_of(int(n)) for n in range(1, 10) if _is_new(state, n, results)])
    assert state.apply_batch(replace(batch_of(batch, []), results=list(results), clocks=[], runs=[]))


def _is_new(state: State, number: int, results: tuple[SliceResult, ...]) -> bool:
    return any(r.slice == name_of(number) for r in results) and state.slice(name_of(number)) is None


def entry_of(state: State, number: int) -> SliceEntry:
    found = state.slice(name_of(number))
    assert found is not None
    return found


def due(state: State, now: int, declared: str = "as it is", limit: int = 10) -> list[int]:
    numbers = {name_of(number): number for number in range(100)}
    return [numbers[entry.id] for entry in state.failing("requests", now, declared, limit)]


def test_a_slice_that_failed_by_its_storage_is_due_when_its_time_has_come(state: State) -> None:
    decide(state, "b1", failed(1, retry_at=NOW + 5), failed(2, retry_at=NOW + 3), result_of(3))
    entry = entry_of(state, 1)
    assert (entry.status, entry.error, entry.failures) == (SliceStatus.FAILED, "not there", 1)
    assert (entry.retry_at, entry.failed_as) == (NOW + 5, None)
    assert due(state, NOW + 2) == []
    assert due(state, NOW + 3) == [2]
    assert due(state, NOW + 9) == [1, 2]
    assert due(state, NOW + 9, limit=1) == [2]  # it waited longer
    assert state.failing("nobody", NOW + 9, "as it is", 10) == []


def test_no_slice_waits_longer_than_the_longest_delay_when_the_clock_is_put_back(state: State) -> None:
    decide(state, "b1", failed(1, retry_at=NOW + 5), failed(2, retry_at=NOW + 6))
    before = NOW - 3600
    assert state.failing("requests", before, "as it is", 10) == []
    assert [one.id for one in state.failing("requests", before, "as it is", 10, 3605)] == [name_of(2)]
    assert len(state.failing("requests", before, "as it is", 10, 10)) == 2


def test_instants_before_1970_and_far_away_are_in_their_order(state: State) -> None:
    decide(state, "b1", failed(1, retry_at=-5), failed(2, retry_at=0), failed(3, retry_at=1 << 60))
    assert due(state, -6) == []
    assert due(state, -5) == [1]
    assert due(state, 1) == [1, 2]
    assert due(state, 1 << 60) == [1, 2, 3]


def test_a_slice_that_failed_by_its_content_is_due_under_another_declaration(state: State) -> None:
    decide(state, "b1", failed(1, failed_as="m"), failed(2, failed_as="n"), failed(3, failed_as=""))
    assert due(state, 1 << 60, "m") == [2, 3]
    assert due(state, 1 << 60, "n") == [1, 3]
    assert due(state, 0, "a") == due(state, 0, "z") == [1, 2, 3]


def test_one_that_still_cannot_be_read_waits_and_says_why(state: State) -> None:
    decide(state, "b1", failed(1, retry_at=NOW), failed(2, failed_as="m"), result_of(3))
    totals = dict(state.totals("requests"))
    state.postpone(name_of(1), "is a folder", NOW + 10)
    state.postpone(name_of(2), "is gone", NOW + 20)
    state.postpone(name_of(3), "nothing is wrong with it", NOW)
    state.postpone(name_of(99), "nobody knows it", NOW)
    first, second = entry_of(state, 1), entry_of(state, 2)
    assert (first.error, first.failures, first.retry_at) == ("is a folder", 2, NOW + 10)
    assert (second.error, second.failures, second.retry_at) == ("is gone", 2, NOW + 20)
    assert second.failed_as is None
    assert entry_of(state, 3).status is SliceStatus.ACCEPTED
    assert due(state, NOW + 9) == []
    assert due(state, NOW + 10) == [1]
    assert due(state, NOW + 20) == [1, 2]
    assert dict(state.totals("requests")) == totals


def test_one_that_is_sent_again_takes_a_new_place_behind_all_others(state: State) -> None:
    decide(state, "b1", failed(1, retry_at=NOW), failed(2, retry_at=NOW), result_of(3))
    state.enter(slice_of(4))
    second, first = state.send_again([name_of(2), name_of(1)])
    assert first == replace(SliceEntry(6, slice_of(1)), retried=1, failures=1)
    assert (second.seq, second.status, second.batch, second.error) == (5, SliceStatus.PENDING, None, None)
    assert [entry.id for entry in state.slices()] == [name_of(n) for n in (3, 4, 2, 1)]
    assert [entry.seq for entry in state.slices(newest=True, limit=2)] == [6, 5]
    assert [entry.seq for entry in state.pending("requests", 1 << 30)] == [4, 5, 6]
    assert state.slice_at(1) is None
    assert state.slice_at(6) == state.slice(name_of(1)) == first
    assert due(state, 1 << 60) == []
    totals = state.totals("requests")
    assert (totals["failed_slices"], totals["pending_slices"], totals["retried"]) == (0, 3, 2)
    assert (totals["landings"], state.landings()) == (4, 6)  # the log has a line for each try
    assert state.enter(slice_of(5)).seq == 7


def test_what_is_decided_of_it_then_is_as_of_any_slice(state: State) -> None:
    decide(state, "b1", failed(1, retry_at=NOW))
    state.send_again([name_of(1)])
    decide(state, "b2", failed(1, retry_at=NOW + 5))
    again = entry_of(state, 1)
    assert (again.seq, again.failures, again.retried, again.retry_at) == (2, 2, 1, NOW + 5)
    state.send_again([name_of(1)])
    state.apply_batch(batch_of("b3", [1], {0: [1]}))
    last = entry_of(state, 1)
    assert (last.seq, last.status, last.batch) == (3, SliceStatus.ACCEPTED, "b3")
    assert (last.error, last.failures, last.retry_at, last.retried) == (None, 0, None, 2)
    (tile,) = state.stale_tiles("requests")
    assert tile.desired == {name_of(1)}
    assert [entry.seq for entry in state.unassigned_slices("requests", 10)] == [3]


def test_a_batch_that_nothing_is_left_of_is_forgotten(state: State) -> None:
    decide(state, "alone", failed(1, retry_at=NOW))
    decide(state, "shared", failed(2, retry_at=NOW), result_of(3))
    state.send_again([name_of(1), name_of(2)])
    assert [row["batch"] for row in state.dump()["batches"]] == ["shared"]
    assert not state.has_batch("requests", "alone")


def test_only_what_failed_is_sent_again_and_all_or_none(state: State) -> None:
    decide(state, "b1", failed(1, retry_at=NOW), result_of(2))
    before = state.dump()
    for others, message in (([2], "it is accepted"), ([50], "not in the ledger")):
        with pytest.raises(StorageError, match=message):
            state.send_again([name_of(1), *map(name_of, others)])
        assert state.dump() == before
    assert state.send_again([]) == []


def test_bytes_that_land_again_are_looked_at_at_once(state: State) -> None:
    decide(state, "b1", failed(1, retry_at=NOW), failed(2, failed_as="m"))
    assert state.enter(slice_of(1)).retry_at == 0
    assert state.enter(slice_of(2)).retry_at is None
    assert due(state, 0, "m") == [1]
    assert state.landings() == 4


def test_all_can_be_made_due_by_hand(state: State) -> None:
    decide(state, "b1", failed(1, retry_at=NOW), failed(2, failed_as="m"), result_of(3))
    state.postpone(name_of(1), "is a folder", NOW + 10)
    assert state.prioritise("requests") == 2
    assert due(state, 0, "m") == [1, 2]
    assert entry_of(state, 1).failures == 0
    assert state.prioritise("nobody") == 0


def test_retracted_and_sent_back_slices_are_not_due(state: State) -> None:
    decide(state, "b1", failed(1, retry_at=NOW), failed(2, retry_at=NOW), result_of(3))
    act = Retraction(1, "requests", name_of(1), "wrong", 99, {name_of(2): 0, name_of(3): 8})
    state.apply_retraction(act, [], 5, 15)
    assert due(state, 1 << 60) == []
    assert entry_of(state, 1).retry_at is None
    assert (entry_of(state, 2).seq, entry_of(state, 2).retried) == (2, 0)  # it is judged again at its place


def test_what_was_built_with_it_before_a_retraction_follows_it(state: State) -> None:
    """It was accepted and built, sent back by a retraction, and then could not be read."""
    queue(state, {1: [10], 2: [10]})
    build_all(state)
    state.touch_tiles("requests", {0: frozenset({name_of(1), name_of(2)})})
    state.apply_tiles("requests", 1, [build_of(0, [1, 2])])
    act = Retraction(1, "requests", name_of(1), "wrong", 99, {name_of(2): 8})
    state.apply_retraction(act, [ClockState("file", 10, 9)], 5, 15)
    decide(state, "b2", replace(failed(2, retry_at=NOW), decision=1))
    state.send_again([name_of(2)])
    (tile,) = state.stale_tiles("requests")
    assert not tile.desired
    assert tile.observed == {name_of(1), name_of(2)}
    assert members_at(state, 10) == {}
    accept(state, 2, decision=1)
    assign(state, {2: [10]})
    judge_due(state)
    assert window_at(state, 10).phase is Phase.QUEUED
    build_all(state)
    assert (window_at(state, 10).phase, window_at(state, 10).revision) == (Phase.BUILT, 2)
    (built,) = members_at(state, 10).values()
    assert (built.seq, built.observed) == (3, True)
    rows = state.dump()["window_slices"]
    assert [(row["slice"], row["observed"]) for row in rows] == [(name_of(2), 2)]
    state.apply_tiles("requests", 2, [build_of(0, [], 2)._replace(part=None, rows=0)])
    assert state.stale_tiles("requests") == []
    assert state.dump()["tile_slices"] == []


def test_a_restored_ledger_has_the_places_it_is_given(new_store: NewStore) -> None:
    first, second = new_store()(), new_store()()
    decide(first, "b1", failed(1, retry_at=NOW), result_of(2))
    first.send_again([name_of(1)])
    first.enter(slice_of(3))
    pending = [SliceEntry(2, slice_of(2)), SliceEntry(3, slice_of(1), retried=1), SliceEntry(4, slice_of(3))]
    record = BatchRecord("requests", "b1", 1, 11, [result_of(2)], [], {})
    second.restore(pending, [record])
    assert second.dump() == first.dump()
    assert second.landings() == first.landings() == 4
    assert second.enter(slice_of(4)).seq == first.enter(slice_of(4)).seq == 5
    first.close()
    second.close()


def test_what_only_the_state_knows_of_tries_is_not_dumped(new_store: NewStore) -> None:
    def story(tell: Callable[[State], None]) -> object:
        state = new_store()()
        decide(state, "b1", failed(1, retry_at=NOW), failed(2, failed_as="m"))
        tell(state)
        dumped = state.dump()
        state.close()
        return dumped

    def postponed(state: State) -> None:
        state.postpone(name_of(1), "is a folder", NOW + 10)

    def prioritised(state: State) -> None:
        state.prioritise("requests")

    assert story(lambda _: None) == story(postponed) == story(prioritised)
