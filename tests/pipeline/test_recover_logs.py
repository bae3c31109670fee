"""The state and the logs beside the slices are lost together: what is left says it, and `recover` does what
it can and lists the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.damage import (
    Shop,
    answers,
    check_answers,
    content,
    details,
    events_of,
    expected,
    flip,
)
from tests.support.selection import one_in

from tidemill.mill import Mill, recover
from tidemill.model.damage import Damage
from tidemill.model.errors import StorageError
from tidemill.model.slices import SliceStatus

LOG = "slices/landings.ndjson"


def lose(shop: Shop, *files: str) -> None:
    for name in ("state.db", "state.db-wal", "state.db-shm", *files):
        (shop.warehouse / name).unlink(missing_ok=True)


def cut_tail(path: Path, lines: int) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-lines]))


def harm(shop: Shop, how: str, name: str) -> None:
    """The log, and with `both` its copy, too."""
    what, _, both = how.partition(" ")
    for path in [shop.warehouse / "slices" / name, shop.warehouse / "_log_copies" / name][: 2 if both else 1]:
        if what == "cut":
            cut_tail(path, 3)
        else:
            path.unlink()


def ledger(mill: Mill) -> list[tuple[object, ...]]:
    return [(e.id, e.slice.arrival, e.status, e.counts) for e in sorted(mill.ledger(), key=lambda e: e.seq)]


def recovered(shop: Shop) -> list[Damage]:
    return list(recover(shop.root, clock=shop.clock).left)


def assert_right(shop: Shop, before: tuple[object, ...]) -> None:
    with shop.open() as mill:
        mill.run_until_idle()
        check_answers(mill)
        assert (details(mill, "orders"), details(mill, "visits")) == before
        assert mill.verify().findings == []
        again = [mill.land(one, content(events_of(one, 2))) for one in ("orders", "visits")]
        assert [one.entry.landings for one in again] == [2, 2]


@pytest.mark.parametrize("how", one_in(2, ["cut", "deleted"], first=1))
def test_a_log_that_is_lost_with_the_state_comes_back_from_its_copy(shop: Shop, how: str) -> None:
    with shop.open() as mill:
        before, known = (details(mill, "orders"), details(mill, "visits")), ledger(mill)
    lose(shop)
    harm(shop, how, "landings.ndjson")
    with pytest.raises(StorageError, match="there is no state"):
        shop.open()
    assert recovered(shop) == []
    with shop.open() as mill:
        assert ledger(mill) == known
    assert_right(shop, before)


@pytest.mark.parametrize("how", one_in(2, ["cut both", "deleted both"], first=1))
def test_without_a_copy_the_slices_and_raw_say_what_they_know(shop: Shop, how: str) -> None:
    with shop.open() as mill:
        before, known = (details(mill, "orders"), details(mill, "visits")), ledger(mill)
    lose(shop)
    harm(shop, how, "landings.ndjson")
    with pytest.raises(StorageError, match="there is no state"):
        shop.open()
    outcome = recovered(shop)
    lost = [entry for entry in known if how == "deleted both" or entry in known[-3:]]
    assert {one.stream for one in outcome} == {"orders", "visits", "embeddings"}
    assert all(one.file == LOG and "sources, names, metadata" in one.reason for one in outcome)
    assert all(any(str(entry[0])[:12] in one.reason for one in outcome) for entry in lost)
    with shop.open() as mill:
        assert sorted(map(str, ledger(mill))) == sorted(map(str, known))
    assert_right(shop, before)


def test_a_slice_that_landed_and_was_not_decided_is_found_again(shop: Shop) -> None:
    with shop.open() as mill:
        waiting = mill.land("orders", content(events_of("orders", 4))).entry
    lose(shop)
    harm(shop, "deleted both", "landings.ndjson")
    assert recovered(shop)
    with shop.open() as mill:
        assert mill.slice(waiting.id).status is SliceStatus.PENDING
        mill.run_until_idle()
        assert answers(mill, "orders") == expected("orders", 5)


def test_a_slice_that_no_log_knows_is_named(shop: Shop) -> None:
    """Nothing says that a line is lost: it may never have been acknowledged."""
    with shop.open() as mill:
        waiting = mill.land("orders", content(events_of("orders", 4))).entry
    lose(shop)
    for folder in ("slices", "_log_copies"):
        cut_tail(shop.warehouse / folder / "landings.ndjson", 1)
    (named,) = recovered(shop)
    assert (named.file, named.stream) == (f"slices/_orphans/orders/{Path(waiting.slice.path).name}", "orders")
    assert "tidemill ingest" in named.reason


@pytest.mark.parametrize("how", one_in(2, ["deleted", "deleted both"], first=1))
def test_a_retraction_is_not_forgotten_with_its_log(shop: Shop, how: str) -> None:
    with shop.open() as mill:
        taken = next(entry for entry in mill.ledger() if entry.slice.name == "orders 3")
        mill.retract(mill.plan_retraction(taken.id, "wrong"))
        mill.run_until_idle()
        assert answers(mill, "orders") == expected("orders", 3)
    lose(shop)
    harm(shop, how, "retractions.ndjson")
    outcome = recovered(shop)
    assert [one.file for one in outcome] == (["slices/retractions.ndjson"] if how == "deleted both" else [])
    assert all(taken.id[:12] in one.reason for one in outcome)
    with shop.open() as mill:
        mill.run_until_idle()
        assert mill.slice(taken.id).status is SliceStatus.RETRACTED
        assert answers(mill, "orders") == expected("orders", 3)
        assert mill.verify().findings == []


def test_a_damaged_line_costs_no_more_than_itself(shop: Shop) -> None:
    lose(shop)
    for folder in ("slices", "_log_copies"):
        path = shop.warehouse / folder / "landings.ndjson"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:4], b"{" + lines[4][3:], *lines[5:]]))
    outcome = recovered(shop)
    assert [one.file for one in outcome] == [LOG, LOG]
    assert "1 of 12 lines are lost" in outcome[0].reason
    with shop.open() as mill:
        mill.run_until_idle()
        assert answers(mill, "orders") == expected("orders")
        assert mill.verify().findings == []


def test_a_damaged_copy_is_found_and_written_again(shop: Shop) -> None:
    log, copy = shop.warehouse / LOG, shop.warehouse / "_log_copies" / "landings.ndjson"
    flip(copy)
    with shop.open() as mill:
        (step,) = mill.plan_repair().steps
        assert step.damage.file == "_log_copies/landings.ndjson"
        assert mill.repair().ok
        assert copy.read_bytes() == log.read_bytes()


def test_a_copy_that_is_missing_or_behind_is_made_whole_by_the_next_line(shop: Shop) -> None:
    log, copy = shop.warehouse / LOG, shop.warehouse / "_log_copies" / "landings.ndjson"
    with shop.open() as mill:
        for number, harm_copy in enumerate((Path.unlink, lambda path: cut_tail(path, 2), flip_end), 4):
            harm_copy(copy)
            shop.land(mill, number)
            assert copy.read_bytes() == log.read_bytes()


def flip_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])
