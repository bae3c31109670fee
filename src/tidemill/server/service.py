"""What routes use: one open mill, its gateway, and access control.

Made once, before the server runs; independent of HTTP.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tidemill.config.gateway import is_loopback
from tidemill.model.errors import NotFoundError
from tidemill.server.access.cursor_encryption import Seals

if TYPE_CHECKING:
    from tidemill.config import Project, Stream
    from tidemill.ingest.gateway.gateway import Gateway
    from tidemill.mill import Mill
    from tidemill.pipeline.metrics import Meter
    from tidemill.server.access.rates import RateLimits
    from tidemill.server.access.tokens import Tokens
    from tidemill.server.slow_senders import Arriving

_loopback: Final = lru_cache(maxsize=8)(is_loopback)  # read with each request
PARSERS: Final = 2  # large bodies that are parsed at once: so many may be in memory twice


class Wakeup:
    """Rung by any thread; coroutines in event loops wait for it."""

    def __init__(self) -> None:
        self.rung = 0  # how often it was rung; a caller that remembers it misses none
        self._guard = threading.Lock()
        self._waiting: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}

    def ring(self) -> None:
        with self._guard:
            self.rung += 1
            waiting, self._waiting = self._waiting, {}
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for future, loop in waiting.items():
            loops.setdefault(loop, []).append(future)
        for loop, futures in loops.items():
            with suppress(RuntimeError):  # it was closed meanwhile: nothing waits in it
                loop.call_soon_threadsafe(_wake, futures)

    async def wait(self, since: int, timeout: float) -> int:
        """Returns once it was rung more often than `since`, or after `timeout` seconds: how often it was
        rung."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._guard:
            if self.rung > since:
                return self.rung
            self._waiting[future] = loop
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            pass
        finally:
            with self._guard:
                self._waiting.pop(future, None)
        return self.rung


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def may_know(stream: Stream, tenant: str | None) -> bool:
    """Whether a stream exists for this tenant: not if all of it belongs to another."""
    return tenant is None or stream.tenant.value is None or stream.tenant.value == tenant


@dataclass(slots=True)
class Service:
    """What is served. `woken` is rung by the pipeline of the same process after each round, and by what lands
    slices; `stopping` is set when the server stops, so that nothing waits on."""

    mill: Mill
    gateway: Gateway
    tokens: Tokens
    rates: RateLimits
    meter: Meter
    address: str = "127.0.0.1"  # the host it is bound to
    woken: Wakeup = field(default_factory=Wakeup)
    stopping: threading.Event = field(default_factory=threading.Event)
    landed: Callable[[], None] = field(default=lambda: None)  # called when a route has landed a slice
    arriving: set[Arriving] = field(default_factory=set)  # bodies that are being read, in the event loop
    unwritten_at: int | None = None  # since when the log cannot be written
    unready: dict[str, str] = field(default_factory=dict)  # what fails readiness, and its first cause
    parsers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(PARSERS, thread_name_prefix="tidemill-bodies")
    )

    seals: Seals = field(init=False)

    def __post_init__(self) -> None:
        self.seals = Seals(self.mill.project.warehouse)

    @property
    def project(self) -> Project:
        return self.mill.project

    @property
    def clock(self) -> Callable[[], int]:
        return self.mill.clock

    @property
    def timer(self) -> Callable[[], int]:
        """The monotonic clock for waits and rates."""
        return self.mill.clock.timer

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return _loopback(self.address)

    def stream(self, name: str, tenant: str | None) -> Stream:
        """A stream that this tenant (None: an operator) may know of."""
        found = self.project.streams.get(name)
        if found is None or not may_know(found, tenant):
            known = [stream.name for stream in self.project.streams.values() if may_know(stream, tenant)]
            raise NotFoundError(f"there is no stream {name!r}", hint=f"streams: {', '.join(known) or 'none'}")
        return found

    def stop(self) -> None:
        """Make all waiting requests give up."""
        self.stopping.set()
        self.woken.ring()
