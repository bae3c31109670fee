"""Leases on streams: the rules by themselves, and holders that meet on one warehouse."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from tests.support.patience import PATIENCE

from tidemill.model.errors import BusyError, LeaseLostError
from tidemill.storage import layout
from tidemill.storage.leases import JOBS, HeldLeases, current_leases, sharing, working
from tidemill.storage.state.lease_rules import Granted, Lease, grant, is_live, lost
from tidemill.storage.state.opening import open_store
from tidemill.storage.state.protocol import State

LONG = 3600 * 10**6  # no test takes so long
SHORT = 100_000


@pytest.mark.parametrize(
    ("holder", "until", "live"),
    [
        ("one", 101, True),
        ("one", 150, True),  # it has just been renewed
        ("one", 100, False),
        ("one", 151, False),  # the clock was set back
        (None, 150, False),
    ],
)
def test_a_holder_is_waited_for_until_its_lease_ends(holder: str | None, until: int, live: bool) -> None:
    assert is_live(Lease("apples", 7, holder, until, length=50), now=100) is live


def test_a_lease_is_granted_to_one() -> None:
    known = {"apples": Lease("apples", 7, "one", 150, 50)}
    assert grant(known, ["apples"], "two", 149, 50) == Granted(blocked_by=frozenset({"one"}))
    assert grant(known, ["pears"], "two", 149, 50).leases == [Lease("pears", 149, "two", 199, 50)]
    assert grant(known, ["pears", "apples"], "two", 149, 50).leases == ()  # all of them, or none
    granted = grant(known, ["apples"], "two", 149, 50, gone={"one"})
    assert granted == Granted([Lease("apples", 149, "two", 199, 50, contested=True)], {"apples": "one"})
    assert grant(known, ["apples"], "two", 150, 50).left == {"apples": "one"}
    given_back = {"apples": Lease("apples", 7, None, 150, 50)}
    assert grant(given_back, ["apples"], "two", 100, 50).left == {}


@pytest.mark.parametrize(
    ("before", "ended", "contested"),
    [
        (None, (), False),
        (Lease("apples", 7, None, 0, 50), (), False),  # it was given back
        (Lease("apples", 7, "one", 0, 50), (), True),
        (Lease("apples", 7, "one", 0, 50), ("one",), False),
        (Lease("apples", 7, "one", 0, 50, contested=True), ("one",), True),  # one died before it was done
        (Lease("apples", 7, None, 0, 50, contested=True), (), True),
    ],
)
def test_a_lease_is_contested_until_those_before_are_shut_out(
    before: Lease | None, ended: tuple[str, ...], contested: bool
) -> None:
    known = {} if before is None else {"apples": before}
    assert [one.contested for one in grant(known, ["apples"], "two", 100, 50, (), ended).leases] == [
        contested
    ]


def test_each_holder_has_a_greater_number_than_those_before_it() -> None:
    numbers, known = [], dict[str, Lease]()
    for now in (100, 100, 40, 300):  # also when the clock stands still or goes back
        [lease] = grant(
            known, ["apples"], f"holder {len(numbers)}", now, 10, gone=set(_holders(known))
        ).leases
        known = {"apples": lease}
        numbers.append(lease.number)
    assert numbers == sorted(set(numbers))


def _holders(known: dict[str, Lease]) -> Iterator[str]:
    return (one.holder for one in known.values() if one.holder is not None)


def test_a_lease_is_lost_when_another_number_is_recorded() -> None:
    assert lost({"apples": 7, "pears": 8}, {"apples": 7, "pears": 8}) == []
    assert lost({"apples": 7}, {"pears": 8, "apples": 7, "plums": 1}) == ["pears", "plums"]
    assert lost({"apples": 9}, {"apples": 7}) == ["apples"]


# -- holders


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def comes(holder: HeldLeases, *names: str) -> bool:
    """Whether it gets the leases in the end."""
    end = monotonic() + PATIENCE
    while not holder.take(*names):
        if monotonic() > end:
            return False
    return True


def test_holders_share_streams_and_give_them_back(tmp_path: Path, state: State) -> None:
    with sharing(tmp_path, state, LONG) as one:
        assert one.take("apples")
        assert one.take("apples")  # it has it
        with sharing(tmp_path, state, LONG) as two:
            assert not two.take("apples", "pears")
            assert two.take("pears")
            assert current_leases() is two
        assert current_leases() is one
        with (
            pytest.raises(BusyError, match="another process is working on this warehouse; cannot pack now"),
            working(tmp_path, state, LONG, ["apples"], "pack"),
        ):
            pass
    assert current_leases() is None
    with working(tmp_path, state, LONG, ["apples", "pears"], "pack") as alone:
        assert alone.numbers.keys() == {"apples", "pears", *JOBS}
    assert list(layout.holders(tmp_path).iterdir()) == []


def test_a_live_holder_renews_its_lease(tmp_path: Path, state: State) -> None:
    with sharing(tmp_path, state, SHORT) as one, sqlite3.connect(layout.state(tmp_path)) as link:
        one.take("apples")
        ends, end = set[int](), monotonic() + PATIENCE
        while len(ends) < 4 and monotonic() < end:
            ends |= {row[0] for row in link.execute("SELECT until FROM leases WHERE name = 'apples'")}
        assert len(ends) == 4
        assert state.lost_leases(one.holder, one.numbers) == []
    link.close()


@pytest.mark.parametrize("dead", [False, True], ids=["does not respond", "is dead"])
def test_a_holder_that_is_gone_is_replaced(tmp_path: Path, state: State, dead: bool) -> None:
    """One on another machine when its lease has run out; one on this machine at once."""
    assert state.take_leases(["apples"], "other-1+0" if dead else "elsewhere", LONG if dead else SHORT).leases
    one = HeldLeases(tmp_path, state, LONG)
    assert comes(one, "apples")
    assert state.lost_leases("elsewhere", {"apples": 1}) == ["apples"]
    one.close()


def test_what_a_replaced_holder_writes_is_refused(tmp_path: Path, state: State) -> None:
    other = open_store(tmp_path)
    with sharing(tmp_path, state, LONG) as one:
        one.take("apples")
        state.record_seen("apples", {"raw": 1})
        assert other.take_leases(["apples"], "another", LONG, gone={one.holder}).leases
        other.record_seen("apples", {"raw": 2})
        said = (
            "another process has taken over apples: this one did not respond for longer than its lease of 1h"
        )
        with pytest.raises(LeaseLostError, match=said):
            state.record_seen("apples", {"raw": 3})
        with pytest.raises(LeaseLostError, match=said):
            one.check(layout.raw(tmp_path, "apples"))
    assert state.table_versions("apples") == {"raw": 2}
    assert state.lost_leases("another", {}) == []  # closing gave back nothing that was not its own
    other.close()


def test_taking_over_takes_the_next_version_of_every_table(tmp_path: Path, state: State) -> None:
    tables = [layout.raw(tmp_path, "apples"), layout.results(tmp_path, "apples", "hours")]
    for number, table in enumerate([*tables, layout.raw(tmp_path, "pears")]):
        layout.table_log(table).mkdir(parents=True)
        for version in range(number + 1):
            (layout.table_log(table) / f"{version:020d}.json").write_text("{}\n")
    state.take_leases(["apples"], "elsewhere", 1)
    one = HeldLeases(tmp_path, state, LONG)
    assert comes(one, "apples")
    logs = [sorted(path.name for path in layout.table_log(t).glob("*.json")) for t in tables]
    assert [len(names) for names in logs] == [2, 3]
    for table, names in zip(tables, logs, strict=True):
        said = json.loads((layout.table_log(table) / names[-1]).read_text())["commitInfo"]
        assert said["tidemill"] == {"taken_over": str(one.numbers["apples"])}
    assert len(list(layout.table_log(layout.raw(tmp_path, "pears")).glob("*.json"))) == 3  # not its stream
    one.close()
    again = HeldLeases(tmp_path, state, LONG)
    assert again.take("apples")  # given back: nothing can be under way
    assert [len(list(layout.table_log(t).glob("*.json"))) for t in tables] == [2, 3]
    again.close()


def test_whoever_comes_after_a_holder_that_died_before_it_shut_out_another_does_so(
    tmp_path: Path, state: State
) -> None:
    entries = layout.table_log(layout.raw(tmp_path, "apples"))
    entries.mkdir(parents=True)
    (entries / f"{0:020d}.json").write_text("{}\n")
    dead = f"{socket.gethostname()}-1-0+0"
    state.take_leases(["apples"], "elsewhere", 1)
    while not state.take_leases(["apples"], dead, LONG).leases:  # until the clock has moved on
        pass
    one = HeldLeases(tmp_path, state, LONG)
    assert one.take("apples")  # from the dead one, which has nothing under way itself
    assert len(list(entries.glob("*.json"))) == 2
    one.close()


@pytest.mark.parametrize("length", [1, LONG], ids=["ran out", "has not run out"])
def test_a_process_of_this_machine_that_died_has_nothing_under_way(
    tmp_path: Path, state: State, length: int
) -> None:
    entries = layout.table_log(layout.raw(tmp_path, "apples"))
    entries.mkdir(parents=True)
    (entries / f"{0:020d}.json").write_text("{}\n")
    state.take_leases(["apples"], f"{socket.gethostname()}-1-0+0", length)
    one = HeldLeases(tmp_path, state, LONG)
    assert one.take("apples")
    assert len(list(entries.glob("*.json"))) == 1
    one.close()
