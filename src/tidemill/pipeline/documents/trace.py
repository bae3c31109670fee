"""The trace of one event, as plain data with stable snake_case keys.

Only formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.model.time import format_instant
from tidemill.pipeline.documents.results import result
from tidemill.pipeline.documents.shapes import Document, Verbatim, quarantined
from tidemill.pipeline.documents.windows import key

if TYPE_CHECKING:
    from tidemill.outputs.windows.trace import TracedResult
    from tidemill.pipeline.trace import EventTrace, TracedTile, TracedWindow
    from tidemill.raw.arrivals import Arrival, SearchedSlices


def trace(event_id: str, found: Sequence[EventTrace]) -> Document:
    return {"event_id": event_id, "streams": [_one(of) for of in found]}


def _one(of: EventTrace) -> Document:
    return {
        "stream": of.stream,
        "tenant": of.tenant,
        "arrivals": [_arrival(one) for one in of.arrivals],
        "row": None if of.row is None else row(of.row),
        "tiles": [_tile(one) for one in of.tiles],
        "datasets": [_window(one) for one in of.windows],
        "results": [_result(one) for one in of.results],
        "quarantine": quarantined(of.quarantine),
        "searched": _searched(of.searched),
    }


def _arrival(of: Arrival) -> Document:
    new = of.entry.slice
    return {
        "slice": new.id,
        "name": new.name,
        "line": of.line,
        "arrival": format_instant(new.arrival),
        "source": new.source,
        "status": of.entry.status.value,
        "landings": of.entry.landings,
        "outcome": of.outcome,
        "reason": of.reason,
        "detail": of.detail,
    }


def row(of: Mapping[str, object]) -> Document:
    """A row of raw; its payload is written as it is."""
    watermark, time = of["watermark"], of["event_time"]
    late = watermark is not None and time <= watermark  # type: ignore[operator]
    return {**of, "late": late, "payload": Verbatim(str(of["payload"]))}


def _tile(of: TracedTile) -> Document:
    return {
        "metric": of.metric,
        "kind": of.kind,
        "level": of.level.name,
        "bucket": format_instant(of.bucket),
        "end": format_instant(of.bucket + of.level.width),
        "tile": format_instant(of.tile),
        "group": of.group,
        "revision": of.revision,
        "hash": of.hash,
        "state": of.state,
    }


def _window(of: TracedWindow) -> Document:
    return {
        **key(of.key),
        "state": of.status.value,
        "revisions": [
            {
                "revision": one.revision,
                "current": one.revision == of.current,
                "includes": includes,
                "rows": one.rows,
                "hash": one.hash,
            }
            for one, includes in of.revisions
        ],
    }


def _result(of: TracedResult) -> Document:
    spelled = [result(of.spec, one) for one in of.revisions]
    last = spelled[-1]
    return {
        "window": of.spec.name,
        "kind": of.spec.kind.value,
        **{name: last[name] for name in ("window_id", "start", "end", "group")},
        "fate": of.fate.value,
        "revisions": [
            {
                "revision": one["revision"],
                "current": one is last and not one["withdrawn"],
                "includes": includes,
                "rows": one["rows"],
                "trigger": one["trigger"],
                "withdrawn": one["withdrawn"],
                "values": one["values"],
            }
            for one, includes in zip(spelled, of.includes, strict=True)
        ],
    }


def _searched(of: SearchedSlices) -> Document:
    return {"slices": of.slices, "of": of.of, "bytes": of.bytes, "complete": of.complete}
