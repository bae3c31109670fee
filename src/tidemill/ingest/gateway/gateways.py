"""The log of gateways `slices/gateways.ndjson`: one durable line when a gateway starts, and one when
everything it acknowledged is in the ledger and its own log is removed.

So the loss of a whole log is noticed. A line about a start is written before anything is acknowledged, and
one about an end before the folder is removed. The machines that share a warehouse in a bucket keep the logs
of their own gateways: each notices only that one of its own is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemill.ingest.lines import LineFile
from tidemill.storage import layout
from tidemill.storage.holders import machine_name
from tidemill.storage.state.protocol import Logs


@dataclass(frozen=True, slots=True)
class GatewayLine:
    gateway: str
    begun: bool
    at: int  # when that was
    machine: str | None = None  # whose disk has its log; None: it is in the warehouse


class GatewayLog:
    """The log of one warehouse."""

    def __init__(self, warehouse: Path, state: Logs) -> None:
        self._warehouse = warehouse
        self._top = layout.gateway_logs(warehouse)
        self._file = LineFile(warehouse, layout.GATEWAYS, _parse)
        self._state = state

    def begin(self, gateway: str, now: int) -> None:
        """Make it durable that the gateway has a log."""
        with self._file.locked(self._state):
            self._append(GatewayLine(gateway, True, now, machine_name(self._warehouse)))

    def end(self, gateway: str, now: int) -> None:
        """Record that everything it acknowledged is in the ledger, or known to be lost: its log is no longer
        missed."""
        with self._file.locked(self._state):
            if gateway in self._running():
                self._append(GatewayLine(gateway, False, now, machine_name(self._warehouse)))

    def running(self) -> set[str]:
        """Gateways that started and have not ended: alive, or to be finished."""
        return set(self._running()) if self._file.exists(self._state) else set()

    def lost(self) -> list[str]:
        """Gateways of this machine whose log is gone, with whatever of it had not landed."""
        if not self._file.exists(self._state):
            return []
        with self._file.locked(self._state):  # a folder is removed only after its line was written
            here, running = machine_name(self._warehouse), self._running()
            mine = sorted(name for name, machine in running.items() if machine == here)
            return [name for name in mine if not (self._top / name).is_dir()]

    def lines(self) -> Iterator[GatewayLine]:
        """All lines, in order. DamageError if one is missing or changed."""
        yield from self._file.all(self._state.log_head(self._file.name))

    def record(self) -> None:
        """Record the log in the state, after `recover` made a new one."""
        self._file.take(self._state)

    def mend(self) -> bool:
        """If the log is damaged, rewrite it from the copy in the state; whether it was."""
        return self._file.mend(self._state)

    def _append(self, line: GatewayLine) -> None:
        tail = self._file.tail(self._state.log_head(self._file.name))
        self._file.append([_text(line)], tail, "record the gateway")
        self._file.record(self._state)

    def _running(self) -> dict[str, str | None]:
        """Each with the machine that has its log."""
        found: dict[str, str | None] = {}
        for line in self.lines():
            if line.begun:
                found[line.gateway] = line.machine
            else:
                found.pop(line.gateway, None)
        return found


def _text(line: GatewayLine) -> bytes:
    said = {"gateway": line.gateway, "act": "begin" if line.begun else "end", "at": line.at}
    if line.machine is not None:
        said["machine"] = line.machine
    return json.dumps(said, separators=(",", ":")).encode()


def _parse(text: bytes) -> GatewayLine | None:
    try:
        said = json.loads(text)
        begun, machine = {"begin": True, "end": False}[said["act"]], said.get("machine")
        return GatewayLine(str(said["gateway"]), begun, int(said["at"]), machine)
    except (ValueError, KeyError, TypeError):
        return None
