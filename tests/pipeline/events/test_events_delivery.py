"""Delivery as a whole: every sink gets every event in order, whatever becomes of others or of the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis
from tests.pipeline.events.conftest import NOON, SECRET, NewDelivery, Receiver, announce
from tests.support.patience import PATIENCE
from tests.support.redis_server import RedisServer

from tidemill.config.events import Events
from tidemill.model.errors import StorageError
from tidemill.model.failpoints import EXIT_CODE
from tidemill.model.time import SECOND
from tidemill.pipeline.events import Delivered, Delivery, delivery, sink
from tidemill.storage.state.protocol import State
from tidemill.storage.state.sqlite import open_state

LOG = {"kind": "file", "path": "events.ndjson"}


def ids_in(file: Path) -> list[str]:
    return [json.loads(line)["id"] for line in file.read_bytes().splitlines()]


def test_without_sinks_or_events_nothing_happens(state: State, new_delivery: NewDelivery) -> None:
    assert new_delivery({"log": LOG}).deliver(NOON) == []
    announce(state, 1)
    assert new_delivery({}).deliver(NOON) == []


def test_each_sink_has_its_own_place_and_a_new_one_starts_at_the_beginning(
    state: State, new_delivery: NewDelivery, tmp_path: Path
) -> None:
    wanted = announce(state, 1, 2)
    new_delivery({"log": LOG}).deliver(NOON)
    wanted += announce(state, 3)
    both = new_delivery({"log": LOG, "copy": {"kind": "file", "path": str(tmp_path / "copy.ndjson")}})
    assert both.deliver(NOON) == [Delivered("log", 1), Delivered("copy", 3)]
    assert ids_in(tmp_path / "events.ndjson") == ids_in(tmp_path / "copy.ndjson") == wanted
    assert (tmp_path / "events.ndjson").read_bytes() == (tmp_path / "copy.ndjson").read_bytes()


def test_a_broken_sink_does_not_hold_up_the_others(
    state: State, new_delivery: NewDelivery, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    sinks = {"broken": {"kind": "file", "path": "folder"}, "log": LOG}
    deliver = new_delivery(sinks)
    for number in range(4):
        announce(state, number)
        document = {one.sink: one.delivered for one in deliver.deliver(NOON + number)}
        assert document == ({"broken": 0, "log": 1} if number == 0 else {"log": 1})


def test_the_cursor_moves_in_chunks(
    state: State, new_delivery: NewDelivery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each it is in the state, so that a crash repeats one chunk at most."""
    announce(state, *range(45))
    moved: list[int] = []
    kept = state.set_delivered
    monkeypatch.setattr(
        type(state), "set_delivered", lambda _self, sink, seq: (moved.append(seq), kept(sink, seq))
    )
    hook = {"kind": "webhook", "url": receiver.url}
    assert new_delivery({"hook": hook}).deliver(NOON) == [Delivered("hook", 45)]
    places = [event.seq for event in state.outbox()]
    assert moved == [places[19], places[39], places[44]]


def test_a_round_has_an_end_and_the_next_goes_on(
    state: State, new_delivery: NewDelivery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(1000))
    monkeypatch.setattr(delivery, "monotonic", lambda: float(next(seconds)))
    wanted = announce(state, *range(10))
    deliver = new_delivery({"hook": {"kind": "webhook", "url": receiver.url}})
    counts = []
    while document := deliver.deliver(NOON):
        counts += [one.delivered for one in document]
    assert sum(counts) == 10
    assert max(counts) < 5
    assert [json.loads(request.body)["id"] for request in receiver.requests] == wanted


def test_after_close_nothing_begins(state: State, new_delivery: NewDelivery, tmp_path: Path) -> None:
    announce(state, 1)
    deliver = new_delivery({"log": LOG})
    deliver.close()
    assert deliver.deliver(NOON) == []
    assert not (tmp_path / "events.ndjson").exists()


def test_trouble_with_the_state_is_told_and_what_was_sent_comes_again(
    state: State, new_delivery: NewDelivery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = announce(state, 1)
    deliver = new_delivery({"log": LOG})

    def full(_self: State, sink: str, seq: int) -> None:
        raise StorageError("no space left to write the state", hint="free disk space")

    with monkeypatch.context() as patch:
        patch.setattr(type(state), "set_delivered", full)
        assert deliver.deliver(NOON) == [
            Delivered("log", 0, "no space left to write the state", NOON + SECOND)
        ]
    assert deliver.deliver(NOON + SECOND) == [Delivered("log", 1)]
    assert ids_in(tmp_path / "events.ndjson") == wanted * 2


def test_a_bug_in_a_sink_is_raised_where_it_is_seen(
    state: State, new_delivery: NewDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(state, 1)

    def broken(*_: object) -> sink.SentEvents:
        raise AssertionError("a bug")

    monkeypatch.setattr("tidemill.pipeline.events.file_sink.FileSender.send", broken)
    deliver = new_delivery({"log": LOG})
    for _ in range(2):
        with pytest.raises(AssertionError, match="a bug"):
            deliver.deliver(NOON)


# -- death in the middle

CHILD = """
import sys
from pathlib import Path
from tidemill.config.events import Events
from tidemill.pipeline.events import Delivery
from tidemill.storage.state.sqlite import open_state

root, sinks, now = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
state = open_state(root / "state.db")
delivery = Delivery(state, Events.model_validate_json(sinks), root, patience=60)
print(delivery.deliver(now), flush=True)
"""


def child(root: Path, sinks: dict[str, object], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), json.dumps({"sinks": sinks}), str(NOON)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOOK_SECRET": SECRET, **environment},
    )


def without_repeats(ids: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(ids))


@pytest.mark.parametrize("kind", ["file", "webhook", "redis"])
def test_a_process_that_dies_after_sending_repeats_the_same_events_and_loses_none(
    state: State, tmp_path: Path, receiver: Receiver, kind: str
) -> None:
    """Fail point events.after_send: the sink has them, the cursor does not know it."""
    wanted = announce(state, *range(25))
    server = RedisServer(tmp_path) if kind == "redis" else None
    sinks: dict[str, object] = {
        "file": LOG,
        "webhook": {"kind": "webhook", "url": receiver.url, "secret_env": "HOOK_SECRET"},
    }
    if server is not None:
        sinks["redis"] = {"kind": "redis", "url": server.url}
        server.start()
    try:
        for _ in range(2):
            dead = child(tmp_path, {"sink": sinks[kind]}, TIDEMILL_FAILPOINT="events.after_send")
            dead.communicate()
            assert dead.returncode == EXIT_CODE
            assert state.delivered("sink") == 0
        last = child(tmp_path, {"sink": sinks[kind]})
        said, wrong = last.communicate()
        assert last.returncode == 0, wrong
        assert said == f"[{Delivered('sink', 25)}]\n"
        if kind == "file":
            bodies = (tmp_path / "events.ndjson").read_bytes().splitlines()
        elif server is None:
            bodies = [request.body for request in receiver.requests]
        else:
            with redis.Redis.from_url(server.url) as client:
                bodies = [fields[b"event"] for _, fields in client.xrange("tidemill.pipeline.events")]
    finally:
        if server is not None:
            server.kill()
    ids = [json.loads(body)["id"] for body in bodies]
    assert len(ids) > len(wanted)
    assert without_repeats(ids) == wanted
    assert len(set(bodies)) == len(wanted)  # not only the ids repeat, all of it does
    assert state.delivered("sink") == state.outbox()[-1].seq


def test_kill_9_during_a_request_loses_nothing(state: State, tmp_path: Path, receiver: Receiver) -> None:
    wanted = announce(state, *range(5))
    receiver.answers = [(200, {})]
    receiver.hold = held = threading.Event()
    sinks: dict[str, object] = {"sink": {"kind": "webhook", "url": receiver.url}}
    process = child(tmp_path, sinks)
    assert receiver.arrived.wait(PATIENCE)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    held.set()
    assert state.delivered("sink") == 0
    again = Delivery(state, Events.model_validate({"sinks": sinks}), tmp_path, patience=30)
    assert again.deliver(NOON) == [Delivered("sink", 5)]
    ids = [json.loads(request.body)["id"] for request in receiver.requests]
    assert ids == [wanted[0], *wanted]


def test_a_new_process_goes_on_where_the_last_one_was(state: State, tmp_path: Path) -> None:
    wanted = announce(state, 1, 2)
    for _ in range(2):
        done = child(tmp_path, {"log": LOG})
        done.communicate()
        assert done.returncode == 0
    other = open_state(tmp_path / "state.db")
    wanted += announce(other, 3)
    other.close()
    child(tmp_path, {"log": LOG}).communicate()
    assert ids_in(tmp_path / "events.ndjson") == wanted
