"""The log of expiries `slices/expiries.ndjson`: one durable line for each act of letting something go.

The line is the commit point of the act: it is written before anything goes, so a crash at any later point is
finished by the next expiry, and what is gone for good can always be told. Lines are never removed.
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
from tidemill.storage import layout
from tidemill.storage.state.protocol import Logs

RAW: Final = "raw"
QUARANTINE: Final = "quarantine"
DATASETS: Final = "datasets"


@dataclass(frozen=True, slots=True)
class Expiry:
    """Everything of one kind before an instant is deleted."""

    stream: str
    what: str  # raw, quarantine, datasets, or rollups:<level>
    before: int
    at: int  # when


class ExpiryLog:
    """The log of one warehouse. It is read again only when the file has changed."""

    def __init__(self, warehouse: Path, state: Logs) -> None:
        self._file = LineFile(warehouse, layout.EXPIRIES, _parse)
        self._state = state
        self._known: Mapping[str, Mapping[str, int]] = {}
        self._seen: tuple[int, int] | None = None

    def append(self, acts: Sequence[Expiry]) -> None:
        """Make the expiries durable, in this order. They are carried out after that."""
        with self._file.locked():
            tail = self._file.tail(self._state.log_head(self._file.name))
            self._file.append([_text(act) for act in acts], tail, "record the expiry")
            self._file.record(self._state)
        failpoint("expire.after_log")

    def lines(self) -> Iterator[Expiry]:
        """Yield all expiries in order. Raises DamageError when one is missing or changed."""
        yield from self._file.all(self._state.log_head(self._file.name))

    def record(self) -> None:
        """Make the state take the log as it is, after `recover` made a new state."""
        self._file.take(self._state)

    def mend(self) -> bool:
        """Rewrite the log if it is damaged, and return whether it was."""
        return self._file.mend(self._state)

    def horizons(self, stream: str) -> Mapping[str, int]:
        """Return for each kind the newest instant before which it was deleted."""
        try:
            found = self._file.path.stat()
        except FileNotFoundError:
            self._file.must_be_new(self._state)
            return {}
        if (seen := (found.st_size, found.st_mtime_ns)) != self._seen:
            known: dict[str, dict[str, int]] = {}
            for act in self.lines():
                mine = known.setdefault(act.stream, {})
                mine[act.what] = max(act.before, mine.get(act.what, act.before))
            self._known, self._seen = known, seen
        return self._known.get(stream, {})

    def seal(self, stream: str) -> int | None:
        """Return the instant before which raw is gone: outputs before it stay, and are never rebuilt."""
        return self.horizons(stream).get(RAW)

    def refused_before(self, stream: Stream) -> int | None:
        """Return the instant before which events are refused; None if all are accepted."""
        return self.seal(stream.name) if stream.retention.sealed == "refuse" else None


def _text(act: Expiry) -> bytes:
    return json.dumps(asdict(act), separators=(",", ":"), ensure_ascii=False).encode()


def _parse(text: bytes) -> Expiry | None:
    try:
        said = json.loads(text)
        return Expiry(str(said["stream"]), str(said["what"]), int(said["before"]), int(said["at"]))
    except (ValueError, KeyError, TypeError):
        return None
