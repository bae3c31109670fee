"""What is particular to the Redis state: a server that goes away, lost answers, its keys, its errors."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from tests.state.conftest import (
    PREFIXES,
    accept,
    batch_of,
    build_all,
    dataset_of,
    judge_due,
    key_of,
    lay,
    name_of,
    queue,
    result_of,
    slice_of,
)
from tests.state.redis_server import LossyRoad, RedisServer

from tidemill.model.errors import ConfigError, Retry, StorageError
from tidemill.model.slices import SliceEntry
from tidemill.model.time import HOUR, MAX_INSTANT, MIN_INSTANT, MINUTE
from tidemill.model.windows import Phase, WindowKey
from tidemill.state.protocol import NO_PROGRESS, BatchRecord, ClockState, Progress, State
from tidemill.state.redis_link import FORMAT, script
from tidemill.state.redis_open import open_fresh_redis, open_redis
from tidemill.state.redis_rows import ordered
from tidemill.state.rows import TRIES

ARRIVAL = 1_704_067_200_000_001


@pytest.fixture
def prefix() -> str:
    return f"own{next(PREFIXES)}"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """One that a test may stop, start and set as it likes."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port, decode_responses=True) as opened:
        yield opened


# -- a server that goes away


def test_every_act_waits_for_a_server_that_stopped_and_goes_on(own_server: RedisServer) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) % 3 == 0:
            own_server.start()

    state = open_redis(own_server.url, "t", sleep=wait)
    acts: list[Callable[[], object]] = [
        lambda: state.enter(slice_of(1)),
        lambda: state.apply_batch(batch_of("b", [1], {0: [1]})),
        lambda: lay(state, {1: [5]}),
        lambda: judge_due(state),
        lambda: build_all(state),
        lambda: state.enter(slice_of(1)),
    ]
    for act in acts:
        own_server.kill()
        act()
    assert [(entry.seq, entry.landings) for entry in state.slices()] == [(1, 2)]
    assert [(window.phase, window.revision) for window in state.windows()] == [(Phase.BUILT, 1)]
    assert state.totals("requests")["accepted"] == 8
    assert waits[:3] == [0.05, 0.1, 0.2]  # growing, and not from zero
    state.close()


def test_builders_at_work_outlive_the_server(own_server: RedisServer) -> None:
    back = threading.Event()
    built: list[WindowKey] = []
    some, lost = threading.Event(), threading.Event()

    def wait(seconds: float) -> None:
        lost.set()
        back.wait(30)

    def work(owner: str) -> None:
        state = open_redis(own_server.url, "t", sleep=wait)
        while builds := state.take(owner, 0, HOUR, 2):
            for build in builds:
                if state.complete(build, dataset_of(build), 0):
                    built.append(build.key)
            if len(built) > 10:
                some.set()
        state.close()

    state = open_redis(own_server.url, "t")
    queue(state, {1: range(60)})
    builders = [threading.Thread(target=work, args=(owner,)) for owner in ("a", "b")]
    for builder in builders:
        builder.start()
    assert some.wait(30)
    own_server.kill()
    assert lost.wait(30)
    own_server.start()
    back.set()
    for builder in builders:
        builder.join(60)
    assert sorted(built) == [key_of(hour) for hour in range(60)]
    assert {(window.phase, window.revision) for window in state.windows()} == {(Phase.BUILT, 1)}
    state.close()


def test_patience_ends_with_an_error_that_says_try_again(own_server: RedisServer) -> None:
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    state = open_redis(own_server.url, "t", patience=60, sleep=wait, clock=lambda: now[0])
    own_server.kill()
    with pytest.raises(StorageError, match="can not be reached") as caught:
        state.landings()
    assert now[0] == pytest.approx(60)
    assert caught.value.retry is Retry.LATER
    assert "state.url" in caught.value.hint
    own_server.start()
    assert state.landings() == 0
    state.close()


def test_opening_waits_a_few_seconds_only(own_server: RedisServer) -> None:
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    own_server.kill()
    with pytest.raises(StorageError, match="can not be reached"):
        open_redis(own_server.url, "t", sleep=wait, clock=lambda: now[0])
    assert now[0] == pytest.approx(5)


def test_a_server_that_lost_the_state_is_not_taken_for_an_empty_one(own_server: RedisServer) -> None:
    state = open_redis(own_server.url, "t")
    state.enter(slice_of(1))
    redis.Redis(port=own_server.port).flushall()
    for act in (state.landings, lambda: state.enter(slice_of(2))):
        with pytest.raises(StorageError, match="has lost the state") as caught:
            act()
        assert "tidemill recover" in caught.value.hint
    state.close()


# -- answers that get lost


@pytest.mark.parametrize("act", ["enter", "apply_batch", "replace_runs", "lay", "commit", "fill", "adopt"])
def test_an_act_whose_answer_got_lost_is_done_once_and_answered(
    act: str, redis_server: RedisServer, prefix: str
) -> None:
    with LossyRoad(redis_server.port) as road:
        state = open_redis(road.url, prefix, sleep=lambda _: None)
        road.lose(act)
        state.restore([SliceEntry(1, slice_of(9, "other"))], [])
        assert [entry.landings for entry in state.enter_all([slice_of(1), slice_of(1)])] == [1, 2]
        assert state.apply_batch(batch_of("b", [1]))
        assert state.replace_runs("requests", ["run-b"], ["merged"])
        lay(state, {1: [3]})
        judge_due(state)
        (build,) = state.take("me", 0, HOUR, 5)
        assert state.complete(build, dataset_of(build), 7)
        assert state.landings() == 3
        assert state.window_counts("requests")[Phase.BUILT] == 1
        assert road.lost == 1
        state.close()


@pytest.mark.parametrize("n", range(3))
def test_what_was_taken_is_not_lost_with_the_answer(n: int, redis_server: RedisServer, prefix: str) -> None:
    """A window that nobody knows it holds would wait for its lease to run out."""
    with LossyRoad(redis_server.port) as road:
        state = open_redis(road.url, prefix, sleep=lambda _: None)
        queue(state, {1: range(6)})
        road.lose("commit", after=n)
        taken = [state.take("me", 0, HOUR, 2) for _ in range(4)]
        assert [[build.key for build in builds] for builds in taken] == [
            [key_of(0), key_of(1)], [key_of(2), key_of(3)], [key_of(4), key_of(5)], [],
        ]  # fmt: skip
        assert road.lost == 1
        assert state.release("me") == 6
        state.close()


def test_a_request_that_was_overtaken_by_later_ones_does_nothing(
    client: redis.Redis, redis_server: RedisServer, prefix: str
) -> None:
    """It was on its way for long; its caller gave up on it and has asked for more since."""
    open_redis(redis_server.url, prefix).close()

    def ask(number: int) -> list[object]:
        payload = f'{{"sink":"s","seq":"{number}"}}'
        arguments = (FORMAT, prefix, "current", "set_delivered", "somebody", number, payload)
        answer: list[object] = client.eval(script()[0], 0, *arguments)
        return answer

    assert ask(2) == ["ok"]
    assert ask(3) == ["ok"]
    assert ask(2) == ["stale"]
    assert ask(3) == ["ok"]


# -- numbers


def test_instants_that_no_double_holds_are_kept_apart(redis_server: RedisServer, prefix: str) -> None:
    state = open_redis(redis_server.url, prefix)
    last = MAX_INSTANT - 1
    state.enter(slice_of(1))
    state.apply_batch(batch_of("b", [1]))
    state.lay_out("requests", 1)
    state.lay("requests", {name_of(1): [last - 2, last - 1, last]})
    assert [window.key.start for window in state.windows()] == [last - 2, last - 1, last]
    judge_due(state)
    first, second = state.take("me", last - 9, last - 1, 2)
    assert (first.key.start, second.key.start) == (last - 2, last - 1)
    assert state.fail(first, "broken", last, 5)
    assert [build.key.start for build in state.take("you", last - 2, last, 9)] == [last]
    assert [build.key.start for build in state.take("you", last - 1, last + 5, 9)] == [second.key.start]
    assert state.take("you", last - 1, last + 5, 9) == []
    assert len(state.take("you", last, last + 5, 9)) == 2
    state.close()


def test_clocks_advance_by_a_microsecond_anywhere_in_time(redis_server: RedisServer, prefix: str) -> None:
    state = open_redis(redis_server.url, prefix)
    far = 1 << 60
    for n, mark in enumerate([-far, 1 - far, -1, 0, 1, far - 1, far, far - 1]):
        state.apply_batch(BatchRecord("requests", f"b{n}", 1, 1, [], [ClockState("a", mark, mark)], {}))
        reached = mark if n < 7 else far  # the last one would go back
        assert state.clocks("requests") == [ClockState("a", reached, reached)]
    state.close()


# -- keys and costs


def test_all_keys_are_under_the_prefix(own_server: RedisServer) -> None:
    client = redis.Redis(port=own_server.port, decode_responses=True)
    states = [open_redis(own_server.url, name) for name in ("one", "one-more")]
    for number, state in enumerate(states):
        queue(state, {number: [1, 2]})
        build_all(state)
    assert {name.split(":")[0] for name in client.scan_iter()} == {"one", "one-more"}
    assert [[entry.id for entry in state.slices()] for state in states] == [[name_of(0)], [name_of(1)]]
    for state in states:
        state.close()


def test_built_windows_and_old_slices_cost_nothing(client: redis.Redis, redis_server: RedisServer) -> None:
    """Counted in commands that the server ran, which do not depend on how busy this machine is."""
    costs = []
    for built in (5, 2000):
        state = open_redis(redis_server.url, f"own{next(PREFIXES)}")
        accept(state, *range(built // 5))
        lay(state, {number: range(number, built, built // 5) for number in range(built // 5)})
        judge_due(state)
        build_all(state)
        queue(state, {5001: [-5]})
        accept(state, 5002)
        lay(state, {5002: [-9]})
        costs.append(
            [
                _commands(client, lambda state=state: state.due("requests", 1 << 60, 100)),
                _commands(client, lambda state=state: state.take("me", 0, MINUTE, 1)),
                _commands(client, lambda state=state: state.release("me")),
                _commands(client, lambda state=state: state.queue_length()),
                _commands(client, lambda state=state: state.unlaid("requests", 100)),
                _commands(client, lambda state=state: state.pending("requests", 1000)),
                _commands(client, lambda state=state: state.stale_tiles("requests")),
                _commands(client, lambda state=state: state.totals("requests")),
            ]
        )
        state.close()
    few, many = costs
    assert many == few
    assert max(many) < 40


def _commands(client: redis.Redis, act: Callable[[], object]) -> int:
    client.config_resetstat()
    act()
    stats: dict[str, dict[str, int]] = client.info("commandstats")
    assert not {"cmdstat_keys", "cmdstat_scan"} & stats.keys()
    return sum(each["calls"] for name, each in stats.items() if "config" not in name)


# -- errors


@pytest.mark.parametrize("url", ["redis://user:secret@localhost:port/0", "http://:secret@localhost/", "?"])
def test_an_address_that_can_not_be_read_is_an_error_that_keeps_its_secrets(url: str) -> None:
    with pytest.raises(ConfigError, match="can not be read") as caught:
        open_redis(url, "t")
    assert "redis://user:password@host:port/0" in caught.value.hint
    assert "secret" not in f"{caught.value.as_dict()} {caught.value.__cause__}"


def test_a_wrong_password_is_told_and_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = RedisServer(tmp_path, "--requirepass", "open-sesame")
    server.start()
    caplog.set_level(logging.DEBUG)
    for secret in ("", ":guessed@"):
        with pytest.raises(ConfigError, match="another user or password") as caught:
            open_redis(server.url.replace("127", f"{secret}127"), "t")
        assert "guessed" not in f"{caught.value.as_dict()} {caplog.text}"
    state = open_redis(server.url.replace("127", ":open-sesame@127"), "t")
    server.kill()
    with pytest.raises(StorageError) as away:
        open_redis(server.url.replace("127", ":open-sesame@127"), "t", patience=0)
    assert "sesame" not in f"{away.value.as_dict()} {caplog.text}"
    state.close()


def test_a_state_of_a_newer_tidemill_is_refused_and_left_alone(
    client: redis.Redis, redis_server: RedisServer, prefix: str
) -> None:
    state = open_redis(redis_server.url, prefix)
    client.set(f"{prefix}:format", FORMAT + 1)
    before = _contents(redis_server, prefix)
    newer = f"state has format {FORMAT + 1}, this Tidemill knows {FORMAT}"
    with pytest.raises(StorageError, match=newer):
        open_redis(redis_server.url, prefix)
    with pytest.raises(StorageError, match=newer):  # one that was open while it was upgraded
        state.enter(slice_of(1))
    assert _contents(redis_server, prefix) == before
    state.close()


def first_format(client: redis.Redis, prefix: str, state: State) -> None:
    """Clocks as the older Tidemill left them: `cold` was heard of long before the others, `empty` never with
    an accepted record, `gone` is not in the ledger."""
    arrivals = {"cold": 5, "past": -1, "first": MIN_INSTANT, "last": MAX_INSTANT, "file": ARRIVAL}
    news = [
        replace(slice_of(number), source=source, arrival=arrival)
        for number, (source, arrival) in enumerate(
            [*arrivals.items(), *(("file", arrivals["file"] + n) for n in range(150)), ("empty", 9)]
        )
    ]
    state.enter_all(news)
    results = [result_of(number, accepted=8 * (new.source != "empty")) for number, new in enumerate(news)]
    assert state.apply_batch(BatchRecord("requests", "b1", 1, 1, results, [], {}))
    clocks = f"{prefix}:{client.get(f'{prefix}:current')}:clocks:requests"
    for n, source in enumerate([*arrivals, "empty", "gone"]):
        client.hset(clocks, source, f"{ordered(100 + n)} {ordered(n - 3)}")
    client.delete(clocks.replace("clocks", "progress"))
    client.set(f"{prefix}:format", 1)


@pytest.mark.parametrize("opening", [open_redis, open_fresh_redis])
def test_a_state_of_an_older_tidemill_is_brought_up_to_date(
    client: redis.Redis, redis_server: RedisServer, prefix: str, opening: Callable[[str, str], State]
) -> None:
    """By whoever opens it first, be it a recovery that is not finished."""
    state = open_redis(redis_server.url, prefix)
    first_format(client, prefix, state)
    opening(redis_server.url, prefix).close()
    assert client.get(f"{prefix}:format") == str(FORMAT) == "3"
    assert state.clocks("requests") == [
        ClockState("cold", 100, -3, 5),
        ClockState("empty", 105, 2, 0),
        ClockState("file", 104, 1, ARRIVAL + 149),
        ClockState("first", 102, -1, MIN_INSTANT),
        ClockState("gone", 106, 3, 0),
        ClockState("last", 103, 0, MAX_INSTANT),
        ClockState("past", 101, -2, -1),
    ]
    assert state.progress("requests") == Progress(watermark=-3)
    assert state.progress("other") == NO_PROGRESS
    state.apply_batch(BatchRecord("requests", "b2", 1, 1, [], [ClockState("cold", 1, 7, 3)], {}))
    assert state.clocks("requests")[0] == ClockState("cold", 100, 7, 5)
    open_redis(redis_server.url, prefix).close()  # a second look changes nothing
    assert state.clocks("requests")[0] == ClockState("cold", 100, 7, 5)
    state.close()


def test_slices_that_failed_before_they_were_tried_again_are_tried_once(
    client: redis.Redis, redis_server: RedisServer, prefix: str
) -> None:
    state = open_redis(redis_server.url, prefix)
    state.enter_all([slice_of(1), slice_of(2)])
    results = [result_of(1, 0, "not there"), result_of(2)]
    assert state.apply_batch(BatchRecord("requests", "b1", 1, 1, results, [], {}))
    current = f"{prefix}:{client.get(f'{prefix}:current')}"
    row = json.loads(str(client.hget(f"{current}:slices", "1")))
    kept = {name: value for name, value in row.items() if name not in ("retried", *TRIES)}
    client.hset(f"{current}:slices", "1", json.dumps(kept))
    client.delete(f"{current}:unread:requests")
    client.set(f"{prefix}:format", 2)
    open_redis(redis_server.url, prefix).close()
    (failed,) = state.failing("requests", 0, "as it is", 10)
    assert (failed.id, failed.failures, failed.retried) == (name_of(1), 1, 0)
    (sent,) = state.send_again([failed.id])
    assert (sent.seq, sent.retried, state.landings()) == (3, 1, 3)
    state.close()


def test_keys_of_somebody_else_are_refused(
    client: redis.Redis, redis_server: RedisServer, prefix: str
) -> None:
    client.set(f"{prefix}:format", "theirs")
    with pytest.raises(StorageError, match="not the state of a warehouse") as caught:
        open_redis(redis_server.url, prefix)
    assert "state.prefix" in caught.value.hint


def test_a_server_without_memory_changes_nothing_of_an_act(own_server: RedisServer) -> None:
    client = redis.Redis(port=own_server.port)
    state = open_redis(own_server.url, "t")
    state.enter(slice_of(1))
    before = state.dump()
    client.config_set("maxmemory", 1)
    with pytest.raises(StorageError, match="no memory left"):
        state.enter(slice_of(2))
    assert state.dump() == before
    client.config_set("maxmemory", 0)
    assert state.enter(slice_of(2)).seq == 2
    state.close()


def test_a_replica_is_waited_for_until_it_is_the_master(own_server: RedisServer) -> None:
    client = redis.Redis(port=own_server.port)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        client.replicaof("NO", "ONE")

    state = open_redis(own_server.url, "t", sleep=wait)
    client.config_set("replica-serve-stale-data", "yes")
    client.replicaof("127.0.0.1", "1")
    assert state.enter(slice_of(1)).seq == 1
    assert waits == [0.05]
    state.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"appendonly": "no"}, "keeps no append-only file"),
        ({"appendfsync": "everysec"}, "appendfsync everysec: a power cut can lose"),
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "1gb"}, "may throw keys of the state away"),
        ({}, ""),
    ],
)
def test_a_server_that_may_lose_what_it_acknowledged_is_warned_of(
    own_server: RedisServer, settings: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in settings.items():
        redis.Redis(port=own_server.port).config_set(name, value)
    open_redis(own_server.url, "t").close()
    assert [said in message for message in caplog.messages] == [True] * bool(settings)


def test_a_user_without_the_right_to_look_at_settings_can_use_it(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = redis.Redis(port=own_server.port)
    client.acl_setuser(
        "mill", enabled=True, passwords=["+pw"], keys=["t:*"], commands=["+@all", "-@admin", "-config"]
    )
    state = open_redis(own_server.url.replace("127", "mill:pw@127"), "t")
    queue(state, {1: [1]})
    assert len(build_all(state)) == 1
    assert caplog.messages == []
    client.acl_setuser("mill", enabled=True, commands=["-evalsha"])
    with pytest.raises(ConfigError, match="lacks a permission"):
        state.landings()
    state.close()


def _contents(server: RedisServer, prefix: str) -> dict[bytes, bytes]:
    with redis.Redis(port=server.port) as client:
        return {name: client.dump(name) for name in client.keys(f"{prefix}:*")}
