"""Datasets and results that somebody deleted or damaged: noticed by the next round, said with the command
that mends them, and mended by it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.pipeline import NOON, NewPlant, Plant

from tidemill.mill import Mill, recover
from tidemill.model.errors import DamageError
from tidemill.model.time import HOUR, MINUTE, format_instant
from tidemill.model.windows import WindowKey
from tidemill.outputs.datasets import damage
from tidemill.outputs.datasets.checksums import FileChecksum
from tidemill.outputs.datasets.damage import damage_of
from tidemill.pipeline.documents import windows as plain
from tidemill.storage import layout

WEATHER = """
version: 1
engine: {cores: 2, memory: 512m}
streams:
  weather:
    schema:
      station: {type: string, required: true}
      at: {type: string, required: true}
      celsius: {type: decimal, scale: 1}
    event_time: {column: at, type: iso8601}
    identity: [station, at]
    aggregation_span: 1h
    late_slices: {policy: reemit, max_lateness: 3650d}
    windows:
      ten: {kind: tumbling, size: 10m, aggregates: {n: count}}
"""


HOUR_OF_DATASET = NOON - 1440 * MINUTE  # the first of two


def readings(first: int, last: int) -> bytes:
    """One a minute, from so many minutes before noon of the day before."""
    minutes = (format_instant(NOON - 1440 * MINUTE + minute * MINUTE) for minute in range(first, last))
    return b"".join(json.dumps({"station": "a", "at": at, "celsius": 1}).encode() + b"\n" for at in minutes)


@pytest.fixture
def plant(new_plant: NewPlant) -> Plant:
    plant = new_plant(WEATHER)
    with plant.open() as mill:
        for hour in (0, 1):
            start, end = (NOON + (hour - 24 + later) * 60 * MINUTE for later in (0, 1))
            mill.land("weather", readings(hour * 60, hour * 60 + 60), start=start, end=end)
            mill.tick()
        mill.run_until_idle()
    return plant


def file_of(mill: Mill) -> Path:
    (window, *_) = mill.windows.datasets("weather")
    return mill.project.warehouse / str(window.file)


def spoil(file: Path) -> None:
    file.write_bytes(b"x" * file.stat().st_size)


def flip(file: Path) -> None:
    """One bit in the middle: size and both ends stay."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (Path.unlink, "the file cannot be read: No such file or directory"),
        (lambda file: file.write_bytes(b""), "the file has 0 bytes, and "),
        (spoil, "the file is not an Arrow file any more"),
        (flip, "the file has other bytes than were written"),
    ],
    ids=["deleted", "cut", "overwritten", "flipped"],
)
def test_a_dataset_that_is_damaged(
    plant: Plant, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], object], what: str
) -> None:
    command = "tidemill rebuild weather --window 2024-01-14T12:00:00Z"
    with plant.open() as mill:
        harm(file_of(mill))
        with caplog.at_level(logging.WARNING, "tidemill.outputs.datasets.damage"):
            assert [mill.tick().streams[0].damaged for _ in range(3)] == [1, 1, 1]
        (reported,) = [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()]
        assert what in reported
        assert command in reported
        shown = [
            plain.newest(one, damage_of(plant.warehouse, one)) for one in mill.windows.datasets("weather")
        ]
        assert str(shown[0]["damage"]).startswith(what)
        assert [one["remedy"] for one in shown] == [command, None]
        (finding,) = mill.verify().findings
        assert (finding.what, finding.remedy) == ("dataset", command)
        window = mill.windows.window("weather", NOON - 1440 * MINUTE).view.window
        mill.rebuild([s for s in mill.windows.plan_rebuild("weather") if s.key == window.key])
        assert mill.tick().streams[0].damaged == 0
        assert mill.verify().ok


def test_many_datasets_are_looked_at_in_turn(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "AT_ONCE", 1)
    with plant.open() as mill:
        file_of(mill).unlink()
        assert [mill.tick().streams[0].damaged for _ in range(4)] == [1, 1, 1, 1]
        for window in mill.windows.datasets("weather")[1:]:
            (plant.warehouse / str(window.file)).unlink()
        assert max(mill.tick().streams[0].damaged for _ in range(3)) == 2


def test_with_a_process_for_each_round_all_datasets_get_their_turn(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage, "AT_ONCE", 1)
    with plant.open() as mill:
        (plant.warehouse / str(mill.windows.datasets("weather")[-1].file)).unlink()
    found = []
    for _ in range(3):
        with plant.open() as mill:
            found.append(mill.tick().streams[0].damaged)
    assert max(found) == 1


def test_a_round_that_has_work_looks_at_fewer_datasets(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "WHILE_BUSY", 1)
    with plant.open() as mill:
        for window in mill.windows.datasets("weather"):
            (plant.warehouse / str(window.file)).unlink()
        mill.land("weather", readings(120, 121))
        assert [mill.tick().streams[0].damaged for _ in range(2)] == [1, 2]


@pytest.fixture
def replaced(plant: Plant) -> Plant:
    """The first hour has three revisions: more came of it, twice."""
    with plant.open() as mill:
        for minute in (1, 2):
            plant.clock.advance(MINUTE)
            event = {"station": f"late{minute}", "at": format_instant(HOUR_OF_DATASET), "celsius": 2}
            mill.land("weather", json.dumps(event).encode())
            mill.run_until_idle()
        found = mill.windows.window("weather", HOUR_OF_DATASET).revisions
        assert [one.rows for one in found] == [60, 61, 62]
    return plant


def of_revision(plant: Plant, number: int) -> Path:
    return plant.warehouse / layout.dataset(WindowKey("weather", HOUR_OF_DATASET, HOUR), number)


@pytest.mark.parametrize("number", [1, 2])
def test_a_replaced_dataset_that_is_flipped_is_not_handed_out_and_is_set_aside(
    replaced: Plant, tmp_path: Path, number: int
) -> None:
    file = of_revision(replaced, number)
    name = file.relative_to(replaced.warehouse).as_posix()
    with replaced.open() as mill:
        (entry, *_) = mill.ledger(limit=1)
        before = mill.windows.as_of("weather", HOUR_OF_DATASET, entry.slice.arrival - 1)
        assert before.revision is not None
        assert before.revision.dataset.revision == 2
        flip(file)
        with pytest.raises(DamageError, match="other bytes than were written") as found:
            mill.export("weather", [HOUR_OF_DATASET], "arrow", tmp_path / "out.arrow", revision=number)
        assert (found.value.where, found.value.hint) == (name, "`tidemill repair weather`")
        assert [(one.file, one.reason) for one in mill.scrub().damages] == [
            (name, "the file has other bytes than were written")
        ]
        (step,) = mill.plan_repair().steps
        assert step.affects == "what the dataset of its window was, until a newer revision replaced it"
        done = mill.repair()
        assert (list(done.set_aside), [one.damage.file for one in done.lost]) == ([name], [name])
        assert mill.scrub().ok
        assert mill.verify().ok
        newest = mill.windows.dataset("weather", HOUR_OF_DATASET)
        assert (newest.revision, newest.rows) == (3, 62)
        then = mill.windows.as_of("weather", HOUR_OF_DATASET, entry.slice.arrival - 1).revision
        assert (None if then is None else then.dataset.revision) == {1: 2, 2: None}[number]


def test_a_dataset_that_was_flipped_is_not_taken_for_whole_by_recover(plant: Plant) -> None:
    """The file states what was written; the state that could have said so is lost."""
    with plant.open() as mill:
        file, before = file_of(mill), mill.windows.dataset("weather", HOUR_OF_DATASET)
    flip(file)
    (plant.warehouse / "state.db").unlink()
    recover(plant.root, clock=plant.clock)
    with plant.open() as mill:
        assert [one.file for one in mill.scrub().damages] == [before.file]
        assert mill.repair().ok
        after = mill.windows.dataset("weather", HOUR_OF_DATASET)
        assert (after.revision, after.rows, after.hash) == (2, before.rows, before.hash)
        assert mill.verify().ok


def results_of(mill: Mill) -> list[tuple[object, ...]]:
    rows = mill.results("weather", "ten").to_pylist()
    return [(row["start"], row["n"], row["revision"]) for row in rows]


def test_results_that_are_deleted_are_made_again_by_the_next_round(plant: Plant) -> None:
    with plant.open() as mill:
        before = results_of(mill)
        assert len(before) == 11
        part = sorted((plant.warehouse / "windows" / "weather" / "ten").glob("*.parquet"))[0]
        part.unlink()
        (finding, *_) = mill.verify().findings
        assert (finding.what, finding.remedy) == ("result", "tidemill rebuild weather --results ten")
        assert finding.where == f"ten {part.name}"
        mill.tick()
        assert results_of(mill) == before
        assert mill.verify().ok


def test_results_that_are_overwritten_are_made_again_by_rebuild(plant: Plant) -> None:
    with plant.open() as mill:
        before = results_of(mill)
        part = sorted((plant.warehouse / "windows" / "weather" / "ten").glob("*.parquet"))[-1]
        spoil(part)
        (finding,) = mill.verify().findings
        assert finding.remedy == "tidemill rebuild weather --results ten"
        assert "cannot be read" in finding.difference
        made = mill.remake.results("weather", "ten")
        assert made.results > 0
        assert results_of(mill) == before
        assert mill.verify().ok


def test_only_what_was_touched_is_read_and_only_so_much_of_it_in_a_round(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = damage.checksum_of

    def reads(path: Path) -> FileChecksum:
        read.append(path.parent.name)
        return whole(path)

    monkeypatch.setattr(damage, "checksum_of", reads)
    monkeypatch.setattr(damage, "READ_AT_ONCE", 1)  # the largest one at least
    hours = ["20240114T120000Z_1h", "20240114T130000Z_1h"]
    with plant.open() as mill:  # by its clock everything was touched after it was built
        seen = []
        for _ in range(3):
            mill.tick()
            seen.append(sorted(read))
        assert seen == [hours[:1], hours, hours]
        flip(file_of(mill))
        assert [mill.tick().streams[0].damaged for _ in range(3)][-1] == 1
        assert sorted(read) == [hours[0], *hours]
        window = mill.windows.datasets("weather")[1]
        later = replace(window, built_at=2**62)  # built after it was touched last
        assert damage_of(plant.warehouse, later) is None
        assert len(read) == 3
