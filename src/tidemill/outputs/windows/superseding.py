"""Finds which window replaced one that is gone: the fresh one of the same tenant and key that overlaps it.

Only windows that follow from the rows can replace each other; those of a grid never do.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidemill.outputs.windows.keys import Key


@dataclass(frozen=True, slots=True)
class Live:
    """A fresh window."""

    id: str
    start: int
    end: int
    open: bool
    written: bool  # something of it is published now


@dataclass(frozen=True, slots=True)
class Gone:
    """A window of which a result is gone."""

    id: str
    key: Key
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Heir:
    overlapped: bool  # a fresh window overlaps it
    by: str | None  # the window that replaced it


@dataclass(slots=True)
class Heirs:
    """Fresh windows by key, those of each key in order: starts and ends ascend."""

    live: Mapping[Key, Sequence[Live]]
    named: dict[str, list[Gone]] = field(default_factory=dict)  # by the window that replaced them

    def of(self, gone: Gone) -> Heir:
        windows = self.live.get(gone.key, ())
        low = bisect_right(windows, gone.start, key=lambda window: window.end)
        high = bisect_left(windows, gone.end, key=lambda window: window.start)
        over = windows[low:high]
        heirs = [window for window in over if window.id != gone.id and (window.written or window.open)]
        # It still has another group: nothing replaced it.
        lives_on = any(window.id == gone.id for window in over)
        if lives_on or not heirs:
            return Heir(bool(over), None)
        return Heir(True, min(heirs, key=lambda window: window.open).id)  # the first one that is published

    def name(self, by: str, gone: Iterable[Gone]) -> None:
        self.named.setdefault(by, []).extend(gone)

    def superseded_by(self, window: str) -> list[str]:
        """Ids of the windows that a window replaced, oldest first."""
        found = {(gone.start, gone.id) for gone in self.named.get(window, ())}
        return [name for _, name in sorted(found)]
