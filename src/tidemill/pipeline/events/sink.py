"""The contract of a sink: it takes messages in order and reports how far it got.

A sender never raises for problems outside of it: those are a `Trouble`, and the message is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """An event as it is sent. Sent again, it has the same id and the same bytes."""

    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a sink did not take a message. Never contains a secret, a body or the query of an address."""

    message: str
    hint: str
    refused: bool = False  # the other side refuses it as it is: an operator has to act
    retry_after: int | None = None  # microseconds that the other side asked for


@dataclass(frozen=True, slots=True)
class SentEvents:
    """The first `count` messages are safe at the sink; what stopped it then, unless it was asked to stop."""

    count: int
    trouble: Trouble | None = None


class Sender(Protocol):
    """One sink. `send` is called from one thread at a time."""

    @property
    def chunk(self) -> int:
        """How many messages it prefers at once; as many may be repeated after a crash."""
        ...

    def send(self, messages: Sequence[Message], now: int, go_on: Callable[[], bool]) -> SentEvents:
        """Send in the order given, until one fails or `go_on` says to stop."""
        ...
