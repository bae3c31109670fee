"""What a sink is to the delivery: something that takes messages in order and says how far it came.

A sender never raises for what the world does to it: that is a `Trouble`, and the message is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """An event as it is sent. Sent again, it is the same id and the same bytes."""

    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a sink did not take a message. Never holds a secret, a body or the query of an address."""

    message: str
    hint: str
    refused: bool = False  # the other side will not take it as it is: somebody has to do something
    retry_after: int | None = None  # microseconds that the other side asked for


@dataclass(frozen=True, slots=True)
class SentEvents:
    """The first `count` messages are safe at the sink; what stopped it there, unless it was told to stop."""

    count: int
    trouble: Trouble | None = None


class Sender(Protocol):
    """One sink. `send` is called from one thread at a time."""

    @property
    def chunk(self) -> int:
        """How many messages it likes to have at once; as many may be repeated after a crash."""
        ...

    def send(self, messages: Sequence[Message], now: int, go_on: Callable[[], bool]) -> SentEvents:
        """Send in the order given, until one fails or `go_on` says to stop."""
        ...
