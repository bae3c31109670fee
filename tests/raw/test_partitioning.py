"""How rows of raw are cut into parts: files go by the amount of data, and a full day stands alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.time import DAY
from tidemill.raw.partitioning import part_numbers, row_order, shared_days, spread_days


def test_thin_days_share_a_part_until_it_is_full() -> None:
    assert shared_days(dict.fromkeys(range(7), 4), full=10) == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_day_that_fills_a_part_has_it_to_itself() -> None:
    assert shared_days({0: 1, 1: 10, 2: 1, 3: 1}, full=10) == [[0], [1], [2, 3]]


def test_days_far_apart_may_share_a_part() -> None:
    assert shared_days({-700_000: 1, 0: 1, 20_000: 1}, full=10) == [[-700_000, 0, 20_000]]


def test_a_full_day_is_cut_so_that_several_can_work_at_it() -> None:
    assert spread_days([[0], [1, 2]], {0: 25, 1: 4, 2: 4}, most=10) == [
        (0, DAY // 3),
        (DAY // 3, 2 * DAY // 3),
        (2 * DAY // 3, DAY),
        (DAY, 3 * DAY),
    ]


def test_a_table_with_a_folder_for_each_day_has_a_part_for_each() -> None:
    times = np.array([0, DAY, DAY + 1, 5 * DAY], np.int64)
    assert part_numbers(times, np.ones(4, np.int64), by_day=True).tolist() == [0, 1, 1, 2]
    assert part_numbers(times, np.ones(4, np.int64), by_day=False).tolist() == [0, 0, 0, 0]


@given(
    st.lists(st.tuples(st.integers(-5, 30), st.integers(0, DAY - 1), st.integers(0, 3)), max_size=40),
    st.integers(0, 2**40),
)
def test_rows_go_by_part_tenant_and_time(rows: list[tuple[int, int, int]], size: int) -> None:
    times = np.array([day * DAY + at for day, at, _ in rows], np.int64)
    tenant = np.array([one for _, _, one in rows], np.int64)
    part = part_numbers(times, np.full(len(rows), size, np.int64), by_day=False)
    order = row_order(part, tenant, times)
    keys = [(int(part[i]), int(tenant[i]), int(times[i]), int(i)) for i in order]
    assert keys == sorted(keys)
    for one, other in zip(times.tolist(), part.tolist(), strict=True):
        assert all(
            other == p for t, p in zip(times.tolist(), part.tolist(), strict=True) if t // DAY == one // DAY
        )
