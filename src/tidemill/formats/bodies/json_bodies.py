"""JSON and NDJSON bodies as lines, copied byte for byte: the one event of a JSON body or the elements of its
array, and the lines of NDJSON that are not blank.

Of JSON, one pass checks that the body is JSON and notes where its events are. It builds no objects, so that a
body takes no more memory than its bytes. Repeated keys and halves of surrogate pairs are valid JSON and are
left to the gate. Line ends between tokens become spaces, since a record is a line. Lines of NDJSON are not
parsed: one that is not JSON is rejected by the gate, and the others are accepted.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit

from tidemill.config.gateway import Requests
from tidemill.formats.bodies.limits import FITS, beyond, check_events, survey
from tidemill.formats.byte_access import byte_at, copy_bytes
from tidemill.formats.compiled import walk
from tidemill.formats.json_core import (
    CLOSE_BRACKET,
    COMMA,
    NO_COLON,
    NO_COMMA,
    NO_KEY,
    NO_NUMBER,
    NO_STRING,
    NO_VALUE,
    OPEN_BRACKET,
    PROVEN,
    skip_space,
    value_end,
)
from tidemill.model.errors import InputError

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints

_LINE_END: Final = 10
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")

# How a scan may end, besides the results of `value_end` for one value.
_TOO_MANY: Final = 20
_NO_END: Final = 21

_EXPECTED: Final = {
    NO_VALUE: "a value is expected",
    NO_KEY: "a key in double quotes is expected",
    NO_COLON: "a colon is expected after a key",
    NO_COMMA: "a comma or a closing bracket is expected",
    _NO_END: "nothing is expected after the value",
    NO_STRING: "the string has no end, or holds a control character or an invalid JSON escape sequence",
    NO_NUMBER: "not a valid JSON number",
}


@dataclass(frozen=True, slots=True)
class ScannedJson:
    """The positions of the elements of an array, or of the one value that the text is."""

    ended: int  # PROVEN, or why not
    position: int  # the position at which the scan ended
    in_array: bool
    spans: tuple[tuple[int, int], ...]  # of the elements that were read completely


def json_lines(content: bytes, limits: Requests) -> tuple[bytes, int]:
    """The events as NDJSON lines, and how many there are."""
    text, found = scanned(content, limits)
    pieces = [text[start:end] for start, end in found.spans]
    pieces.append(b"")
    return b"\n".join(pieces), len(found.spans)


def scanned(content: bytes, limits: Requests) -> tuple[bytes, ScannedJson]:
    """The text without line ends, and the positions of its events, checked to be JSON within the limits."""
    text = utf8_text(content)
    found = _scan(text, limits)
    if found.ended in _EXPECTED:
        raise InputError(
            f"the body is not JSON: {_EXPECTED[found.ended]} at {position_of(text, found.position)}",
            where="body",
            hint="send an object, or an array of them; one object a line is application/x-ndjson",
        )
    if found.ended == _TOO_MANY:
        check_events(limits.events + 1, limits)
    if found.ended != PROVEN:
        raise beyond(found.ended, len(found.spans), limits)
    if not text.isascii():
        _check_utf8(text)
    if b"\n" in text or b"\r" in text:  # only white space: inside a string they would not be JSON
        text = text.translate(_LINE_ENDS)
    return text, found


def _scan(content: bytes, limits: Requests) -> ScannedJson:
    """Scan for events. Depth is counted from each element: the array around them does not count."""
    data = np.frombuffer(content, np.uint8)
    room = min(limits.events, len(content) // 2 + 1)  # an element takes at least a byte and a separator
    starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
    ended, position, count, in_array = _elements(data, limits.depth, limits.field, starts, ends)
    spans = tuple(zip(starts[:count].tolist(), ends[:count].tolist(), strict=True))
    return ScannedJson(ended, position, in_array, spans)


@njit(cache=True, nogil=True)
def _elements(
    b: Bytes, max_depth: int, max_text: int, starts: Ints, ends: Ints
) -> tuple[int, int, int, bool]:
    """How the scan ended and where, the number of elements, and whether the text is an array."""
    end = b.size
    is_object = np.empty(max_depth + 1, np.bool_)
    n = 0
    p = skip_space(b, 0, end)
    in_array = p < end and byte_at(b, p) == OPEN_BRACKET
    more = True
    if in_array:
        p = skip_space(b, p + 1, end)
        more = p >= end or byte_at(b, p) != CLOSE_BRACKET
        if not more:
            p = skip_space(b, p + 1, end)
    while more:
        if p < end and n == starts.size:
            return _TOO_MANY, p, n, in_array
        ended, q = value_end(b, p, end, max_depth, max_text, is_object)
        if ended != PROVEN:
            return ended, q, n, in_array
        starts[n] = p
        ends[n] = q
        n += 1
        p = skip_space(b, q, end)
        more = False
        if in_array:
            if p >= end or (byte_at(b, p) != COMMA and byte_at(b, p) != CLOSE_BRACKET):
                return NO_COMMA, p, n, in_array
            more = byte_at(b, p) == COMMA
            p = skip_space(b, p + 1, end)
    return (PROVEN if p == end else _NO_END), p, n, in_array


def _check_utf8(text: bytes) -> None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the body is not UTF-8 at {position_of(text, error.start)}",
            where="body",
            hint="send it in UTF-8",
        ) from None


@walk
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


def utf8_text(content: bytes) -> bytes:
    """The text without a byte order mark; InputError if it is UTF-16 or UTF-32. Single bytes that are not
    UTF-8 pass as long as records can be separated: the gate rejects their record."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content[:2]:
        raise InputError(
            "the body is in UTF-16 or UTF-32", where="body", hint="send it in UTF-8, the encoding of JSON"
        )
    return content.removeprefix(codecs.BOM_UTF8)


def position_of(content: bytes, position: int) -> str:
    """`line 3 column 7`, from 1, counting characters."""
    before = content[:position]
    column = before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")
    return f"line {before.count(10) + 1} column {len(column) + 1}"
