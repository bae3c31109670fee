"""Commands that run a server: serve, up."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.first_event import curl_line
from tidemill.cli.session import OK, Session
from tidemill.cli.settings import Wait, pause_of
from tidemill.cli.signals import until_stopped
from tidemill.model.time import SECOND
from tidemill.pipeline import documents

if TYPE_CHECKING:
    from tidemill.mill import Mill
    from tidemill.pipeline.documents.results import Flushed
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.pipeline.reports import TickReport
    from tidemill.server.start import Started

# Imports inside functions keep start-up short: a command loads only what it runs.

Host = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Where to listen; by default gateway.host, which is 127.0.0.1."),
]
Port = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, metavar="N", help="By default gateway.port, which is 8470; 0 is any free one."
    ),
]


@command(
    "serve",
    Panel.SERVE,
    "tidemill serve",
    "tidemill serve --host 0.0.0.0 --port 8470",
    "tidemill serve --port 0 --output json",
)
def serve(session: Session, host: Host = None, port: Port = None) -> int:
    """Receive events over HTTP and answer queries, until Ctrl-C or SIGTERM.

    Events are durable when they are acknowledged, and become slices within seconds. `tidemill run` in
    another process accepts them and builds the outputs. Without a token, only this machine is served.
    """
    from tidemill.server.start import serve as run

    def work(stop: threading.Event) -> None:
        with session.mill() as mill:
            run(mill, stop, host=host, port=port, announce=lambda what: _announce(session, mill, what, None))
            session.note("stopped")

    until_stopped(work)
    return OK


@command(
    "up",
    Panel.SERVE,
    "tidemill up",
    "tidemill up --port 0 --output json",
    "tidemill up --interval 250ms",
)
def up(session: Session, host: Host = None, port: Port = None, interval: Wait = "1s") -> int:
    """All of Tidemill in one process: `serve` and `run`. Events are accepted and outputs built at once.

    In a folder without a tidemill.yaml it writes one, with streams for events, logs and traces. When it is
    stopped, it takes no more requests, lands what is in open windows and processes it.
    """
    # importing it at the top would declare its commands, too
    from tidemill.cli.ingest import print_flushed, print_tick
    from tidemill.server.start import up as run

    wait = pause_of(interval)
    made = _declared(session)
    with session.working() as progress:

        def work(stop: threading.Event) -> None:
            def ticked(report: TickReport) -> None:
                if not report.idle:
                    print_tick(session, report)

            def flushed(done: Flushed) -> None:
                if any(not one.idle for of in done.values() for one in of):
                    print_flushed(session, done)

            with session.mill(progress) as mill:
                run(
                    mill,
                    stop,
                    host=host,
                    port=port,
                    interval=wait / SECOND,
                    announce=lambda what: _announce(session, mill, what, made),
                    on_tick=ticked,
                    on_flush=flushed,
                )
                session.note("stopped")

        until_stopped(work)
    return OK


def _declared(session: Session) -> Path | None:
    """Write a tidemill.yaml if the folder has none, and return its path."""
    from tidemill.config import FILE_NAME, read_template

    folder = session.settings.project
    file = folder / FILE_NAME
    if not folder.is_dir() or file.exists():
        return None

    import yaml

    text = read_template("events")
    # never overwrite one that another process writes meanwhile
    with file.open("x", encoding="utf-8") as made:
        made.write(text)
    streams = list(yaml.safe_load(text)["streams"])
    # programs find it in the first document of `up`
    session.show(lambda: views.serve.declared(file, streams))
    return file


def _announce(session: Session, mill: Mill, what: Started, made: Path | None) -> None:
    first = next(iter(mill.project.streams.values()), None)
    line = None if first is None else curl_line(what.url, first, mill.clock(), token=what.tokens > 0)
    session.emit(lambda: _started(what, made, line), lambda: views.serve.started(what, line))


def _started(of: Started, made: Path | None, trying: str | None) -> Document:
    from tidemill.storage.bucket_path import location

    otlp = of.settings.otlp
    return {
        "url": of.url,
        "gateway": of.gateway,
        "pipeline": of.pipeline,
        "warehouse": location(of.warehouse),
        "streams": list(of.streams),
        **documents.gateway.settings(of.settings),
        "tokens": of.tokens,
        "otlp": {
            signal: f"{of.url}/v1/otlp/v1/{signal}"
            for signal, stream in (("logs", otlp.logs), ("traces", otlp.traces))
            if stream in of.streams
        },
        "taken_up": [
            {"gateway": one.gateway, "windows": one.windows, "events": one.events} for one in of.taken_up
        ],
        "made": None if made is None else str(made),
        "try": trying,
    }
