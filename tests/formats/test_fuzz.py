"""Whatever bytes come, from a sender or from a disk: a result or an error that is told, never anything else.

A few hundred inputs of each target, the same each time; `make soak` runs them for longer, with others."""

from __future__ import annotations

import pytest
from tests.support.fuzzing import TARGETS, fuzz

INPUTS = {"config": 40, "condition": 60, "wal": 150}


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_give_a_result_or_an_error(name: str) -> None:
    target = TARGETS[name]()
    assert all(target(sample) for sample in target.samples)
    wanted = INPUTS.get(name, 300)
    assert fuzz(name, target, seed=1, inputs=wanted) == wanted
