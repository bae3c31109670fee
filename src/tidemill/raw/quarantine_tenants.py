"""The tenant of a record in quarantine: as the record names it, else the tenant of its sender's token.

Pure. Records with neither are visible only to callers that may see all tenants.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

Metadata = Callable[[str], str | None]  # the metadata of a slice, by its id
RowFilter = Callable[[pa.Table], pa.Table]


def rows_of_tenant(tenant: str, metadata: Metadata) -> RowFilter:
    """A filter for the rows of one tenant."""

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
    """Lines of a slice that name no tenant and came with this tenant's token, as its window recorded."""
    return frozenset(line for line, sender in senders(metadata).items() if sender == tenant)


def senders(metadata: str | None) -> Mapping[int, str]:
    """For lines of a slice that name no tenant, the tenant of the token they came with, as far as
    recorded."""
    try:
        fields = json.loads(metadata or "null")
    except (ValueError, RecursionError):
        return {}
    window = fields.get("window") if isinstance(fields, dict) else None
    pairs = window.get("unnamed") if isinstance(window, dict) else None
    return {
        pair[0]: pair[1]
        for pair in (pairs if isinstance(pairs, list) else ())
        if isinstance(pair, list) and list(map(type, pair)) == [int, str]
    }


def recorded(sent: Mapping[int, str]) -> str:
    """The metadata of a slice from which `senders` reads it."""
    return json.dumps({"window": {"unnamed": sorted(map(list, sent.items()))}}, ensure_ascii=False)
