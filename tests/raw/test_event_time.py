"""Event time through the whole pipeline against the oracle: whatever the sources, tolerances, timeouts,
bounds and ticks, and whoever reopens, takes back or forgets meanwhile, every slice meets the watermark that
the oracle says."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.test_engine_oracle import rows_of
from tests.support.hypothesis_settings import at_length, examples
from tests.support.oracles.oracle import Oracle, RawRow
from tests.support.oracles.project import project_text
from tests.support.oracles.stream import OracleField, OracleStream
from tests.support.strategies.feeds import FIRST_ARRIVAL

from tidemill.eventtime import Ordering, Timed, Watermark
from tidemill.mill import Mill, recover
from tidemill.model.failpoints import observed
from tidemill.model.slices import SliceStatus
from tidemill.model.time import HOUR, SECOND
from tidemill.raw import stream_buffer
from tidemill.raw.footers import BatchFooter, ProgressAt
from tidemill.raw.watermark import watermark_at
from tidemill.storage.state.protocol import ClockState, Progress
from tidemill.storage.tables.parts import read_footer
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = FIRST_ARRIVAL - HOUR
READINGS = OracleStream(
    name="readings",
    fields={"id": OracleField("string"), "at": OracleField("integer"), "pad": OracleField("string")},
    time_column="at",
    time_type="unixtimestamp_us",
    identity=("id",),
    tenant_value="one",
)
# without shrinking, which would take minutes: the soak does that
few = examples(6, shrink=False)
many = at_length(300)


@dataclass(frozen=True)
class Slice:
    """Seconds, to be read: when its rows happened after T0, and how long after the slice before it comes."""

    source: str
    times: tuple[int, ...]
    pause: int = 1
    pad: int = 0
    again: bool = False  # with a record that was sent before, too


def records(slice_: Slice, number: int) -> list[bytes]:
    found = [
        {"id": f"{number}-{line}", "at": T0 + time * SECOND, "pad": "x" * (slice_.pad * (line % 3))}
        for line, time in enumerate(slice_.times)
    ]
    if slice_.again:
        found.append(
            {"id": f"{number - 1}-0", "at": T0 + 999 * SECOND, "pad": "a conflict, if there is a rival"}
        )
    # so that a slice without a row differs from the others, too: one that is rejected
    return [json.dumps(each).encode() for each in [*found, {"id": f"{number}", "at": "never"}]]


class Play:
    """A stream and the oracle, fed side by side."""

    def __init__(self, root: Path, spark: SparkSession, stream: OracleStream = READINGS) -> None:
        root.mkdir(parents=True)
        self.root, self.spark = root, spark
        self.clock = FakeClock(FIRST_ARRIVAL)
        self.oracle = Oracle(stream)
        self.gone: list[str] = []
        self.landed: list[str] = []
        self.declare(stream)
        self.mill = self.open()

    def open(self) -> Mill:
        return Mill.open(self.root, spark=self.spark, clock=self.clock)

    def declare(self, stream: OracleStream) -> None:
        (self.root / "tidemill.yaml").write_text(project_text([stream], cores=2))

    def reopen(self, stream: OracleStream | None = None) -> None:
        self.mill.close()
        if stream is not None:
            self.declare(stream)
            self.oracle.declare(stream)
        self.mill = self.open()

    def land(self, slice_: Slice) -> None:
        self.clock.advance(slice_.pause * SECOND)
        lines = records(slice_, len(self.landed) + len(self.gone))
        content = b"".join(line + b"\n" for line in lines)
        entry = self.mill.land("readings", content, source=slice_.source, format="ndjson").entry
        self.landed.append(entry.id)
        self.oracle.land(entry.id, lines, entry.slice.arrival, slice_.source)

    def retract(self, number: int) -> None:
        gone = self.landed.pop(number)
        self.mill.retract(self.mill.plan_retraction(gone, "a mistake"))
        self.gone.append(gone)

    def settle(self) -> None:
        while self.mill.state.pending("readings", 1):
            self.mill.tick()

    def agrees(self) -> None:
        expected = self.oracle.rebuilt(without=self.gone) if self.gone else self.oracle
        state = self.mill.state
        assert state.pending("readings", 1) == []
        assert {c.source: (c.max_seen, c.watermark, c.arrival) for c in state.clocks("readings")} == {
            source: (c.max_seen, c.watermark, c.arrival) for source, c in expected.clocks.items()
        }
        assert asdict(state.progress("readings")) == expected.progress()._asdict()
        entries = [e for e in self.mill.ledger("readings") if e.status is not SliceStatus.RETRACTED]
        assert {e.id: e.watermark for e in entries} == expected.met
        assert {e.id: e.counts.late for e in entries} == {n: c.late for n, c in expected.counts.items()}
        raw = rows_of(self.mill, "raw", "readings")
        assert {(r["slice"], r["line"], r["watermark"]) for r in raw} == {
            (row.slice, row.line, row.watermark) for row in expected.raw
        }
        now, declared = self.clock() + 7 * SECOND, self.mill.project.stream("readings")
        reported = watermark_at(declared, state.clocks("readings"), state.progress("readings"), now)
        assert reported == expected.watermark(now)
        # the buffer is what raw holds after the watermark
        mark = expected.progress().watermark
        waiting = [len(str(r["payload"])) for r in raw if mark is None or int(str(r["event_time"])) > mark]
        if expected.stream.in_event_time:
            progress = state.progress("readings")
            assert (len(waiting), sum(waiting)) == (progress.buffered_rows, progress.buffered_bytes)

    def recovers(self) -> None:
        """A state made anew from the warehouse is the same."""
        before = self.mill.state.dump() | {"versions": []}
        self.mill.close()
        for path in (self.root / "warehouse").glob("state.db*"):
            path.unlink()
        recover(self.root, spark=self.spark, clock=self.clock)
        self.mill = self.open()
        # a table that nothing was written to yet may be known or not
        assert self.mill.state.dump() | {"versions": []} == before


class Plays:
    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self._folder, self._spark, self._numbers = folder, spark, count()

    def new(self, stream: OracleStream = READINGS) -> Play:
        return Play(self._folder / f"play{next(self._numbers)}", self._spark, stream)


@pytest.fixture(scope="module")
def plays(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Plays:
    return Plays(tmp_path_factory.mktemp("plays"), spark)


# --- any feed

slices = st.builds(
    Slice,
    source=st.sampled_from("abc"),
    times=st.lists(st.integers(0, 60), max_size=5).map(tuple),
    pause=st.integers(0, 12),
    pad=st.sampled_from([0, 0, 10, 200]),
    again=st.booleans(),
)


@st.composite
def streams(draw: st.DrawFn) -> OracleStream:
    return replace(
        READINGS,
        late_tolerance=draw(st.sampled_from([0, 1, 5, 30])) * SECOND,
        idle_timeout=draw(st.sampled_from([None, 1, 10, 25])),
        max_buffer_bytes=draw(st.sampled_from([None, 1, 120, 400, 1000])),
    )


def declared(stream: OracleStream) -> OracleStream:
    timeout = stream.idle_timeout
    return replace(stream, idle_timeout=timeout * SECOND if timeout is not None else None)


def played(plays: Plays, data: st.DataObject, *, taken_back: bool) -> None:
    play = plays.new(declared(data.draw(streams())))
    for slice_ in data.draw(st.lists(slices, min_size=1, max_size=8)):
        play.land(slice_)
        act = data.draw(st.sampled_from(["nothing", "nothing", "tick", "tick", "reopen", "other"]))
        if act == "tick":
            play.mill.tick()
            if play.mill.state.pending("readings", 1) == []:
                play.agrees()
        elif act == "reopen":
            play.reopen()
        elif act == "other" and taken_back and play.landed:
            play.retract(data.draw(st.integers(0, len(play.landed) - 1)))
            if data.draw(st.booleans()):
                play.recovers()
        elif act == "other" and not taken_back:
            play.settle()  # so that what waits is judged by the old declaration
            play.reopen(declared(data.draw(streams())))
    play.settle()
    play.agrees()
    play.recovers()
    play.mill.close()


@few
@given(data=st.data())
def test_any_feed_meets_the_watermarks_that_the_oracle_says(plays: Plays, data: st.DataObject) -> None:
    played(plays, data, taken_back=False)


@few
@given(data=st.data())
def test_any_feed_with_slices_taken_back_is_as_if_they_never_came(plays: Plays, data: st.DataObject) -> None:
    played(plays, data, taken_back=True)


@pytest.mark.soak
@pytest.mark.parametrize("taken_back", [False, True], ids=["declared anew", "taken back"])
@many
@given(data=st.data())
def test_any_feed_meets_the_watermarks_that_the_oracle_says_at_length(
    plays: Plays, taken_back: bool, data: st.DataObject
) -> None:
    played(plays, data, taken_back=taken_back)


@examples(200)
@given(stream=streams(), fed=st.lists(slices, max_size=12))
def test_the_ordering_in_memory_says_what_the_oracle_says(stream: OracleStream, fed: list[Slice]) -> None:
    stream = declared(stream)
    oracle = Oracle(stream)
    ordering = Ordering[RawRow](stream.late_tolerance, stream.idle_timeout, stream.max_buffer_bytes)
    out: list[RawRow | int] = []
    now = FIRST_ARRIVAL
    for number, slice_ in enumerate(fed):
        now += slice_.pause * SECOND
        before = len(oracle.raw)
        oracle.land(str(number), records(slice_, number), now, slice_.source)
        rows = [Timed(row.ts, row, len(row.payload)) for row in oracle.raw[before:]]
        if not rows:
            continue  # the ledger knows of no watermark that a slice without a row moved
        released, late = ordering.push(rows, source=slice_.source, arrival=now)
        assert [row.row for row in late] == [row.row for row in rows if row.row.late]
        assert all(row.met == oracle.met[str(number)] for row in late)
        out += [each.at if isinstance(each, Watermark) else each.row for each in released]
    assert out == oracle.ordered()
    progress = oracle.progress()
    assert (ordering.clock.watermark, ordering.watermarks_emitted) == progress[:2]
    assert (ordering.buffer_size, ordering.buffered_bytes, ordering.released_early) == progress[2:]
    assert [row.row for row in ordering.stop()] == oracle.waiting()


# --- by its values


def feed(play: Play, *fed: Slice) -> None:
    for slice_ in fed:
        play.land(slice_)
        play.mill.tick()
    play.agrees()


def seconds(instant: int | None) -> int | None:
    return None if instant is None else (instant - T0) // SECOND


def met(play: Play) -> list[int | None]:
    return [seconds(e.watermark) for e in play.mill.state.slices("readings")]


def test_the_slowest_source_holds_the_stream_until_it_is_idle(plays: Plays) -> None:
    play = plays.new(replace(READINGS, late_tolerance=2 * SECOND, idle_timeout=10 * SECOND))
    feed(
        play,
        Slice("a", (10, 12)),
        Slice("b", (3, 20)),
        Slice("b", (11, 30), pause=8),
        Slice("b", (29, 40), pause=2),  # a was silent for 10 s
        Slice("a", (13, 50)),
    )
    assert met(play) == [None, 10, 10, 28, 38]
    late = [e.counts.late for e in play.mill.state.slices("readings")]
    assert late == [0, 1, 0, 0, 1]
    progress = play.mill.state.progress("readings")
    assert (seconds(progress.watermark), progress.emitted, progress.buffered_rows) == (38, 3, 2)


def test_the_buffer_is_bounded_by_the_bytes_of_payloads(plays: Plays) -> None:
    size = len(records(Slice("a", (10,)), 0)[0])
    play = plays.new(replace(READINGS, late_tolerance=HOUR, max_buffer_bytes=2 * size))
    feed(play, Slice("a", (10, 20)), Slice("a", (30,)), Slice("a", (5, 25)))
    assert met(play) == [None, 20 - 3600, 10]
    assert [e.counts.late for e in play.mill.state.slices("readings")] == [0, 0, 1]
    progress = play.mill.state.progress("readings")
    assert seconds(progress.watermark) == 20
    assert (progress.buffered_rows, progress.buffered_bytes, progress.released_early) == (2, 2 * size, 2)


def test_by_processing_time_no_row_is_late(plays: Plays) -> None:
    play = plays.new(replace(READINGS, time_column=None))
    feed(play, Slice("a", (10,)), Slice("b", (1,)), Slice("a", (5,), pause=0))
    assert met(play) == [None, None, None]
    state = play.mill.state
    assert (state.totals("readings")["late"], state.progress("readings")) == (0, Progress())
    assert [c.source for c in state.clocks("readings")] == ["a", "b"]
    play.recovers()


def test_another_tolerance_never_sends_the_watermark_back(plays: Plays) -> None:
    play = plays.new(replace(READINGS, late_tolerance=SECOND))
    feed(play, Slice("a", (10,)))
    play.reopen(replace(READINGS, late_tolerance=30 * SECOND))
    feed(play, Slice("a", (20,)), Slice("a", (41,)))
    assert met(play) == [None, 9, 9]
    assert seconds(play.mill.state.progress("readings").watermark) == 11
    play.recovers()


def test_a_crash_before_the_state_knows_loses_nothing(plays: Plays) -> None:
    """Clocks and progress of a batch that raw has and the state has not are told by raw."""
    play = plays.new(replace(READINGS, late_tolerance=5 * SECOND))
    feed(play, Slice("a", (10,)))
    play.land(Slice("b", (14, 30), pad=3))

    def die(point: str) -> None:
        if point == "raw.after_commit":
            raise KeyboardInterrupt

    with observed(die), pytest.raises(KeyboardInterrupt):
        play.mill.tick()
    assert play.mill.state.progress("readings").emitted == 1
    play.reopen()
    play.mill.tick()
    play.agrees()
    play.recovers()


def test_the_buffer_of_a_process_is_read_again_only_when_raw_has_changed(
    plays: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int | None] = []
    read = stream_buffer.buffered

    def watched(raw: Table, watermark: int | None) -> stream_buffer.StreamBuffer:
        looked.append(seconds(watermark))
        return read(raw, watermark)

    monkeypatch.setattr("tidemill.raw.accept.batch.buffered", watched)
    play = plays.new(replace(READINGS, late_tolerance=5 * SECOND))
    feed(play, Slice("a", (10, 9)), Slice("a", (12,)), Slice("a", (13,)))
    assert looked == []
    play.reopen()
    feed(play, Slice("a", (14,)), Slice("a", (15,)))
    assert looked == [8]


def test_parts_of_an_older_version_are_read(plays: Plays) -> None:
    """They say no progress, and of a clock neither when its source was heard of."""
    clocks = [{"source": "a", "max_seen": 7, "watermark": 5}]
    old = BatchFooter.from_footer({"kind": "raw", "batch": "b", "slices": [], "runs": [], "clocks": clocks})
    assert old.clocks == (ClockState("a", 7, 5, 0),)
    assert old.progress is None
    play = plays.new()
    feed(play, Slice("a", (1,)))
    table = Table.existing(play.root / "warehouse" / "raw" / "readings")
    assert table is not None
    reported = [BatchFooter.from_footer(read_footer(path)).progress for path in table.snapshot().paths()]
    assert reported == [ProgressAt(table.version, play.mill.state.progress("readings"))]
