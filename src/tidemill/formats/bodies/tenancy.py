"""Checks that events belong to the tenant of the token that sends them.

The tenant is read here as the gate reads it; where the two could differ, the event is refused.
"""

from __future__ import annotations

import json
from typing import Final

import orjson

from tidemill.config import Stream
from tidemill.formats.json_values import at, no_constant
from tidemill.model.errors import ForbiddenError, InputError

DEFAULT_TENANT: Final = "default"  # of CloudEvents and OTLP records that name none; streams have the same


def check_stream(stream: Stream, tenant: str | None) -> None:
    """Raise unless the tenant may send to the stream; None may send to all."""
    if tenant is None or stream.tenant.value is None or stream.tenant.value == tenant:
        return
    raise ForbiddenError(
        f"stream {stream.name!r} does not belong to tenant {tenant!r}",
        where=stream.name,
        hint="use a token of the tenant that it belongs to, or send to a stream of your own",
    )


def check_whole_stream(stream: Stream, tenant: str | None) -> None:
    """Raise unless the tenant owns the whole stream; bounds need that, since windows hold all tenants."""
    if tenant is not None and stream.tenant.value != tenant:
        raise ForbiddenError(
            f"bounds of stream {stream.name!r} cover the events of every tenant",
            where=stream.name,
            hint="leave start and end out, or use an operator's token: `tidemill token create --all-tenants`",
        )


def unnamed_lines(lines: bytes, stream: Stream, tenant: str | None) -> tuple[int, ...]:
    """Positions of the lines that name no tenant; ForbiddenError for the first that names another."""
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


def other_tenant(column: str, named: str, tenant: str, position: int) -> ForbiddenError:
    return ForbiddenError(
        f"{column} names tenant {named[:80]!r}, and the token is of tenant {tenant!r}: nothing was stored",
        where=f"event {position + 1}",
        hint="send events of one tenant with its own token, or all of them with an operator's",
    )


def _leniently(line: bytes, position: int) -> object:
    """A line that orjson refuses, such as one with 1e999; None if it is not JSON."""
    try:
        return json.loads(line.decode("utf-8"), parse_int=str, parse_float=str, parse_constant=no_constant)
    except ValueError:
        return None
    except RecursionError:
        raise InputError(
            "the event is nested too deeply to find its tenant",
            where=f"event {position + 1}",
            hint="nest it less",
        ) from None
