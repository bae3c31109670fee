"""Whose a record in quarantine is: its own word first, else that of who sent it over the network.

Pure. What neither says is nobody's: only who may see all tenants sees it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

Metadata = Callable[[str], str | None]  # of a slice, by its id
Theirs = Callable[[pa.Table], pa.Table]


def theirs(tenant: str, metadata: Metadata) -> Theirs:
    """A filter that leaves the rows of one tenant."""

    @lru_cache(maxsize=64)
    def lines(slice_id: str) -> frozenset[int]:
        return unnamed_lines(metadata(slice_id), tenant)

    def filtered(rows: pa.Table) -> pa.Table:
        named = pc.fill_null(pc.equal(rows.column("tenant"), tenant), False)
        unnamed = pc.is_null(rows.column("tenant"))
        if not pc.any(unnamed).as_py():
            return rows.filter(named)
        positions = zip(
            unnamed.to_pylist(),
            rows.column("slice").to_pylist(),
            rows.column("line").to_pylist(),
            strict=True,
        )
        sent = pa.array([free and line in lines(slice_id) for free, slice_id, line in positions], pa.bool_())
        return rows.filter(pc.or_(named, pa.chunked_array([sent])))

    return filtered


def unnamed_lines(metadata: str | None, tenant: str) -> frozenset[int]:
    """Lines of a slice that name no tenant and came with this one's token, as its window recorded it."""
    return frozenset(line for line, sender in senders(metadata).items() if sender == tenant)


def senders(metadata: str | None) -> Mapping[int, str]:
    """By line of a slice that names no tenant, with whose token it came, as far as that is on record."""
    try:
        said = json.loads(metadata or "null")
    except (ValueError, RecursionError):
        return {}
    window = said.get("window") if isinstance(said, dict) else None
    pairs = window.get("unnamed") if isinstance(window, dict) else None
    return {
        pair[0]: pair[1]
        for pair in (pairs if isinstance(pairs, list) else ())
        if isinstance(pair, list) and list(map(type, pair)) == [int, str]
    }


def recorded(sent: Mapping[int, str]) -> str:
    """Metadata of a slice that `senders` reads it from."""
    return json.dumps({"window": {"unnamed": sorted(map(list, sent.items()))}}, ensure_ascii=False)
