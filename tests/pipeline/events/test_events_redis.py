"""The Redis sink, on a real server: entries in order, and nothing lost while the server is away."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import redis
from tests.pipeline.events.conftest import NOON, SECRET, NewDelivery, announce
from tests.support.redis_server import RedisServer

from tidemill.model.time import SECOND
from tidemill.pipeline.events import Delivered
from tidemill.storage.state.protocol import State


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    made.start()
    yield made
    made.kill()


def bus(server: RedisServer, **more: object) -> dict[str, object]:
    return {"bus": {"kind": "redis", "url": server.url, **more}}


def entries(server: RedisServer, stream: str = "tidemill.pipeline.events") -> list[dict[str, str]]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        return [fields for _, fields in client.xrange(stream)]


def test_each_event_is_an_entry_with_its_id(
    state: State, new_delivery: NewDelivery, server: RedisServer
) -> None:
    wanted = announce(state, *range(250))
    assert new_delivery(bus(server)).deliver(NOON) == [Delivered("bus", 250)]
    found = entries(server)
    assert [sorted(fields) for fields in found] == [["event", "id"]] * 250
    assert [fields["id"] for fields in found] == wanted
    assert [json.loads(fields["event"])["id"] for fields in found] == wanted
    assert state.delivered("bus") == state.outbox()[-1].seq


def test_only_the_newest_are_kept_when_a_length_is_set(
    state: State, new_delivery: NewDelivery, server: RedisServer
) -> None:
    wanted = announce(state, *range(10))
    new_delivery(bus(server, stream="mine", max_length=3)).deliver(NOON)
    assert [fields["id"] for fields in entries(server, "mine")] == wanted[-3:]


def test_nothing_is_lost_while_the_server_is_away(
    state: State, new_delivery: NewDelivery, server: RedisServer
) -> None:
    delivery = new_delivery(bus(server))
    wanted = announce(state, 1, 2)
    delivery.deliver(NOON)
    server.kill()
    wanted += announce(state, 3)
    (document,) = delivery.deliver(NOON)
    assert (document.delivered, document.next_try) == (0, NOON + SECOND)
    assert document.error is not None
    assert document.error.startswith("Redis cannot be reached: ")
    (document,) = delivery.deliver(NOON + SECOND)
    assert document.next_try == NOON + 3 * SECOND
    server.start()
    assert delivery.deliver(NOON + 3 * SECOND) == [Delivered("bus", 1)]
    assert [fields["id"] for fields in entries(server)] == wanted


def test_a_server_that_does_not_answer_is_given_up_in_time(
    state: State, new_delivery: NewDelivery, server: RedisServer
) -> None:
    """The answer is lost, not the command: the entries are there twice, with the same ids."""
    wanted = announce(state, 1, 2)
    sinks = bus(server, timeout="300ms")
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLIENT", "PAUSE", "1000", "WRITE")
    (document,) = new_delivery(sinks).deliver(NOON)
    assert document.delivered == 0
    assert state.delivered("bus") == 0
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLIENT", "UNPAUSE")
    assert new_delivery(sinks).deliver(NOON) == [Delivered("bus", 2)]
    found = [fields["id"] for fields in entries(server)]
    assert found in (wanted, wanted + wanted)


def test_a_key_that_holds_something_else_is_told_as_an_error(
    state: State, new_delivery: NewDelivery, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.set("tidemill.pipeline.events", "a text")
    wanted = announce(state, 1)
    delivery = new_delivery(bus(server))
    (document,) = delivery.deliver(NOON)
    assert document.error is not None
    assert document.error.startswith("Redis refuses it: ")
    assert "WRONGTYPE" in document.error or "wrong kind of value" in document.error
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    with redis.Redis.from_url(server.url) as client:
        client.delete("tidemill.pipeline.events")
    assert delivery.deliver(NOON + SECOND) == [Delivered("bus", 1)]
    assert [fields["id"] for fields in entries(server)] == wanted


def test_the_password_comes_from_the_environment(
    state: State, new_delivery: NewDelivery, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "tide-and-mill")
    announce(state, 1)
    (refused,) = new_delivery(bus(server)).deliver(NOON)
    assert refused.error == "Redis refuses it: Authentication required."
    (unset,) = new_delivery(bus(server, secret_env="NOT_SET")).deliver(NOON)
    assert unset.error == "the environment variable NOT_SET is not set"
    assert new_delivery(bus(server, secret_env="HOOK_SECRET")).deliver(NOON)[0].delivered == 0
    document = new_delivery(bus(server, secret_env="REDIS_PASSWORD")).deliver(NOON)
    assert document == [Delivered("bus", 1)]
    assert "tide-and-mill" not in caplog.text
    assert SECRET not in caplog.text
