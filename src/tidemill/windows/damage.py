"""Datasets that somebody deleted or damaged, found without reading them: by their size and both their ends.

It looks only. What is wrong in the middle of a file is found by `verify`, which makes it again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from tidemill.model.time import DAY, MAX_INSTANT, MIN_INSTANT, Interval, format_instant
from tidemill.model.windows import Window, WindowKey
from tidemill.state.protocol import State

log = logging.getLogger(__name__)

AT_ONCE: Final = 500  # datasets that one round looks at
_FIRST: Final = MIN_INSTANT - 400 * DAY  # no window starts before
MAGIC: Final = b"ARROW1"  # an Arrow file begins and ends with it


def damage_of(warehouse: Path, window: Window) -> str | None:
    """What is wrong with the file of a window's newest dataset; None: it has none, or nothing is."""
    if window.file is None:
        return None
    try:
        with (warehouse / window.file).open("rb") as file:
            first = file.read(len(MAGIC))
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(0, size - len(MAGIC)))
            last = file.read()
    except OSError as error:
        return f"the file cannot be read: {error.strerror or error}"
    if window.bytes is not None and size != window.bytes:
        return f"the file has {size} bytes, and {window.bytes} were written"
    return None if first == last == MAGIC else "the file is not an Arrow file any more"


def repair_command(key: WindowKey) -> str:
    """What makes the dataset of a window again."""
    return f"tidemill rebuild {key.stream} --window {format_instant(key.start)}"


class DamageWatch:
    """Looks at some datasets each round, and at all of them in turn; says once what it finds."""

    def __init__(self, warehouse: Path, state: State) -> None:
        self._warehouse = warehouse
        self._state = state
        self._next: dict[str, int] = {}  # by stream: the start of the window that the next look begins with
        self._damaged: dict[str, dict[WindowKey, str]] = {}

    def look(self, stream: str) -> int:
        """How many datasets of the stream are known to be damaged, after a look at the next `AT_ONCE`."""
        start = self._next.get(stream, _FIRST)
        page = self._state.windows(stream, None, Interval(start, MAX_INSTANT), limit=AT_ONCE)
        self._next[stream] = page[-1].key.start + 1 if len(page) == AT_ONCE else _FIRST
        known = self._damaged.setdefault(stream, {})
        for window in page:
            what = damage_of(self._warehouse, window)
            if what is None:
                known.pop(window.key, None)
            elif known.get(window.key) != what:
                known[window.key] = what
                where = {"stream": stream, "window": str(window.key.interval), "file": window.file}
                log.warning("a dataset is damaged: %s; %s", what, repair_command(window.key), extra=where)
        return len(known)
