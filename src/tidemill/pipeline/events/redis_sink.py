"""The Redis sink: each event as an entry of a Redis stream, with the fields `id` and `event`.

Delivered means that the server confirmed it. An entry may be there twice after a crash or a lost connection,
with the same `id`; the server assigns its position in the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidemill.config.events import RedisSink
from tidemill.model.time import SECOND
from tidemill.pipeline.events.sink import Message, SentEvents, Trouble

if TYPE_CHECKING:
    import redis


class RedisSender:
    """One stream on one server; connects when there is something to send, and again after a failure."""

    chunk: Final = 100

    def __init__(self, sink: RedisSink, environment: Mapping[str, str]) -> None:
        self._sink = sink
        self._environment = environment

    def send(self, messages: Sequence[Message], now: int, go_on: Callable[[], bool]) -> SentEvents:
        import redis  # imported here: only projects with such a sink need it

        name = self._sink.secret_env
        if name is not None and not self._environment.get(name):
            return SentEvents(
                0,
                Trouble(
                    f"the environment variable {name} is not set", "set it to the password", refused=True
                ),
            )
        try:
            with self._client() as client, client.pipeline(transaction=False) as pipeline:
                for message in messages:
                    pipeline.xadd(
                        self._sink.stream,
                        {"id": message.id, "event": message.body},
                        maxlen=self._sink.max_length,
                        approximate=False,
                    )
                answers = pipeline.execute(raise_on_error=False)
        except redis.AuthenticationError as error:  # redis-py treats this as a lost connection
            return SentEvents(0, _refused(error))
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            return SentEvents(0, Trouble(f"Redis cannot be reached: {error}", "check that it is up"))
        except (redis.RedisError, ValueError) as error:
            return SentEvents(0, _refused(error))
        for count, answer in enumerate(answers):
            if isinstance(answer, Exception):
                return SentEvents(count, _refused(answer))
        return SentEvents(len(messages))

    def _client(self) -> redis.Redis:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        name = self._sink.secret_env
        timeout = self._sink.timeout / SECOND
        client: redis.Redis = redis.Redis.from_url(
            self._sink.url,
            password=self._environment.get(name) if name is not None else None,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            protocol=2,  # XADD needs no more, and every server and proxy supports it
            retry=Retry(NoBackoff(), 0),  # the delivery retries, with its own delay
        )
        return client


def _refused(error: Exception) -> Trouble:
    hint = "check the url, the password, and that the stream's key holds a stream"
    return Trouble(f"Redis refuses it: {error}", hint, refused=True)
