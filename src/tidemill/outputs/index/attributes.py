"""Facts about the indexed attributes of a stream: kinds, how many events have them, commonest values.

Read from a bounded number of index entries; what was not read is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Mask
from tidemill.outputs.index.entries import EntryGroup, index_source, metadata_of
from tidemill.outputs.index.numbers import value_of
from tidemill.outputs.index.table import BOOLEAN, KINDS, NUMBER, index_path
from tidemill.storage.tables.parts import open_part
from tidemill.storage.tables.snapshot import Part, Snapshot

MOST_DISTINCT: Final = 100_000  # distinct values of one attribute that are counted
MOST_ENTRIES: Final = 10_000_000  # index entries that are read for all attributes together
TOP: Final = 10

Value = str | bool | Decimal


@dataclass(frozen=True, slots=True)
class Attribute:
    path: str
    kinds: tuple[str, ...]
    events: int  # that have a value
    distinct: int  # distinct values; if `is_more`, so many were counted and there are others
    is_more: bool
    top: tuple[tuple[Value, int], ...]  # commonest values with counts (if is_more: at least)


@dataclass(frozen=True, slots=True)
class Attributes:
    attributes: tuple[Attribute, ...]  # in the order of declaration
    events: int  # in the raw parts that were read
    parts: int  # of raw that were read …
    left_out: int  # … and those that were not: not indexed yet, or enough was read


@dataclass(slots=True)
class _SeenValues:
    kinds: set[str] = field(default_factory=set)
    events: int = 0
    counts: Counter[tuple[str, float | str, str | None]] = field(default_factory=Counter)
    is_more: bool = False


def attributes(
    raw: Snapshot,
    index: Snapshot | None,
    indexed: Sequence[str],
    *,
    tenant: str | None = None,
    most_entries: int = MOST_ENTRIES,
) -> Attributes:
    """Reads the newest days first, until enough was read. With a tenant, only its events count."""
    seen = {path: _SeenValues() for path in indexed}
    parts = [part for part in raw.parts if part.rows]
    if tenant is not None:
        parts = [part for part in parts if part.may_hold("tenant", tenant, tenant)]
    events = read_entries = read = 0
    for part in sorted(parts, key=_newest, reverse=True):
        path = index_path(part, indexed)
        known = index.by_name.get(path) if index is not None else None
        if known is None or (read_entries and read + known.rows > most_entries):
            continue
        assert index is not None
        own = _is_of_tenant(f"{raw.root}/{part.path}", tenant) if tenant is not None else None
        with index_source(f"{index.root}/{known.path}", part.rows, {}) as source:
            for name, found in seen.items():
                _add(found, source.of(name), part.rows, own)
        events += part.rows if own is None else int(np.count_nonzero(own))
        read_entries += 1
        read += known.rows
    listed = tuple(_attribute(name, found) for name, found in seen.items())
    return Attributes(listed, events, read_entries, len(parts) - read_entries)


def _newest(part: Part) -> tuple[int, str]:
    found = part.maxs.get("event_time")
    return (found if isinstance(found, int) else 0), part.path


def _is_of_tenant(path: str, tenant: str) -> Mask:
    with open_part(path, metadata=metadata_of(path)) as file:
        column = file.read(["tenant"], use_threads=False).column("tenant")
    return np.asarray(pc.equal(column.cast(pa.string()), tenant).combine_chunks())


def _add(seen: _SeenValues, groups: Sequence[EntryGroup], rows: int, own: Mask | None) -> None:
    has = np.zeros(rows, np.bool_)
    for group in groups:
        if group.kind not in KINDS:
            continue
        holding = group.rows()
        keep = own[holding] if own is not None else None
        if keep is not None:
            holding = holding[keep]
        if not holding.size:
            continue
        seen.kinds.add(group.kind)
        has[holding] = True
        _count(seen, group, keep)
    seen.events += int(np.count_nonzero(has))


def _count(seen: _SeenValues, group: EntryGroup, keep: Mask | None) -> None:
    values = group.values()
    if group.kind == NUMBER:
        assert values.number is not None
        assert values.exact is not None
        columns = pa.table({"value": pa.array(values.number), "exact": values.exact})
    else:
        assert values.text is not None
        columns = pa.table({"value": values.text, "exact": pa.nulls(len(values.text), pa.string())})
    if keep is not None:
        columns = columns.filter(pa.array(keep))
    counted = columns.group_by(["value", "exact"], use_threads=False).aggregate([([], "count_all")])
    if seen.is_more:  # a value that occurs once among its neighbours is not common
        counted = counted.filter(pc.greater(counted.column("count_all"), 1))
    for value, exact, count in zip(
        counted.column("value").to_pylist(),
        counted.column("exact").to_pylist(),
        counted.column("count_all").to_pylist(),
        strict=True,
    ):
        seen.counts[group.kind, value, exact] += count
    if len(seen.counts) > MOST_DISTINCT:
        seen.is_more = True
        seen.counts = Counter(dict(sorted(seen.counts.items(), key=_commonest)[: MOST_DISTINCT // 10]))


def _attribute(path: str, seen: _SeenValues) -> Attribute:
    top = tuple((_value(key), count) for key, count in sorted(seen.counts.items(), key=_commonest)[:TOP])
    distinct = MOST_DISTINCT if seen.is_more else len(seen.counts)
    return Attribute(path, tuple(sorted(seen.kinds)), seen.events, distinct, seen.is_more, top)


def _commonest(item: tuple[tuple[str, float | str, str | None], int]) -> tuple[int, str, object, str]:
    (kind, value, exact), count = item
    return -count, kind, value, exact or ""


def _value(key: tuple[str, float | str, str | None]) -> Value:
    kind, value, exact = key
    if kind == NUMBER:
        assert isinstance(value, float)
        return value_of((value, exact))
    return value == "true" if kind == BOOLEAN else str(value)
