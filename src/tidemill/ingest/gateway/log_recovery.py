"""Lands what a gateway that died had acknowledged; done by the next gateway or round that finds its log.

Windows that were closed are made again as they were, which gives the same slices; entries that were in no
closed window make new ones, divided in the same way each time. So it may die in the middle and be repeated.

Damage in a log costs only what it hit: intact frames are landed, the rest is set aside and reported. If the
close of a window may be lost, the ledger shows which entries have landed: none is landed twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

from tidemill.config import Stream
from tidemill.ingest.gateway.damaged_logs import set_aside
from tidemill.ingest.gateway.distinct_keys import count_keys
from tidemill.ingest.gateway.gateway_registry import GatewayLog
from tidemill.ingest.gateway.landed_entries import LandedEntries
from tidemill.ingest.gateway.log_replay import BadBytes, LogReplay, Orphan, orphans
from tidemill.ingest.gateway.window_landing import ClosedWindow, closed, land_window
from tidemill.ingest.landing import Landing
from tidemill.model.damage import Damage
from tidemill.model.errors import StorageError
from tidemill.model.failpoints import failpoint
from tidemill.model.gateway import CloseTrigger, Entry, Receipt
from tidemill.model.slices import Format
from tidemill.storage import layout
from tidemill.storage.state.protocol import Receipts, State

log = logging.getLogger(__name__)

MOST_BYTES: Final = 8 << 20  # of a window that is made here


@dataclass(frozen=True, slots=True)
class TakenUp:
    """What was in the log of a dead gateway and is in the ledger now."""

    gateway: str
    windows: int
    events: int
    damaged: tuple[Damage, ...] = ()  # stretches of the log that could not be read, set aside


def take_up(
    warehouse: Path, streams: Mapping[str, Stream], state: State, landing: Landing, until: int
) -> list[TakenUp]:
    """Land what dead gateways left; receipts are kept `until` then. Live gateways are left alone, and a log
    that cannot be read from disk stays: it is reported each time, and does not stop the others."""
    done: list[TakenUp] = []
    gateways = GatewayLog(warehouse, state)
    known = gateways.running()
    for orphan in orphans(warehouse):
        try:
            one = _land(warehouse, orphan, streams, state, landing, until, listed=orphan.name in known)
            failpoint("gateway.after_replay")
            gateways.end(orphan.name, until)
            orphan.remove()
        except StorageError as error:
            log.error("%s; what gateway %s had acknowledged is not landed", error, orphan.name)
            continue
        done.append(one)
        if one.events:
            log.warning("landed %d events that gateway %s had acknowledged", one.events, one.gateway)
    return [*done, *_lost(warehouse, gateways, until)]


def _lost(warehouse: Path, gateways: GatewayLog, now: int) -> Iterator[TakenUp]:
    """Gateways whose whole log is gone: reported once, and no longer expected."""
    for name in gateways.lost():
        folder = layout.gateway_logs(warehouse) / name
        reason = "the log of the gateway is missing; what it had acknowledged and not landed is lost"
        damaged = set_aside(warehouse, [BadBytes(layout.gateway_segments(folder), 0, 0, reason)])
        log.error("gateway %s: %s", name, reason)
        gateways.end(name, now)
        yield TakenUp(name, 0, 0, tuple(damaged))


def _land(
    warehouse: Path,
    orphan: Orphan,
    streams: Mapping[str, Stream],
    state: State,
    landing: Landing,
    until: int,
    *,
    listed: bool,
) -> TakenUp:
    replay = orphan.read(listed=listed)
    damaged = set_aside(warehouse, replay.bad)
    for one in damaged:
        log.error("what gateway %s had acknowledged is damaged: %s", orphan.name, one.reason)
    windows = events = 0
    for window in _windows(replay, streams, state, orphan.name):
        _, receipts = land_window(landing, window)
        state.keep_receipts(_unknown(state, receipts), until)
        windows += 1
        events += sum(receipt.records for receipt in receipts)
    return TakenUp(orphan.name, windows, events, tuple(damaged))


def _unknown(state: Receipts, receipts: Sequence[Receipt]) -> list[Receipt]:
    """Entries without a receipt: a window that landed before its gateway died has one."""
    return [receipt for receipt in receipts if state.receipt(receipt.id) is None]


def _windows(
    replay: LogReplay, streams: Mapping[str, Stream], state: State, gateway: str
) -> Iterator[ClosedWindow]:
    old = replay.version == 1
    for output, entries in replay.windows:
        yield ClosedWindow(output, entries, by_content=old)
    rest: Iterable[Entry] = replay.rest
    if replay.bad:
        landed = LandedEntries(state, gateway, replay.since)
        for output, entries in replay.damaged_windows:
            left = tuple(entry for entry in entries if not landed.has(entry))
            if left and not landed.has_window(output.id):
                yield ClosedWindow(output, left, by_content=old)
        rest = (entry for entry in replay.rest if not landed.has(entry))
    for window in _recovered(rest, streams):
        yield replace(window, by_content=old)


def _recovered(rest: Iterable[Entry], streams: Mapping[str, Stream]) -> Iterator[ClosedWindow]:
    """Windows of a stream and source, by lsn; a file, or a request with bounds, is a window of its own."""
    for (name, _), found in groupby(rest, lambda entry: (entry.submission.stream, entry.submission.source)):
        stream = streams.get(name)  # a stream that is no longer declared: what it was sent is kept
        gathered: list[Entry] = []
        size = 0
        for entry in found:
            alone = entry.submission.alone is not None
            if gathered and (alone or size + len(entry.submission.content) > MOST_BYTES):
                yield _made(gathered, stream)
                gathered, size = [], 0
            gathered.append(entry)
            size += len(entry.submission.content)
            if alone:
                yield _made(gathered, stream)
                gathered, size = [], 0
        if gathered:
            yield _made(gathered, stream)


def _made(entries: Sequence[Entry], stream: Stream | None) -> ClosedWindow:
    lines = (entry.submission.content for entry in entries if entry.submission.format is Format.NDJSON)
    keys = count_keys(lines, stream) if stream is not None else 0
    return closed(entries, CloseTrigger.RECOVERY.value, keys)
