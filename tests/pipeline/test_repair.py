"""`repair`: one file of each kind is flipped, cut or deleted. It is found, stays where it is until somebody
repairs it, is set aside with its reason, and everything is as it was; nothing else is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.support.damage import HARMS, KINDS, Shop, answers, composed, details, expected, vectors
from tests.support.whole_mill import DAY, NOON, Event, WholeMill

from tidemill.model.errors import DamageError
from tidemill.storage import layout


def harmed() -> list[tuple[str, str]]:
    """Each kind of file, deleted and damaged. A part or a file with a checksum of its own is known by that,
    wherever it differs, so every other one of them is flipped and the rest are cut; a log may be cut between
    two lines."""
    found: list[tuple[str, str]] = []
    for number, kind in enumerate(KINDS):
        some = ("flipped", "cut") if "log" in kind else (("flipped", "cut")[number % 2],)
        found += [(kind, harm) for harm in (*some, "deleted")]
    return found


@pytest.mark.parametrize(("kind", "harm"), harmed())
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
        assert answers(mill, "orders") == expected("orders")
        assert answers(mill, "visits") == expected("visits")
        assert composed(mill) == vectors()
        assert (details(mill, "orders"), details(mill, "visits")) == before
        assert not any(one.faults for one in mill.status())
        assert mill.verify().findings == []
    target = shop.warehouse / done.set_aside[name]
    assert target.exists() == (harm != "deleted")
    said = json.loads(target.with_name(f"{target.name}.damage.json").read_text())
    assert (said["file"], said["reason"]) == (name, step.damage.reason)


TABLES = ["raw/orders", "quarantine/orders", "rollups/orders", "index/orders", "windows/orders/ten"]


@pytest.mark.parametrize("table", [*TABLES, "chains/embeddings"])
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


@pytest.mark.parametrize("table", [*TABLES, "chains/embeddings"])
def test_a_table_whose_log_is_lost_with_its_copies_is_made_again(shop: Shop, table: str) -> None:
    """As one of an earlier version, which kept no copies."""
    for folder in ("_delta_log", "_log_copies", "_log_sums"):
        shutil.rmtree(shop.warehouse / table / folder)
    with shop.open() as mill:
        mill.tick(patient=True)  # a round that meets it does not make it worse
        assert mill.repair().ok
        assert answers(mill, "orders") == expected("orders")
        assert answers(mill, "visits") == expected("visits")
        assert composed(mill) == vectors()
        assert mill.verify().findings == []


@pytest.mark.parametrize("level", ["5s", "1m", "1h", "1d", "7d"])
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
