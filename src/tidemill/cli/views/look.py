"""What became of slices and records, and metrics, for people.

Only `Text` goes into a cell, so that nothing that came from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tidemill.cli.shown import shown
from tidemill.cli.views.layout import (
    ID_LETTERS,
    PAYLOAD_LETTERS,
    STATUS_STYLES,
    View,
    line,
    listing,
    many,
    newest_note,
    outcome_words,
    pairs_table,
    size,
)
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.time import format_instant
from tidemill.pipeline.documents import shapes as documents

if TYPE_CHECKING:
    import pyarrow as pa


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
    """In the format of Prometheus."""
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
    """What its sender called it; under it, why it cannot be read and what comes of that."""
    name = Text(shown(of.slice.name))
    if of.status is SliceStatus.FAILED:
        name.append(f"\n{shown(of.error or '')}; {failed_words(of)}", style="red")
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
                pairs.append(("rejects", Text(shown(reasons))))
        elif name == "status":
            pairs.append((name, Text(of.status.value, style=STATUS_STYLES[of.status])))
        elif name == "metadata" and value is not None:
            pairs.append((name, Text(shown(documents.dumps(value)))))
        elif name in ("attempt", "failures", "retried") and not value:
            continue  # it went through the gate once, as all do
        elif isinstance(value, Mapping):
            pairs.append((name, Text(f"[{value['start']}, {value['end']})")))
        elif value is not None:
            pairs.append((name, Text(shown(str(value)))))
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
            *(Text(shown(row[name] or "")) for name in ("detail", "tenant", "event_id")),
            Text(shown(text[:PAYLOAD_LETTERS]) + ("…" if cut else "")),
        )
    return table
