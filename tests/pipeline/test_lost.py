"""What cannot be made again after damage: raw of it has expired, or its slice is gone. Answers go on, say
which span is missing and why, and are right everywhere else, by loops over what was sent."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.damage import flip
from tests.support.selection import one_in

from tidemill.mill import Mill, recover
from tidemill.model.completeness import Missing
from tidemill.model.errors import DamageError, IncompleteError
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, Interval, format_instant, parse_instant
from tidemill.pipeline.documents import shapes
from tidemill.query import Answer
from tidemill.storage import layout
from tidemill.testing import FakeClock

pytestmark = pytest.mark.long

FIRST = parse_instant("2024-01-08T00:00:00Z")
DAYS = 8
NOON = FIRST + (DAYS - 1) * DAY + 12 * HOUR
SEALED = FIRST + 5 * DAY  # raw is kept from there on
LEVELS = ("5s", "1m", "1h", "1d", "7d")
CONFIG = """
version: 1
engine: {cores: 1, memory: 512m}
streams:
  calls:
    schema:
      id: {type: string, required: true}
      at: {type: integer, required: true}
      shop: string
    event_time: {column: at, type: unixtimestamp_us, late_tolerance: 10s}
    identity: id
    indexed: [shop]
    pack: {enabled: false}
    aggregation_span: 1d
    subject_to_change_window: 1d
    allow_incomplete_windows: true
    metrics:
      calls: {kind: counter, dimensions: [shop]}
    windows:
      hours:
        kind: tumbling
        size: 1h
        aggregates: {count: count}
        late: {policy: reemit, max_lateness: 30d}
    retention: {raw: 2d}
"""


class Shop:
    """A project, and all that was sent to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock(NOON)
        self.sent: list[int] = []

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    def open(self) -> Mill:
        return Mill.open(self.root, clock=self.clock)

    def copy(self, root: Path) -> Shop:
        shutil.copytree(self.root, root)
        made = Shop(root)
        made.sent = list(self.sent)
        return made

    def land(self, mill: Mill, times: Sequence[int], name: str) -> str:
        first = len(self.sent)
        lines = [
            json.dumps({"id": f"e{first + n}", "at": at, "shop": ("north", "south")[n % 2]})
            for n, at in enumerate(times)
        ]
        self.sent += times
        return mill.land("calls", "\n".join(lines).encode() + b"\n", name=name).entry.id

    def parts(self, mill: Mill, level: str, span: Interval) -> list[Path]:
        """The parts of a level with buckets that start in a span."""
        found = mill.snapshot("rollups", "calls")
        assert found is not None
        return [Path(path) for path in found.paths(found.overlapping({"level": level}, "bucket", [span]))]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Eight days, a slice of each; raw of the first five has expired. Copy before you touch."""
    shop = Shop(tmp_path_factory.mktemp("lost") / "shop")
    shop.root.mkdir()
    (shop.root / "tidemill.yaml").write_text(CONFIG)
    chance = random.Random(1)
    with shop.open() as mill:
        for day in range(DAYS):
            until = DAY if day < DAYS - 1 else 12 * HOUR
            times = sorted(FIRST + day * DAY + chance.randrange(until // SECOND) * SECOND for _ in range(40))
            shop.land(mill, times, f"day {day}")
            mill.tick()
        mill.run_until_idle()
        mill.retention.expire(mill.retention.plan())
        mill.run_until_idle()
        assert mill.warehouse.expiries.seal("calls") == SEALED
    return shop


@pytest.fixture
def shop(built: Shop, tmp_path: Path) -> Shop:
    return built.copy(tmp_path / "shop")


def spans() -> Iterator[tuple[Interval, int | None]]:
    """Of totals (None) and of cells of a width, aligned so that rollups have them."""
    chance = random.Random(2)
    for width in (HOUR, DAY, 6 * HOUR, 10 * MINUTE, None) * 3:
        unit = width or HOUR
        first = FIRST + chance.randrange(6 * DAY // unit) * unit
        yield Interval(first, first + chance.randrange(1, 40) * unit), width


def said(width: int) -> str:
    return f"{width // MINUTE}m"


def assert_answers(shop: Shop, mill: Mill) -> int:
    """Each cell is what a loop gives, or null where something is said to be missing; how many are null."""
    nulls = 0
    for span, width in spans():
        between = f"BETWEEN {format_instant(span.start)} AND {format_instant(span.end)}"
        cells = f" INTERVAL {said(width)} FILL zero" if width else ""
        answer = mill.ask(f"SELECT count FROM calls.calls {between}{cells}")
        missing = [one.span for one in answer.completeness.missing]
        rows = answer.table.to_pylist()
        step = width or span.end - span.start
        starts = range(span.start, span.end, step)
        assert len(rows) == len(starts)
        for start, row in zip(starts, rows, strict=True):
            cell = Interval(start, start + step)
            if any(cell.overlaps(one) for one in missing):
                assert row["count"] is None, (cell, row)
                nulls += 1
            else:
                assert row["count"] == sum(cell.holds(at) for at in shop.sent), (cell, row)
        assert answer.completeness.complete == (not missing and not answer.completeness.open)
    return nulls


LOST_LEVELS = [LEVELS[:number] for number in range(1, len(LEVELS) + 1)]


@pytest.mark.parametrize(
    "levels", one_in(4, [(levels,) for levels in LOST_LEVELS]), ids=lambda levels: "-".join(levels)
)
def test_rollups_of_expired_raw_that_are_lost_are_missing_and_never_zero(
    shop: Shop, levels: tuple[str, ...]
) -> None:
    """Of the third day; levels above the damaged ones still have it."""
    day = Interval(FIRST + 2 * DAY, FIRST + 3 * DAY)
    with shop.open() as mill:
        assert assert_answers(shop, mill) == 0
        for level in levels:
            start = FIRST - 4 * DAY if level == "7d" else day.start
            for part in shop.parts(mill, level, Interval(start, day.end)):
                part.unlink()
        done = mill.repair()
        assert not done.ok
        assert done.left == []
        assert [step.damage.kind.value for step in done.lost] == ["part of rollups"] * len(done.lost)
        nulls = assert_answers(shop, mill)
        assert (nulls > 0) == (levels != LEVELS[:1])
        assert mill.plan_repair().steps == []
        assert mill.verify().findings == []
        # Late events for the lost day, for another sealed one and for an open one go on counting.
        shop.land(mill, [day.start + 7 * HOUR, FIRST + DAY + 1, FIRST + 6 * DAY + 5], "late")
        mill.run_until_idle()
        assert [one.faults for one in mill.status()] == [[]]
        assert_answers(shop, mill)
        assert mill.verify().findings == []
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (shop.warehouse / name).unlink(missing_ok=True)
    assert recover(shop.root, clock=shop.clock).left == []
    with shop.open() as mill:
        mill.run_until_idle()
        assert assert_answers(shop, mill) == nulls
        assert mill.verify().findings == []


def test_every_answer_says_the_same_of_what_is_lost(shop: Shop) -> None:
    day = Interval(FIRST + 2 * DAY, FIRST + 3 * DAY)
    asked = f"SELECT count FROM calls.calls BETWEEN {format_instant(day.start)} AND {format_instant(day.end)}"
    with shop.open() as mill:
        for level in LEVELS[:4]:
            for part in shop.parts(mill, level, day):
                part.unlink()
        with pytest.raises(DamageError) as damage:  # until then it can perhaps be made again
            mill.query(asked)
        assert "tidemill repair" in damage.value.hint
        mill.repair()
        answer = mill.ask(asked)
        (one,) = shapes.completeness(answer.completeness)["missing"]
        span = Interval(parse_instant(one["span"]["start"]), parse_instant(one["span"]["end"]))
        assert day.start <= span.start < span.end <= day.end
        assert all(span.holds(at) for at in shop.sent if day.holds(at))
        assert one["why"] == "damaged"
        assert "lost with a damaged file" in one["detail"]
        assert one["remedy"].startswith("Nothing makes it again")
        assert "Missing 2024-01-10" in str(answer.completeness)
        with pytest.raises(IncompleteError, match="damaged file"):
            mill.ask(asked, strict=True)
        sql = mill.sql("SELECT count(*) FROM rollups.calls")
        assert {missing.why for missing in sql.completeness["calls"].missing} == {"damaged"}
        with pytest.raises(IncompleteError):
            mill.sql("SELECT count(*) FROM rollups.calls", strict=True)


def test_a_state_that_is_recovered_beside_a_damaged_part_of_expired_raw_says_what_is_lost(shop: Shop) -> None:
    day = Interval(FIRST + 2 * DAY, FIRST + 3 * DAY)
    with shop.open() as mill:
        for level in LEVELS[:3]:
            for part in shop.parts(mill, level, day):
                part.unlink()
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (shop.warehouse / name).unlink(missing_ok=True)
    assert any("cannot be made again" in one.reason for one in recover(shop.root, clock=shop.clock).left)
    with shop.open() as mill:
        mill.run_until_idle()
        assert assert_answers(shop, mill) > 0


# -- results of streaming windows


@pytest.mark.parametrize("how", one_in(2, ["repair", "a round", "recover"]))
def test_lost_results_of_expired_raw_are_named(shop: Shop, how: str) -> None:
    for part in layout.results(shop.warehouse, "calls", "hours").glob("*.parquet"):
        part.unlink()
    if how == "recover":
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (shop.warehouse / name).unlink(missing_ok=True)
        recover(shop.root, clock=shop.clock)
    with shop.open() as mill:
        if how == "repair":
            assert not mill.repair().ok
        mill.run_until_idle()
        missing = mill.missing_results("calls", "hours")
        found = {
            row["start"].timestamp() * SECOND: row["count"]
            for row in mill.results("calls", "hours").to_pylist()
        }
        for start in range(FIRST, NOON - 2 * HOUR, HOUR):
            hour = Interval(start, start + HOUR)
            wanted = sum(hour.holds(at) for at in shop.sent)
            if start in found:
                assert found[start] == wanted, hour
            else:
                assert not wanted or any(hour.overlaps(one.span) for one in missing), hour
        assert {one.why for one in missing} == {"damaged"}
        assert max(one.span.end for one in missing) <= SEALED
        assert mill.missing_results("calls", "hours", start=SEALED) == []
        sql = mill.sql("SELECT count(*) FROM windows.calls_hours")
        assert [one.why for one in sql.completeness["calls"].missing] == ["damaged"] * len(missing)
        assert mill.verify().findings == []


# -- datasets, and raw, which stay where they are until somebody puts them back


def test_a_lost_dataset_of_expired_raw_is_named_until_it_is_put_back(shop: Shop) -> None:
    with shop.open() as mill:
        window = next(one for one in mill.state.windows("calls") if one.key.start == FIRST + DAY)
        path = shop.warehouse / str(window.file)
        content = path.read_bytes()
        path.write_bytes(content[:100])
        with pytest.raises(DamageError):
            assert mill.sql("SELECT count(*) FROM datasets.calls").table
        (step,) = mill.repair().left
        assert step.affects.startswith("the dataset of [2024-01-09")
        answer = mill.sql("SELECT count(*) AS n FROM datasets.calls")
        missing = [one for one in answer.completeness["calls"].missing if one.why == "damaged"]
        assert [(one.span, one.remedy) for one in missing] == [
            (
                window.key.interval,
                "Put the file back from a copy of the warehouse: `tidemill repair --explain` names it",
            )
        ]
        inside = sum(window.key.interval.holds(at) for at in shop.sent)
        built = sum(one.rows or 0 for one in mill.state.windows("calls") if one.file)
        assert answer.table.to_pylist() == [{"n": built - inside}]
        path.write_bytes(content)
        answer = mill.sql("SELECT count(*) AS n FROM datasets.calls")
        assert answer.table.to_pylist() == [{"n": built}]
        assert not any(one.why == "damaged" for one in answer.completeness["calls"].missing)


def test_raw_whose_slice_is_gone_too_is_named_until_one_of_them_is_put_back(shop: Shop) -> None:
    """What is made of it stays, and is right."""
    with shop.open() as mill:
        entry = next(one for one in mill.ledger("calls") if one.slice.name == "day 6")
        slice_file = shop.warehouse / entry.slice.path
        bytes_of_slice = slice_file.read_bytes()
        slice_file.unlink()
        (part,) = layout.raw(shop.warehouse, "calls").glob(f"{entry.batch}-*.parquet")
        part.unlink()
        steps = {Path(step.damage.file).name: step for step in mill.repair().left}
        assert entry.slice.path in steps[part.name].affects
        assert entry.observed is not None
        day = entry.observed
        assert assert_answers(shop, mill) == 0
        for text in ("", f"BETWEEN {format_instant(day.start)} AND {format_instant(day.end)}"):
            page = mill.search("calls", text)
            assert [one.span for one in page.completeness.missing if one.why == "damaged"] == [
                Interval(day.start, min(day.end + 999, day.end if text else day.end + 999))
            ]
        assert mill.search("calls", "LIMIT 1000").rows.num_rows == sum(
            at >= SEALED and not day.holds(at) for at in shop.sent
        )
        said_first, *items = mill.tail("calls", ordered=False)
        assert isinstance(said_first, Missing)
        assert said_first.span.start == day.start
        rows = sum(item.num_rows for item in items if isinstance(item, pa.RecordBatch))
        assert rows == sum(at >= SEALED and not day.holds(at) for at in shop.sent)
        # A question to the events themselves has no number there, and says why.
        between = f"BETWEEN {format_instant(SEALED)} AND {format_instant(NOON)}"
        filtered = mill.ask(f"SELECT count FROM calls.calls FILTER id != '' {between} INTERVAL 1d FILL zero")
        counts = {row["bucket"].day: row["count"] for row in filtered.table.to_pylist()}
        assert counts[14] is None
        assert counts[13] == sum(SEALED <= at < SEALED + DAY for at in shop.sent)
        sql = mill.sql("SELECT count(*) AS n FROM raw.calls")
        assert sql.table.to_pylist() == [{"n": sum(at >= SEALED and not day.holds(at) for at in shop.sent)}]
        assert [one.span.start for one in sql.completeness["calls"].missing if one.why == "damaged"] == [
            day.start
        ]
        # The stream goes on: new events, and late ones for the lost time, count.
        shop.land(mill, [day.start + 1, NOON - 1], "late")
        mill.run_until_idle()
        assert assert_answers(shop, mill) == 0
        mill.retention.expire(mill.retention.plan())
        mill.pack()
        slice_file.write_bytes(bytes_of_slice)
        assert mill.repair().ok
        mill.run_until_idle()
        assert mill.search("calls", "LIMIT 1000").rows.num_rows == sum(at >= SEALED for at in shop.sent)
        assert not any(one.why == "damaged" for one in mill.search("calls").completeness.missing)
        assert assert_answers(shop, mill) == 0
        assert mill.verify().findings == []


STATES = """
version: 1
streams:
  s:
    schema: {id: string, at: string, object: string, state: string}
    identity: id
    event_time: {column: at, type: iso8601}
    retention: {raw: 2d}
    metrics:
      all: {kind: counter}
      states: {kind: state, object: object, state: state}
      few: {kind: counter, dimensions: [state], max_cardinality: 1}
"""


@pytest.mark.parametrize("file", ["*.trail", "few.roster", "trails.log"])
@pytest.mark.parametrize("harm", [flip, Path.unlink])
@pytest.mark.parametrize("by_recover", [False, True])
def test_states_and_admitted_keys_whose_raw_has_expired_are_missing_once_they_are_lost(
    tmp_path: Path, file: str, harm: Callable[[Path], object], *, by_recover: bool
) -> None:
    """An object whose last state is forgotten would count in two states, and another key would be
    admitted."""
    (tmp_path / "tidemill.yaml").write_text(STATES)
    clock = FakeClock(parse_instant("2024-01-01T12:00:00Z"))

    def land(mill: Mill, name: str, day: int, thing: str, state: str) -> None:
        event = {"id": name, "at": f"2024-01-0{day}T10:00:00Z", "object": thing, "state": state}
        mill.land("s", json.dumps(event).encode())
        mill.tick()

    with Mill.open(tmp_path, clock=clock) as mill:
        land(mill, "a", 1, "o1", "NEW")
        clock.set(parse_instant("2024-01-06T12:00:00Z"))
        land(mill, "b", 6, "o2", "PAID")
        mill.retention.expire(mill.retention.plan())
        mill.run_until_idle()
    harm(min((tmp_path / "warehouse/trails/s").glob(file)))
    lost = "states and admitted keys from before 2024-01-04"
    if by_recover:
        assert lost in recover(tmp_path, clock=clock).left[0].reason
        assert recover(tmp_path, clock=clock).left == []  # what is lost is known by now
    with Mill.open(tmp_path, clock=clock) as mill:
        if not by_recover:
            done = mill.repair()
            assert (done.left, done.ok) == ([], False)
            assert lost in done.lost[0].affects
        land(mill, "c", 6, "o1", "PAID")
        span = "BETWEEN 2024-01-01 AND 2024-01-07"
        for query in (f"SELECT states FROM s.states {span}", f"SELECT count FROM s.few {span}"):
            answer = mill.ask(query)
            assert isinstance(answer, Answer)
            assert answer.completeness.missing[0].span.end == parse_instant("2024-01-04T00:00:00Z")
            assert {value for row in answer.table.to_pylist() for value in row.values()} <= {None}
        assert mill.query(f"SELECT count FROM s.all {span}").to_pylist() == [{"count": 3}]
        since = "BETWEEN 2024-01-04 AND 2024-01-07"
        assert mill.query(f"SELECT count FROM s.few {since}").to_pylist() == [{"count": 2}]
        assert not mill.status()[0].faults
        assert mill.verify().findings == []
    harm(min((tmp_path / "warehouse/trails/s").glob(file)))
    with Mill.open(tmp_path, clock=clock) as mill:  # that it was lost before is no reason to go on without it
        land(mill, "d", 6, "o1", "SENT")
        assert {fault.code for fault in mill.status()[0].faults} == {"damaged"}
