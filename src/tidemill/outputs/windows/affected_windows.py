"""Which published windows new rows belong to: for a grid their starts, for other kinds the keys and since
when.

Pure except for reading results. Windows that are not disturbed are not computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from tidemill.config.stream import Stream
from tidemill.model.names import column_name
from tidemill.model.streaming import WindowKind, WindowSpec
from tidemill.model.time import Interval
from tidemill.outputs.windows.extract import AT, FIELD, TENANT
from tidemill.outputs.windows.keys import Key, key_codes
from tidemill.outputs.windows.open_sessions import carries_sums, first_starts
from tidemill.outputs.windows.results import ResultScope, current_results, known
from tidemill.storage.checksums import read_arrow


def disturbed_starts(spec: WindowSpec, rows: pa.Table, watermark: int) -> list[Interval]:
    """Starts of windows of the grid that hold one of these rows and were published at the watermark."""
    at = np.unique(rows.column(AT).to_numpy())
    first = ((at - spec.size) // spec.step + 1) * spec.step
    last = np.minimum(at // spec.step, (watermark - spec.size) // spec.step) * spec.step
    pairs = np.unique(np.stack([first, last], axis=1)[first <= last], axis=0)
    return merged(Interval(low, high + 1) for low, high in pairs.tolist())


def first_instants(spec: WindowSpec, rows: pa.Table) -> dict[Key, int]:
    """For each key the earliest instant at which one of its rows counts."""
    codes, values = key_codes([rows.column(TENANT), *(rows.column(FIELD + name) for name in spec.key)])
    first = np.full(len(values), np.iinfo(np.int64).max)
    np.minimum.at(first, codes, rows.column(AT).to_numpy())
    return {(str(v[0]), tuple(v[1:])): at for v, at in zip(values, first.tolist(), strict=True)}


def restarts(
    spec: WindowSpec,
    stream: Stream,
    keys: Mapping[Key, int],
    carried: Sequence[str],
    held: Sequence[str],
    sealed: int | None = None,
) -> dict[Key, int]:
    """From when each key is computed again: from the start of the first of its windows, published or open,
    that the new rows can affect. Everything before that stays, and so do windows that begin before the
    instant `sealed`."""
    if spec.kind is WindowKind.PER_ROW:  # every window that may hold the row
        low = sealed if sealed is not None else -(2**63)
        return {key: max(at - spec.reach, low) for key, at in keys.items()}
    opened: dict[Key, int] = {}
    for table in map(read_arrow, carried):
        if table.num_rows:
            first = first_starts if carries_sums(spec) else first_instants
            for key, at in first(spec, table).items():
                opened[key] = min(at, opened.get(key, at))
    table = known(current_results(spec, stream, held, ResultScope(since=dict.fromkeys(keys, -(2**63)))))
    spans: dict[Key, list[tuple[int, int]]] = {}
    columns = ["tenant", *(column_name(name) for name in spec.key)]
    for row in table.select(["start", "end", *columns]).cast(_plain(table, columns)).to_pylist():
        key = (row["tenant"], tuple(row[name] for name in columns[1:]))
        spans.setdefault(key, []).append((row["start"], row["end"]))
    touch = spec.kind is WindowKind.SESSION and spec.inclusive  # a row at the end of a session joins it
    return {
        key: _restart(min(at, opened.get(key, at)), sorted(set(spans.get(key, ()))), sealed, touch)
        for key, at in keys.items()
    }


def _plain(table: pa.Table, columns: Sequence[str]) -> pa.Schema:
    times = [pa.field("start", pa.int64()), pa.field("end", pa.int64())]
    return pa.schema([*times, *(table.schema.field(name) for name in columns)])


def _restart(at: int, spans: Sequence[tuple[int, int]], sealed: int | None, touch: bool) -> int:
    """Windows of one key are consecutive. One may begin at the instant of the last row of the one before:
    then that one is computed again too."""
    floor = at
    if sealed is not None:
        floor = max([sealed, *(end for start, end in spans if start < sealed)])
        spans = [span for span in spans if span[0] >= sealed]
    restart = max(at, floor)
    for start, end in reversed(spans):
        if end < restart or (end == restart and not touch):
            break
        restart = min(restart, start)
    return restart if sealed is None else max(restart, floor)


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same instants, as sorted intervals that neither overlap nor touch."""
    found: list[Interval] = []
    for interval in sorted(intervals, key=lambda one: one.start):
        if found and interval.start <= found[-1].end:
            found[-1] = Interval(found[-1].start, max(found[-1].end, interval.end))
        else:
            found.append(interval)
    return found
