"""How units of work are divided among the cores."""

from __future__ import annotations

from tidemill.engine.jobs import balanced


def test_groups_have_about_the_same_total() -> None:
    assert balanced([1, 1, 1, 1, 2], 2) == [[2, 4], [0, 1, 3]]  # 3 and 3
    assert balanced([3, 9, 4, 2, 7, 1], 3) == [[1], [3, 4], [0, 2, 5]]  # 9, 9 and 8


def test_there_is_no_group_without_work() -> None:
    assert balanced([5, 3], 4) == [[0], [1]]
    assert balanced([0, 0, 0], 2) == [[0, 2], [1]]
    assert balanced([], 2) == []
