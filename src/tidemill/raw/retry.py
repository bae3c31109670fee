"""Tries failed slices again.

A slice whose file still cannot be read waits longer, at the cost of one look at the file. One that can be
read goes to the gate again, behind everything that has landed, so that no slice decided meanwhile is decided
again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tidemill.config import Stream
from tidemill.ingest.log import LandingLog
from tidemill.ingest.retractions import is_deciding_again
from tidemill.model.slices import SliceEntry
from tidemill.raw.accept.failed import declaration, next_try, trouble_with

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse

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
