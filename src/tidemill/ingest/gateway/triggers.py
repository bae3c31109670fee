"""The rules that close a window: built-in ones, and those that plugins add by entry point.

A rule answers yes or no and changes nothing; one that fails counts as no.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from tidemill.config.gateway import Triggers
from tidemill.model.errors import ConfigError
from tidemill.model.gateway import CUSTOM, CloseTrigger
from tidemill.model.suggestions import choices

log = logging.getLogger(__name__)

ENTRY_POINTS: Final = "tidemill.triggers"
SETTING: Final = "gateway.triggers.custom"
NONE_IS: Final = 1 << 62  # more bytes than any window holds


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window that is not empty, as rules see it."""

    stream: str
    source: str
    since: int  # the first arrival in it
    last: int
    now: int
    events: int
    bytes: int
    rate: float  # events per second
    pressure: float  # share of the memory in use that closing windows frees
    held: int = 0  # bytes of memory that it takes, including overhead per request


Rule = Callable[[OpenWindow], bool]


class Custom:
    """A rule that came by entry point."""

    def __init__(self, name: str, rule: Rule) -> None:
        self.name = name
        self._rule = rule
        self.failures = 0

    @property
    def trigger(self) -> str:
        return f"{CUSTOM}{self.name}"

    def holds(self, window: OpenWindow) -> bool:
        """Whether it closes the window. Third-party code: whatever it raises or returns, other than true and
        false, closes nothing, is counted, and is logged the first time."""
        try:
            found: object = self._rule(window)
            if isinstance(found, bool):
                return found
            raise TypeError(f"it returned {repr(found)[:40]}, not true or false")
        except Exception:
            self.failures += 1
            if self.failures == 1:
                log.exception("trigger %s failed; it closes nothing when it does", self.name)
            return False


def trigger_of(
    window: OpenWindow,
    settings: Triggers,
    custom: Sequence[Custom] = (),
    *,
    closes_at: int,  # when its time is over
    wanted_at: int | None = None,  # when it is closed for a sender that waits; None: none does
    rate_changed: bool = False,
    large_from: int = 1,  # bytes from which memory pressure closes it
) -> str | None:
    """Why it should be closed, None if it should not. Of several reasons, a limit comes before time."""
    if has_count(window, settings.count):
        return CloseTrigger.COUNT.value
    if has_bytes(window, settings.bytes):
        return CloseTrigger.BYTES.value
    if has_pressure(window, settings.memory, large_from):
        return CloseTrigger.MEMORY.value
    if has_lasted(window, closes_at):
        return CloseTrigger.TIME.value
    if settings.rate_change is not None and rate_changed:
        return CloseTrigger.RATE_CHANGE.value
    if wanted_at is not None and has_lasted(window, wanted_at):
        return CloseTrigger.WAITING.value
    return next((one.trigger for one in custom if one.holds(window)), None)


def has_lasted(window: OpenWindow, until: int) -> bool:
    return window.now >= until


def has_count(window: OpenWindow, limit: int | None) -> bool:
    return limit is not None and window.events >= limit


def has_bytes(window: OpenWindow, limit: int | None) -> bool:
    return limit is not None and window.bytes >= limit


def has_pressure(window: OpenWindow, limit: float | None, large_from: int) -> bool:
    return limit is not None and window.pressure >= limit and window.held >= large_from


def large_from(held: Iterable[int], share: float, limit: float | None, allowed: int) -> int:
    """The bytes from which a window is closed at this share of memory in use.

    The largest ones are closed, until those that stay open hold at most half of what the limit allows. What
    is closed and not yet landed counts as gone: closing more would not free it sooner, and would make a slice
    of every request just when there is too much to do.
    """
    if limit is None or share < limit:
        return NONE_IS
    sizes = sorted(held, reverse=True)
    left = sum(sizes)
    found = NONE_IS
    for size in sizes:
        if left <= limit * allowed / 2:
            break
        left -= size
        found = size
    return found


def known() -> tuple[str, ...]:
    """The names of all installed triggers, whether in use or not."""
    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINTS)}))


def custom_triggers(names: Sequence[str]) -> tuple[Custom, ...]:
    """The triggers with these names, loaded. ConfigError for one that is not installed, or cannot be used."""
    if not names:
        return ()
    points = entry_points(group=ENTRY_POINTS)
    return tuple(_custom(name, {point for point in points if point.name == name}) for name in names)


def fault_of(name: str) -> str | None:
    """Why a trigger of this name cannot be used; None if it can."""
    try:
        custom_triggers((name,))
    except ConfigError as error:
        return error.message
    return None


def _custom(name: str, found: set[EntryPoint]) -> Custom:
    if not found:
        raise ConfigError(
            f"there is no trigger {name!r}", hint=choices(name, known(), "triggers"), where=SETTING
        )
    if len(found) > 1:
        values = ", ".join(sorted(point.value for point in found))
        raise ConfigError(
            f"trigger {name!r} is provided more than once",
            hint=f"uninstall all but one of {values}",
            where=SETTING,
        )
    point = found.pop()
    try:
        rule = point.load()
    except Exception as error:  # a module may raise anything while it is imported
        raise ConfigError(
            f"trigger {name!r} cannot be loaded from {point.value}: {error}",
            hint="repair or uninstall the package that provides it, or leave it out",
            where=SETTING,
        ) from error
    if not callable(rule):
        raise ConfigError(
            f"trigger {name!r}: {point.value} is not a function",
            hint="the entry point names a function of an OpenWindow that returns true or false",
            where=SETTING,
        )
    return Custom(name, rule)
