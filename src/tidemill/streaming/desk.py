"""Answers about results: what stands of a window, and what stood before.

Reads tables, starts no JVM, changes nothing.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.config.stream import Stream
from tidemill.lake.table import Table
from tidemill.model.errors import NotFoundError
from tidemill.model.streaming import WindowSpec
from tidemill.model.time import Interval
from tidemill.streaming.results import current, results_schema


def spec_named(stream: Stream, window: str) -> WindowSpec:
    for spec in stream.window_specs:
        if spec.name == window:
            return spec
    declared = ", ".join(spec.name for spec in stream.window_specs) or "none"
    raise NotFoundError(
        f"stream {stream.name!r} has no window {window!r}",
        hint=f"windows of the stream: {declared}; `tidemill explain {stream.name}` tells about them",
    )


def read_results(
    warehouse: Path, stream: Stream, window: str, span: Interval, tenant: str | None, *, revisions: bool
) -> pa.Table:
    """Results of windows that overlap `span`, by start."""
    spec = spec_named(stream, window)
    schema = results_schema(spec, stream)
    table = Table.existing(warehouse / "windows" / stream.name / window)
    if table is None:
        return schema.empty_table()
    snapshot = table.snapshot()
    ranges = {"end": (span.start + 1, None), "start": (None, span.end - 1)}
    if tenant is not None:
        ranges["tenant"] = (tenant, tenant)  # type: ignore[assignment]
    parts = snapshot.paths(snapshot.select(None, ranges))
    found = pa.concat_tables(
        [schema.empty_table(), *(pq.read_table(path, partitioning=None).cast(schema) for path in parts)]
    )
    start, end = (found.column(name).cast(pa.int64()) for name in ("start", "end"))
    wanted = pc.and_(pc.greater(end, span.start), pc.less(start, span.end))
    if tenant is not None:
        wanted = pc.and_(wanted, pc.equal(found.column("tenant"), tenant))
    found = found.filter(wanted)
    order = [
        ("start", "ascending"),
        ("tenant", "ascending"),
        ("window_id", "ascending"),
        ("revision", "ascending"),
    ]
    return (found if revisions else current(found)).sort_by(order)
