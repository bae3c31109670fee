"""The project: where the warehouse is, what the engine may use, what a record may be, the streams.

Paths are absolute here. Nothing is created or opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import pydantic
from pydantic import BeforeValidator, StrictBool, StrictInt, model_validator

from tidemill.config.events import Events
from tidemill.config.gateway import GatewaySettings
from tidemill.config.schema import ABSENT, SECTION
from tidemill.config.stream import Stream
from tidemill.config.values import ByteSize, Cores, HeapSize, PositiveDuration, wrong
from tidemill.model.errors import NotFoundError
from tidemill.model.suggestions import choices
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND

FILE_NAME: Final = "tidemill.yaml"
VERSION: Final = 1
KIB: Final = 1 << 10
MIB: Final = 1 << 20


def _version(value: object) -> object:
    if value != VERSION or isinstance(value, bool):
        raise wrong(f"{value!r} is not a version of this file that is known", f"write version: {VERSION}")
    return value


def _warehouse(value: object) -> object:
    if isinstance(value, str):
        if "://" in value:
            raise wrong(f"{value!r} is not a folder", "name a folder, relative to this file or absolute")
        if not value.strip() or "\0" in value:
            raise wrong("the warehouse has no name", "name a folder, relative to this file or absolute")
        try:
            Path(value).expanduser()
        except RuntimeError:
            raise wrong(f"{value!r} names the home of nobody", "write the path in full") from None
    return value


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
            f"{value!r} is not a master of Spark",
            "local[N], spark://HOST:PORT, yarn, k8s://HOST:PORT, or sc://HOST:PORT for Spark Connect",
        )
    return value


def _conf(value: object) -> object:
    """Scalars as Spark spells them; what has a key of its own, or decides results, is refused."""
    if not isinstance(value, Mapping):
        return value
    spelled: dict[str, str] = {}
    for key, setting in value.items():
        if not isinstance(key, str) or not key.startswith("spark."):
            raise wrong(f"{key!r} is not a setting of Spark", "settings of Spark begin with 'spark.'")
        if key in _CONF_KEYS:
            raise wrong(f"{key} cannot be set here", _CONF_KEYS[key])
        if not isinstance(setting, str | int | float):
            raise wrong(f"{key} is not a text, a number or a boolean", "write one value for each setting")
        spelled[key] = str(setting).lower() if isinstance(setting, bool) else str(setting)
    return spelled


class EngineSettings(pydantic.BaseModel):
    """What Spark may use, and how much it takes at once."""

    model_config = SECTION

    master: Annotated[str, BeforeValidator(_master)] | None = (
        None  # None: this machine, or as spark-submit says
    )
    cores: Cores = "auto"  # all that the machine has
    memory: HeapSize = "1g"  # JVM heap; the Python workers come on top
    conf: Annotated[Mapping[str, str], BeforeValidator(_conf)] = {}  # of Spark, beside what is set here
    batch_bytes: Annotated[ByteSize, pydantic.Field(ge=MIB)] = 1024 * MIB  # slice bytes of one accept batch
    chunk_bytes: Annotated[ByteSize, pydantic.Field(ge=64 * KIB, le=1024 * MIB)] = 32 * MIB  # read at once
    inline_bytes: ByteSize = 64 * MIB  # work on less is done in this process; 0: everything on Spark
    compaction_memory: Annotated[ByteSize, pydantic.Field(ge=MIB)] = 256 * MIB  # of chains, at once
    keep_replaced: PositiveDuration = HOUR  # parts that were replaced stay as long, for those still reading
    flush_on_stop: StrictBool = True  # a graceful stop of the daemon lets open streaming windows come out


class Limits(pydantic.BaseModel):
    """What a single record may be; beyond it, it is rejected."""

    model_config = SECTION

    record_bytes: Annotated[ByteSize, pydantic.Field(ge=64, le=256 * MIB)] = MIB
    depth: Annotated[StrictInt, pydantic.Field(ge=1, le=512)] = 64


class BuilderSettings(pydantic.BaseModel):
    """How windows become datasets."""

    model_config = SECTION

    concurrency: Annotated[StrictInt, pydantic.Field(ge=0, le=256)] = 2  # windows at once; 0: none here
    attempts: Annotated[StrictInt, pydantic.Field(ge=1, le=1000)] = 5  # then it is set aside as failed
    retry_delay: PositiveDuration = SECOND  # after the first failed try; doubles with each
    max_retry_delay: PositiveDuration = 5 * MINUTE
    lease: PositiveDuration = MINUTE  # how long a builder that went silent keeps a window

    @model_validator(mode="after")
    def _delays_grow(self) -> BuilderSettings:
        if self.max_retry_delay < self.retry_delay:
            raise wrong("max_retry_delay is less than retry_delay", "make it as long, or longer")
        return self


class ScrubSettings(pydantic.BaseModel):
    """How a daemon reads all files again in the background, to find those that are damaged."""

    model_config = SECTION

    enabled: StrictBool = True
    every: PositiveDuration = 7 * DAY  # from the start of one pass over all files to that of the next
    bytes_per_second: Annotated[ByteSize, pydantic.Field(ge=KIB)] = 16 * MIB  # that are read


class SqlSettings(pydantic.BaseModel):
    """What one SQL statement may use."""

    model_config = SECTION

    memory: Annotated[ByteSize, pydantic.Field(ge=16 * MIB)] = 1024 * MIB
    timeout: PositiveDuration = MINUTE  # then it is interrupted


class StateStore(pydantic.BaseModel):
    """Where the state is kept: in a file in the warehouse."""

    model_config = SECTION

    kind: Literal["sqlite"] = "sqlite"

    @model_validator(mode="before")
    @classmethod
    def _not_on_redis(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("kind") == "redis":
            raise wrong(
                "the state is no longer kept on Redis",
                "remove the state section and run `tidemill recover`, which rebuilds the state",
            )
        return data


class Settings(pydantic.BaseModel):
    """The top of the file; its streams are read one by one."""

    model_config = SECTION

    version: Annotated[Literal[1], BeforeValidator(_version)]
    warehouse: Annotated[str, BeforeValidator(_warehouse)] = "warehouse"
    engine: EngineSettings = ABSENT
    limits: Limits = ABSENT
    state: StateStore = ABSENT
    builder: BuilderSettings = ABSENT
    scrub: ScrubSettings = ABSENT
    sql: SqlSettings = ABSENT
    events: Events = ABSENT
    gateway: GatewaySettings = ABSENT
    streams: Mapping[str, object] = {}

    @model_validator(mode="before")
    @classmethod
    def _empty_section_is_absent(cls, data: object) -> object:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data


@dataclass(frozen=True, slots=True)
class Project:
    """A `tidemill.yaml` that was read and checked."""

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
    warnings: tuple[str, ...] = ()  # what the file says in vain, each with its line and what to do

    def stream(self, name: str) -> Stream:
        try:
            return self.streams[name]
        except KeyError:
            raise NotFoundError(
                f"there is no stream {name!r}",
                hint=choices(name, tuple(self.streams), "streams"),
                where=str(self.path),
            ) from None
