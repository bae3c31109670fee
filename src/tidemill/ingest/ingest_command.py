"""Reads an IngestDataCommand: an object already in storage, the time it covers, and its dataset metadata.

Every mistake is reported with its position. The caller lands the slice; metadata is stored with it and
decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tidemill.config import Stream
from tidemill.ingest.arguments import json_object, parse_bound
from tidemill.model.errors import InputError
from tidemill.model.time import Interval, iso_duration, parse_duration

MAX_BYTES: Final = 1 << 20  # of a command: the object it names may be large, the command is not
_COMMAND: Final = ("id", "metadata", "payload_location", "start_time", "end_time")
_DATASET: Final = (
    "name",
    "aggregation_span",
    "subject_to_change_window",
    "description",
    "source_links",
    "keywords",
)


@dataclass(frozen=True, slots=True)
class IngestCommand:
    """A checked command. Without a payload it is an empty slice: nothing happened in the time it covers."""

    stream: str
    declared: Interval
    payload: Path | None
    metadata: str  # canonical JSON, for the slice
    id: str | None = None  # the name that its sender gave it
    aggregation_span: int | None = None
    subject_to_change_window: int | None = None
    where: str = ""  # the file it came from, for errors

    @property
    def name(self) -> str:
        """The name of the slice for people."""
        if self.payload is not None:
            return self.payload.name
        return f"nothing ({self.id})" if self.id else "nothing"

    def check(self, stream: Stream) -> None:
        """Raise InputError if the command's windows differ from those that the stream declares."""
        both = {
            "aggregation_span": (self.aggregation_span, stream.aggregation_span),
            "subject_to_change_window": (self.subject_to_change_window, stream.subject_to_change_window),
        }
        for key, (of_command, of_stream) in both.items():
            if of_command is not None and of_command != of_stream:
                declares = f"declares {iso_duration(of_stream)}" if of_stream is not None else "declares none"
                raise InputError(
                    f"metadata.dataset.{key} is {iso_duration(of_command)}; stream {stream.name} {declares}",
                    where=self.where,
                    hint="the stream decides: leave it out of the command, or change tidemill.yaml",
                )


def read_command(text: bytes, where: str, folder: Path) -> IngestCommand:
    """Parse the command in a JSON text; relative locations start from `folder`. InputError names what is
    wrong."""
    fields = _Fields(_parse(text, where), where, "")
    fields.only(_COMMAND)
    metadata = fields.section("metadata")
    dataset = metadata.section("dataset")
    dataset.only(_DATASET)
    stream = dataset.text("name")
    if stream is None:
        raise dataset.wrong("name", "is missing", "it says which stream the data belongs to")
    for key in ("source_links", "keywords"):
        dataset.listed(key)
    dataset.text("description")
    start, end = fields.instant("start_time"), fields.instant("end_time")
    if end <= start:
        raise fields.wrong("end_time", "is not after start_time", "bounds are half-open [start, end)")
    location = fields.text("payload_location")
    return IngestCommand(
        stream=stream,
        declared=Interval(start, end),
        payload=_located(fields, location, folder) if location is not None else None,
        metadata=json.dumps(metadata.values, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
        id=fields.text("id"),
        aggregation_span=dataset.duration("aggregation_span"),
        subject_to_change_window=dataset.duration("subject_to_change_window"),
        where=where,
    )


@dataclass(frozen=True, slots=True)
class _Fields:
    """An object of the command, and the path to it for errors. null is the same as absent."""

    values: Mapping[str, object]
    where: str
    path: str

    def wrong(self, key: str, what: str, hint: str) -> InputError:
        return InputError(f"{self.path}{key} {what}", where=self.where, hint=hint)

    def only(self, known: tuple[str, ...]) -> None:
        for key in self.values:
            if key not in known:
                raise self.wrong(key, "is not a known field", f"fields: {', '.join(known)}")

    def section(self, key: str) -> _Fields:
        found = self.values.get(key)
        if not isinstance(found, dict):
            what = "is missing" if found is None else "is not an object"
            raise self.wrong(key, what, 'write {"metadata": {"dataset": {"name": ...}}, "start_time": ...}')
        return _Fields(found, self.where, f"{self.path}{key}.")

    def text(self, key: str) -> str | None:
        found = self.values.get(key)
        if found is None:
            return None
        if not isinstance(found, str) or not found.strip() or "\0" in found:
            raise self.wrong(key, "is not a string", "write some text, or leave it out")
        return found

    def listed(self, key: str) -> None:
        found = self.values.get(key)
        if found is not None and not isinstance(found, list):
            raise self.wrong(key, "is not a list", "write [..., ...], or leave it out")

    def instant(self, key: str) -> int:
        text = self.text(key)
        if text is None:
            raise self.wrong(
                key, "is missing", "a command says which time its data covers: start_time, end_time"
            )
        try:
            return parse_bound(text)
        except InputError as error:
            raise self.wrong(key, f"is wrong: {error.message}", error.hint) from None

    def duration(self, key: str) -> int | None:
        text = self.text(key)
        if text is None:
            return None
        try:
            return parse_duration(text)
        except InputError as error:
            raise self.wrong(key, f"is wrong: {error.message}", error.hint) from None


def _parse(text: bytes, where: str) -> dict[str, object]:
    hint = f"one JSON object with {', '.join(_COMMAND)}"
    if len(text) > MAX_BYTES:
        raise InputError(f"has {len(text)} bytes, which is too large for a command", where=where, hint=hint)
    return json_object(text, where=where, hint=hint)


def _located(fields: _Fields, location: str, folder: Path) -> Path:
    hint = "name a file: a path, relative ones from the folder of the command, or file:///..."
    try:
        parts = urlsplit(location)
    except ValueError:
        raise fields.wrong("payload_location", "is not an address", hint) from None
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise fields.wrong("payload_location", f"is on another machine: {parts.netloc}", hint)
        path = Path(unquote(parts.path))
    elif "://" in location:
        raise fields.wrong("payload_location", f"has a scheme that cannot be read: {parts.scheme}://", hint)
    else:
        path = folder / location
    try:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            raise fields.wrong("payload_location", f"{what}: {path}", hint)
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise fields.wrong("payload_location", f"cannot be read: {error.strerror or error}", hint) from None
    return path
