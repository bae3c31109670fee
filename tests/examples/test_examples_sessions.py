"""The sessions example by its values: what each kind of window makes of clicks that come out of order and
late, at whatever pace they come."""

from __future__ import annotations

import itertools
import json
import runpy
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import pytest

from tidemill.mill import Mill
from tidemill.model.time import parse_instant
from tidemill.testing import FakeClock

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples" / "sessions"
FIRST = ("web-1", "app-1", "web-2", "app-2")
THEN = ("web-3", "app-3")
ALL = (*FIRST, *THEN, "app-offline")

Clicks = Callable[[str], Iterable[dict[str, object]]]


@dataclass
class Shop:
    """The example on a clock that is set by hand; every act opens it anew, as another process would."""

    root: Path
    clicks: Clicks
    clock: FakeClock = field(default_factory=lambda: FakeClock(parse_instant("2024-01-15T10:10:00Z")))

    def open(self) -> Mill:
        return Mill.open(self.root, clock=self.clock)

    def land(self, *names: str, tick: bool = True) -> None:
        with self.open() as mill:
            for name in names:
                self.clock.advance("1s")
                lines = "".join(json.dumps(click) + "\n" for click in self.clicks(name))
                mill.land("clicks", lines.encode(), name=f"{name}.ndjson", source=name.partition("-")[0])
            if tick:
                mill.run_until_idle()

    def results(self, window: str, *columns: str, revisions: bool = False) -> list[tuple[object, ...]]:
        """From when to when, and these columns."""
        with self.open() as mill:
            found = mill.results("clicks", window, revisions=revisions).to_pylist()
        return [
            (f"{row['start']:%M:%S}", f"{row['end']:%M:%S}", *(row[column] for column in columns))
            for row in found
        ]

    def standing(self) -> dict[str, list[dict[str, object]]]:
        """All that stands, without how it came about."""
        story = ("revision", "trigger", "watermark", "batch", "supersedes", "superseded_by")
        with self.open() as mill:
            found = {
                one.name: mill.results("clicks", one.name)
                for one in mill.project.stream("clicks").window_specs
            }
        return {name: table.drop_columns(list(story)).to_pylist() for name, table in found.items()}


@pytest.fixture
def new_shop(tmp_path: Path) -> Callable[[], Shop]:
    numbers = itertools.count()

    def make() -> Shop:
        root = tmp_path / f"shop {next(numbers)}"
        shutil.copytree(EXAMPLE, root, ignore=shutil.ignore_patterns("data", "warehouse", "events.ndjson"))
        return Shop(root, runpy.run_path(str(root / "make.py"))["clicks"])

    return make


@pytest.fixture
def shop(new_shop: Callable[[], Shop]) -> Shop:
    return new_shop()


def test_minutes_come_out_as_the_watermark_passes_and_again_when_late_rows_come(shop: Shop) -> None:
    shop.land(*FIRST)
    assert shop.results("per_minute", "page", "clicks", "p90", "revision") == [
        ("00:00", "01:00", "home", 4, 450, 1),
        ("00:00", "01:00", "shoes", 3, 310, 1),
        ("01:00", "02:00", "hats", 4, 410, 1),
        ("01:00", "02:00", "home", 1, 430, 1),
        ("01:00", "02:00", "shoes", 2, 240, 1),
    ]
    shop.land(*THEN)
    shop.land("app-offline")
    assert shop.results("per_minute", "page", "clicks", "late_rows", "revision")[2:6] == [
        ("01:00", "02:00", "hats", 5, 1, 2),
        ("01:00", "02:00", "home", 1, 0, 1),
        ("01:00", "02:00", "shoes", 3, 1, 2),
        ("01:00", "02:00", "socks", 1, 1, 1),
    ]


def test_what_comes_late_counts_in_the_moving_window_that_is_open(shop: Shop) -> None:
    shop.land(*FIRST, *THEN)
    assert shop.results("moving", "rows", "late_rows", "mean") == [
        ("59:00", "01:00", 7, 0, pytest.approx(1525 / 7, rel=1e-15)),
        ("00:00", "02:00", 14, 0, pytest.approx(3200 / 14, rel=1e-15)),
        ("01:00", "03:00", 13, 1, pytest.approx(3060 / 13, rel=1e-15)),
        ("02:00", "04:00", 8, 1, 213.75),
    ]
    shop.land("app-offline")  # both count at 10:04:00, where nothing is out yet
    assert [row[2] for row in shop.results("moving", "rows")] == [7, 14, 13, 8]


def test_a_late_click_joins_two_visits(shop: Shop) -> None:
    shop.land(*FIRST, *THEN)
    of_ann = [row for row in shop.results("visits", "user", "clicks", "entry", "exit") if row[2] == "ann"]
    assert of_ann == [
        ("00:05", "01:28", "ann", 4, "home", "shoes"),
        ("02:04", "03:00", "ann", 2, "socks", "socks"),
    ]
    shop.land("app-offline")
    reported = shop.results(
        "visits", "user", "revision", "withdrawn", "clicks", "window_id", "supersedes", "superseded_by",
        revisions=True,
    )  # fmt: skip
    first, joined, second, gone = [row[3:] for row in reported if row[2] == "ann"]
    assert [first[:3], joined[:3], second[:3], gone[:3]] == [
        (1, False, 4), (2, False, 8), (1, False, 2), (2, True, None),
    ]  # fmt: skip
    assert joined[3] == first[3]
    assert joined[4] == [second[3]]
    assert gone[5] == first[3]


def test_five_clicks_at_a_time_and_checkouts_leave_late_clicks_out(shop: Shop) -> None:
    shop.land(*ALL)
    assert shop.results("fives", "rows", "slowest", "late_rows") == [
        ("00:05", "00:42", 5, 450, 0),
        ("00:45", "01:15", 5, 380, 0),
        ("01:24", "02:04", 5, 430, 0),
        ("02:12", "03:05", 5, 520, 0),
    ]
    assert shop.results("checkouts", "user", "clicks", "spent", "ended") == [
        ("00:40", "00:58", "ann", 2, Decimal("59.90"), "paid"),
        ("01:05", "01:30", "cem", 2, Decimal("25.00"), "left"),
        ("01:55", "02:12", "bob", 2, Decimal("25.00"), "paid"),
        ("02:20", "02:45", "dia", 2, Decimal("59.90"), "paid"),
    ]


def batches() -> Iterator[list[tuple[str, ...]]]:
    yield [ALL]
    yield [(name,) for name in ALL]
    yield [FIRST, THEN, ("app-offline",)]


def test_what_stands_does_not_depend_on_how_often_one_looked(new_shop: Callable[[], Shop]) -> None:
    found = []
    for cut in batches():
        shop = new_shop()
        for names in cut:
            shop.land(*names)
        found.append(shop.standing())
    assert found[1] == found[0]
    assert found[2] == found[0]
    assert {name: len(rows) for name, rows in found[0].items()} == {
        "per_minute": 11, "moving": 4, "visits": 8, "fives": 4, "checkouts": 4,
    }  # fmt: skip


def test_a_stop_and_a_start_change_nothing_but_revisions(new_shop: Callable[[], Shop]) -> None:
    stopped, undisturbed = new_shop(), new_shop()
    watermark = "2024-01-15 10:04:00"
    for names in (FIRST, THEN, ("app-offline",)):
        undisturbed.land(*names)
        with stopped.open() as mill:
            mill.flush()
        stopped.land(*names)
    for window, rows in undisturbed.standing().items():
        found = stopped.standing()[window]
        assert [row for row in found if row in rows] == rows
        assert all(row in rows or str(row["last_time"]) > watermark for row in found)  # those are still open
    triggers = {row[2] for row in stopped.results("visits", "trigger", revisions=True)}
    assert triggers == {"watermark", "late", "stop"}
    with stopped.open() as mill:
        assert mill.verify().findings == []


def test_the_event_of_each_commit_says_what_came_out(shop: Shop) -> None:
    shop.land(*FIRST)
    document = [json.loads(line) for line in (shop.root / "events.ndjson").read_text().splitlines()]
    assert {event["type"] for event in document} == {"tidemill.window.available"}
    assert [
        (
            event["data"]["window"],
            event["data"]["start"][11:19],
            event["data"]["windows"],
            event["data"]["results"],
        )
        for event in document
    ] == [
        ("per_minute", "10:00:00", 1, 2),
        ("per_minute", "10:01:00", 1, 3),
        ("moving", "09:59:00", 1, 1),
        ("moving", "10:00:00", 1, 1),
        ("visits", "10:00:05", 5, 5),
        ("fives", "10:00:05", 2, 2),
        ("checkouts", "10:00:40", 2, 2),
    ]
