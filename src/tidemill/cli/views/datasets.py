"""Datasets and their events, as text.

Only `Text` goes into a cell, so that nothing that came from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import ID_LETTERS, Piece, View, line, listing, newest_note, number, size
from tidemill.model.time import format_instant
from tidemill.model.windows import Window
from tidemill.outputs.datasets.damage import repair_command
from tidemill.pipeline.documents.windows import is_current
from tidemill.storage.bucket_path import location


def datasets(warehouse: Path, found: Sequence[tuple[Window, str | None]], *, more: bool) -> View:
    """The newest dataset of each window, with what is wrong with its file."""
    if not found:
        yield line("no datasets")
        return
    yield _datasets(warehouse, found)
    if more:
        yield newest_note(len(found))


def exported(files: Sequence[Path]) -> View:
    for file in files:
        yield line(("wrote ", "green"), escaped(str(file)))


def event(seq: int, event: Mapping[str, object]) -> View:
    """Yield a CloudEvent: its time, type and window."""
    yield line(*_event(seq, event))


def _event(seq: int, event: Mapping[str, object]) -> Iterator[Piece]:
    data = event.get("data")
    fields: Mapping[str, object] = data if isinstance(data, Mapping) else {}
    yield f"{seq:>6} "
    yield (f"{_text_at(event, 'time')[:19]}Z ", "dim")
    yield (_text_at(event, "type").removeprefix("tidemill."), "green")
    yield (f"  {_text_at(fields, 'stream')} [{_text_at(fields, 'start')}, {_text_at(fields, 'end')})", "cyan")
    yield f"  revision {_text_at(fields, 'revision')}"
    if fields.get("supersedes") is not None:
        yield f" in place of {_text_at(fields, 'supersedes')}"
    if fields.get("rows") is not None:
        yield f", {_text_at(fields, 'rows')} rows"
    if why := fields.get("trigger") or fields.get("reason"):
        yield f": {escaped(str(why))}"
    if fields.get("location") is not None:
        yield (f"  {_text_at(fields, 'location')}", "dim")


def _text_at(of: Mapping[str, object], name: str) -> str:
    return escaped(str(of.get(name, "")))


def _datasets(warehouse: Path, found: Sequence[tuple[Window, str | None]]) -> Table:
    numbers = ("rev", "rows", "bytes")
    table = listing("stream", "start", "end", "rev", "rows", "bytes", "hash", "is", "file", right=numbers)
    for of, damage in found:
        table.add_row(
            Text(of.key.stream),
            Text(format_instant(of.key.start)),
            Text(format_instant(of.key.end)),
            number(of.revision),
            number(of.rows),
            "" if of.bytes is None else size(of.bytes),
            Text((of.observed or "")[:ID_LETTERS]),
            _is(of, damage),
            Text(escaped(location(warehouse / (of.file or "")))),
        )
    return table


def _is(of: Window, damage: str | None) -> Text:
    if damage is not None:
        return Text(f"damaged: {escaped(damage)}; {repair_command(of.key)}", style="red")
    return Text("current", style="green") if is_current(of) else _stale(of)


def _stale(of: Window) -> Text:
    texts = {"queued": "being rebuilt", "building": "being rebuilt", "failed": "stale: its rebuild failed"}
    return Text(texts.get(of.phase.value, "stale"), style="yellow")
