"""The log of gateways `slices/gateways.ndjson`: one durable line when a gateway starts, and one when
everything it acknowledged is in the ledger and its own log is removed.

So the loss of a whole log is noticed. A line about a start is written before anything is acknowledged, and
one about an end before the folder is removed. The machines that share a warehouse in a bucket keep the logs
of their own gateways: each notices only that one of its own is gone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemill.ingest.append_log import CopiedLog, LineFile
from tidemill.storage import layout
from tidemill.storage.lease_holders import machine_name
from tidemill.storage.state.protocol import Logs


@dataclass(frozen=True, slots=True)
class GatewayLine:
    gateway: str
    begun: bool
    at: int  # when that was
    machine: str | None = None  # the machine that has its log; None: the log is in the warehouse


class GatewayLog:
    """The log of one warehouse."""

    def __init__(self, warehouse: Path, state: Logs) -> None:
        self._warehouse = warehouse
        self._top = layout.gateway_logs(warehouse)
        self._file = LineFile(warehouse, layout.GATEWAYS, _parse)
        self._state = state
        self.log: Final = CopiedLog(self._file, state)

    def begin(self, gateway: str, now: int) -> None:
        """Make it durable that the gateway has a log."""
        with self.log.locked():
            self._append(GatewayLine(gateway, True, now, machine_name(self._warehouse)))

    def end(self, gateway: str, now: int) -> None:
        """Record that everything it acknowledged is in the ledger, or known to be lost: its log is no longer
        missed."""
        with self.log.locked():
            if gateway in self._running():
                self._append(GatewayLine(gateway, False, now, machine_name(self._warehouse)))

    def running(self) -> set[str]:
        """Gateways that started and have not ended: alive, or to be finished."""
        return set(self._running()) if self._file.exists(self._state) else set()

    def lost(self) -> list[str]:
        """Gateways of this machine whose log is gone, with whatever of it had not landed."""
        if not self._file.exists(self._state):
            return []
        with self.log.locked():  # a folder is removed only after its line was written
            here, running = machine_name(self._warehouse), self._running()
            own = sorted(name for name, machine in running.items() if machine == here)
            return [name for name in own if not (self._top / name).is_dir()]

    def _append(self, line: GatewayLine) -> None:
        self.log.append([_text(line)], "record the gateway")

    def _running(self) -> dict[str, str | None]:
        """Each with the machine that has its log."""
        found: dict[str, str | None] = {}
        for line in self.log.lines():
            if line.begun:
                found[line.gateway] = line.machine
            else:
                found.pop(line.gateway, None)
        return found


def _text(line: GatewayLine) -> bytes:
    fields = {"gateway": line.gateway, "act": "begin" if line.begun else "end", "at": line.at}
    if line.machine is not None:
        fields["machine"] = line.machine
    return json.dumps(fields, separators=(",", ":")).encode()


def _parse(text: bytes) -> GatewayLine | None:
    try:
        fields = json.loads(text)
        begun, machine = {"begin": True, "end": False}[fields["act"]], fields.get("machine")
        return GatewayLine(str(fields["gateway"]), begun, int(fields["at"]), machine)
    except (ValueError, KeyError, TypeError):
        return None
