"""How rows of raw are divided into parts: by whole days of event time, as many as fill a part.

A day that fills a part has its own, so that it can be read and expire without touching another; thinner days
share one, so that the number of files follows the amount of data. The rules are pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from tidemill.formats.arrays import Ints
from tidemill.model.time import DAY

FULL_BYTES: Final = 4 << 20  # of payloads: about what a query for a thin day has to read
_KEY_BITS: Final = 63


def shared_days(bytes_of: Mapping[int, int], full: int) -> list[list[int]]:
    """Days with their bytes, in ascending runs that make one part each."""
    runs: list[list[int]] = []
    filled = 0
    for day in sorted(bytes_of):
        if not runs or filled >= full or bytes_of[day] >= full:
            runs.append([])
            filled = 0
        runs[-1].append(day)
        filled += bytes_of[day]
    return runs


def part_numbers(times: Ints, sizes: Ints, *, by_day: bool) -> Ints:
    """For each row the number of its part; numbers ascend with event time."""
    days, index = np.unique(times // DAY, return_inverse=True)
    if by_day or days.size < 2:
        return index.astype(np.int64)
    amounts = np.bincount(index, weights=sizes, minlength=days.size)
    runs = shared_days(dict(enumerate(amounts.astype(np.int64).tolist())), FULL_BYTES)
    number = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
    return number[index].astype(np.int64)


def row_order(part: Ints, tenant: Ints, times: Ints) -> Ints:
    """The order of rows by part, tenant and time; stable."""
    if times.size == 0:
        return np.empty(0, np.int64)
    since = times - times.min()
    bits = int(since.max()).bit_length()
    group = part * (int(tenant.max()) + 1) + tenant
    if int(group.max()).bit_length() + bits <= _KEY_BITS:
        return np.argsort((group << bits) | since, kind="stable")
    return np.lexsort((since, group))


def spread_days(
    runs: Sequence[Sequence[int]], bytes_of: Mapping[int, int], most: int
) -> list[tuple[int, int]]:
    """Spans `[start, end)` of event time, one for each run of days; a day of more than `most` bytes is split
    evenly, so that several tasks can work on it."""
    spans: list[tuple[int, int]] = []
    for run in runs:
        start, end = run[0] * DAY, (run[-1] + 1) * DAY
        pieces = max(1, -(-sum(bytes_of[day] for day in run) // most)) if len(run) == 1 else 1
        edges = [start + (end - start) * number // pieces for number in range(pieces + 1)]
        spans.extend(pairwise(edges))
    return spans
