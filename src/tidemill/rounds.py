"""One round for one stream: take up what a crash left, accept, roll up, look after the windows of datasets.

Part of the mill. It decides nothing: each room does its own work, and a round with nothing to do costs a few
look-ups.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidemill.config import Stream
from tidemill.ingest.retractions import is_judging_again
from tidemill.lake.table import Table
from tidemill.model.time import DAY
from tidemill.reports import StreamTick

if TYPE_CHECKING:
    from tidemill.mill import Mill

log = logging.getLogger(__name__)

TIDY_EVERY: Final = 20  # versions of a table
KEEP_LOG: Final = DAY


def tick_stream(mill: Mill, stream: Stream, now: int) -> StreamTick:
    done = _accept_and_roll(mill, stream, now) if _has_work(mill, stream) else StreamTick(stream.name)
    if stream.aggregation_span is None:
        return done
    return replace(done, windows=mill.yard.coordinate(stream, now))


def _accept_and_roll(mill: Mill, stream: Stream, now: int) -> StreamTick:
    from tidemill.accept.catchup import catch_up, merge_runs
    from tidemill.replay import finish_replays
    from tidemill.rollups.roller import Fresh

    acceptor, roller = mill.acceptor(stream.name), mill.roller(stream.name)
    catch_up(acceptor)
    roller.catch_up()
    finish_replays(mill.project.warehouse, stream.name, mill.state, now)
    batch = acceptor.accept()
    if is_judging_again(mill.state, stream.name):  # tiles wait until all that a retraction sent back is there
        acceptor.finish()
        return StreamTick(stream.name, batch)
    fresh = Fresh(batch.record.tiles, batch.taps) if batch is not None and batch.taps else None
    mill.progress(stream.name, "tiles", 0.0)
    tiles = roller.refresh(fresh)
    mill.progress(stream.name, "tiles", 1.0)
    acceptor.finish()
    merged = merge_runs(acceptor)
    tidy((acceptor.raw, acceptor.quarantine, roller.table), mill.project.engine.keep_replaced, now)
    return StreamTick(stream.name, batch, tiles, len(merged))


def tidy(tables: Sequence[Table], keep_replaced: int, now: int) -> None:
    """Now and then, delete parts that were replaced and log entries that nobody needs any more."""
    for table in tables:
        if table.version and table.version % TIDY_EVERY == 0:
            gone = table.vacuum(keep_replaced, now)
            trimmed = table.trim_log(KEEP_LOG, now)
            where = {"table": str(table.root)}
            log.info("deleted %d files and %d log entries", len(gone), trimmed, extra=where)


def _has_work(mill: Mill, stream: Stream) -> bool:
    """Whether a tick could change anything; answered without opening a table that nobody wrote to."""
    if mill.state.pending(stream.name, 1) or (stream.metrics and mill.state.stale_tiles(stream.name)):
        return True
    seen = mill.state.table_versions(stream.name)
    for name in ("raw", "quarantine", "rollups"):
        table = mill.existing(name, stream.name)
        if (table.version if table is not None else 0) != seen.get(name, 0):
            return True
    return _left_behind(mill, stream.name)


def _left_behind(mill: Mill, stream: str) -> bool:
    """Whether a process that died left something in staging, or id runs other than those known."""
    warehouse = mill.project.warehouse
    for name in ("raw", "quarantine", "rollups"):
        if any((warehouse / name / stream / "_staging").glob("*")):
            return True
    found = {path.name for path in (warehouse / "gate" / stream).glob("*")}
    return found != set(mill.state.runs(stream))
