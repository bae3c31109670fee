"""For each reason why a window waits, the command or the key that ends the wait, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemill.model.time import format_instant
from tidemill.model.windows import WindowKey

_MISSING: Final = (
    "land what is missing and say what it covers: `tidemill ingest {stream} FILE --start {start} --end "
    "{end}`; where nothing happened: `tidemill ingest {stream} --empty --start {start} --end {end}` (or a "
    "part of that); or declare a longer `gap_tolerance`, or `coverage: watermark`"
)
_REMEDIES: Final[Mapping[str, str]] = {
    "cutoff": "wait until then, or declare a shorter `subject_to_change_window`",
    "pending": "`tidemill run --once` decides what is pending; for a slice that cannot be read, put its file "
    "back or take it out with `tidemill retract SLICE`",
    "coverage": _MISSING,
    "gap": _MISSING,
    "watermark": "newer events move the watermark; a source that is silent for good is left out by "
    "`event_time: {{idle_timeout: …}}`; or say what is complete: "
    "`tidemill ingest {stream} --empty --start {start} --end {end}`",
    "empty": "land a slice for it: `tidemill ingest {stream} FILE --start {start} --end {end}`",
    "sealed": "none: raw of its time has expired (`retention.raw`)",
    "failed": "fix what the error names, then `tidemill retry {stream} --window {start}`",
}


def remedy(reason: str, key: WindowKey) -> str | None:
    text = _REMEDIES.get(reason)
    if text is None:
        return None
    return text.format(stream=key.stream, start=format_instant(key.start), end=format_instant(key.end))
