"""The project: the location of the warehouse, settings of the engine, limits of records, and the streams.

Paths are absolute here. Nothing is created or opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import pydantic
from pydantic import BeforeValidator, StrictBool, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from tidemill.config.events import Events
from tidemill.config.gateway import GatewaySettings
from tidemill.config.schema import ABSENT, SECTION, without_empty
from tidemill.config.stream import Stream
from tidemill.config.values import ByteSize, Cores, HeapSize, PositiveDuration, check_delays, wrong
from tidemill.model.errors import InputError, NotFoundError
from tidemill.model.names import BUCKETS, MOST_ADDRESS
from tidemill.model.suggestions import choices
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND

FILE_NAME: Final = "tidemill.yaml"
VERSION: Final = 1
KIB: Final = 1 << 10
MIB: Final = 1 << 20


def _version(value: object) -> object:
    if value != VERSION or isinstance(value, bool):
        raise wrong(f"{value!r} is not a known version of this file", f"write version: {VERSION}")
    return value


def _warehouse(value: object) -> object:
    if isinstance(value, str):
        if value.startswith(BUCKETS):
            return _bucket(value)
        if "://" in value:
            raise wrong(
                f"{value!r} is not a folder or bucket",
                "name a folder, relative to this file or absolute, or a bucket: s3://BUCKET/PREFIX, gs://… or az://…",
            )
        return _folder(value)
    return value


def _folder(value: object) -> object:
    if isinstance(value, str):
        if not value.strip() or "\0" in value:
            raise wrong("the folder has no name", "name a folder, relative to this file or absolute")
        try:
            Path(value).expanduser()
        except RuntimeError:
            raise wrong(f"{value!r} names the home of an unknown user", "write the path in full") from None
    return value


def _bucket(value: str) -> str:
    """An address of a bucket: nothing in it may be a secret, since it becomes the name of a folder."""
    parts = urlsplit(value)
    name, prefix = parts.netloc, parts.path.strip("/")
    if "@" in value or parts.query or parts.fragment:  # the value may hold a secret: it is not repeated
        raise wrong(
            "the address of a bucket holds no credentials and no options",
            "write s3://BUCKET/PREFIX; credentials and the endpoint come from the environment",
        )
    if not name or ":" in name:
        raise wrong(
            f"{value!r} is not the address of a bucket",
            "write s3://BUCKET/PREFIX; credentials and the endpoint come from the environment",
        )
    if any(piece in ("", ".", "..") or not _PREFIX.fullmatch(piece) for piece in prefix.split("/") if prefix):
        raise wrong(
            f"{prefix!r} cannot be the prefix of a warehouse",
            "use letters, digits, _, - and . between slashes",
        )
    if len(value.encode()) > MOST_ADDRESS:
        raise wrong("the address is too long", f"use at most {MOST_ADDRESS} bytes")
    return f"{parts.scheme}://{name}/{prefix}".rstrip("/")


def bucket_url(value: str) -> str:
    """The address of a warehouse in a bucket, as the project writes it; InputError if it is not one."""
    try:
        if not value.startswith(BUCKETS):
            raise wrong("not the address of a bucket", "write s3://BUCKET/PREFIX, gs://… or az://…")
        return _bucket(value)
    except PydanticCustomError as error:
        given = error.context or {}
        raise InputError(str(given.get("message")), hint=str(given.get("hint"))) from None


_PREFIX: Final = re.compile(r"[A-Za-z0-9_.\-]+")
_MASTERS: Final = ("local", "spark://", "yarn", "k8s://", "sc://")
_CONF_KEYS: Final[Mapping[str, str]] = {
    "spark.master": "use engine.master",
    "spark.remote": "use engine.master: sc://HOST:PORT",
    "spark.driver.memory": "use engine.memory",
    "spark.cores.max": "use engine.cores",
    "spark.sql.session.timeZone": "it is UTC: instants would be others",
    "spark.sql.ansi.enabled": "it is true: overflows would pass unnoticed",
    "spark.sql.parquet.outputTimestampType": "it is TIMESTAMP_MICROS: instants would lose their unit",
}


def _master(value: object) -> object:
    if isinstance(value, str) and not value.startswith(_MASTERS):
        raise wrong(
            f"{value!r} is not a Spark master",
            "local[N], spark://HOST:PORT, yarn, k8s://HOST:PORT, or sc://HOST:PORT for Spark Connect",
        )
    return value


def _conf(value: object) -> object:
    """Scalars as Spark spells them; keys that have a setting of their own, or affect results, are refused."""
    if not isinstance(value, Mapping):
        return value
    spelled: dict[str, str] = {}
    for key, setting in value.items():
        if not isinstance(key, str) or not key.startswith("spark."):
            raise wrong(f"{key!r} is not a Spark setting", "Spark settings begin with 'spark.'")
        if key in _CONF_KEYS:
            raise wrong(f"{key} cannot be set here", _CONF_KEYS[key])
        if not isinstance(setting, str | int | float):
            raise wrong(f"{key} is not a string, a number or a boolean", "write one value for each setting")
        spelled[key] = str(setting).lower() if isinstance(setting, bool) else str(setting)
    return spelled


class EngineSettings(pydantic.BaseModel):
    """What Spark may use, and how much is processed at once."""

    model_config = SECTION

    master: Annotated[str, BeforeValidator(_master)] | None = (
        None  # None: this machine, or the master given to spark-submit
    )
    cores: Cores = "auto"  # auto: all cores of the machine
    memory: HeapSize = "1g"  # JVM heap; the Python workers use more on top
    conf: Annotated[Mapping[str, str], BeforeValidator(_conf)] = {}  # further settings of Spark
    # Bytes of slices in one accept batch.
    batch_bytes: Annotated[ByteSize, pydantic.Field(ge=MIB)] = 1024 * MIB
    # Bytes read at once.
    chunk_bytes: Annotated[ByteSize, pydantic.Field(ge=64 * KIB, le=1024 * MIB)] = 32 * MIB
    inline_bytes: ByteSize = 64 * MIB  # less work than this is done in this process; 0: everything on Spark
    compaction_memory: Annotated[ByteSize, pydantic.Field(ge=MIB)] = 256 * MIB  # for compacting chains
    lease: PositiveDuration = 30 * SECOND  # how long a process that does not respond keeps its streams
    keep_replaced: PositiveDuration = HOUR  # how long replaced parts are kept for running readers
    flush_on_stop: StrictBool = True  # whether a graceful stop of the daemon publishes open streaming windows


class Limits(pydantic.BaseModel):
    """Limits of a single record; one beyond them is rejected."""

    model_config = SECTION

    record_bytes: Annotated[ByteSize, pydantic.Field(ge=64, le=256 * MIB)] = MIB
    depth: Annotated[StrictInt, pydantic.Field(ge=1, le=512)] = 64


class BuilderSettings(pydantic.BaseModel):
    """How datasets are built from windows."""

    model_config = SECTION

    # Windows built at once; 0: none in this process.
    concurrency: Annotated[StrictInt, pydantic.Field(ge=0, le=256)] = 2
    attempts: Annotated[StrictInt, pydantic.Field(ge=1, le=1000)] = 5  # then the window is marked as failed
    retry_delay: PositiveDuration = SECOND  # after the first failure; doubles with each
    max_retry_delay: PositiveDuration = 5 * MINUTE
    lease: PositiveDuration = MINUTE  # how long a builder that does not respond keeps a window

    @model_validator(mode="after")
    def _delays_grow(self) -> BuilderSettings:
        check_delays(self.retry_delay, self.max_retry_delay)
        return self


class ScrubSettings(pydantic.BaseModel):
    """How the daemon re-reads all files in the background to find damaged ones."""

    model_config = SECTION

    enabled: StrictBool = True
    every: PositiveDuration = 7 * DAY  # from the start of one pass over all files to that of the next
    bytes_per_second: Annotated[ByteSize, pydantic.Field(ge=KIB)] = 16 * MIB  # read at most


class SqlSettings(pydantic.BaseModel):
    """What one SQL statement may use."""

    model_config = SECTION

    memory: Annotated[ByteSize, pydantic.Field(ge=16 * MIB)] = 1024 * MIB
    timeout: PositiveDuration = MINUTE  # then it is interrupted


_SCHEMA: Final = re.compile(r"(?!pg_|public$|information_schema$)[a-z_][a-z0-9_]{0,49}")


def _state_url(value: object) -> object:
    """The address of the state. It is never shown, not even in an error: it may hold a password."""
    if value is not None and not (
        isinstance(value, str) and value.strip().startswith(("postgresql://", "postgres://"))
    ):
        raise wrong("this is not the address of a PostgreSQL server", "write postgresql://user@host/database")
    return value.strip() if isinstance(value, str) else value


def _state_schema(value: object) -> object:
    if value is not None and not (isinstance(value, str) and _SCHEMA.fullmatch(value)):
        raise wrong(
            f"{value!r} cannot be the schema of a state",
            "use lower-case letters, digits and _, at most 50; not public, and nothing that begins with pg_",
        )
    return value


class BucketSettings(pydantic.BaseModel):
    """What a warehouse in a bucket has on the local disk."""

    model_config = SECTION

    folder: Annotated[str, BeforeValidator(_folder)] = ".tidemill"  # relative to the project, or absolute
    cache_bytes: ByteSize = (
        10 << 30
    )  # of copies of objects, which are deleted when they were not used for longest


class StateStore(pydantic.BaseModel):
    """Where the state is kept: in a file in the warehouse, or on a PostgreSQL server."""

    model_config = SECTION

    kind: Literal["sqlite", "postgresql"] = "sqlite"  # a url says that it is PostgreSQL
    url: Annotated[pydantic.SecretStr | None, BeforeValidator(_state_url)] = None
    schema_name: Annotated[str | None, BeforeValidator(_state_schema), pydantic.Field(alias="schema")] = None

    @model_validator(mode="before")
    @classmethod
    def _fits_together(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        if data.get("kind") == "redis":
            raise wrong(
                "the state is no longer kept on Redis",
                "remove the state section and run `tidemill recover`, which rebuilds the state",
            )
        if data.get("kind") == "postgresql" and not data.get("url"):
            raise wrong("url is missing", "add url: postgresql://user@host/database")
        if data.get("kind") == "sqlite" and data.get("url"):
            raise wrong("SQLite has no url", "remove kind: a url means PostgreSQL")
        if data.get("schema") and not data.get("url"):
            raise wrong("only a PostgreSQL server has a schema", "add url: postgresql://user@host/database")
        return data


class Settings(pydantic.BaseModel):
    """The top level of the file; its streams are validated one by one."""

    model_config = SECTION

    version: Annotated[Literal[1], BeforeValidator(_version)]
    warehouse: Annotated[str, BeforeValidator(_warehouse)] = "warehouse"
    engine: EngineSettings = ABSENT
    limits: Limits = ABSENT
    bucket: BucketSettings = ABSENT
    state: StateStore = ABSENT
    builder: BuilderSettings = ABSENT
    scrub: ScrubSettings = ABSENT
    sql: SqlSettings = ABSENT
    events: Events = ABSENT
    gateway: GatewaySettings = ABSENT
    streams: Mapping[str, object] = {}

    _empty_section_is_absent = model_validator(mode="before")(without_empty)


@dataclass(frozen=True, slots=True)
class Project:
    """A `tidemill.yaml` that was read and validated."""

    path: Path  # the file
    root: Path  # its folder
    warehouse: Path
    engine: EngineSettings
    limits: Limits
    streams: Mapping[str, Stream]
    builder: BuilderSettings
    scrub: ScrubSettings
    sql: SqlSettings
    events: Events
    gateway: GatewaySettings
    state: StateStore
    bucket: BucketSettings
    warnings: tuple[str, ...] = ()  # what has no effect, each with its line and what to do

    def stream(self, name: str) -> Stream:
        try:
            return self.streams[name]
        except KeyError:
            raise NotFoundError(
                f"there is no stream {name!r}",
                hint=choices(name, tuple(self.streams), "streams"),
                where=str(self.path),
            ) from None
