"""The gateway as plain data: how it is set, where one that runs stands, and what a server began with.

Durations are spelled `10ms`, instants as RFC 3339; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.model.gateway import BufferState, GatewayStatus, WindowOutput
from tidemill.model.time import format_duration, format_instant
from tidemill.pipeline.documents.scrub import standing as scrub_standing
from tidemill.pipeline.documents.shapes import Document, instant
from tidemill.pipeline.documents.shapes import status as stream_status

if TYPE_CHECKING:
    from tidemill.config.gateway import GatewaySettings
    from tidemill.pipeline.reports import StreamStatus
    from tidemill.pipeline.scrub_progress import ScrubStatus
    from tidemill.storage.state.faults import Fault


def settings(of: GatewaySettings) -> Document:
    """How events are gathered, and what memory they may take."""
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
    }


def project_status(
    now: int,
    streams: Sequence[StreamStatus],
    gateway: GatewaySettings,
    running: Sequence[GatewayStatus],
    faults: Sequence[Fault],
    scrub: ScrubStatus,
) -> Document:
    """The streams, how the gateway is set, the gateways that run, and what the scrub found."""
    return {
        **stream_status(now, streams, faults),
        "scrub": scrub_standing(scrub, now),
        "gateway": settings(gateway),
        "gateways": [status(one) for one in running],
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
