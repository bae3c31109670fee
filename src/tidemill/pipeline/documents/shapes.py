"""Results as plain data with stable snake_case keys, and their exact JSON.

Instants become RFC 3339, durations `1h30m`, decimals exact JSON numbers; no float is ever made here.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tidemill.model.errors import QueryError, TidemillError
from tidemill.model.levels import NAMES
from tidemill.model.slices import Counts, SliceEntry, SliceStatus
from tidemill.model.time import Interval, format_duration, format_instant, from_datetime, within_time
from tidemill.model.windows import Phase

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.ingest.landing import Landed, LandedMany
    from tidemill.model.completeness import Completeness, Missing, Pending
    from tidemill.pipeline.move import Moved, MovePlan
    from tidemill.pipeline.recover import Recovered
    from tidemill.pipeline.repair import Repaired, RepairPlan, RepairStep
    from tidemill.pipeline.reports import SourceStatus, StreamStatus
    from tidemill.pipeline.verify import Audit
    from tidemill.query import Answer, Explanation
    from tidemill.query.as_of import Change, Past
    from tidemill.query.cover import CoverPiece
    from tidemill.storage.state.faults import Fault

Document = Mapping[str, object]  # what a command prints or a route returns, and every object in it


@dataclass(frozen=True, slots=True)
class Verbatim:
    """JSON that is written as it is."""

    text: str


def dumps(value: object) -> str:
    """Compact JSON. The standard encoder would turn decimals into floats or refuse them."""
    written = _WRITERS.get(type(value))
    return _written(value) if written is None else written(value)


def _written(value: object) -> str:
    """JSON of a value whose type is derived from one of those that are looked up."""
    for kind, written in _WRITERS.items():
        if isinstance(value, kind):
            return written(value)
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, bytes):
        return json.dumps(value.decode("utf-8", "backslashreplace"))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _array(value)
    return json.dumps(value)


def _object(value: Mapping[object, object]) -> str:
    return "{" + ",".join([f"{_key(str(key))}:{dumps(item)}" for key, item in value.items()]) + "}"


def _array(value: Sequence[object]) -> str:
    return "[" + ",".join([dumps(item) for item in value]) + "]"


def _float(value: float) -> str:
    return float.__repr__(value) if math.isfinite(value) else json.dumps(unending(value))


@lru_cache(maxsize=1024)  # the rows of an answer share their names
def _key(name: str) -> str:
    return json.dumps(name)


@lru_cache(maxsize=1024)  # and many of them their bucket
def _instant(value: datetime) -> str:
    return f'"{format_instant(from_datetime(value))}"'


# By the exact type: an answer can have many values, and asking each what it is an instance of takes longer.
_WRITERS: Final[Mapping[type, Callable[..., str]]] = {
    dict: _object,
    list: _array,
    tuple: _array,
    str: json.JSONEncoder().encode,
    bool: {True: "true", False: "false"}.__getitem__,
    int: int.__repr__,
    float: _float,
    type(None): lambda _none: "null",
    Decimal: lambda number: format(number, "f"),
    datetime: _instant,
    Verbatim: lambda one: one.text,
}


def unending(value: float) -> str:
    """A string for an infinity or NaN, which JSON lacks."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def instant(us: int | None) -> str | None:
    return None if us is None else format_instant(us)


def interval(span: Interval | None) -> Document | None:
    return None if span is None else {"start": format_instant(span.start), "end": format_instant(span.end)}


def took(seconds: float) -> str:
    """A measured time, to the millisecond."""
    return format_duration(round(seconds * 1_000) * 1_000)


def error(problem: TidemillError) -> Document:
    position = {"position": problem.position} if isinstance(problem, QueryError) else {}
    return {**problem.as_dict(), **position}


def counts(of: Counts) -> Document:
    return {field.name: getattr(of, field.name) for field in fields(of)}


def entry(of: SliceEntry) -> Document:
    new = of.slice
    return {
        "id": new.id,
        "seq": of.seq,
        "stream": new.stream,
        "status": of.status.value,
        "name": new.name,
        "source": new.source,
        "format": new.format.value,
        "codec": new.codec.value,
        "path": new.path,
        "bytes": new.size,
        "arrival": format_instant(new.arrival),
        "landings": of.landings,
        "declared": interval(new.declared),
        "observed": interval(of.observed),
        "watermark": instant(of.watermark),
        "batch": of.batch,
        "error": of.error,
        "attempt": of.attempt,
        "failures": of.failures,
        "retried": of.retried,
        "retry_at": instant(of.tried_next),
        "retracted_at": instant(of.retracted_at),
        "retract_reason": of.retract_reason,
        "metadata": None if new.metadata is None else _json(new.metadata),
        "counts": counts(of.counts),
    }


def _json(text: str) -> object:
    """What a sender attached; if it is not JSON, as a string."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def landed(one: Landed) -> Document:
    return {"new": one.new, **entry(one.entry)}


def landed_many(stream: str | None, done: LandedMany) -> Document:
    named = {} if stream is None else {"stream": stream}
    return {
        **named,
        "landed": [landed(one) for one in done.landed],
        "refused": [{"name": one.name, "error": error(one.error)} for one in done.refused],
    }


def replayed(stream: str, slices: Sequence[Landed]) -> Document:
    return {"stream": stream, "replayed": [landed(one) for one in slices]}


def ledger(entries: Sequence[SliceEntry], *, more: bool) -> Document:
    return {"slices": [entry(one) for one in entries], "more": more}


def total(parts: Sequence[Counts]) -> Counts:
    rejects: dict[str, int] = {}
    for part in parts:
        for reason, count in part.rejects.items():
            rejects[reason] = rejects.get(reason, 0) + count
    return Counts(
        records=sum(part.records for part in parts),
        accepted=sum(part.accepted for part in parts),
        duplicate=sum(part.duplicate for part in parts),
        conflict=sum(part.conflict for part in parts),
        rejected=sum(part.rejected for part in parts),
        late=sum(part.late for part in parts),
        rejects=dict(sorted(rejects.items())),
    )


def status(now: int, streams: Sequence[StreamStatus], faults: Sequence[Fault]) -> Document:
    """The status of the streams; `faults` are those of work that concerns all of them."""
    return {
        "now": format_instant(now),
        "faults": [fault(one) for one in faults],
        "streams": [_status(now, stream) for stream in streams],
    }


def fault(of: Fault) -> Document:
    """Why an output of a stream cannot be worked on; `stream` is null if it concerns all streams."""
    return {
        "stream": of.stream or None,
        "output": of.output,
        "code": of.code,
        "file": of.file or None,
        "message": of.message,
        "hint": of.hint,
        "since": format_instant(of.since),
        "attempts": of.attempts,
        "next_try": format_instant(of.next_try),
    }


def source(of: SourceStatus, now: int) -> Document:
    """How far one source has come in event time."""
    return {
        "source": of.source,
        "watermark": format_instant(of.watermark),
        "lag": format_duration(now - of.watermark),
        "max_seen": format_instant(of.max_seen),
        "arrival": format_instant(of.arrival),
        "idle": of.idle,
    }


def _status(now: int, of: StreamStatus) -> Document:
    return {
        "stream": of.stream,
        "faults": [fault(one) for one in of.faults],
        "slices": {name.value: of.totals[f"{name.value}_slices"] for name in SliceStatus},
        "landings": of.totals["landings"],
        "bytes": of.totals["bytes"],
        "counts": counts(counts_of(of.totals)),
        "watermark": instant(of.watermark),
        "lag": None if of.watermark is None else format_duration(now - of.watermark),
        "time": "event" if of.event_time else "processing",
        "max_seen": instant(of.max_seen),
        "buffer": {"rows": of.progress.buffered_rows, "bytes": of.progress.buffered_bytes},
        "late_dropped": of.late_dropped,
        "watermarks_emitted": of.progress.emitted,
        "skew_rejected": of.totals.get("reject_skew", 0) + of.totals.get("reject_too_old", 0),
        "released_early": of.progress.released_early,
        "sources": [source(one, now) for one in of.sources],
        "retry_at": instant(of.retry_at),
        "manifests": dict(of.manifests),
        "raw": {
            "rows": of.raw_rows,
            "parts": of.raw_parts,
            "packed_parts": of.packed_parts,
            "fresh_parts": of.fresh_parts,
            "unpacked_slices": of.unpacked_slices,
            "stale_parts": of.stale_parts,
            "stale_rows": of.stale_rows,
        },
        "quarantine": {"rows": of.quarantine_rows},
        "index": None
        if of.index_parts is None
        else {"parts": of.index_parts, "unindexed_parts": of.unindexed_parts},
        "chains": None if of.chains is None else asdict(of.chains),
        "sealed_before": instant(of.sealed),
        "tiles": {level: of.tiles[level] for level in NAMES if level in of.tiles},
        "stale_tiles": of.stale_tiles,
        "pending": [pending(one) for one in of.pending],
        "windows": {phase.value: of.windows.get(phase.value, 0) for phase in Phase},
        "queue": of.windows.get(Phase.QUEUED.value, 0),
        "outdated_windows": of.outdated_windows,
    }


def counts_of(totals: Mapping[str, int]) -> Counts:
    """A stream's totals as counts."""
    start = "reject_"
    return Counts(
        records=totals["records"],
        accepted=totals["accepted"],
        duplicate=totals["duplicate"],
        conflict=totals["conflict"],
        rejected=totals["rejected"],
        late=totals["late"],
        rejects={
            name.removeprefix(start): count
            for name, count in sorted(totals.items())
            if name.startswith(start) and count
        },
    )


def quarantine(stream: str, rows: pa.Table, *, more: bool) -> Document:
    return {"stream": stream, "records": quarantined(rows), "more": more}


def quarantined(rows: pa.Table) -> list[Document]:
    """Payloads as text; those that are not UTF-8 as base64."""
    return [{**row, **_payload(row["payload"])} for row in rows.to_pylist()]


def _payload(content: bytes) -> Document:
    try:
        return {"payload": content.decode(), "payload_base64": None}
    except UnicodeDecodeError:
        return {"payload": None, "payload_base64": base64.b64encode(content).decode()}


def answer(of: Answer) -> Document:
    return {
        "columns": of.table.column_names,
        "rows": of.table.to_pylist(),
        "stream": of.stream,
        "metric": of.metric,
        "level": of.level,
        "interval": of.step or (None if of.interval is None else format_duration(of.interval)),
        "span": interval(of.span),
        "rows_read": of.rows_read,
        "files_read": of.files_read,
        "version": of.version,
        "completeness": completeness(of.completeness),
        "engine": of.engine,
        "as_of": None if of.past is None else past(of.past),
    }


def past(of: Past) -> Document:
    """The instant that an answer is as of; what is missing is also in its completeness."""
    return {
        "at": format_instant(of.at),
        "changed": of.changed,
        "slices_after": of.slices_after,
        "reaches_back_to": instant(of.reaches_back_to),
        "missing": [one.detail for one in of.missing],
    }


def change(of: Change) -> Document:
    new = of.entry.slice
    return {
        "at": format_instant(of.at),
        "kind": "retracted" if of.retracted else "accepted",
        "slice": new.id,
        "name": new.name,
        "source": new.source,
        "arrival": format_instant(new.arrival),
        "rows": of.entry.counts.accepted,
        "late": of.entry.counts.late,
        "observed": interval(of.entry.observed),
    }


def completeness(of: Completeness) -> Document:
    return {
        "complete": of.complete,
        "complete_through": instant(of.complete_through),
        "as_of": instant(of.as_of),
        "watermark": instant(of.watermark),
        "data": interval(of.data),
        "missing": [missing_span(one) for one in of.missing],
        "pending": [pending(one) for one in of.pending],
    }


def missing_span(of: Missing) -> Document:
    return {"span": interval(within_time(of.span)), "why": of.why, "detail": of.detail, "remedy": of.remedy}


def pending(of: Pending) -> Document:
    return {
        "what": of.what,
        "count": of.count,
        "records": of.records,
        "bytes": of.bytes,
        "detail": of.detail,
        "remedy": of.remedy,
    }


def _piece(of: CoverPiece) -> Document:
    return {"source": of.source, "span": interval(within_time(of.span))}


def explanation(of: Explanation) -> Document:
    return {
        "stream": of.stream,
        "metric": of.metric,
        "tenant": of.tenant,
        "level": of.level,
        "interval": of.step or (None if of.interval is None else format_duration(of.interval)),
        "span": interval(of.span),
        "reads": [_piece(piece) for piece in of.pieces],
        "opening": [_piece(piece) for piece in of.opening],
        "cells": of.cells,
        "edges": of.edges,
        "fill": of.fill,
        "format": of.format,
        "files": of.files,
        "rows": of.rows,
        "version": of.version,
        "completeness": completeness(of.completeness),
        "engine": of.engine,
        "sql": of.sql,
        "parameters": of.parameters,
    }


def audit(of: Audit) -> Document:
    return {
        "ok": of.ok,
        "streams": [
            {
                "stream": one.stream,
                "slices": one.slices,
                "pending": one.pending,
                "raw_rows": one.raw_rows,
                "tiles": one.tiles,
                "datasets": one.datasets,
                "results": one.results,
                "chains": one.chains,
                "sealed_tiles": one.sealed,
                "sealed_windows": one.sealed_windows,
            }
            for one in of.streams
        ],
        "findings": [
            {
                "stream": one.stream,
                "what": one.what,
                "where": one.where,
                "difference": one.difference,
                "remedy": one.remedy or None,
            }
            for one in of.findings
        ],
    }


def repair_plan(of: RepairPlan) -> Document:
    return {"now": format_instant(of.now), "steps": [_repair_step(step) for step in of.steps]}


def _repair_step(of: RepairStep) -> Document:
    what = of.damage
    return {
        "file": what.file,
        "kind": what.kind.value,
        "stream": what.stream or None,
        "reason": what.reason,
        "action": of.action or None,
        "affects": of.affects or None,
    }


def repaired(of: Repaired) -> Document:
    return {
        "ok": of.ok,
        **repair_plan(of.plan),
        "set_aside": dict(of.set_aside),
        "left": [_repair_step(step) for step in of.left],
    }


def move_plan(of: MovePlan) -> Document:
    return {"url": of.url, "files": of.files, "bytes": of.bytes, "there": of.there}


def moved(of: Moved) -> Document:
    return {**move_plan(of.plan), "sent": of.sent}


def recovered(of: Recovered) -> Document:
    return {
        "state": str(of.state),
        "slices": of.slices,
        "batches": of.batches,
        "tiles": of.tiles,
        "datasets": of.datasets,
        "results": of.results,
        "set_aside": dict(of.set_aside),
        "left": [{"file": one.file, "stream": one.stream or None, "reason": one.reason} for one in of.left],
    }
