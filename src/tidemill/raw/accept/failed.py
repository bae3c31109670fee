"""Slices that cannot be read as a whole: whether that is their storage's fault or their content's, and when
it is worth while to try again.

It only looks at a slice's file. A slice is what landed: while its bytes are others, nothing is said of them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from tidemill.config import Stream
from tidemill.config.sections import Pack
from tidemill.model.slices import NewSlice, id_of

OTHER_BYTES: Final = "its bytes are not those that landed"


def trouble_with(path: Path, new: NewSlice) -> str | None:
    """Why a slice cannot be had from where it is kept; None when its bytes are there, as they landed."""
    try:
        size = path.stat().st_size
        if size != new.size:
            return wrong_size(size, new.size)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None if id_of(new, digest) == new.id else OTHER_BYTES


def wrong_size(found: int, landed: int) -> str:
    return f"has {found} bytes; {landed} had landed"


def is_of_storage(error: BaseException) -> bool:
    """Whether the system said so: what a decoder makes of bad bytes is an OSError too, but has no number."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno is not None


def next_try(pack: Pack, failures: int, now: int) -> int:
    """When a slice that failed now, so many times before in a row, is tried again."""
    doublings = min(failures, 62)  # more would only make the number large
    return now + min(pack.retry_delay << doublings, pack.max_retry_delay)


def declaration(stream: Stream) -> str:
    """A name for all that the stream declares. What cannot be read by it may be readable by another."""
    return hashlib.sha256(stream.model_dump_json().encode()).hexdigest()[:16]
