"""What becomes of many rows at once: `WindowSpec.fate` and `counts_at` over arrays.

The rules stand there; nothing is decided here that they do not say of a single row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.model.streaming import Close, LatePolicy, WindowSpec
from tidemill.records.arrays import Ints, Mask


@dataclass(frozen=True, slots=True)
class Fates:
    at: Ints  # the instant a row counts at
    used: Mask
    late: Mask  # of those used and of those not


def fates(spec: WindowSpec, time: Ints, met: Ints, has_met: Mask) -> Fates:
    """Of rows with these event times and watermarks met; `met` means nothing where `has_met` is false."""
    if spec.close is Close.COMPLETE:
        return Fates(time, np.ones(time.size, np.bool_), np.zeros(time.size, np.bool_))
    late = has_met & (time <= met)
    match spec.late:
        case LatePolicy.NEXT_WINDOW:
            return Fates(np.where(late, met, time), np.ones(time.size, np.bool_), late)
        case LatePolicy.REEMIT:
            return Fates(time, ~late | (met - time <= spec.max_lateness), late)
        case _:
            return Fates(time, ~late, late)


def counts_elsewhere(spec: WindowSpec) -> bool:
    """Whether a row can count at another instant than its event time."""
    return spec.close is not Close.COMPLETE and spec.late is LatePolicy.NEXT_WINDOW
