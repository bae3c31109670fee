"""How much memory the gateway uses: one count for everything, and one for each part.

It only counts. What would exceed the emergency limit is refused and not counted.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

from tidemill.config.gateway import Memory
from tidemill.model.errors import OverloadedError, TooLargeError
from tidemill.model.gateway import Pressure, Submission

Component = Literal["buffer", "requests", "windows", "rates"]
TOTAL: Final = "total"
ENTRY_BYTES: Final = 600  # bytes of an entry besides its content: objects, table slots
MEDIUM: Final = 0.5
_OF_STREAM: Final = "buffer of "
_FILLED: Final = ("buffer", "requests", TOTAL)


def level(used: int, allowed: int, high_water: float, emergency: float) -> Pressure:
    """Up to half is low, up to high water medium, up to emergency high; limits included."""
    if used > emergency * allowed:
        return Pressure.EMERGENCY
    if used > high_water * allowed:
        return Pressure.HIGH
    return Pressure.MEDIUM if used > MEDIUM * allowed else Pressure.LOW


def cost_of(submission: Submission) -> int:
    """What a submission takes of `buffer` until its slice has landed."""
    return len(submission.content) + ENTRY_BYTES


def part_of(stream: str) -> str:
    """The name of a stream's budget among the parts of memory."""
    return f"{_OF_STREAM}{stream}"


def setting_of(part: str) -> str:
    """The configuration key that limits a part of memory."""
    if part.startswith(_OF_STREAM):
        return f"streams.{part.removeprefix(_OF_STREAM)}.gateway.memory.buffer"
    return "gateway.memory.max" if part == TOTAL else f"gateway.memory.{part}"


class MemoryTracker:
    """What is used and what is allowed. Thread-safe."""

    def __init__(self, settings: Memory, streams: Mapping[str, int] = MappingProxyType({})) -> None:
        """`streams` have a budget of their own for what is buffered of them, besides the common one."""
        self._high_water = settings.high_water
        self._emergency = settings.emergency
        self._allowed: Mapping[str, int] = {
            "buffer": settings.buffer,
            "requests": settings.requests,
            "windows": settings.windows,
            "rates": settings.rates,
            TOTAL: settings.max,
            **{part_of(stream): allowed for stream, allowed in streams.items()},
        }
        self._filled = (*_FILLED, *map(part_of, streams))
        self._used = dict.fromkeys(self._allowed, 0)
        self._guard = threading.Lock()

    def allocate(self, component: Component, size: int, stream: str | None = None) -> Pressure:
        """Count `size` more bytes and return the level; OverloadedError: too many, and none are counted;
        TooLargeError: more than the budget of the stream can ever hold."""
        assert size >= 0, size
        with self._guard:
            parts = self._parts(component, stream)
            for name in parts:
                used, allowed = self._used[name], self._allowed[name]
                if name.startswith(_OF_STREAM) and size > self._emergency * allowed:
                    raise _never_fits(name, size, int(self._emergency * allowed))
                if size and used + size > self._emergency * allowed:
                    raise _refusal(name, size)
            for name in parts:
                self._used[name] += size
            return self._worst()[0]

    def release(self, component: Component, size: int, stream: str | None = None) -> None:
        """Count `size` bytes less, which were allocated before."""
        with self._guard:
            for name in self._parts(component, stream):
                assert 0 <= size <= self._used[name], (name, size, self._used[name])
                self._used[name] -= size

    def _parts(self, component: Component, stream: str | None) -> tuple[str, ...]:
        own = part_of(stream) if stream is not None and component == "buffer" else None
        return (component, TOTAL) if own not in self._allowed else (str(own), component, TOTAL)

    def pressure(self) -> Pressure:
        """The worst of the total and of the parts that requests fill. Other parts that are full are no reason
        to slow down all senders."""
        with self._guard:
            return self._worst(_FILLED)[0]

    def fullest(self) -> str:
        """The part that is nearest to its limit: of the total, those that requests fill, and those of
        streams."""
        with self._guard:
            return self._worst()[1]

    def share(self, stream: str | None = None) -> float:
        """How much of the memory that closing windows frees is in use: of `buffer`, or of the total.

        Not of the other parts: closing a window frees nothing of them.
        """
        with self._guard:
            return max(self._used[name] / self._allowed[name] for name in self._parts("buffer", stream))

    def usage(self) -> dict[str, tuple[int, int]]:
        """Bytes in use and allowed: of each component, and of all together as `total`."""
        with self._guard:
            return {name: (self._used[name], allowed) for name, allowed in self._allowed.items()}

    def _worst(self, names: Sequence[str] = ()) -> tuple[Pressure, str]:
        fullest = max(names or self._filled, key=lambda name: self._used[name] / self._allowed[name])
        used, allowed = self._used[fullest], self._allowed[fullest]
        return level(used, allowed, self._high_water, self._emergency), fullest


def _refusal(name: str, size: int) -> OverloadedError:
    """How much is used, and so how much others send, is shown by `status`, not here."""
    setting = setting_of(name)
    return OverloadedError(
        f"no memory is left for {size} bytes in {name}",
        hint=f"send the same again a little later, or less at once; {setting} sets what is allowed",
        where=setting,
        refused=not setting.startswith("streams."),
    )


def _never_fits(part: str, size: int, room: int) -> TooLargeError:
    """Retrying does not help: the answer would be the same."""
    setting = setting_of(part)
    return TooLargeError(
        f"{size} bytes are more than fit in the {part}: {room}",
        hint=f"send less at once; {setting} sets what is allowed",
        where=setting,
    )
