"""Whose events they are: a token brings those of its own tenant, and none of another.

Whatever the gate could read as a tenant is read here too; where the two could differ, it is refused.
"""

from __future__ import annotations

import json
from typing import Final, NoReturn

import orjson

from tidemill.config import Stream
from tidemill.model.errors import ForbiddenError, InputError

DEFAULT_TENANT: Final = "default"  # whose events of another shape are that name no tenant; as streams have it


def check_stream(stream: Stream, tenant: str | None) -> None:
    """That the tenant may send to the stream at all; None may send for everybody."""
    if tenant is None or stream.tenant.value is None or stream.tenant.value == tenant:
        return
    raise ForbiddenError(
        f"stream {stream.name!r} does not belong to tenant {tenant!r}",
        where=stream.name,
        hint="use a token of the tenant that it belongs to, or send to a stream of your own",
    )


def check_whole_stream(stream: Stream, tenant: str | None) -> None:
    """That the tenant may speak for all of the stream, as bounds do: windows are of every tenant in it."""
    if tenant is not None and stream.tenant.value != tenant:
        raise ForbiddenError(
            f"bounds of stream {stream.name!r} cover the events of every tenant",
            where=stream.name,
            hint="leave start and end out, or use an operator's token: one that is made without --tenant",
        )


def unnamed_lines(lines: bytes, stream: Stream, tenant: str | None) -> tuple[int, ...]:
    """Places of the lines that name no tenant; ForbiddenError for the first that names another."""
    column = stream.tenant.column
    if tenant is None or column is None:
        return ()
    unnamed: list[int] = []
    nested = "." in column
    for position, line in enumerate(lines.split(b"\n")[:-1]):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            record = _leniently(line, position)
        if isinstance(record, dict):
            named = at(record, column) if nested else record.get(column)
            if named == tenant:
                continue
            if isinstance(named, str) and named:
                raise other_tenant(column, named, tenant, position)
        unnamed.append(position)
    return tuple(unnamed)


def at(record: object, column: str) -> object:
    """What stands at a dotted column; None when a step is missing."""
    for step in column.split("."):
        if not isinstance(record, dict):
            return None
        record = record.get(step)
    return record


def other_tenant(column: str, named: str, tenant: str, position: int) -> ForbiddenError:
    return ForbiddenError(
        f"{column} names tenant {named[:80]!r}, and the token is of tenant {tenant!r}: nothing was taken",
        where=f"event {position + 1}",
        hint="send events of one tenant with its own token, or all of them with an operator's",
    )


def _leniently(line: bytes, position: int) -> object:
    """A line that orjson does not take, such as one with 1e999; None when it is no JSON at all."""
    try:
        return json.loads(line.decode("utf-8"), parse_int=str, parse_float=str, parse_constant=_no_constant)
    except ValueError:
        return None
    except RecursionError:
        raise InputError(
            "the event is nested too deep to see whose it is",
            where=f"event {position + 1}",
            hint="send it flatter",
        ) from None


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
