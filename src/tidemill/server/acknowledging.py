"""From the gateway's thread back to the event loop: a sender is told once its submission is durable.

Many that become durable together wake the loop once, not once each.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from tidemill.model.errors import StorageError, TidemillError
from tidemill.model.gateway import Entry, Submission

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
        """Once it is; OverloadedError when nothing was taken, StorageError when nothing could be written."""
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()

        def done(outcome: Entry | BaseException) -> None:
            self._deliver(loop, waiter, outcome)

        self._service.gateway.submit(submission, done, sender)
        return await waiter

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
        except RuntimeError:  # the loop is closed: nobody is there to be told
            with self._guard:
                self._outcomes.pop(loop, None)

    def _resolve(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard:
            waiting = self._outcomes.pop(loop, [])
        last = waiting[-1][1] if waiting else None
        self._service.unwritten_at = self._service.timer() if isinstance(last, BaseException) else None
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
