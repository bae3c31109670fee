"""What both clients share of httpx: how requests are built, and what follows from each attempt.

Nothing here waits.
"""

from __future__ import annotations

import httpx

from tidemill.client import requests, responses
from tidemill.client.requests import Request, Rules
from tidemill.client.responses import ClientError
from tidemill.client.retries import requested_pause
from tidemill.model.errors import InputError

Seen = httpx.Response | httpx.TransportError  # what came of a try


def address(url: str) -> httpx.URL:
    try:
        found = httpx.URL(url)
    except httpx.InvalidURL:
        found = httpx.URL()
    if found.scheme not in ("http", "https") or not found.host:
        raise InputError(
            f"{url!r} is not the address of a server", hint="use an address such as http://127.0.0.1:8470"
        )
    return found


def is_direct(url: str) -> bool:
    return requests.is_here(address(url).host)


def built(http: httpx.Client | httpx.AsyncClient, request: Request, timeout: float) -> httpx.Request:
    return http.build_request(
        request.method,
        request.path,
        params=dict(request.params),
        headers=dict(request.headers),
        content=request.content,
        timeout=httpx.Timeout(timeout, read=timeout + request.waits),
    )


class Attempts:
    """The attempts of one request, and what follows from each."""

    def __init__(self, rules: Rules) -> None:
        self._clock = rules.clock
        self._tries = rules.tries()

    def after(self, seen: Seen) -> httpx.Response | float:
        """Return the answer, or seconds until the next attempt; raises ClientError if another is useless."""
        problem = _problem(seen)
        if isinstance(seen, httpx.Response) and problem is None:
            return seen
        return self.lost(seen, None)

    def lost(self, seen: Seen, pause: float | None) -> float:
        """Return seconds until a lost connection is tried again; `pause` is the one that the server set."""
        problem = _problem(seen)
        if isinstance(seen, httpx.Response):
            value = requested_pause(seen.headers)
            pause = value if value is not None else pause
        if problem is None:
            return self._pause(
                responses.unreachable(str(seen.request.url), EOFError("the connection ended")), pause
            )
        return self._pause(problem, pause)

    def _pause(self, problem: ClientError, requested: float | None) -> float:
        pause = (
            self._tries.pause(self._clock(), requested) if responses.is_worth_another_try(problem) else None
        )
        if pause is None:
            raise problem
        return pause


def _problem(seen: Seen) -> ClientError | None:
    if isinstance(seen, httpx.Response):
        return responses.problem_of(
            seen.status_code, seen.reason_phrase, seen.content if seen.status_code >= 300 else b""
        )
    return responses.unreachable(str(seen.request.url), seen)
