"""The status of the gateways of a warehouse for other processes, and what an operator should know about them:
damaged logs, a clock that was set back.

A gateway writes a small file about itself every second, beside its log. It is not durable and nothing depends
on it; the lock on the log, not the file, shows whether its gateway lives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.ingest.gateway.damaged_logs import damaged_logs
from tidemill.ingest.gateway.log_folders import live_folders
from tidemill.model.clock import STEP, ClockSteps
from tidemill.model.damage import Damage
from tidemill.model.gateway import BufferState, GatewayStatus, Pressure
from tidemill.storage import layout
from tidemill.storage.files import attempt

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse


def write_status(warehouse: Path, status: GatewayStatus) -> None:
    """Write the status; a reader sees all of it or the previous one."""
    path = layout.gateway_status(layout.gateway_logs(warehouse) / status.gateway)
    try:
        with attempt(path) as temporary:
            temporary.write_text(json.dumps(asdict(status)))
            temporary.replace(path)
    except OSError:
        return  # a full disk is reported where it loses events; here it does not


def running(warehouse: Path) -> list[GatewayStatus]:
    """The status of every live gateway, by name. One that has just started may have none yet."""
    found: list[GatewayStatus] = []
    for folder in live_folders(warehouse):
        if (status := _read(layout.gateway_status(folder))) is not None:
            found.append(status)
    return found


def _read(path: Path) -> GatewayStatus | None:
    try:
        fields = json.loads(path.read_bytes())
        return GatewayStatus(
            gateway=str(fields["gateway"]),
            pid=int(fields["pid"]),
            at=int(fields["at"]),
            address=fields["address"],
            pressure=Pressure(fields["pressure"]),
            fullest=str(fields["fullest"]),
            memory=_pairs(fields["memory"]),
            buffers=tuple(BufferState(**buffer) for buffer in fields["buffers"]),
            acknowledged=int(fields["acknowledged"]),
            landed=int(fields["landed"]),
            refused=int(fields["refused"]),
            windows=dict(fields["windows"]),
            trigger_failures=dict(fields["trigger_failures"]),
            wal_bytes=int(fields["wal_bytes"]),
            wal_segments=int(fields["wal_segments"]),
            clock=ClockSteps(**fields.get("clock", {})),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # of another version, or just removed


def _pairs(pairs: Mapping[str, list[int]]) -> dict[str, tuple[int, int]]:
    return {name: (used, allowed) for name, (used, allowed) in pairs.items()}


@dataclass(frozen=True, slots=True)
class IngestHealth:
    """The findings; empty and 0 if there are none."""

    damaged: tuple[Damage, ...] = ()  # stretches of logs that were set aside
    clock_behind: int = 0  # microseconds the wall clock is behind the last arrival, if more than a minute


def ingest_health(warehouse: Warehouse) -> IngestHealth:
    behind = warehouse.clock_behind()
    return IngestHealth(tuple(damaged_logs(warehouse.root)), behind if behind > STEP else 0)
