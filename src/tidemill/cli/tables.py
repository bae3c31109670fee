"""Results as Rich tables and lines for people.

Only `Text` goes into a cell, so that nothing that came from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from rich import box
from rich.table import Table
from rich.text import Text

from tidemill.cli.shown import shown
from tidemill.model.levels import NAMES
from tidemill.model.slices import Counts, SliceEntry, SliceStatus
from tidemill.model.time import format_duration, format_instant, from_datetime
from tidemill.pipeline.documents import shapes as plain

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.ingest.landing import Landed
    from tidemill.pipeline.verify import Audit, Finding
    from tidemill.query import Answer

Piece = str | tuple[str, str]

ID_LETTERS: Final = 12
PAYLOAD_LETTERS: Final = 100
STATUS_STYLES: Final = {
    SliceStatus.PENDING: "yellow",
    SliceStatus.ACCEPTED: "green",
    SliceStatus.FAILED: "red",
    SliceStatus.RETRACTED: "magenta",
}
PHASE_STYLES: Final = {
    "waiting": "",
    "ready": "yellow",
    "queued": "yellow",
    "building": "yellow",
    "built": "green",
    "final": "green",
    "failed": "red",
}


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def all_of(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def size(count: int) -> str:
    """Bytes for people."""
    if count < 1024:
        return f"{count} B"
    power = min(4, (count.bit_length() - 1) // 10)
    tenths = (count * 10 + (1 << 10 * power - 1)) >> 10 * power
    return f"{tenths // 10}.{tenths % 10} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def outcome_words(counts: Counts) -> str:
    late = f" ({counts.late:,} late)" if counts.late else ""
    return (
        f"{many(counts.records, 'record')}: {counts.accepted:,} accepted{late}, "
        f"{counts.duplicate:,} duplicate, {counts.conflict:,} conflict, {counts.rejected:,} rejected"
    )


def level_words(tiles: Mapping[str, int]) -> str:
    return ", ".join(f"{level} {tiles[level]:,}" for level in NAMES if level in tiles)


def lag_words(now: int, watermark: int) -> str:
    """To the second; nobody reads the microseconds of a lag."""
    lag = now - watermark
    return format_duration(lag - lag % 1_000_000) if lag >= 0 else f"-{lag_words(-now, -watermark)}"


def landed_line(one: Landed) -> Iterator[Piece]:
    new = one.entry.slice
    yield ("landed  ", "green") if one.new else ("again   ", "yellow")
    yield (new.id[:ID_LETTERS], "bold")
    yield f"  {size(new.size):>10}  {shown(new.name)}"
    if not one.new:
        yield (f"  (the same slice; landed {one.entry.landings} times)", "dim")


def pairs_table(title: str, pairs: Sequence[tuple[str, Text]]) -> Table:
    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE,
        show_header=False,
        pad_edge=False,
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    return table


def listing(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(
            Text(shown(name)),
            justify="right" if name in right else "left",
            no_wrap=name in right,
            overflow="fold",
        )
    return table


def ledger_table(entries: Sequence[SliceEntry]) -> Table:
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
    """What its sender called it; under it, why it can not be read and what comes of that."""
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
    data = plain.entry(of)
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
            pairs.append((name, Text(shown(plain.dumps(value)))))
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


def cell(value: object) -> str:
    """A value of an answer for people."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return format_instant(from_datetime(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, list):
        return "[" + ", ".join(map(cell, value)) + "]"
    return shown(str(value))


def answer_table(rows: pa.Table) -> Table:
    import pyarrow.types as types

    numbers = [
        field.name for field in rows.schema if types.is_integer(field.type) or types.is_decimal(field.type)
    ]
    table = listing(*rows.column_names, right=numbers)
    for values in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        table.add_row(*(Text(cell(value)) for value in values))
    return table


def answer_facts(answer: Answer) -> str:
    return (
        f"{many(answer.table.num_rows, 'row')} from level {answer.level}; {many(answer.rows_read, 'row')} in "
        f"{many(answer.files_read, 'file')} read; version {answer.version}"
    )


def audit_lines(audit: Audit) -> Iterator[list[Piece]]:
    for one in audit.streams:
        found = sum(1 for finding in audit.findings if finding.stream == one.stream)
        verdict = (many(found, "difference"), "bold red") if found else ("equal", "bold green")
        pending = f" ({one.pending:,} pending)" if one.pending else ""
        made = [many(one.tiles, "tile")]
        made += [many(one.datasets, "dataset")] if one.datasets else []
        made += [many(one.results, "result")] if one.results else []
        made += [many(one.chains, "chain")] if one.chains else []
        gone = [many(one.sealed, "tile")] if one.sealed else []
        gone += [many(one.sealed_windows, "window")] if one.sealed_windows else []
        sealed = f" ({all_of(gone)} sealed: raw is gone)" if gone else ""
        yield [
            (one.stream, "bold"),
            f": {many(one.slices, 'slice')}{pending}, {many(one.raw_rows, 'raw row')}",
            f", {all_of(made)} recomputed{sealed}: ",
            verdict,
        ]


def findings_table(findings: Sequence[Finding]) -> Table:
    table = listing("stream", "what", "where", "difference")
    for one in findings:
        what = f"{one.difference}; {one.remedy}" if one.remedy else one.difference
        table.add_row(*(Text(shown(text)) for text in (one.stream, one.what, one.where, what)))
    return table
