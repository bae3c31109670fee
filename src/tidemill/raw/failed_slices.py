"""Slices that cannot be read: whether the storage or the content is the cause, when to try again, and the
next attempt.

If the bytes of a file are not those that landed, their content is not considered. A slice whose file still
cannot be read waits longer, at the cost of one look at the file. One that can be read goes to the gate again,
behind everything that has landed, so that no slice decided meanwhile is decided again.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.config import Stream
from tidemill.config.stream_sections import Pack
from tidemill.formats.stored_slice import content_digest, content_size
from tidemill.ingest.landing_log import LandingLog
from tidemill.ingest.retraction_log import is_deciding_again
from tidemill.model.slices import NewSlice, SliceEntry, id_of
from tidemill.storage.bucket_path import local_copy

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse

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


log = logging.getLogger(__name__)

AT_ONCE: Final = 256  # slices that one round looks at; then what has landed meanwhile is accepted


def try_again(warehouse: Warehouse, stream: Stream, now: int) -> int:
    """Send failed slices whose time has come to the gate again; how many. The caller must hold the tick
    lock."""
    state, root = warehouse.state, warehouse.root
    if not state.totals(stream.name)["failed_slices"] or is_deciding_again(state, stream.name):
        return 0
    ready: list[SliceEntry] = []
    left = warehouse.project.engine.batch_bytes
    for entry in state.failing(stream.name, now, declaration(stream), AT_ONCE, stream.pack.max_retry_delay):
        left -= entry.slice.size
        if ready and left < 0:
            break
        trouble = trouble_with(root / entry.slice.path, entry.slice)
        if trouble is None:
            ready.append(entry)
        else:
            state.postpone(entry.id, trouble, next_try(stream.pack, entry.failures, now))
            log.warning(
                "slice still cannot be read: %s", trouble, extra={"stream": stream.name, "slice": entry.id}
            )
    if ready:
        LandingLog(root).commit_again(state, ready)
        log.info("trying %d failed slices again", len(ready), extra={"stream": stream.name})
    return len(ready)
