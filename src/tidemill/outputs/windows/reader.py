"""Answers about results: which windows a stream has, the current results of one, and earlier revisions.

Reads tables, starts no JVM, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.config.stream import Stream
from tidemill.ingest.expiry_log import WINDOWS, ExpiryLog
from tidemill.model.completeness import NOTHING_HELPS, ROUND, Missing, Pending, damaged
from tidemill.model.errors import NotFoundError, StorageError
from tidemill.model.streaming import Close, WindowSpec
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval
from tidemill.outputs.windows.checkpoints import changes_rows, fingerprint_of, read_checkpoint
from tidemill.outputs.windows.results import ResultsFooter, current, group_columns, results_schema
from tidemill.outputs.windows.unfit import missing_values
from tidemill.outputs.windows.window_ids import newest
from tidemill.storage import layout
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.parts import read_footer, read_part
from tidemill.storage.tables.snapshot import Part, Snapshot
from tidemill.storage.tables.table import Table, expect_version

# Imports inside functions keep start-up short: what closes windows by datasets loads Numba.

EMPTY: Final[Mapping[str, str]] = {}
EVER: Final = Interval(MIN_INSTANT, MAX_INSTANT)
FIRST_LOOK: Final = 16  # parts that are read first for the newest results
_BEFORE_ALL: Final = -(2**63)  # windows of the first rows of all time begin before the year 1


@dataclass(frozen=True, slots=True)
class ResultStatus:
    """How far the results of one declared window have come."""

    spec: WindowSpec
    results: int  # current results
    newest_end: int | None
    # Windows are published up to here; None before the first refresh, and for kinds without a watermark.
    watermark: int | None
    current: bool  # False: they are of another declaration; the next round makes them again
    table: Path


def spec_named(stream: Stream, window: str) -> WindowSpec:
    for spec in stream.window_specs:
        if spec.name == window:
            return spec
    declared = ", ".join(spec.name for spec in stream.window_specs) or "none"
    raise NotFoundError(
        f"stream {stream.name!r} has no window {window!r}",
        hint=f"windows of the stream: {declared}; `tidemill explain {stream.name}` lists them",
    )


def result_statuses(
    warehouse: Path, stream: Stream, checkpoint_texts: Mapping[str, str]
) -> list[ResultStatus]:
    """The status of all declared windows of the stream; `checkpoint_texts` are those of the state."""
    return [_status(warehouse, stream, spec, checkpoint_texts.get(spec.name)) for spec in stream.window_specs]


def _status(warehouse: Path, stream: Stream, spec: WindowSpec, fingerprints: str | None) -> ResultStatus:
    root = _root(warehouse, spec)
    checkpoint = read_checkpoint(fingerprints, fingerprint_of(spec, stream))
    snapshot = _snapshot(root)
    is_current = snapshot is None or _is_current(spec, stream, snapshot)
    if snapshot is None or not is_current or not snapshot.parts:
        return ResultStatus(spec, 0, None, checkpoint.watermark if checkpoint else None, is_current, root)
    names = ["window_id", "end", *group_columns(spec), "revision", "withdrawn"]
    schema = pa.schema([results_schema(spec, stream).field(name) for name in names])
    found = newest(_read(snapshot.paths(), schema).combine_chunks(), group_columns(spec))
    ends = found.filter(pc.invert(found.column("withdrawn"))).column("end").cast(pa.int64())
    watermark = checkpoint.watermark if checkpoint is not None else None
    return ResultStatus(spec, len(ends), pc.max(ends).as_py(), watermark, True, root)


def read_results(
    warehouse: Path,
    stream: Stream,
    window: str,
    span: Interval,
    tenant: str | None,
    *,
    revisions: bool,
    limit: int | None = None,
    checkpoint_texts: Mapping[str, str] = EMPTY,
) -> pa.Table:
    """Results of windows that overlap `span`, by start; with a `limit` only so many, those that start last.
    `checkpoint_texts` are those of the state: DamageError if it records results that are missing."""
    spec = spec_named(stream, window)
    snapshot = results_snapshot(warehouse, stream, spec, checkpoint_texts)
    if snapshot is None:
        return results_schema(spec, stream).empty_table()
    request = _Request(spec, stream, span, tenant, revisions)
    parts = snapshot.select(None, request.ranges())
    if limit is None:
        return request.read(snapshot.paths(parts), _BEFORE_ALL)
    # All rows of a window have its start, so results from some start on need only the parts that reach it.
    parts.sort(key=lambda part: _last_start(part), reverse=True)
    step = FIRST_LOOK
    while True:
        since = _last_start(parts[step]) + 1 if step < len(parts) else _BEFORE_ALL
        found = request.read(snapshot.paths(parts[:step]), since)
        if found.num_rows >= limit or step >= len(parts):
            return found.slice(max(0, found.num_rows - limit))
        step *= 4


def lost_results(log: ExpiryLog, spec: WindowSpec, span: Interval = EVER) -> list[Missing]:
    """What results of windows in `span` were lost with damaged files, and cannot be computed again."""
    losses = log.losses(spec.stream).get(f"{WINDOWS}{spec.name}", ())
    what = f"results of {spec.name}"
    return [damaged(one.span, what, NOTHING_HELPS) for one in losses if one.span.overlaps(span)]


def missing_results(
    log: ExpiryLog,
    stream: Stream,
    spec: WindowSpec,
    checkpoint_texts: Mapping[str, str],
    span: Interval = EVER,
    tenant: str | None = None,
) -> list[Missing]:
    """What results of windows in `span` lack: what was lost, and values that do not fit their type, of one
    tenant or (None) of all. `checkpoint_texts` are those of the state."""
    known = read_checkpoint(checkpoint_texts.get(spec.name), fingerprint_of(spec, stream))
    values = known.unfit if known is not None else ()
    return [*lost_results(log, spec, span), *missing_values(stream, values, span, tenant)]


def results_behind(state: State, stream: Stream, spec: WindowSpec, raw: Snapshot | None) -> list[Pending]:
    """What the results of a window do not include yet: rows that came to raw or left it since they were
    computed. One entry, or none."""
    if not _is_behind(state, stream, spec, raw):
        return []
    return [
        Pending(
            what="results",
            count=None,
            detail=f"results of {spec.name} wait to be computed with accepted or retracted slices",
            remedy=f"The next round computes them: `{ROUND}`",
        )
    ]


def _is_behind(state: State, stream: Stream, spec: WindowSpec, raw: Snapshot | None) -> bool:
    known = read_checkpoint(state.checkpoints(stream.name).get(spec.name), fingerprint_of(spec, stream))
    if spec.close is Close.COMPLETE:
        from tidemill.outputs.windows.completeness import has_news

        return has_news(state, stream.name, known.heard if known is not None else 0)
    if raw is None:
        return False
    if known is None:
        return raw.rows > 0
    if known.raw == raw.version:
        return False
    table = Table.existing(raw.root)
    try:
        return table is None or changes_rows(table.commits(after=known.raw))
    except StorageError:  # the log was trimmed, or is damaged: the next round computes everything again
        return True


def results_snapshot(
    warehouse: Path, stream: Stream, spec: WindowSpec, checkpoint_texts: Mapping[str, str]
) -> Snapshot | None:
    """The parts of the results of a window; None before there are any. NotFoundError if they belong to
    another declaration, DamageError if the state records results that are missing."""
    known = read_checkpoint(checkpoint_texts.get(spec.name), fingerprint_of(spec, stream))
    snapshot = _snapshot(_root(warehouse, spec), known.version if known is not None else 0)
    if snapshot is not None and not _is_current(spec, stream, snapshot):
        raise NotFoundError(
            f"the results of window {spec.name!r} of stream {stream.name!r} were made by an earlier "
            "declaration",
            hint="`tidemill run --once` computes them again, by the current declaration",
        )
    return snapshot


@dataclass(frozen=True, slots=True)
class _Request:
    spec: WindowSpec
    stream: Stream
    span: Interval
    tenant: str | None
    revisions: bool

    def ranges(self) -> dict[str, tuple[int | str | None, int | str | None]]:
        """Bounds that exclude parts. Unless windows lie on a grid, the end of a window can change from one
        revision to the next, and then does not show which revision is the newest."""
        ranges: dict[str, tuple[int | str | None, int | str | None]] = {"start": (None, self.span.end - 1)}
        if self.spec.kind.by_time:
            ranges["end"] = (self.span.start + 1, None)
        if self.tenant is not None:
            ranges["tenant"] = (self.tenant, self.tenant)
        return ranges

    def read(self, paths: Sequence[str], since: int) -> pa.Table:
        """The rows of these parts for windows that start at or after `since`."""
        found = _read(paths, results_schema(self.spec, self.stream))
        start = found.column("start").cast(pa.int64())
        inside = pc.and_(pc.less(start, self.span.end), pc.greater_equal(start, since))
        if self.tenant is not None:
            inside = pc.and_(inside, pc.equal(found.column("tenant"), self.tenant))
        found = found.filter(inside).combine_chunks()
        if self.revisions:
            order = ("start", "tenant", "window_id", *group_columns(self.spec), "revision")
            found = found.sort_by([(name, "ascending") for name in order])
        else:
            found = current(found)
        return _within_years(found.filter(pc.greater(found.column("end").cast(pa.int64()), self.span.start)))


def _within_years(found: pa.Table) -> pa.Table:
    """Windows of the first and last rows of all time may begin before the year 1 and end after 9999, which
    few programs can read: then the first or last instant of these years."""
    for name in ("start", "end"):
        column = found.column(name)
        early = pc.min_element_wise(column.cast(pa.int64()), MAX_INSTANT - 1)
        shown = pc.max_element_wise(early, MIN_INSTANT)
        found = found.set_column(found.schema.get_field_index(name), name, shown.cast(column.type))
    return found


def _root(warehouse: Path, spec: WindowSpec) -> Path:
    return layout.results(warehouse, spec.stream, spec.name)


def _snapshot(root: Path, committed: int = 0) -> Snapshot | None:
    table = Table.existing(root)
    expect_version(root, table, committed)
    return None if table is None else table.snapshot()


def _is_current(spec: WindowSpec, stream: Stream, snapshot: Snapshot) -> bool:
    """Whether they belong to this declaration; results of another one are removed together, never mixed."""
    fingerprints = (ResultsFooter.from_footer(read_footer(path)).fingerprint for path in snapshot.paths()[:1])
    return all(one == fingerprint_of(spec, stream) for one in fingerprints)


def _read(paths: Sequence[str], schema: pa.Schema) -> pa.Table:
    read = (read_part(path, schema.names) for path in paths)
    return pa.concat_tables(
        [schema.empty_table(), *(table.select(schema.names).cast(schema) for table in read)]
    )


def _last_start(part: Part) -> int:
    last = part.maxs.get("start")
    return last if isinstance(last, int) else MAX_INSTANT
