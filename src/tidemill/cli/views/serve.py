"""Views of servers and gateways.

Only `Text` goes into a cell, so that nothing from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import Note, View, line, many, pairs_table, size
from tidemill.config.gateway import AdaptiveWindow, GatewaySettings, SessionWindow, SlidingWindow
from tidemill.model.gateway import BufferState, GatewayStatus, Pressure
from tidemill.model.time import format_duration, format_instant

if TYPE_CHECKING:
    from tidemill.ingest.gateway.status import IngestHealth
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.server.start import Started

STYLES: Final = {
    Pressure.LOW: "green",
    Pressure.MEDIUM: "",
    Pressure.HIGH: "yellow",
    Pressure.EMERGENCY: "red",
}


def declared(file: Path, streams: Sequence[str]) -> View:
    """Yield the project file that `up` wrote."""
    named = ", ".join(map(escaped, streams))
    yield line("made ", (escaped(str(file)), "bold"), f", the project: streams {named}, explained")


def started(what: Started, trying: str | None) -> View:
    """Yield the address and settings of a started server, and a command to try."""
    yield _started(what)
    if trying is not None:
        yield line("Try:\n  ", (escaped(trying), "bold"))
    yield Note("Ctrl-C stops it: what was acknowledged is in the warehouse then")


def flushed(gateways: Sequence[Document]) -> View:
    """Yield the windows that gateways closed."""
    for one in gateways:
        windows = one["windows"]
        assert isinstance(windows, list)
        events = sum(int(window["events"]) for window in windows)
        summary = f": {many(len(windows), 'window')} with {many(events, 'event')} closed and landed"
        pending = f"; {one['pending']} events have not landed yet" if one["pending"] else ""
        yield line((escaped(str(one["gateway"])), "bold"), summary + pending)


def _started(of: Started) -> Table:
    settings, what = of.settings, "gateway, API and pipeline" if of.pipeline else "gateway and API"
    pairs = [
        ("address", Text(f"{of.url}  ({what}; {escaped(of.gateway)})")),
        ("streams", Text(", ".join(map(escaped, of.streams)) or "none")),
        ("warehouse", Text(escaped(str(of.warehouse)))),
        *_settings(settings),
        ("access", Text(_access(of.tokens))),
    ]
    otlp = [
        f"{signal} to {escaped(stream)}"
        for signal, stream in (("logs", settings.otlp.logs), ("traces", settings.otlp.traces))
        if stream in of.streams
    ]
    if otlp:
        pairs.append(("OTLP", Text(f"{of.url}/v1/otlp  ({', '.join(otlp)})")))
    for one in of.taken_up:
        sentence = (
            f"{many(one.events, 'event')} that gateway {escaped(one.gateway)} had acknowledged when it died"
        )
        pairs.append(("taken up", Text(sentence, style="yellow")))
    return pairs_table("serving", pairs)


def _access(tokens: int) -> str:
    if tokens:
        return f"{many(tokens, 'token')}: every request shows one"
    return "this machine only, without a token; `tidemill token create` changes that"


def _settings(settings: GatewaySettings) -> Iterator[tuple[str, Text]]:
    memory, triggers = settings.memory, settings.triggers
    yield "window", Text(_window(settings))
    early = [
        *([many(triggers.count, "event")] if triggers.count is not None else []),
        *([size(triggers.bytes)] if triggers.bytes is not None else []),
        *([f"rate changed by {triggers.rate_change:.0%}"] if triggers.rate_change is not None else []),
        *([f"{triggers.memory:.0%} of memory"] if triggers.memory is not None else []),
        *map(escaped, triggers.custom),
    ]
    yield "closed early by", Text(", ".join(early) or "nothing")
    limits = f"slower from {memory.high_water:.0%}, refused from {memory.emergency:.0%}"
    yield "memory", Text(f"{size(memory.max)} at most; {limits}")


def _window(settings: GatewaySettings) -> str:
    window = settings.window
    if isinstance(window, AdaptiveWindow):
        bounds = f"{format_duration(window.min)} to {format_duration(window.max)}"
        return f"adaptive, {bounds}, for {many(window.target, 'event')}"
    if isinstance(window, SlidingWindow):
        return f"sliding, {format_duration(window.size)} every {format_duration(window.step)}"
    if isinstance(window, SessionWindow):
        return f"session, {format_duration(window.gap)} of silence, {format_duration(window.max)} at most"
    return f"{window.kind}, {format_duration(window.size)}"


def gateways_table(
    settings: GatewaySettings, running: Sequence[GatewayStatus], ingest: IngestHealth
) -> Table:
    pairs = [*_health(ingest), *_settings(settings)]
    pairs.append(("running", Text(", ".join(escaped(one.gateway) for one in running) or "none")))
    for one in running:
        pairs += _gateway(one)
    return pairs_table("gateway", pairs)


def _health(of: IngestHealth) -> Iterator[tuple[str, Text]]:
    for one in of.damaged:
        reason, file = escaped(one.reason), escaped(one.file)
        detail = f"{reason}\nset aside as {file}; delete it and its .json when you are done"
        yield "damaged", Text(detail, style="red")
    if of.clock_behind:
        detail = f"{format_duration(of.clock_behind)} behind the last arrival: it was put back"
        yield "clock", Text(detail, style="red")


def _gateway(of: GatewayStatus) -> Iterator[tuple[str, Text]]:
    used, allowed = of.memory.get("total", (0, 0))
    part, of_part = of.memory.get(of.fullest, (0, 0))
    address = escaped(of.address or "starting")
    full = f" ({escaped(of.fullest)}: {size(part)} of {size(of_part)})" if 2 * part > of_part else ""
    yield (
        escaped(of.gateway),
        Text.assemble(
            f"{address}, process {of.pid}, {size(used)} of {size(allowed)} in use, ",
            (f"pressure {of.pressure.value}{full}", STYLES[of.pressure]),
            f"  (as of {format_instant(of.at)})",
        ),
    )
    refused = f", {many(of.refused, 'request')} refused" if of.refused else ""
    yield "", Text(f"{many(of.acknowledged, 'event')} acknowledged, {of.landed:,} landed{refused}")
    closed = ", ".join(f"{escaped(name)} {count:,}" for name, count in sorted(of.windows.items()))
    yield (
        "",
        Text(f"log {size(of.wal_bytes)} in {many(of.wal_segments, 'segment')}; closed by {closed or 'none'}"),
    )
    if of.clock.last_at is not None:
        how = "back" if of.clock.last_by < 0 else "forward"
        at, by = format_instant(of.clock.last_at), format_duration(abs(of.clock.last_by))
        count = many(of.clock.forward + of.clock.back, "step")
        yield (
            "",
            Text(f"clock: {count} of more than a minute, the last at {at}, {how} by {by}", style="yellow"),
        )
    for buffer in of.buffers:
        yield "", Text(_buffer(buffer))


def _buffer(of: BufferState) -> str:
    held = f"{many(of.events, 'event')}, {size(of.bytes)}" if of.events else "empty"
    lasts = f"{of.kind} of {format_duration(of.duration)} at {of.rate:,.1f} events/s"
    return f"{escaped(of.stream)} from {escaped(of.source)}: {held}; {lasts}"
