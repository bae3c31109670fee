"""How a stream treats time, on one page: which time counts, the watermarks, its windows, when they close and
what is done with late data. It only reports what is declared and recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tidemill import eventtime
from tidemill.config import Stream
from tidemill.model.streaming import Aggregate, Close, Function, LateBy, LatePolicy, WindowKind, WindowSpec
from tidemill.model.time import format_duration
from tidemill.pipeline.reports import SourceStatus, source_statuses
from tidemill.raw.watermark import idle_sources, watermark_of
from tidemill.storage import layout
from tidemill.storage.state.protocol import State

FROM_DATA: Final = "EventtimeWatermark"
FROM_TICKS: Final = "ProcessTimeWatermark"


@dataclass(frozen=True, slots=True)
class ExplainedTime:
    """How an event gets its time, and what moves the watermark."""

    mode: Literal["event", "processing"]
    plan: str  # FROM_DATA or FROM_TICKS
    column: str | None = None  # declared, in use or not
    type: str | None = None
    origin: eventtime.Origin | None = None  # of the type
    late_tolerance: int = 0
    idle_timeout: int | None = None
    max_buffer_bytes: int | None = None  # None: nothing is buffered
    skew_past: int | None = None
    skew_future: int | None = None
    messages: str | None = None  # the column that holds messages, whose streams may give the time


@dataclass(frozen=True, slots=True)
class ExplainedWindow:
    """A streaming window in words."""

    name: str
    kind: WindowKind
    rule: str  # which rows are in one
    close: str
    late: str
    key: Sequence[str]
    group_by: Sequence[str]
    aggregates: Sequence[tuple[str, str]]  # column of the result, and what it is
    results: str  # folder of the table, from the warehouse


@dataclass(frozen=True, slots=True)
class ExplainedDatasets:
    """The aggregation windows that become datasets."""

    span: int
    subject_to_change: int
    allow_incomplete: bool
    late: str
    folder: str


@dataclass(frozen=True, slots=True)
class ExplainedRetention:
    """What expires after how long, and what is done with events whose raw has expired."""

    keep: Mapping[str, int]  # what is not in it is kept forever
    sealed_before: int | None  # raw before this instant has expired
    policy: Literal["merge", "refuse"]


@dataclass(frozen=True, slots=True)
class Explained:
    stream: str
    description: str
    time: ExplainedTime
    watermark: int | None  # as of now
    sources: Sequence[SourceStatus]
    windows: Sequence[ExplainedWindow]
    datasets: ExplainedDatasets | None
    retention: ExplainedRetention
    warnings: Sequence[str]


def explain_stream(stream: Stream, state: State, now: int, sealed: int | None = None) -> Explained:
    """The whole page, with the watermarks at `now`; raw before the instant `sealed` has expired."""
    clocks = state.clocks(stream.name)
    sources = source_statuses(clocks, idle_sources(stream, clocks, now))
    return Explained(
        stream=stream.name,
        description=stream.description,
        time=_time(stream),
        watermark=watermark_of(stream, state, now),
        sources=sources,
        windows=[_window(spec) for spec in stream.window_specs],
        datasets=_datasets(stream),
        retention=_retention(stream, sealed),
        warnings=list(_warnings(stream, sources)),
    )


def _time(stream: Stream) -> ExplainedTime:
    declared = stream.event_time
    by_events = stream.in_event_time
    return ExplainedTime(
        mode="event" if by_events else "processing",
        plan=FROM_DATA if by_events else FROM_TICKS,
        column=declared.column,
        type=declared.type,
        origin=eventtime.origin(declared.type) if declared.type is not None else None,
        late_tolerance=declared.late_tolerance if by_events else 0,
        idle_timeout=declared.idle_timeout if by_events else None,
        max_buffer_bytes=declared.max_buffer_bytes if by_events else None,
        skew_past=stream.skew.past if by_events else None,
        skew_future=stream.skew.future if by_events else None,
        messages=stream.messages.column if stream.messages is not None else None,
    )


def _window(spec: WindowSpec) -> ExplainedWindow:
    return ExplainedWindow(
        name=spec.name,
        kind=spec.kind,
        rule=_rule(spec),
        close=_close(spec),
        late=_late(spec),
        key=spec.key,
        group_by=spec.group_by,
        aggregates=[(one.name, _formula(one)) for one in spec.aggregates],
        results=layout.results_location(spec.stream, spec.name),
    )


def _rule(spec: WindowSpec) -> str:
    match spec.kind:
        case WindowKind.TUMBLING:
            return f"one after another, {format_duration(spec.size)} each"
        case WindowKind.SLIDING:
            size, step = format_duration(spec.size), format_duration(spec.step)
            return f"{size} long, one every {step}: a row is in {_times(spec)}"
        case WindowKind.SESSION:
            return f"rows {'at most' if spec.inclusive else 'less than'} {format_duration(spec.gap)} apart"
        case WindowKind.COUNT:
            return f"{spec.count:,} rows in a row" if spec.count > 1 else "each row by itself"
        case WindowKind.STATE:
            assert spec.open is not None, spec
            assert spec.emit is not None, spec
            next_one = "the next one" if spec.emit_on_open else "a later one"
            return f"from a row with {spec.open.text} to {next_one} with {spec.emit.text}, both included"
        case WindowKind.PER_ROW:
            ahead = f" and {format_duration(spec.lookahead)} after it" if spec.lookahead else ""
            return f"one for each row: {format_duration(spec.size)} before it{ahead}"


def _times(spec: WindowSpec) -> str:
    least, rest = divmod(spec.size, spec.step)
    if rest:
        return f"{least:,} or {least + 1:,} of them"
    return f"{least:,} of them" if least > 1 else "one of them"


def _close(spec: WindowSpec) -> str:
    if spec.close is Close.COMPLETE:
        return "complete: when every aggregation window that it overlaps is built"
    match spec.kind:
        case WindowKind.COUNT:
            return "watermark: when its last row is at or before it"
        case WindowKind.STATE:
            return "watermark: when the row that ends it is at or before it"
        case WindowKind.PER_ROW:
            ahead = format_duration(spec.lookahead)
            past = f"come {ahead} past its row" if spec.lookahead else "reached its row"
            return f"watermark: when it has {past}"
        case WindowKind.SESSION:
            gap = format_duration(spec.gap)
            return f"watermark: when it has come {gap} past the last row"
        case _:
            return "watermark: when it has reached the end"


def _late(spec: WindowSpec) -> str:
    if spec.close is Close.COMPLETE:
        return (
            "as late_slices of the stream says: rows of the slices that the aggregation windows are built of"
        )
    by_window = spec.late_by is LateBy.WINDOW
    which = "a row whose window had ended by the watermark it met" if by_window else "a late row"
    match spec.late:
        case LatePolicy.NEXT_WINDOW:
            return f"next_window: {which} counts at the watermark it met"
        case LatePolicy.REEMIT:
            most = format_duration(spec.max_lateness)
            if by_window:
                return f"reemit: {which} counts there until {most} past its end, as a new revision"
            return f"reemit: up to {most} behind the watermark it counts where it belongs, as a new revision"
        case LatePolicy.DISCARD:
            return f"discard: {which} is in no window (raw and rollups have it)"


def _formula(one: Aggregate) -> str:
    name = f"p{one.percent}" if one.function is Function.PERCENTILE else one.function.value
    return name if one.column is None else f"{name}({one.column})"


def _datasets(stream: Stream) -> ExplainedDatasets | None:
    if stream.aggregation_span is None:
        return None
    late = stream.late_slices
    text = "discard: slices after the cutoff of a window are ignored for it"
    if late.max_lateness is not None:
        text = f"reemit: slices count for {format_duration(late.max_lateness)} after the cutoff"
    return ExplainedDatasets(
        span=stream.aggregation_span,
        subject_to_change=stream.subject_to_change_window,
        allow_incomplete=stream.allow_incomplete_windows,
        late=text,
        folder=layout.datasets(stream.name),
    )


def _retention(stream: Stream, sealed: int | None) -> ExplainedRetention:
    settings = stream.retention
    kept = {
        "raw": settings.raw,
        "index": settings.index,
        "quarantine": settings.quarantine,
        "datasets": settings.datasets,
    }
    kept |= {f"rollups:{level}": keep for level, keep in settings.rollups.items()}
    declared = {what: keep for what, keep in kept.items() if keep is not None}
    return ExplainedRetention(declared, sealed, settings.sealed)


def _warnings(stream: Stream, sources: Sequence[SourceStatus]) -> Iterator[str]:
    declared = stream.event_time
    if not stream.in_event_time and declared.column is not None:
        why = "enabled is false" if not declared.enabled else "mode is processing"
        yield f"event_time names the column {declared.column}, but {why}: it is not read, arrivals are used"
    by_watermark = [spec for spec in stream.window_specs if spec.close is Close.WATERMARK]
    if not stream.in_event_time:
        idle = [spec.name for spec in by_watermark if spec.late is not LatePolicy.DISCARD]
        if idle:
            yield f"no row is late by its arrival: the late policy of {', '.join(idle)} never acts"
    elif declared.late_tolerance == 0 and by_watermark:
        yield "late_tolerance is 0: a row is late as soon as the slice before it has one as new as it"
    if stream.in_event_time and declared.idle_timeout is None and len(sources) > 1:
        slowest = min(sources, key=lambda source: source.watermark)
        yield (
            f"there is no idle_timeout: the stream waits for every source, now for {slowest.source};"
            " one that falls silent holds all windows open"
        )
