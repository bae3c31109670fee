"""Which different events some lines hold, by the identity and the tenant that their stream declares.

For counting only: keys are 64-bit hashes, and nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson

from tidemill.config import Stream
from tidemill.gateway.key_scan import FOUND, UNUSUAL, key_hash, scan_keys


def keys_of(content: bytes, stream: Stream) -> set[int]:
    """A hash of each key in NDJSON, as the gate reads it. A line that does not parse has none, nor has one
    without identity or tenant; a stream that declares no identity has no keys."""
    if not stream.identity:
        return set()
    tenant = stream.tenant.column
    if len(stream.identity) > 1 or "." in stream.identity[0] or (tenant is not None and "." in tenant):
        return {key for line in content.split(b"\n") if (key := _key(line, stream)) is not None}
    lines = content.count(b"\n") + 1
    what, hashes = np.empty(lines, np.uint8), np.empty(lines, np.uint64)
    names = (np.frombuffer(name.encode(), np.uint8) for name in (stream.identity[0], tenant or ""))
    count = scan_keys(np.frombuffer(content, np.uint8), *names, what, hashes)
    what, hashes = what[:count], hashes[:count]
    found: set[int] = set(hashes[what == FOUND].tolist())
    if (what == UNUSUAL).any():
        written = [line for line in content.split(b"\n") if line]
        for place in np.flatnonzero(what == UNUSUAL).tolist():
            if (key := _key(written[place], stream)) is not None:
                found.add(key)
    return found


def _key(line: bytes, stream: Stream) -> int | None:
    """Of any line, by parsing it."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict):
        return None
    owner: str | None = None
    if stream.tenant.column is not None:
        of = _at(record, stream.tenant.column.split("."))
        if not isinstance(of, str) or not of:
            return None
        owner = of
    parts = [_at(record, column.split(".")) for column in stream.identity]
    if not all(_is_part(part) for part in parts):
        return None
    if len(parts) == 1:  # alone, the number 1 and the text "1" are the same id
        return key_hash(owner, parts[0] if isinstance(parts[0], str) else str(_whole(parts[0])))
    joined = [part if isinstance(part, str) else _whole(part) for part in parts]
    return key_hash(owner, repr(joined))  # not as JSON: orjson has no numbers beyond 64 bits


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
