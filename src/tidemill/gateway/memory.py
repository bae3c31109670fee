"""How much memory the gateway has in use: one count for all of it, and one for each part.

Counting only: nothing is held here. What would go beyond the emergency mark is refused and not counted.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, Literal

from tidemill.config.gateway import Memory
from tidemill.model.errors import OverloadedError
from tidemill.model.gateway import Pressure, Submission

Component = Literal["buffer", "requests", "windows", "rates"]
TOTAL: Final = "total"
ENTRY_BYTES: Final = 600  # what an entry takes besides its content: objects, places in tables
MEDIUM: Final = 0.5
_FILLED: Final = ("buffer", "requests", TOTAL)
_ORDER: Final = tuple(Pressure)
_RANK: Final = {pressure: rank for rank, pressure in enumerate(_ORDER)}


def level(used: int, allowed: int, high_water: float, emergency: float) -> Pressure:
    """Up to half is low, up to high water medium, up to emergency high; the marks belong to what is below."""
    if used > emergency * allowed:
        return Pressure.EMERGENCY
    if used > high_water * allowed:
        return Pressure.HIGH
    return Pressure.MEDIUM if used > MEDIUM * allowed else Pressure.LOW


def cost_of(submission: Submission) -> int:
    """What a submission takes of `buffer` until its slice has landed."""
    return len(submission.content) + ENTRY_BYTES


class MemoryTracker:
    """What is in use and what is allowed. Safe to use from several threads."""

    def __init__(self, settings: Memory) -> None:
        self._high_water = settings.high_water
        self._emergency = settings.emergency
        self._allowed: Mapping[str, int] = {
            "buffer": settings.buffer,
            "requests": settings.requests,
            "windows": settings.windows,
            "rates": settings.rates,
            TOTAL: settings.max,
        }
        self._used = dict.fromkeys(self._allowed, 0)
        self._guard = threading.Lock()

    def allocate(self, component: Component, size: int) -> Pressure:
        """Count `size` bytes more and say how it stands; OverloadedError: too many, and none are counted."""
        assert size >= 0, size
        with self._guard:
            for name in (component, TOTAL):
                used, allowed = self._used[name], self._allowed[name]
                if size and used + size > self._emergency * allowed:
                    raise self._refusal(name, used, allowed, size)
            self._used[component] += size
            self._used[TOTAL] += size
            return self._pressure()

    def release(self, component: Component, size: int) -> None:
        """Count `size` bytes less: of what was allocated, and once."""
        with self._guard:
            assert 0 <= size <= self._used[component], (component, size, self._used[component])
            self._used[component] -= size
            self._used[TOTAL] -= size

    def pressure(self) -> Pressure:
        """The worst of the total and of the parts that requests fill. The other parts are full for whoever
        needs more of them; that is no reason to slow all down."""
        with self._guard:
            return self._pressure()

    def share(self) -> float:
        """How much of its memory is in use that closing windows gives back: of `buffer`, or of the total.

        Not of the other parts: a window that is closed gives nothing back to them.
        """
        with self._guard:
            return max(self._used[name] / self._allowed[name] for name in ("buffer", TOTAL))

    def usage(self) -> dict[str, tuple[int, int]]:
        """Bytes in use and allowed: of each component, and of all together as `total`."""
        with self._guard:
            return {name: (self._used[name], allowed) for name, allowed in self._allowed.items()}

    def _pressure(self) -> Pressure:
        worst = 0
        for name in _FILLED:
            found = level(self._used[name], self._allowed[name], self._high_water, self._emergency)
            worst = max(worst, _RANK[found])
        return _ORDER[worst]

    def _refusal(self, name: str, used: int, allowed: int, size: int) -> OverloadedError:
        setting = "gateway.memory.max" if name == TOTAL else f"gateway.memory.{name}"
        return OverloadedError(
            f"no memory is left for {size} bytes: {used} of {allowed} are in use",
            hint=f"send the same again a little later, or less at once; {setting} sets what is allowed",
            where=setting,
            refused=True,
        )
