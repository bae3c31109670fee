"""A lost state, lost tiles and late events, where levels of the rollups or raw have expired: tiles are made
again from what is left, and answers are what a loop over the accepted events gives. Values are by hand."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tidemill.mill import Mill, recover
from tidemill.model.failpoints import observed
from tidemill.model.time import DAY, HOUR, MINUTE, Interval, format_instant, parse_instant
from tidemill.pipeline.recover import Recovered
from tidemill.testing import FakeClock

FIRST = parse_instant("2024-01-08T00:00:00Z")
NOON = FIRST + 5 * DAY + 12 * HOUR
CONFIG = """
version: 1
engine: {cores: 1, memory: 512m}
streams:
  calls:
    schema:
      id: {type: string, required: true}
      at: {type: integer, required: true}
      line: string
      status: string
    event_time: {column: at, type: unixtimestamp_us, late_tolerance: 10s}
    identity: id
    pack: {enabled: false}
    metrics:
      calls: {kind: counter}
      lines: {kind: state, object: line, state: status}
    retention: RETENTION
"""


@dataclass
class CallLog:
    """A project with one stream."""

    root: Path
    clock: FakeClock = field(default_factory=lambda: FakeClock(NOON))

    @classmethod
    def made(cls, root: Path, retention: str) -> CallLog:
        root.mkdir()
        (root / "tidemill.yaml").write_text(CONFIG.replace("RETENTION", retention))
        return cls(root)

    def open(self) -> Mill:
        return Mill.open(self.root, clock=self.clock)

    def recover(self) -> Recovered:
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (self.root / "warehouse" / name).unlink(missing_ok=True)
        return recover(self.root, clock=self.clock)

    def remove(self, mill: Mill, *levels: str) -> None:
        """All parts of these levels."""
        found = mill.snapshot("rollups", "calls")
        assert found is not None
        for part in found.parts:
            if part.partition["level"] in levels:
                (self.root / "warehouse/rollups/calls" / part.path).unlink()


def land(mill: Mill, *events: tuple[str, int, str]) -> str:
    """Events of line 1: id, time, status."""
    lines = [json.dumps({"id": id_, "at": at, "line": "1", "status": status}) for id_, at, status in events]
    return mill.land("calls", "\n".join(lines).encode() + b"\n").entry.id


def count(mill: Mill, span: Interval, what: str = "count FROM calls.calls") -> int | None:
    """Of a span that nothing is missing for."""
    between = f"BETWEEN {format_instant(span.start)} AND {format_instant(span.end)}"
    answer = mill.ask(f"SELECT {what} {between} INTERVAL {(span.end - span.start) // MINUTE}m FILL zero")
    assert answer.completeness.missing == ()
    (row,) = answer.table.to_pylist()
    return row["count"] if "count" in row else row["transitions"]


DAY_ONE = Interval(FIRST, FIRST + DAY)
DAY_FIVE = Interval(FIRST + 4 * DAY, FIRST + 5 * DAY)
TRANSITIONS = "transitions FROM calls.lines"


def test_an_expired_tile_of_a_retracted_slice_is_not_missed_by_a_new_state(tmp_path: Path) -> None:
    calls = CallLog.made(tmp_path / "calls", "{rollups: {5s: 1d}}")
    with calls.open() as mill:
        land(mill, ("a", FIRST + HOUR, "A"))
        wrong = land(mill, ("b", FIRST + HOUR + 20 * MINUTE, "B"))
        mill.run_until_idle()
        mill.retention.expire(mill.retention.plan())
        mill.retract(mill.plan_retraction(wrong, "wrong"))
        mill.run_until_idle()
    calls.recover()
    with calls.open() as mill:
        mill.run_until_idle()
        assert mill.verify().findings == []
        assert count(mill, DAY_ONE) == 1


@pytest.mark.parametrize("retention", ["{}", "{rollups: {5s: 1d}}", "{rollups: {1m: 1d}}"])
def test_what_was_retracted_just_before_state_and_tiles_were_lost_does_not_count(
    tmp_path: Path, retention: str
) -> None:
    calls = CallLog.made(tmp_path / "calls", retention)
    with calls.open() as mill:
        wrong = land(mill, ("a", FIRST + HOUR, "A"))
        land(mill, ("b", FIRST + 5 * DAY, "B"))
        mill.run_until_idle()
        mill.retract(mill.plan_retraction(wrong, "wrong"))
        calls.remove(mill, "5s")
    assert calls.recover().left == []
    with calls.open() as mill:
        mill.run_until_idle()
        assert count(mill, DAY_ONE) == 0
        assert mill.verify().findings == []


@pytest.mark.parametrize("retention", ["{rollups: {5s: 1d}}", "{rollups: {1h: 2d}}"])
@pytest.mark.parametrize("how", ["repair", "recover"])
@pytest.mark.parametrize("levels", [("1m",), ("1d",), ("1h", "1d", "7d")])
def test_tiles_whose_lower_levels_have_expired_are_made_again_from_raw(
    tmp_path: Path, retention: str, how: str, levels: tuple[str, ...]
) -> None:
    calls = CallLog.made(tmp_path / "calls", retention)
    with calls.open() as mill:
        land(mill, ("a", FIRST + HOUR, "A"), ("b", FIRST + DAY, "B"), ("c", FIRST + 4 * DAY + HOUR, "B"))
        mill.run_until_idle()
        mill.retention.expire(mill.retention.plan())
        calls.remove(mill, *levels)
        if how == "repair":
            done = mill.repair()
            assert (done.left, done.lost) == ([], [])
    if how == "recover":
        assert calls.recover().left == []
    with calls.open() as mill:
        mill.run_until_idle()
        assert [one.faults for one in mill.status()] == [[]]
        assert mill.verify().findings == []
        assert [count(mill, day) for day in (DAY_ONE, DAY_FIVE)] == [1, 1]
        assert [count(mill, day, TRANSITIONS) for day in (DAY_ONE, DAY_FIVE)] == [1, 0]


def test_lost_tiles_of_expired_raw_do_not_hold_up_those_that_raw_has(tmp_path: Path) -> None:
    """The 1d tile is of both: it cannot be made again, but the levels below it can, from the seal on."""
    calls = CallLog.made(tmp_path / "calls", "{raw: 3d, rollups: {5s: 1d}}")
    with calls.open() as mill:
        land(mill, ("a", FIRST + HOUR, "A"), ("b", FIRST + 4 * DAY + HOUR, "B"), ("c", NOON, "C"))
        mill.run_until_idle()
        mill.retention.expire(mill.retention.plan())
        mill.run_until_idle()
        calls.remove(mill, "5s", "1m", "1h", "1d")
        assert [step.damage.file.split("/")[2] for step in mill.repair().lost] == [
            "level=1d",
            "level=1h",
            "level=1m",
        ]
        assert [one.faults for one in mill.status()] == [[]]
        assert count(mill, DAY_FIVE) == 1
    calls.recover()
    with calls.open() as mill:
        mill.run_until_idle()
        assert [one.faults for one in mill.status()] == [[]]
        assert mill.verify().findings == []
        assert count(mill, DAY_FIVE) == 1


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("point", ["raw.after_commit", "accept.after_state", "rollups.before_commit"])
def test_a_late_event_for_expired_raw_counts_though_the_process_died_before_its_tiles_were_built(
    tmp_path: Path, point: str, *, is_lost: bool
) -> None:
    """Line 1 changes to A at 2:00. It did so at 1:00 already, which comes later: then 2:00 is no change."""
    calls = CallLog.made(tmp_path / "calls", "{raw: 3d, rollups: {5s: 1d}}")
    copy = tmp_path / "copy"

    def keep(passed: str) -> None:
        if passed == point and not copy.exists():
            shutil.copytree(calls.root, copy)

    hours = [Interval(FIRST + n * HOUR, FIRST + (n + 1) * HOUR) for n in (1, 2)]
    with calls.open() as mill:
        land(mill, ("a", FIRST + 2 * HOUR, "A"), ("b", NOON, "B"))
        mill.run_until_idle()
        mill.retention.expire(mill.retention.plan())
        mill.run_until_idle()
        assert [count(mill, hour, TRANSITIONS) for hour in hours] == [0, 1]
        land(mill, ("c", FIRST + HOUR, "A"))
        with observed(keep):
            mill.run_until_idle()
        assert [count(mill, hour, TRANSITIONS) for hour in hours] == [1, 0]
    calls.clock.advance(HOUR)
    dead = CallLog(copy, calls.clock)
    if is_lost:
        dead.recover()
    with dead.open() as mill:
        mill.run_until_idle()
        assert [one.faults for one in mill.status()] == [[]]
        assert [count(mill, hour) for hour in hours] == [1, 1]
        assert [count(mill, hour, TRANSITIONS) for hour in hours] == [1, 0]
        assert mill.verify().findings == []


def test_a_tile_is_not_made_of_a_slice_that_touched_it_only_while_another_was_decided_again(
    tmp_path: Path,
) -> None:
    """Status B of 4:00 follows that of 3:00. While that is decided again, it follows the one of 2:00, which
    came last."""
    calls = CallLog.made(tmp_path / "calls", "{}")
    with calls.open() as mill:
        for id_, hour, status in (("a", 4, "B"), ("b", 3, "A"), ("c", 2, "B")):
            land(mill, (id_, FIRST + hour * HOUR, status))
            mill.run_until_idle()
        found = mill.snapshot("raw", "calls")
        assert found is not None
        (of_b,) = (part for part in found.parts if part.rows and part.mins["event_time"] == FIRST + 3 * HOUR)
        (calls.root / "warehouse/raw/calls" / of_b.path).unlink()
        assert mill.repair().left == []
        mill.run_until_idle()
        assert mill.verify().findings == []
        assert count(mill, DAY_ONE, TRANSITIONS) == 3


def test_a_lost_state_history_leaves_nothing_to_verify_where_raw_and_lower_levels_have_expired(
    tmp_path: Path,
) -> None:
    """Nothing says any more that the second slice changed the tile of the first."""
    calls = CallLog.made(tmp_path / "calls", "{raw: 3d, rollups: {5s: 1d}}")
    with calls.open() as mill:
        land(mill, ("a", FIRST + 2 * HOUR, "A"), ("z", NOON, "A"))
        mill.run_until_idle()
        land(mill, ("b", FIRST + HOUR, "A"))
        mill.run_until_idle()
        mill.retention.expire(mill.retention.plan())
        mill.run_until_idle()
        for path in (calls.root / "warehouse/trails/calls").iterdir():
            path.unlink()
        assert mill.repair().left == []
    calls.recover()
    with calls.open() as mill:
        mill.run_until_idle()
        assert mill.verify().findings == []
        assert count(mill, DAY_ONE) == 2
        late = land(mill, ("c", FIRST + 3 * HOUR, "A"))
        mill.run_until_idle()
        assert mill.slice(late).counts.accepted == 1
        assert count(mill, DAY_ONE) == 3
        assert mill.verify().findings == []


@pytest.mark.parametrize("level", ["5s", "1m"])
def test_lost_tiles_of_metrics_that_are_declared_otherwise_are_made_for_the_new_ones(
    tmp_path: Path, level: str
) -> None:
    """The levels above have the same slices, and another metric."""
    calls = CallLog.made(tmp_path / "calls", "{}")
    declared = calls.root / "tidemill.yaml"
    text = declared.read_text()
    declared.write_text(text.replace("calls: {kind: counter}", "others: {kind: counter}"))
    with calls.open() as mill:
        land(mill, ("a", FIRST + HOUR, "A"))
        mill.run_until_idle()
        calls.remove(mill, level)
    declared.write_text(text)
    with calls.open() as mill:
        mill.repair()
        mill.run_until_idle()
        assert count(mill, DAY_ONE) == 1
        assert mill.verify().findings == []


def test_a_lost_tile_is_not_made_of_slices_that_touched_it_for_a_metric_that_is_gone(tmp_path: Path) -> None:
    calls = CallLog.made(tmp_path / "calls", "{}")
    with calls.open() as mill:
        for id_, hour, status in (("a", 2, "A"), ("b", 1, "B")):
            land(mill, (id_, FIRST + hour * HOUR, status))
            mill.run_until_idle()
        calls.remove(mill, "5s")
    declared = calls.root / "tidemill.yaml"
    declared.write_text(declared.read_text().replace("lines: {kind: state, object: line, state: status}", ""))
    with calls.open() as mill:
        assert mill.repair().left == []
        mill.run_until_idle()
        assert count(mill, DAY_ONE) == 2
        assert mill.verify().findings == []
