"""Views of the results of streaming windows.

Only `Text` goes into a cell, so that nothing from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import ID_LETTERS, Note, View, cell, line, listing, many
from tidemill.pipeline.documents.results import Flushed, group_columns
from tidemill.pipeline.documents.shapes import instant

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.model.completeness import Missing, Pending
    from tidemill.model.streaming import WindowSpec
    from tidemill.outputs.windows.reader import ResultStatus
    from tidemill.outputs.windows.refresh import WindowRefresh


def results(
    spec: WindowSpec,
    rows: pa.Table,
    lacks: Sequence[Missing | Pending],
    *,
    revisions: bool,
    more: bool,
) -> View:
    if rows.num_rows:
        yield _results(spec, rows, revisions=revisions)
    else:
        yield line(f"no results of {escaped(spec.name)}")
    if more:
        yield Note(f"the newest {rows.num_rows:,}; --limit 0 shows all")
    for one in lacks:
        yield Note(f"{escaped(str(one))}. {escaped(one.remedy)}.")


def _results(spec: WindowSpec, rows: pa.Table, *, revisions: bool) -> Table:
    """Return a row for each result; with `revisions` also its window, and whether it was replaced."""
    import pyarrow.types as types

    groups = [name for name in group_columns(spec) if name != "tenant"]
    values = [one.name for one in spec.aggregates]
    numbers = [
        name
        for name in values
        if not (types.is_string(kind := rows.schema.field(name).type) or types.is_boolean(kind))
    ]
    parts = ("rows", "late", "rev", "trigger")
    extra = ("window", "standing") if revisions else ()
    table = listing("start", "end", "tenant", *groups, *values, *parts, *extra, right=(*numbers, *parts[:3]))
    for row in rows.to_pylist():
        columns = ("start", "end", "tenant", *(group_columns(spec)[name] for name in groups), *values)
        gone = row["withdrawn"]
        table.add_row(
            *(Text(cell(row[name])) for name in columns),
            f"{row['rows']:,}",
            f"{row['late_rows']:,}",
            str(row["revision"]),
            Text(row["trigger"], style="magenta" if gone else ""),
            *((Text(row["window_id"][:ID_LETTERS]), _history(row)) if revisions else ()),
            style="dim" if gone else None,
        )
    return table


def _history(row: Mapping[str, object]) -> Text:
    """Return whether a revision withdrew something, and which windows replaced which."""
    replaced, by = row["supersedes"], row["superseded_by"]
    words = "withdrawn" if row["withdrawn"] else ""
    if by is not None:
        words += f", superseded by {str(by)[:ID_LETTERS]}"
    if isinstance(replaced, list) and replaced:
        words = f"supersedes {', '.join(str(one)[:ID_LETTERS] for one in replaced)}"
    return Text(words, style="magenta" if row["withdrawn"] else "")


def statuses(stream: str, windows: Sequence[ResultStatus], warehouse: Path) -> View:
    if not windows:
        yield line(f"{escaped(stream)} declares no streaming windows")
        return
    yield _statuses(windows, warehouse)
    for one in windows:
        if not one.current:
            yield Note(f"{one.spec.name} has another declaration; `tidemill run` computes its results again")


def _statuses(windows: Sequence[ResultStatus], warehouse: Path) -> Table:
    table = listing("window", "kind", "results", "newest end", "watermark", "table", right=("results",))
    for one in windows:
        table.add_row(
            Text(escaped(one.spec.name), style="bold"),
            one.spec.kind.value,
            f"{one.results:,}",
            *(Text(instant(at) or "-") for at in (one.newest_end, one.watermark)),
            Text(escaped(one.table.relative_to(warehouse).as_posix())),
        )
    return table


def refreshed_words(done: Sequence[WindowRefresh]) -> Iterator[str]:
    """Return `12 results of per_minute, 1 withdrawn`: each window that has new results."""
    for one in done:
        if one.results:
            gone = f", {one.withdrawn:,} withdrawn" if one.withdrawn else ""
            yield f"{many(one.results, 'result')} of {escaped(one.window)}{gone}"
        elif one.withdrawn:
            yield f"{many(one.withdrawn, 'result')} of {escaped(one.window)} withdrawn"


def rebuilt(stream: str, done: WindowRefresh) -> View:
    words = "; ".join(refreshed_words([done]))
    if words:
        yield line("rebuilt ", (stream, "bold"), f": {words}")
    else:
        yield line(f"nothing to rebuild: no result of {escaped(done.window)} is damaged")


def flushed(done: Flushed) -> View:
    parts = {stream: words for stream, of in done.items() if (words := "; ".join(refreshed_words(of)))}
    for stream, words in parts.items():
        yield line("flushed ", (stream, "bold"), f": {words}")
    if not parts:
        yield line("nothing to flush: no window was open")
