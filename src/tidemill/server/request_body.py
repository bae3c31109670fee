"""The body of a request: read piece by piece, counted against the memory limit, given up if it stalls.

What was counted is released whatever happens; parsing a large body never delays other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from tidemill.formats.bodies import window_limit
from tidemill.formats.bodies.decompress import decompressed
from tidemill.model.errors import InputError, OverloadedError, TooLargeError
from tidemill.model.time import SECOND
from tidemill.server.callers import service_of
from tidemill.server.slow_senders import Arriving, press

if TYPE_CHECKING:
    from tidemill.config import Stream
    from tidemill.ingest.gateway.memory import MemoryTracker
    from tidemill.model.gateway import Submission
    from tidemill.server.service import Service

COMPONENT: Final = "requests"  # component of the memory
LONGEST: Final = 10  # a whole body may take so many times the longest pause between two pieces
SCANNED: Final = 256 * 1024  # bytes that a compiled pass may process in the event loop
CONVERTED: Final = 8 * 1024  # … and bytes of formats whose events are converted one by one
UNPACKED: Final = 32  # how much larger a compressed body may well be
_Read = TypeVar("_Read")


class HeldMemory:
    """Memory that one request holds until the end of the block."""

    __slots__ = ("_memory", "_size")

    def __init__(self, memory: MemoryTracker) -> None:
        self._memory = memory
        self._size = 0

    def add(self, size: int) -> None:
        """Allocate more; OverloadedError if there is none left."""
        self._memory.allocate(COMPONENT, size)
        self._size += size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._size:
            self._memory.release(COMPONENT, self._size)
            self._size = 0


async def body(request: Request, held: HeldMemory, limit: int, timeout: int) -> bytes:
    """The body, of at most `limit` bytes. The pause between two pieces may be `timeout` (microseconds), and
    the whole body may take `LONGEST` times that."""
    _check_length(request, limit)
    patience = timeout / SECOND
    try:
        async with asyncio.timeout(patience):
            piece, more = await _piece(request)
    except TimeoutError:
        raise _stalled(patience) from None
    held.add(_within(len(piece), limit))
    return await _gathered(request, held, limit, piece, patience) if more else piece


async def _gathered(request: Request, held: HeldMemory, limit: int, piece: bytes, patience: float) -> bytes:
    """A whole body that comes in several pieces; most come in one."""
    service = service_of(request)
    clock = asyncio.get_running_loop().time
    now = clock()
    end = now + LONGEST * patience
    pieces = bytearray(piece)
    waiting = asyncio.timeout(patience)
    arriving = Arriving(waiting, now)
    service.arriving.add(arriving)
    try:
        async with waiting:
            more = True
            while more:
                piece, more = await _piece(request)
                _within(len(pieces) + len(piece), limit)
                _hold(service, held, len(piece))
                pieces += piece
                now = clock()
                arriving.received(len(piece), now)
                waiting.reschedule(min(now + patience, end))
            return bytes(pieces)
    except TimeoutError:
        if arriving.pressed:
            raise HTTPException(408, "memory is short, and the body came too slowly") from None
        if clock() >= end:
            raise HTTPException(408, f"the body took longer than {LONGEST * patience:g} s") from None
        raise _stalled(patience) from None
    finally:
        service.arriving.discard(arriving)


def _hold(service: Service, held: HeldMemory, size: int) -> None:
    try:
        held.add(size)
    except OverloadedError:
        press(service)  # for the next request
        raise


def _stalled(patience: float) -> HTTPException:
    return HTTPException(408, f"nothing of the body came for {patience:g} s")


async def _piece(request: Request) -> tuple[bytes, bool]:
    """The next piece, and whether there are more."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def _within(size: int, limit: int) -> int:
    if size > limit:
        raise _too_large(limit)
    return size


def _check_length(request: Request, limit: int) -> None:
    text = request.headers.get("content-length")
    if text is None:
        return
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"Content-Length is {text!r}", hint="give the number of bytes of the body")
    if int(text[:20]) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(
        f"the body has more than {limit} bytes",
        where="gateway.requests.body",
        hint="send fewer events in a request, or allow more with gateway.requests.body",
    )


async def check_spread(service: Service, stream: Stream, submission: Submission) -> None:
    """TooSpreadError if its events lie in more windows than one request may touch. Runs in a thread for
    bodies, since events are read as the gate reads them."""
    most = service.project.gateway.requests.spread
    if submission.records <= most:
        return
    limits, now = service.project.limits, service.clock()
    check = partial(window_limit.check_spread, submission, stream, limits, most, now)
    await asyncio.get_running_loop().run_in_executor(service.parsers, check)


async def read_by(
    read: Callable[[bytes], _Read], service: Service, request: Request, held: HeldMemory, *, inline: int
) -> _Read:
    """What `read` makes of the body, decompressed: here if it has at most `inline` bytes, otherwise in one of
    the few threads for bodies."""
    limits = service.project.gateway.requests
    content = await body(request, held, limits.body, limits.timeout)
    encoding = request.headers.get("content-encoding")

    def work() -> _Read:
        plain = decompressed(content, encoding, limits.body) if encoding is not None else content
        if plain is not content:
            held.add(len(plain))
        return read(plain)

    packed = encoding is not None and encoding != "identity"
    if len(content) * (UNPACKED if packed else 1) <= inline:
        return work()
    return await asyncio.get_running_loop().run_in_executor(service.parsers, work)
