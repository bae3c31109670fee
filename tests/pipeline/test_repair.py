"""`repair`: one file of each kind is flipped, cut or deleted. It is found, stays where it is until somebody
repairs it, is set aside with its reason, and everything is as it was; nothing else is touched."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.damage import (
    EVENTS,
    HARMS,
    KINDS,
    SLICES,
    Shop,
    answers,
    check_answers,
    check_restored,
    composed,
    content,
    cut,
    details,
    events_of,
    expected,
    flip,
    harm_all,
    harmed,
    vectors,
)
from tests.support.patience import PATIENCE
from tests.support.selection import one_in
from tests.support.whole_mill import DAY, NOON, Event, WholeMill, gateway_of, submit

from tidemill.formats.stored_slice import content_bytes
from tidemill.ingest.gateway.status import ingest_health
from tidemill.mill import recover
from tidemill.model.damage import FileKind
from tidemill.model.errors import DamageError, StorageError
from tidemill.model.time import SECOND
from tidemill.pipeline.documents.scrub import remedy
from tidemill.storage import layout
from tidemill.storage.locks import exclusive

pytestmark = pytest.mark.long


@pytest.mark.parametrize(("kind", "harm"), harmed(HARMS, share=4))
def test_a_damaged_file_is_set_aside_and_made_again(shop: Shop, kind: str, harm: str) -> None:
    path = KINDS[kind](shop)
    name = path.relative_to(shop.warehouse).as_posix()
    with shop.open() as mill:
        before = details(mill, "orders"), details(mill, "visits")
    HARMS[harm](path)
    with shop.open() as mill:
        (step,) = mill.plan_repair().steps
        assert (step.damage.file, step.repairable) == (name, True)
        assert not layout.damaged(shop.warehouse).exists()  # a plan changes nothing
        if "visits" not in name:  # whatever is damaged, another stream answers and goes on
            assert answers(mill, "visits") == expected("visits")
        done = mill.repair()
        assert (list(done.set_aside), done.left) == ([name], [])
        check_restored(mill, before)
    target = shop.warehouse / done.set_aside[name]
    assert target.exists() == (harm != "deleted")
    said = json.loads(target.with_name(f"{target.name}.damage.json").read_text())
    assert (said["file"], said["reason"]) == (name, step.damage.reason)


@pytest.mark.parametrize("turn", one_in(3, range(3)))
def test_files_of_every_kind_that_are_damaged_at_once_are_all_made_again(shop: Shop, turn: int) -> None:
    with shop.open() as mill:
        before = details(mill, "orders"), details(mill, "visits")
    files = {path.relative_to(shop.warehouse).as_posix() for path in harm_all(shop, turn).values()}
    with shop.open() as mill:
        done = mill.repair()
        assert done.left == []
        assert set(done.set_aside) <= files  # rounds may have replaced some of the others meanwhile
        assert mill.scrub().damages == []
        check_restored(mill, before)


@pytest.mark.parametrize("kind", ["raw", "packed raw"])
def test_a_part_of_raw_is_made_again_after_a_column_was_declared_with_another_type(
    shop: Shop, kind: str
) -> None:
    """Which types the columns of a damaged part have is not known: the table opens without it."""
    cut(KINDS[kind](shop))
    config = shop.root / "tidemill.yaml"
    config.write_text(config.read_text().replace("scale: 2", "scale: 3"))
    with shop.open() as mill:
        mill.tick()
        assert mill.repair().ok
        check_answers(mill)
        assert str(mill.sql("SELECT amount FROM raw.orders LIMIT 1").table.schema.field(0).type) == (
            "decimal128(18, 3)"
        )
        assert not any(one.faults for one in mill.status())
        assert mill.verify().findings == []


@pytest.mark.parametrize("kind", ["results", "open windows", "observations", "log of observations"])
def test_files_of_what_is_no_longer_declared_are_not_missed(shop: Shop, kind: str) -> None:
    """Nothing reads them, and nothing could make them again, until it is declared once more."""
    config = shop.root / "tidemill.yaml"
    before = config.read_text()
    orders = before[before.index("  orders:") : before.index("  visits:")]
    config.write_text(before.replace(orders, orders[: orders.index("    metrics:")]))
    flip(KINDS[kind](shop))
    with shop.open() as mill:
        assert mill.repair().ok
        assert (mill.scrub().damages, mill.verify().findings) == ([], [])
    config.write_text(before)
    with shop.open() as mill:
        mill.repair()
        check_answers(mill)
        assert mill.verify().findings == []


def test_a_part_that_cannot_be_made_again_keeps_the_others_of_raw_waiting(shop: Shop) -> None:
    """The slice of one part is lost, too: no slice can be decided again beside events that cannot be read."""
    with shop.open() as mill:
        shop.clock.advance(SECOND)
        shop.land(mill, SLICES)
        mill.tick()
        batches = {entry.batch: shop.warehouse / entry.slice.path for entry in mill.state.slices("orders")}
    lost, other = (path for path in shop.parts("raw/orders") if path.name.partition("-")[0] in batches)
    slice_ = batches[lost.name.partition("-")[0]]
    kept = slice_.read_bytes()
    slice_.unlink()
    flip(lost)
    flip(other)
    with shop.open() as mill:
        done = mill.repair()
        assert done.set_aside == {}
        names = [path.relative_to(shop.warehouse).as_posix() for path in (lost, other, slice_)]
        affected = {step.damage.file: step.affects for step in done.left}
        assert set(affected) == set(names)
        assert names[2] in affected[names[0]]
        assert names[0] in affected[names[1]]
        slice_.write_bytes(kept)
        assert mill.repair().ok
        assert answers(mill, "orders") == expected("orders", SLICES + 1)
        assert mill.verify().findings == []


@pytest.mark.parametrize("harm", one_in(3, HARMS, first=1))
def test_a_damaged_state_is_named_and_rebuilt_by_recover(shop: Shop, harm: str) -> None:
    path = shop.warehouse / "state.db"
    with shop.open() as mill:
        before = mill.state.dump(), details(mill, "orders"), details(mill, "visits")
    if harm == "flipped":
        _flip_a_page(path, "slices")
    else:
        HARMS[harm](path)
    assert "tidemill recover" in _said_of_the_state(shop)
    assert recover(shop.root, clock=shop.clock).left == []
    with shop.open() as mill:
        assert (mill.state.dump(), details(mill, "orders"), details(mill, "visits")) == before
        check_answers(mill)
        assert mill.scrub().ok
        assert mill.verify().findings == []


def _said_of_the_state(shop: Shop) -> str:
    """What is to be done about it: by a scrub and by `repair`, or by whoever cannot open it."""
    try:
        with shop.open() as mill:
            (found,) = mill.scrub().damages
            (step,) = mill.repair().left
    except StorageError as error:
        return error.hint
    assert (found.file, found.kind, remedy(found)) == ("state.db", FileKind.STATE, "tidemill recover")
    return step.affects


def _flip_a_page(path: Path, table: str) -> None:
    """One bit of the first page of a table: what kind of page it is."""
    with closing(sqlite3.connect(path)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * size] ^= 8
    path.write_bytes(content)


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_log_of_a_gateway_lands_as_far_as_it_is_whole(
    shop: Shop, tmp_path: Path, harm: str
) -> None:
    """Three requests were acknowledged, and the process was killed. What is lost is named, and sent again."""
    dead = Shop(tmp_path / "dead", shop.clock)
    sent = [content(events_of("orders", number)[:EVENTS]) for number in range(SLICES, SLICES + 3)]
    with shop.open() as mill, gateway_of(mill, shop.clock) as gateway:
        for body in sent:
            submit(gateway, "orders", body)
        shutil.copytree(shop.root, dead.root)
    (segment,) = dead.warehouse.glob("wal/*/*.wal")
    HARMS[harm](segment)
    with dead.open() as mill:
        mill.run_until_idle()
        assert answers(mill, "visits") == expected("visits")  # it goes on
        whole = {"flipped": 2, "cut": 2, "deleted": 0}[harm]
        landed = b"".join(content_bytes(dead.warehouse / e.slice.path) for e in mill.ledger("orders"))
        assert sum(body in landed for body in sent) == whole
        (named,) = ingest_health(mill.warehouse).damaged
        assert (named.kind, segment.parent.name in named.reason) == (FileKind.GATEWAY_LOG, True)
        (step,) = mill.repair().left
        assert "once they were sent again, remove its files in `_damaged/wal`" in step.affects
        for body in sent:
            mill.land("orders", body)
        mill.run_until_idle()
        shutil.rmtree(dead.warehouse / "_damaged" / "wal")
        assert mill.repair().ok
        assert answers(mill, "orders") == expected("orders", SLICES + 3)
        assert answers(mill, "visits") == expected("visits")
        assert mill.verify().findings == []


TABLES = ["raw/orders", "quarantine/orders", "rollups/orders", "index/orders", "windows/orders/ten"]


@pytest.mark.parametrize("table", one_in(3, [*TABLES, "chains/embeddings"]))
def test_a_table_that_vanished_is_missed_and_made_again(shop: Shop, table: str) -> None:
    with shop.open() as mill:
        before = details(mill, "orders"), details(mill, "visits")
    shutil.rmtree(shop.warehouse / table)
    with shop.open() as mill:
        assert [one.file for one in mill.scrub().damages] == [table]
        assert answers(mill, "visits") == expected("visits")
        if table == "windows/orders/ten":
            with pytest.raises(DamageError, match="the table is gone"):
                mill.results("orders", "ten")
        (step,) = mill.plan_repair().steps
        assert (step.damage.file, step.repairable) == (table, True)
        assert mill.repair().ok
        assert answers(mill, "orders") == expected("orders")
        assert composed(mill) == vectors()
        assert (details(mill, "orders"), details(mill, "visits")) == before
        assert mill.verify().findings == []
        assert mill.scrub().ok


@pytest.mark.parametrize("table", one_in(3, [*TABLES, "chains/embeddings"], first=1))
def test_a_table_whose_log_is_lost_with_its_copies_is_made_again(shop: Shop, table: str) -> None:
    """As one of an earlier version, which kept no copies."""
    for folder in ("_delta_log", "_log_copies", "_log_sums"):
        shutil.rmtree(shop.warehouse / table / folder)
    with shop.open() as mill:
        mill.tick(patient=True)  # a round that meets it does not make it worse
        assert mill.repair().ok
        check_answers(mill)
        assert mill.verify().findings == []


@pytest.mark.parametrize("level", one_in(4, ["5s", "1m", "1h", "1d", "7d"]))
def test_the_only_tiles_of_a_level_are_made_again_and_not_counted_twice(tmp_path: Path, level: str) -> None:
    """Every tile of the level is in the damaged part, so nothing is left below those of the next level."""
    sent = [Event("a", NOON, 3, "north"), Event("b", NOON - 2 * DAY, 4, "south")]
    mill = WholeMill(tmp_path)
    mill.act(lambda: mill.land("orders", sent, None), None)
    mill.settle()
    for part in (mill.warehouse / "rollups" / "orders" / f"level={level}").glob("*.parquet"):
        part.write_bytes(part.read_bytes()[:87])
    mill.mill.repair()
    mill.settle()
    (row,) = mill.mill.query("SELECT count, sum(amount) AS amount FROM orders.sales").to_pylist()
    assert (row["count"], round(row["amount"] * 100)) == (2, 7)  # of hundredths
    assert mill.mill.verify().findings == []
    mill.close()


@pytest.mark.parametrize("table", one_in(3, TABLES, first=2))
def test_a_lost_log_entry_of_which_nothing_tells_costs_its_table_and_no_other(shop: Shop, table: str) -> None:
    """The checksums of the log are lost, too, so that its copy cannot be trusted."""
    with shop.open() as mill:
        before = details(mill, "orders"), details(mill, "visits")
    shutil.rmtree(shop.warehouse / table / "_log_sums")
    entries = sorted((shop.warehouse / table / "_delta_log").glob("*.json"))
    entries[len(entries) // 2].unlink()
    with shop.open() as mill:
        mill.tick(patient=True)
        (step,) = mill.plan_repair().steps
        assert (step.damage.file, step.repairable) == (table, True)
        assert mill.repair().ok
        assert answers(mill, "orders") == expected("orders")
        assert (details(mill, "orders"), details(mill, "visits")) == before
        assert mill.verify().findings == []


def test_rounds_of_a_repair_wait_for_those_of_a_daemon(shop: Shop) -> None:
    done: list[int] = []

    def rounds() -> None:
        with shop.open() as mill:
            done.append(len(mill.run_until_idle(patience=60.0)))

    waiting = threading.Thread(target=rounds)
    with exclusive(layout.tick_lock(shop.warehouse), "tick"):
        waiting.start()
        while not any(thread.name == "lock" for thread in threading.enumerate()):
            assert waiting.is_alive()  # and not refused
    waiting.join(PATIENCE)
    assert done
