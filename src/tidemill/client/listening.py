"""Server-sent events, as the HTML standard says how they are read.

Pure: who holds the connection hands in what it reads, and asks for the last id when it connects again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tidemill.client.answers import DatasetEvent, document

_LINE_END: Final = re.compile(r"\r\n|\n|\r")  # and no other: letters that look like one are data


class EventLines:
    """Reads one connection after the other; `last` and `pause` outlive them."""

    def __init__(self, last: str | None = None) -> None:
        self.last = last  # id of the last event, for Last-Event-ID
        self.pause: float | None = None  # seconds that the server wants before a connection is made again
        self.connected()

    def connected(self) -> None:
        """What the connection before left unfinished is forgotten: it comes again."""
        self._piece = ""
        self._begin()

    def _begin(self) -> None:
        self._id = self.last
        self._type = ""
        self._data: list[str] = []

    def read(self, text: str) -> Iterator[DatasetEvent]:
        """Take what came in; the events that it completes."""
        text = self._piece + text
        held = "\r" if text.endswith("\r") else ""  # its line feed may be still to come
        *lines, rest = _LINE_END.split(text.removesuffix(held))
        self._piece = rest + held
        for line in lines:
            if (event := self._line(line)) is not None:
                yield event

    def _line(self, text: str) -> DatasetEvent | None:
        if not text:
            return self._complete()
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.pause = int(value) / 1000
        return None

    def _complete(self) -> DatasetEvent | None:
        data, type_, self.last = "\n".join(self._data), self._type, self._id
        self._begin()
        return DatasetEvent(self.last or "", type_ or "message", document(data.encode())) if data else None
