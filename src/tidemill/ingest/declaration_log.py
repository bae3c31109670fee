"""The log of declarations `slices/declarations.ndjson`: one durable line each time the rollups of a stream
were made for metrics that are declared differently.

Tiles whose raw has expired stay as they were; the log records the declarations they were made for, so that
answers can say from when on a metric counts. Lines are never removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemill.ingest.append_log import CopiedLog, LineFile
from tidemill.model.errors import DamageError
from tidemill.model.metrics import DeclaredMetric
from tidemill.storage import layout
from tidemill.storage.state.protocol import Logs


@dataclass(frozen=True, slots=True)
class Declaration:
    """From this instant on all tiles are made for these metrics, except those before `sealed`, whose raw has
    expired."""

    stream: str
    metrics: Mapping[str, DeclaredMetric]
    sealed: int | None
    at: int


class DeclarationLog:
    """The log of one warehouse. It is read again only when the file has changed."""

    def __init__(self, warehouse: Path, state: Logs) -> None:
        self._file = LineFile(warehouse, layout.DECLARATIONS, _parse)
        self._state = state
        self.log: Final = CopiedLog(self._file, state)
        self._known: Mapping[str, Sequence[Declaration]] = {}
        self._file_version: tuple[int, int] | None = None

    def of(self, stream: str) -> Sequence[Declaration]:
        """The declarations of a stream, in order; its tiles are made for the last one. While the file is
        damaged, from the copy in the state."""
        try:
            return self._of(stream)
        except DamageError:
            kept = self._file.lines_in_state(self._state)
            if kept is None:
                raise
            return [line for line in kept if line.stream == stream]

    def _of(self, stream: str) -> Sequence[Declaration]:
        try:
            found = self._file.path.stat()
        except FileNotFoundError:
            self._file.must_be_new(self._state)
            return ()
        if (version := (found.st_size, found.st_mtime_ns)) != self._file_version:
            known: dict[str, list[Declaration]] = {}
            for line in self.log.lines():
                known.setdefault(line.stream, []).append(line)
            self._known, self._file_version = known, version
        return self._known.get(stream, ())

    def built(self, stream: str, metrics: Mapping[str, DeclaredMetric], sealed: int | None, now: int) -> None:
        """Record that all tiles are made for these metrics, unless that is recorded already."""
        known = self.of(stream)
        if known and known[-1].metrics == metrics:
            return
        with self.log.locked():
            self.log.append([_text(Declaration(stream, metrics, sealed, now))], "record the declaration")


def _text(one: Declaration) -> bytes:
    metrics = {name: [metric.core, sorted(metric.columns)] for name, metric in one.metrics.items()}
    fields = {"stream": one.stream, "metrics": metrics, "sealed": one.sealed, "at": one.at}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _parse(text: bytes) -> Declaration | None:
    try:
        fields = json.loads(text)
        metrics = {
            str(name): DeclaredMetric(str(core), frozenset(map(str, columns)))
            for name, (core, columns) in fields["metrics"].items()
        }
        sealed = None if fields["sealed"] is None else int(fields["sealed"])
        return Declaration(str(fields["stream"]), metrics, sealed, int(fields["at"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
