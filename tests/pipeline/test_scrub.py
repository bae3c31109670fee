"""Every kind of file that is not a part of a table, flipped, cut short and deleted: a scrub finds it, nobody
reads it, and no answer changes in silence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.damage import harmed
from tests.support.pipeline import NOON, NewPlant, Plant

from tidemill.mill import Mill, recover
from tidemill.model.damage import FileKind
from tidemill.model.errors import DamageError
from tidemill.model.slices import SliceStatus
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND
from tidemill.pipeline.scrub_progress import progress_of

CONFIG = """
version: 1
engine: {cores: 2, memory: 512m}
scrub: {every: 1d, bytes_per_second: 8KiB}
streams:
  orders:
    schema:
      id: {type: string, required: true}
      ts: {type: integer, required: true}
      number: string
      state: string
      region: string
    event_time: {column: ts, type: unixtimestamp_us, late_tolerance: 1s}
    identity: id
    tenant: {value: acme}
    aggregation_span: 1h
    metrics:
      orders: {kind: state, object: number, state: state, dimensions: [region]}
      few: {kind: counter, dimensions: [region], max_cardinality: 2}
    windows:
      visits: {kind: session, gap: 3h, key: region, aggregates: {n: count}}
      four: {kind: count, n: 4, aggregates: {n: count}}
"""
RETENTION = f"{CONFIG}    retention: {{raw: 2d}}\n"
QUERIES = (
    "SELECT transitions FROM orders.orders USING ROLLUP 1h GROUP BY from_state, to_state, region",
    "SELECT count FROM orders.few USING ROLLUP 1h GROUP BY region",
)
FIRST = NOON - 5 * DAY


def order(number: int, at: int, state: str = "new") -> bytes:
    reported = {"id": f"o-{number}-{state}", "ts": at, "number": f"{number % 5}", "state": state}
    return json.dumps({**reported, "region": ("eu", "us", "asia")[number % 3]}).encode() + b"\n"


def orders(first: int, count: int, at: int, state: str = "new") -> bytes:
    return b"".join(order(first + n, at + n * MINUTE, state) for n in range(count))


@pytest.fixture(scope="module")
def made(new_plant: NewPlant) -> Plant:
    """A warehouse with all of it: two days that have expired, a slice that was taken back, a dataset without
    rows, and windows that are open."""
    plant = new_plant(CONFIG)
    with plant.open() as mill:
        for hour, state in enumerate(("new", "paid")):
            start = FIRST + hour * HOUR
            mill.land("orders", orders(hour * 20, 20, start, state), start=start, end=start + HOUR)
            mill.tick()
        mill.ingest("orders", [], empty=True, start=FIRST + 2 * HOUR, end=FIRST + 3 * HOUR)
        gone = mill.land("orders", orders(100, 5, FIRST + 3 * HOUR))
        mill.land("orders", orders(200, 10, NOON - HOUR), start=NOON - HOUR, end=NOON)
        mill.run_until_idle()
        mill.retract(mill.plan_retraction(gone.entry.id, "sent by mistake"))
        mill.run_until_idle()
    plant.configure(RETENTION)
    with plant.open() as mill:
        mill.run_until_idle()
        assert mill.status()[0].sealed is not None
        assert mill.scrub().ok
    return plant


@pytest.fixture
def plant(made: Plant, tmp_path: Path) -> Plant:
    return made.copy(tmp_path / "plant")


def newest(pattern: str) -> Callable[[Path], Path]:
    return lambda warehouse: max(warehouse.glob(pattern))


KINDS: dict[str, tuple[FileKind, Callable[[Path], Path]]] = {
    "slice": (FileKind.SLICE, newest("slices/orders/*/*.ndjson")),
    "landings": (FileKind.SLICE_LOG, newest("slices/landings.ndjson")),
    "retractions": (FileKind.SLICE_LOG, newest("slices/retractions.ndjson")),
    "expiries": (FileKind.SLICE_LOG, newest("slices/expiries.ndjson")),
    "declarations": (FileKind.SLICE_LOG, newest("slices/declarations.ndjson")),
    "gate run": (FileKind.ACCEPTED_IDS, newest("gate/orders/*.run")),
    "sealed keys": (FileKind.EXPIRED_IDS, newest("sealed/orders/*.keys")),
    "trail": (FileKind.OBSERVATIONS, newest("trails/orders/*.trail")),
    "log of trails": (FileKind.OBSERVATIONS, newest("trails/orders/trails.log")),
    "roster": (FileKind.ADMITTED_KEYS, newest("trails/orders/*.roster")),
    "dataset": (FileKind.DATASET, newest("datasets/orders/aggregation/*/r*.arrow")),
    "empty datasets": (FileKind.EMPTY_DATASETS, newest("datasets/orders/_empty/windows.ndjson")),
    "open sessions": (FileKind.OPEN_WINDOWS, newest("windows/orders/visits/_open/*.open")),
    "open rows": (FileKind.OPEN_WINDOWS, newest("windows/orders/four/_open/*.arrow")),
}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size * 2 // 3)


HARM = {"flipped": flip, "cut": cut, "deleted": Path.unlink}


def answers(mill: Mill) -> list[object]:
    """What somebody gets to see."""
    results = [mill.results("orders", window, revisions=True).to_pylist() for window in ("visits", "four")]
    found = [mill.query(query, tenant="acme").to_pylist() for query in QUERIES]
    ledger = [(entry.id, entry.status, entry.counts) for entry in mill.ledger()]
    return [found, results, ledger, [window.observed for window in mill.windows.datasets("orders")]]


MORE = orders(300, 4, NOON - 10 * MINUTE) + orders(0, 20, FIRST, "new")  # of those, 20 were accepted before


@pytest.fixture(scope="module")
def expected(made: Plant, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """What comes of it when nothing is damaged."""
    with made.copy(tmp_path_factory.mktemp("expected") / "plant").open() as mill:
        mill.land("orders", MORE)
        mill.tick()
        return answers(mill)


@pytest.mark.parametrize(("what", "how"), harmed(HARM, KINDS))
def test_damage_is_found_by_a_scrub_and_changes_no_answer(
    plant: Plant, expected: list[object], what: str, how: str
) -> None:
    kind, find = KINDS[what]
    file = find(plant.warehouse)
    name = file.relative_to(plant.warehouse).as_posix()
    HARM[how](file)
    with plant.open() as mill:
        (damage,) = mill.scrub().damages
        assert (damage.file, damage.kind) == (name, kind)
        assert damage.stream == ("" if kind is FileKind.SLICE_LOG else "orders")
        assert [known.damage for known in mill.state.damages()] == [damage]
        assert name in {finding.where for finding in mill.verify().findings} or kind in VERIFIED
    # A new process reads what it needs of it: it says so, or makes it again, and nothing else comes of it.
    with plant.open() as mill:
        try:
            mill.land("orders", MORE)
            report = mill.tick()
            found = answers(mill)
        except DamageError as error:
            assert error.where == name  # noqa: PT017 - it may or may not be needed
            return
        if report.faults:
            assert name in report.faults[0].message
            return
        counts = mill.ledger(limit=1)[0].counts
        assert (counts.accepted, counts.duplicate, counts.conflict) == (4, 20, 0)
        assert found == expected


VERIFIED = (FileKind.SLICE, FileKind.DATASET)  # `verify` says it in other words


def test_one_flipped_bit_in_the_accepted_ids_neither_doubles_an_event_nor_invents_a_conflict(
    plant: Plant,
) -> None:
    content = KINDS["gate run"][1](plant.warehouse).read_bytes()
    for place in range(100, len(content), len(content) // 5):
        changed = bytearray(content)
        changed[place] ^= 4
        KINDS["gate run"][1](plant.warehouse).write_bytes(changed)
        with plant.open() as mill:
            landed = mill.land("orders", orders(200, 9, NOON - HOUR) + order(place, NOON, "other"))
            mill.tick()
            counts = mill.slice(landed.entry.id).counts
        assert (counts.accepted, counts.duplicate, counts.conflict) == (1, 9, 0)


def test_a_lost_log_of_retractions_does_not_bring_a_slice_back(plant: Plant) -> None:
    (plant.warehouse / "slices" / "retractions.ndjson").unlink()
    recover(plant.root, spark=plant.spark, clock=plant.clock)
    with plant.open() as mill:
        assert len(mill.ledger(status=SliceStatus.RETRACTED)) == 1
        mill.run_until_idle()
        assert mill.scrub().ok


def test_files_of_earlier_versions_are_counted_as_not_checked(plant: Plant) -> None:
    from tidemill.storage.checksums import read_arrow
    from tidemill.storage.ipc import write_ipc

    with plant.open() as mill:
        before = mill.scrub().tally.unchecked
    for path in (plant.warehouse / "gate" / "orders").iterdir():
        write_ipc(path.with_suffix(".old"), read_arrow(path))
        path.with_suffix(".old").replace(path)
    with plant.open() as mill:
        found = mill.scrub()
        assert found.ok
        assert found.tally.unchecked == before + len(mill.state.runs("orders"))
        landed = mill.land("orders", orders(200, 9, NOON - HOUR) + order(999, NOON, "other"))
        mill.tick()
        assert mill.slice(landed.entry.id).counts.duplicate == 9


def test_a_file_that_was_replaced_meanwhile_is_not_damaged(plant: Plant) -> None:
    from tidemill.pipeline.scrub import sections
    from tidemill.storage.file_scrub import ScrubTally

    with plant.open() as mill:
        gate = next(one for one in sections(mill.workers) if one.kind == "gate")
        checks = gate.check(ScrubTally(), "")
        names = mill.state.runs("orders")
        mill.state.replace_runs("orders", names, ["merged.run"])
        for name in names:
            (plant.warehouse / "gate" / "orders" / name).unlink()
        assert [one.damage for one in checks] == [None] * len(names)


def test_one_stream_is_scrubbed_without_the_others(plant: Plant) -> None:
    plant.configure(RETENTION + CONFIG.partition("streams:\n")[2].replace("orders:", "others:", 1))
    with plant.open() as mill:
        everything, one = mill.scrub(), mill.scrub("others")
    assert one.tally.files < everything.tally.files
    assert one.ok


# -- in the background


def test_a_daemon_reads_all_files_at_its_pace_and_goes_on_after_a_restart(plant: Plant) -> None:
    with plant.open() as mill:
        whole = mill.scrub().tally
        mill.tick(patient=True)
        first = progress_of(mill.state).current
        assert first is not None
        assert 8 << 10 <= first.bytes < whole.bytes  # a second of it
        assert mill.scrub_status().last_full is None
    passes = 1
    while True:
        plant.clock.advance(SECOND)
        with plant.open() as mill:  # each round is of a process of its own
            mill.tick(patient=True)
            status, passes = mill.scrub_status(), passes + 1
            if status.last_full is not None:
                break
    assert passes > 2
    largest = max(path.stat().st_size for path in plant.warehouse.rglob("*") if path.is_file())
    assert whole.bytes <= 8192 * passes + largest  # a file that takes longer is paid off before the next
    assert status.current is None
    assert (status.last_full.files, status.last_full.bytes) == (whole.files, whole.bytes)
    plant.clock.advance(HOUR)
    with plant.open() as mill:
        mill.tick(patient=True)
        assert mill.scrub_status() == status  # the next pass is not due yet
        plant.clock.advance(DAY)
        mill.tick(patient=True)
        assert mill.scrub_status().current is not None


def test_what_the_daemon_finds_is_on_record_until_it_is_whole_again(plant: Plant) -> None:
    file = KINDS["dataset"][1](plant.warehouse)
    name, content = file.relative_to(plant.warehouse).as_posix(), file.read_bytes()
    flip(file)

    def scrub_round(mill: Mill) -> list[str]:
        plant.clock.advance(2 * DAY)
        mill.tick(patient=True)
        while mill.scrub_status().current is not None:
            plant.clock.advance(10 * SECOND)
            mill.tick(patient=True)
        return [one.damage.file for one in mill.scrub_status().damages]

    with plant.open() as mill:
        assert scrub_round(mill) == [name]
        assert 'tidemill_damaged_files{kind="dataset",stream="orders"} 1.0' in mill.meter.text()
        (since,) = (one.since for one in mill.state.damages())
        assert scrub_round(mill) == [name]
        assert [one.since for one in mill.state.damages()] == [since]
        file.write_bytes(content)
        assert scrub_round(mill) == []
        assert "tidemill_scrub_age_seconds" in mill.meter.text()


def test_the_scrub_can_be_switched_off(plant: Plant) -> None:
    plant.configure(RETENTION.replace("scrub: {every: 1d", "scrub: {enabled: false, every: 1d"))
    with plant.open() as mill:
        mill.tick(patient=True)
        assert mill.scrub_status().current is None
        assert mill.scrub_status().last_full is None


def test_a_dataset_that_was_changed_is_not_handed_out(plant: Plant, tmp_path: Path) -> None:
    with plant.open() as mill:
        window = mill.windows.datasets("orders")[-1]
        flip(plant.warehouse / str(window.file))
        with pytest.raises(DamageError, match="other bytes than were written") as found:
            mill.export("orders", [window.key.start], "arrow", tmp_path / "out.arrow")
    assert found.value.where == window.file
    assert not (tmp_path / "out.arrow").exists()
