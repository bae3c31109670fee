"""Slices that cannot be read: told with their error, tried again by themselves, and in nobody's way.

Storage trouble is real here: the file of a slice is moved away, a folder stands in its place, or other bytes.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.pipeline.test_recover import dump, forget
from tests.support.oracles.oracle import Oracle
from tests.support.oracles.stream import REQUESTS
from tests.support.patience import PATIENCE
from tests.support.pipeline import CONFIG, NOON, STREAMING, NewPlant, Plant, ndjson, request, start_child
from tests.support.selection import one_in

from tidemill.mill import Mill, recover
from tidemill.model.failpoints import EXIT_CODE, observed
from tidemill.model.gateway import Receipt
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.time import MINUTE, SECOND
from tidemill.raw.outcomes import Status, decided

PACKED = CONFIG + "    pack: {slices: 3, retry_delay: 10s, max_retry_delay: 1m}\n"
STRUCTURAL = PACKED.replace("    identity: event_id\n", "    identity: event_id\n    gate: none\n")


def file_of(plant: Plant, entry: SliceEntry) -> Path:
    return plant.warehouse / entry.slice.path


def away(plant: Plant, entry: SliceEntry) -> Path:
    """The file of a slice is not where it belongs; where it is."""
    path = file_of(plant, entry)
    hidden = path.with_name(f"hidden-{path.name}")
    path.rename(hidden)
    return hidden


def a_folder(plant: Plant, entry: SliceEntry) -> Path:
    hidden = away(plant, entry)
    file_of(plant, entry).mkdir()
    return hidden


def back(plant: Plant, entry: SliceEntry, hidden: Path) -> None:
    path = file_of(plant, entry)
    if path.is_dir():
        path.rmdir()
    hidden.rename(path)


def land(mill: Mill, *numbers: int) -> SliceEntry:
    return mill.land("requests", ndjson(*map(request, numbers)), source="file").entry


def now_of(mill: Mill, entry: SliceEntry) -> SliceEntry:
    return mill.slice(entry.id)


def ids(plant: Plant) -> list[str]:
    return sorted(json.loads(str(row["payload"]))["event_id"] for row in plant.raw())


def events(*numbers: int) -> list[str]:
    return [f"e-{number:06d}" for number in numbers]


# -- P2


@pytest.mark.parametrize("config", [PACKED, STRUCTURAL], ids=["gated", "structural"])
def test_p2_the_oldest_slices_unreadable_do_not_keep_the_good_ones_waiting(
    new_plant: NewPlant, config: str
) -> None:
    plant = new_plant(config)
    with plant.open() as mill:
        bad = [land(mill, number) for number in range(3)]
        good = [land(mill, number) for number in range(3, 9)]
        hidden = [away(plant, bad[0]), a_folder(plant, bad[1]), away(plant, bad[2])]
        file_of(plant, bad[2]).write_bytes(b"cut")
        first = mill.tick()
        assert not first.idle
        reported = [now_of(mill, entry) for entry in bad]
        assert [entry.status for entry in reported] == [SliceStatus.FAILED] * 3
        folder, landed = file_of(plant, bad[1]).stat().st_size, [entry.slice.size for entry in bad]
        assert [entry.error for entry in reported] == [
            "cannot be read: No such file or directory",
            f"has {folder} bytes; {landed[1]} had landed",
            f"has 3 bytes; {landed[2]} had landed",
        ]
        assert {entry.retry_at for entry in reported} == {NOON + 10 * SECOND}
        mill.run_until_idle()  # packing goes on in the background
        packed = mill.packer.manifest("requests")["parts"]
        assert isinstance(packed, list)
        assert [set(part["slice_hashes"]) for part in packed if part["slice_hashes"]] == [
            {entry.id for entry in good[:3]},
            {entry.id for entry in good[3:]},
        ]
        assert ids(plant) == events(*range(3, 9))
        # No hot loop: nothing is written, and nothing tried, until their time has come.
        raw = mill.snapshot("raw", "requests")
        for _ in range(3):
            assert mill.tick().idle
        again = mill.snapshot("raw", "requests")
        assert raw is not None
        assert again is not None
        assert raw.version == again.version
        assert [now_of(mill, entry) for entry in bad] == reported
        # Cleared on success.
        for entry, path in zip(bad, hidden, strict=True):
            file_of(plant, entry).unlink() if file_of(plant, entry).is_file() else None
            back(plant, entry, path)
        plant.clock.advance("10s")
        assert not mill.tick().idle
        assert [now_of(mill, entry).status for entry in bad] == [SliceStatus.ACCEPTED] * 3
        assert {(now_of(mill, entry).error, now_of(mill, entry).failures) for entry in bad} == {(None, 0)}
        assert ids(plant) == events(*range(9))
        assert mill.status()[0].totals["failed_slices"] == 0
        mill.run_until_idle()
        packed = mill.packer.manifest("requests")["parts"]
        assert isinstance(packed, list)
        assert (
            [set(part["slice_hashes"]) for part in packed]
            == [  # by time; the first was packed last
                {entry.id for entry in group} for group in (bad, good[:3], good[3:])
            ]
        )
        assert mill.verify().findings == []
    before = dump(plant)
    forget(plant)
    recover(plant.root, spark=plant.spark)
    assert dump(plant) == before


# -- when


def test_the_delay_doubles_up_to_its_bound_and_a_try_costs_no_commit(new_plant: NewPlant) -> None:
    plant = new_plant(PACKED)
    with plant.open() as mill:
        bad = land(mill, 1)
        away(plant, bad)
        mill.tick()
        raw = mill.snapshot("raw", "requests")
        delays = []
        for _ in range(5):
            entry = now_of(mill, bad)
            assert entry.retry_at is not None
            delays.append((entry.retry_at - plant.clock()) // SECOND)
            plant.clock.set(entry.retry_at - 1)
            assert mill.tick().idle
            assert now_of(mill, bad) == entry
            plant.clock.set(entry.retry_at)
            assert mill.tick().idle  # it was tried, and there is nothing more to do
        assert delays == [10, 20, 40, 60, 60]
        assert now_of(mill, bad).failures == 6
        assert (now_of(mill, bad).seq, now_of(mill, bad).retried) == (1, 0)
        now = mill.snapshot("raw", "requests")
        assert raw is not None
        assert now is not None
        assert now.version == raw.version
        assert mill.status()[0].retry_at == now_of(mill, bad).retry_at


def test_content_that_cannot_be_read_waits_for_another_declaration(new_plant: NewPlant) -> None:
    plant = new_plant(PACKED)
    with plant.open() as mill:
        twice = mill.land("requests", b"event_id,event_id\n1,2\n", name="a.csv").entry
        mill.tick()
        entry = now_of(mill, twice)
        assert (entry.status, entry.retry_at, entry.failures) == (SliceStatus.FAILED, None, 1)
        plant.clock.advance("30d")
        assert mill.tick().idle
        assert now_of(mill, twice) == entry
    named = "    csv: {columns: [event_id, ts, tenant], header: false}\n"
    for declared in (PACKED.replace("future: 1d", "future: 2d"), PACKED + named):
        plant.configure(declared)
        with plant.open() as mill:
            mill.tick()
            again = now_of(mill, twice)
            assert mill.tick().idle
            tries = (again.status, again.retried, again.failures)
        assert tries == (
            (SliceStatus.ACCEPTED, 2, 0) if declared.endswith(named) else (SliceStatus.FAILED, 1, 2)
        )
    assert again.counts.rejects == {"malformed": 2}


def test_failed_slices_can_be_tried_by_hand(new_plant: NewPlant) -> None:
    plant = new_plant(PACKED)
    with plant.open() as mill:
        lost, wrong = land(mill, 1), mill.land("requests", b"event_id,event_id\n1,2\n", name="a.csv").entry
        hidden = away(plant, lost)
        mill.tick()
        back(plant, lost, hidden)
        assert mill.state.prioritise("requests") == 2
        mill.tick()
        assert now_of(mill, lost).status is SliceStatus.ACCEPTED
        tried = now_of(mill, wrong)
        assert (tried.status, tried.retried, tried.failures) == (SliceStatus.FAILED, 1, 1)
        assert mill.tick().idle
        assert mill.state.prioritise("requests") == 1


def test_a_slice_that_lands_again_is_put_back_and_tried_at_once(new_plant: NewPlant) -> None:
    plant = new_plant(PACKED)
    with plant.open() as mill:
        content = gzip.compress(ndjson(request(1)))
        entry = mill.land("requests", content, name="a.ndjson.gz").entry
        as_many = content[:8] + bytes(len(content) - 8)
        file_of(plant, entry).write_bytes(as_many)
        mill.tick()
        failed = now_of(mill, entry)
        assert failed.error is not None
        assert failed.error.endswith("its bytes are not those that landed")
        assert failed.retry_at is not None
        plant.clock.advance("1d")
        assert not mill.land("requests", content, name="a.ndjson.gz").new
        assert file_of(plant, entry).read_bytes() == content
        mill.tick()
        assert now_of(mill, entry).status is SliceStatus.ACCEPTED
        assert now_of(mill, entry).landings == 2
        assert ids(plant) == events(1)
    assert plant.leftovers() == []


# -- what it is then: a slice that comes when it can be read


def tale(mill: Mill, plant: Plant) -> tuple[list[SliceEntry], Path]:
    """A slice that fails, and others that hold some of its events, one of them with another payload."""
    lost = land(mill, 1, 2, 3, 4)
    hidden = away(plant, lost)
    mill.tick()
    plant.clock.advance("1s")
    others = [land(mill, 2, 90), mill.land("requests", ndjson(request(3, api="/other")), source="file").entry]
    mill.tick()
    return [lost, *others], hidden


def test_what_was_accepted_first_stays_and_what_comes_later_is_judged_against_it(plant: Plant) -> None:
    """And so says the oracle, told of slices when they can be read."""
    with plant.open() as mill:
        (lost, *others), hidden = tale(mill, plant)
        back(plant, lost, hidden)
        plant.clock.advance("1m")
        mill.tick()
        assert_as_the_oracle_says(mill, plant)
        found = [now_of(mill, entry) for entry in (*others, lost)]
        assert [entry.seq for entry in found] == [2, 3, 4]
        counts = found[-1].counts
        assert (counts.accepted, counts.duplicate, counts.conflict, counts.late) == (2, 1, 1, 2)
        assert mill.verify().findings == []


@pytest.mark.parametrize("seed", one_in(2, range(4)))
def test_whatever_fails_and_comes_back_when_the_ledger_tells_one_story(plant: Plant, seed: int) -> None:
    """Slices that share events, some of them away for a while; then one is taken back. At the end the oracle
    says the same, told of all that was accepted in the order of the ledger."""
    draw = random.Random(seed)
    with plant.open() as mill:
        hidden: dict[str, tuple[SliceEntry, Path]] = {}
        for _ in range(6):
            for _ in range(draw.randint(1, 4)):
                numbers = [draw.randrange(40) for _ in range(draw.randint(1, 6))]
                records = [request(n, api=draw.choice(["/a", "/a", "/a", "/b"])) for n in numbers]
                source = draw.choice(["file", "api"])
                entry = mill.land("requests", ndjson(*records), source=source).entry
                if entry.landings == 1 and draw.random() < 0.4:
                    hidden[entry.id] = entry, draw.choice([away, a_folder])(plant, entry)
            mill.tick()
            for name in [name for name in hidden if draw.random() < 0.5]:
                back(plant, *hidden.pop(name))
            plant.clock.advance(draw.choice(["1s", "20s", "10m"]))
        for entry, path in hidden.values():
            back(plant, entry, path)
        plant.clock.advance("1d")
        mill.run_until_idle()
        assert mill.status()[0].totals["failed_slices"] == 0
        assert mill.status()[0].totals["retried"] > 0
        assert_as_the_oracle_says(mill, plant)
        gone = draw.choice(mill.ledger("requests", SliceStatus.ACCEPTED))
        mill.retract(mill.plan_retraction(gone.id, "sent by mistake"))
        mill.run_until_idle()
        assert_as_the_oracle_says(mill, plant)
        assert mill.verify().findings == []
    before = dump(plant)
    forget(plant)
    recover(plant.root, spark=plant.spark)
    assert dump(plant) == before


def assert_as_the_oracle_says(mill: Mill, plant: Plant) -> None:
    oracle = Oracle(REQUESTS)
    accepted = mill.ledger("requests", SliceStatus.ACCEPTED)[::-1]
    for entry in accepted:
        lines = file_of(plant, entry).read_bytes().splitlines()
        oracle.land(entry.id, lines, entry.slice.arrival, entry.slice.source)
    assert {entry.id: entry.counts for entry in accepted} == oracle.counts
    assert {entry.id: entry.watermark for entry in accepted} == oracle.met
    assert {entry.id: entry.observed for entry in accepted} == oracle.observed
    progress = mill.state.progress("requests")
    assert (progress.watermark, progress.emitted) == oracle.progress()[:2]
    held = {(row["tenant"], row["event_id"], row["slice"], row["line"]) for row in plant.raw()}
    assert held == {(row.tenant, row.event_id, row.slice, row.line) for row in oracle.raw}


def test_a_retraction_after_it_goes_by_the_new_places(plant: Plant) -> None:
    with plant.open() as mill:
        (lost, first, other), hidden = tale(mill, plant)
        back(plant, lost, hidden)
        plant.clock.advance("1m")
        mill.tick()
        mill.retract(mill.plan_retraction(first.id, "sent by mistake"))
        mill.run_until_idle()
        assert ids(plant) == events(1, 2, 3, 4)
        assert now_of(mill, lost).counts.accepted == 3  # what only the other had is accepted from it now
        assert now_of(mill, other).counts.accepted == 1
        assert mill.verify().findings == []


def test_one_that_failed_in_a_batch_that_is_undone_is_judged_in_its_turn(plant: Plant) -> None:
    with plant.open() as mill:
        wrong, lost = land(mill, 50), land(mill, 1, 2)
        hidden = away(plant, lost)
        mill.tick()
        later = land(mill, 60)
        mill.tick()
        back(plant, lost, hidden)
        mill.retract(mill.plan_retraction(wrong.id, "sent by mistake"))
        mill.run_until_idle()
        assert [now_of(mill, entry).seq for entry in (lost, later)] == [2, 3]
        assert now_of(mill, lost).counts.late == 0
        assert now_of(mill, later).counts.accepted == 1
        assert mill.verify().findings == []


def test_a_failed_slice_can_be_retracted_and_is_not_tried_then(plant: Plant) -> None:
    with plant.open() as mill:
        lost = land(mill, 1)
        hidden = away(plant, lost)
        mill.tick()
        mill.retract(mill.plan_retraction(lost.id, "not needed"))
        back(plant, lost, hidden)
        plant.clock.advance("1d")
        assert mill.tick().idle
        assert now_of(mill, lost).status is SliceStatus.RETRACTED


def test_who_asks_what_became_of_its_events_hears_that_they_wait(plant: Plant) -> None:
    with plant.open() as mill:
        lost = land(mill, 1, 2)
        receipt = Receipt("i1", "requests", "acme", lost.id, 1, 2, "w", NOON, False)
        hidden = away(plant, lost)
        mill.tick()
        assert decided(mill.warehouse, receipt).status is Status.LANDED
        back(plant, lost, hidden)
        plant.clock.advance("1m")
        mill.tick()
        assert decided(mill.warehouse, receipt).counts == {"accepted": 2}


def test_windows_do_not_count_on_it_and_are_built_again_with_it(new_plant: NewPlant) -> None:
    plant = new_plant(CONFIG + "    aggregation_span: 1h\n    allow_incomplete_windows: true\n")
    with plant.open() as mill:
        start = NOON - 24 * 60 * MINUTE
        lost, good = land(mill, 1, 2), land(mill, 3)
        hidden = away(plant, lost)
        mill.tick()

        def built() -> tuple[int, list[str]]:
            (window,) = mill.state.windows("requests")
            found = mill.state.window(window.key)
            assert found is not None
            assert window.key.start == start
            return window.revision, sorted(member.slice for member in found[1] if member.observed)

        assert built() == (1, [good.id])
        back(plant, lost, hidden)
        plant.clock.advance("1m")
        mill.run_until_idle()
        assert built() == (2, sorted([good.id, lost.id]))  # it had arrived in time
        assert mill.verify().findings == []


def test_following_and_streaming_windows_see_it_when_it_comes(new_plant: NewPlant) -> None:
    plant = new_plant(STREAMING)
    with plant.open() as mill:
        (lost, *_), hidden = tale(mill, plant)
        mill.run_until_idle()
        before = _tailed(mill)
        back(plant, lost, hidden)
        plant.clock.advance("1m")
        mill.run_until_idle()
        assert set(_tailed(mill)) - set(before) == {(lost.id, 1), (lost.id, 4)}
        assert mill.verify().findings == []


def _tailed(mill: Mill) -> list[tuple[str, int]]:
    import pyarrow as pa

    batches = [b for b in mill.tail("requests", ordered=False) if isinstance(b, pa.RecordBatch)]
    return [(row["slice"], row["line"]) for batch in batches for row in batch.to_pylist()]


# -- crashes


def test_the_recovered_state_is_the_same_at_each_step(plant: Plant, tmp_path: Path) -> None:
    def assert_recovers(at: str) -> None:
        copy = plant.copy(tmp_path / at)
        before = dump(copy)
        forget(copy)
        recover(copy.root, spark=copy.spark)
        after = dump(copy)
        for table, rows in before.items():
            assert after[table] == rows, (at, table)
        with copy.open() as mill:
            mill.run_until_idle()
            gone = set() if file_of(plant, lost).exists() else {lost.id}
            assert {finding.where for finding in mill.verify().findings} == gone

    with plant.open() as mill:
        (lost, *_), hidden = tale(mill, plant)
        assert_recovers("failed")
        plant.clock.advance("1m")
        mill.tick()
        assert now_of(mill, lost).failures == 2
        assert_recovers("postponed")
        mill.land("requests", ndjson(request(200)), source="file")
        back(plant, lost, hidden)
        plant.clock.advance("1h")
        mill.tick()
        assert_recovers("accepted")
        land(mill, 201)
        mill.tick()
        assert_recovers("went on")


POINTS = [
    "retry.after_log",
    "accept.after_gate",
    "raw.before_commit",
    "raw.after_commit",
    "accept.after_state",
]


def test_wherever_it_is_killed_each_slice_is_tried_once(plant: Plant, tmp_path: Path) -> None:
    copies: dict[str, Plant] = {}

    def keep(point: str) -> None:
        if point not in copies:
            copies[point] = plant.copy(tmp_path / point)

    with plant.open() as mill:
        (lost, *_), hidden = tale(mill, plant)
        back(plant, lost, hidden)
        plant.clock.advance("1m")
        with observed(keep):
            mill.tick()
        whole = dump(plant)
    assert set(POINTS) <= copies.keys()
    for point in POINTS:
        for lose in (False, True):
            copy = copies[point].copy(tmp_path / f"{point}-{lose}")
            if lose:
                forget(copy)
                recover(copy.root, spark=copy.spark)
            with copy.open() as mill:
                mill.run_until_idle()
                assert mill.verify().findings == [], point
            found = dump(copy)
            assert found["slices"] == whole["slices"], (point, lose)
            assert found["totals"] == whole["totals"], (point, lose)
            assert ids(copy) == ids(plant)
            assert copy.leftovers() == []


def test_killed_for_real_between_log_and_ledger(plant: Plant) -> None:
    with plant.open() as mill:
        (lost, *_), hidden = tale(mill, plant)
        back(plant, lost, hidden)
    code = (
        "import sys\nfrom tidemill.mill import Mill\n"
        "with Mill.open(sys.argv[1], clock=lambda: int(sys.argv[2])) as mill:\n    mill.tick()\n"
    )
    child = start_child(code, plant.root, NOON + MINUTE, TIDEMILL_FAILPOINT="retry.after_log")
    child.communicate(timeout=PATIENCE)
    assert child.returncode == EXIT_CODE
    with plant.open() as mill:
        mill.tick()
        assert (now_of(mill, lost).status, now_of(mill, lost).seq) == (SliceStatus.ACCEPTED, 4)
        assert mill.verify().findings == []


def test_a_lost_landing_log_is_written_anew_with_the_same_places(plant: Plant, tmp_path: Path) -> None:
    with plant.open() as mill:
        (lost, *_), hidden = tale(mill, plant)
        land(mill, 300)
        back(plant, lost, hidden)
        plant.clock.advance("1m")
        mill.tick()
        (plant.warehouse / "slices" / "landings.ndjson").unlink()
        land(mill, 301)
        mill.tick()
    before = dump(plant)
    forget(plant)
    recover(plant.root, spark=plant.spark)
    assert dump(plant)["slices"] == before["slices"]


def lines_of(plant: Plant) -> Sequence[dict[str, object]]:
    text = (plant.warehouse / "slices" / "landings.ndjson").read_bytes()
    return [json.loads(line) for line in text.splitlines()]


def test_the_landing_log_says_that_it_was_tried_again(plant: Plant) -> None:
    with plant.open() as mill:
        (lost, *others), hidden = tale(mill, plant)
        back(plant, lost, hidden)
        plant.clock.advance("1m")
        mill.tick()
        reported = [(line["n"], line["id"], line.get("again")) for line in lines_of(plant)]
        assert reported == [
            (1, lost.id, None),
            (2, others[0].id, None),
            (3, others[1].id, None),
            (4, lost.id, True),
        ]
        assert mill.state.landings() == 4
