"""Results of streaming windows as plain data with stable snake_case keys.

Only formats: what is current, and why, was decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.model.names import column_name
from tidemill.pipeline.documents.shapes import Document, instant, missing_span, pending, unending

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.model.completeness import Missing, Pending
    from tidemill.model.streaming import WindowSpec
    from tidemill.outputs.windows.reader import ResultStatus
    from tidemill.outputs.windows.refresh import WindowRefresh

Flushed = Mapping[str, Sequence["WindowRefresh"]]  # by stream

BEFORE_VALUES = (
    "revision", "rows", "late_rows", "first_time", "last_time", "bytes", "trigger", "watermark", "hash",
    "slices", "supersedes", "superseded_by", "withdrawn", "batch",
)  # fmt: skip


def results(
    spec: WindowSpec, rows: pa.Table, missing: Sequence[Missing], waiting: Sequence[Pending], *, more: bool
) -> Document:
    return {
        "stream": spec.stream,
        "window": spec.name,
        "results": [result(spec, row) for row in rows.to_pylist()],
        "missing": [missing_span(one) for one in missing],
        "pending": [pending(one) for one in waiting],
        "more": more,
    }


def result(spec: WindowSpec, row: Mapping[str, object]) -> Document:
    return {
        **{name: row[name] for name in ("window_id", "start", "end", "tenant")},
        "group": {name: _value(row[column]) for name, column in group_columns(spec).items()},
        "values": {one.name: _value(row[one.name]) for one in spec.aggregates},
        **{name: row[name] for name in BEFORE_VALUES},
        "supersedes": row["supersedes"] or [],
    }


def group_columns(spec: WindowSpec) -> Mapping[str, str]:
    """What distinguishes results of one instant, and the column it is in."""
    return {name: column_name(name) for name in spec.grouped_by}


def _value(value: object) -> object:
    return unending(value) if isinstance(value, float) and not math.isfinite(value) else value


def statuses(stream: str, windows: Sequence[ResultStatus], warehouse: Path) -> Document:
    return {
        "stream": stream,
        "windows": [
            {
                "window": one.spec.name,
                "kind": one.spec.kind.value,
                "results": one.results,
                "newest_end": instant(one.newest_end),
                "watermark": instant(one.watermark),
                "current": one.current,
                "table": one.table.relative_to(warehouse).as_posix(),
            }
            for one in windows
        ],
    }


def refreshed(done: Sequence[WindowRefresh]) -> Document:
    """What was published for each window."""
    return {one.window: {"results": one.results, "withdrawn": one.withdrawn} for one in done if not one.idle}


def flushed(done: Flushed) -> Document:
    return {"flushed": [{"stream": stream, "results": refreshed(of)} for stream, of in done.items()]}
