"""Windows that close when they are complete: when every aggregation window that they overlap is built.

The coordinator of datasets decides completeness; here it is only read from the outbox.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tidemill.config.stream import Stream
from tidemill.model.streaming import Trigger, WindowSpec
from tidemill.model.time import MAX_INSTANT, Interval, parse_instant
from tidemill.model.windows import DATASET_AVAILABLE, DATASET_WITHDRAWN, WindowKey
from tidemill.outputs.windows.affected_windows import merged
from tidemill.outputs.windows.extract import RowScope
from tidemill.outputs.windows.planning import Task, clipped
from tidemill.storage.state.protocol import Outbox, State, Windows

_AT_ONCE: Final = 1_000


def has_news(state: Outbox, stream: str, after: int) -> bool:
    """Whether datasets were built or withdrawn since the outbox was read."""
    while events := state.outbox(after, _AT_ONCE, stream):
        if any(event.type in (DATASET_AVAILABLE, DATASET_WITHDRAWN) for event in events):
            return True
        after = events[-1].seq
    return False


def affected_by_datasets(
    spec: WindowSpec, stream: Stream, state: State, after: int, sealed: int | None = None
) -> tuple[int, Task | None]:
    """The outbox offset that was read, and the windows affected by the datasets that were built or withdrawn
    since, except those that begin before the instant `sealed`."""
    span = stream.aggregation_span
    assert span is not None, spec
    touched: set[int] = set()
    while events := state.outbox(after, _AT_ONCE, stream.name):
        after = events[-1].seq
        for event in events:
            if event.type in (DATASET_AVAILABLE, DATASET_WITHDRAWN):
                start, end = (parse_instant(str(event.data[name])) for name in ("start", "end"))
                if end - start == span:
                    touched.add(start)
    if not touched:
        return after, None
    starts = merged(Interval(start - spec.size + 1, start + span) for start in touched)
    if sealed is not None:
        starts = clipped(starts, sealed, MAX_INSTANT)
        if not starts:
            return after, None
    built = _built(stream.name, span, state, starts, spec.size)
    only = _closable(spec, span, starts, frozenset(window.start // span for window in built))
    hull = Interval(starts[0].start, starts[-1].end + spec.size)
    scope = RowScope(hull, starts=only, slices=built)
    return after, Task(scope, starts, only, flush=True, trigger=Trigger.COMPLETE)


def _built(
    stream: str, span: int, state: Windows, starts: Sequence[Interval], size: int
) -> dict[Interval, frozenset[str]]:
    """Aggregation windows that have a dataset, and the slices that it is made from."""
    found: dict[Interval, frozenset[str]] = {}
    for reach in merged(Interval(one.start - span, one.end + size + span) for one in starts):
        for window in state.windows(stream, span=reach):
            if window.file is None:
                continue
            kept = state.window(WindowKey(stream, window.key.start, span))
            if kept is not None:
                found[window.key.interval] = frozenset(m.slice for m in kept[1] if m.observed)
    return dict(sorted(found.items(), key=lambda item: item[0].start))


def _closable(
    spec: WindowSpec, span: int, starts: Sequence[Interval], built: frozenset[int]
) -> list[Interval]:
    """Starts of windows whose aggregation windows are all built."""
    if not built:
        return []
    low, high = min(built), max(built) + 1
    there = np.zeros(high - low + 1, np.int64)
    there[[number - low + 1 for number in built]] = 1
    before = np.cumsum(there)  # number of built ones below each number
    found: list[Interval] = []
    for interval in starts:
        first = -(-interval.start // spec.step) * spec.step
        at = np.arange(first, interval.end, spec.step, dtype=np.int64)
        a, b = at // span, (at + spec.size - 1) // span + 1
        inside = (a >= low) & (b <= high)
        at, a, b = at[inside], a[inside], b[inside]
        whole = before[b - low] - before[a - low] == b - a
        found.extend(Interval(start, start + spec.step) for start in at[whole].tolist())
    return merged(found)
