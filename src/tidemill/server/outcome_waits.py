"""Waiting for outcomes: one query of the state for all waiting requests, soon after anything may have
changed.

A waiting request holds no thread and no memory of the budget; when its time is up, nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fastapi.concurrency import run_in_threadpool

from tidemill.model.errors import TidemillError
from tidemill.model.gateway import Receipt
from tidemill.model.slices import SliceStatus

if TYPE_CHECKING:
    from tidemill.server.service import Service

log = logging.getLogger(__name__)

PAUSE: Final = 0.025  # seconds between two queries, if nothing signals a change


@dataclass(slots=True, eq=False)
class _Waiter:
    id: str
    future: asyncio.Future[Receipt]
    receipt: Receipt | None = field(default=None)  # once its slice is in the ledger


class OutcomeWaiters:
    """Requests that wait for the outcome of their events, in the event loop of the server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: set[_Waiter] = set()
        self._watching: asyncio.Task[None] | None = None

    async def decided(self, ingestion: str, seconds: float) -> Receipt | None:
        """The receipt of an ingestion, once its slice has gone through the gate; None: it has not yet."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # another server runs the same application: the previous one has ended
            self._loop, self._waiters, self._watching = loop, set(), None
        waiter = _Waiter(ingestion, loop.create_future())
        self._service.gateway.hurry(ingestion)
        self._waiters.add(waiter)
        if self._watching is None or self._watching.done():
            self._watching = loop.create_task(self._watch())
        try:
            async with asyncio.timeout(seconds):
                return await waiter.future
        except TimeoutError:
            return None
        finally:
            self._waiters.discard(waiter)

    async def _watch(self) -> None:
        service = self._service
        rung = service.woken.rung
        while self._waiters:
            if service.stopping.is_set():
                self._give_up()
                return
            waiting = list(self._waiters)
            try:
                done = await run_in_threadpool(self._query, waiting)
            except TidemillError as error:  # the events are durable anyway
                log.warning("outcomes cannot be read: %s", error)
                done = []
            for waiter in done:
                if not waiter.future.done() and waiter.receipt is not None:
                    waiter.future.set_result(waiter.receipt)
                self._waiters.discard(waiter)
            rung = await service.woken.wait(rung, PAUSE)

    def _give_up(self) -> None:
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(TimeoutError())

    def _query(self, waiting: Sequence[_Waiter]) -> list[_Waiter]:
        """The ingestions whose slices are decided. Runs in a thread, since it reads the state."""
        gateway, state = self._service.gateway, self._service.mill.state
        for waiter in waiting:
            if waiter.receipt is None and gateway.buffered(waiter.id) is None:
                waiter.receipt = gateway.receipt(waiter.id)
        slices = {waiter.receipt.slice for waiter in waiting if waiter.receipt is not None}
        decided = set()
        for name in slices:
            entry = state.slice(name)
            if entry is not None and entry.status is not SliceStatus.PENDING:
                decided.add(name)
        return [
            waiter for waiter in waiting if waiter.receipt is not None and waiter.receipt.slice in decided
        ]
