"""Views of event time: the rows of a stream in order, late rows, explanations.

Only `Text` goes into a cell, so that nothing from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import (
    ID_LETTERS,
    Piece,
    View,
    lag_words,
    line,
    listing,
    many,
    newest_note,
    pairs_table,
    size,
)
from tidemill.model.time import format_duration, format_instant, from_datetime
from tidemill.pipeline.documents.event_time import done_words

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.eventtime import Origin
    from tidemill.model.completeness import Missing
    from tidemill.pipeline.explain import (
        Explained,
        ExplainedDatasets,
        ExplainedRetention,
        ExplainedTime,
        ExplainedWindow,
    )
    from tidemill.pipeline.reports import SourceStatus, StreamStatus
    from tidemill.raw.tail import LateTotals

ORIGINS = {"built_in": "built in", "entry_point": "from", "registered": "registered in this process"}


def _origin_words(of: Origin) -> str:
    return " ".join(filter(None, (ORIGINS[of.kind], of.provided_by)))


def types(origins: Mapping[str, Origin]) -> View:
    table = listing("type", "comes from")
    for name, of in origins.items():
        table.add_row(Text(escaped(name), style="bold"), Text(escaped(_origin_words(of))))
    yield table


def rows(batch: pa.RecordBatch) -> View:
    """Yield a line for each row: event time, tenant, id, and the payload verbatim."""
    yield line(*_row_pieces(batch))


def _row_pieces(batch: pa.RecordBatch) -> Iterator[Piece]:
    columns = (batch.column(name).to_pylist() for name in ("event_time", "tenant", "event_id", "payload"))
    for number, (time, tenant, event_id, payload) in enumerate(zip(*columns, strict=True)):
        yield ("\n" if number else "") + format_instant(from_datetime(time))
        yield (f"  {escaped(tenant or '')}  ", "cyan")
        yield (escaped(event_id or "-"), "bold")
        yield f"  {escaped(payload)}"


def missing(of: Missing) -> View:
    yield line((f"-- {escaped(str(of))}. {escaped(of.remedy)}.", "yellow"))


def watermark(at: int) -> View:
    yield line((f"-- watermark {format_instant(at)}", "dim green"))


def late(stream: str, rows: pa.Table, totals: LateTotals, *, more: bool) -> View:
    if not rows.num_rows:
        yield line(f"no late rows in {escaped(stream)}")
        return
    yield _late(rows)
    yield line((_late_words(totals), "dim"))
    if more:
        yield newest_note(rows.num_rows)


def _late(rows: pa.Table) -> Table:
    table = listing(
        "event time", "late by", "watermark met", "tenant", "event_id", "slice", "line", "done",
        right=("late by", "line"),
    )  # fmt: skip
    for row in rows.to_pylist():
        table.add_row(
            Text(format_instant(from_datetime(row["event_time"]))),
            format_duration(row["lateness"]),
            Text(format_instant(from_datetime(row["watermark"]))),
            Text(escaped(row["tenant"] or "")),
            Text(escaped(row["event_id"] or "")),
            Text(row["slice"][:ID_LETTERS]),
            str(row["line"]),
            Text(escaped(done_words(row["done"]))),
        )
    return table


def _late_words(totals: LateTotals) -> str:
    words = many(totals.rows, "late row")
    if not totals.windows:
        return f"{words}, all kept in raw and rollups; the stream declares no windows"
    parts = (
        f"{name}: {', '.join(f'{count:,} {fate.value}'.replace('_', ' ') for fate, count in fates.items())}"
        for name, fates in totals.windows.items()
    )
    return f"{words}, all kept in raw and rollups; {'; '.join(parts)}"


def time_pairs(now: int, of: StreamStatus) -> Iterator[tuple[str, Text]]:
    """Return the watermark of a stream and how far it is behind now."""
    progress, behind = of.progress, lag_words
    if of.watermark is None:
        yield "watermark", Text("none yet")
    else:
        moved = f"; moved {many(progress.emitted, 'time')}" if progress.emitted else ""
        lag = f"{format_instant(of.watermark)}, {behind(now, of.watermark)} behind now{moved}"
        yield "watermark", Text(lag if of.event_time else f"{lag} (arrivals are its time)")
    if of.max_seen is not None:
        yield "newest event", Text(format_instant(of.max_seen))
    if progress.buffered_rows or progress.released_early:
        early = f"; {many(progress.released_early, 'row')} released early" if progress.released_early else ""
        held = f"{many(progress.buffered_rows, 'row')} ({size(progress.buffered_bytes)}) after the watermark"
        yield "buffer", Text(held + early, style="yellow" if early else "")
    if of.totals["late"]:
        yield (
            "late",
            Text(f"{many(of.totals['late'], 'row')}, at or before the watermark that their slice met"),
        )
    if len(of.clocks) > 1 or of.idle:
        for source in of.sources:
            yield f"  {escaped(source.source)}", Text(_source_words(source, now))


def _source_words(of: SourceStatus, now: int) -> str:
    last = f", heard of {lag_words(now, of.arrival)} ago{', idle' if of.idle else ''}" if of.arrival else ""
    return f"{format_instant(of.watermark)}, newest event {format_instant(of.max_seen)}{last}"


def explained(of: Explained, now: int) -> View:
    about = [("about", Text(escaped(of.description)))] if of.description else []
    yield pairs_table(of.stream, [*about, *_time(of.time), *_status(of, now)])
    for window in of.windows:
        yield pairs_table(f"window {window.name}", list(_window(window)))
    if of.datasets is not None:
        yield pairs_table("datasets", list(_datasets(of.datasets)))
    if of.retention.keep or of.retention.sealed_before is not None:
        yield pairs_table("retention", list(_retention(of.retention)))
    for warning in of.warnings:
        yield line(("warning: ", "yellow"), escaped(warning))


def _time(of: ExplainedTime) -> Iterator[tuple[str, Text]]:
    if of.mode == "processing":
        yield "time", Text("processing: an event happens when its slice arrives")
        yield "watermark plan", Text(f"{of.plan}: moved by ticks of the clock; no row is late")
        return
    words = f"column {of.column}" if of.column is not None else "none of its own"
    if of.origin is not None:
        words += f", read as {of.type} ({_origin_words(of.origin)})"
    yield "time", Text(escaped(f"event: {words}"))
    if of.messages is not None:
        first = f"the first message in {of.messages} whose stream declares one"
        yield "messages", Text(escaped(f"the time of a record is that of {first}"))
    yield "watermark plan", Text(f"{of.plan}: moved by the data, slice by slice; no ticker")
    late = f"{format_duration(of.late_tolerance)} behind the newest event of its source"
    yield "late_tolerance", Text(f"a source's watermark is {late}; a row at or before the stream's is late")
    waits = "none: a source that falls silent holds the watermark back"
    if of.idle_timeout is not None:
        waits = f"a source silent for {format_duration(of.idle_timeout)} is not waited for"
    yield "idle_timeout", Text(waits)
    if of.max_buffer_bytes is not None:
        most = f"{size(of.max_buffer_bytes)} after the watermark; beyond it the oldest are released early"
        yield "max_buffer_bytes", Text(most)
    yield "skew", Text(_skew(of))


def _skew(of: ExplainedTime) -> str:
    past = "any time in the past" if of.skew_past is None else f"{format_duration(of.skew_past)} ago"
    future = (
        "any time ahead"
        if of.skew_future is None
        else f"{format_duration(of.skew_future)} ahead of its arrival"
    )
    return f"from {past} to {future}; beyond it a record is rejected and moves no watermark"


def _status(of: Explained, now: int) -> Iterator[tuple[str, Text]]:
    if of.watermark is not None:
        lag = lag_words(now, of.watermark)
        yield "watermark", Text(f"{format_instant(of.watermark)}, {lag} behind now")
    else:
        yield "watermark", Text("none yet: there is none before the first event")
    for source in of.sources:
        yield f"  {escaped(source.source)}", Text(_source_words(source, now))
    if not of.windows:
        yield "windows", Text("none declared: late rows are kept in raw and rollups")


def _window(of: ExplainedWindow) -> Iterator[tuple[str, Text]]:
    yield "kind", Text(escaped(f"{of.kind.value}: {of.rule}"))
    if of.key:
        yield "key", Text(escaped(f"{', '.join(of.key)}: each value has its own windows"))
    if of.group_by:
        yield (
            "group_by",
            Text(escaped(f"{', '.join(of.group_by)}: each value has its own result in a window")),
        )
    yield (
        "aggregates",
        Text(
            escaped(", ".join(name if name == text else f"{name} = {text}" for name, text in of.aggregates))
        ),
    )
    yield "close", Text(of.close)
    yield "late", Text(of.late)
    yield "results", Text(escaped(of.results))


def _datasets(of: ExplainedDatasets) -> Iterator[tuple[str, Text]]:
    yield "aggregation_span", Text(format_duration(of.span))
    stc = f"{format_duration(of.subject_to_change)} after its end" if of.subject_to_change else "at its end"
    waits = f"once slices cover it, {stc} at the earliest"
    yield "built", Text("at once, and again with every change" if of.allow_incomplete else waits)
    yield "late slices", Text(of.late)
    yield "files", Text(escaped(of.folder))


def _retention(of: ExplainedRetention) -> Iterator[tuple[str, Text]]:
    for what, keep in of.keep.items():
        yield what, Text(f"kept {format_duration(keep)}")
    if of.sealed_before is not None:
        late = "merged into the outputs" if of.policy == "merge" else "rejected as sealed"
        at = format_instant(of.sealed_before)
        yield "sealed before", Text(f"{at}: raw is gone, what was made of it stays; events are {late}")
