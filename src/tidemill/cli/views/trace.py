"""Views of the trace of one event.

Only `Text` goes into a cell, so that nothing that came from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import ID_LETTERS, Note, View, cell, line, listing, number, pairs_table
from tidemill.model.time import format_instant

if TYPE_CHECKING:
    from rich.table import Table

    from tidemill.outputs.windows.trace import TracedResult
    from tidemill.pipeline.trace import EventTrace, TracedTile, TracedWindow
    from tidemill.raw.arrivals import Arrival


def trace(found: Sequence[EventTrace]) -> View:
    for of in found:
        tenant = f", tenant {escaped(of.tenant)}" if of.tenant is not None else ""
        yield line((f"{of.stream}{tenant}", "bold"))
        yield _arrivals(of.arrivals)
        if of.row is not None:
            yield pairs_table("row", [(name, Text(escaped(cell(value)))) for name, value in of.row.items()])
        if of.tiles:
            yield _tiles(of.tiles)
        if of.windows:
            yield _windows(of.windows)
        if of.results:
            yield _results(of.results)
        if not of.searched.complete:
            yield Note(
                f"{of.searched.slices} of {of.searched.of} slices that can hold a repeat were read; "
                "the others may hold more arrivals"
            )


def _arrivals(arrivals: Sequence[Arrival]) -> Table:
    table = listing("arrived", "slice", "line", "source", "outcome", "why", "name", right=("line",))
    for of in arrivals:
        new = of.entry.slice
        why = ": ".join(text for text in (of.reason, of.detail) if text is not None)
        table.add_row(
            Text(format_instant(new.arrival)),
            Text(new.id[:ID_LETTERS]),
            number(of.line),
            Text(escaped(new.source)),
            Text(of.outcome),
            Text(escaped(why)),
            Text(escaped(new.name)),
        )
    return table


def _tiles(tiles: Sequence[TracedTile]) -> Table:
    table = listing("metric", "level", "bucket", "counted under", "revision", "state", right=("revision",))
    for of in tiles:
        table.add_row(
            Text(of.metric),
            Text(of.level.name),
            Text(format_instant(of.bucket)),
            Text(_pairs(of.group)),
            number(of.revision),
            Text(of.state),
        )
    return table


def _windows(windows: Sequence[TracedWindow]) -> Table:
    table = listing("dataset", "state", "revision", "rows", "in it", right=("revision", "rows"))
    for of in windows:
        for one, includes in of.revisions:
            current = f"{of.status.value}, current" if one.revision == of.current else of.status.value
            table.add_row(
                Text(str(of.key.interval)),
                Text(current),
                number(one.revision),
                number(one.rows),
                _included(includes),
            )
        if not of.revisions:
            table.add_row(Text(str(of.key.interval)), Text(of.status.value), "", "", Text("not built"))
    return table


def _results(results: Sequence[TracedResult]) -> Table:
    table = listing("window", "start", "group", "revision", "values", "in it", "fate", right=("revision",))
    for of in results:
        for row, includes in zip(of.revisions, of.includes, strict=True):
            values = {one.name: row[one.name] for one in of.spec.aggregates}
            groups = {name: row[name] for name in of.spec.grouped_by if name in row}
            table.add_row(
                Text(of.spec.name),
                Text(cell(row["start"])),
                Text(_pairs(groups)),
                cell(row["revision"]),
                Text(_pairs(values)),
                _included(includes),
                Text(of.fate.value),
            )
    return table


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={escaped(cell(value))}" for name, value in values.items())


def _included(includes: bool | None) -> Text:
    return Text("not known" if includes is None else "yes" if includes else "no")
