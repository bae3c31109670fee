"""Limits of a request: how deeply its events are nested and how long their strings are.

Lines that are not JSON are measured as well as possible, and left to the gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.config.gateway import Requests
from tidemill.formats.byte_access import byte_at
from tidemill.formats.compiled import walk
from tidemill.formats.json_core import (
    QUOTE,
    TOO_DEEP,
    TOO_LONG,
    is_close,
    is_open,
    quoted_end,
    skip_space,
)
from tidemill.model.errors import TooLargeError

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints

FITS: Final = 0  # neither TOO_DEEP nor TOO_LONG


@walk
def _measured(b: Bytes, start: int, end: int) -> tuple[int, int]:
    """The depth of a record, and the size of its longest string before unescaping; it need not be JSON."""
    depth = deepest = longest = 0
    p = start
    while p < end:
        c = byte_at(b, p)
        if c == QUOTE:
            s = p + 1
            p, _ = quoted_end(b, p, end)
            if p < 0:
                p = end + 1
            longest = max(longest, p - 1 - s)
            continue
        p += 1
        if is_open(c):
            depth += 1
            deepest = max(deepest, depth)
        elif is_close(c) and depth > 0:
            depth -= 1
    return deepest, longest


@walk
def survey(b: Bytes, line_ends: Ints, max_depth: int, max_text: int) -> tuple[int, int, int]:
    """The number of blank lines; and the first record beyond a limit: its position among the others, and
    which limit.

    A record with fewer opening brackets than the depth limit cannot be too deep, and one shorter than the
    string limit has no string that is too long; only the others are read byte by byte.
    """
    blank = 0
    s = 0
    for i in range(line_ends.size):
        e = line_ends[i]
        p = skip_space(b, s, e)
        if p == e:
            blank += 1
        else:
            opening = 0
            for q in range(p, e):
                opening += (b[q] | 0x20) == 0x7B  # { or [
            if opening > max_depth or e - p > max_text:
                depth, longest = _measured(b, p, e)
                if depth > max_depth:
                    return blank, i - blank, TOO_DEEP
                if longest > max_text:
                    return blank, i - blank, TOO_LONG
        s = e + 1
    return blank, -1, FITS


def check_events(events: int, limits: Requests) -> None:
    if events > limits.events:
        raise TooLargeError(
            f"the request holds more than {limits.events} events",
            where="body",
            hint="send them in several requests, or allow more with gateway.requests.events",
        )


def beyond(broken: int, position: int, limits: Requests) -> TooLargeError:
    """The error for the event at a position (from 0) that is beyond a limit."""
    if broken == TOO_DEEP:
        message = f"the event is nested more than {limits.depth} deep"
        hint = "nest it less, or allow more with gateway.requests.depth"
    else:
        message = f"a text of the event is longer than {limits.field} bytes"
        hint = "send less, or allow more with gateway.requests.field"
    return TooLargeError(message, where=f"event {position + 1}", hint=hint)
