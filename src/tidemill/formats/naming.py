"""Which record it is that people are told of: the id that it has, if it has one.

Never for the gate: `judge` decides whether a record passes, this judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from tidemill.formats.judge import RuleError, at, id_text, identity, parse
from tidemill.formats.plan import MAX_ID_BYTES

_DEEP: Final = 1000  # of a record that may be deeper than the gate lets it be


def id_of(record: bytes, columns: Sequence[str]) -> str | None:
    """The id by these columns, spelled as the gate does; None when it has none, or is no JSON."""
    if not columns:
        return None
    try:
        value = orjson.loads(record)
    except orjson.JSONDecodeError:
        return None
    found = (at(value, column) for column in columns)
    told = [part for part in found if isinstance(part, str | int) and part and part is not True]
    if len(told) < len(columns):  # absent, or a number that only the exact reader tells
        return _exact_id(record, columns)
    joined = id_text(told)
    return joined if len(joined.encode()) <= MAX_ID_BYTES else None


def _exact_id(record: bytes, columns: Sequence[str]) -> str | None:
    try:
        return identity(parse(record, _DEEP), columns)
    except RuleError:
        return None
