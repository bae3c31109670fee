"""Records of several messages, for the oracle: which of the messages tells when the record happened.

It never parses a time: the oracle does, by the rules that hold for every other record.
"""

from __future__ import annotations

from tests.support.oracles.stream import OracleMessages, TimeType
from tests.support.oracles.strictjson import Json


def matching_types(declared: OracleMessages, fields: dict[str, Json]) -> tuple[Json, TimeType] | None:
    """What the first message with an event time has for it, and its type; None when no message has one."""
    held = _at(fields, declared.column)
    for message in held if isinstance(held, list) else ():
        name = _at(message, declared.stream)
        if isinstance(name, str) and name in declared.times:
            column, time_type = declared.times[name]
            body = message if declared.body is None else _at(message, declared.body)
            return _at(body, column), time_type
    return None


def _at(value: Json, column: str) -> Json:
    for key in column.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
