"""The log of gateways `slices/gateways.ndjson`: one durable line when a gateway begins, and one when all that
it acknowledged is in the ledger and its own log goes.

So a log that vanishes as a whole is missed. A line about a beginning is written before anything is
acknowledged, and one about an end before the folder goes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemill.ingest.lines import LineFile
from tidemill.storage import layout
from tidemill.storage.state.protocol import Logs


@dataclass(frozen=True, slots=True)
class GatewayLine:
    gateway: str
    begun: bool
    at: int  # when that was


class GatewayLog:
    """The log of one warehouse."""

    def __init__(self, warehouse: Path, state: Logs) -> None:
        self._top = layout.gateway_logs(warehouse)
        self._file = LineFile(warehouse, layout.GATEWAYS, _parse)
        self._state = state

    def begin(self, gateway: str, now: int) -> None:
        """On return it is durable that the gateway has a log."""
        with self._file.locked():
            self._append(GatewayLine(gateway, True, now))

    def end(self, gateway: str, now: int) -> None:
        """All that it acknowledged is in the ledger, or known to be lost: nobody will miss its log."""
        with self._file.locked():
            if gateway in self._running():
                self._append(GatewayLine(gateway, False, now))

    def running(self) -> set[str]:
        """Gateways that began and have not ended: alive, or to be taken up."""
        return self._running() if self._file.exists(self._state) else set()

    def lost(self) -> list[str]:
        """Gateways whose log is gone, with whatever of it had not landed."""
        if not self._file.exists(self._state):
            return []
        with self._file.locked():  # a folder goes only after its line was written
            return sorted(name for name in self._running() if not (self._top / name).is_dir())

    def lines(self) -> Iterator[GatewayLine]:
        """All of them, in order. DamageError when one is missing or changed."""
        yield from self._file.all(self._state.log_head(self._file.name))

    def record(self) -> None:
        """The state takes the log as it is, after `recover` made a new state."""
        self._file.take(self._state)

    def mend(self) -> bool:
        """If the log is damaged, write it again from the copy that the state has of it; whether it was."""
        return self._file.mend(self._state)

    def _append(self, line: GatewayLine) -> None:
        tail = self._file.tail(self._state.log_head(self._file.name))
        self._file.append([_text(line)], tail, "record the gateway")
        self._file.record(self._state)

    def _running(self) -> set[str]:
        found: set[str] = set()
        for line in self.lines():
            (found.add if line.begun else found.discard)(line.gateway)
        return found


def _text(line: GatewayLine) -> bytes:
    said = {"gateway": line.gateway, "act": "begin" if line.begun else "end", "at": line.at}
    return json.dumps(said, separators=(",", ":")).encode()


def _parse(text: bytes) -> GatewayLine | None:
    try:
        said = json.loads(text)
        return GatewayLine(str(said["gateway"]), {"begin": True, "end": False}[said["act"]], int(said["at"]))
    except (ValueError, KeyError, TypeError):
        return None
