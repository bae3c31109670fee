"""What views are made of: lines, notes, two kinds of tables, and values as words.

Only `Text` goes into a cell or a line, so that nothing from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.model.errors import TidemillError
from tidemill.model.levels import NAMES
from tidemill.model.slices import Counts, SliceStatus
from tidemill.model.time import format_duration, format_instant, from_datetime
from tidemill.model.zones import UTC_NAMES

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


@dataclass(frozen=True, slots=True)
class Note:
    """Advice beside a result: it goes to stderr, and is left out with --quiet."""

    text: str


# An error is part of a view where it does not end the command.
Block = Table | Text | Note | TidemillError
View = Iterable[Block]
Piece = str | tuple[str, str]  # text, or text and its style


def line(*pieces: Piece) -> Text:
    return Text.assemble(*pieces)


def newest_note(count: int) -> Note:
    """Return the note that a list shows only its newest entries."""
    return Note(f"the newest {count}; --limit 0 shows all")


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def all_of(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def size(count: int) -> str:
    """Return a number of bytes with a unit."""
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
    """Return a lag in whole seconds."""
    lag = now - watermark
    return format_duration(lag - lag % 1_000_000) if lag >= 0 else f"-{lag_words(-now, -watermark)}"


def pairs_table(title: str, pairs: Sequence[tuple[str, Text]]) -> Table:
    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        min_width=len(title),
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
            Text(escaped(name)),
            justify="right" if name in right else "left",
            no_wrap=name in right,
            overflow="fold",
        )
    return table


def cell(value: object) -> str:
    """Return a value of an answer as text."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        # The buckets of a query with a time zone start at local midnights, and people look for those.
        local = value.tzinfo is not None and str(value.tzinfo) not in UTC_NAMES
        return value.isoformat() if local else format_instant(from_datetime(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return escaped(value.decode("utf-8", "backslashreplace"))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{escaped(str(name))}: {cell(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(cell, value)) + "]"
    return escaped(str(value))
