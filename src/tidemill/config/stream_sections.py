"""Sections of a stream in `tidemill.yaml`: `manifests`, `messages`, `pack`, `query`, and what is done with
late slices and rows.

They are declarations only: nothing here reads a file or a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple

import pydantic
from pydantic import AfterValidator, PrivateAttr, StrictBool, StrictInt, model_validator

from tidemill.config.schema import SECTION, ColumnName
from tidemill.config.values import ByteSize, PositiveDuration, TimeZone, check_delays, wrong
from tidemill.model.time import MINUTE, SECOND

MAX_MANIFESTS: Final = 256  # patterns: each is matched in every round
Fact = Literal["source", "kind", "symbol", "interval", "limit"]


def _pattern(value: str) -> str:
    if not value.strip() or "\0" in value or "://" in value:
        raise wrong(f"{value!r} names no files", "write a path or a glob, relative to this file or absolute")
    return value


Pattern = Annotated[str, AfterValidator(_pattern)]


class Manifests(pydantic.BaseModel):
    """The raw manifests of a stream. A plain list is short for `files`."""

    model_config = SECTION

    files: Annotated[tuple[Pattern, ...], pydantic.Field(max_length=MAX_MANIFESTS)] = ()
    partition_by: tuple[Fact, ...] = ()  # slices that differ in one of these facts are never packed together

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: object) -> object:
        if isinstance(data, list | tuple):
            return {"files": data}
        if isinstance(data, dict):
            return data
        raise wrong(
            "is neither a list nor a section", "write [PATH, …] or {files: [PATH, …], partition_by: […]}"
        )


class MessageTime(NamedTuple):
    """The event time of the messages of one stream: its column and type, and the time zone of values
    without an offset."""

    column: str
    type: str
    timezone: str | None = None


class Messages(pydantic.BaseModel):
    """Each record holds an array of messages in `column`; each message belongs to a declared stream.

    `stream` is the key of a message that names its stream, `body` the key that holds its fields. If `body` is
    None, the message itself holds them.
    """

    model_config = SECTION

    column: str
    stream: ColumnName = "stream"
    body: ColumnName | None = None
    _times: Mapping[str, MessageTime] = PrivateAttr(default_factory=dict)

    @property
    def times(self) -> Mapping[str, MessageTime]:
        """The event time by stream, for streams in event time; empty before the loader has set it."""
        return self._times

    def among(self, times: Mapping[str, MessageTime]) -> Messages:
        """Return a copy that has the event times of the project's streams."""
        found = self.model_copy()
        found._times = dict(times)
        return found


MIB: Final = 1 << 20


class Pack(pydantic.BaseModel):
    """When slices are packed: once there are this many, or this many bytes. Each is packed once."""

    model_config = SECTION

    enabled: StrictBool = True  # by the daemon; `tidemill pack` always packs
    slices: Annotated[StrictInt, pydantic.Field(ge=1, le=100_000)] = 64
    bytes: Annotated[ByteSize, pydantic.Field(ge=1)] = 128 * MIB  # of the parts that their rows are in
    partial: PositiveDuration = 5 * SECOND  # until the daemon checks a group again that is not full
    idle: PositiveDuration = 30 * SECOND  # … and when there is nothing to pack
    retry_delay: PositiveDuration = 5 * SECOND  # until a slice that failed is tried again; doubles each time
    max_retry_delay: PositiveDuration = 10 * MINUTE

    @model_validator(mode="after")
    def _delays_grow(self) -> Pack:
        check_delays(self.retry_delay, self.max_retry_delay)
        if self.idle < self.partial:
            raise wrong("idle is less than partial", "make it as long, or longer")
        return self


class QueryDefaults(pydantic.BaseModel):
    """Defaults for queries that lack the clause of the same name."""

    model_config = SECTION

    timezone: TimeZone | None = None  # None: UTC, with buckets aligned to the epoch
    week_start: Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] = (
        "monday"
    )
    edges: Literal["include", "exclude", "null"] = "include"

    @model_validator(mode="before")
    @classmethod
    def _null_is_a_word_here(cls, data: object) -> object:
        """Read `edges: null`, which YAML takes for an empty value, as the keyword."""
        if isinstance(data, dict) and "edges" in data and data["edges"] is None:
            return {**data, "edges": "null"}
        return data


class LateSlices(pydantic.BaseModel):
    """What is done with slices that arrive after the cutoff of a window that is already served: `discard`
    records them as ignored for that window, `reemit` builds it again for a while."""

    model_config = SECTION

    policy: Literal["discard", "reemit"] = "discard"
    max_lateness: PositiveDuration | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: object) -> object:
        return _with_policy(data)

    @model_validator(mode="after")
    def _only_reemit_has_an_end(self) -> LateSlices:
        _check_end(self.policy, self.max_lateness, "7d")
        return self


class LateRows(pydantic.BaseModel):
    """What is done with late rows: `discard`, `next_window`, or `{policy: reemit, max_lateness: 1h}`.

    `by` says which rows are late: those behind the watermark when they arrive, or those whose window has
    ended by then.
    """

    model_config = SECTION

    policy: Literal["discard", "next_window", "reemit"] = "discard"
    by: Literal["row", "window"] = "row"
    max_lateness: PositiveDuration | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: object) -> object:
        return _with_policy(data)

    @model_validator(mode="after")
    def _only_reemit_has_an_end(self) -> LateRows:
        _check_end(self.policy, self.max_lateness, "1h")
        return self


def _with_policy(data: object) -> object:
    return {"policy": data} if isinstance(data, str) else data


def _check_end(policy: str, max_lateness: int | None, example: str) -> None:
    if policy == "reemit" and max_lateness is None:
        raise wrong("reemit needs max_lateness", f"write {{policy: reemit, max_lateness: {example}}}")
    if policy != "reemit" and max_lateness is not None:
        raise wrong(f"{policy} has no max_lateness", "leave it out, or use policy: reemit")
