"""Where the gateways of a warehouse stand, for those who look from another process.

A gateway writes a small file about itself every second, beside its log. It is not durable and nothing
depends on it; whether its gateway lives is told by the lock on the log, never by the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tidemill.ingest.gateway.folders import live_folders
from tidemill.model.clock import ClockSteps
from tidemill.model.gateway import BufferState, GatewayStatus, Pressure
from tidemill.storage import layout
from tidemill.storage.files import attempt


def write_status(warehouse: Path, status: GatewayStatus) -> None:
    """Say it for others; a reader sees all of it or what was said before."""
    path = layout.gateway_status(layout.gateway_logs(warehouse) / status.gateway)
    try:
        with attempt(path) as temporary:
            temporary.write_text(json.dumps(asdict(status)))
            temporary.replace(path)
    except OSError:
        return  # a full disk is told where events are lost by it; here nothing is


def running(warehouse: Path) -> list[GatewayStatus]:
    """Of every gateway that is alive, by name. One that started this moment may not have said anything."""
    found: list[GatewayStatus] = []
    for folder in live_folders(warehouse):
        if (status := _read(layout.gateway_status(folder))) is not None:
            found.append(status)
    return found


def _read(path: Path) -> GatewayStatus | None:
    try:
        said = json.loads(path.read_bytes())
        return GatewayStatus(
            gateway=str(said["gateway"]),
            pid=int(said["pid"]),
            at=int(said["at"]),
            address=said["address"],
            pressure=Pressure(said["pressure"]),
            fullest=str(said["fullest"]),
            memory=_pairs(said["memory"]),
            buffers=tuple(BufferState(**buffer) for buffer in said["buffers"]),
            acknowledged=int(said["acknowledged"]),
            landed=int(said["landed"]),
            refused=int(said["refused"]),
            windows=dict(said["windows"]),
            trigger_failures=dict(said["trigger_failures"]),
            wal_bytes=int(said["wal_bytes"]),
            wal_segments=int(said["wal_segments"]),
            clock=ClockSteps(**said.get("clock", {})),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # another version of it, or it went this moment


def _pairs(said: Mapping[str, list[int]]) -> dict[str, tuple[int, int]]:
    return {name: (used, allowed) for name, (used, allowed) in said.items()}
