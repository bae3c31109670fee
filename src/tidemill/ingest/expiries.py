"""The log of expiries `slices/expiries.ndjson`: one durable line for each act of letting something go, and
for each span of an output that was lost with a damaged file and cannot be made again.

The line is the commit point: it is written before anything is deleted, so a crash at any later point is
finished by the next expiry, and what is gone for good is always known. Lines are never removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tidemill.config import Stream
from tidemill.ingest.lines import LineFile
from tidemill.model.failpoints import failpoint
from tidemill.model.time import Interval
from tidemill.storage import layout
from tidemill.storage.state.protocol import Logs

RAW: Final = "raw"
QUARANTINE: Final = "quarantine"
DATASETS: Final = "datasets"
WINDOWS: Final = "windows:"  # followed by the name of a streaming window
_LOST: Final = "lost:"  # before what a loss is of, on disk: earlier versions know no such kind, and skip it


@dataclass(frozen=True, slots=True)
class Expiry:
    """Everything of one kind before an instant is deleted."""

    stream: str
    what: str  # raw, quarantine, datasets, or rollups:<level>
    before: int
    at: int  # when


@dataclass(frozen=True, slots=True)
class Loss:
    """What one kind of output held in a span was lost with a damaged file, and nothing can make it again."""

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
        self._known: Mapping[str, Mapping[str, int]] = {}
        self._losses: Mapping[str, Mapping[str, Sequence[Loss]]] = {}
        self._seen: tuple[int, int] | None = None

    def append(self, acts: Sequence[Line]) -> None:
        """Make expiries and losses durable, in this order. They are carried out after that."""
        if not acts:
            return
        with self._file.locked(self._state):
            tail = self._file.tail(self._state.log_head(self._file.name))
            self._file.append([_text(act) for act in acts], tail, "record the expiry")
            self._file.record(self._state)
        failpoint("expire.after_log")

    def lines(self) -> Iterator[Line]:
        """Yield all expiries and losses in order. Raises DamageError when one is missing or changed."""
        yield from self._file.all(self._state.log_head(self._file.name))

    def record(self) -> None:
        """Make the state take the log as it is, after `recover` made a new state."""
        self._file.take(self._state)

    def mend(self) -> bool:
        """Rewrite the log if it is damaged, and return whether it was."""
        return self._file.mend(self._state)

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
            self._known, self._losses, self._seen = {}, {}, None
            return
        if (seen := (found.st_size, found.st_mtime_ns)) == self._seen:
            return
        known: dict[str, dict[str, int]] = {}
        losses: dict[str, dict[str, list[Loss]]] = {}
        for act in self.lines():
            if isinstance(act, Loss):
                losses.setdefault(act.stream, {}).setdefault(act.what, []).append(act)
            else:
                mine = known.setdefault(act.stream, {})
                mine[act.what] = max(act.before, mine.get(act.what, act.before))
        self._known, self._losses, self._seen = known, losses, seen

    def seal(self, stream: str) -> int | None:
        """Return the instant before which raw has expired: outputs before it stay, and are never rebuilt."""
        return self.horizons(stream).get(RAW)

    def refused_before(self, stream: Stream) -> int | None:
        """Return the instant before which events are refused; None if all are accepted."""
        return self.seal(stream.name) if stream.retention.sealed == "refuse" else None


def _text(act: Line) -> bytes:
    said = asdict(act)
    if isinstance(act, Loss):
        del said["span"]
        said |= {"what": _LOST + act.what, "start": act.span.start, "before": act.span.end}
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()


def _parse(text: bytes) -> Line | None:
    try:
        said = json.loads(text)
        what = str(said["what"])
        if what.startswith(_LOST):
            span = Interval(int(said["start"]), int(said["before"]))
            of, file = str(said["stream"]), str(said["file"])
            return Loss(of, what.removeprefix(_LOST), span, file, int(said["at"]))
        return Expiry(str(said["stream"]), what, int(said["before"]), int(said["at"]))
    except (ValueError, KeyError, TypeError):
        return None
