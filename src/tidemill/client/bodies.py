"""Encodes events as request bodies of bounded size; an event without an id gets one.

An event is encoded once, before the first attempt: a retry sends the same bytes with the same ids. The
caller's events are never changed.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Final

import orjson

from tidemill.model.errors import InputError

Event = Mapping[str, object]
NDJSON: Final = "application/x-ndjson"
_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATETIME
_LEVEL: Final = 1  # of gzip: most of the gain for a fraction of the time


@dataclass(frozen=True, slots=True)
class Ids:
    """Where the id of an event is, and how a new one is made. Without a path, events are sent unchanged."""

    path: tuple[str, ...]
    new: Callable[[], str]

    @classmethod
    def at(cls, column: str | None, new: Callable[[], str]) -> Ids:
        if column is not None and not all(column.split(".")):
            raise InputError(f"{column!r} is not a column name", hint="use a name, or a path such as meta.id")
        return cls(tuple(column.split(".")) if column is not None else (), new)

    def with_id(self, event: Event) -> Event:
        """Return the event itself if it has an id, else a copy with a new one."""
        return _filled(event, self.path, self.new) if self.path else event


def _filled(event: Event, path: tuple[str, ...], new: Callable[[], str]) -> Event:
    name, *rest = path
    there = event.get(name)
    if not rest:
        return event if there is not None else {**event, name: new()}
    if there is None:
        there = {}
    if not isinstance(there, Mapping):
        raise InputError(f"{name!r} holds no other column", hint="name the column of the id by id_column")
    inner = _filled(there, tuple(rest), new)
    return event if inner is there else {**event, name: inner}


@dataclass(frozen=True, slots=True)
class Body:
    """The content of one request."""

    content: bytes
    events: int
    media: str = NDJSON
    last: bool = False  # nothing of what is to be sent follows it


NOTHING: Final = Body(b"", 0, last=True)


def with_last(bodies: Iterable[Body]) -> Iterator[Body]:
    """Yield the same bodies, the last one marked as such."""
    held: Body | None = None
    for body in bodies:
        if held is not None:
            yield held
        held = body
    if held is not None:
        yield replace(held, last=True)


class RequestPacker:
    """Collects encoded events and returns a body whenever the next event would not fit."""

    def __init__(self, ids: Ids, most_events: int, most_bytes: int) -> None:
        self._ids = ids
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._lines: list[bytes] = []
        self._size = 0
        self._count = 0

    def add(self, event: Event) -> Body | None:
        """Add an event; returns the body of those before it if it does not fit beside them."""
        line = self._encoded(event)
        full = self._lines and (
            len(self._lines) >= self._most_events or self._size + len(line) > self._most_bytes
        )
        body = self._body(last=False) if full else None
        self._lines.append(line)
        self._size += len(line)
        return body

    def rest(self) -> Body | None:
        """Return the last body, with the remaining events; None if there are none."""
        return self._body(last=True) if self._lines else None

    def _body(self, *, last: bool) -> Body:
        body = Body(b"".join(self._lines), len(self._lines), last=last)
        self._lines, self._size = [], 0
        return body

    def _encoded(self, event: Event) -> bytes:
        self._count += 1
        where = f"event {self._count}"
        if not isinstance(event, Mapping):
            raise InputError(
                f"{type(event).__name__} is not an event",
                where=where,
                hint="an event is a mapping, such as a dict",
            )
        try:
            line = orjson.dumps(dict(self._ids.with_id(event)), default=_plain, option=_OPTIONS)
        except TypeError as error:
            raise InputError(
                f"the event cannot be written as JSON: {error}",
                where=where,
                hint="use text, 64-bit integers, numbers, booleans, None, times with a zone, lists, dicts",
            ) from error
        except InputError as error:
            raise InputError(error.message, where=where, hint=error.hint) from None
        if b"null" in line and not _is_finite(event):  # the encoder makes null of them without a word
            raise InputError(
                "JSON has no NaN or infinity", where=where, hint="leave the value out, or send None"
            )
        return line


def _plain(value: object) -> object:
    """Convert a value that orjson does not know."""
    if isinstance(value, Decimal) and value.is_finite():
        return orjson.Fragment(format(value, "f"))
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise TypeError("a datetime without a time zone")
        return value.isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list | tuple) else True


def compressed(content: bytes, above: int | None) -> tuple[bytes, dict[str, str]]:
    """Return the content, compressed if it is large, and the header that says so."""
    if above is None or len(content) <= above:
        return content, {}
    return gzip.compress(content, _LEVEL, mtime=0), {"content-encoding": "gzip"}
