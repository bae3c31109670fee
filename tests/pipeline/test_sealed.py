"""What is sealed when raw has expired: results of streaming windows and datasets stay as they are, late rows
for them are counted as late, and all that is not sealed is what a mill says that keeps everything."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from tests.pipeline.test_recover import dump, forget, without
from tests.pipeline.test_retention import MIDNIGHT, RETENTION, at, days_of_raw, expire, sent
from tests.support.pipeline import CONFIG, NewPlant, Plant, ndjson

from tidemill.mill import Mill, recover
from tidemill.model.errors import NotFoundError
from tidemill.model.failpoints import observed
from tidemill.model.time import DAY, HOUR, Interval, format_instant

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
                mill.state.set_checkpoint("requests", window, None)
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


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 9))])
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
        sealed = mill.warehouse.expiries.seal("requests")
        assert sealed is not None
        assert sealed >= MIDNIGHT - 4 * DAY
        assert keeps.tiles() == lets_go.tiles()
        first = format_instant(sealed)[8:19]
        for window in ("hours", "next"):
            reported = [
                {start: rows[-1][1] for start, rows in results(each, window).items() if start >= first}
                for each in (old, mill)
            ]
            assert reported[0] == reported[1]
            assert reported[0]
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
        assert (story.view.status.value, story.view.window.revision) == ("final", 1)
        assert [(m.ignored, m.observed) for m in story.members] == [(None, True), ("sealed", False)]
        story = mill.windows.window("requests", again.key.start)  # nothing was built there before
        assert (story.view.status.value, story.view.reason) == ("waiting", "sealed")
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


@pytest.mark.parametrize("incomplete", ["true", "false"])
def test_a_recovered_state_has_the_windows_that_expired_rows_lay_in(
    new_plant: NewPlant, incomplete: str
) -> None:
    """Of slices whose rows are hours apart, some of them expired: no other windows, and the same coverage."""
    declared = DATASETS.replace("windows: true", f"windows: {incomplete}").replace(", datasets: 3d", "")
    plant = new_plant(declared.replace("raw: 2d", "raw: 9d"))
    with plant.open() as mill:
        mill.land("requests", ndjson(at(5, 1), at(5, 4 * 3600), at(4, 0), at(1, 7), at(0, 5)), name="wide")
        hour = [at(0, 3600 + second, event_id=f"h-{second}") for second in range(3600)]
        mill.land("requests", ndjson(at(3, 9 * 3600), *hour), name="hour")
        mill.run_until_idle()
    plant.configure(declared)
    with plant.open() as mill:
        mill.run_until_idle()
        assert starts(mill) == ["10T00", "10T04", "11T00", "12T09", "14T00", "15T00", "15T01"]
        late = mill.land("requests", ndjson(at(5, 2), at(3, 1)), name="late").entry.id
        mill.run_until_idle()
        touched = [window.key.start for window, _ in mill.windows.touched(late)]
        assert touched == [MIDNIGHT - 5 * DAY, MIDNIGHT - 3 * DAY]
        expire(mill)
        assert days_of_raw(plant).keys() == {"14", "15"}
        seen = [(view.status.value, view.reason) for view in mill.windows.windows(newest=False)]
        built, waiting = ("final", None), ("waiting", "sealed")
        if incomplete == "true":
            assert seen == [*[built] * 3, waiting, built, *[("built", None)] * 2, built]
        else:
            assert seen == [*[waiting] * 5, *[("waiting", "coverage")] * 2, built]
    before = without(dump(plant), "outbox")
    forget(plant)
    recover(plant.root, spark=plant.spark)
    after = without(dump(plant), "outbox")
    for table, rows in before.items():
        assert after[table] == rows, table


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
