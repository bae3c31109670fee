"""Slices that cannot be read: whether the storage or the content is the cause, and when to try again.

It only reads a slice's file. If its bytes are not those that landed, their content is not considered.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from tidemill.config import Stream
from tidemill.config.sections import Pack
from tidemill.formats.stored_slice import content_digest, content_size
from tidemill.model.slices import NewSlice, id_of
from tidemill.storage.bucket_path import local_copy

OTHER_BYTES: Final = "its bytes are not those that landed"


def trouble_with(path: Path, new: NewSlice) -> str | None:
    """Why a slice cannot be read from storage; None if its bytes are as they landed."""
    try:
        path = local_copy(path)
        size = content_size(path)
        if size != new.size:
            return wrong_size(size, new.size)
        digest = content_digest(path)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None if id_of(new, digest) == new.id else OTHER_BYTES


def wrong_size(found: int, landed: int) -> str:
    return f"has {found} bytes; {landed} had landed"


def is_of_storage(error: BaseException) -> bool:
    """Whether the system reported it: decoders raise OSError for bad bytes too, but without a number."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno is not None


def next_try(pack: Pack, failures: int, now: int) -> int:
    """When a slice that failed now, after so many failures in a row, is tried again."""
    doublings = min(failures, 62)  # more would only make the number large
    return now + min(pack.retry_delay << doublings, pack.max_retry_delay)


def declaration(stream: Stream) -> str:
    """Identifies everything that the stream declares. What cannot be read with one declaration may be
    readable with another."""
    return hashlib.sha256(stream.model_dump_json().encode()).hexdigest()[:16]
