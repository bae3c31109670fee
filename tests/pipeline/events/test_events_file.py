"""The file sink: whole lines only, and nothing lost by a full disk or a torn line."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path

import pytest
from tests.pipeline.events.conftest import NOON, NewDelivery, announce

from tidemill.model.time import SECOND
from tidemill.pipeline.events import Delivered
from tidemill.storage.state.protocol import State

SINKS: dict[str, object] = {"log": {"kind": "file", "path": "out/events.ndjson"}}


def ids_in(file: Path) -> list[str]:
    lines = file.read_bytes().split(b"\n")
    assert lines[-1] == b""
    return [json.loads(line)["id"] for line in lines[:-1]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "out" / "events.ndjson"


def test_one_line_for_each_event_in_order(state: State, new_delivery: NewDelivery, file: Path) -> None:
    ids = announce(state, 1, 2, 3)
    delivery = new_delivery(SINKS)
    assert delivery.deliver(NOON) == [Delivered("log", 3)]
    assert ids_in(file) == ids
    assert state.delivered("log") == state.outbox()[-1].seq
    assert delivery.deliver(NOON) == []
    more = announce(state, 4)
    assert delivery.deliver(NOON) == [Delivered("log", 1)]
    assert ids_in(file) == ids + more


def test_a_line_says_where_the_dataset_is(state: State, new_delivery: NewDelivery, file: Path) -> None:
    announce(state, 1)
    new_delivery(SINKS).deliver(NOON)
    cloud = json.loads(file.read_bytes())
    location = "datasets/weather/aggregation/01_1h/r1.arrow"
    assert cloud["source"] == "test"
    assert cloud["data"]["location"] == location
    assert cloud["data"]["uri"] == (file.parents[1] / "warehouse" / location).as_uri()


def test_a_torn_last_line_is_cut_off_and_its_event_comes_again(
    state: State, new_delivery: NewDelivery, file: Path
) -> None:
    ids = announce(state, 1, 2)
    new_delivery(SINKS).deliver(NOON)
    whole = file.read_bytes()
    torn = (b"\0" * 70_000, b'{"data":' + b" " * 70_000, whole.splitlines()[0][:-1])
    for number, piece in enumerate(torn, start=3):
        file.write_bytes(whole + piece)
        ids += announce(state, number)
        new_delivery(SINKS).deliver(NOON)
        whole = file.read_bytes()
        assert ids_in(file) == ids


def test_a_whole_last_line_without_its_end_is_kept(
    state: State, new_delivery: NewDelivery, file: Path
) -> None:
    file.parent.mkdir()
    file.write_bytes(b'{"id":"by hand"}')
    ids = announce(state, 1)
    new_delivery(SINKS).deliver(NOON)
    assert ids_in(file) == ["by hand", *ids]


def test_a_file_of_one_torn_line_starts_anew(state: State, new_delivery: NewDelivery, file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b'{"id":')
    ids = announce(state, 1)
    new_delivery(SINKS).deliver(NOON)
    assert ids_in(file) == ids


def test_a_file_that_was_moved_away_is_made_again(
    state: State, new_delivery: NewDelivery, file: Path
) -> None:
    delivery = new_delivery(SINKS)
    first = announce(state, 1)
    delivery.deliver(NOON)
    file.rename(file.with_name("events.1.ndjson"))
    second = announce(state, 2)
    delivery.deliver(NOON)
    assert ids_in(file.with_name("events.1.ndjson")) == first
    assert ids_in(file) == second


def test_a_full_disk_leaves_no_half_line_and_is_tried_again(
    state: State, new_delivery: NewDelivery, file: Path
) -> None:
    """A limit on the size of files stands for the disk."""
    ids = announce(state, 1)
    delivery = new_delivery(SINKS)
    delivery.deliver(NOON)
    before = file.read_bytes()
    ids += announce(state, *range(2, 2000))
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # less than the events, more than the state needs
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limit[1]))
        (document,) = delivery.deliver(NOON)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (document.delivered, document.next_try) == (0, NOON + SECOND)
    assert document.error == f"cannot append to {file}: File too large"
    assert file.read_bytes() == before
    assert delivery.deliver(NOON + SECOND) == [Delivered("log", 1998)]
    assert ids_in(file) == ids


@pytest.mark.parametrize("kind", ["folder", "pipe", "under a file"])
def test_what_is_no_file_is_told_and_left_alone(
    state: State, new_delivery: NewDelivery, file: Path, kind: str
) -> None:
    announce(state, 1)
    if kind == "folder":
        file.mkdir(parents=True)
    elif kind == "pipe":
        file.parent.mkdir()
        os.mkfifo(file)
    else:
        file.parent.write_bytes(b"")
    (document,) = new_delivery(SINKS).deliver(NOON)
    said = {"folder": "Is a directory", "pipe": "not a file", "under a file": "Not a directory"}
    assert document.error == f"cannot append to {file}: {said[kind]}"
    assert state.delivered("log") == 0
