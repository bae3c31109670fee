"""Who hears that a dataset is available: the sinks that events are delivered to.

Secrets are never written in the file: it names the environment variable that holds one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator, StrictInt

from tidemill.config.quantities import PositiveDuration, wrong
from tidemill.config.schema import SECTION
from tidemill.model.names import NAME_HINT, is_safe_name
from tidemill.model.time import MINUTE, SECOND


def _name(name: str) -> str:
    if not is_safe_name(name):
        raise wrong(f"name {name!r} is not allowed", NAME_HINT)
    return name


def _web(url: str) -> str:
    if not url.startswith(("https://", "http://")):
        raise wrong(f"{url!r} is not a web address", "use https://… or http://…")
    return url


def _redis(url: str) -> str:
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise wrong("the url is not one of a Redis server", "use redis://, rediss:// or unix://")
    return url


class FileSink(pydantic.BaseModel):
    """Appends one line of JSON per event to a file; relative paths are from the folder of tidemill.yaml."""

    model_config = SECTION

    kind: Literal["file"]
    path: Annotated[str, pydantic.Field(min_length=1)]


class WebhookSink(pydantic.BaseModel):
    """Posts each event; signed when `secret_env` names a variable that holds a secret."""

    model_config = SECTION

    kind: Literal["webhook"]
    url: Annotated[str, AfterValidator(_web)]
    secret_env: str | None = None
    timeout: PositiveDuration = 10 * SECOND
    retry_delay: PositiveDuration = SECOND  # after the first failure; doubles with each
    max_retry_delay: PositiveDuration = 5 * MINUTE


class RedisSink(pydantic.BaseModel):
    """Adds each event to a Redis stream."""

    model_config = SECTION

    kind: Literal["redis"]
    url: Annotated[str, AfterValidator(_redis)]
    stream: Annotated[str, pydantic.Field(min_length=1, max_length=512)] = "tidemill.events"
    max_length: Annotated[StrictInt, pydantic.Field(ge=1)] | None = None  # older ones go; None: all are kept


Sink = Annotated[FileSink | WebhookSink | RedisSink, pydantic.Field(discriminator="kind")]


class Events(pydantic.BaseModel):
    """Where events go, besides the outbox that `tidemill events` shows."""

    model_config = SECTION

    source: str = "tidemill"  # the `source` of the CloudEvents
    sinks: Mapping[Annotated[str, AfterValidator(_name)], Sink] = {}
