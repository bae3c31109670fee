"""Leases on streams as the databases keep them, by their own clocks."""

from __future__ import annotations

from tests.storage.state.conftest import Open

from tidemill.storage.state.protocol import State

HOUR = 3600 * 10**6


def test_leases_are_taken_together_or_not_at_all(opener: Open) -> None:
    one, two = opener(), opener()
    first = one.take_leases(["apples", "pears"], "one", HOUR)
    assert [(lease.name, lease.holder) for lease in first.leases] == [("apples", "one"), ("pears", "one")]
    assert two.take_leases(["plums", "pears"], "two", HOUR).blocked_by == {"one"}
    assert two.lost_leases("two", {"plums": 1}) == ["plums"]
    assert two.take_leases(["plums"], "two", HOUR).leases[0].number >= first.leases[0].number
    for state in (one, two):
        state.close()


def test_a_lease_that_ran_out_belongs_to_its_holder_until_another_takes_it(state: State) -> None:
    [lease] = state.take_leases(["apples"], "one", 1).leases  # of a microsecond
    assert state.lost_leases("one", {"apples": lease.number}) == []
    assert state.renew_leases("one") == 1
    granted = state.take_leases(["apples"], "two", HOUR)
    while not granted.leases:  # the clock of the database moves on
        granted = state.take_leases(["apples"], "two", HOUR)
    assert granted.left == {"apples": "one"}
    assert granted.leases[0].number > lease.number
    assert state.renew_leases("one") == 0
    assert state.lost_leases("one", {"apples": lease.number}) == ["apples"]
    state.release_leases("one")  # which gives back nothing
    assert state.take_leases(["apples"], "three", HOUR).blocked_by == {"two"}
    state.release_leases("two")
    assert state.take_leases(["apples"], "three", HOUR).left == {}


def test_numbers_follow_the_clock_so_that_a_new_database_goes_on(opener: Open, new_store: object) -> None:
    state = opener()
    [before] = state.take_leases(["apples"], "one", HOUR).leases
    state.close()
    fresh = new_store()()  # type: ignore[operator]
    [after] = fresh.take_leases(["apples"], "two", HOUR).leases
    assert after.number >= before.number
    fresh.close()


def test_leases_are_not_part_of_what_recover_must_reproduce(state: State) -> None:
    before = state.dump()
    state.take_leases(["apples"], "one", HOUR)
    assert state.dump() == before
