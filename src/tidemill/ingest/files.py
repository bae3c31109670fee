"""Lands named files, and the objects that IngestDataCommands name, with their bounds and metadata.

A file that cannot be landed is refused and does not stop the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.config import Project
from tidemill.ingest import arguments
from tidemill.ingest.arguments import check_bounds
from tidemill.ingest.ingest_command import MAX_BYTES, IngestCommand, read_command
from tidemill.ingest.landing import Landed, LandedMany, Landing, Refused
from tidemill.model.errors import InputError, TidemillError
from tidemill.model.slices import Format
from tidemill.model.time import Interval

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse


def land_files(
    warehouse: Warehouse,
    stream: str,
    files: Sequence[str],
    bounds: Interval | None,
    source: str,
    format: str | Format | None,
    progress: Callable[[], None] | None,
    *,
    empty: bool,
) -> LandedMany:
    """Land files (paths, globs, folders, `-` for standard input); `empty` declares that there are none."""
    if empty:
        if files or bounds is None:
            raise InputError(
                "--empty takes no files, and needs --start and --end",
                hint="leave the files out, or drop --empty",
            )
        nothing = land_bytes(warehouse, stream, b"", bounds, "nothing", source, format)
        return LandedMany((nothing,), ())
    return warehouse.landing.land_named(
        stream,
        files,
        arrival=warehouse.arrival(),
        format=arguments.format_of(warehouse.project.stream(stream), format),
        declared=bounds,
        source=arguments.source_of(source),
        progress=(lambda _result: progress()) if progress else None,
    )


def land_bytes(
    warehouse: Warehouse,
    stream: str,
    content: bytes,
    bounds: Interval | None,
    name: str,
    source: str,
    format: str | Format | None,
) -> Landed:
    """Land one slice given as bytes."""
    kind = arguments.format_of(warehouse.project.stream(stream), format)
    return warehouse.landing.land_bytes(
        stream,
        content,
        arrival=warehouse.arrival(),
        format=kind or (None if content else Format.NDJSON),
        declared=bounds,
        source=arguments.source_of(source),
        name=name,
    )


def land_commands(project: Project, landing: Landing, files: Sequence[str], now: int) -> LandedMany:
    """Land what the commands in these files (`-` is standard input) name, in the order given."""
    landed: list[Landed] = []
    refused: list[Refused] = []
    for file in files:
        try:
            landed.append(_land(project, landing, _read(file), now))
        except TidemillError as error:
            refused.append(Refused(file, error))
    return LandedMany(tuple(landed), tuple(refused))


def _read(file: str) -> IngestCommand:
    if file == "-":
        return read_command(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input", Path.cwd())
    path = Path(file)
    try:
        with path.open("rb") as content:
            text = content.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}",
            where=file,
            hint="name a JSON file, or - for standard input",
        ) from error
    return read_command(text, file, path.absolute().parent)


def _land(project: Project, landing: Landing, command: IngestCommand, now: int) -> Landed:
    stream = project.stream(command.stream)
    command.check(stream)
    check_bounds(stream, command.declared)
    format = None if stream.format == "auto" else Format(stream.format)
    if command.payload is None:
        return landing.land_bytes(
            stream.name,
            b"",
            arrival=now,
            format=format or Format.NDJSON,
            declared=command.declared,
            source="command",
            name=command.name,
            metadata=command.metadata,
        )
    return landing.land_file(
        stream.name,
        command.payload,
        arrival=now,
        format=format,
        declared=command.declared,
        source="command",
        name=command.name,
        metadata=command.metadata,
    )
