"""The gateway as plain data: its settings, the status of a running one, and the address of a server.

Durations are spelled `10ms`, instants as RFC 3339; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.model.clock import ClockSteps
from tidemill.model.gateway import BufferState, GatewayStatus, WindowOutput
from tidemill.model.time import SECOND, format_duration, format_instant
from tidemill.pipeline.documents.scrub import scrub_status
from tidemill.pipeline.documents.shapes import Document, instant
from tidemill.pipeline.documents.shapes import status as stream_status

if TYPE_CHECKING:
    from tidemill.config.gateway import GatewaySettings
    from tidemill.ingest.gateway.status import IngestHealth
    from tidemill.pipeline.reports import StreamStatus
    from tidemill.pipeline.scrub_progress import ScrubStatus
    from tidemill.storage.sessions import OpenSession
    from tidemill.storage.state.faults import Fault


def settings(of: GatewaySettings) -> Document:
    """How events are gathered, and how much memory they may use."""
    window = of.window.model_dump()
    spelled = {key: format_duration(window[key]) for key in window if key not in ("kind", "target")}
    return {
        "window": window | spelled,
        "triggers": of.triggers.model_dump(),
        "memory": of.memory.model_dump(),
    }


def status(of: GatewayStatus) -> Document:
    return {
        "gateway": of.gateway,
        "pid": of.pid,
        "at": format_instant(of.at),
        "address": of.address,
        "pressure": of.pressure.value,
        "fullest": of.fullest,
        "memory": {name: {"used": used, "allowed": allowed} for name, (used, allowed) in of.memory.items()},
        "buffers": [_buffer(buffer) for buffer in of.buffers],
        "acknowledged": of.acknowledged,
        "landed": of.landed,
        "refused": of.refused,
        "windows": dict(of.windows),
        "trigger_failures": dict(of.trigger_failures),
        "wal": {"bytes": of.wal_bytes, "segments": of.wal_segments},
        "clock": _steps(of.clock),
    }


def _steps(of: ClockSteps) -> Document:
    """Steps of the wall clock of more than a minute that the process noticed."""
    last = None if of.last_at is None else {"at": format_instant(of.last_at), "seconds": of.last_by / SECOND}
    return {"steps_forward": of.forward, "steps_back": of.back, "last_step": last}


def health(of: IngestHealth) -> Document:
    return {
        "damaged_logs": [{"file": one.file, "reason": one.reason} for one in of.damaged],
        "clock_behind_seconds": of.clock_behind / SECOND,
    }


def project_status(
    now: int,
    streams: Sequence[StreamStatus],
    gateway: GatewaySettings,
    running: Sequence[GatewayStatus],
    faults: Sequence[Fault],
    scrub: ScrubStatus,
    ingest: IngestHealth,
    sessions: Sequence[OpenSession],
) -> Document:
    """The streams, the settings of the gateway, running gateways, what the scrub found, problems of
    ingestion, and the Spark sessions of running processes."""
    return {
        **stream_status(now, streams, faults),
        "scrub": scrub_status(scrub, now),
        "gateway": settings(gateway),
        "gateways": [status(one) for one in running],
        "ingest": health(ingest),
        "spark": [{"pid": one.pid, "master": one.master, "ui": one.ui} for one in sessions],
    }


def flushed(windows: Sequence[WindowOutput], pending: int) -> Document:
    """What an explicit trigger closed, and how many events have not landed yet."""
    return {
        "windows": [
            {
                "window": one.id,
                "stream": one.stream,
                "source": one.source,
                "start": format_instant(one.start),
                "end": format_instant(one.end),
                "trigger": one.trigger,
                "events": one.stats.events,
                "bytes": one.stats.bytes,
            }
            for one in windows
        ],
        "pending": pending,
    }


def _buffer(of: BufferState) -> Document:
    return {
        "stream": of.stream,
        "source": of.source,
        "kind": of.kind,
        "duration": format_duration(of.duration),
        "rate": of.rate,
        "events": of.events,
        "bytes": of.bytes,
        "since": instant(of.since),
    }
