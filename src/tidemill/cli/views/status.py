"""Where the streams of a project stand, for people.

Only `Text` goes into a cell, so that nothing that came from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tidemill.cli.shown import shown
from tidemill.cli.views.event_time import time_pairs
from tidemill.cli.views.layout import (
    PHASE_STYLES,
    STATUS_STYLES,
    View,
    level_words,
    many,
    outcome_words,
    pairs_table,
    size,
)
from tidemill.cli.views.serve import gateways_table
from tidemill.model.slices import SliceStatus
from tidemill.model.time import format_duration, format_instant
from tidemill.pipeline.documents import shapes as documents
from tidemill.pipeline.documents.scrub import remedy

if TYPE_CHECKING:
    from tidemill.config.gateway import GatewaySettings
    from tidemill.ingest.health import IngestHealth
    from tidemill.model.gateway import GatewayStatus
    from tidemill.outputs.vectors.chainer import ChainStatus
    from tidemill.pipeline.reports import StreamStatus
    from tidemill.pipeline.scrub_progress import ScrubStatus
    from tidemill.storage.state.faults import Fault


def status(
    now: int,
    streams: Sequence[StreamStatus],
    gateway: GatewaySettings,
    running: Sequence[GatewayStatus],
    faults: Sequence[Fault],
    scrub: ScrubStatus,
    ingest: IngestHealth,
) -> View:
    """Where the streams stand; how events are gathered, and which gateways do so now; what is damaged."""
    if faults:
        yield pairs_table("warehouse", [("fault", _fault(fault)) for fault in faults])
    for stream in streams:
        yield status_table(now, stream)
    yield gateways_table(gateway, running, ingest)
    yield scrub_table(now, scrub)


def scrub_table(now: int, of: ScrubStatus) -> Table:
    last, current = of.last_full, of.current
    age = "never" if last is None else f"{format_duration(max(0, now - last.started))} ago"
    read = "" if last is None else f"  ({many(last.files, 'file')}, {size(last.bytes)})"
    pairs = [("all files read", Text.assemble(age, (read, "dim")))]
    if current is not None:
        read = f"{many(current.files, 'file')}, {size(current.bytes)}"
        pairs.append(("under way", Text(f"since {format_instant(current.started)}, {read}")))
    for one in of.damages:
        said = f"{shown(one.damage.file)}: {shown(one.damage.reason)}\nsince {format_instant(one.since)}; "
        pairs.append(("damaged", Text(said + remedy(one.damage), style="red")))
    if not of.damages:
        pairs.append(("damaged", Text("none known")))
    return pairs_table("scrub", pairs)


def status_table(now: int, of: StreamStatus) -> Table:
    totals = of.totals
    counts = documents.counts_of(totals)
    by_status = {name: totals[f"{name.value}_slices"] for name in SliceStatus}
    slices = Text(", ").join(
        Text(f"{count:,} {name.value}", style=STATUS_STYLES[name] if count else "")
        for name, count in by_status.items()
    )
    slices.append(f"  ({many(totals['landings'], 'landing')}, {size(totals['bytes'])})", style="dim")
    pairs = [("slices", slices), ("outcomes", Text(outcome_words(counts)))]
    pairs[:0] = [("fault", _fault(fault)) for fault in of.faults]
    if of.retry_at is not None:
        pairs.append(("next try", Text(f"of a failed slice at {format_instant(of.retry_at)}", style="red")))
    if of.manifests:
        listed = ", ".join(f"{count:,} {status}" for status, count in of.manifests.items())
        pairs.append(("manifests", Text(listed)))
    if counts.rejects:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.rejects.items())
        pairs.append(("rejected", Text(shown(reasons), style="yellow")))
    pairs += time_pairs(now, of)
    pairs += [
        ("raw", Text(f"{many(of.raw_rows, 'row')} in {many(of.raw_parts, 'part')}")),
        *([("packing", _packing(of))] if of.packed_parts or of.unpacked_slices else []),
        *([("sealed before", Text(format_instant(of.sealed)))] if of.sealed is not None else []),
        ("quarantine", Text(many(of.quarantine_rows, "row"))),
        *([("index", _index(of))] if of.index_parts is not None else []),
        *([("chains", _chains(of.chains))] if of.chains is not None else []),
        ("tiles", Text(level_words(of.tiles) or "none")),
        ("stale tiles", Text(f"{of.stale_tiles:,}", style="yellow" if of.stale_tiles else "")),
    ]
    pairs += [("pending", Text(shown(f"{one.detail}. {one.remedy}."), style="yellow")) for one in of.pending]
    if any(of.windows.values()):
        pairs.append(("windows", _phases(of.windows)))
        if of.outdated_windows:
            shown_parts = f"{many(of.outdated_windows, 'window')} to evaluate again: rules or columns changed"
            pairs.append(("outdated", Text(shown_parts, style="yellow")))
        pairs.append(("queue", Text(f"{many(of.windows.get('queued', 0), 'window')} to build")))
    return pairs_table(of.stream, pairs)


def _fault(of: Fault) -> Text:
    tried = f"since {format_instant(of.since)}, {many(of.attempts, 'attempt')}"
    hint = f"\n{shown(of.hint)}" if of.hint else ""
    said = (
        f"{of.output} ({of.code}): {shown(of.message)}\n{tried}; next at {format_instant(of.next_try)}{hint}"
    )
    return Text(said, style="red")


def _index(of: StreamStatus) -> Text:
    without = f"; {many(of.unindexed_parts, 'raw part')} without" if of.unindexed_parts else ""
    return Text(f"{many(of.index_parts or 0, 'part')}{without}", style="yellow" if without else "")


def _packing(of: StreamStatus) -> Text:
    parts = f"{many(of.packed_parts, 'packed part')}, {of.fresh_parts:,} fresh"
    return Text(f"{parts}; {many(of.unpacked_slices, 'slice')} not packed yet")


def _chains(of: ChainStatus) -> Text:
    held = f"{many(of.checkpoints, 'checkpoint')}, {of.pending:,} pending"
    shown_parts = Text(f"{held} in {many(of.parts, 'part')}, {size(of.bytes)}")
    return (
        shown_parts.append(f"; {of.overflowed:,} overflowed", style="red") if of.overflowed else shown_parts
    )


def _phases(windows: Mapping[str, int]) -> Text:
    shown_parts = [(count, phase) for phase in PHASE_STYLES if (count := windows.get(phase, 0))]
    found = [Text(f"{count:,} {phase}", style=PHASE_STYLES[phase]) for count, phase in shown_parts]
    return Text(", ").join(found)
