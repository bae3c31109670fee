"""Declared bounds that can not be meant: found when a slice lands, not when its windows are laid out."""

from __future__ import annotations

from typing import Final

from tidemill.config import Stream
from tidemill.model.errors import InputError
from tidemill.model.time import Interval, format_duration

MAX_WINDOWS: Final = 100_000  # that one slice may touch: at 1h, more than 11 years


def check_bounds(stream: Stream, declared: Interval) -> None:
    """InputError when a slice with these bounds would touch more windows than anybody means."""
    span = stream.aggregation_span
    if span is None:
        return
    touched = len(declared.windows(span))
    if touched > MAX_WINDOWS:
        raise InputError(
            f"declared bounds {declared} span {touched:,} windows of {format_duration(span)}",
            where=stream.name,
            hint=f"a slice can span at most {MAX_WINDOWS:,}: look at the years, or land it in several slices",
        )
