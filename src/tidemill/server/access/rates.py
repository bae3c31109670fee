"""How often a token may be used: a bucket for each, full after one second without use.

Exact, in whole millionths of an event. Time is passed in; unused buckets are dropped.
"""

from __future__ import annotations

import threading
from typing import Final

from tidemill.model.errors import RateLimitError
from tidemill.model.time import SECOND
from tidemill.server.access.grants import Principal

MAX_BUCKETS: Final = 1024  # then those that are full again are dropped


class RateLimits:
    """The buckets of all tokens in use. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[int, int, int]] = {}  # id -> missing millionths, as of, rate

    def admit(self, principal: Principal, cost: int, now: int) -> None:
        """Count `cost` events, or raise RateLimitError and count nothing.

        A request is admitted while an event is left; what it costs beyond that is paid off before the next.
        Otherwise a request of more than one second's worth could never be admitted.
        """
        self._take(principal, cost, now, left=1)

    def admit_rest(self, principal: Principal, cost: int, now: int) -> None:
        """The same for the further events of a request that was admitted for its first."""
        self._take(principal, cost, now, left=0)

    def _take(self, principal: Principal, cost: int, now: int, left: int) -> None:
        rate = principal.rate
        if rate is None or cost <= 0:
            return
        with self._lock:
            missing = self._missing(principal.id, now)
            short = missing + (left - rate) * SECOND
            if short > 0:
                after = -(-short // rate) / SECOND
                raise RateLimitError(
                    f"this token may send {rate:,} events a second",
                    hint=f"send it again after {after:.2f} s; `tidemill token create --rate N` sets the rate",
                    after=after,
                )
            _, since, _ = self._buckets.get(principal.id, (0, now, rate))
            self._buckets[principal.id] = (missing + cost * SECOND, max(since, now), rate)
            if len(self._buckets) > MAX_BUCKETS:
                self._forget(now)

    def _missing(self, id: str, now: int) -> int:
        missing, since, rate = self._buckets.get(id, (0, now, 1))
        return max(0, missing - max(0, now - since) * rate)

    def _forget(self, now: int) -> None:
        self._buckets = {id: bucket for id, bucket in self._buckets.items() if self._missing(id, now)}
