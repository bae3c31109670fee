"""Views of status, ledger, slices, quarantine and metrics.

Only `Text` goes into a cell, so that nothing from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.cli.views.event_time import time_pairs
from tidemill.cli.views.layout import (
    ID_LETTERS,
    PAYLOAD_LETTERS,
    PHASE_STYLES,
    STATUS_STYLES,
    View,
    level_words,
    line,
    listing,
    many,
    newest_note,
    outcome_words,
    pairs_table,
    size,
)
from tidemill.cli.views.serve import gateways_table
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.time import format_duration, format_instant
from tidemill.pipeline.documents import shapes as documents
from tidemill.pipeline.documents.scrub import remedy

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.config.gateway import GatewaySettings
    from tidemill.ingest.gateway.status import IngestHealth
    from tidemill.model.gateway import GatewayStatus
    from tidemill.outputs.vectors.chainer import ChainStatus
    from tidemill.pipeline.reports import StreamStatus
    from tidemill.pipeline.scrub_progress import ScrubStatus
    from tidemill.storage.sessions import OpenSession
    from tidemill.storage.state.faults import Fault


def status(
    now: int,
    streams: Sequence[StreamStatus],
    gateway: GatewaySettings,
    running: Sequence[GatewayStatus],
    faults: Sequence[Fault],
    scrub: ScrubStatus,
    ingest: IngestHealth,
    sessions: Sequence[OpenSession],
) -> View:
    """Yield the state of the streams, the settings of the gateway, running gateways, what is damaged, and
    where running processes show their Spark jobs."""
    if faults:
        yield pairs_table("warehouse", [("fault", _fault(fault)) for fault in faults])
    for stream in streams:
        yield status_table(now, stream)
    yield gateways_table(gateway, running, ingest)
    yield scrub_table(now, scrub)
    if sessions:
        yield pairs_table("spark", [(f"process {one.pid}", _session(one)) for one in sessions])


def _session(of: OpenSession) -> Text:
    if of.ui is not None:
        return Text.assemble(escaped(of.ui), (f"  ({escaped(of.master)})", "dim"))
    off = "; no web UI: engine.conf: {spark.ui.enabled: true} starts it"
    return Text.assemble(escaped(of.master), (off, "dim"))


def scrub_table(now: int, of: ScrubStatus) -> Table:
    last, current = of.last_full, of.current
    age = "never" if last is None else f"{format_duration(max(0, now - last.started))} ago"
    read = "" if last is None else f"  ({many(last.files, 'file')}, {size(last.bytes)})"
    pairs = [("all files read", Text.assemble(age, (read, "dim")))]
    if current is not None:
        read = f"{many(current.files, 'file')}, {size(current.bytes)}"
        pairs.append(("under way", Text(f"since {format_instant(current.started)}, {read}")))
    for one in of.damages:
        detail = (
            f"{escaped(one.damage.file)}: {escaped(one.damage.reason)}\nsince {format_instant(one.since)}; "
        )
        pairs.append(("damaged", Text(detail + remedy(one.damage), style="red")))
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
        pairs.append(("rejected", Text(escaped(reasons), style="yellow")))
    pairs += time_pairs(now, of)
    pairs += [
        ("raw", Text(f"{many(of.raw_rows, 'row')} in {many(of.raw_parts, 'part')}")),
        *([("packing", _packing(of))] if of.packed_parts or of.unpacked_slices else []),
        *([("columns", _stale_columns(of))] if of.stale_parts else []),
        *([("sealed before", Text(format_instant(of.sealed)))] if of.sealed is not None else []),
        ("quarantine", Text(many(of.quarantine_rows, "row"))),
        *([("index", _index(of))] if of.index_parts is not None else []),
        *([("chains", _chains(of.chains))] if of.chains is not None else []),
        ("tiles", Text(level_words(of.tiles) or "none")),
        ("stale tiles", Text(f"{of.stale_tiles:,}", style="yellow" if of.stale_tiles else "")),
    ]
    pairs += [
        ("pending", Text(escaped(f"{one.detail}. {one.remedy}."), style="yellow")) for one in of.pending
    ]
    if any(of.windows.values()):
        pairs.append(("windows", _phases(of.windows)))
        if of.outdated_windows:
            shown_parts = f"{many(of.outdated_windows, 'window')} to evaluate again: rules or columns changed"
            pairs.append(("outdated", Text(shown_parts, style="yellow")))
        pairs.append(("queue", Text(f"{many(of.windows.get('queued', 0), 'window')} to build")))
    return pairs_table(of.stream, pairs)


def _fault(of: Fault) -> Text:
    tried = f"since {format_instant(of.since)}, {many(of.attempts, 'attempt')}"
    hint = f"\n{escaped(of.hint)}" if of.hint else ""
    message = f"{of.output} ({of.code}): {escaped(of.message)}"
    detail = f"{message}\n{tried}; next at {format_instant(of.next_try)}{hint}"
    return Text(detail, style="red")


def _index(of: StreamStatus) -> Text:
    without = f"; {many(of.unindexed_parts, 'raw part')} without" if of.unindexed_parts else ""
    return Text(f"{many(of.index_parts or 0, 'part')}{without}", style="yellow" if without else "")


def _packing(of: StreamStatus) -> Text:
    parts = f"{many(of.packed_parts, 'packed part')}, {of.fresh_parts:,} fresh"
    return Text(f"{parts}; {many(of.unpacked_slices, 'slice')} not packed yet")


def _stale_columns(of: StreamStatus) -> Text:
    of_raw = f"{many(of.stale_rows, 'row')} in {many(of.stale_parts, 'part')}"
    return Text(f"{of_raw} not made again yet by the new declaration", style="yellow")


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


def ledger(entries: Sequence[SliceEntry], *, more: bool) -> View:
    if not entries:
        yield line("no slices")
        return
    yield _ledger(entries)
    if more:
        yield newest_note(len(entries))


def quarantine(rows: pa.Table, *, more: bool) -> View:
    if not rows.num_rows:
        yield line("nothing in quarantine")
        return
    yield quarantine_table(rows)
    if more:
        yield newest_note(rows.num_rows)


def metrics(text: str) -> View:
    """Yield metrics in the Prometheus format."""
    yield line(text.rstrip("\n"))


def _ledger(entries: Sequence[SliceEntry]) -> Table:
    numbers = ("#", "records", "accepted", "dup", "conf", "rej", "late", "bytes")
    table = listing(
        "#", "slice", "stream", "status", "arrived", "records", "accepted", "dup", "conf", "rej", "late",
        "bytes", "name", right=numbers,
    )  # fmt: skip
    for of in entries:
        n = of.counts
        counted = (n.records, n.accepted, n.duplicate, n.conflict, n.rejected, n.late)
        table.add_row(
            str(of.seq),
            Text(of.id[:ID_LETTERS], style="bold"),
            Text(of.slice.stream),
            Text(of.status.value, style=STATUS_STYLES[of.status]),
            Text(format_instant(of.slice.arrival)[:19] + "Z"),
            *(f"{number:,}" if of.status is not SliceStatus.PENDING else "" for number in counted),
            size(of.slice.size),
            _named(of),
        )
    return table


def _named(of: SliceEntry) -> Text:
    """Return the name that the sender gave; for a failed slice also the error, and when it is tried again."""
    name = Text(escaped(of.slice.name))
    if of.status is SliceStatus.FAILED:
        name.append(f"\n{escaped(of.error or '')}; {failed_words(of)}", style="red")
    return name


def failed_words(of: SliceEntry) -> str:
    often = f"failed {many(of.failures, 'time')}"
    if of.tried_next is None:
        return f"{often}, tried again when the declaration changes"
    return f"{often}, tried again at {format_instant(of.tried_next)}"


def slice_table(of: SliceEntry) -> Table:
    data = documents.entry(of)
    pairs = []
    for name, value in data.items():
        if name == "counts":
            pairs.append((name, Text(outcome_words(of.counts))))
            if of.counts.rejects:
                reasons = ", ".join(f"{reason} {count:,}" for reason, count in of.counts.rejects.items())
                pairs.append(("rejects", Text(escaped(reasons))))
        elif name == "status":
            pairs.append((name, Text(of.status.value, style=STATUS_STYLES[of.status])))
        elif name == "metadata" and value is not None:
            pairs.append((name, Text(escaped(documents.dumps(value)))))
        elif name in ("attempt", "failures", "retried") and not value:
            continue  # it went through the gate once, as all do
        elif isinstance(value, Mapping):
            pairs.append((name, Text(f"[{value['start']}, {value['end']})")))
        elif value is not None:
            pairs.append((name, Text(escaped(str(value)))))
    return pairs_table(f"slice {of.id[:ID_LETTERS]}", pairs)


def quarantine_table(rows: pa.Table) -> Table:
    table = listing("slice", "line", "reason", "detail", "tenant", "event_id", "payload", right=("line",))
    for row in rows.to_pylist():
        head = row["payload"][: 4 * PAYLOAD_LETTERS]
        text = head.decode("utf-8", "backslashreplace")
        cut = len(head) < len(row["payload"]) or len(text) > PAYLOAD_LETTERS
        table.add_row(
            Text(row["slice"][:ID_LETTERS]),
            str(row["line"]),
            Text(row["reason"], style="yellow"),
            *(Text(escaped(row[name] or "")) for name in ("detail", "tenant", "event_id")),
            Text(escaped(text[:PAYLOAD_LETTERS]) + ("…" if cut else "")),
        )
    return table
