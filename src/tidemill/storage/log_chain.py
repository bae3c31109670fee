"""Chains through logs of JSON lines: each line has a checksum of itself and of all lines before it, so that a
changed, removed or moved line is found.

The state records the head of a log, which shows whether lines are missing at its end. Lines of earlier
versions have no checksum: they come first, and the first line with one covers them all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_CHAINED: Final = re.compile(rb'(\{.*),"chain":"([1-9][0-9]*):([0-9a-f]{16})"\}', re.DOTALL)
_LENGTH: Final = 16


@dataclass(frozen=True, slots=True)
class LogHead:
    """How many lines a log has, and the checksum of all of them."""

    lines: int
    chain: str


EMPTY_LOG: Final = LogHead(0, "")


def chained(head: LogHead, body: bytes) -> tuple[bytes, LogHead]:
    """A line (a JSON object, as text) as it is appended to a log, and the new head of the log."""
    after = _after(head, body)
    return body[:-1] + f',"chain":"{after.lines}:{after.chain}"}}\n'.encode(), after


def chained_all(head: LogHead, bodies: Iterable[bytes]) -> tuple[bytes, LogHead]:
    """Several lines, one after the other."""
    texts = []
    for body in bodies:
        text, head = chained(head, body)
        texts.append(text)
    return b"".join(texts), head


def head_at(line: bytes) -> LogHead | None:
    """The head of the log up to this line, as recorded in it; None: it has no checksum."""
    found = _CHAINED.fullmatch(line.rstrip(b"\n"))
    return None if found is None else LogHead(int(found[2]), found[3].decode())


def follows(head: LogHead, line: bytes) -> bool:
    """Whether this line was appended to a log with this head."""
    found = _CHAINED.fullmatch(line.rstrip(b"\n"))
    return found is not None and _after(head, found[1] + b"}") == head_at(line)


class ChainReader:
    """Follows a log from its first line."""

    def __init__(self) -> None:
        self._before = hashlib.sha256()  # of the lines without a checksum, which come first
        self._lines = 0
        self._head: LogHead | None = None

    @property
    def head(self) -> LogHead:
        """The head of the lines so far."""
        if self._head is not None:
            return self._head
        return LogHead(self._lines, self._before.hexdigest()[:_LENGTH]) if self._lines else EMPTY_LOG

    @property
    def is_chained(self) -> bool:
        """Whether the lines so far are protected."""
        return self._head is not None

    def read(self, line: bytes) -> bool:
        """Read the next line, with its line end; whether it is the one that was written there."""
        if head_at(line) is None and self._head is None:
            self._before.update(line)
            self._lines += 1
            return True
        if not follows(self.head, line):
            return False
        self._head = head_at(line)
        return True


def _after(head: LogHead, body: bytes) -> LogHead:
    digest = hashlib.sha256(head.chain.encode() + b"\n" + body).hexdigest()
    return LogHead(head.lines + 1, digest[:_LENGTH])
