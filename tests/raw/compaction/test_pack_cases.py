"""The cases P1 to P5 of packing, through `Mill`: which slices are packed, in what order, and that each row is
there once, whatever happens; and that small files do not stay."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.support.patience import PATIENCE
from tests.support.pipeline import NOON, Plant, start_child

from tidemill.mill import Mill
from tidemill.model.errors import NotFoundError
from tidemill.model.failpoints import observed
from tidemill.model.slices import SliceStatus
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, format_instant
from tidemill.raw.compaction.packer import GROUPS_AT_ONCE
from tidemill.raw.compaction.packing import prepare
from tidemill.raw.compaction.packing_folders import PackingFolder
from tidemill.raw.part_names import is_large
from tidemill.storage.tables import log
from tidemill.storage.tables.table import CHECKPOINT_EVERY, Table
from tidemill.testing import FakeClock

GATED = """
version: 1
engine: {{cores: 2, memory: 512m}}
streams:
  requests:
    schema: {{event_id: {{type: string, required: true}}, open_time: {{type: integer, required: true}}}}
    event_time: {{column: open_time, type: unixtimestamp_ms}}
    identity: event_id
    pack: {{slices: {slices}{more}}}
"""
STRUCTURAL = GATED.replace("    identity: event_id\n", "    gate: none\n")
ROWS = 5
START = NOON - 10 * HOUR


def content(number: int, rows: int = ROWS) -> bytes:
    """Slice `number`: its rows are within minute `number`, the newest first."""
    first = (START + number * MINUTE) // 1000
    lines = [
        {"event_id": f"{number}-{row}", "open_time": first + 1000 * row} for row in reversed(range(rows))
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@pytest.fixture(params=[GATED, STRUCTURAL], ids=["gated", "structural"])
def plant(request: pytest.FixtureRequest, spark, tmp_path: Path) -> Plant:
    return made(tmp_path / "plant", spark, request.param)


def made(root: Path, spark, config: str = GATED, slices: int = 3, more: str = "") -> Plant:
    root.mkdir()
    (root / "tidemill.yaml").write_text(config.format(slices=slices, more=more))
    return Plant(root, spark)


def land(mill: Mill, *numbers: int) -> dict[int, str]:
    """Land slices and accept each by itself, with what that makes full packed; their ids."""
    ids = {}
    for number in numbers:
        ids[number] = mill.land("requests", content(number), name=f"{number}").entry.id
        mill.run_until_idle()
    return ids


def parts(mill: Mill) -> list[Mapping[str, object]]:
    found = mill.packer.manifest("requests")["parts"]
    assert isinstance(found, list)
    return found


def packed(mill: Mill) -> list[list[str]]:
    """The slices of each packed part, by time."""
    return [sorted(str(one) for one in part["slice_hashes"]) for part in parts(mill)]  # type: ignore[attr-defined]


def rows(plant: Plant) -> list[tuple[object, ...]]:
    """What any reader of the table sees, by the log alone."""
    found = DeltaTable(str(plant.warehouse / "raw" / "requests")).to_pyarrow_table()
    columns = ("event_id", "event_time", "slice", "line", "payload", "arrival", "watermark")
    return sorted(zip(*(found.column(name).to_pylist() for name in columns), strict=True), key=repr)


def expected(*numbers: int) -> list[str]:
    return sorted(f"{number}-{row}" for number in numbers for row in range(ROWS))


def ids_of(plant: Plant) -> list[str]:
    """Of a gated stream the ids of events are its own; a structural one has them in the payload."""
    return sorted(json.loads(str(row[4]))["event_id"] for row in rows(plant))


# -- P1


def test_p1_seven_slices_by_three_are_two_parts_and_one_waits(plant: Plant) -> None:
    with plant.open() as mill:
        ids = land(mill, *range(7))
        assert packed(mill) == [sorted(ids[n] for n in group) for group in ((0, 1, 2), (3, 4, 5))]
        assert [part["row_count"] for part in parts(mill)] == [15, 15]
        (status,) = mill.status()
        assert (status.packed_parts, status.fresh_parts, status.unpacked_slices) == (2, 1, 1)
        for part in parts(mill):
            table = pq.read_table(plant.warehouse / "raw" / "requests" / str(part["part"]), partitioning=None)
            times = table.column("event_time").to_pylist()
            assert times == sorted(times)
            assert len(times) == 15
    assert ids_of(plant) == expected(*range(7))


def test_p1_the_manifest_has_the_shape_of_the_seed(plant: Plant) -> None:
    with plant.open() as mill:
        land(mill, *range(7))
        manifest = mill.packer.manifest("requests")
        assert list(manifest) == ["dataset", "parts"]
        first, second = parts(mill)
    assert set(first) == {
        "part", "slice_hashes", "feed_hashes", "row_count", "min_time", "max_time", "min_open_time",
        "max_open_time", "created_at",
    }  # fmt: skip
    assert (first["min_time"], first["max_time"]) == (START // 1000, (START + 2 * MINUTE) // 1000 + 4000)
    assert (first["min_open_time"], first["max_open_time"]) == (first["min_time"], first["max_time"])
    assert second["min_time"] == (START + 3 * MINUTE) // 1000
    assert first["created_at"] == "2024-01-15T12:00:00Z"


def test_the_oldest_come_first_however_they_arrive(plant: Plant) -> None:
    written = (plant.root / "tidemill.yaml").read_text()
    plant.configure(written.replace("slices: 3", "slices: 3, enabled: false"))
    with plant.open() as mill:
        ids = land(mill, 6, 1, 4, 0, 5, 3, 2)
        assert packed(mill) == []
        plan = mill.packer.plan("requests")
        assert [list(step.slices) for step in plan] == [[ids[n] for n in g] for g in ((0, 1, 2), (3, 4, 5))]
        assert [(step.rows, step.parts_before, step.days) for step in plan] == [(15, 3, ("2024-01-15",))] * 2
        done = mill.pack("requests")
        assert [one.step for one in done] == plan
        assert mill.packer.waiting("requests") == {"requests": 1}
        assert mill.packer.plan("requests") == []
        assert mill.pack("requests") == []


def test_bytes_fill_a_group_before_the_number_does(spark, tmp_path: Path) -> None:
    plant = made(tmp_path / "plant", spark, STRUCTURAL, 100, ", bytes: 1")
    with plant.open() as mill:
        ids = land(mill, 0, 1, 2)
        assert packed(mill) == [[ids[0]], [ids[1]], [ids[2]]]


def test_an_unknown_stream_is_named(plant: Plant) -> None:
    with plant.open() as mill:
        for act in (mill.packer.manifest, mill.packer.plan, mill.pack):
            with pytest.raises(NotFoundError, match="'nothing'"):
                act("nothing")


def test_before_anything_landed_there_is_nothing_to_pack(plant: Plant) -> None:
    with plant.open() as mill:
        assert mill.packer.plan() == []
        assert mill.packer.manifest("requests")["parts"] == []
        assert mill.pack() == []
        assert mill.tick().idle


# -- P2


def test_p2_slices_that_cannot_be_read_keep_no_others_waiting(plant: Plant) -> None:
    with plant.open() as mill:
        ids = {n: mill.land("requests", content(n), name=f"{n}").entry.id for n in range(9)}
        for number in range(3):
            (plant.warehouse / mill.slice(ids[number]).slice.path).unlink()
        mill.run_until_idle()
        assert packed(mill) == [sorted(ids[n] for n in group) for group in ((3, 4, 5), (6, 7, 8))]
        failed = mill.ledger("requests", SliceStatus.FAILED)
        assert sorted(entry.id for entry in failed) == sorted(ids[n] for n in range(3))
        assert {entry.error for entry in failed} == {"cannot be read: No such file or directory"}
        version = table(plant).version
        for _ in range(5):  # no hot loop: nothing is done again at the same instant
            assert mill.tick().idle
        assert table(plant).version == version
    assert ids_of(plant) == expected(*range(3, 9))


# -- P3


@pytest.mark.parametrize("point", ["pack.after_build", "pack.before_commit", "pack.after_commit"])
def test_p3_who_dies_while_packing_leaves_each_slice_packed_once(
    plant: Plant, tmp_path: Path, point: str
) -> None:
    copies: list[Plant] = []

    def keep(name: str) -> None:
        if name == point and not copies:
            copies.append(plant.copy(tmp_path / "dead"))

    with plant.open() as mill:
        ids = land(mill, 0, 1)
        before = ids_of(plant)
        with observed(keep):
            ids |= land(mill, 2)
    (dead,) = copies
    seen = ids_of(dead)
    assert seen == expected(0, 1, 2)  # whole for who only reads, and no row twice
    assert before == expected(0, 1)
    with dead.open() as mill:
        mill.run_until_idle()
        assert packed(mill) == [sorted(ids.values())]
        assert [part["row_count"] for part in parts(mill)] == [15]
        assert mill.verify().ok
    assert ids_of(dead) == seen
    assert rows(dead) == rows(plant)
    assert dead.leftovers() == []


# -- P4


def test_p4_a_rebuild_has_the_same_rows_in_better_order(plant: Plant) -> None:
    with plant.open() as mill:
        ids = land(mill, 0, 4, 8, 1, 5, 7, 2, 3, 6)
        assert packed(mill) == [sorted(ids[n] for n in g) for g in ((0, 4, 8), (1, 5, 7), (2, 3, 6))]
        before = rows(plant)
        spans = [(part["min_time"], part["max_time"]) for part in parts(mill)]
        assert overlapping(spans)
        plan = mill.packer.plan("requests", rebuild=True)
        done = mill.pack("requests", rebuild=True)
        assert [one.step for one in done] == plan
        assert packed(mill) == [sorted(ids[n] for n in g) for g in ((0, 1, 2), (3, 4, 5), (6, 7, 8))]
        spans = [(part["min_time"], part["max_time"]) for part in parts(mill)]
        assert not overlapping(spans)
        assert rows(plant) == before
        assert mill.tick().idle
        assert mill.verify().ok


def overlapping(spans: list[tuple[object, object]]) -> bool:
    ordered = sorted(spans)  # type: ignore[type-var]
    return any(b[0] <= a[1] for a, b in pairwise(ordered))  # type: ignore[operator]


# -- P5


def test_p5_failed_empty_retracted_and_missing_slices_are_not_packed(plant: Plant) -> None:
    with plant.open() as mill:
        gone = mill.land("requests", content(0), name="failed").entry.id
        (plant.warehouse / mill.slice(gone).slice.path).unlink()
        mill.ingest("requests", [], start=START - HOUR, end=START, empty=True)
        back = land(mill, 1)[1]
        mill.retract(mill.plan_retraction(back, "wrong"))
        ids = land(mill, 2, 3, 4)
        assert packed(mill) == [sorted(ids.values())]
        assert mill.packer.waiting("requests") == {"requests": 0}
        assert [finding.where for finding in mill.verify().findings] == [gone]
    assert ids_of(plant) == expected(2, 3, 4)


# -- the pace


def test_the_daemon_looks_again_when_slices_came_or_the_time_has_come(plant: Plant) -> None:
    with plant.open() as mill:
        clock = plant.clock
        land(mill, 0, 1)
        waits = mill.tick()
        assert waits.idle
        assert waits.rest == 5 * SECOND  # a group that is not full
        clock.advance(2 * SECOND)
        assert mill.tick().rest == 3 * SECOND  # by the clock of the mill, not since this round
        ids = land(mill, 2)
        assert len(ids) == 1
        assert packed(mill) != []
        assert mill.tick().rest == 30 * SECOND  # nothing waits


def test_a_stream_that_is_not_packed_by_the_daemon_asks_for_nothing(spark, tmp_path: Path) -> None:
    plant = made(tmp_path / "plant", spark, GATED, 1, ", enabled: false")
    with plant.open() as mill:
        land(mill, 0, 1)
        report = mill.tick()
        assert (report.rest, report.streams[0].packed) == (None, None)
        assert packed(mill) == []
        assert len(mill.pack()) == 2


def test_many_small_groups_are_packed_in_one_commit(spark, tmp_path: Path) -> None:
    plant = made(tmp_path / "plant", spark, STRUCTURAL, 1)
    with plant.open() as mill:
        for number in range(GROUPS_AT_ONCE + 3):
            mill.land("requests", content(number), name=f"{number}")
        looks = [report.streams[0].packed for report in mill.run_until_idle()]
        assert [len(look.packed) for look in looks if look is not None and look.packed] == [
            GROUPS_AT_ONCE + 3
        ]


def test_many_full_groups_are_packed_some_at_a_time_and_the_next_round_goes_on(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.raw.compaction.packer.BYTES_AT_ONCE", 1)
    plant = made(tmp_path / "plant", spark, STRUCTURAL, 1)
    with plant.open() as mill:
        for number in range(GROUPS_AT_ONCE + 3):
            mill.land("requests", content(number), name=f"{number}")
        looks = [report.streams[0].packed for report in mill.run_until_idle()]
        assert [len(look.packed) for look in looks if look is not None and look.packed] == [GROUPS_AT_ONCE, 3]
    assert ids_of(plant) == expected(*range(GROUPS_AT_ONCE + 3))


# -- in the background


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What is packed in the background does not get on until this is set."""
    go_on = threading.Event()

    def waiting(*of: object) -> object:
        assert go_on.wait(PATIENCE)
        return prepare(*of)  # type: ignore[arg-type]

    monkeypatch.setattr("tidemill.raw.compaction.packer.prepare", waiting)
    yield go_on
    go_on.set()


def test_rounds_go_on_while_parts_are_prepared(plant: Plant, held_up: threading.Event) -> None:
    with plant.open() as mill:
        for number in range(4):
            mill.land("requests", content(number), name=f"{number}")
            report = mill.tick()
        assert ids_of(plant) == expected(0, 1, 2, 3)  # seen, though what came before is not packed yet
        assert report.streams[0].packed is not None
        assert not report.streams[0].packed.packed
        assert packed(mill) == []
        held_up.set()
        mill.run_until_idle()
        assert [len(group) for group in packed(mill)] == [3]
        assert mill.verify().ok
    assert ids_of(plant) == expected(0, 1, 2, 3)


def test_what_was_prepared_of_a_slice_that_is_retracted_is_thrown_away(
    plant: Plant, held_up: threading.Event
) -> None:
    with plant.open() as mill:
        ids = {n: mill.land("requests", content(n), name=f"{n}").entry.id for n in range(3)}
        mill.tick()
        mill.retract(mill.plan_retraction(ids[1], "a mistake"))
        held_up.set()
        mill.run_until_idle()
        assert packed(mill) == []
        assert mill.verify().ok
    assert ids_of(plant) == expected(0, 2)


DIES_WHILE_IT_PREPARES = """
import os, sys
from pathlib import Path
from tidemill.raw.compaction.packing_folders import PackingFolder
(PackingFolder(Path(sys.argv[1]), "dead").folder / "part.parquet").write_bytes(b"half of it")
os._exit(9)
"""


def test_what_a_dead_process_was_preparing_goes_with_the_next_round(plant: Plant) -> None:
    raw = plant.warehouse / "raw" / "requests"
    with plant.open() as mill:
        mill.land("requests", content(0))
        mill.run_until_idle()
        start_child(DIES_WHILE_IT_PREPARES, raw).wait()
        (dead,) = (raw / "_packing").iterdir()
        alive = PackingFolder(raw, "alive")
        mill.tick()
        assert not dead.exists()
        assert alive.folder.exists()
        alive.close()
        assert list((raw / "_packing").iterdir()) == []


def test_a_mill_that_is_closed_leaves_nothing_of_what_was_under_way(
    plant: Plant, held_up: threading.Event
) -> None:
    with plant.open() as mill:
        for number in range(3):
            mill.land("requests", content(number), name=f"{number}")
        mill.tick()
        held_up.set()
    assert list((plant.warehouse / "raw" / "requests" / "_packing").iterdir()) == []
    with plant.open() as mill:
        mill.run_until_idle()
        assert [len(group) for group in packed(mill)] == [3]


# -- born large


def test_a_part_that_is_born_large_is_packed(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.raw.accept.batch.LARGE_BYTES", 1)
    with plant.open() as mill:
        ids = [mill.land("requests", content(n), name=f"{n}").entry.id for n in range(4)]
        mill.run_until_idle()
        (part,) = parts(mill)
        assert part["slice_hashes"] == sorted(ids)
        assert part["row_count"] == 4 * ROWS
        assert part["created_at"] == format_instant(plant.clock())
        assert mill.packer.plan() == []
        assert mill.packer.waiting() == {"requests": 0}
        assert [one.path for one in table(plant).snapshot().parts] == [part["part"]]
        assert mill.verify().ok
        mill.retract(mill.plan_retraction(ids[0], "a mistake"))
        mill.run_until_idle()
        assert packed(mill) == [sorted(ids[1:])]
        assert mill.verify().ok
    assert ids_of(plant) == expected(1, 2, 3)


def test_a_part_of_as_many_slices_as_a_group_is_packed(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """To pack it would make several parts of one."""
    monkeypatch.setattr("tidemill.raw.accept.batch.MANY_SLICES", 4)
    with plant.open() as mill:
        assert mill.project.stream("requests").pack.slices <= 4
        ids = [mill.land("requests", content(n), name=f"{n}").entry.id for n in range(4)]
        mill.run_until_idle()
        assert packed(mill) == [sorted(ids)]
        (part,) = table(plant).snapshot().parts
        assert is_large(part)
        few = [mill.land("requests", content(n), name=f"{n}").entry.id for n in (4, 5)]
        mill.run_until_idle()
        assert packed(mill) == [sorted(ids)]
        assert mill.packer.waiting() == {"requests": len(few)}
        mill.retract(mill.plan_retraction(ids[0], "a mistake"))
        mill.run_until_idle()
        assert mill.verify().ok
    assert ids_of(plant) == expected(1, 2, 3, 4, 5)


def test_only_the_small_part_of_a_slice_is_packed_when_the_other_is_large(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slice has many rows of one day and a few of the day before."""
    monkeypatch.setattr("tidemill.raw.partitioning.FULL_BYTES", 1)
    monkeypatch.setattr("tidemill.raw.accept.batch.LARGE_BYTES", 4_000)

    def lines(number: int, rows: int, days: int) -> bytes:
        times = [START // 1000 - days * DAY // 1000 + number * 10_000 + n for n in range(rows)]
        made = [{"event_id": f"{number}-{days}-{n}", "open_time": at} for n, at in enumerate(times)]
        return "".join(f"{json.dumps(one)}\n" for one in made).encode()

    with plant.open() as mill:
        for number in range(3):
            mill.land("requests", lines(number, 1200, 0) + lines(number, 4, 1), name=f"{number}")
            mill.tick()
        before = rows(plant)
        large = [part.path for part in table(plant).snapshot().parts if "large" in part.path]
        assert len(large) == 3
        mill.run_until_idle()
        left = table(plant).snapshot().parts
        assert {part.path for part in left} >= set(large)
        assert [part.rows for part in left if part.path.startswith("packed")] == [12]
        assert mill.packer.waiting() == {"requests": 0}
        assert rows(plant) == before
        assert mill.verify().ok


# -- small files


def table(plant: Plant, kind: str = "raw") -> Table:
    found = Table.existing(plant.warehouse / kind / "requests")
    assert found is not None
    return found


INDEXED = GATED + "    indexed: [event_id]\n"


@pytest.mark.parametrize(
    ("count", "together"),
    [(300, 12), pytest.param(10_000, 20, marks=pytest.mark.soak)],
    ids=["hundreds", "ten thousand"],
)
def test_small_slices_do_not_stay_small_files(spark, tmp_path: Path, count: int, together: int) -> None:
    plant = made(tmp_path / "plant", spark, INDEXED, 100)
    with plant.open() as mill:
        for number in range(count):
            line = {"event_id": f"e{number}", "open_time": START // 1000 + number}
            mill.land("requests", json.dumps(line).encode() + b"\n", name=f"{number}")
            if number % together == together - 1:
                mill.tick()
        mill.run_until_idle()
        assert table(plant).snapshot().rows == count
        for kind in ("raw", "index"):
            assert len(table(plant, kind).snapshot().parts) <= count // 50, kind
        assert mill.verify().ok
    # A reader opens the newest checkpoint and the entries behind it: their number is bounded.
    for kind in ("raw", "index"):
        root = plant.warehouse / kind / "requests"
        newest = log.last_checkpoint(root)
        version = table(plant, kind).version
        assert version - newest <= CHECKPOINT_EVERY, kind
        assert newest >= version - CHECKPOINT_EVERY
    # What was replaced goes once nobody can be reading it, and what is left is whole.
    with plant.open() as mill:
        plant.clock.advance(2 * HOUR)
        keep = mill.project.engine.keep_replaced
        assert keep == HOUR
        before = sum(1 for _ in files(plant))
        gone = table(plant).vacuum(keep, plant.clock())
        assert len(gone) > 0
        assert sum(1 for _ in files(plant)) == before - len(gone) == len(table(plant).snapshot().parts)
        assert mill.verify().ok
    assert len(rows(plant)) == count


def files(plant: Plant) -> Iterator[Path]:
    return (path for path in (plant.warehouse / "raw" / "requests").glob("*.parquet"))


def test_replaced_parts_stay_for_those_still_reading(plant: Plant) -> None:
    with plant.open() as mill:
        land(mill, 0, 1)
        held = table(plant).snapshot()
        before = {Path(path): Path(path).read_bytes() for path in held.paths()}
        land(mill, 2)
        assert not set(held.by_path) & set(table(plant).snapshot().by_path)
        table(plant).vacuum(mill.project.engine.keep_replaced, plant.clock())
        assert {path: path.read_bytes() for path in before} == before


def test_a_fake_clock_is_what_says_when(plant: Plant) -> None:
    """Packing takes its instant from the clock that the mill was opened with."""
    clock = FakeClock(NOON + HOUR)
    with Mill.open(plant.root, spark=plant.spark, clock=clock) as mill:
        land(mill, 0, 1, 2)
        assert [part["created_at"] for part in parts(mill)] == ["2024-01-15T13:00:00Z"]
