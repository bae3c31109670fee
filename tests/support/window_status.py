"""The state of a window as the product reports it, from the window and its members."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.model.windows import Member, Window, WindowGlance, WindowStatus
from tidemill.outputs.datasets.pending_slices import NOTHING_PENDING
from tidemill.outputs.datasets.rules import WindowRules
from tidemill.outputs.datasets.window_status import StatusRule


def is_final(window: Window, members: Sequence[Member], rules: WindowRules, now: int) -> bool:
    status = StatusRule(rules, NOTHING_PENDING, now).of(WindowGlance.of(window), lambda: (window, members))
    return status is WindowStatus.FINAL
