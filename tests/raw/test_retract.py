"""Taking slices back: afterwards raw, quarantine, ledger, clocks, rollups and answers are what the oracle
says had they never arrived; whatever was taken back, in which order, wherever a process died meanwhile."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.test_crash import as_left, assert_same, published
from tests.pipeline.test_engine_oracle import (
    FEEDS,
    SHAPES,
    Mills,
    agree_on_quarantine,
    as_read,
    as_slice,
    cells_of,
    cuts,
    many,
    rows_of,
)
from tests.pipeline.test_recover import dump, forget
from tests.support.hypothesis_settings import examples
from tests.support.oracles.oracle import Landing, Oracle
from tests.support.oracles.stream import REQUESTS
from tests.support.patience import PATIENCE
from tests.support.pipeline import CONFIG, NOON, NewPlant, Plant, ndjson, request, slice_of, start_child

from tidemill.formats.stored_slice import content_bytes
from tidemill.ingest.retraction_log import RetractionLog
from tidemill.mill import Mill, recover
from tidemill.model.errors import InputError, NotFoundError, RetractedError
from tidemill.model.failpoints import EXIT_CODE, POINTS, observed
from tidemill.model.levels import LEVELS
from tidemill.model.slices import SliceEntry, SliceStatus, contribution_of
from tidemill.model.time import HOUR, SECOND
from tidemill.raw.retract import DecideAgain, RecordRetracted, RetractionPlan, Undo
from tidemill.storage.state.protocol import Retraction
from tidemill.testing import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WALK = [point for point in POINTS if point.startswith("retract.")]
AFTERWARDS = ["accept.after_gate", "quarantine.after_commit", "raw.after_commit", "rollups.after_commit"]


@pytest.fixture(scope="module")
def mills(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mills]:
    mills = Mills(tmp_path_factory.mktemp("mills"), spark)
    yield mills
    for mill in mills.opened:
        mill.close()


def take_back(mill: Mill, slice_id: str, reason: str = "sent by mistake") -> RetractionPlan:
    plan = mill.plan_retraction(slice_id, reason)
    mill.retract(plan)
    return plan


# --- against the oracle


def agree(mill: Mill, stream: str, oracle: Oracle, gone: Collection[str] = ()) -> None:
    """The stream holds what it would had `gone` never arrived; the ledger keeps their story."""
    expected = oracle.rebuilt(without=gone)
    names = ("tenant", "event_id", "event_time", "slice", "line", "payload", "watermark")
    raw = rows_of(mill, "raw", stream)
    assert sorted(tuple(map(str, (row[n] for n in names))) for row in raw) == sorted(
        tuple(map(str, (*row[:5], row.payload.decode(), row.watermark))) for row in expected.raw
    )
    agree_on_quarantine(mill, stream, expected)
    entries = {entry.id: entry for entry in mill.ledger(stream)}
    assert {name for name, e in entries.items() if e.status is SliceStatus.RETRACTED} == set(gone)
    left = {name: entry for name, entry in entries.items() if name not in gone}
    assert {entry.status for entry in left.values()} <= {SliceStatus.ACCEPTED}
    assert {name: entry.counts for name, entry in left.items()} == expected.counts
    assert {name: entry.observed for name, entry in left.items()} == expected.observed
    clocks = {clock.source: (clock.max_seen, clock.watermark) for clock in mill.state.clocks(stream)}
    assert clocks == {name: (clock.max_seen, clock.watermark) for name, clock in expected.clocks.items()}
    cells = cells_of(mill, stream, expected.stream)
    for level in LEVELS:
        assert cells[level.name] == expected.rollup(level.name)
    agree_on_sets(mill, stream, expected)
    totals, counted = mill.state.totals(stream), expected.total()
    for outcome in ("records", "accepted", "duplicate", "conflict", "rejected", "late"):
        assert totals[outcome] == getattr(counted, outcome)


def agree_on_sets(mill: Mill, stream: str, expected: Oracle) -> None:
    assert mill.state.stale_tiles(stream) == []
    names = {entry.id: entry.name for entry in mill.ledger(stream)}
    found = {}
    for state in mill.state.tiles(stream, LEVELS[0].name):
        (tile,) = mill.state.base_tiles(stream, [state.key.start])
        assert tile.desired == tile.observed
        ids = frozenset(contribution_of(name)[0] for name in tile.desired)
        assert tile.desired == frozenset(names[each] for each in ids)
        if ids:  # a tile that lost all its slices stays, without rows
            found[state.key.start] = ids
        else:
            assert state.rows == 0
    assert found == expected.tile_slices()


class Feeding:
    """A stream and the oracle, fed side by side."""

    def __init__(self, mills: Mills, shape: str, *, one_at_a_time: bool = False) -> None:
        self.mill, self.stream = mills.stream(shape)
        self.oracle = Oracle(SHAPES[shape])
        self.landed: list[str] = []
        self.gone: set[str] = set()
        if one_at_a_time:  # every slice in a batch of its own, also when several are sent back
            small = self.mill.project.engine.model_copy(update={"batch_bytes": 1})
            self.mill.workers.acceptor(self.stream).settings = small

    def land(self, landing: Landing) -> None:
        clock = self.mill.clock.wall
        assert isinstance(clock, FakeClock)
        clock.set(max(clock(), landing.arrival))
        content = as_slice(landing.records)
        landed = self.mill.land(self.stream, content, source=landing.source, format="ndjson")
        if landed.new:
            self.landed.append(landed.entry.id)
        arrival, source = landed.entry.slice.arrival, landed.entry.slice.source
        self.oracle.land(landed.entry.id, as_read(landing.records), arrival, source)

    def retract(self, slice_id: str) -> None:
        take_back(self.mill, slice_id)
        self.gone.add(slice_id)

    def settle(self) -> None:
        while self.mill.state.pending(self.stream, 1) or self.mill.state.stale_tiles(self.stream):
            self.mill.tick()
        agree(self.mill, self.stream, self.oracle, self.gone)


def taken_back(mills: Mills, shape: str, data: st.DataObject) -> None:
    """Slices land, ticks pass and slices go, in any order; first, last and in between."""
    feeding = Feeding(mills, shape, one_at_a_time=data.draw(st.booleans()))
    feed = data.draw(FEEDS[shape])
    for landing, tick in zip(feed, data.draw(cuts(feed)), strict=True):
        feeding.land(landing)
        if tick:
            feeding.mill.tick()
        left = [each for each in feeding.landed if each not in feeding.gone]
        if left and data.draw(st.integers(0, 3)) == 0:
            feeding.retract(data.draw(st.sampled_from(left)))
    if data.draw(st.booleans()):
        feeding.settle()
    left = [each for each in feeding.landed if each not in feeding.gone]
    for each in data.draw(st.permutations(left))[: data.draw(st.integers(0, 3))]:
        feeding.retract(each)
        if data.draw(st.booleans()):
            feeding.mill.tick()
    feeding.settle()


@pytest.mark.parametrize("shape", ["requests", "processing"])
@examples(4)
@given(data=st.data())
def test_slices_taken_back_leave_what_the_oracle_says(shape: str, mills: Mills, data: st.DataObject) -> None:
    taken_back(mills, shape, data)


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
@many
@given(data=st.data())
def test_slices_taken_back_leave_what_the_oracle_says_at_length(
    shape: str, mills: Mills, data: st.DataObject
) -> None:
    taken_back(mills, shape, data)


# --- one story, by its values

QUERY = "SELECT count, sum(latency_ms) FROM requests SINCE 3d INTERVAL 1h GROUP BY api FILL drop"


def feed(plant: Plant, slices: Sequence[bytes], *, per_batch: int = 1) -> list[str]:
    """Land, with a tick after so many slices; the ids in the order of the ledger."""
    with plant.open() as mill:
        for number, content in enumerate(slices, 1):
            mill.land("requests", content, name=f"slice {number}")
            if number % per_batch == 0:
                mill.tick()
        mill.run_until_idle()
        return [entry.id for entry in mill.state.slices("requests")]


def entry_of(mill: Mill, slice_id: str) -> SliceEntry:
    return mill.slice(slice_id)


def outcomes(entry: SliceEntry) -> tuple[int, int, int]:
    return entry.counts.accepted, entry.counts.duplicate, entry.counts.conflict


def test_what_only_it_carried_goes_and_what_others_repeated_is_theirs(
    plant: Plant, new_plant: NewPlant
) -> None:
    first = ndjson(request(1), request(2), request(3))
    again = ndjson(request(2), request(3, api="/other"), request(4))
    third = ndjson(request(3), request(5))
    a, b, c = feed(plant, [first, again, third])
    with plant.open() as mill:
        assert [outcomes(entry_of(mill, each)) for each in (a, b, c)] == [(3, 0, 0), (1, 1, 1), (1, 1, 0)]
        assert mill.quarantine("requests").num_rows == 1
        plan = take_back(mill, a[:12], "a partner's test")
        assert plan.again == (b, c)
        mill.run_until_idle()
        # the repeated event is b's now, and so is its rival; what c repeated of a now contradicts b
        assert [outcomes(entry_of(mill, each)) for each in (b, c)] == [(3, 0, 0), (1, 0, 1)]
        assert [entry_of(mill, each).name for each in (b, c)] == [f"{b}~1", c]
        assert mill.quarantine("requests").column("slice").to_pylist() == [c]
        story = entry_of(mill, a)
        assert (story.status, story.retract_reason, story.retracted_at) == (
            SliceStatus.RETRACTED, "a partner's test", NOON,
        )  # fmt: skip
        assert outcomes(story) == (3, 0, 0)
        assert mill.verify().findings == []
        answer = mill.query(QUERY, all_tenants=True).to_pylist()
    assert {row["event_id"] for row in plant.raw()} == {f"e-{n:06d}" for n in (2, 3, 4, 5)}
    assert plant.leftovers() == []
    twin = new_plant()
    feed(twin, [again, third])
    with twin.open() as mill:
        assert mill.query(QUERY, all_tenants=True).to_pylist() == answer


def test_a_slice_judged_again_with_the_same_result_makes_nothing_stale(plant: Plant) -> None:
    """Two slices of one batch, hours apart: only the tiles of the one that goes are built again."""
    far = [ndjson(request(n)) for n in (5_000, 1, 8_000)]
    a, b, c = feed(plant, far, per_batch=3)
    with plant.open() as mill:
        plan = take_back(mill, b)
        assert [type(step) for step in plan.steps] == [RecordRetracted, Undo, DecideAgain, DecideAgain]
        assert plan.again == (a, c)
        report = mill.tick().streams[0]
        gone = int(str(request(1)["ts"])) * 1000
        base = LEVELS[0]
        assert [(t.key.start, t.rows) for t in report.tiles if t.key.level == base.name] == [
            (base.tile_of(gone), 0)
        ]
        assert [entry_of(mill, each).name for each in (a, c)] == [a, c]
        assert mill.query(QUERY, all_tenants=True).column("count").to_pylist() == [1, 1]
        assert mill.verify().findings == []


# --- how far it reaches


def test_only_its_own_batch_is_undone_when_nothing_later_can_be_due_to_it(plant: Plant) -> None:
    """Two sources; the slice that goes left no mark on the clock of its own: another one of the batch did."""
    with plant.open() as mill:
        ids = [
            mill.land("requests", content, source=source).entry.id
            for content, source in [
                (ndjson(request(10), b"{"), "a"),
                (ndjson(request(20)), "a"),
                (ndjson(request(30), request(1)), "a"),
                (ndjson(request(40)), "b"),
            ]
        ]
        mill.tick()
        ids += [mill.land("requests", ndjson(request(n)), source="a").entry.id for n in (25, 50)]
        mill.tick()
        ids.append(mill.land("requests", ndjson(request(60)), source="b").entry.id)
        mill.tick()
        before = {each: entry_of(mill, each) for each in ids}
        plan = mill.plan_retraction(ids[1], "wrong")
        assert plan.why == "only the batch it was accepted in: nothing that followed can be due to it"
        assert plan.again == (ids[0], ids[2], ids[3])
        take_back(mill, ids[1])
        mill.land("requests", ndjson(request(55)), source="a")  # judged with those that were sent back
        mill.run_until_idle()
        after = {each: entry_of(mill, each) for each in ids}
        assert [after[each].batch == before[each].batch for each in ids[4:]] == [True, True, True]
        assert after[ids[2]].watermark == int(str(request(10)["ts"])) * 1000 - 2 * SECOND
        newest = mill.state.slices("requests")[-1]
        assert newest.watermark == int(str(request(50)["ts"])) * 1000 - 2 * SECOND
        oracle = Oracle(REQUESTS)
        for entry in mill.state.slices("requests"):
            lines = content_bytes(plant.warehouse / entry.slice.path).splitlines()
            oracle.land(entry.id, lines, entry.slice.arrival, entry.slice.source)
        agree(mill, "requests", oracle, {ids[1]})
        assert mill.verify().findings == []


def test_a_later_slice_that_met_its_watermark_is_judged_again(plant: Plant) -> None:
    a, b = feed(plant, [ndjson(request(100)), ndjson(request(50), request(51))])
    with plant.open() as mill:
        assert entry_of(mill, b).counts.late == 2
        plan = take_back(mill, a)
        assert plan.why == f"it and all that followed: slice {b[:12]} met the watermark that it left"
        mill.run_until_idle()
        assert (entry_of(mill, b).counts.late, entry_of(mill, b).watermark) == (0, None)
        assert entry_of(mill, b).name == b  # the same records: nothing made of it changed


def test_a_slice_that_waits_or_could_not_be_read_is_only_marked(plant: Plant) -> None:
    with plant.open() as mill:
        broken = mill.land("requests", b"event_id,event_id\n1,2\n", name="broken.csv").entry.id
        mill.land("requests", ndjson(request(1)))
        mill.tick()
        waiting = mill.land("requests", ndjson(request(2))).entry.id
        for each, why in ((broken, "could not be read"), (waiting, "not accepted yet")):
            plan = take_back(mill, each)
            assert why in plan.why
            assert [type(step) for step in plan.steps] == [RecordRetracted]
        mill.run_until_idle()
        assert entry_of(mill, broken).error is not None
        assert mill.state.totals("requests")["retracted_slices"] == 2
        assert mill.status()[0].raw_rows == 1
        assert mill.verify().findings == []
    before = dump(plant)
    recover(plant.root, spark=plant.spark)
    assert dump(plant) == before


def test_the_plan_changes_nothing_and_mistakes_are_told(plant: Plant) -> None:
    (a,) = feed(plant, [ndjson(request(1))])
    before = dump(plant)
    with plant.open() as mill:
        steps = [str(step) for step in mill.plan_retraction(a, "wrong").steps]
        assert steps == [
            f"retract slice {a[:12]} (slice 1), 1 records accepted: wrong",
            f"undo batch {entry_of(mill, a).batch} of 1 slices, 1 records accepted",
        ]
        with pytest.raises(InputError, match="needs a reason"):
            mill.plan_retraction(a, " ")
        with pytest.raises(NotFoundError, match="there is no slice 'nope'"):
            mill.plan_retraction("nope", "wrong")
    assert dump(plant) == before
    with plant.open() as mill:
        take_back(mill, a)
        with pytest.raises(InputError, match=r"was retracted at 2024-01-15T12:00:00Z: sent by mistake"):
            mill.plan_retraction(a, "again")


def test_a_retracted_slice_that_lands_again_stays_retracted(plant: Plant) -> None:
    content = ndjson(request(1), request(2))
    (a,) = feed(plant, [content])
    with plant.open() as mill:
        take_back(mill, a)
        mill.run_until_idle()
        with pytest.raises(RetractedError, match="retracted at"):
            mill.land("requests", content)
        mill.run_until_idle()
        assert entry_of(mill, a).status is SliceStatus.RETRACTED
        assert mill.status()[0].raw_rows == 0
        fresh = mill.land("requests", content + b"\n")  # other bytes are another slice
        mill.run_until_idle()
        assert entry_of(mill, fresh.entry.id).counts.accepted == 2
        assert mill.verify().findings == []
    before = dump(plant)
    recover(plant.root, spark=plant.spark)
    assert dump(plant) == before


def test_verify_finds_rows_of_a_retracted_slice(plant: Plant) -> None:
    """A state that says more than was done: nobody but a test makes one."""
    (a,) = feed(plant, [ndjson(request(1), b"{")])
    with plant.open() as mill:
        act = Retraction(1, "requests", a, "by hand", NOON, {})
        versions = mill.state.table_versions("requests")
        log = RetractionLog(plant.warehouse)
        mill.state.apply_retraction(act, (), versions["raw"], versions["quarantine"])
        assert log.unfinished(mill.state, "requests") is None  # and the log is written anew from it
        assert [line.act for line in log.lines()] == [act]
        found = {(f.what, f.difference) for f in mill.verify().findings}
    assert ("raw", "it was retracted; raw has 1 rows of it") in found
    assert ("quarantine", "it was retracted; quarantine has 1 rows of it") in found


def test_without_a_gate_only_its_own_rows_go(new_plant: NewPlant) -> None:
    plant = new_plant(CONFIG.replace("identity: event_id", "identity: event_id\n    gate: none"))
    a, b = feed(plant, [ndjson(request(1), request(2)), ndjson(request(2), request(3))], per_batch=2)
    with plant.open() as mill:
        take_back(mill, a)
        mill.run_until_idle()
        assert (entry_of(mill, b).counts.accepted, mill.status()[0].raw_rows) == (2, 2)
        assert mill.verify().findings == []


# --- quarantine that was replayed

FIXED = CONFIG.replace("allowed: [request]", "allowed: [request, other]")


def reasons(mill: Mill) -> list[str]:
    return sorted(str(reason) for reason in mill.quarantine("requests").column("reason").to_pylist())


def test_what_left_quarantine_by_a_replay_does_not_come_back_with_its_slice(plant: Plant) -> None:
    spoiled = ndjson(request(2), request(7, event_type="other"), b"{", request(8, ts="never"))
    a, b = feed(plant, [ndjson(request(1)), spoiled], per_batch=2)
    with plant.open() as mill:
        [replayed] = mill.replay("requests")
        mill.run_until_idle()
        assert reasons(mill) == ["bad_time", "malformed", "unknown_type"]
        take_back(mill, a)
        mill.run_until_idle()
        assert outcomes(entry_of(mill, b)) == (1, 0, 0)
        assert reasons(mill) == ["bad_time", "malformed", "unknown_type"]
        assert mill.quarantine("requests").column("slice").to_pylist() == [replayed.entry.id] * 3
        # the replay itself is taken back: they are in quarantine where they first came from
        plan = take_back(mill, replayed.entry.id)
        assert plan.again == (b,)
        mill.run_until_idle()
        assert reasons(mill) == ["bad_time", "malformed", "unknown_type"]
        assert mill.quarantine("requests").column("slice").to_pylist() == [b] * 3
        assert mill.verify().findings == []


def test_a_replay_after_a_fix_holds_when_an_earlier_slice_goes(plant: Plant) -> None:
    a, b = feed(plant, [ndjson(request(1), request(7)), ndjson(request(7), request(9, event_type="other"))])
    plant.configure(FIXED)
    with plant.open() as mill:
        [replayed] = mill.replay("requests", reason="unknown_type")
        mill.run_until_idle()
        assert entry_of(mill, replayed.entry.id).counts.accepted == 1
        take_back(mill, a)
        mill.run_until_idle()
        assert sorted(str(row["event_id"]) for row in plant.raw()) == ["e-000007", "e-000009"]
        assert (reasons(mill), mill.verify().findings) == ([], [])
        assert outcomes(entry_of(mill, b)) == (2, 0, 0)  # judged by the rules of today


# --- dying on the way


def retract_the_third(plant: Plant) -> None:
    with plant.open() as mill:
        take_back(mill, mill.state.slices("requests")[2].id)
        mill.run_until_idle()


@pytest.fixture(scope="module")
def walk(new_plant: NewPlant, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plant]:
    """The warehouse before a retraction, at each of its fail points, while slices are judged again, after."""
    plant = new_plant()
    folder = tmp_path_factory.mktemp("walk")
    feed(plant, [slice_of(number) for number in range(6)], per_batch=2)
    found = {"before": plant.copy(folder / "before")}

    def keep(point: str) -> None:
        if point in WALK or point in AFTERWARDS:
            found[point] = plant.copy(folder / point)

    with observed(keep):
        retract_the_third(plant)
    return found | {"after": plant}


def test_the_undisturbed_retraction_is_what_the_oracle_says(walk: dict[str, Plant]) -> None:
    assert set(walk) == {"before", "after", *WALK, *AFTERWARDS}
    oracle = Oracle(REQUESTS)
    with walk["after"].open() as mill:
        entries = mill.state.slices("requests")
        for entry in entries:
            lines = content_bytes(walk["after"].warehouse / entry.slice.path).splitlines()
            oracle.land(entry.id, lines, entry.slice.arrival, entry.slice.source)
        agree(mill, "requests", oracle, {entries[2].id})
        assert mill.verify().findings == []
    assert walk["after"].leftovers() == []


@pytest.mark.parametrize("point", [*WALK, *AFTERWARDS])
def test_death_while_taking_back_leaves_nothing_to_repair(
    walk: dict[str, Plant], point: str, tmp_path: Path
) -> None:
    plant = walk[point].copy(tmp_path / "corpse")
    with plant.open() as mill:
        if point == "retract.after_raw":
            assert mill.verify().ok is False  # tiles are stale; and it was finished before anything was read
            assert mill.state.retractions() == 1
        mill.run_until_idle()
    assert_same(plant, walk["after"])


@pytest.mark.parametrize("point", ["before", *WALK, *AFTERWARDS, "after"])
def test_the_state_is_recovered_wherever_it_was_lost(
    walk: dict[str, Plant], point: str, tmp_path: Path
) -> None:
    plant = walk[point].copy(tmp_path / "plant")
    before = dump(plant)
    forget(plant)
    recover(plant.root, spark=plant.spark)
    if point in ("before", "retract.after_state", "after"):
        after = dump(plant)
        for table, rows in before.items():
            assert after[table] == rows, table
    if point == "before":
        retract_the_third(plant)
    with plant.open() as mill:
        mill.run_until_idle()
    assert_same(plant, walk["after"])


def test_another_retraction_first_finishes_the_one_that_died(walk: dict[str, Plant], tmp_path: Path) -> None:
    plant, quiet = walk["retract.after_raw"].copy(tmp_path / "a"), walk["after"].copy(tmp_path / "b")
    # those that still waited to be judged again are not sent back once more
    for each, attempts in ((plant, [0, 1, 0, 1, 1, 1]), (quiet, [0, 1, 0, 2, 2, 2])):
        with each.open() as mill:
            take_back(mill, mill.state.slices("requests")[0].id)
            mill.run_until_idle()
            assert [e.attempt for e in mill.state.slices("requests")] == attempts
    assert [row["payload"] for row in plant.raw()] == [row["payload"] for row in quiet.raw()]
    assert plant.tiles()[1] == quiet.tiles()[1]


def test_a_log_of_retractions_that_was_lost_is_written_anew(walk: dict[str, Plant], tmp_path: Path) -> None:
    plant = walk["after"].copy(tmp_path / "plant")
    with plant.open() as mill:
        take_back(mill, mill.state.slices("requests")[4].id)
        mill.run_until_idle()
    before = dump(plant)
    log = plant.warehouse / "slices" / "retractions.ndjson"
    lines = log.read_text().splitlines()
    log.write_text(lines[0] + "\n" + lines[1][:40])
    with plant.open() as mill:
        mill.run_until_idle()
    assert [json.loads(line)["slice"] for line in log.read_text().splitlines()] == [
        json.loads(line)["slice"] for line in lines
    ]
    forget(plant)
    recover(plant.root, spark=plant.spark)
    assert dump(plant) == before


CHILD = """
import sys
from tidemill.mill import Mill
root, now, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
mill = Mill.open(root, clock=lambda: now)
mill.retract(mill.plan_retraction(name, "sent by mistake"))
"""


def test_what_a_process_leaves_that_dies_is_the_copy(walk: dict[str, Plant], tmp_path: Path) -> None:
    with walk["before"].open() as mill:
        name = mill.state.slices("requests")[2].id
    dying = []
    for point in WALK:
        corpse = walk["before"].copy(tmp_path / point)
        dying.append((point, corpse, start_child(CHILD, corpse.root, NOON, name, TIDEMILL_FAILPOINT=point)))
    for point, corpse, process in dying:
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == EXIT_CODE, said
        copy = walk[point].copy(tmp_path / f"copy of {point}")
        assert as_left(corpse) == as_left(copy), point
        assert published(corpse) == published(copy), point


def test_landing_goes_on_while_slices_are_judged_again(plant: Plant) -> None:
    """A slice lands between the retraction and the next round, and repeats what went."""
    late = request(3, ts=int(str(request(3)["ts"])) - HOUR // 1000)
    ids = feed(plant, [ndjson(request(1), request(2)), ndjson(late), ndjson(request(2), request(4))])
    with plant.open() as mill:
        take_back(mill, ids[0])
        newest = mill.land("requests", ndjson(request(1), request(2), request(5))).entry.id
        mill.run_until_idle()
        assert [outcomes(entry_of(mill, each)) for each in (*ids[1:], newest)] == [
            (1, 0, 0),
            (2, 0, 0),
            (2, 1, 0),
        ]
        assert mill.verify().findings == []
