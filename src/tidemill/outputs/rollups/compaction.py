"""Which parts of the rollups table are merged to keep them few: pure rules over their statistics.

Parts of similar size are merged once there are enough of them, so that a row is rewritten only into a part
several times as large. A part that is large enough is never merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidemill.formats.key_runs import crowded_tier
from tidemill.outputs.rollups.tile_parts import PART_ROWS
from tidemill.storage.tables.snapshot import Part

FAN_IN: Final = 8  # parts of similar size that are merged
LARGE: Final = PART_ROWS // 2  # rows of a part that is not merged any more
MOST_PARTS: Final = 512  # parts of a level that are merged at once,
MOST_ROWS: Final = 8 * PART_ROWS  # with so many rows


def crowded_parts(parts: Sequence[Part]) -> list[list[Part]]:
    """For each level with too many small parts, those to merge now."""
    levels: dict[str, list[Part]] = {}
    for part in parts:
        if part.rows < LARGE:
            levels.setdefault(part.partition["level"], []).append(part)
    found = [_crowded(small) for _, small in sorted(levels.items())]
    return [chosen for chosen in found if len(chosen) > 1]


def _crowded(small: Sequence[Part]) -> list[Part]:
    """The oldest parts of the smallest full tier, as many as one round may merge."""
    names = set(crowded_tier({part.path: part.rows for part in small}, FAN_IN))
    chosen: list[Part] = []
    rows = 0
    for part in sorted((part for part in small if part.path in names), key=_first_bucket):
        rows += part.rows
        if len(chosen) == MOST_PARTS or (len(chosen) > 1 and rows > MOST_ROWS):
            break
        chosen.append(part)
    return chosen


def _first_bucket(part: Part) -> tuple[int, str]:
    first = part.mins.get("bucket")
    return (first if isinstance(first, int) else 0, part.path)


class QuietVersions:
    """Since when the rollups of each stream are unchanged: small parts are merged once nothing was written
    for a while, and each version is considered once."""

    def __init__(self) -> None:
        # By stream: version and since when; None: considered.
        self._seen: dict[str, tuple[int, int | None]] = {}

    def is_due(self, stream: str, version: int, pause: int, now: int) -> bool:
        """Whether a version has lasted `pause` and was not considered yet."""
        known, since = self._seen.get(stream, (None, None))
        if known != version:
            self._seen[stream] = (version, now)
            return False
        if since is None or now < since + pause:
            return False
        self._seen[stream] = (version, None)
        return True
