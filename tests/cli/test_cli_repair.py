"""`tidemill repair`: the plan, the repair and what cannot be repaired, for people and programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.damage import Shop, answers, expected


@pytest.fixture
def damaged(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(shop.root)
    part = next(path for path in shop.parts("rollups/orders") if path.name.startswith("1h-"))
    part.unlink()
    return shop


def test_a_repair_is_explained_and_done(cli, damaged: Shop) -> None:
    (step,) = cli("repair", "--explain", "--output", "json").json["steps"]
    assert (step["kind"], step["stream"], step["action"]) == (
        "part of rollups",
        "orders",
        "its tiles are made again",
    )
    assert not (damaged.warehouse / "_damaged").exists()
    done = cli("repair", "--output", "json")
    assert (done.code, done.json["ok"], list(done.json["set_aside"])) == (0, True, [step["file"]])
    assert "nothing is damaged" in cli("repair").out
    with damaged.open() as mill:
        assert answers(mill, "orders") == expected("orders")


def test_a_slice_cannot_be_made_again_and_is_named(cli, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.root)
    lost = sorted(Path(shop.warehouse, "slices", "orders").glob("*/*.ndjson"))[0]
    os.truncate(lost, 10)
    done = cli("repair", "orders")
    assert done.code == 1
    assert "cannot be decided again" in " ".join(done.out.split())
    assert lost.exists()  # what is left of it stays where it is
    with shop.open() as mill:
        assert answers(mill, "orders") == expected("orders")
