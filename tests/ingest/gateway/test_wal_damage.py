"""Damage in the log of a gateway that died, as a user sees it: what is whole lands, the rest is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from tests.ingest.gateway.test_gateway import House, sent

from tidemill.ingest.gateway.damaged_logs import damaged_logs
from tidemill.ingest.gateway.frames import FRAME_BYTES, HEAD_BYTES, Kind, head_of, opening_of
from tidemill.ingest.gateway.status import ingest_health
from tidemill.mill import Mill
from tidemill.model.damage import FileKind
from tidemill.storage import layout

HOUR = {"kind": "fixed", "size": "1h"}
STRUCTURAL = """
version: 1
streams:
  a: {schema: {id: string, at: integer}, gate: none}
  b: {schema: {id: string, at: integer}, gate: none}
"""


def killed(house: House, folder: Path) -> House:
    """As a process that was killed this moment leaves it."""
    shutil.copytree(house.warehouse, folder / "warehouse", ignore=shutil.ignore_patterns("*.gone"))
    return House(folder, STRUCTURAL)


def segment_of(house: House) -> Path:
    (path,) = (house.warehouse / "wal").glob("*/*.wal")
    return path


def frames(path: Path) -> list[tuple[int, int, int]]:
    """Kind, start and end of each frame of a whole segment."""
    text = path.read_bytes()
    head = head_of(text[:HEAD_BYTES])
    assert head is not None
    found, at = [], HEAD_BYTES
    while at < len(text):
        opening = opening_of(text[at : at + FRAME_BYTES], head.mark)
        assert opening is not None
        found.append((opening.kind, at, at + FRAME_BYTES + opening.size))
        at = found[-1][2]
    return found


def flip(path: Path, at: int) -> None:
    text = bytearray(path.read_bytes())
    text[at] ^= 0x10
    path.write_bytes(text)


def ids(house: House, stream: str) -> list[str]:
    return [json.loads(text)["id"] for text in house.lines(stream)]


@pytest.fixture
def dead(tmp_path: Path) -> House:
    """Killed with nine requests in its log, none of them landed: six of stream a, three of b."""
    house = House(tmp_path / "live", STRUCTURAL, window=HOUR)
    with house.open() as gateway:
        for number in range(6):
            sent(gateway, "a", f"a{number}")
            if number % 2:
                sent(gateway, "b", f"b{number}")
        return killed(house, tmp_path / "dead")


@pytest.mark.parametrize("where", ["mark", "header", "body"])
@pytest.mark.parametrize("frame", [0, 4, 8])
def test_a_flipped_bit_costs_one_request_and_is_named(dead: House, frame: int, where: str) -> None:
    path = segment_of(dead)
    _, start, end = frames(path)[frame]
    order = ["a0", "a1", "b1", "a2", "a3", "b3", "a4", "a5", "b5"]
    flip(path, {"mark": start + 3, "header": start + 20, "body": end - 5}[where])
    damaged = path.read_bytes()[start:end]
    (taken,) = dead.take_up()
    assert ids(dead, "a") + ids(dead, "b") == sorted(one for one in order if one != order[frame])
    assert taken.events == len(order) - 1
    (named,) = taken.damaged
    assert damaged_logs(dead.warehouse) == [named]
    assert named.kind is FileKind.GATEWAY_LOG
    assert f"bytes {start} to {end} of wal/{taken.gateway}/00000001.wal" in named.reason
    assert (dead.warehouse / named.file).read_bytes() == damaged
    assert dead.take_up() == []  # the log is gone: what it held is in the ledger, or set aside


def test_a_torn_tail_is_no_damage(dead: House) -> None:
    """What a crash leaves of a write that nobody was told of."""
    path = segment_of(dead)
    _, start, end = frames(path)[-1]
    text = path.read_bytes()
    path.write_bytes(text + text[start : end - 7])
    (taken,) = dead.take_up()
    assert taken.damaged == ()
    assert damaged_logs(dead.warehouse) == []
    assert ids(dead, "b") == ["b1", "b3", "b5"]


@pytest.mark.parametrize("how", ["inside a frame", "at the end of a frame"])
def test_a_log_that_was_cut_short_is_named(dead: House, how: str) -> None:
    path = segment_of(dead)
    _, start, _ = frames(path)[-1]
    path.write_bytes(path.read_bytes()[:start] if how == "at the end of a frame" else path.read_bytes()[:-7])
    (taken,) = dead.take_up()
    assert ids(dead, "b") == ["b1", "b3"]
    assert damaged_logs(dead.warehouse) == list(taken.damaged)
    assert len(taken.damaged) == 1


@pytest.mark.parametrize("what", ["segment", "all files", "folder", "all folders"])
def test_the_loss_of_what_was_acknowledged_is_named_wherever_one_looks(dead: House, what: str) -> None:
    path = segment_of(dead)
    if what == "segment":
        path.unlink()
    elif what == "all files":
        for file in path.parent.iterdir():
            file.unlink()
    else:
        shutil.rmtree(path.parent if what == "folder" else path.parent.parent)
    dead.state.close()
    with Mill.open(dead.project.root) as mill:
        for _ in range(2):
            mill.tick()
            (named,) = ingest_health(mill.warehouse).damaged
            assert f"wal/{path.parent.name}" in named.reason
            assert "missing" in named.reason
        assert "tidemill_gateway_damaged_stretches 1.0" in generate_latest(mill.meter.registry).decode()
        assert mill.repair().left  # it cannot be brought back
    assert damaged_logs(dead.warehouse) == [named]


def test_a_gateway_that_ended_well_is_not_missed(tmp_path: Path) -> None:
    house = House(tmp_path, STRUCTURAL, window=HOUR)
    with house.open() as gateway:
        sent(gateway, "a", "a0")
    assert list((house.warehouse / "wal").iterdir()) == []
    assert house.take_up() == []
    assert damaged_logs(house.warehouse) == []


def test_the_damage_is_shown_until_somebody_removes_it(dead: House) -> None:
    path = segment_of(dead)
    flip(path, frames(path)[3][2] - 3)
    dead.take_up()
    dead.state.close()
    with Mill.open(dead.project.root) as mill:
        assert "tidemill_gateway_damaged_stretches 1.0" in generate_latest(mill.meter.registry).decode()
    (named,) = damaged_logs(dead.warehouse)
    (dead.warehouse / named.file).unlink()
    layout.damage_note(dead.warehouse / named.file).unlink()
    assert damaged_logs(dead.warehouse) == []


def test_a_log_that_is_taken_up_in_the_middle_is_not_doubled(dead: House, tmp_path: Path) -> None:
    """The process that takes it up dies before the log is removed; the next one begins anew."""
    path = segment_of(dead)
    flip(path, frames(path)[1][2] - 3)
    kept = shutil.copytree(path.parent, tmp_path / "kept")
    dead.take_up()
    before = ids(dead, "a"), ids(dead, "b")
    shutil.copytree(kept, path.parent)
    (again,) = dead.take_up()
    assert (ids(dead, "a"), ids(dead, "b")) == before
    assert len(damaged_logs(dead.warehouse)) == 1
    assert again.damaged


@pytest.fixture
def closed(tmp_path: Path) -> House:
    """Killed when a window of three requests had been closed and landed, and a fourth request was durable."""
    house = House(tmp_path / "live", STRUCTURAL, window=HOUR, triggers={"count": 3})
    with house.open() as gateway:
        for number in range(4):
            sent(gateway, "a", f"a{number}")
        house.wait_for(1)
        return killed(house, tmp_path / "dead")


def test_a_window_that_landed_is_not_landed_again_without_its_close(closed: House) -> None:
    path = segment_of(closed)
    (close,) = [start for kind, start, _ in frames(path) if kind == Kind.CLOSE]
    flip(path, close + 20)
    closed.take_up()
    assert ids(closed, "a") == ["a0", "a1", "a2", "a3"]


def test_nothing_is_lost_when_what_is_damaged_had_landed(closed: House) -> None:
    path = segment_of(closed)
    flip(path, frames(path)[1][2] - 3)
    (taken,) = closed.take_up()
    assert ids(closed, "a") == ["a0", "a1", "a2", "a3"]
    assert len(taken.damaged) == 1


def test_a_closed_window_lands_without_what_is_damaged(closed: House, tmp_path: Path) -> None:
    """As if its process had died between the close of the window and the landing of it."""
    bare = tmp_path / "bare"
    shutil.copytree(closed.warehouse / "wal", bare / "warehouse" / "wal")
    house = House(bare, STRUCTURAL)
    path = segment_of(house)
    flip(path, frames(path)[0][2] - 3)
    house.take_up()
    assert ids(house, "a") == ["a1", "a2", "a3"]
    first = house.state.slices("a")[0]
    assert json.loads(first.slice.metadata or "")["window"]["events"] == 2


def test_every_request_lands_once_whichever_byte_is_flipped(closed: House, tmp_path: Path) -> None:
    """Two requests are durable and not landed, in windows that are closed and open: sampled over the log."""
    path = segment_of(closed)
    size = path.stat().st_size
    spans = [(kind, start, end) for kind, start, end in frames(path)]
    for number, at in enumerate(range(1, size, 41)):
        copy = killed(closed, tmp_path / str(number))
        flip(segment_of(copy), at)
        copy.take_up()
        open_one = [span for span in spans if span[0] != Kind.CLOSE][3]
        lost = ["a3"] if open_one[1] <= at < open_one[2] else []
        assert ids(copy, "a") == [one for one in ("a0", "a1", "a2", "a3") if one not in lost], at
        assert len(damaged_logs(copy.warehouse)) == 1
        copy.state.close()
