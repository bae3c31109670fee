"""Counts distinct events in lines, by the identity and the tenant that their stream declares.

For statistics only: keys are 64-bit hashes, and nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np
import orjson

from tidemill.config import Stream
from tidemill.formats.json_values import at
from tidemill.ingest.gateway.key_scan import FOUND, UNUSUAL, distinct, key_hash, scan_keys
from tidemill.ingest.gateway.window_landing import in_pieces

if TYPE_CHECKING:
    from tidemill.formats.arrays import Words

LINE_END: Final = 10


def keys_of(content: bytes, stream: Stream) -> set[int]:
    """A hash of each key in NDJSON, as the gate reads it. A line that is not an object, or lacks identity or
    tenant, has none; nor have streams without an identity."""
    return set(_hashes(content, stream).tolist())


def warm() -> None:
    """Compile what is needed, so that the first window does not wait for it."""
    content = np.frombuffer(b"{}\n", np.uint8)
    scan_keys(content, np.array([2]), content, content, np.empty(1, np.uint8), np.empty(1, np.uint64))
    distinct(np.empty(0, np.uint64))


def count_keys(contents: Iterable[bytes], stream: Stream) -> int:
    """How many distinct keys there are in all of them."""
    found = [_hashes(piece, stream) for piece in in_pieces(contents)]
    return int(distinct(np.concatenate(found))) if found else 0


def _hashes(content: bytes, stream: Stream) -> Words:
    """The hashes of the keys of the lines, perhaps with repeats."""
    if not stream.identity:
        return np.empty(0, np.uint64)
    tenant = stream.tenant.column
    if len(stream.identity) > 1 or "." in stream.identity[0] or (tenant is not None and "." in tenant):
        parsed = {key for line in content.split(b"\n") if (key := _key(line, stream)) is not None}
        return np.fromiter(parsed, np.uint64, len(parsed))
    written = np.frombuffer(content, np.uint8)
    ends = np.append(np.flatnonzero(written == LINE_END), written.size)
    what, hashes = np.empty(ends.size, np.uint8), np.empty(ends.size, np.uint64)
    names = (np.frombuffer(name.encode(), np.uint8) for name in (stream.identity[0], tenant or ""))
    count = scan_keys(written, ends, *names, what, hashes)
    what, hashes = what[:count], hashes[:count]
    plain: Words = hashes if (what == FOUND).all() else hashes[what == FOUND]
    unusual = np.flatnonzero(what == UNUSUAL).tolist()
    if not unusual:
        return plain
    lines = [line for line in content.split(b"\n") if line]
    others = {key for offset in unusual if (key := _key(lines[offset], stream)) is not None}
    return np.concatenate([plain, np.fromiter(others, np.uint64, len(others))])


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
        of = at(record, stream.tenant.column)
        if not isinstance(of, str) or not of:
            return None
        owner = of
    parts = [at(record, column) for column in stream.identity]
    if not all(_is_part(part) for part in parts):
        return None
    if len(parts) == 1:  # alone, the number 1 and the string "1" are the same id
        return key_hash(owner, parts[0] if isinstance(parts[0], str) else str(_whole(parts[0])))
    joined = [part if isinstance(part, str) else _whole(part) for part in parts]
    return key_hash(owner, repr(joined))  # not as JSON: orjson has no numbers beyond 64 bits


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _is_part(value: object) -> bool:
    return bool(value) if isinstance(value, str) else _whole(value) is not None
