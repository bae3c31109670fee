"""What commands say of servers and gateways: the part of both outputs that knows these words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidemill.cli.shown import shown
from tidemill.cli.tables import many
from tidemill.cli.voice import Voice
from tidemill.pipeline.documents import gateway as plain

if TYPE_CHECKING:
    from tidemill.pipeline.documents.shapes import Plain
    from tidemill.server.start import Started


class ServingOutput(Protocol):
    """One method for each thing that a command can say of a server."""

    def declared(self, file: Path, streams: Sequence[str]) -> None:
        """There was no project, and now there is one."""
        ...

    def started(self, what: Started, made: Path | None, trying: str | None) -> None:
        """It takes requests: where and how; the project that was made for it, and a line to try."""
        ...

    def flushed(self, gateways: Sequence[Plain]) -> None:
        """What gateways closed when they were asked to."""
        ...


class JsonServing:
    """One document once the server takes requests."""

    def __init__(self, document: Callable[[object], None]) -> None:
        self._print = document

    def declared(self, file: Path, streams: Sequence[str]) -> None:
        pass  # it is part of what is said at the start

    def started(self, what: Started, made: Path | None, trying: str | None) -> None:
        self._print({**_started(what), "made": None if made is None else str(made), "try": trying})

    def flushed(self, gateways: Sequence[Plain]) -> None:
        self._print({"gateways": list(gateways)})


def _started(of: Started) -> Plain:
    otlp = of.settings.otlp
    return {
        "url": of.url,
        "gateway": of.gateway,
        "pipeline": of.pipeline,
        "warehouse": str(of.warehouse),
        "streams": list(of.streams),
        **plain.settings(of.settings),
        "tokens": of.tokens,
        "otlp": {
            signal: f"{of.url}/v1/otlp/v1/{signal}"
            for signal, stream in (("logs", otlp.logs), ("traces", otlp.traces))
            if stream in of.streams
        },
        "taken_up": [
            {"gateway": one.gateway, "windows": one.windows, "events": one.events} for one in of.taken_up
        ],
    }


class TextServing:
    """Tables and lines."""

    def __init__(self, voice: Voice) -> None:
        self._say = voice

    def declared(self, file: Path, streams: Sequence[str]) -> None:
        named = ", ".join(map(shown, streams))
        self._say.line("made ", (shown(str(file)), "bold"), f", the project: streams {named}, explained")

    def started(self, what: Started, made: Path | None, trying: str | None) -> None:
        from tidemill.cli.tables_serving import started_table

        self._say.table(started_table(what))
        if trying is not None:
            self._say.line("Try:\n  ", (shown(trying), "bold"))
        self._say.note("Ctrl-C stops it: what was acknowledged is in the warehouse then")

    def flushed(self, gateways: Sequence[Plain]) -> None:
        for one in gateways:
            windows = one["windows"]
            assert isinstance(windows, list)
            events = sum(int(window["events"]) for window in windows)
            said = f": {many(len(windows), 'window')} with {many(events, 'event')} closed and landed"
            pending = f"; {one['pending']} events have not landed yet" if one["pending"] else ""
            self._say.line((shown(str(one["gateway"])), "bold"), said + pending)
