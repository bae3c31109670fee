"""Reads `tidemill.yaml` and the environment into a checked `Project`, or raises one error with every problem.

The only place that reads a configuration. It creates nothing and imports no event-time parser: the names of
the registered types, and a check whether a plugin can be used, are passed in.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Final, Literal

from tidemill.config.checks import check_sizes, check_stream, unused
from tidemill.config.checks_vectors import check_dimension, large_dimension
from tidemill.config.environment import apply_overrides
from tidemill.config.gateway import GatewaySettings
from tidemill.config.problems import Document, Path, config_error
from tidemill.config.project import FILE_NAME, Project, Settings
from tidemill.config.stream import Stream
from tidemill.config.stream_sections import MessageTime
from tidemill.config.validation import ConfigFinding, validate
from tidemill.config.yaml_document import parse_document
from tidemill.model.errors import ConfigError
from tidemill.model.names import BUCKETS, NAME_HINT, bucket_folder, is_safe_name

log = logging.getLogger(__name__)

MAX_BYTES: Final = 16 << 20
_NAME: Final = frozenset({"name"})  # the name of a stream is its key in the file, not a key in its section


@dataclass(frozen=True, slots=True)
class Plugins:
    """Tells why a plugin that the file names cannot be used; None if it can, or if that is not checked."""

    time_type: Callable[[str], str | None] = lambda _name: None
    trigger: Callable[[str], str | None] = lambda _name: None


def load_project(
    path: FilePath,
    time_types: Collection[str],
    environ: Mapping[str, str] = os.environ,
    plugins: Plugins = Plugins(),  # noqa: B008 - frozen
) -> Project:
    """The project of a `tidemill.yaml`, or of the folder that holds one. Warnings are logged."""
    names_a_file = path.suffix in (".yaml", ".yml") and not os.path.isdir(path)  # noqa: PTH112 - never raises
    file = path if names_a_file else path / FILE_NAME
    project = parse_project(_read(file), file, time_types, environ, plugins)
    for warning in project.warnings:
        log.warning("%s", warning)
    return project


def parse_project(
    text: str,
    file: FilePath,
    time_types: Collection[str],
    environ: Mapping[str, str],
    plugins: Plugins = Plugins(),  # noqa: B008 - frozen
) -> Project:
    """The project that `text` declares, as if it were the content of `file`."""
    document = parse_document(text, str(file))
    apply_overrides(document, environ)
    settings = _settings(document)
    streams = _streams(document, time_types)
    if settings is not None:
        for finding in check_sizes(settings.engine, settings.limits):
            document.report(finding.path, finding.message, finding.hint)
        for name, stream in streams.items():
            for finding in check_dimension(stream, settings.limits.record_bytes):
                document.report(("streams", name, *finding.path), finding.message, finding.hint)
            for finding in large_dimension(stream, settings.limits.record_bytes):
                document.warn(("streams", name, *finding.path), finding.message, finding.hint)
        for finding in unusable_plugins(settings.gateway, streams, plugins):
            document.report(finding.path, finding.message, finding.hint)
    if document.problems or settings is None:
        raise config_error(document.problems)
    root = file.absolute().parent
    return Project(
        path=file.absolute(),
        root=root,
        warehouse=_warehouse(root, settings),
        engine=settings.engine,
        limits=settings.limits,
        builder=settings.builder,
        scrub=settings.scrub,
        sql=settings.sql,
        events=settings.events,
        gateway=settings.gateway,
        state=settings.state,
        bucket=settings.bucket,
        streams=streams,
        warnings=tuple(warning.line for warning in sorted(document.warnings, key=lambda one: one.position)),
    )


def _warehouse(root: FilePath, settings: Settings) -> FilePath:
    """The folder of the warehouse; of one in a bucket, its folder on the local disk."""
    if not settings.warehouse.startswith(BUCKETS):
        return FilePath(os.path.normpath(root / FilePath(settings.warehouse).expanduser()))
    local = FilePath(os.path.normpath(root / FilePath(settings.bucket.folder).expanduser()))
    return local / bucket_folder(settings.warehouse)


def unusable_plugins(
    gateway: GatewaySettings, streams: Mapping[str, Stream], plugins: Plugins
) -> Iterator[ConfigFinding]:
    """Event-time types and triggers that are installed but cannot be used."""
    hint = "repair or reinstall the package that provides it, or declare another"
    for name, stream in streams.items():
        type_ = stream.event_time.type
        if type_ is not None and (fault := plugins.time_type(type_)) is not None:
            yield ConfigFinding(("streams", name, "event_time", "type"), fault, hint)
    for position, trigger in enumerate(gateway.triggers.custom):
        if (fault := plugins.trigger(trigger)) is not None:
            yield ConfigFinding(("gateway", "triggers", "custom", position), fault, hint)


def _read(file: FilePath) -> str:
    try:
        if not file.is_file():
            raise ConfigError(
                f"no {file.name} in {file.parent}", hint=f"run tidemill init {file.parent}", where=str(file)
            )
        if file.stat().st_size > MAX_BYTES:
            raise ConfigError(
                "the file is too large", hint=f"at most {MAX_BYTES} bytes are read", where=str(file)
            )
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the file cannot be read: {error.strerror}", hint="check who may read it", where=str(file)
        ) from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError("the file is not UTF-8", hint="save it as UTF-8", where=f"{file}:{line}") from None


def _settings(document: Document) -> Settings | None:
    found = validate(Settings, document.data)
    if isinstance(found, Settings):
        return found
    for finding in found:
        document.report(finding.path, finding.message, finding.hint)
    return None


def _streams(document: Document, time_types: Collection[str]) -> dict[str, Stream]:
    declared = document.data.get("streams") or {}
    if not declared:
        document.report(("streams",), "declare at least one stream", "streams: {requests: {schema: …}}")
    if not isinstance(declared, dict):
        return {}  # reported with the settings
    streams: dict[str, Stream] = {}
    problems = len(document.problems)
    for name, data in declared.items():
        path: Path = ("streams", name)
        if not is_safe_name(name):
            document.report(path, f"stream name {name!r} is not allowed", NAME_HINT)
            name = "unnamed"  # so that the rest of it is checked too
        if not isinstance(data, dict):
            document.report(path, "should be a section of keys and values", "it has at least a schema")
        elif stream := _stream(document, path, name, data, time_types):
            streams[name] = stream
    # Rules between streams are checked once each stream is valid by itself.
    return _with_message_times(document, streams) if len(document.problems) == problems else streams


def _with_message_times(document: Document, streams: Mapping[str, Stream]) -> dict[str, Stream]:
    """Streams that hold messages of others, with the event times of all of those."""
    times = {
        name: MessageTime(stream.time_column, stream.event_time.type or "", stream.event_time.timezone)
        for name, stream in streams.items()
        if stream.time_column is not None
    }
    found = dict(streams)
    for name, stream in streams.items():
        if stream.messages is None or not stream.in_event_time:
            continue
        if not times:
            document.report(
                ("streams", name, "messages"),
                "no stream of the project has an event time in use, so no message has one",
                "declare event_time: {column: …, type: …} on the streams that the messages are of",
            )
        found[name] = stream.model_copy(update={"messages": stream.messages.among(times)})
    return found


def _stream(
    document: Document, path: Path, name: str, data: Mapping[str, object], time_types: Collection[str]
) -> Stream | None:
    """The stream, or None. Invalid parts are left out, so that the rest is still checked."""
    if "name" in data:
        document.report((*path, "name"), "unknown key", "the key under streams is the name of the stream")
    sound: dict[str, object] = deepcopy({**data, "name": name})
    broken: set[Path] = set()
    found = validate(Stream, sound, _NAME)
    for finding in found if isinstance(found, list) else ():
        document.report((*path, *finding.path), finding.message, finding.hint)
    while isinstance(found, list):
        removed = [_remove(sound, finding) for finding in found]
        broken.update(gone for gone in removed if gone is not None)
        if not any(removed):
            return None
        found = validate(Stream, sound, _NAME)
    for finding in check_stream(found, time_types, broken):
        document.report((*path, *finding.path), finding.message, finding.hint)
    for finding in unused(found):
        document.warn((*path, *finding.path), finding.message, finding.hint)
    return found


def _remove(data: dict[str, object], finding: ConfigFinding) -> Path | None:
    """Remove the data that a finding is about; returns the removed path, None if it was already removed."""
    path: Path = finding.path
    if not path:  # only the schema is required
        is_new = data.setdefault("schema", None) is None
        data["schema"] = {}
        return ("schema",) if is_new else None
    # A list is removed as a whole, so that the positions of other findings in it do not shift.
    depth = next((index for index, key in enumerate(path) if isinstance(key, int)), len(path))
    *outer, last = path[:depth]
    section: object = data
    for key in outer:
        section = section.get(str(key)) if isinstance(section, dict) else None
    if not isinstance(section, dict) or last not in section:
        return None
    del section[str(last)]
    return path[:depth]


TemplateName = Literal["requests", "events"]


def read_template(name: TemplateName) -> str:
    """Return a `tidemill.yaml` that a command writes where there is none, from the package data.

    `requests` is what `tidemill init` writes: a commented stream of web requests. `events` is what `tidemill
    up` writes: events, logs and traces over HTTP.
    """
    # Imported here: it would slow down every command, and only two need it.
    from importlib.resources import files

    return (files("tidemill.config") / "templates" / f"{name}.yaml").read_text(encoding="utf-8")
