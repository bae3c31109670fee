"""From the gateway's threads back to the event loop: answers a sender once its submission is durable, or has
landed, as `gateway.acknowledge` says.

Many that become durable together wake the loop once, not once each.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from tidemill.model.errors import StorageError, TidemillError, UnlandedError
from tidemill.model.gateway import Entry, Submission
from tidemill.model.time import SECOND

if TYPE_CHECKING:
    from tidemill.server.service import Service

Waiter = asyncio.Future[Entry]


class Acknowledging:
    """The way a submission takes, for routes. Any number of event loops."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._guard = threading.Lock()
        self._outcomes: dict[asyncio.AbstractEventLoop, list[tuple[Waiter, Entry | BaseException]]] = {}

    async def durable(self, submission: Submission, sender: str) -> Entry:
        """Returns once it is durable, or has landed; OverloadedError if nothing was taken, StorageError if it
        could not be written, UnlandedError if it did not land in time."""
        settings = self._service.project.gateway
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()

        def done(outcome: Entry | BaseException) -> None:
            self._deliver(loop, waiter, outcome)

        self._service.gateway.submit(submission, done, sender)
        if settings.acknowledge == "logged":
            return await waiter
        longest = settings.requests.wait / SECOND
        try:
            async with asyncio.timeout(longest):
                return await waiter
        except TimeoutError:
            raise UnlandedError(f"the events have not landed within {longest:g} s") from None

    def _deliver(
        self, loop: asyncio.AbstractEventLoop, waiter: Waiter, outcome: Entry | BaseException
    ) -> None:
        with self._guard:
            waiting = self._outcomes.get(loop)
            if waiting is not None:
                waiting.append((waiter, outcome))
                return
            self._outcomes[loop] = [(waiter, outcome)]
        try:
            loop.call_soon_threadsafe(self._resolve, loop)
        except RuntimeError:  # the loop is closed: no request waits for it
            with self._guard:
                self._outcomes.pop(loop, None)

    def _resolve(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard:
            waiting = self._outcomes.pop(loop, [])
        last = waiting[-1][1] if waiting else None
        unwritten = isinstance(last, BaseException) and not isinstance(last, UnlandedError)
        self._service.unwritten_at = self._service.timer() if unwritten else None
        for waiter, outcome in waiting:
            if waiter.done():  # its client went away
                continue
            if isinstance(outcome, Entry):
                waiter.set_result(outcome)
            elif isinstance(outcome, TidemillError):
                waiter.set_exception(outcome)
            else:
                waiter.set_exception(_unwritten(outcome))


def _unwritten(error: BaseException) -> StorageError:
    found = StorageError(
        f"the log cannot be written: {error}", hint="look at the disk; the same can be sent again"
    )
    found.__cause__ = error
    return found
