"""Receipts in every store: kept until they are dropped, whatever clocks say, and never part of a recovery."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.storage.state.conftest import Open, batch_of, name_of, slice_of

from tidemill.model.gateway import Receipt, ingestion_id
from tidemill.model.slices import SliceStatus
from tidemill.model.time import DAY, MAX_INSTANT, MIN_INSTANT
from tidemill.storage.state.ddl import VERSIONS
from tidemill.storage.state.opening import open_fresh, open_store, replace_with_fresh
from tidemill.storage.state.protocol import State
from tidemill.storage.state.sqlite import open_state

NOON = 1_704_110_400_000_000


def receipt_of(lsn: int, *, tenant: str | None = "acme", repeated: bool = False) -> Receipt:
    return Receipt(
        id=ingestion_id("0123456789ab", lsn),
        stream="requests",
        tenant=tenant,
        slice=name_of(lsn // 100),
        first=lsn % 100 * 3 + 1,
        records=3,
        window=f"0123456789ab-requests-{lsn // 100:x}",
        at=NOON + lsn,
        repeated=repeated,
    )


def test_a_receipt_is_what_it_was_when_it_was_kept(state: State) -> None:
    odd = replace(receipt_of(3), tenant='ak\u00e9 "\\ {}', window="w \u2028", stream="w\u00f6rter")
    told = [receipt_of(1), receipt_of(2, tenant=None, repeated=True), odd]
    state.keep_receipts(told, NOON + DAY)
    assert [state.receipt(one.id) for one in told] == told
    found = state.receipt(told[1].id)
    assert found is not None
    assert found.repeated is True


def test_nobody_has_a_receipt_of_what_was_never_kept(state: State) -> None:
    assert state.receipt("0123456789ab-1") is None
    state.keep_receipts([], NOON)
    state.keep_receipts([receipt_of(0x11)], NOON)
    assert state.receipt("0123456789ab-1") is None  # no prefix of an id is an id
    assert state.receipt("") is None


def test_receipts_go_when_their_time_is_up_and_somebody_says_so(state: State) -> None:
    """The instant of one is its end: at it, it goes."""
    for lsn, until in ((1, NOON - 1), (2, NOON), (3, NOON + 1), (4, MIN_INSTANT), (5, MAX_INSTANT)):
        state.keep_receipts([receipt_of(lsn)], until)
    assert all(state.receipt(receipt_of(lsn).id) for lsn in range(1, 6))  # long ago by any clock
    assert state.drop_receipts(MIN_INSTANT - 1) == 0
    assert state.drop_receipts(NOON) == 3
    assert [lsn for lsn in range(1, 6) if state.receipt(receipt_of(lsn).id)] == [3, 5]
    assert state.drop_receipts(NOON) == 0
    assert state.drop_receipts(MAX_INSTANT) == 2


@pytest.mark.parametrize(("first", "second"), [(NOON, NOON + 5), (NOON + 5, NOON), (NOON + 5, NOON + 5)])
def test_a_receipt_that_is_kept_again_stays_as_it_is_until_the_later_instant(
    state: State, first: int, second: int
) -> None:
    """A replay of the log keeps what it may have kept before."""
    state.keep_receipts([receipt_of(1)], first)
    state.keep_receipts([receipt_of(1, tenant="other", repeated=True), receipt_of(2)], second)
    assert state.receipt(receipt_of(1).id) == receipt_of(1)
    assert state.drop_receipts(NOON + 4) == (second < NOON + 5)
    assert state.receipt(receipt_of(1).id) == receipt_of(1)
    assert state.drop_receipts(NOON + 5) == 1 + (second == NOON + 5)
    assert state.receipt(receipt_of(1).id) is None


def test_one_id_twice_in_a_call_is_one_receipt(state: State) -> None:
    state.keep_receipts([receipt_of(1), receipt_of(1, tenant="other")], NOON)
    assert state.receipt(receipt_of(1).id) == receipt_of(1)
    assert state.drop_receipts(NOON) == 1


def test_many_receipts_are_kept_and_dropped(state: State) -> None:
    """More than go in one piece; a window may hold as many requests."""
    many = [receipt_of(lsn) for lsn in range(1, 25_001)]
    state.keep_receipts(many, NOON)
    state.keep_receipts(many[:10], NOON + 1)
    assert state.receipt(many[-1].id) == many[-1]
    assert state.drop_receipts(NOON) == 24_990
    assert state.receipt(many[9].id) == many[9]
    assert state.receipt(many[10].id) is None


def test_several_threads_keep_and_drop_side_by_side(opener: Open) -> None:
    states = [opener() for _ in range(4)]

    def work(number: int) -> None:
        for turn in range(10):
            lsns = [number * 10_000 + turn * 10 + i for i in range(10)]
            states[number].keep_receipts([receipt_of(lsn) for lsn in lsns], NOON + turn)
            states[number].drop_receipts(NOON + 4)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = [
        n * 10_000 + i
        for n in range(4)
        for i in range(100)
        if states[0].receipt(receipt_of(n * 10_000 + i).id)
    ]
    assert left == [n * 10_000 + i for n in range(4) for i in range(50, 100)]
    for state in states:
        state.close()


def test_another_process_sees_them(opener: Open) -> None:
    one, other = opener(), opener()
    one.keep_receipts([receipt_of(1)], NOON)
    one.close()
    assert other.receipt(receipt_of(1).id) == receipt_of(1)
    other.close()


def test_what_is_recovered_says_nothing_of_receipts(state: State) -> None:
    state.enter(slice_of(1))
    before = state.dump()
    state.keep_receipts([receipt_of(1)], NOON)
    assert state.dump() == before


def test_a_state_that_has_receipts_can_be_restored_and_keeps_them(state: State) -> None:
    many = [receipt_of(lsn) for lsn in range(1, 6001)]
    state.keep_receipts(many, NOON)
    other = replace(slice_of(1), stream="requests")
    state.restore([], [])
    state.enter(other)
    assert state.receipt(many[0].id) == many[0]
    assert state.receipt(many[-1].id) == many[-1]
    assert state.drop_receipts(NOON) == 6000


def test_a_batch_and_a_retraction_leave_receipts_alone(state: State) -> None:
    state.enter(slice_of(1))
    state.keep_receipts([receipt_of(100)], NOON)
    state.apply_batch(batch_of("b1", [1]))
    assert [entry.status for entry in state.slices()] == [SliceStatus.ACCEPTED]
    assert state.receipt(receipt_of(100).id) == receipt_of(100)


# -- older states


@pytest.mark.parametrize("version", range(1, len(VERSIONS)))
def test_a_file_of_an_older_version_takes_receipts(tmp_path: Path, version: int) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as db:
        for step in VERSIONS[:version]:
            db.executescript(step)
        db.execute("PRAGMA application_id = 0x74696465")
        db.execute(f"PRAGMA user_version = {version}")
    state = open_state(path)
    state.keep_receipts([receipt_of(1)], NOON)
    assert state.receipt(receipt_of(1).id) == receipt_of(1)
    state.close()


def test_receipts_are_gone_with_the_state_that_is_replaced(tmp_path: Path) -> None:
    state = open_store(tmp_path)
    state.keep_receipts([receipt_of(1)], NOON)
    state.close()
    fresh = open_fresh(tmp_path)
    fresh.restore([], [])
    fresh.close()
    replace_with_fresh(tmp_path)
    state = open_store(tmp_path)
    assert state.receipt(receipt_of(1).id) is None
    state.close()
