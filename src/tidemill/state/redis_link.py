"""One Redis server as the acts of the state reach it: waiting while it is away, and asking again safely.

Nothing here knows what an act means; the password of an address never leaves this module.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from tidemill.model.errors import ConfigError, StorageError, TidemillError

FORMAT: Final = 3  # of the keys; one written by a newer Tidemill is refused, never touched
PATIENCE: Final = 60.0  # seconds that an act waits for a server that is away
OPENING: Final = 5.0  # … and that opening does, where the address may simply be wrong
FIRST_DELAY, LONGEST_DELAY = 0.05, 2.0
CONNECT_SECONDS: Final = 5.0
REPLY_SECONDS: Final = 30.0
SCRIPTS: Final = (
    "keys",
    "ledger",
    "tiles",
    "windows",
    "queue",
    "retract",
    "retry",
    "receipts",
    "whole",
    "run",
)  # in this order
# What a server says while it starts, fails over or is busy: the same question may be answered soon.
# An error inside a script has its word after a dash.
AWAY: Final = re.compile(r"(^|-)(LOADING|BUSY|READONLY|MASTERDOWN|NOREPLICAS|TRYAGAIN|CLUSTERDOWN)\b")

Reply: TypeAlias = "int | bytes | list[Reply] | None"

log = logging.getLogger(__name__)


@cache
def script() -> tuple[str, str]:
    """All acts as one Lua script, and the name by which the server knows it once it was sent."""
    folder = files("tidemill.state") / "redis_lua"
    text = "\n".join((folder / f"{name}.lua").read_text(encoding="utf-8") for name in SCRIPTS)
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(slots=True)
class _Caller:
    """Somebody who asks one thing at a time and numbers what it asks: the server remembers its last
    answer, so an act whose answer got lost is asked for again and not done again."""

    name: str
    number: int = 0


class Link:
    """Acts of one state on a server. Threads may share it."""

    def __init__(
        self,
        url: str,
        prefix: str,
        *,
        patience: float = PATIENCE,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = shown(url)
        self.prefix = prefix
        self._patience, self._sleep, self._clock = patience, sleep, clock
        self._client = _client(url, self.address)
        self._process = 0
        self._name = ""
        self._idle: list[_Caller] = []
        self._made = 0
        self._guard = threading.Lock()
        self._closed = False

    def look(
        self, target: str, act: str, ask: Mapping[str, object], *, patience: float | None = None
    ) -> list[Reply]:
        """What an act that only reads answers."""
        return self._ask(target, act, "", 0, ask, patience)

    def act(
        self, target: str, act: str, ask: Mapping[str, object], *, patience: float | None = None
    ) -> list[Reply]:
        """What an act that writes answers; it is done once, however often it must be sent."""
        with self._caller() as caller:
            caller.number += 1
            return self._ask(target, act, caller.name, caller.number, ask, patience)

    def settings(self, *names: str) -> dict[str, str]:
        """Settings of the server, as far as it tells them to us."""
        try:
            found = [self._client.config_get(name) for name in names]
        except RedisError as error:
            log.debug("the Redis server at %s does not tell its settings: %s", self.address, error)
            return {}
        return {str(_text(k)): str(_text(v)) for part in found for k, v in part.items()}

    def drop(self, generation: str) -> None:
        """Remove the keys of a generation that nobody reaches any more, some at a time."""

        def remove() -> None:
            batch: list[bytes] = []
            for found in self._client.scan_iter(match=f"{self.prefix}:{generation}:*", count=1000):
                batch.append(found)
                if len(batch) >= 500:
                    self._client.unlink(*batch)
                    batch.clear()
            if batch:
                self._client.unlink(*batch)
            self._client.srem(f"{self.prefix}:garbage", generation)

        self._patiently(remove, None)

    def sweep(self) -> None:
        """Delete what nobody reaches. Not while somebody else restores a state under the same prefix."""
        (garbage,) = self.look("current", "garbage", {})
        assert isinstance(garbage, list), garbage
        for generation in garbage:
            self.drop(str(_text(generation)))

    def pause(self, seconds: float) -> None:
        self._sleep(seconds)

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def _ask(
        self,
        target: str,
        act: str,
        caller: str,
        number: int,
        ask: Mapping[str, object],
        patience: float | None,
    ) -> list[Reply]:
        payload = json.dumps(ask, ensure_ascii=False, separators=(",", ":"))
        arguments = (str(FORMAT), self.prefix, target, act, caller, str(number), payload)
        reply = self._patiently(lambda: self._evaluate(arguments), patience)
        assert isinstance(reply, list), reply
        status, *answer = reply
        if status == b"ok":
            return answer
        raise self._refusal(status, answer)

    def _evaluate(self, arguments: Sequence[str]) -> Reply:
        text, name = script()
        try:
            return self._client.evalsha(name, 0, *arguments)  # type: ignore[no-any-return]
        except NoScriptError:  # a server that was started anew
            return self._client.eval(text, 0, *arguments)  # type: ignore[no-any-return]

    def _patiently(self, attempt: Callable[[], Reply], patience: float | None) -> Reply:
        """Ask until there is an answer, with growing delays, for as long as patience lasts."""
        patience = self._patience if patience is None else min(patience, self._patience)
        began, delay, told = self._clock(), FIRST_DELAY, False
        while True:
            if self._closed:
                raise StorageError("state is closed", where=self.address, hint="open the warehouse again")
            try:
                reply = attempt()
            except (RedisError, OSError) as error:
                if not is_away(error):
                    raise self._failure(error) from error
                left = patience - (self._clock() - began)
                if left <= 0:
                    raise StorageError(
                        f"the Redis server can not be reached: {error}",
                        where=self.address,
                        hint="start it, or check state.url in tidemill.yaml; then try again",
                    ) from error
                if not told:
                    log.warning("the Redis server at %s is away (%s): waiting for it", self.address, error)
                told = True
                self._sleep(min(delay, left))
                delay = min(2 * delay, LONGEST_DELAY)
            else:
                if told:
                    log.warning("the Redis server at %s answers again", self.address)
                return reply

    def _failure(self, error: Exception) -> TidemillError:
        text = str(error)
        if isinstance(error, AuthenticationError | AuthorizationError) or "NOAUTH" in text:
            return ConfigError(
                "the Redis server does not let us in: it wants another user or password",
                where=self.address,
                hint="write state.url as redis://user:password@host:port/0",
            )
        if isinstance(error, NoPermissionError):
            return ConfigError(
                f"the Redis user lacks a permission: {text}",
                where=self.address,
                hint=f"allow it EVAL, EVALSHA, SCAN, UNLINK and all commands on keys ~{self.prefix}:*",
            )
        if isinstance(error, OutOfMemoryError) or "OOM command" in text:
            return StorageError(
                "the Redis server has no memory left for the state",
                where=self.address,
                hint="raise its maxmemory, then try again",
            )
        if "MISCONF" in text:
            return StorageError(
                "the Redis server can not write to its disk", where=self.address, hint="free space there"
            )
        return StorageError(
            f"the Redis server refused: {text}",
            where=self.address,
            hint="check that state.url names a Redis server (6.2 or newer, no cluster) and its database",
        )

    def _refusal(self, status: Reply, answer: Sequence[Reply]) -> TidemillError:
        words = [str(_text(word)) for word in answer]
        if status == b"newer":
            return StorageError(
                f"state has format {words[0]}, this Tidemill knows {FORMAT}",
                where=f"{self.address} {self.prefix}:",
                hint="use the newer Tidemill that wrote it, or another state.prefix and `tidemill recover`",
            )
        if status == b"foreign":
            return StorageError(
                f"the keys {self.prefix}: are not the state of a warehouse",
                where=self.address,
                hint="write another state.prefix in tidemill.yaml",
            )
        if status == b"gone":
            return StorageError(
                "the Redis server has lost the state",
                where=f"{self.address} {self.prefix}:",
                hint="run `tidemill recover`: it rebuilds the state from the warehouse",
            )
        if status == b"unknown":
            return StorageError(
                f"slice {words[0]} is not in the ledger of stream {words[1]}",
                hint="run `tidemill recover` to rebuild the state from the warehouse",
            )
        if status == b"retracted":
            return StorageError(
                f"batch {words[1]} decides slice {words[0]}, which was retracted",
                hint="run `tidemill recover` to rebuild the state from the warehouse",
            )
        if status == b"not failed":
            return StorageError(
                f"slice {words[0]} can not be tried again: it is {words[1]}",
                hint="run `tidemill recover` to rebuild the state from the warehouse",
            )
        if status == b"full":
            return StorageError(
                "only an empty state can be restored",
                where=f"{self.address} {self.prefix}:",
                hint="`tidemill recover` makes a new one and restores that",
            )
        return StorageError(f"the state gave no answer ({status!r})", where=self.address, hint="try again")

    @contextmanager
    def _caller(self) -> Iterator[_Caller]:
        with self._guard:
            if self._process != os.getpid():  # a child that was forked is somebody else
                self._process, self._name, self._idle = os.getpid(), secrets.token_hex(8), []
            if self._idle:
                caller = self._idle.pop()
            else:
                self._made += 1
                caller = _Caller(f"{self._name}.{self._made}")
        try:
            yield caller
        finally:
            with self._guard:
                self._idle.append(caller)


@dataclass(frozen=True, slots=True)
class Store:
    """One state on a server: the current one, the fresh one, or a generation by its number."""

    link: Link
    target: str = "current"

    def look(self, act: str, **ask: object) -> list[Reply]:
        return self.link.look(self.target, act, ask)

    def act(self, act: str, **ask: object) -> list[Reply]:
        return self.link.act(self.target, act, ask)


def shown(url: str) -> str:
    """An address as people may see it: without user, password and options."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "state.url"
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def is_away(error: Exception) -> bool:
    """Whether the same question may be answered in a while, without anybody changing it."""
    if isinstance(error, AuthenticationError | AuthorizationError):
        return False  # redis-py counts them among the lost connections
    if isinstance(error, ResponseError):
        away = isinstance(error, ReadOnlyError | MasterDownError)  # their word is cut off
        return away or AWAY.search(str(error)) is not None
    return isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError)


def _client(url: str, address: str) -> redis.Redis:
    try:
        return redis.Redis.from_url(
            url,
            protocol=2,
            socket_timeout=REPLY_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),  # asking again is ours: only we know when it is safe
        )
    except (ValueError, TypeError):
        raise ConfigError(
            "the url of the Redis server can not be read",
            where=address,
            hint="write redis://user:password@host:port/0, rediss://… or unix:///path/to/socket?db=0",
        ) from None  # its text may hold the password


def _text(value: Reply | str) -> Reply | str:
    return value.decode("utf-8") if isinstance(value, bytes) else value
