"""`repair`: one file of each kind is flipped, cut or deleted. It is found, stays where it is until somebody
repairs it, is set aside with its reason, and everything is as it was; nothing else is touched."""

from __future__ import annotations

import json

import pytest
from tests.support.damage import HARMS, KINDS, Shop, answers, composed, details, expected, vectors

from tidemill.storage import layout


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("kind", KINDS)
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
