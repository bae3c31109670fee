"""A stream as it comes: what `tail` and `late` promise, against the ordering operator and by hand."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.eventtime import Ordering, Timed, Watermark
from tidemill.mill import Mill
from tidemill.model.errors import BusyError
from tidemill.model.streaming import Fate
from tidemill.model.time import HOUR, MINUTE, SECOND, parse_instant
from tidemill.raw.tail import Feed, late_rows, late_totals, tail
from tidemill.raw.tail import rows as raw
from tidemill.raw.tail import tail as tail_function
from tidemill.raw.tail.offsets import SETTLE
from tidemill.testing import FakeClock

pytestmark = pytest.mark.long

NOON = parse_instant("2024-01-15T12:00:00Z")
CONFIG = """
version: 1
engine: {{cores: 2, memory: 512m}}
streams:
  s:
    schema: {{id: {{type: string, required: true}}, ts: integer, tenant: string}}
    event_time: {{column: ts, type: unixtimestamp_us, {time}}}
    identity: id
    tenant: {{column: tenant}}
    skew: {{future: 30d}}
{windows}
"""
WINDOWS = """
    windows:
      shut: {kind: tumbling, size: 10s}
      moved: {kind: tumbling, size: 10s, late: next_window}
      again: {kind: session, gap: 5s, key: id, late: {policy: reemit, max_lateness: 3s}}
"""


@dataclass
class Player:
    """Slices of one stream: landed, ticked, tailed."""

    root: Path
    mill: Mill
    clock: FakeClock
    names: Iterator[int] = field(default_factory=lambda: iter(range(1, 1_000_000)))
    landed: list[tuple[int, str, Sequence[int]]] = field(default_factory=list)  # arrival, source, times

    @property
    def feed(self) -> Feed:
        return Feed(self.mill.project.warehouse, self.mill.project.stream("s"), self.mill.state, self.clock)

    def land(self, *seconds: float, source: str = "a", tenant: str = "t", after: int = SECOND) -> str:
        """One row for each, so many seconds after noon."""
        self.clock.advance(after)
        times = [NOON + round(second * SECOND) for second in seconds]
        rows = [{"id": f"r{next(self.names)}", "ts": time, "tenant": tenant} for time in times]
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        self.landed.append((self.clock(), source, times))
        return self.mill.land("s", content, source=source, format="ndjson").entry.id

    def tick(self) -> None:
        self.mill.tick()

    def followed(self, **options: object) -> list[object]:
        """What a tail gives: rows as seconds after noon, watermarks as `W` and seconds."""
        given = {"ordered": True, "follow": False, "stop": threading.Event(), "wait": _never} | options
        return [one for item in tail(self.feed, **given) for one in _described(item)]


def _never() -> None:
    raise AssertionError("nothing is waited for")


def _described(item: pa.RecordBatch | Watermark) -> list[object]:
    if isinstance(item, Watermark):
        return [f"W{(item.at - NOON) / SECOND:.10g}"]
    assert item.schema.equals(raw.ROWS)
    assert 0 < item.num_rows <= raw.BATCH_ROWS
    return [(time - NOON) / SECOND for time in item.column("event_time").cast(pa.int64()).to_pylist()]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., Player]]:
    opened: list[Mill] = []

    def make(time: str = "late_tolerance: 1s", windows: str = "") -> Player:
        root = tmp_path / str(len(opened))
        root.mkdir()
        (root / "tidemill.yaml").write_text(CONFIG.format(time=time, windows=windows))
        clock = FakeClock(NOON)
        opened.append(Mill.open(root, clock=clock))
        return Player(root, opened[-1], clock)

    yield make
    for mill in opened:
        mill.close()


# -- in order of event time


def test_v1_v2_rows_come_in_order_once_the_watermark_has_reached_them(play) -> None:
    player = play()
    player.land(3, 1, 2)
    player.tick()
    assert player.followed(flush=False) == [1, 2, "W2"]
    player.land(4)
    player.tick()
    assert player.followed(flush=False) == [1, 2, "W2", 3, "W3"]


def test_v3_at_tolerance_0_an_equal_time_is_late(play) -> None:
    player = play("late_tolerance: 0s")
    player.land(2)
    player.land(2, 1)
    player.tick()
    assert player.followed() == [2, "W2"]
    assert late_totals(player.feed).rows == 2


def test_what_is_buffered_comes_at_the_end_with_no_watermark_behind_it(play) -> None:
    """V8: no artificial maximum."""
    player = play("late_tolerance: 7s")
    player.land(7, 1, 4)
    player.tick()
    assert player.followed() == ["W0", 1, 4, 7]


def test_nothing_landed_is_nothing_told(play) -> None:
    assert play().followed() == []


def test_ties_come_in_order_of_arrival(play) -> None:
    player = play("late_tolerance: 10s")
    player.land(1, 1, tenant="z")
    player.land(1, tenant="a")
    player.land(30)
    player.tick()
    stop = threading.Event()
    found = [
        row["event_id"]
        for item in tail(player.feed, ordered=True, follow=False, stop=stop, wait=_never)
        if isinstance(item, pa.RecordBatch)
        for row in item.to_pylist()
    ]
    assert found == ["r1", "r2", "r3", "r4"]


def test_since_limit_and_tenant(play) -> None:
    player = play("late_tolerance: 0s")
    player.land(1, 2, 3, tenant="x")
    player.land(4, 5, tenant="y")
    player.land(9, tenant="x")
    player.tick()
    assert player.followed() == [1, 2, 3, "W3", 4, 5, "W5", 9, "W9"]
    assert player.followed(since=NOON + 4 * SECOND) == [4, 5, "W5", 9, "W9"]
    assert player.followed(limit=4) == [1, 2, 3, "W3", 4]
    assert player.followed(limit=3) == [1, 2, 3]
    assert player.followed(tenant="y") == ["W3", 4, 5, "W5", "W9"]


def test_days_follow_each_other(play) -> None:
    player = play("late_tolerance: 7d")
    player.land(*(day * 86_400 for day in (2, 0, 1)))
    player.land(8 * 86_400)
    player.tick()
    days = [one / 86_400 for one in player.followed() if not isinstance(one, str)]
    assert days == [0, 1, 2, 8]


def test_it_follows_what_is_accepted_and_flushes_when_it_is_stopped(play) -> None:
    player, stop = play(), threading.Event()
    player.land(1)
    player.tick()
    steps = iter([(3, 2), (2.5, 6), (0.5, 5.5, 5.8), None])
    waits = []

    def wait() -> None:
        waits.append(1)
        seconds = next(steps)
        if seconds is None:
            stop.set()
        else:
            player.land(*seconds)
            player.tick()

    followed = player.followed(follow=True, stop=stop, wait=wait)
    assert followed == ["W0", 1, 2, "W2", 2.5, 3, "W5", 5.5, 5.8, 6]
    assert len(waits) == 4


def test_a_limit_ends_a_tail_that_follows(play) -> None:
    player = play()
    player.land(1, 2, 3)
    player.tick()
    assert player.followed(follow=True, limit=2) == [1, 2]


def test_slices_that_wait_are_not_told_and_hold_the_watermark(play) -> None:
    """An idle source leaves by the arrival of what waits, not by now: what waits may be on time."""
    player = play("late_tolerance: 0s, idle_timeout: 1m")
    player.land(10, source="a")
    player.land(5, 20, source="b")
    player.tick()
    assert player.followed() == [10, "W10", 20]
    player.land(15, source="a", after=30 * SECOND)
    player.clock.advance(HOUR)
    assert player.followed() == [10, "W10", 20]
    player.tick()
    assert player.followed() == [10, "W10", 15, "W15", 20]


def test_an_idle_source_leaves_and_the_rest_is_released(play) -> None:
    player = play("late_tolerance: 0s, idle_timeout: 1m")
    player.land(1, source="a")
    player.land(9, source="b", after=MINUTE // 2)
    player.tick()
    assert player.followed(flush=False) == [1, "W1"]
    player.clock.advance(MINUTE - MINUTE // 2)
    assert player.followed(flush=False) == [1, "W1", 9, "W9"]


def test_live_a_watermark_waits_until_no_landing_can_gainsay_it(play) -> None:
    player, stop = play("late_tolerance: 0s, idle_timeout: 1m"), threading.Event()
    player.land(1, source="a")
    player.land(9, source="b", after=MINUTE // 2)
    player.tick()
    note = player.mill.project.warehouse / "slices" / ".inflight" / "0.note"
    seen: list[object] = []

    def step(number: int) -> None:
        match number:
            case 1:
                player.clock.advance(MINUTE // 2)
            case 2:
                assert seen == [1, "W1"], "a is idle, but only just"
                note.write_bytes(b"")
                player.clock.advance(SETTLE)
            case 3:
                assert seen == [1, "W1"], "something is being landed"
                note.unlink()
            case 4:
                assert seen == [1, "W1", 9, "W9"]
                stop.set()

    numbers = iter(range(1, 5))
    items = tail(player.feed, ordered=True, follow=True, stop=stop, wait=lambda: step(next(numbers)))
    for item in items:
        seen.extend(_described(item))
    assert seen == [1, "W1", 9, "W9"]


def test_by_arrival_time_nothing_is_late_and_the_watermark_is_now(play) -> None:
    player = play("enabled: false")
    player.land(-500, 3)
    player.land(1)
    player.tick()
    player.clock.advance(5 * SECOND)
    assert player.followed() == [1, 1, 2, "W6.999999"]


def test_after_a_retraction_it_goes_on_from_its_last_watermark(play) -> None:
    player, stop = play("late_tolerance: 0s"), threading.Event()
    player.land(1)
    gone = player.land(5)
    player.land(7)
    player.tick()
    seen: list[object] = []

    def step(number: int) -> None:
        match number:
            case 1:
                assert seen == [1, "W1", 5, "W5", 7, "W7"]
                player.mill.retract(player.mill.plan_retraction(gone, "a test"))
            case 2:
                assert seen[6:] == [], "what was sent back waits"
                player.tick()
            case 3:
                player.land(6, 8)
                player.tick()
            case 4:
                stop.set()

    numbers = iter(range(1, 5))
    items = tail(player.feed, ordered=True, follow=True, stop=stop, wait=lambda: step(next(numbers)))
    for item in items:
        seen.extend(_described(item))
    assert seen[6:] == [8, "W8"]
    assert player.followed() == [1, "W1", 7, "W7", 8, "W8"]


def test_while_slices_are_to_be_judged_again_nobody_can_know(play) -> None:
    player = play()
    gone = player.land(1)
    player.land(2)
    player.tick()
    player.mill.retract(player.mill.plan_retraction(gone, "a test"))
    if player.mill.state.pending("s", 1):
        with pytest.raises(BusyError, match="decided again"):
            player.followed()


SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_what_the_ordering_operator_says_however_ticks_were_cut(play, seed: int) -> None:
    """The contract, on random feeds of several sources: order, watermarks, ties, nothing on time lost."""
    chance = random.Random(seed)
    tolerance = chance.choice([0, 1, 5])
    idle = chance.choice(["", ", idle_timeout: 20s"])
    bound = chance.choice(["", ", max_buffer_bytes: 400"])
    time = f"late_tolerance: {tolerance}s{idle}{bound}"
    player, other = play(time), play(time)
    oracle: Ordering[int] = Ordering(
        tolerance * SECOND, 20 * SECOND if idle else None, 400 if bound else None
    )
    expected: list[object] = []
    late, number = 0, 0
    newest = 0.0
    for _ in range(25):
        newest += chance.choice([0, 1, 2, 10])
        seconds = [round(newest - chance.choice([0, 0, 1, 3, 8]), 1) for _ in range(chance.randint(1, 6))]
        source, after = chance.choice("aab"), chance.choice([1, 2, 15]) * SECOND
        player.land(*seconds, source=source, after=after)
        other.land(*seconds, source=source, after=after)
        if chance.random() < 0.4:
            player.tick()
        arrival, _, times = player.landed[-1]
        rows = []
        for at in times:
            number += 1
            size = len(json.dumps({"id": f"r{number}", "ts": at, "tenant": "t"}))
            rows.append(Timed(at, number, size))
        out, behind = oracle.push(rows, source=source, arrival=arrival)
        late += len(behind)
        expected.extend(_expected(out))
    player.tick()
    other.tick()
    expected.extend(_expected(oracle.tick(player.clock())))
    expected.extend(_expected(oracle.stop()))
    followed, again = player.followed(), other.followed()
    assert followed == again
    assert [one for one in followed if not isinstance(one, str)] == [
        one for one in expected if not isinstance(one, str)
    ]
    marks = [one for one in followed if isinstance(one, str)]
    assert set(marks) <= {one for one in expected if isinstance(one, str)}
    if not idle and not bound:
        assert followed == expected
    _holds(followed)
    assert late_totals(player.feed).rows == late == late_rows(player.feed).num_rows
    everything = player.followed(ordered=False)
    assert [one for one in everything if not isinstance(one, str)] == [
        (at - NOON) / SECOND for _, _, times in player.landed for at in times
    ]


def _expected(items: Sequence[Timed[int] | Watermark]) -> list[object]:
    return [
        f"W{(one.at - NOON) / SECOND:.10g}" if isinstance(one, Watermark) else (one.time - NOON) / SECOND
        for one in items
    ]


def _holds(followed: Sequence[object]) -> None:
    newest, watermark = float("-inf"), float("-inf")
    for one in followed:
        if isinstance(one, str):
            assert float(one[1:]) > watermark, "watermarks never go back"
            watermark = float(one[1:])
        else:
            assert isinstance(one, float | int)
            assert one >= newest, "non-decreasing"
            assert one > watermark, "nothing at or before a watermark follows it"
            newest = one


def test_many_rows_come_in_small_batches_and_sorting_may_spill(play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "MEMORY", "64MB")
    player = play("late_tolerance: 1h")
    chance = random.Random(7)
    for _ in range(3):
        player.land(*(chance.randrange(0, 3600) for _ in range(20_000)))
    player.land(8000)
    player.tick()
    followed = [one for one in player.followed() if not isinstance(one, str)]
    assert len(followed) == 60_001
    assert followed == sorted(followed)


# -- in order of arrival


def test_by_arrival_late_rows_come_too_and_watermarks_when_they_moved(play) -> None:
    player, stop = play("late_tolerance: 0s"), threading.Event()
    player.land(3, 1)
    player.land(2)
    player.tick()
    steps = iter([(9, 2.5), None])

    def wait() -> None:
        seconds = next(steps)
        if seconds is None:
            stop.set()
        else:
            player.land(*seconds)
            player.tick()

    assert player.followed(ordered=False) == [3, 1, "W3", 2]
    followed = player.followed(ordered=False, follow=True, stop=stop, wait=wait)
    assert followed == [3, 1, "W3", 2, 9, 2.5, "W9"]


def test_by_arrival_since_is_when_they_arrived(play) -> None:
    player = play("late_tolerance: 0s")
    player.land(3)
    player.land(1)
    player.tick()
    assert player.followed(ordered=False, since=player.clock()) == ["W3", 1]
    assert player.followed(ordered=False, limit=1) == [3]


def test_groups_of_slices_give_the_same_as_all_at_once(play, monkeypatch: pytest.MonkeyPatch) -> None:
    player = play("late_tolerance: 0s")
    for second in range(6):
        player.land(second, second - 2)
    player.tick()
    whole = player.followed(ordered=False)
    import sys

    monkeypatch.setattr(sys.modules[tail_function.__module__], "SORTED_ROWS", 3)
    assert player.followed(ordered=False) == whole


# -- late rows


def test_late_rows_say_how_late_and_what_each_window_did(play) -> None:
    player = play("late_tolerance: 0s", WINDOWS)
    player.land(25)
    slice_id = player.land(24, 11, 30)
    player.tick()
    rows = late_rows(player.feed).to_pylist()
    assert [(row["event_id"], row["lateness"] // SECOND, row["line"]) for row in rows] == [
        ("r2", 1, 1),
        ("r3", 14, 2),
    ]
    assert {row["slice"] for row in rows} == {slice_id}
    fates = [{one["window"]: (one["fate"], one["start"]) for one in row["done"]} for row in rows]
    start = parse_instant("2024-01-15T12:00:20Z")
    moved = ("next_window", fates[0]["moved"][1])
    assert fates[0] == {"shut": ("discarded", None), "moved": moved, "again": ("reemitted", None)}
    assert fates[1] == {"shut": ("discarded", None), "moved": moved, "again": ("too_late", None)}
    assert round(moved[1].timestamp() * 1_000_000) == start
    assert late_totals(player.feed).windows == {
        "shut": {Fate.DISCARDED: 2},
        "moved": {Fate.NEXT_WINDOW: 2},
        "again": {Fate.REEMITTED: 1, Fate.TOO_LATE: 1},
    }


def test_late_rows_are_those_of_the_newest_slice_first(play) -> None:
    player = play("late_tolerance: 0s")
    player.land(50)
    player.land(1, 2, tenant="x")
    arrived = player.clock() + 1
    player.land(3, 60, 4, tenant="y")
    player.tick()

    def ids(**options: object) -> list[str]:
        return late_rows(player.feed, **options).column("event_id").to_pylist()

    assert ids() == ["r4", "r6", "r2", "r3"]
    assert ids(limit=3) == ["r4", "r6", "r2"]
    assert ids(since=arrived) == ["r4", "r6"]
    assert ids(tenant="x", limit=1) == ["r2"]
    assert late_totals(player.feed, tenant="x").rows == 2
    assert late_totals(player.feed, since=arrived).rows == 2
    assert late_rows(player.feed).column("done").to_pylist() == [[]] * 4


def test_no_rows_are_no_late_rows(play) -> None:
    player = play(windows=WINDOWS)
    assert late_rows(player.feed).num_rows == 0
    assert late_totals(player.feed).rows == 0
    player.land(1)
    player.tick()
    assert late_rows(player.feed).num_rows == 0


def test_the_mill_itself_can_be_followed(tmp_path: Path) -> None:
    """V1, V2: rows in order of event time, and a watermark after them."""
    (tmp_path / "tidemill.yaml").write_text(
        "version: 1\n"
        "streams:\n"
        "  rows:\n"
        "    schema: {id: string, ts: integer}\n"
        "    event_time: {column: ts, type: unixtimestamp_s, late_tolerance: 1s}\n"
        "    identity: id\n"
    )
    with Mill.open(tmp_path, clock=FakeClock(10 * SECOND)) as mill:
        for times in ((3, 1, 2), (4,)):
            mill.land("rows", "\n".join(f'{{"id": "{t}", "ts": {t}}}' for t in times).encode())
            mill.tick()
        found = list(mill.tail("rows"))
    followed = [
        item.at // SECOND if isinstance(item, Watermark) else [int(t) for t in item["event_id"].to_pylist()]
        for item in found
    ]
    assert followed == [[1, 2], 2, [3], 3, [4]]


def test_metrics_count_late_rows_by_what_each_window_did_with_them(play) -> None:
    player = play("late_tolerance: 0s", windows=WINDOWS)
    player.land(100)
    player.land(99, 95, 40, 2)
    player.tick()
    followed = player.mill.meter.text()
    totals = late_totals(player.feed)
    assert totals.rows == 4
    for window, fates in totals.windows.items():
        dropped = sum(count for fate, count in fates.items() if not fate.used)
        found = {"dropped": dropped, "next_window": fates.get(Fate.NEXT_WINDOW, 0)}
        found["reemitted"] = fates.get(Fate.REEMITTED, 0)
        assert sum(found.values()) == 4
        for fate, count in found.items():
            labels = f'fate="{fate}",stream="s",window="{window}"'
            assert f"tidemill_late_rows_total{{{labels}}} {count}.0" in followed
    assert 'tidemill_late_dropped_total{stream="s"} 4.0' in followed
    assert player.mill.status()[0].late_dropped == 4
