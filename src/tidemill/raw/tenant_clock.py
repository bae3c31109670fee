"""The last arrival and the watermark of one tenant in a shared stream, from its own events.

Only rows of that tenant are read, so that the times of others have no effect. Results are cached by part: a
part never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tidemill.config import Stream
from tidemill.raw.watermark import TimeRules, stream_clock
from tidemill.storage.state.protocol import ClockState

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from tidemill.storage.tables.snapshot import Snapshot

# Imports inside functions keep start-up short: only a query of one tenant reads parts.

_TENANT: Final = "tenant"
_COLUMNS: Final = [_TENANT, "slice", "event_time", "arrival"]
PARTS: Final = 4096  # parts times tenants that are cached


@dataclass(frozen=True, slots=True)
class OwnRows:
    """The rows that a tenant has in a slice."""

    newest: int  # event time
    arrival: int
    rows: int


def own_rows(raw: Snapshot | None, tenant: str) -> Mapping[str, OwnRows]:
    """By slice, for all rows that raw has of the tenant."""
    found: dict[str, OwnRows] = {}
    parts = raw.select(ranges={_TENANT: (tenant, tenant)}) if raw is not None else ()
    for part in parts:
        assert raw is not None
        for name, rows in _of_part(f"{raw.root}/{part.path}", tenant):
            found[name] = _both(found.get(name), rows)
    return found


def _both(known: OwnRows | None, more: OwnRows) -> OwnRows:
    """Rows of one slice in two places."""
    if known is None:
        return more
    return OwnRows(max(known.newest, more.newest), more.arrival, known.rows + more.rows)


def own_watermark(
    stream: Stream, rows: Mapping[str, OwnRows], source_of: Callable[[str], str], now: int
) -> int | None:
    """The watermark as of `now`, as if the stream had only the tenant's events: the minimum over the sources
    that are not idle, each by its newest row. In processing time it is the instant itself."""
    rules = TimeRules.of(stream)
    if not rules.in_event_time:
        return now
    clocks: dict[str, ClockState] = {}
    for name, one in rows.items():
        source = source_of(name)
        known = clocks.get(source)
        newest = one.newest if known is None else max(one.newest, known.max_seen)
        arrival = one.arrival if known is None else max(one.arrival, known.arrival)
        clocks[source] = ClockState(source, newest, newest - rules.tolerance, arrival)
    return stream_clock(rules.tolerance, rules.idle_timeout, clocks.values()).at(now).watermark


def last_arrival(rows: Mapping[str, OwnRows], is_included: Callable[[str], bool]) -> int | None:
    """The newest arrival of a slice that an answer includes."""
    newest = sorted(rows.items(), key=lambda one: one[1].arrival, reverse=True)
    return next((one.arrival for name, one in newest if is_included(name)), None)


@lru_cache(maxsize=PARTS)
def _of_part(path: str, tenant: str) -> tuple[tuple[str, OwnRows], ...]:
    import pyarrow as pa
    import pyarrow.compute as pc

    from tidemill.storage.tables.parts import open_part

    found: dict[str, OwnRows] = {}
    with open_part(path, (_TENANT, "slice")) as file:
        for group in _groups(file, tenant):
            rows = file.read_row_group(group, columns=_COLUMNS)
            rows = rows.filter(pc.equal(rows.column(_TENANT), tenant))
            sums = rows.group_by("slice").aggregate(
                [("event_time", "max"), ("arrival", "max"), ("slice", "count")]
            )
            for name, newest, arrival, count in zip(
                sums.column("slice").cast(pa.string()).to_pylist(),
                sums.column("event_time_max").cast(pa.int64()).to_pylist(),
                sums.column("arrival_max").cast(pa.int64()).to_pylist(),
                sums.column("slice_count").to_pylist(),
                strict=True,
            ):
                found[name] = _both(found.get(name), OwnRows(newest, arrival, count))
    return tuple(found.items())


def _groups(file: pq.ParquetFile, tenant: str) -> Iterable[int]:
    """Row groups that can hold rows of the tenant: rows are sorted by it."""
    column = file.schema.names.index(_TENANT)
    for group in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max or statistics.min <= tenant <= statistics.max:
            yield group
