"""The threads in which answers are made: reading tables blocks, and the event loop must not.

The number of reads at once is limited; others wait, and senders of events are not delayed by them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from starlette.responses import Response, StreamingResponse

from tidemill.pipeline.documents.shapes import Document, dumps
from tidemill.server.access.grants import Principal, Scope
from tidemill.server.callers import caller

if TYPE_CHECKING:
    from tidemill.config import Stream
    from tidemill.mill import Mill
    from tidemill.server.service import Service

AT_ONCE: Final = 4
JSON: Final = "application/json"
_Made = TypeVar("_Made")

Reader = Annotated[Principal, caller(Scope.READ)]


class Readers:
    """Makes answers, a few at a time."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tidemill-readers")

    @property
    def mill(self) -> Mill:
        return self.service.mill

    def stream(self, name: str, principal: Principal) -> Stream:
        """A stream that exists for the caller."""
        return self.service.stream(name, principal.tenant)

    def sealed(self, cursor: str, principal: Principal) -> str:
        """A cursor as the caller may see it: a tenant cannot read the numbers in it."""
        return cursor if principal.tenant is None else self.service.seals.seal(cursor, principal.tenant)

    def opened(self, cursor: str, principal: Principal) -> str:
        """The cursor in a text that the caller got from an answer; InputError if it is not one."""
        return cursor if principal.tenant is None else self.service.seals.open(cursor, principal.tenant)

    async def run(self, work: Callable[[], _Made]) -> _Made:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def answer(self, document: Callable[[], Document]) -> Response:
        """The document that the command line prints for `--output json`, as exact JSON."""
        return Response(await self.run(lambda: dumps(document()).encode()), media_type=JSON)

    async def streamed(self, made: Iterator[bytes], media: str, headers: Mapping[str, str]) -> Response:
        """Pieces as they are made. Each is made once the one before was sent: a slow client holds no thread,
        and no more memory than for one piece. An error at the first piece is still an error response."""
        source = _Source(made)
        first = await self.run(source.next)
        return StreamingResponse(self._rest(source, first), headers=headers, media_type=media)

    async def _rest(self, source: _Source, piece: bytes | None) -> AsyncIterator[bytes]:
        try:
            while piece is not None:
                yield piece
                piece = await self.run(source.next)
        finally:
            self._pool.submit(source.close)  # not waited for: the client may be gone


class _Source:
    """Pieces that several threads make in turn; it may be closed while one is being made."""

    def __init__(self, made: Iterator[bytes]) -> None:
        self._made = made
        self._guard = threading.Lock()

    def next(self) -> bytes | None:
        with self._guard:
            return next(self._made, None)

    def close(self) -> None:
        with self._guard:
            if isinstance(self._made, Generator):
                self._made.close()
