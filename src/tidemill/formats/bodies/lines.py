"""NDJSON bodies: the lines that are not blank, byte for byte.

Lines are not parsed here. One that is not JSON is rejected by the gate, and the others are accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit

from tidemill.config.gateway import Requests
from tidemill.formats.bodies.limits import FITS, beyond, check_events, survey
from tidemill.formats.bodies.texts import utf8_text
from tidemill.formats.json_core import skip_space
from tidemill.formats.loads import copy_bytes

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes

_LINE_END: Final = 10


@njit(cache=True, nogil=True)
def _without_blanks(b: Bytes, out: Bytes) -> int:
    """Copy the lines that are not blank, with their line ends; the number of bytes."""
    n = s = 0
    for e in range(b.size):
        if b[e] != _LINE_END:
            continue
        if skip_space(b, s, e) < e:
            copy_bytes(b, s, e + 1, out, n)
            n += e + 1 - s
        s = e + 1
    return n


def ndjson_lines(content: bytes, limits: Requests) -> tuple[bytes, int]:
    """The lines that are not blank, each with a line end, and how many there are."""
    lines = utf8_text(content)
    if not lines.endswith(b"\n"):
        lines += b"\n"
    data = np.frombuffer(lines, np.uint8)
    ends = data == _LINE_END
    if np.count_nonzero(ends) > limits.events:  # most of them may be blank: count without those
        lines = _squeezed(lines)
        data = np.frombuffer(lines, np.uint8)
        ends = data == _LINE_END
        check_events(int(np.count_nonzero(ends)), limits)
    positions = np.flatnonzero(ends)
    blank, position, broken = survey(data, positions, limits.depth, limits.field)
    if broken != FITS:
        raise beyond(broken, position, limits)
    return (_squeezed(lines) if blank else lines), positions.size - blank


def _squeezed(lines: bytes) -> bytes:
    out = np.empty(len(lines), np.uint8)
    return out[: _without_blanks(np.frombuffer(lines, np.uint8), out)].tobytes()
