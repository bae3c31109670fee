"""Lands a closed window as a slice, with receipts that record where its events are.

The same window always makes the same bytes, and it is part of the identity of its slice: landing it twice
changes nothing, which is what a replay after a crash relies on, and events that are sent again in another
window are another slice. A file, or a request with bounds, is identified by its content, as on disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

from tidemill.ingest.landing import Landed, Landing
from tidemill.model.gateway import Entry, Receipt, WindowOutput, WindowStats
from tidemill.model.slices import BY_WINDOW, Format
from tidemill.model.time import Interval

ENOUGH: Final = 4 << 20  # bytes of a piece; a single content may be longer


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """A window, and its entries of the log, in order."""

    output: WindowOutput
    entries: tuple[Entry, ...]
    by_content: bool = False  # logs of older versions made slices that are identified by their bytes alone

    @property
    def is_gathered(self) -> bool:
        """Whether it is a slice of its own whatever its bytes are: not if it is a file, or has bounds."""
        return not self.by_content and self.entries[0].submission.alone is None

    @property
    def format(self) -> Format:
        return self.entries[0].submission.format

    @property
    def declared(self) -> Interval | None:
        """The bounds that its sender declared; a window with bounds has one entry."""
        return self.entries[0].submission.declared

    @property
    def lsns(self) -> tuple[int, ...]:
        return tuple(entry.lsn for entry in self.entries)


def closed(entries: Sequence[Entry], trigger: str, keys: int) -> ClosedWindow:
    """The window of entries of one feed, named after its first entry."""
    first, last = entries[0], entries[-1]
    output = WindowOutput(
        id=f"{first.gateway}-{first.submission.stream}-{first.lsn:x}",
        stream=first.submission.stream,
        source=first.submission.source,
        start=first.arrival,
        end=last.arrival,
        trigger=trigger,
        stats=WindowStats(
            events=sum(entry.submission.records for entry in entries),
            keys=keys,
            bytes=sum(len(entry.submission.content) for entry in entries),
            duration=last.arrival - first.arrival,
        ),
    )
    return ClosedWindow(output, tuple(entries))


def land_window(landing: Landing, window: ClosedWindow) -> tuple[Landed, list[Receipt]]:
    """Land it; it is in the ledger when this returns."""
    output = window.output
    landed = landing.land_stream(
        output.stream,
        cast("BinaryIO", _WindowFile(entry.submission.content for entry in window.entries)),
        arrival=output.end,
        format=window.format,
        declared=window.declared,
        source=output.source,
        name=output.id,
        metadata=described(window),
        acknowledged=True,
    )
    repeated = not landed.new and window_of(landed.entry.slice.metadata) != output.id
    return landed, [
        Receipt(
            id=entry.id,
            stream=output.stream,
            tenant=entry.submission.tenant,
            slice=landed.entry.id,
            first=first,
            records=entry.submission.records,
            window=output.id,
            at=entry.arrival,
            repeated=repeated,
        )
        for first, entry in _with_offsets(window.entries)
    ]


class _WindowFile:
    """The contents of entries, concatenated, as a file object."""

    def __init__(self, contents: Iterable[bytes]) -> None:
        self._pieces = in_pieces(contents)

    def read(self, _size: int) -> bytes:
        return next(self._pieces, b"")


def described(window: ClosedWindow) -> str:
    """What the ledger keeps of a window, as JSON, with the senders of records that name no tenant."""
    output = window.output
    fields: dict[str, object] = {
        "id": output.id,
        "start": output.start,
        "end": output.end,
        "trigger": output.trigger,
        "events": sum(entry.submission.records for entry in window.entries),
        "keys": output.stats.keys,
        "bytes": sum(len(entry.submission.content) for entry in window.entries),
        # Every entry of its feed from the first to the last.
        "entries": [window.entries[0].lsn, window.entries[-1].lsn],
    }
    if window.is_gathered:
        fields["identity"] = BY_WINDOW
    if output.stats.events != fields["events"]:  # a sliding window: these cover all of its size
        fields["sliding"] = {"events": output.stats.events, "bytes": output.stats.bytes}
    unnamed = [
        [first + offset, entry.submission.tenant]
        for first, entry in _with_offsets(window.entries)
        for offset in entry.submission.unnamed
        if entry.submission.tenant is not None
    ]
    if unnamed:
        fields["unnamed"] = unnamed
    return json.dumps({"window": fields}, separators=(",", ":"), ensure_ascii=False)


def window_of(metadata: str | None) -> str | None:
    """The id of the window that a slice was made from, by its metadata; None if there was none."""
    try:
        fields = json.loads(metadata or "null")
    except ValueError:
        return None
    window = fields.get("window") if isinstance(fields, dict) else None
    found = window.get("id") if isinstance(window, dict) else None
    return found if isinstance(found, str) else None


def _with_offsets(entries: Sequence[Entry]) -> Iterator[tuple[int, Entry]]:
    """Each entry with the line of its first record, from 1."""
    first = 1
    for entry in entries:
        yield first, entry
        first += entry.submission.records


def in_pieces(contents: Iterable[bytes]) -> Iterator[bytes]:
    """The contents of many requests joined into few pieces, none of them empty; no content is split.

    Each step over a piece lets other threads run, and then waits milliseconds for its turn while requests are
    served, so a window must not be processed request by request. Nor is it joined as a whole.
    """
    held: list[bytes] = []
    size = 0
    for content in contents:
        held.append(content)
        size += len(content)
        if size >= ENOUGH:
            yield held[0] if len(held) == 1 else b"".join(held)
            held, size = [], 0
    if size:
        yield held[0] if len(held) == 1 else b"".join(held)
