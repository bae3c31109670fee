"""The log of expiries `slices/expiries.ndjson`: one durable line for each expiry, and for each span of an
output that was lost with a damaged file and cannot be made again.

The line is the commit point: it is written before anything is deleted, so a crash at any later point is
finished by the next expiry, and what is gone for good is always known. Lines are never removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tidemill.config import Stream
from tidemill.ingest.append_log import CopiedLog, LineFile
from tidemill.model.failpoints import failpoint
from tidemill.model.time import Interval
from tidemill.storage import layout
from tidemill.storage.state.protocol import Logs

RAW: Final = "raw"
QUARANTINE: Final = "quarantine"
DATASETS: Final = "datasets"
WINDOWS: Final = "windows:"  # followed by the name of a streaming window
# prefix of the kind of a loss, on disk: earlier versions do not know such kinds, and skip them
_LOST: Final = "lost:"


@dataclass(frozen=True, slots=True)
class Expiry:
    """Everything of one kind before an instant is deleted."""

    stream: str
    what: str  # raw, quarantine, datasets, or rollups:<level>
    before: int
    at: int  # when


@dataclass(frozen=True, slots=True)
class Loss:
    """What an output had in a span was lost with a damaged file, and cannot be made again."""

    stream: str
    what: str  # rollups:<level>, windows:<name>, datasets, raw, or quarantine
    span: Interval
    file: str  # relative to the warehouse
    at: int  # when


Line = Expiry | Loss


class ExpiryLog:
    """The log of one warehouse. It is read again only when the file has changed."""

    def __init__(self, warehouse: Path, state: Logs) -> None:
        self._file: LineFile[Line] = LineFile(warehouse, layout.EXPIRIES, _parse)
        self._state = state
        self.log: Final = CopiedLog(self._file, state)
        self._known: Mapping[str, Mapping[str, int]] = {}
        self._losses: Mapping[str, Mapping[str, Sequence[Loss]]] = {}
        self._file_version: tuple[int, int] | None = None

    def append(self, acts: Sequence[Line]) -> None:
        """Make expiries and losses durable, in this order. They are carried out after that."""
        if not acts:
            return
        with self.log.locked():
            self.log.append([_text(act) for act in acts], "record the expiry")
        failpoint("expire.after_log")

    def horizons(self, stream: str) -> Mapping[str, int]:
        """Return for each kind the newest instant before which it was deleted."""
        self._read()
        return self._known.get(stream, {})

    def losses(self, stream: str) -> Mapping[str, Sequence[Loss]]:
        """Return for each kind of output what was lost of it."""
        self._read()
        return self._losses.get(stream, {})

    def _read(self) -> None:
        try:
            found = self._file.path.stat()
        except FileNotFoundError:
            self._file.must_be_new(self._state)
            self._known, self._losses, self._file_version = {}, {}, None
            return
        if (version := (found.st_size, found.st_mtime_ns)) == self._file_version:
            return
        known: dict[str, dict[str, int]] = {}
        losses: dict[str, dict[str, list[Loss]]] = {}
        for act in self.log.lines():
            if isinstance(act, Loss):
                losses.setdefault(act.stream, {}).setdefault(act.what, []).append(act)
            else:
                horizons = known.setdefault(act.stream, {})
                horizons[act.what] = max(act.before, horizons.get(act.what, act.before))
        self._known, self._losses, self._file_version = known, losses, version

    def seal(self, stream: str) -> int | None:
        """Return the instant before which raw has expired: outputs before it stay, and are never rebuilt."""
        return self.horizons(stream).get(RAW)

    def refused_before(self, stream: Stream) -> int | None:
        """Return the instant before which events are refused; None if all are accepted."""
        return self.seal(stream.name) if stream.retention.sealed == "refuse" else None


def _text(act: Line) -> bytes:
    fields = asdict(act)
    if isinstance(act, Loss):
        del fields["span"]
        fields |= {"what": _LOST + act.what, "start": act.span.start, "before": act.span.end}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _parse(text: bytes) -> Line | None:
    try:
        fields = json.loads(text)
        what = str(fields["what"])
        if what.startswith(_LOST):
            span = Interval(int(fields["start"]), int(fields["before"]))
            stream, file = str(fields["stream"]), str(fields["file"])
            return Loss(stream, what.removeprefix(_LOST), span, file, int(fields["at"]))
        return Expiry(str(fields["stream"]), what, int(fields["before"]), int(fields["at"]))
    except (ValueError, KeyError, TypeError):
        return None
