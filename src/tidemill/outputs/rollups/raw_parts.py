"""What the statistics of raw show about 5s tiles: which parts may hold their events, and about how many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.formats.arrays import Ints
from tidemill.model.levels import BASE, BaseTile
from tidemill.outputs.rollups.spec import RollupSpec
from tidemill.storage.tables.snapshot import Snapshot


def expected_rows(spec: RollupSpec, raw: Snapshot, tiles: Sequence[BaseTile]) -> list[int]:
    """About how many rows the 5s tiles will have, in order: the events in raw, if spread evenly over its
    parts, for each metric; or the rows they have now."""
    order = np.argsort([tile.state.key.start for tile in tiles], kind="stable")
    starts = np.array([tiles[i].state.key.start for i in order], np.int64)
    change = np.zeros(starts.size + 1)
    for part in raw.parts:
        low, high = part.mins.get("event_time"), part.maxs.get("event_time")
        if part.rows and isinstance(low, int) and isinstance(high, int):
            first, last = BASE.tile_of(low), BASE.tile_of(high)
            density = part.rows / ((last - first) // BASE.tile + 1)
            at, end = np.searchsorted(starts, [first, last + 1])
            change[at] += density
            change[end] -= density
    events = np.empty(starts.size)
    events[order] = np.cumsum(change[:-1])
    metrics = max(1, len(spec.metrics))
    return [max(1, tile.state.rows, int(count * metrics)) for tile, count in zip(tiles, events, strict=True)]


def raw_parts(raw: Snapshot, starts: Sequence[int]) -> list[str]:
    """Paths of the parts of raw that may hold events of the 5s tiles that begin at `starts`."""
    if not starts:
        return []
    begins: Ints = np.array(sorted(starts), np.int64)
    span = (int(begins[0]), int(begins[-1]) + BASE.tile - 1)
    found = []
    for part in raw.select(None, {"event_time": span}):
        low, high = part.mins.get("event_time"), part.maxs.get("event_time")
        if isinstance(low, int) and isinstance(high, int):
            first, last = np.searchsorted(begins, [low - BASE.tile + 1, high + 1])
            if first == last:
                continue
        found.append(part)
    return raw.paths(found)
