"""`WindowSpec.fate` and `counts_at` over arrays: what happens to many rows at once.

The rules are defined there, for a single row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.formats.arrays import Ints, Mask
from tidemill.model.streaming import Close, LateBy, LatePolicy, WindowKind, WindowSpec

_ALWAYS = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Fates:
    at: Ints  # the instant a row counts at
    used: Mask
    late: Mask  # also of rows that are not used
    past: Ints | None = None  # windows that end by then do not count the row; None: all do


def fates(spec: WindowSpec, time: Ints, met: Ints, has_met: Mask) -> Fates:
    """For rows with these event times and watermarks met; `met` is ignored where `has_met` is false."""
    if spec.close is Close.COMPLETE:
        return Fates(time, np.ones(time.size, np.bool_), np.zeros(time.size, np.bool_))
    behind = has_met & (time <= met)
    if spec.late_by is LateBy.WINDOW:
        return _by_window(spec, time, met, behind)
    match spec.late:
        case LatePolicy.NEXT_WINDOW:
            return Fates(np.where(behind, met + spec.next_open, time), np.ones(time.size, np.bool_), behind)
        case LatePolicy.REEMIT:
            return Fates(time, ~behind | (met - time <= spec.max_lateness), behind)
        case _:
            return Fates(time, ~behind, behind)


def _by_window(spec: WindowSpec, time: Ints, met: Ints, behind: Mask) -> Fates:
    """`behind`: rows at or before the watermark they met."""
    last = time + spec.gap if spec.kind is WindowKind.SESSION else time - time % spec.step + spec.size
    late = behind & (last <= met)  # all their windows had ended
    past = np.where(behind, met - spec.max_lateness, _ALWAYS) if spec.some_windows else None
    match spec.late:
        case LatePolicy.NEXT_WINDOW:
            if past is not None:
                past = np.where(late, _ALWAYS, past)
            return Fates(np.where(late, met + spec.next_open, time), np.ones(time.size, np.bool_), late, past)
        case LatePolicy.REEMIT:
            used = ~late | (last > met - spec.max_lateness)
            step = spec.step or spec.gap
            ended = last + (met - last) // step * step
            late = late | (behind & (ended > np.maximum(time, met - spec.max_lateness)))
            return Fates(time, used, late, past)
        case _:
            return Fates(time, ~late, late, past)


def counts_elsewhere(spec: WindowSpec) -> bool:
    """Whether a row can count at another instant than its event time."""
    return spec.close is not Close.COMPLETE and spec.late is LatePolicy.NEXT_WINDOW
