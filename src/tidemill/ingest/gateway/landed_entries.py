"""Which entries of a gateway's log are in the ledger, for logs in which damage may have hit the close of a
window.

The windows of one stream and source are consecutive in the log, so a window has every entry of its feed from
its first to its last; the metadata of its slice has both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from tidemill.model.gateway import Entry
from tidemill.model.slices import SliceEntry
from tidemill.model.time import HOUR
from tidemill.storage.state.protocol import State

_PAGE: Final = 1000  # entries of the ledger that are read at once


class LandedEntries:
    """The entries of one gateway, whose log begins with an arrival at `since`. The ledger is read once."""

    def __init__(self, state: State, gateway: str, since: int) -> None:
        self._state = state
        self._windows: set[str] = set()
        self._spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for entry in _newer(state, since - HOUR):  # those of several gateways are not in order of arrival
            window = _window(entry, gateway)
            if window is None:
                continue
            self._windows.add(str(window["id"]))
            entries = window.get("entries")
            if isinstance(entries, list) and len(entries) == 2:
                feed = entry.slice.stream, entry.slice.source
                self._spans.setdefault(feed, []).append((int(entries[0]), int(entries[1])))

    def has_window(self, window: str) -> bool:
        return window in self._windows

    def has(self, entry: Entry) -> bool:
        feed = entry.submission.stream, entry.submission.source
        if any(first <= entry.lsn <= last for first, last in self._spans.get(feed, ())):
            return True
        return self._state.receipt(entry.id) is not None  # by an older version, whose slices do not record it


def _newer(state: State, since: int) -> Iterator[SliceEntry]:
    """Entries of the ledger, newest first, until a page of them is older than that."""
    before: int | None = None
    while page := state.slices(newest=True, limit=_PAGE, before=before):
        yield from page
        before = page[-1].seq
        if len(page) < _PAGE or max(entry.slice.arrival for entry in page) < since:
            return


def _window(entry: SliceEntry, gateway: str) -> dict[str, list[int] | str] | None:
    """The window of this gateway that a slice was made from, by its metadata, if it was one."""
    if not entry.slice.name.startswith(f"{gateway}-"):
        return None
    try:
        metadata = json.loads(entry.slice.metadata or "null")
    except ValueError:
        return None
    window = metadata.get("window") if isinstance(metadata, dict) else None
    return window if isinstance(window, dict) and "id" in window else None
