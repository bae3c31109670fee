"""Chained logs: a line that was changed, removed, swapped or lost is found, and put back from the state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tidemill.ingest.append_log import LineFile
from tidemill.model.errors import DamageError
from tidemill.storage.layout import EXPIRIES
from tidemill.storage.state.protocol import State
from tidemill.storage.state.sqlite import open_state

Harm = Callable[[list[bytes]], list[bytes]]


def parse(text: bytes) -> int | None:
    try:
        return int(json.loads(text)["n"])
    except (ValueError, KeyError, TypeError):
        return None


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with closing(open_state(tmp_path / "state.db")) as opened:
        yield opened


@pytest.fixture
def log(tmp_path: Path) -> LineFile[int]:
    return LineFile(tmp_path, EXPIRIES, parse)


def append(log: LineFile[int], state: State | None, *numbers: int) -> None:
    with log.locked():
        tail = log.tail(state.log_head(EXPIRIES) if state else None)
        log.append([json.dumps({"n": number}).encode() for number in numbers], tail, "append")
        if state is not None:
            log.record(state)


def read(log: LineFile[int], state: State) -> list[int]:
    return list(log.all(state.log_head(EXPIRIES)))


def rewrite(log: LineFile[int], harm: Harm) -> None:
    log.path.write_bytes(b"".join(harm(log.path.read_bytes().splitlines(keepends=True))))


def test_lines_are_read_in_their_order(log: LineFile[int], state: State) -> None:
    assert read(log, state) == []
    append(log, state, 1)
    append(log, state, 2, 3)
    assert read(log, state) == [1, 2, 3]
    head = state.log_head(EXPIRIES)
    assert head == log.head()
    assert head is not None
    assert head.lines == 3


HARM: dict[str, Harm] = {
    "changed": lambda lines: [lines[0], lines[1].replace(b'"n": 2', b'"n": 7'), *lines[2:]],
    "first changed": lambda lines: [lines[0].replace(b'"n": 1', b'"n": 7'), *lines[1:]],
    "last changed": lambda lines: [*lines[:-1], lines[-1].replace(b'"n": 4', b'"n": 7')],
    "last not readable": lambda lines: [*lines[:-1], lines[-1].replace(b"{", b"[")],
    "chain changed": lambda lines: [lines[0], lines[1].replace(b'"2:', b'"3:'), *lines[2:]],
    "removed": lambda lines: [lines[0], *lines[2:]],
    "first removed": lambda lines: lines[1:],
    "swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "doubled": lambda lines: [lines[0], lines[0], *lines[1:]],
    "tail lost": lambda lines: lines[:2],
    "tail torn": lambda lines: [*lines[:3], lines[3][:-5]],
    "emptied": lambda lines: [],
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM.keys())
def test_whatever_is_done_to_a_log_is_found_and_undone(log: LineFile[int], state: State, harm: Harm) -> None:
    append(log, state, 1, 2)
    append(log, state, 3, 4)
    before = log.path.read_bytes()
    rewrite(log, harm)
    with pytest.raises(DamageError) as found:
        read(log, state)
    assert found.value.where == "slices/expiries.ndjson"
    assert log.path.read_bytes() != before  # who reads changes nothing
    with log.locked():
        assert log.restore(state)
    assert log.path.read_bytes() == before


def test_a_log_that_is_gone_is_found_and_put_back(log: LineFile[int], state: State) -> None:
    append(log, state, 1, 2)
    before = log.path.read_bytes()
    log.path.unlink()
    with pytest.raises(DamageError, match="the log is missing, and 2 lines were written to it"):
        read(log, state)
    with pytest.raises(DamageError, match="missing"):
        log.must_be_new(state)
    with log.locked():
        assert log.restore(state)
    assert log.path.read_bytes() == before


@pytest.mark.parametrize("harm", ["last changed", "tail lost", "tail torn", "emptied", "last not readable"])
def test_nothing_is_appended_to_a_log_that_lost_its_end(log: LineFile[int], state: State, harm: str) -> None:
    append(log, state, 1, 2, 3, 4)
    rewrite(log, HARM[harm])
    damaged = log.path.read_bytes()
    with pytest.raises(DamageError):
        append(log, state, 5)
    assert log.path.read_bytes() == damaged


def test_what_a_crash_left_of_an_append_is_cut_off(log: LineFile[int], state: State) -> None:
    append(log, state, 1, 2)
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + b'{"n": 3, "chai')
    assert read(log, state) == [1, 2]
    append(log, state, 4)
    assert read(log, state) == [1, 2, 4]
    assert log.path.read_bytes().startswith(whole)


def test_lines_that_the_state_does_not_know_yet_count(log: LineFile[int], state: State) -> None:
    append(log, state, 1)
    append(log, None, 2, 3)  # a crash came before the state heard of them
    assert read(log, state) == [1, 2, 3]
    append(log, state, 4)
    assert read(log, state) == [1, 2, 3, 4]
    assert len(state.log_lines(EXPIRIES)) == 4
    append(log, None, 5)
    rewrite(log, HARM["first changed"])
    with log.locked():
        assert log.restore(state)  # what came behind stays
    assert read(log, state) == [1, 2, 3, 4, 5]


def test_lines_of_earlier_versions_come_first_and_are_protected_by_the_next_one(
    log: LineFile[int], state: State
) -> None:
    log.path.parent.mkdir()
    log.path.write_bytes(b'{"n": 1}\n{"n": 2}\n')
    assert read(log, state) == [1, 2]
    assert log.head() is None
    append(log, state, 3)
    assert read(log, state) == [1, 2, 3]
    rewrite(log, HARM["first changed"])
    with pytest.raises(DamageError, match="line 3 is not the one that was written there"):
        read(log, state)
    with log.locked():
        assert log.restore(state)
    assert read(log, state) == [1, 2, 3]


def test_a_state_of_an_old_copy_is_told_from_a_damaged_log(log: LineFile[int], state: State) -> None:
    append(log, state, 1)
    old = state.log_head(EXPIRIES)
    assert old is not None
    with log.locked():
        state.forget_log(EXPIRIES)
        log.replace([b'{"n": 8}', b'{"n": 9}'])
    assert log.is_another(old)
    rewrite(log, lambda lines: [lines[0], lines[1].replace(b"9", b"7", 1)])
    assert not log.is_another(old)
