"""The weather example does what its page says: the table that explains readiness is checked cell by cell."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.mill import Mill
from tidemill.model.time import format_instant, parse_instant, to_datetime
from tidemill.model.windows import WindowStatus
from tidemill.outputs.datasets.reader import WindowStory
from tidemill.testing import FakeClock

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "weather"
PAGE = ROOT / "docs" / "windows.md"
DAY = "2024-01-15"

Lines = Callable[[datetime, datetime], bytes]


def instant(time: str) -> int:
    return parse_instant(f"{DAY}T{time}:00Z")


@dataclass
class Weather:
    """The example on a clock that is set by hand; every act opens it anew, as another process would."""

    root: Path
    lines: Lines
    clock: FakeClock = field(default_factory=lambda: FakeClock(instant("12:00")))
    slices: dict[str, str] = field(default_factory=dict)  # what the page calls a slice -> its id

    def open(self) -> Mill:
        return Mill.open(self.root, clock=self.clock)

    def land(self, name: str, start: str, end: str, rows: int) -> None:
        bounds = instant(start), instant(end)
        content = self.lines(to_datetime(bounds[0]), to_datetime(bounds[1])) if rows else b""
        assert content.count(b"\n") == rows
        with self.open() as mill:
            landed = mill.land("weather", content, start=bounds[0], end=bounds[1], format="ndjson")
        self.slices[name] = landed.entry.id

    def does(self, what: str) -> None:
        """What a row of the table tells."""
        if found := re.fullmatch(r"([A-Z]) lands, covers (\S+)-(\S+), (\d+) rows", what):
            self.land(found[1], found[2], found[3], int(found[4]))
        elif what == "A lands again":
            known = self.slices["A"]
            self.land("A", "12:00", "13:15", 45)
            assert self.slices["A"] == known
        elif what == "rebuild with what came late":
            with self.open() as mill:
                plan = mill.windows.plan_rebuild("weather", include_late=True)
                mill.rebuild([step for step in plan if step.late and step.key.start == instant("13:00")])
        elif found := re.fullmatch(r"([A-Z]) is retracted", what):
            with self.open() as mill:
                mill.retract(mill.plan_retraction(self.slices[found[1]], "a mistake"))
        else:
            assert what == ""

    def story(self, start: str) -> WindowStory:
        with self.open() as mill:
            return mill.windows.window("weather", instant(start))

    def names(self, story: WindowStory, *, ignored: bool = False) -> list[str]:
        """The slices that count for a window, or do not, as the page calls them."""
        called = {slice_id: name for name, slice_id in self.slices.items()}
        chosen = [m for m in story.members if (m.ignored is not None if ignored else m.desired)]
        return sorted(called[member.slice] for member in chosen)

    def dataset(self, start: str, revision: int) -> pa.Table:
        found = {one.revision: one for one in self.story(start).revisions}[revision]
        return pa.ipc.open_file(self.root / "warehouse" / found.file).read_all()


@pytest.fixture
def weather(tmp_path: Path) -> Weather:
    root = tmp_path / "weather"
    shutil.copytree(EXAMPLE, root, ignore=shutil.ignore_patterns("data", "warehouse", "export"))
    return Weather(root, runpy.run_path(str(root / "make.py"))["lines"])


def table() -> list[list[str]]:
    """The rows of the table that explains readiness."""
    page = PAGE.read_text(encoding="utf-8")
    lines = page[page.index("| now |") :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_the_table_of_readiness_is_what_happens(weather: Weather) -> None:
    rows = table()
    assert len(rows) == 10
    ignored: dict[str, list[str]] = {}
    for now, what, *cells in rows:
        weather.clock.set(instant(now))
        weather.does(what)
        with weather.open() as mill:
            mill.run_until_idle()
        story = weather.story("13:00")
        view = story.view
        assert [
            " ".join(weather.names(story)),
            view.status.value,
            (view.detail or "").replace(f"{DAY}T", "").replace(":00Z", ""),
            str(view.window.revision or ""),
            "" if view.window.rows is None else str(view.window.rows),
            weather.story("12:00").view.status.value,
        ] == cells, (now, what)
        ignored[now] = weather.names(story, ignored=True)
    assert ignored["21:10"] == ["D"]
    assert [ignored[now] for now in ("20:40", "21:20", "21:30")] == [[], [], []]


def test_what_the_page_says_beside_the_table(weather: Weather) -> None:
    for now, what, *_ in table():
        weather.clock.set(instant(now))
        weather.does(what)
        with weather.open() as mill:
            mill.run_until_idle()
            if now == "21:10":
                assert mill.query("SELECT count FROM weather").column("count").to_pylist() == [72]
    assert weather.dataset("13:00", 3).equals(weather.dataset("13:00", 1))
    assert weather.dataset("13:00", 2).num_rows == 36
    hour_before = weather.story("12:00")
    assert [one.revision for one in hour_before.revisions] == [1]
    assert weather.names(hour_before) == ["A"]


def test_a_slice_that_comes_at_the_very_cutoff_is_in_time(weather: Weather) -> None:
    weather.clock.set(instant("13:16"))
    weather.does("A lands, covers 12:00-13:15, 45 rows")
    weather.clock.set(instant("19:00"))
    with weather.open() as mill:
        mill.run_until_idle()
    assert weather.story("12:00").view.status is WindowStatus.BUILT
    weather.does("E lands, covers 12:50-13:00, 6 rows")
    with weather.open() as mill:
        mill.run_until_idle()
    assert weather.names(weather.story("12:00")) == ["A", "E"]
    assert weather.story("12:00").view.window.revision == 2


def test_the_generator_gives_the_same_bytes_again(weather: Weather) -> None:
    noon = to_datetime(instant("12:00"))
    airport, harbour, summit = weather.lines(noon, noon + timedelta(minutes=5)).splitlines()
    assert json.loads(airport) == {
        "station": "airport", "at": "2024-01-15T12:00:00Z", "temperature": 7.6, "wind": 8.7, "humidity": 70,
    }  # fmt: skip
    assert json.loads(harbour)["temperature"] == 9.3
    assert summit == b'{"station": "summit", "at": "2024-01-15T12:00:00Z", "temperature": -0.7, "wind": 0.4}'


def make(weather: Weather, now: str) -> None:
    done = subprocess.run(
        [sys.executable, "make.py", "--now", now],
        cwd=weather.root,
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout == "wrote 29 slices to data\n"


def statuses(weather: Weather) -> dict[str, str]:
    """By start, where each window stands and why."""
    with weather.open() as mill:
        views = mill.windows.windows("weather", newest=False)
    return {
        format_instant(view.window.key.start): f"{view.status.value} {view.detail or ''}".strip()
        for view in views
    }


def test_a_day_of_the_past_is_a_backfill(weather: Weather) -> None:
    make(weather, "2024-06-01T12:30:00Z")
    weather.clock.set(parse_instant("2024-06-01T12:30:00Z"))
    with weather.open() as mill:
        done = mill.ingest_command(sorted((weather.root / "data" / DAY).glob("*.json")))
        assert (len(done.landed), done.refused) == (25, ())
        mill.run_until_idle()
    expected = {f"{DAY}T{hour:02d}:00:00Z": "final" for hour in range(24)}
    expected[f"{DAY}T13:00:00Z"] = "waiting gap 13:15-13:30"
    expected[f"{DAY}T23:00:00Z"] = "waiting coverage missing after 23:40"
    assert statuses(weather) == expected
    assert weather.story("12:00").view.window.sealed == 13
    nothing = weather.dataset("03:00", 1)
    assert (nothing.num_rows, nothing.schema) == (0, weather.dataset("04:00", 1).schema)
    document = [json.loads(line) for line in (weather.root / "events.ndjson").read_text().splitlines()]
    rows = {event["data"]["start"]: event["data"]["rows"] for event in document}
    assert len(document) == len(rows) == 22
    assert {start for start, count in rows.items() if count != 36} == {f"{DAY}T03:00:00Z"}
    assert {event["data"]["dataset"]["description"] for event in document} == {
        "Ground weather station observations"
    }


def test_the_last_hours_come_out_one_by_one(weather: Weather) -> None:
    make(weather, "2024-06-01T12:30:00Z")
    weather.clock.set(parse_instant("2024-06-01T12:30:00Z"))
    with weather.open() as mill:
        mill.ingest_command(sorted((weather.root / "data" / "now").glob("*.json")))
    found = []
    for now in ("12:30", "15:59", "16:00", "17:00", "18:01"):
        weather.clock.set(parse_instant(f"2024-06-01T{now}:00Z"))
        with weather.open() as mill:
            mill.run_until_idle()
        found.append([state.partition(" ")[0] for state in statuses(weather).values()])
    assert found == [
        ["waiting", "waiting", "waiting"],
        ["waiting", "waiting", "waiting"],
        ["built", "waiting", "waiting"],
        ["final", "built", "waiting"],
        ["final", "final", "final"],
    ]


def test_a_dataset_is_typed_and_sorted_and_keeps_what_is_missing(weather: Weather) -> None:
    weather.clock.set(instant("20:00"))
    weather.land("A", "13:00", "14:00", 36)
    with weather.open() as mill:
        mill.run_until_idle()
    hour = weather.dataset("13:00", 1)
    assert hour.column_names == [
        "event_time", "tenant", "event_id", "station", "at", "temperature", "humidity", "wind",
    ]  # fmt: skip
    assert [str(hour.schema.field(name).type) for name in ("event_time", "temperature", "humidity")] == [
        "timestamp[us, tz=UTC]", "decimal128(18, 1)", "int64",
    ]  # fmt: skip
    first = hour.slice(0, 3).to_pylist()
    assert [row["station"] for row in first] == ["airport", "harbour", "summit"]
    assert [row["humidity"] for row in first] == [66, 66, None]
    assert [row["temperature"] for row in first] == [Decimal("8.4"), Decimal("10.1"), Decimal("0.1")]
    assert hour.column("event_time").to_pylist() == sorted(hour.column("event_time").to_pylist())
