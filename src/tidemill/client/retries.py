"""When a request is sent again: after which responses, after which pause, and for how long in all.

Pure rules: time and randomness are parameters. Every request of this API may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

from tidemill.model.errors import InputError

# 502 and 504 come from a proxy whose server is away.
AGAIN: Final = frozenset({408, 429, 503, 502, 504})


@dataclass(frozen=True, slots=True)
class Retries:
    """How long a request is retried. With `total` 0 it is sent once."""

    total: float = 60.0  # seconds, from the first try to the last
    first: float = 0.1  # the longest pause before the second try; doubles with each
    most: float = 10.0  # the longest pause

    def __post_init__(self) -> None:
        if self.total < 0 or not 0 < self.first <= self.most:
            raise InputError(
                "invalid retries", hint="total must be 0 or more, first above 0, most at least first"
            )


RETRIES: Final = Retries()


class Tries:
    """The attempts of one request."""

    def __init__(self, retries: Retries, began: float, random: Callable[[], float]) -> None:
        self._retries = retries
        self._began = began
        self._random = random
        self._pauses = 0

    def pause(self, now: float, after: float | None) -> float | None:
        """Return seconds until the next attempt; None to give up. `after` is what the server asked for.

        A random part spreads clients that were refused together; it only adds to what the server asked for.
        """
        bound = min(self._retries.first * 2.0 ** min(self._pauses, 60), self._retries.most)
        pause = (after or 0.0) + self._random() * bound
        if now + pause - self._began > self._retries.total:
            return None
        self._pauses += 1
        return pause


def requested_pause(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After`: a number, or an instant by the clock of the server."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        until, now = parsedate_to_datetime(value), parsedate_to_datetime(headers.get("date", ""))
    except ValueError:
        return None
    return max((until - now).total_seconds(), 0.0)
