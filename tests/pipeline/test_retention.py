"""Retention: what is old goes, what was made of it stays and is sealed, the gate forgets nothing, and no
process that dies meanwhile leaves anything to repair."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.pipeline.conftest import CONFIG, NOON, NewPlant, Plant, ndjson, request
from tests.pipeline.test_recover import dump, forget, without

from tidemill.expiring import ExpiryPlan
from tidemill.ingest.expiries import Expiry, ExpiryLog
from tidemill.mill import Mill, recover
from tidemill.model.errors import InputError, NotFoundError, StorageError
from tidemill.model.failpoints import POINTS, observed
from tidemill.model.slices import Counts
from tidemill.model.time import DAY, HOUR, SECOND, Interval, format_instant

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
def told(new_plant: NewPlant) -> Plant:
    """Fed, and not expired yet: nothing is old enough. Copy before you touch."""
    plant = new_plant(CONFIG)
    return fed(plant)


@pytest.fixture
def plant(told: Plant, tmp_path: Path) -> Plant:
    copy = told.copy(tmp_path / "plant")
    copy.configure(RETENTION)
    return copy


def expire(mill: Mill) -> ExpiryPlan:
    plan = mill.retention.plan()
    mill.retention.expire(plan)
    return plan


def days_of_raw(plant: Plant) -> dict[str, int]:
    """Rows by day, as the parts of raw have them."""
    found: dict[str, int] = {}
    for part in plant._table("raw").snapshot().parts:
        found[part.partition["day"]] = found.get(part.partition["day"], 0) + part.rows
    return {day[-2:]: rows for day, rows in found.items() if rows}


def sent(mill: Mill, *events: Mapping[str, object]) -> Counts:
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
    assert days_of_raw(plant) == {"14": 2, "15": 1}
    assert plant.tiles() == rollups
    assert list(ExpiryLog(plant.warehouse).lines()) == [Expiry("requests", "raw", MIDNIGHT - 2 * DAY, NOON)]


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
    gone = [str(p) for p in (plant.warehouse / "raw").rglob("*.parquet") if "day=2024-01-1" in str(p)]
    with plant.open() as mill:
        expire(mill)
        assert all(Path(path).exists() for path in gone)  # a reader that began before may still need them
    left = {part.path for part in plant._table("raw").snapshot().parts}
    assert sum(path.endswith(tuple(left)) for path in gone) == len(gone) - 4


def test_levels_of_the_rollups_go_each_by_its_own_retention(plant: Plant) -> None:
    plant.configure(f"{CONFIG}    retention: {{raw: 2d, rollups: {{5s: 1d, 1m: 3d}}}}\n")
    span = "BETWEEN 2024-01-10T00:00:00Z AND 2024-01-16T00:00:00Z"
    with plant.open() as mill:
        hours = mill.query(f"SELECT count FROM requests {span} USING ROLLUP 1h FILL drop")
        done = {step.what: step for step in mill.tick().expired}
        assert list(done) == ["rollups:5s", "rollups:1m", "raw"]
        assert done["rollups:5s"].before == NOON - DAY
        tiles = mill.existing("rollups", "requests")
        assert tiles is not None
        kept = dict.fromkeys(("5s", "1m", "1h"), 0)
        for part in tiles.snapshot().parts:
            kept |= {part.partition["level"]: kept.get(part.partition["level"], 0) + part.rows}
        assert (kept["5s"], kept["1m"]) == (1, 3)  # one of today; and two of yesterday
        assert mill.query(f"SELECT count FROM requests {span} USING ROLLUP 1h FILL drop") == hours
        assert sent(mill, at(5, 90), at(1, 90)).accepted == 2
        again = mill.query(f"SELECT count FROM requests {span} USING ROLLUP 1h FILL drop")
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
        assert (raw.files, raw.held_by) == (0, f"slice {landed.entry.id[:12]}, which is not judged yet")
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
    with plant.open() as mill, pytest.raises(StorageError, match="ids of expired events are gone"):
        sent(mill, at(1, 50))


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
        assert sum(mill.query(query).column("count").to_pylist()) == 22
        assert sent(mill, at(5, 90), at(4, 90)).accepted == 2
        assert sum(mill.query(query).column("count").to_pylist()) == 24
        assert mill.verify().findings == []
        assert days_of_raw(plant) == {"10": 1, "11": 1, "14": 2, "15": 1}
        assert [step.rows for step in expire(mill).due] == [2]  # it was older than the retention when it came
        assert sum(mill.query(query).column("count").to_pylist()) == 24
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


def test_a_slice_of_a_sealed_time_can_not_be_taken_back(plant: Plant) -> None:
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


# -- streaming windows

STREAMING = f"""{RETENTION}
    windows:
      visits:
        kind: session
        gap: 1m
        key: region
        aggregates: {{count: count}}
        late: {{policy: reemit, max_lateness: 30d}}
      hours:
        kind: tumbling
        size: 1h
        aggregates: {{count: count}}
        late: {{policy: reemit, max_lateness: 30d}}
      next:
        kind: tumbling
        size: 1h
        aggregates: {{count: count}}
        late: {{policy: next_window}}
"""


def results(mill: Mill, window: str) -> dict[str, list[tuple[int, int]]]:
    """By start of a window the revisions of its results, each with its count; 0: it was taken back."""
    found: dict[str, list[tuple[int, int]]] = {}
    rows = mill.results("requests", window, revisions=True)
    for row in rows.select(["start", "revision", "count"]).to_pylist():
        start = row["start"].strftime("%dT%H:%M:%S")
        found.setdefault(start, []).append((row["revision"], row["count"] or 0))
    return {start: sorted(revisions) for start, revisions in found.items()}


def visits(plant: Plant) -> Plant:
    """A session of three minutes across the midnight that becomes the seal, and one an hour behind it."""
    with plant.open() as mill:
        eu = {"region": "eu", "tenant": "acme"}
        early = [at(2, n, **eu) for n in (-120, -70, -20, 20, 50)]
        mill.land("requests", ndjson(*early, at(2, 3600, **eu), at(2, 3650, **eu)))
        mill.tick()
        mill.land("requests", ndjson(at(0, 7200, **eu)))
        mill.tick()
    return plant


@pytest.fixture(scope="module")
def visited(new_plant: NewPlant) -> Plant:
    plant = visits(new_plant(STREAMING.replace("raw: 2d", "raw: 9d")))
    plant.configure(STREAMING)
    return plant


BEFORE = {"visits": {"12T23:58:00": [(1, 5)], "13T01:00:00": [(1, 2)]}}


def test_results_of_windows_that_begin_before_the_seal_stay_as_they_are(
    visited: Plant, tmp_path: Path
) -> None:
    plant = visited.copy(tmp_path / "plant")
    eu = {"region": "eu", "tenant": "acme"}
    with plant.open() as mill:
        assert [(s.what, s.before, s.rows) for s in mill.tick().expired] == [("raw", MIDNIGHT - 2 * DAY, 3)]
        assert results(mill, "visits") == BEFORE["visits"]
        hours = results(mill, "hours")
        assert hours == {"12T23:00:00": [(1, 3)], "13T00:00:00": [(1, 2)], "13T01:00:00": [(1, 2)]}
        assert mill.tick().idle  # that raw has fewer parts is no disturbance
        # Late: in the sealed session before and after the seal, in its hours, and in the later session.
        counts = sent(mill, at(2, -30, **eu), at(2, 30, **eu), at(2, 3620, **eu))
        assert (counts.accepted, counts.late) == (3, 3)
        assert results(mill, "visits") == {"12T23:58:00": [(1, 5)], "13T01:00:00": [(1, 2), (2, 3)]}
        assert results(mill, "hours") == {
            "12T23:00:00": [(1, 3)],
            "13T00:00:00": [(1, 2), (2, 3)],
            "13T01:00:00": [(1, 2), (2, 3)],
        }
        audit = mill.verify()
        assert audit.findings == []
        assert audit.streams[0].sealed_windows == 3
        assert mill.tick().idle


@pytest.mark.parametrize("how", ["recovered", "marks lost", "retracted"])
def test_results_that_are_computed_anew_leave_sealed_ones_alone(
    visited: Plant, tmp_path: Path, how: str
) -> None:
    plant = visited.copy(tmp_path / "plant")
    eu = {"region": "eu", "tenant": "acme"}
    with plant.open() as mill:
        mill.tick()
        landed = mill.land("requests", ndjson(at(2, 30, **eu), at(2, 3620, **eu)))
        mill.tick()
        expected = {window: results(mill, window) for window in ("visits", "hours", "next")}
        if how == "marks lost":
            for window in expected:
                mill.state.set_mark("requests", window, None)
        if how == "retracted":
            mill.retract(mill.plan_retraction(landed.entry.id, "wrong"))
            expected["visits"]["13T01:00:00"].append((3, 2))
            for hour in ("13T00:00:00", "13T01:00:00"):
                expected["hours"][hour].append((3, 2))
    if how == "recovered":
        forget(plant)
        recover(plant.root, spark=plant.spark)
    with plant.open() as mill:
        mill.run_until_idle()
        found = {window: results(mill, window) for window in expected}
        if how == "retracted":  # they had counted in the next window
            expected["next"] = found["next"]
        assert found == expected
        assert mill.verify().findings == []


def test_a_late_row_that_counts_in_a_later_window_is_kept_as_long_as_that(
    visited: Plant, tmp_path: Path
) -> None:
    plant = visited.copy(tmp_path / "plant")
    with plant.open() as mill:
        mill.tick()
        sent(mill, at(3, 100))  # counts at the watermark that it met, two hours after midnight
        assert days_of_raw(plant) == {"12": 1, "13": 4, "15": 1}
        assert mill.retention.plan().due == []
        sent(mill, at(0, 20_000))
        assert results(mill, "next")["15T01:00:00"] == [(1, 1)]
        assert mill.verify().findings == []
        plant.clock.advance("4d")
        sent(mill, at(-3, 0))
        assert [step.rows for step in expire(mill).steps if step.what == "raw"] == [0]  # the tick did it
    assert days_of_raw(plant) == {"18": 1}


def test_raw_waits_for_windows_that_are_open(new_plant: NewPlant) -> None:
    config = STREAMING.replace("kind: session\n        gap: 1m", "kind: count\n        n: 2")
    plant = new_plant(config)
    us, eu = ({"tenant": "acme", "region": region} for region in ("us", "eu"))
    with plant.open() as mill:
        mill.land("requests", ndjson(at(5, **eu), at(4, 0, **us), at(4, 1, **us), at(0, 7200, **us)))
        mill.tick()
        (_, raw) = mill.retention.plan().steps
        assert (raw.files, raw.before) == (0, MIDNIGHT - 5 * DAY)
        assert raw.held_by == "window visits, of which one is open since 2024-01-10T00:00:00Z"
        sent(mill, at(0, 7201, **eu), at(0, 9000, **us))
        plant.clock.advance("1h")
        assert [step.rows for step in mill.tick().expired] == [3]
        assert mill.verify().findings == []


# -- beside a mill that keeps everything


@pytest.mark.parametrize("seed", range(3))
def test_a_mill_that_lets_go_says_the_same_as_one_that_keeps_everything(
    new_plant: NewPlant, seed: int
) -> None:
    """Ledger and rollups are equal whatever is late, repeated or contradicted; so are results of windows that
    were never sealed. Each round is a process of its own, and some of them lost the state or the id runs."""
    dice = random.Random(seed)
    keeps, lets_go = new_plant(STREAMING.replace("raw: 2d, quarantine: 1d", "raw: 99d")), new_plant(STREAMING)
    events: list[dict[str, object]] = []
    for day in range(8, 0, -1):
        fresh = [
            at(day + dice.choice((0, 0, 0, 0, 1, 4)), dice.randrange(80_000), event_id=f"{seed}-{day}-{n}")
            for n in range(12)
        ]
        events += fresh
        again = dice.sample(events, 4)
        batch = [*fresh, *again, {**dice.choice(events), "api": "/other"}]
        dice.shuffle(batch)
        if dice.random() < 0.3:
            forget(lets_go)
            if dice.random() < 0.5:
                shutil.rmtree(lets_go.warehouse / "gate", ignore_errors=True)
            if (lets_go.warehouse / "slices").is_dir():
                recover(lets_go.root, spark=lets_go.spark)
        for plant in (keeps, lets_go):
            plant.clock.set(MIDNIGHT - day * DAY + 23 * HOUR)
            with plant.open() as mill:
                mill.land("requests", ndjson(*batch))
                mill.run_until_idle()
    with keeps.open() as old, lets_go.open() as mill:
        assert {e.id: (e.counts, e.observed) for e in mill.ledger()} == {
            e.id: (e.counts, e.observed) for e in old.ledger()
        }
        sealed = mill.expiries.seal("requests")
        assert sealed is not None
        assert sealed >= MIDNIGHT - 4 * DAY
        assert keeps.tiles() == lets_go.tiles()
        first = format_instant(sealed)[8:19]
        for window in ("hours", "next"):
            told = [
                {start: rows[-1][1] for start, rows in results(each, window).items() if start >= first}
                for each in (old, mill)
            ]
            assert told[0] == told[1]
            assert told[0]
        assert mill.verify().findings == []
    rows = lets_go.raw()
    assert {row["event_id"] for row in rows} < {row["event_id"] for row in keeps.raw()}


# -- datasets

DATASETS = f"""{CONFIG}
    aggregation_span: 1h
    allow_incomplete_windows: true
    retention: {{raw: 2d, datasets: 3d}}
"""


@pytest.fixture(scope="module")
def built(new_plant: NewPlant) -> Plant:
    plant = new_plant(DATASETS.replace("raw: 2d, datasets: 3d", "raw: 9d"))
    with plant.open() as mill:
        for days in (5, 4, 2, 0):
            mill.land("requests", ndjson(at(days, 1), at(days, 2), at(days, 4000)), name=f"{days}")
        mill.run_until_idle()
    plant.configure(DATASETS)
    return plant


def starts(mill: Mill) -> list[str]:
    return [format_instant(view.window.key.start)[8:13] for view in mill.windows.windows(newest=False)]


def test_datasets_go_with_their_windows(built: Plant, tmp_path: Path) -> None:
    plant = built.copy(tmp_path / "plant")
    with plant.open() as mill:
        assert starts(mill) == ["10T00", "10T01", "11T00", "11T01", "13T00", "13T01", "15T00", "15T01"]
        (datasets, raw) = mill.retention.plan().steps
        assert (datasets.what, datasets.files, datasets.rows) == ("datasets", 4, 6)
        assert raw.rows == 6
        mill.tick()
        assert starts(mill) == ["13T00", "13T01", "15T00", "15T01"]
        assert len(list((plant.warehouse / "datasets").rglob("*.arrow"))) == 4
        with pytest.raises(NotFoundError, match="has expired, with its datasets"):
            mill.windows.window("requests", MIDNIGHT - 5 * DAY)
        with pytest.raises(NotFoundError, match="has expired, with its datasets"):
            mill.windows.plan_rebuild("requests", Interval(MIDNIGHT - 5 * DAY, MIDNIGHT - 5 * DAY + HOUR))
        sent(mill, at(5, 9))  # no window is laid out there again
        sent(mill, at(0, 9))
        mill.run_until_idle()
        assert starts(mill) == ["13T00", "13T01", "15T00", "15T01"]
        assert mill.verify().findings == []
    before = without(dump(plant), "outbox")  # which goes on to tell of datasets that went
    forget(plant)
    recover(plant.root, spark=plant.spark)
    assert without(dump(plant), "outbox") == before


def test_windows_that_begin_before_the_seal_are_not_built_again(built: Plant, tmp_path: Path) -> None:
    plant = built.copy(tmp_path / "plant")
    plant.configure(DATASETS.replace("datasets: 3d", "quarantine: 9d"))
    with plant.open() as mill:
        mill.tick()
        late = mill.land("requests", ndjson(at(5, 9), at(4, 9_000)), name="late")
        mill.run_until_idle()
        (first, _), (again, _) = (
            mill.state.windows_of(late.entry.id)[0],
            mill.state.windows_of(late.entry.id)[-1],
        )
        story = mill.windows.window("requests", first.key.start)
        assert (story.view.standing.value, story.view.window.revision) == ("final", 1)
        assert [(m.ignored, m.observed) for m in story.members] == [(None, True), ("late", False)]
        story = mill.windows.window("requests", again.key.start)  # nothing was built there before
        assert (story.view.standing.value, story.view.reason) == ("waiting", "sealed")
        assert story.view.detail == "raw before 2024-01-13T00:00:00Z has expired"
        assert [member.ignored for member in story.members] == ["sealed"]
        (step,) = mill.windows.plan_rebuild("requests", Interval(first.key.start, first.key.end))
        assert (step.action, step.reason) == ("wait", "sealed: raw before 2024-01-13T00:00:00Z has expired")
        audit = mill.verify()
        assert audit.findings == []
        assert (audit.streams[0].datasets, audit.streams[0].sealed_windows) == (4, 4)
    before = dump(plant)
    forget(plant)
    recover(plant.root, spark=plant.spark)
    for table, rows in dump(plant).items():
        assert rows == before[table], table


# -- death at any point


def test_death_while_datasets_go_leaves_nothing_to_repair(built: Plant, tmp_path: Path) -> None:
    plant = built.copy(tmp_path / "plant")
    corpses: list[Plant] = []

    def keep(passed: str) -> None:
        if passed in ("expire.after_log", "expire.after_files"):
            corpses.append(plant.copy(tmp_path / f"corpse-{len(corpses)}"))

    with observed(keep), plant.open() as mill:
        expire(mill)
        wanted = starts(mill)
    assert len(corpses) == 2
    for number, corpse in enumerate(corpses):
        copy = corpse.copy(tmp_path / f"recovered-{number}")
        forget(copy)
        recover(copy.root, spark=copy.spark)
        for one in (corpse, copy):
            with one.open() as mill:
                mill.run_until_idle()
                assert starts(mill) == wanted
                assert mill.verify().findings == []
            assert len(list((one.warehouse / "datasets").rglob("*.arrow"))) == 4


@pytest.mark.parametrize("point", [point for point in POINTS_HERE if point != "expire.after_files"])
def test_death_while_expiring_leaves_nothing_to_repair(told: Plant, tmp_path: Path, point: str) -> None:
    plant = told.copy(tmp_path / "plant")
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
