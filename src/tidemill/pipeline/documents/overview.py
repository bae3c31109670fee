"""All streams at a glance, as plain data with stable snake_case keys. Only formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidemill.model.time import format_duration, format_instant
from tidemill.pipeline.documents.shapes import Document, instant
from tidemill.pipeline.overview import OVER

if TYPE_CHECKING:
    from tidemill.pipeline.overview import StreamOverview, StreamProblem, TenantOverview

NOT_KNOWN: Final = ("duplicate", "late", "slices", "windows")  # counted for all tenants of a stream together


def overview(now: int, streams: Sequence[StreamOverview], problems: Sequence[StreamProblem]) -> Document:
    return {
        "now": format_instant(now),
        "streams": [stream(one, now) for one in streams],
        "problems": [problem(one) for one in problems],
    }


def stream(of: StreamOverview, now: int) -> Document:
    lag = of.lag(now)
    return {
        "stream": of.stream,
        "description": of.description,
        "rate": {"per_second": round(of.per_second, 3), "over": format_duration(OVER)},
        "newest_arrival": instant(of.newest_arrival),
        "watermark": instant(of.watermark),
        "lag": None if lag is None else lag_text(lag),
        "lag_us": lag,
        "outcomes": of.outcomes,
        "rejects": of.rejects,
        "slices": of.slices,
        "windows": of.windows,
        "stale_tiles": of.stale_tiles,
        "freshness": {"rollups": instant(of.rollups_through), "datasets": instant(of.datasets_through)},
        "problems": [problem(one) for one in of.problems],
    }


def tenant_stream(of: TenantOverview, now: int) -> Document:
    """A shared stream as one of its tenants may see it."""
    lag = of.lag(now)
    return {
        "stream": of.stream,
        "description": of.description,
        "rate": {"per_second": round(of.per_second, 3), "over": format_duration(OVER)},
        "newest_arrival": instant(of.newest_arrival),
        "watermark": instant(of.watermark),
        "lag": None if lag is None else lag_text(lag),
        "lag_us": lag,
        "outcomes": of.outcomes,
        "freshness": {"rollups": instant(of.rollups_through), "datasets": None},
        "problems": [problem(one) for one in of.problems],
        "not_known": list(NOT_KNOWN),
    }


def lag_text(lag: int) -> str:
    """The lag as text; a watermark may be ahead of the clock."""
    return format_duration(lag) if lag >= 0 else f"-{format_duration(-lag)}"


def problem(of: StreamProblem) -> Document:
    return {"what": of.what, "detail": of.detail, "remedy": of.remedy}
