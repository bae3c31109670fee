"""Retention: what is old goes, what was made of it stays and is sealed, the gate forgets nothing, and no
process that dies meanwhile leaves anything to repair."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.pipeline.test_recover import dump, forget, without
from tests.support.pipeline import CONFIG, NOON, NewPlant, Plant, ndjson, request

from tidemill.ingest.expiry_log import Expiry, ExpiryLog
from tidemill.mill import Mill, recover
from tidemill.model.errors import DamageError, InputError, StorageError
from tidemill.model.failpoints import POINTS, observed
from tidemill.model.slices import Counts as Outcomes
from tidemill.model.slices import SliceStatus
from tidemill.model.time import DAY, SECOND
from tidemill.pipeline.retention import ExpiryPlan

POINTS_HERE = [point for point in POINTS if point.startswith("expire.")]
MIDNIGHT = NOON - NOON % DAY  # the first instant of the newest day of the feed
RETENTION = f"{CONFIG}    retention: {{raw: 2d, quarantine: 1d}}\n"
REFUSING = RETENTION.replace("quarantine: 1d", "sealed: refuse")


def at(days: int, number: int = 0, **changes: object) -> dict[str, object]:
    """An event so many days before the newest one, `number` seconds after its midnight."""
    ts = (MIDNIGHT - days * DAY + number * SECOND) // 1000
    return request(1000 * days + number, ts=ts, **changes)


def fed(plant: Plant) -> Plant:
    """Four days of events, each of a batch of its own, the last one of two days; some are bad."""
    with plant.open() as mill:
        for days in (5, 4, 3):
            mill.land("requests", ndjson(*(at(days, n) for n in range(6)), b"{"), name=f"{days}")
            mill.tick()
        mill.land("requests", ndjson(at(4, 100), at(1, 1), at(1, 2), at(0, 100)), name="mixed")
        mill.land("requests", ndjson(b'{"event_id": "cut'), name="nothing")
        mill.tick()
    return plant


@pytest.fixture(scope="module")
def prepared_plant(new_plant: NewPlant) -> Plant:
    """Fed, and not expired yet: nothing is old enough. Copy before you touch."""
    plant = new_plant(CONFIG)
    return fed(plant)


@pytest.fixture
def plant(prepared_plant: Plant, tmp_path: Path) -> Plant:
    copy = prepared_plant.copy(tmp_path / "plant")
    copy.configure(RETENTION)
    return copy


def expire(mill: Mill) -> ExpiryPlan:
    plan = mill.retention.plan()
    mill.retention.expire(plan)
    return plan


def days_of_raw(plant: Plant) -> dict[str, int]:
    """Rows of raw by day."""
    times = [
        time
        for path in plant._table("raw").snapshot().paths()
        for time in pq.read_table(path, columns=["event_time"], partitioning=None)["event_time"].to_pylist()
    ]
    return {f"{day:02}": rows for day, rows in sorted(Counter(time.day for time in times).items())}


def sent(mill: Mill, *events: Mapping[str, object]) -> Outcomes:
    landed = mill.land("requests", ndjson(*events))
    mill.tick()
    return mill.slice(landed.entry.id).counts


# -- what goes


def test_whole_days_of_raw_go_once_they_are_older_than_the_retention(plant: Plant) -> None:
    assert days_of_raw(plant) == {"10": 6, "11": 7, "12": 6, "14": 2, "15": 1}
    with plant.open() as mill:
        (quarantine, raw) = mill.retention.plan().steps
        assert (raw.what, raw.before, raw.files, raw.rows, raw.held_by) == (
            "raw",
            MIDNIGHT - 2 * DAY,
            4,
            19,
            None,
        )
        assert (quarantine.what, quarantine.files) == ("quarantine", 0)  # it arrived today
        assert days_of_raw(plant)["10"] == 6  # a plan changes nothing
        rollups, ledger = plant.tiles(), mill.ledger()
        expire(mill)
        assert mill.ledger() == ledger
        assert mill.retention.plan().due == []
        assert mill.status()[0].sealed == MIDNIGHT - 2 * DAY
        assert mill.status()[0].raw_rows == 3
        acts = list(ExpiryLog(plant.warehouse, mill.state).log.lines())
        assert acts == [Expiry("requests", "raw", MIDNIGHT - 2 * DAY, NOON)]
    assert days_of_raw(plant) == {"14": 2, "15": 1}
    assert plant.tiles() == rollups


def test_quarantine_goes_by_arrival(plant: Plant) -> None:
    with plant.open() as mill:
        plant.clock.advance("1d")
        assert [step.what for step in mill.retention.plan().due] == [
            "raw"
        ]  # a day old is not older than a day
        plant.clock.advance("1s")
        assert [(step.what, step.rows) for step in mill.retention.plan().due] == [
            ("quarantine", 4),
            ("raw", 19),
        ]
        expire(mill)
        assert mill.quarantine("requests").num_rows == 0
        assert mill.state.totals("requests")["rejected"] == 4  # the ledger goes on to say it
    assert plant.quarantine() == []


def test_a_tick_ends_with_what_is_due(plant: Plant) -> None:
    with plant.open() as mill:
        report = mill.tick()
        assert [(step.what, step.rows) for step in report.expired] == [("raw", 19)]
        assert not report.idle
        plant.clock.advance("30m")
        assert mill.tick().expired == []
        plant.clock.advance("2d")
        assert [step.what for step in mill.tick().expired] == ["quarantine", "raw"]
    assert days_of_raw(plant) == {"15": 1}


def test_files_that_went_are_deleted_when_nobody_can_read_them_any_more(plant: Plant) -> None:
    gone = [str(path) for path in (plant.warehouse / "raw" / "requests").glob("*.parquet")]
    with plant.open() as mill:
        expire(mill)
        assert all(Path(path).exists() for path in gone)  # a reader that began before may still need them
    left = {part.path for part in plant._table("raw").snapshot().parts}
    assert sum(path.endswith(tuple(left)) for path in gone) == len(gone) - 4


def test_levels_of_the_rollups_go_each_by_its_own_retention(plant: Plant) -> None:
    plant.configure(f"{CONFIG}    retention: {{raw: 2d, rollups: {{5s: 1d, 1m: 3d}}}}\n")
    span = "BETWEEN 2024-01-10T00:00:00Z AND 2024-01-16T00:00:00Z"
    with plant.open() as mill:
        hours = mill.query(f"SELECT count FROM requests {span} USING ROLLUP 1h FILL drop", all_tenants=True)
        done = {step.what: step for step in mill.tick().expired}
        assert list(done) == ["rollups:5s", "rollups:1m", "raw"]
        assert done["rollups:5s"].before == NOON - DAY
        tiles = mill.warehouse.existing("rollups", "requests")
        assert tiles is not None
        kept = dict.fromkeys(("5s", "1m", "1h"), 0)
        for part in tiles.snapshot().parts:
            kept |= {part.partition["level"]: kept.get(part.partition["level"], 0) + part.rows}
        assert (kept["5s"], kept["1m"]) == (1, 3)  # one of today; and two of yesterday
        assert (
            mill.query(f"SELECT count FROM requests {span} USING ROLLUP 1h FILL drop", all_tenants=True)
            == hours
        )
        assert sent(mill, at(5, 90), at(1, 90)).accepted == 2
        again = mill.query(f"SELECT count FROM requests {span} USING ROLLUP 1h FILL drop", all_tenants=True)
        assert sum(again.column("count").to_pylist()) == sum(hours.column("count").to_pylist()) + 2
        assert mill.verify().findings == []
        assert mill.tick().idle
    before = dump(plant)
    forget(plant)
    recover(plant.root, spark=plant.spark)
    for table, rows in dump(plant).items():
        assert rows == before[table], table
    with plant.open() as mill:
        mill.run_until_idle()
        assert mill.verify().findings == []


# -- what holds it back


def test_raw_waits_for_slices_that_are_not_judged(plant: Plant) -> None:
    with plant.open() as mill:
        landed = mill.land("requests", ndjson(at(4, 50)))
        (_, raw) = mill.retention.plan().steps
        assert (raw.files, raw.held_by) == (0, f"slice {landed.entry.id[:12]}, which is not accepted yet")
        expire(mill)
    assert days_of_raw(plant)["10"] == 6


def test_raw_waits_for_the_watermark(new_plant: NewPlant) -> None:
    plant = new_plant(RETENTION)
    with plant.open() as mill:
        mill.land("requests", ndjson(at(5), at(4), at(3)), source="slow")
        mill.land("requests", ndjson(at(0, 1)), source="quick")
        mill.tick()
        (_, raw) = mill.retention.plan().steps
        assert raw.before == MIDNIGHT - 4 * DAY  # not that of the quick source: the slow one may go on
        assert raw.held_by is not None
        assert raw.held_by.startswith("the watermark, which is at 2024-01-11T23:59:58Z")
        expire(mill)
    assert days_of_raw(plant) == {"11": 1, "12": 1, "15": 1}


# -- nothing is forgotten


def test_events_that_expired_are_still_duplicates(plant: Plant) -> None:
    with plant.open() as mill:
        expire(mill)
        counts = sent(mill, at(5, 1), at(4, 100), at(3, 2, api="/other"), at(3, 50))
        assert (counts.duplicate, counts.conflict, counts.accepted) == (2, 1, 1)


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_ids_of_expired_events_outlive_the_runs_of_the_gate(plant: Plant, again: bool) -> None:
    with plant.open() as mill:
        expire(mill)
        if again:  # a late event joins a day that is gone, and expires with it
            assert sent(mill, at(4, 77), at(3, 78)).accepted == 2
            plant.clock.advance("1d")
            expire(mill)
    shutil.rmtree(plant.warehouse / "gate")
    forget(plant)
    recover(plant.root, spark=plant.spark)
    events = [at(5, 1), at(4, 100), at(3, 2), at(1, 1), *([at(4, 77), at(3, 78)] if again else [])]
    with plant.open() as mill:
        assert sent(mill, *events, at(2, 5)).duplicate == len(events)
        assert mill.verify().findings == []


def test_lost_ids_of_expired_events_are_told_when_they_are_needed(plant: Plant) -> None:
    with plant.open() as mill:
        expire(mill)
    shutil.rmtree(plant.warehouse / "gate")
    shutil.rmtree(plant.warehouse / "sealed")
    with plant.open() as mill:
        landed = mill.land("requests", ndjson(at(1, 50)))
        report = mill.tick()
        (error,) = report.errors
        assert isinstance(error, StorageError)
        assert "the ids of expired events are missing" in error.message
        (fault,) = report.faults
        assert (fault.stream, fault.code) == ("requests", DamageError.code)
        assert mill.slice(landed.entry.id).status is SliceStatus.PENDING  # nothing was decided without them


def test_the_recovered_state_is_the_same_after_an_expiry(plant: Plant) -> None:
    with plant.open() as mill:
        expire(mill)
        sent(mill, at(4, 77), at(0, 9))
        plant.clock.advance("1d")
        expire(mill)
        expected = mill.state.progress("requests")
    before = dump(plant)
    forget(plant)
    recover(plant.root, spark=plant.spark)
    after = dump(plant)
    for table, rows in before.items():
        assert after[table] == rows, table
    with plant.open() as mill:
        assert mill.state.progress("requests") == expected
        assert mill.verify().findings == []


# -- sealed spans


def test_a_late_event_of_a_sealed_time_is_merged(plant: Plant) -> None:
    query = "SELECT count FROM requests BETWEEN 2024-01-10T00:00:00Z AND 2024-01-16T00:00:00Z USING ROLLUP 1d"
    with plant.open() as mill:
        assert [step.rows for step in mill.tick().expired] == [19]
        assert sum(mill.query(query, all_tenants=True).column("count").to_pylist()) == 22
        assert sent(mill, at(5, 90), at(4, 90)).accepted == 2
        assert sum(mill.query(query, all_tenants=True).column("count").to_pylist()) == 24
        assert mill.verify().findings == []
        assert days_of_raw(plant) == {"10": 1, "11": 1, "14": 2, "15": 1}
        assert [step.rows for step in expire(mill).due] == [2]  # it was older than the retention when it came
        assert sum(mill.query(query, all_tenants=True).column("count").to_pylist()) == 24
        assert mill.verify().findings == []


def test_a_late_event_of_a_sealed_time_is_refused_where_that_is_declared(plant: Plant) -> None:
    plant.configure(REFUSING)
    with plant.open() as mill:
        assert sent(mill, at(5, 90)).accepted == 1  # when it came nothing was gone
        assert mill.status()[0].sealed == MIDNIGHT - 2 * DAY
        counts = sent(mill, at(3, 91), at(2, 1), {**at(3, 92), "note": "\\u0041"})
        assert (counts.accepted, counts.rejects) == (1, {"sealed": 2})
        (first, _) = mill.quarantine("requests", reason="sealed").to_pylist()
        assert first["detail"] == "2024-01-12T00:01:31Z is before 2024-01-13T00:00:00Z, where raw has expired"


def test_a_slice_of_a_sealed_time_cannot_be_taken_back(plant: Plant) -> None:
    with plant.open() as mill:
        expire(mill)
        by_name = {entry.slice.name: entry.id for entry in mill.ledger()}
        for name in ("5", "mixed"):
            with pytest.raises(InputError, match="raw before 2024-01-13T00:00:00Z has expired") as caught:
                mill.plan_retraction(by_name[name], "wrong")
            assert "retention.raw" in caught.value.hint
        landed = mill.land("requests", ndjson(at(1, 60)), name="new")
        mill.tick()
        mill.retract(mill.plan_retraction(landed.entry.id, "wrong"))
        mill.tick()
        assert mill.verify().findings == []
    assert days_of_raw(plant) == {"14": 2, "15": 1}


# -- death at any point


@pytest.mark.parametrize("point", [point for point in POINTS_HERE if point != "expire.after_files"])
def test_death_while_expiring_leaves_nothing_to_repair(
    prepared_plant: Plant, tmp_path: Path, point: str
) -> None:
    plant = prepared_plant.copy(tmp_path / "plant")
    plant.configure(RETENTION.replace("raw: 2d", "raw: 2d, rollups: {5s: 1d}"))
    plant.clock.advance("1d 1s")
    corpses: list[Plant] = []

    def keep(passed: str) -> None:
        if passed == point:
            corpses.append(plant.copy(tmp_path / f"corpse-{len(corpses)}"))

    with observed(keep), plant.open() as mill:
        expire(mill)
    assert len(corpses) == (2 if point == "expire.after_commit" else 1)
    for number, corpse in enumerate(corpses):
        copy = corpse.copy(tmp_path / f"recovered-{number}")
        forget(copy)
        recover(copy.root, spark=copy.spark)
        for one in (corpse, copy):
            with one.open() as mill:
                assert mill.run_until_idle()[-1].idle
                assert mill.retention.plan().due == []
                assert mill.tick().streams[0].batch is None
                assert mill.verify().findings == []
                assert sent(mill, at(5, 1), at(4, 100), at(3, 5)).duplicate == 3
            assert days_of_raw(one) == {"14": 2, "15": 1}
            assert one.leftovers() == []
            assert len(list((one.warehouse / "sealed" / "requests").iterdir())) == 1
        assert without(dump(corpse), "versions") == without(dump(copy), "versions")


def test_an_expiry_is_not_forgotten_with_its_log_and_the_state(plant: Plant) -> None:
    """The log is lost with its copy and the state: what raw itself says of its expired parts is believed."""
    with plant.open() as mill:
        expire(mill)
        gone = mill.warehouse.expiries.seal("requests")
    forget(plant)
    for folder in ("slices", "_log_copies"):
        (plant.warehouse / folder / "expiries.ndjson").unlink()
    (named,) = recover(plant.root, spark=plant.spark, clock=plant.clock).left
    assert (named.file, named.stream) == ("slices/expiries.ndjson", "requests")
    newest = max(event["ts"] for event in [at(4, 100), *(at(3, n) for n in range(6))])
    with plant.open() as mill:
        assert mill.warehouse.expiries.seal("requests") == newest * 1000 + 1
        assert gone is not None
        assert gone > newest * 1000
        assert [finding for finding in mill.verify().findings if finding.what != "quarantine"] == []
