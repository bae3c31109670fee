"""The tables that explain watermarks and late policies, replayed through the mill, cell by cell."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pytest
import yaml

from tidemill.config.stream import EventTime
from tidemill.config.windowing import KindName, parse_aggregate
from tidemill.eventtime import Watermark, registered
from tidemill.mill import Mill
from tidemill.model.streaming import Function, Trigger
from tidemill.model.time import format_instant, parse_instant
from tidemill.outputs.windows.results import results_schema
from tidemill.testing import FakeClock

DOCS = Path(__file__).parents[2] / "docs"
DAY = "2024-01-15"


def section(page: str, heading: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found.group(1)


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a text, each without its head."""
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[[c.strip() for c in line.split("|")[1:-1]] for line in one.splitlines()[2:]] for one in found]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def instant(time: str) -> int:
    return parse_instant(f"{DAY}T{time}Z")


def clock_time(at: int | None) -> str:
    return "" if at is None else format_instant(at).removeprefix(f"{DAY}T").removesuffix("Z")


@dataclass
class Rows:
    """A stream `rows` on a clock that is set by hand; every act opens it anew, as another process would."""

    root: Path
    clock: FakeClock = field(default_factory=lambda: FakeClock(instant("10:00:00")))
    landed: int = 0

    def declare(self, time: Mapping[str, object], windows: Mapping[str, object]) -> None:
        stream = {
            "schema": {"id": "string", "at": "string"},
            "identity": "id",
            "event_time": {"column": "at", "type": "iso8601", **time},
            "windows": windows,
        }
        text = yaml.safe_dump({"version": 1, "streams": {"rows": stream}})
        (self.root / "tidemill.yaml").write_text(text)

    def open(self) -> Mill:
        return Mill.open(self.root, clock=self.clock)

    def feed(self, times: Sequence[str], source: str = "a") -> str:
        """One slice, accepted; its id."""
        self.landed += 1
        rows = [
            {"id": f"{self.landed}-{number} {time}", "at": f"{DAY}T{time}Z"}
            for number, time in enumerate(times)
        ]
        with self.open() as mill:
            landed = mill.land("rows", "\n".join(map(json.dumps, rows)).encode(), source=source)
            mill.tick()
        return landed.entry.id


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path)


def buffered(mill: Mill) -> int:
    """Rows on time that no watermark has reached: what ordered output ends with."""
    waiting = 0
    for item in mill.tail("rows", ordered=True):
        waiting = 0 if isinstance(item, Watermark) else waiting + item.num_rows
    return waiting


def cells_of(rows: Rows, source: str, times: Sequence[str]) -> list[str]:
    """What the watermark table says, from `meets` on, of a slice that comes now; without times none does."""
    met, late = "", list[str]()
    slice_id = rows.feed(times, source) if times else None
    with rows.open() as mill:
        mill.tick()
        (status,) = mill.status()
        if slice_id is not None:
            entry = mill.slice(slice_id)
            met = clock_time(entry.watermark)
            late = [
                time for time in times if entry.watermark is not None and instant(time) <= entry.watermark
            ]
            assert entry.counts.late == len(late)
        own = {known.source: known.watermark for known in status.clocks}
        return [
            met,
            " ".join(late),
            *(clock_time(own.get(name)) for name in ("a", "b")),
            clock_time(status.watermark),
            str(buffered(mill)),
        ]


@pytest.mark.parametrize(
    ("number", "time"),
    [(0, {"late_tolerance": "2s", "idle_timeout": "1m"}), (1, {"late_tolerance": "0s"})],
    ids=["two sources", "V3: tolerance 0"],
)
def test_the_watermark_tables_are_what_happens(rows: Rows, number: int, time: Mapping[str, object]) -> None:
    shown = tables(section("event-time.md", "Watermark"))
    assert [len(one) for one in shown] == [7, 2]
    rows.declare(time, {})
    for arrival, source, times, *cells in shown[number]:
        rows.clock.set(instant(arrival))
        assert cells_of(rows, source, times.split()) == cells, arrival


def test_the_keys_of_event_time_are_told() -> None:
    reported = [key for row in tables((DOCS / "event-time.md").read_text())[0] for key in code(row[0])]
    assert sorted([*reported, "mode"]) == sorted(EventTime.model_fields)


def test_the_metrics_of_event_time_are_those_that_are_served(rows: Rows) -> None:
    rows.declare({}, {})
    with rows.open() as mill:
        served = set(re.findall(r"^# TYPE (\w+) ", mill.meter.text(), re.MULTILINE))
    reported = [name for name in code(section("event-time.md", "Monitoring")) if "tidemill_" in name]
    assert len(reported) == 11
    assert set(reported) <= served


# -- streaming windows


@pytest.mark.parametrize(("number", "by"), [(0, "row"), (1, "window")])
def test_the_tables_of_late_policies_are_what_happens(rows: Rows, number: int, by: str) -> None:
    late: dict[str, dict[str, str]] = {
        name: {"policy": name, "by": by} for name in ("discard", "next_window")
    }
    late["reemit"] = {"policy": "reemit", "by": by, "max_lateness": "1m"}
    minutes = {"kind": "tumbling", "size": "1m", "group_by": "id"}
    rows.declare({}, {name: minutes | {"late": policy} for name, policy in late.items()})
    shown = tables(section("streaming-windows.md", "Late rows"))[number]
    assert len(shown) == 5
    rows.feed(["10:02:30"])  # the watermark that they meet
    rows.feed([row[0] for row in shown])
    with rows.open() as mill:
        mill.flush()
        found = {name: mill.results("rows", name).to_pylist() for name in late}
    for line, (time, *cells) in enumerate(shown):
        counted = []
        for name in late:
            starts = [f"{row['start']:%H:%M}" for row in found[name] if row["id"] == f"2-{line} {time}"]
            counted.append(" ".join(starts) or "none")
        assert counted == cells, time


def test_kinds_aggregates_columns_and_triggers_are_those_of_the_code(rows: Rows) -> None:
    kinds = tables(section("streaming-windows.md", "Kinds"))[0]
    assert {name for row in kinds for name in code(row[0])} == {*get_args(KindName), "step: row"}
    reported = [
        one for row in tables(section("streaming-windows.md", "Aggregates"))[0] for one in code(row[0])
    ]
    assert {parse_aggregate(one.replace("(c)", "(a)")).function for one in reported} == set(Function)
    rows.declare({}, {"w": {"kind": "session", "gap": "1m", "key": "id", "aggregates": {"n": "count"}}})
    with rows.open() as mill:
        stream = mill.project.stream("rows")
    columns = tables(section("streaming-windows.md", "Revisions"))[0]
    names = [name for row in columns for name in code(row[0])]
    there = results_schema(stream.window_specs[0], stream).names
    assert sorted([*names, "id", "n"]) == sorted(there)
    triggers = next(code(row[1]) for row in columns if row[0] == "`trigger`")
    assert sorted(triggers) == sorted(trigger.value for trigger in Trigger)


def test_event_time_types_are_those_of_the_registry() -> None:
    (table,) = tables(section("event-time.md", "Types"))
    assert sorted(row[0].strip("`") for row in table) == list(registered())
