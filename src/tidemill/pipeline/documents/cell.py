"""What one number of an answer is made from, as plain data with stable snake_case keys. Only formats."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from tidemill.model.levels import BY_NAME
from tidemill.model.time import Interval, format_instant, within_time
from tidemill.pipeline.documents.shapes import Document, Verbatim, completeness, interval, past

if TYPE_CHECKING:
    from tidemill.model.levels import TileState
    from tidemill.query.cell import Cell


def cell(of: Cell, stale: Collection[int]) -> Document:
    """`stale` are the starts of stale 5s tiles."""
    return {
        "stream": of.answer.stream,
        "metric": of.answer.metric,
        "level": of.answer.level,
        "cell": {**_bounds(of.span), "group": of.group},
        "values": of.values,
        "pieces": [{"source": one.source, **_bounds(one.span)} for one in of.pieces],
        "tiles": [_tile(one, stale) for one in of.tiles],
        "slices": [
            {
                "slice": one.entry.id,
                "name": one.entry.slice.name,
                "source": one.entry.slice.source,
                "arrival": format_instant(one.entry.slice.arrival),
                "rows": one.rows,
                "late": one.late,
            }
            for one in of.slices
        ],
        "slices_total": of.slices_total,
        "total": of.total,
        "events": [event(one) for one in of.events],
        "completeness": completeness(of.answer.completeness),
        "as_of": None if of.answer.past is None else past(of.answer.past),
    }


def _bounds(span: Interval) -> Document:
    return interval(within_time(span)) or {}


def event(of: Mapping[str, object]) -> Document:
    watermark, time, payload = of["watermark"], of["event_time"], of["payload"]
    if payload is None:  # its row has expired
        return {**of, "late": None}
    late = watermark is not None and time <= watermark  # type: ignore[operator]
    return {**of, "late": late, "payload": Verbatim(str(payload))}


def _tile(of: TileState, stale: Collection[int]) -> Document:
    end = of.key.start + BY_NAME[of.key.level].tile
    is_stale = any(of.key.start <= start < end for start in stale)
    return {
        "level": of.key.level,
        "start": format_instant(of.key.start),
        "end": format_instant(end),
        "revision": of.revision,
        "hash": of.hash,
        "rows": of.rows,
        "state": "not_built" if of.hash is None else "stale" if is_stale else "current",
    }
