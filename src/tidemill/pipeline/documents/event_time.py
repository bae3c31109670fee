"""Rows, watermarks, late rows and explanations as plain data with stable snake_case keys.

Only formats: what is late, and what was done with it, was decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.model.time import format_duration, format_instant
from tidemill.pipeline.documents.shapes import Document, instant, source

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.eventtime import Origin
    from tidemill.pipeline.explain import Explained, ExplainedDatasets, ExplainedTime, ExplainedWindow
    from tidemill.raw.tail import LateTotals


def types(origins: Mapping[str, Origin]) -> Document:
    return {
        "event_time_types": [
            {"name": name, "origin": of.kind, "provided_by": of.provided_by} for name, of in origins.items()
        ]
    }


def rows(batch: pa.RecordBatch) -> Iterator[Document]:
    yield from batch.to_pylist()


def watermark(at: int) -> Document:
    return {"watermark": format_instant(at)}


def late(stream: str, found: pa.Table, totals: LateTotals, *, more: bool) -> Document:
    listed = [{**row, "lateness": format_duration(row["lateness"])} for row in found.to_pylist()]
    return {
        "stream": stream,
        "rows": listed,
        "more": more,
        "total": totals.rows,
        "windows": {
            name: {fate.value: count for fate, count in fates.items()}
            for name, fates in totals.windows.items()
        },
    }


def explained(of: Explained, now: int) -> Document:
    return {
        "stream": of.stream,
        "description": of.description,
        "time": _time(of.time),
        "watermark": instant(of.watermark),
        "sources": [source(one, now) for one in of.sources],
        "windows": [_window(one) for one in of.windows],
        "datasets": None if of.datasets is None else _datasets(of.datasets),
        "retention": {
            "keep": {what: format_duration(keep) for what, keep in of.retention.keep.items()},
            "sealed_before": instant(of.retention.sealed_before),
            "sealed": of.retention.policy,
        },
        "warnings": list(of.warnings),
    }


def _duration(us: int | None) -> str | None:
    return None if us is None else format_duration(us)


def _time(of: ExplainedTime) -> Document:
    return {
        "mode": of.mode,
        "plan": of.plan,
        "column": of.column,
        "type": of.type,
        "origin": None if of.origin is None else of.origin.kind,
        "provided_by": None if of.origin is None else of.origin.provided_by,
        "messages": of.messages,
        "late_tolerance": format_duration(of.late_tolerance),
        "idle_timeout": _duration(of.idle_timeout),
        "max_buffer_bytes": of.max_buffer_bytes,
        "skew": {"past": _duration(of.skew_past), "future": _duration(of.skew_future)},
    }


def _window(of: ExplainedWindow) -> Document:
    return {
        "window": of.name,
        "kind": of.kind.value,
        "rule": of.rule,
        "key": list(of.key),
        "group_by": list(of.group_by),
        "aggregates": dict(of.aggregates),
        "close": of.close,
        "late": of.late,
        "results": of.results,
    }


def _datasets(of: ExplainedDatasets) -> Document:
    return {
        "aggregation_span": format_duration(of.span),
        "subject_to_change_window": format_duration(of.subject_to_change),
        "allow_incomplete_windows": of.allow_incomplete,
        "late": of.late,
        "folder": of.folder,
    }


def done_words(done: Sequence[Mapping[str, object]]) -> str:
    """What was done with one late row; without windows, that it is in raw and rollups."""
    return ", ".join(f"{one['window']} {str(one['fate']).replace('_', ' ')}" for one in done) or (
        "kept in raw and rollups"
    )
