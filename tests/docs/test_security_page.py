"""docs/security.md names a test for each attack: the tests that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_attack_names_a_test_that_there_is() -> None:
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    attacks = page.partition("## Attacks")[2].partition("## What is not promised")[0]
    rows = [
        row
        for row in re.findall(r"^\|.*\|$", attacks, re.MULTILINE)
        if not row.startswith(("|---", "| attack"))
    ]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert set(named) <= there, row
