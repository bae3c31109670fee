"""Commands that list and export datasets and events: datasets, export, events. They start no JVM and change
nothing in the warehouse."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import OK, Session
from tidemill.cli.settings import From, Limit, To, Wait, pause_of, span_of
from tidemill.cli.signals import until_stopped
from tidemill.model.time import SECOND
from tidemill.pipeline import documents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemill.mill import Mill

# Imports inside functions keep start-up short: a command loads only what it runs.

PAGE: Final = 1_000  # events read from the outbox at once


@command(
    "datasets",
    Panel.DATASETS,
    "tidemill datasets",
    "tidemill datasets weather --from 2024-01-15T00:00:00Z --output json",
)
def datasets(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="By default all streams.")] = None,
    start: From = None,
    end: To = None,
    limit: Limit = 50,
) -> int:
    """List the newest dataset of each window: its file, rows, revision and hash, and whether it is current.

    The files are Arrow IPC: pyarrow, DuckDB and Polars open them directly.
    """
    from tidemill.outputs.datasets.damage import damage_of

    with session.mill() as mill:
        found = mill.windows.datasets(stream, span_of(start, end))[::-1]
        warehouse = mill.project.warehouse
    shown = [(window, damage_of(warehouse, window)) for window in (found[:limit] if limit else found)]
    more = len(found) > len(shown)
    session.emit(
        lambda: documents.windows.datasets(warehouse, shown, more=more),
        lambda: views.datasets.datasets(warehouse, shown, more=more),
    )
    return OK


@command(
    "export",
    Panel.DATASETS,
    "tidemill export weather --window 2024-01-15T13:00:00Z --to parquet",
    "tidemill export weather --window 2024-01-15T13:00:00Z --to csv --revision 1 -o first.csv",
    "tidemill export weather --window 2024-01-15T13:00:00Z --window 2024-01-15T14:00:00Z --to arrow -o out/",
)
def export(
    session: Session,
    stream: Annotated[str, typer.Argument(help="A stream that declares an aggregation_span.")],
    windows: Annotated[
        list[str],
        typer.Option(
            "--window", metavar="START", help="The window that holds this instant; may be repeated."
        ),
    ],
    to: Annotated[str, typer.Option("--to", metavar="F", help="parquet, arrow or csv.")],
    revision: Annotated[int | None, typer.Option(min=1, metavar="N", help="By default the newest.")] = None,
    target: Annotated[
        str,
        typer.Option(
            "-o", "--file", metavar="PATH", help="A file for all of them, or a folder (out/) for one each."
        ),
    ] = ".",
) -> int:
    """Write the datasets of windows as files of another format; the same dataset gives the same rows."""
    with session.mill() as mill:
        files = mill.export(stream, windows, to, _target(target), revision)
    session.emit(
        lambda: {"stream": stream, "files": [str(file) for file in files]},
        lambda: views.datasets.exported(files),
    )
    return OK


def _target(text: str) -> Path:
    """Return the user's own path; one that ends in a slash is a folder, and is created."""
    path = Path(text)
    if text.endswith("/") and not path.exists():
        path.mkdir(parents=True)
    return path


@command(
    "events",
    Panel.DATASETS,
    "tidemill events weather",
    "tidemill events --follow --output json",
    "tidemill events --after 128 --limit 10",
)
def events(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="By default all streams.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Keep printing new events, until Ctrl-C.")
    ] = False,
    after: Annotated[
        int, typer.Option(min=0, metavar="SEQ", help="Only events after this sequence number.")
    ] = 0,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Stop after so many; 0 is all.")] = 0,
    interval: Wait = "1s",
) -> int:
    """List published events, in order: datasets that became available or were withdrawn, and results.

    CloudEvents 1.0, with --output json one a line. Pass the seq of an event to --after to continue after it.
    """
    wait = pause_of(interval)

    def work(stop: threading.Event) -> None:
        with session.mill() as mill:
            position, left = after, limit or None
            while not stop.is_set() and left != 0:
                published_events = _print_events(session, mill, position, min(PAGE, left or PAGE), stream)
                if published_events:
                    position = published_events[-1]
                    left = None if left is None else left - len(published_events)
                elif follow:
                    stop.wait(wait / SECOND)
                else:
                    return

    until_stopped(work)
    return OK


def _print_events(session: Session, mill: Mill, after: int, limit: int, stream: str | None) -> list[int]:
    """Print the next events and return their sequence numbers."""
    found = mill.events(after, limit, stream)
    for seq, event in found:
        _print_event(session, seq, event)
    return [seq for seq, _ in found]


def _print_event(session: Session, seq: int, event: Mapping[str, object]) -> None:
    # `seq`, an extension attribute: what --after takes to go on from here
    session.emit(lambda: {**event, "seq": seq}, lambda: views.datasets.event(seq, event))
