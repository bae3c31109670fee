"""What results of streaming windows do not include yet is said wherever they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.mill import Mill
from tidemill.model.errors import IncompleteError
from tidemill.model.failpoints import observed
from tidemill.model.time import SECOND, parse_instant
from tidemill.testing import FakeClock

CONFIG = """
version: 1
engine: {cores: 2, memory: 512m}
streams:
  r:
    schema: {id: string, at: string}
    identity: id
    event_time: {column: at, type: iso8601}
    pack: {slices: 2}
    windows:
      tens: {kind: tumbling, size: 10m, aggregates: {n: count}, late: {policy: reemit, max_lateness: 1d}}
"""
SUM = "SELECT sum(n)::INT AS n FROM windows.r_tens"


class Story:
    def __init__(self, root: Path, config: str = CONFIG) -> None:
        (root / "tidemill.yaml").write_text(config)
        self.clock = FakeClock(parse_instant("2024-01-15T18:00:00Z"))
        self.mill = Mill.open(root, clock=self.clock)

    def land(self, **times: str) -> str:
        self.clock.advance(SECOND)
        lines = (json.dumps({"id": name, "at": f"2024-01-15T{at}Z"}) for name, at in times.items())
        return self.mill.land("r", "\n".join(lines).encode(), format="ndjson").entry.id

    def whats(self) -> list[str]:
        """What is pending, as Python says; SQL says the same."""
        pending = self.mill.pending_results("r", "tens")
        assert tuple(pending) == self.mill.sql(SUM).completeness["r"].pending
        return [one.what for one in pending]

    def counted(self) -> list[int]:
        return self.mill.results("r", "tens").column("n").to_pylist()


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path)
    made.land(a="10:01:00")
    made.land(b="14:00:00")
    made.mill.run_until_idle()
    with made.mill:
        yield made


def test_a_slice_that_waits(story: Story) -> None:
    assert (story.counted(), story.whats()) == ([1], [])
    story.land(c="10:02:00")
    assert (story.counted(), story.whats()) == ([1], ["landed"])
    story.mill.run_until_idle()
    assert (story.counted(), story.whats()) == ([2], [])


def test_a_retraction_that_no_other_slice_depends_on(story: Story) -> None:
    """Its row has left raw, and the result still counts it."""
    late = story.land(c="10:02:00")
    story.mill.run_until_idle()
    assert (story.counted(), story.whats()) == ([2], [])
    story.mill.retract(story.mill.plan_retraction(late, "a mistake"))
    assert (story.counted(), story.whats()) == ([2], ["results"])
    (one,) = story.mill.pending_results("r", "tens")
    assert one.remedy.endswith("`tidemill run --once`")
    assert story.mill.sql(SUM).completeness["r"].complete_through is None
    with pytest.raises(IncompleteError, match="results of tens wait"):
        story.mill.sql(SUM, strict=True)
    story.mill.run_until_idle()
    assert (story.counted(), story.whats()) == ([1], [])


def test_a_round_that_ended_before_the_results(story: Story) -> None:
    story.land(c="10:02:00")

    def stop(name: str) -> None:
        if name == "results.before_commit":
            raise KeyboardInterrupt

    with observed(stop), pytest.raises(KeyboardInterrupt):
        story.mill.tick()
    assert (story.counted(), story.whats()) == ([1], ["results"])
    story.mill.run_until_idle()
    assert (story.counted(), story.whats()) == ([2], [])


def test_packing_changes_no_row_and_leaves_nothing_pending(story: Story) -> None:
    for n in range(4):
        story.land(**{f"p{n}": f"15:0{n}:00"})
        story.mill.tick()
    assert story.mill.pack("r", rebuild=True)
    assert story.whats() == []


def test_a_window_that_is_declared_and_not_computed(tmp_path: Path) -> None:
    plain = Story(tmp_path, CONFIG[: CONFIG.index("    windows:")])
    plain.land(a="10:01:00", b="14:00:00")
    plain.mill.run_until_idle()
    plain.mill.close()
    declared = Story(tmp_path)
    with declared.mill:
        assert (declared.counted(), declared.whats()) == ([], ["results"])
        declared.mill.run_until_idle()
        assert (declared.counted(), declared.whats()) == ([1], [])


def test_a_stream_without_events_has_nothing_pending(tmp_path: Path) -> None:
    empty = Story(tmp_path)
    with empty.mill:
        assert empty.whats() == []
        empty.mill.land("r", b"not json\n", format="ndjson")
        empty.mill.run_until_idle()
        assert empty.whats() == []


def test_results_that_follow_datasets_wait_for_those_and_not_for_raw(tmp_path: Path) -> None:
    closing = CONFIG.replace(
        "    windows:", "    aggregation_span: 10m\n    coverage: watermark\n    windows:"
    )
    closing = closing.replace("late: {policy: reemit, max_lateness: 1d}", "close: complete")
    story = Story(tmp_path, closing)
    with story.mill:
        assert (story.counted(), story.whats()) == ([], [])
        story.land(a="10:01:00")
        story.land(b="14:00:00")
        story.mill.run_until_idle()
        assert (story.counted(), story.whats()) == ([1], [])
        story.land(c="10:02:00")  # too late for the dataset of its window, which is final
        story.mill.run_until_idle()
        assert (story.counted(), story.whats()) == ([1], [])


def test_results_of_the_first_and_last_rows_of_all_time_can_be_read(tmp_path: Path) -> None:
    """Their windows begin before the year 1 and end after 9999, which Python cannot show."""
    far = CONFIG.replace("identity: id", "identity: id\n    skew: {past: null, future: null}")
    story = Story(tmp_path, far.replace("size: 10m", "size: 7h"))
    lines = b'{"id": "a", "at": "0001-01-01T00:00:00Z"}\n{"id": "b", "at": "9999-12-31T23:59:59.999999Z"}\n'
    with story.mill:
        story.mill.land("r", lines, format="ndjson")
        story.mill.run_until_idle()
        story.mill.flush()
        found = story.mill.results("r", "tens").to_pylist()
    assert [f"{one['start']:%m-%dT%H:%M:%S} {one['n']}" for one in found] == [
        "01-01T00:00:00 1",
        "12-31T18:00:00 1",
    ]
    assert found[1]["end"].year == 9999
