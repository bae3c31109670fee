"""Which different events some lines hold, by the identity and the tenant that their stream declares.

For counting only: keys are hashes of this process, and nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from tidemill.config import Stream


def keys_of(content: bytes, stream: Stream) -> set[int]:
    """A hash of each key in NDJSON, as the gate reads it. A line that does not parse has none, nor has one
    without identity or tenant; a stream that declares no identity has no keys."""
    columns = stream.identity
    found: set[int] = set()
    if not columns:
        return found
    paths = [column.split(".") for column in columns]
    tenant = stream.tenant.column.split(".") if stream.tenant.column is not None else None
    simple = paths[0][0] if len(paths) == 1 and len(paths[0]) == 1 else None
    owner = tenant[0] if tenant is not None and len(tenant) == 1 else None
    for line in content.split(b"\n"):
        if not line:
            continue
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if not isinstance(record, dict):
            continue
        of: object = None
        if tenant is not None:
            of = record.get(owner) if owner is not None else _at(record, tenant)
            if not isinstance(of, str) or not of:
                continue
        if simple is not None:
            id_ = record.get(simple)
            if isinstance(id_, str) and id_:
                found.add(hash((of, id_)))
            elif (whole := _whole(id_)) is not None:
                found.add(hash((of, str(whole))))  # alone, the number 1 and the text "1" are the same id
            continue
        parts = [_at(record, path) for path in paths]
        if len(parts) == 1 and (whole := _whole(parts[0])) is not None:
            parts = [str(whole)]
        if all(_is_part(part) for part in parts):
            found.add(hash((of, *parts)))
    return found


def _at(value: object, path: Sequence[str]) -> object:
    for step in path:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _is_part(value: object) -> bool:
    return bool(value) if isinstance(value, str) else _whole(value) is not None
