"""The `events` section: the sinks that events are delivered to.

Secrets are never in the file: it names the environment variable that holds one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal
from urllib.parse import SplitResult, urlsplit

import pydantic
from pydantic import AfterValidator, StrictInt, model_validator

from tidemill.config.schema import SECTION
from tidemill.config.values import PositiveDuration, SafeName, check_delays, wrong
from tidemill.model.time import MINUTE, SECOND

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_HINT: Final = "name the environment variable that holds it: secret_env: NAME"  # noqa: S105 - no secret


def _path(path: str) -> str:
    if not path.strip() or "\0" in path or path.endswith("/"):
        raise wrong(f"{path!r} does not name a file", "name a file, relative to tidemill.yaml or absolute")
    return path


def _parts(url: str, schemes: tuple[str, ...], what: str) -> SplitResult:
    """The address in parts. Errors do not repeat it, since it may hold a secret."""
    use = f"use {' or '.join(f'{scheme}://…' for scheme in schemes)}"
    try:
        parts = urlsplit(url)
        port_is_wrong = parts.port == 0
    except ValueError:
        raise wrong(f"the url is not {what}", use) from None
    if parts.scheme not in schemes or port_is_wrong or not url.isprintable() or " " in url:
        raise wrong(f"the url is not {what}", use)
    if parts.scheme != "unix" and not parts.hostname:
        raise wrong("the url names no host", use)
    if parts.password is not None:
        raise wrong("the url holds a password", _SECRET_HINT)
    return parts


def _web(url: str) -> str:
    parts = _parts(url, ("https", "http"), "a web address")
    if parts.username is not None:
        raise wrong("the url names a user", _SECRET_HINT)
    if not url.isascii():
        raise wrong("the url is not ASCII", "write it with %-escapes, and the host as xn--…")
    if parts.fragment:
        raise wrong("the url has a fragment", "leave out # and what follows it: it is never sent")
    return url


def _redis(url: str) -> str:
    parts = _parts(url, ("redis", "rediss", "unix"), "one of a Redis server")
    if not re.fullmatch(r"(db=[0-9]{1,4})?", parts.query) or parts.fragment:
        raise wrong(
            "the url has options", "of options only db=NUMBER is known; the others are keys of the sink"
        )
    return url


def _source(source: str) -> str:
    if not source or not source.isprintable() or " " in source:
        raise wrong(f"{source!r} is not a source", "use a name or an address without spaces")
    return source


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):  # not repeated in the message: it may be the secret itself
        raise wrong(
            "is not the name of an environment variable", "use letters, digits and _: secret_env: NAME"
        )
    return name


Variable = Annotated[str, AfterValidator(_variable)]


class FileSink(pydantic.BaseModel):
    """Appends one line of JSON per event to a file; relative paths are from the folder of tidemill.yaml."""

    model_config = SECTION

    kind: Literal["file"]
    path: Annotated[str, AfterValidator(_path)]


class WebhookSink(pydantic.BaseModel):
    """Posts each event, signed if `secret_env` names a variable that holds a secret."""

    model_config = SECTION

    kind: Literal["webhook"]
    url: Annotated[str, AfterValidator(_web)]
    secret_env: Variable | None = None
    timeout: PositiveDuration = 10 * SECOND  # of one request, from connecting to its response


class RedisSink(pydantic.BaseModel):
    """Adds each event to a Redis stream; `secret_env` names a variable that holds the password."""

    model_config = SECTION

    kind: Literal["redis"]
    url: Annotated[str, AfterValidator(_redis)]
    secret_env: Variable | None = None
    stream: Annotated[str, pydantic.Field(min_length=1, max_length=512)] = "tidemill.pipeline.events"
    # Older ones are dropped; None: all are kept.
    max_length: Annotated[StrictInt, pydantic.Field(ge=1)] | None = None
    timeout: PositiveDuration = 10 * SECOND  # of connecting, and of each response


Sink = Annotated[FileSink | WebhookSink | RedisSink, pydantic.Field(discriminator="kind")]


class Events(pydantic.BaseModel):
    """Where events go, besides the outbox that `tidemill events` shows."""

    model_config = SECTION

    source: Annotated[str, AfterValidator(_source)] = "tidemill"  # the `source` of the CloudEvents
    retry_delay: PositiveDuration = SECOND  # after the first failure of a sink; doubles with each
    max_retry_delay: PositiveDuration = 5 * MINUTE
    sinks: Mapping[SafeName, Sink] = {}

    @model_validator(mode="after")
    def _delays_grow(self) -> Events:
        check_delays(self.retry_delay, self.max_retry_delay)
        return self
