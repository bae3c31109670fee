"""Request bodies in progress: senders that are too slow give up the memory that others need.

While there is enough memory, every sender has the configured time; one that sends at a fair pace is never
dropped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tidemill.model.errors import OverloadedError

if TYPE_CHECKING:
    from tidemill.server.service import Service

SPAN: Final = 1.0  # seconds that a pace is taken over
FAIR: Final = 64 * 1024  # bytes a second
GIVEN_BACK: Final = 0.01  # seconds until released memory is free


class Arriving:
    """One body of several pieces."""

    __slots__ = ("_before", "_last", "_since", "_size", "_slow", "_waiting", "pressed")

    def __init__(self, waiting: asyncio.Timeout, now: float) -> None:
        self.pressed = False  # whether it was given up for lack of memory
        self._waiting = waiting  # for its next piece
        self._since = self._last = now
        self._size = self._before = 0
        self._slow = False

    def received(self, size: int, now: float) -> None:
        self._size += size
        self._last = now
        passed = now - self._since
        if passed >= SPAN:
            self._slow = self._size - self._before < FAIR * passed
            self._since, self._before = now, self._size

    def is_slow(self, now: float) -> bool:
        return self._slow or now - self._last >= SPAN

    def give_up(self, now: float) -> None:
        self.pressed = True
        self._waiting.reschedule(now)


async def admit(service: Service) -> None:
    """OverloadedError if there is no memory for another request, even after giving up slow ones."""
    try:
        service.gateway.admit()
    except OverloadedError:
        if not press(service):
            raise
        await asyncio.sleep(GIVEN_BACK)
        service.gateway.admit()


def press(service: Service) -> bool:
    """Give up the bodies that arrive too slowly; whether there were any."""
    now = asyncio.get_running_loop().time()
    slow = [body for body in service.arriving if body.is_slow(now) and not body.pressed]
    for body in slow:
        body.give_up(now)
    return bool(slow)
