"""A JSON body as lines: the one event that it is, or the elements of its array, cut out as they stand.

Nothing is encoded again. Only line ends between tokens become spaces, since a record is a line.
"""

from __future__ import annotations

from typing import Final

from tidemill.config.gateway import Requests
from tidemill.formats.bodies.json_scan import TOO_MANY, WANTED, WHOLE, ScannedJson, scan_json
from tidemill.formats.bodies.limits import beyond, check_events
from tidemill.formats.bodies.texts import place_of, utf8_text
from tidemill.model.errors import InputError

_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


def json_lines(content: bytes, limits: Requests) -> tuple[bytes, int]:
    """The events, each as a line with its line end; and how many there are."""
    text, found = scanned(content, limits)
    pieces = [text[start:end] for start, end in found.spans]
    pieces.append(b"")
    return b"\n".join(pieces), len(found.spans)


def scanned(content: bytes, limits: Requests) -> tuple[bytes, ScannedJson]:
    """The text, without line ends, and where its events stand; proved to be JSON within the limits."""
    text = utf8_text(content)
    found = scan_json(text, limits.depth, limits.field, limits.events)
    if found.ended in WANTED:
        raise InputError(
            f"the body is not JSON: {WANTED[found.ended]} at {place_of(text, found.place)}",
            where="body",
            hint="send an object, or an array of them; one object a line is application/x-ndjson",
        )
    if found.ended == TOO_MANY:
        check_events(limits.events + 1, limits)
    if found.ended != WHOLE:
        raise beyond(found.ended, len(found.spans), limits)
    if not text.isascii():
        _check_utf8(text)
    if b"\n" in text or b"\r" in text:  # white space: a text cannot hold one, or it were not JSON
        text = text.translate(_LINE_ENDS)
    return text, found


def _check_utf8(text: bytes) -> None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the body is not UTF-8 at {place_of(text, error.start)}", where="body", hint="send it in UTF-8"
        ) from None
