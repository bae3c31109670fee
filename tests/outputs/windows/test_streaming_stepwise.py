"""The kernels of streaming windows against the oracle, step by step: random windows over random feeds,
tolerances, cuts, sources and stops, with every revision on the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import at_length, examples
from tests.support.strategies.streaming import SCALES, StreamingCase, streaming_cases
from tests.support.streaming_in_memory import Emitted, EventTime, ProcessingTime, Windows, rows_of
from tests.support.streaming_results import agree, by_id

from tidemill.model.streaming import (
    Aggregate,
    Fate,
    Function,
    LateBy,
    LatePolicy,
    Trigger,
    WindowKind,
    WindowResult,
    WindowSpec,
)
from tidemill.model.time import MILLISECOND, SECOND, WEEK, parse_instant
from tidemill.testing.streaming import StreamingOracle, StreamingRow, StreamingSlice, meet

pytestmark = pytest.mark.long

quick = examples(60)
START = parse_instant("2024-01-15T10:00:00Z")
long = at_length(10_000)


class Reader:
    """What a reader of everything that came out may rely on."""

    def __init__(self, spec: WindowSpec, *, stops: bool = False) -> None:
        # A row that is in time may move the bounds of what is out: of a session whose own window decides, and
        # after a stop of every window that its rows make.
        joins = spec.kind is WindowKind.SESSION and spec.late_by is LateBy.WINDOW
        moves = joins or (stops and spec.kind.one_after_another)
        self.late_changes = spec.late is LatePolicy.REEMIT or moves
        self.changes = stops or self.late_changes  # a window that a stop brought out goes on
        self.last: dict[tuple[str, tuple[object, ...]], Emitted] = {}

    def read(self, emitted: Iterable[Emitted]) -> None:
        for each in sorted(emitted, key=lambda each: each.withdrawn, reverse=True):
            name = (each.window_id, each.result.group)
            before = self.last.get(name)
            assert each.revision == (before.revision + 1 if before else 1)
            if each.trigger is Trigger.HAVING:
                assert each.withdrawn
                assert before is None or before.withdrawn
            elif each.withdrawn:
                assert before is not None
                assert not before.withdrawn
            else:
                assert before is None or before.withdrawn or before.result != each.result
            if not self.changes:
                assert each.revision == 1, "only late rows change what is out"
            assert (each.trigger is Trigger.LATE) <= self.late_changes
            assert set(each.supersedes) <= {window for window, _ in self.last}, "it replaces what was out"
            self.last[name] = each


def event_time(case: StreamingCase) -> EventTime:
    return EventTime(case.spec, case.tolerance, idle_timeout=case.idle_timeout, max_bytes=case.max_bytes)


def standing(windows: Windows) -> dict[tuple[str, tuple[object, ...]], WindowResult]:
    return {which: result for which, (result, _) in windows.standing().items()}


class Compared:
    """A step of the kernels, held against the oracle."""

    def __init__(self, spec: WindowSpec) -> None:
        self.spec = spec
        self.oracle = StreamingOracle(spec, SCALES)

    def equal(
        self, windows: Windows, rows: list[StreamingRow], watermark: int | None, *, flush: bool = False
    ) -> None:
        expected = by_id(self.spec, self.oracle.numbered(rows, watermark, flush=flush))
        agree(self.spec, expected, standing(windows))


def met(case: StreamingCase, upto: int, now: int | None = None) -> tuple[list[StreamingRow], int | None]:
    met_rows = meet(
        case.slices[:upto],
        case.tolerance,
        idle_timeout=case.idle_timeout,
        max_bytes=case.max_bytes,
        now=now,
    )
    return met_rows.rows, met_rows.watermark


def check(case: StreamingCase) -> None:
    feed, compared, reader = event_time(case), Compared(case.spec), Reader(case.spec)
    for seq, each in enumerate(case.slices, start=1):
        reader.read(feed.slice(each))
        compared.equal(feed.windows, *met(case, seq))
    reader.read(feed.tick(case.now))
    rows, watermark = met(case, len(case.slices), case.now)
    compared.equal(feed.windows, rows, watermark)
    reader.read(feed.stop())
    compared.equal(feed.windows, rows, watermark, flush=True)
    assert feed.fates == compared.oracle.fates(rows)


@quick
@given(streaming_cases())
def test_what_stands_is_what_the_oracle_says_after_every_slice(case: StreamingCase) -> None:
    check(case)


def test_a_row_in_time_for_its_own_window_joins_a_session_that_is_out() -> None:
    """Rows at 9 s and 12.5 s; the second ends the session of the first, and the row at 11 s connects them."""
    spec = WindowSpec(
        stream="ticks", name="w", kind=WindowKind.SESSION, gap=3 * SECOND, late=LatePolicy.DISCARD,
        late_by=LateBy.WINDOW, aggregates=(Aggregate("n", Function.COUNT),),
    )  # fmt: skip
    feed, reader = EventTime(spec, tolerance=0), Reader(spec)
    came = []
    for arrival, times in ((20, (9_000, 12_500)), (21, (11_000,)), (22, (16_000,))):
        rows = tuple(("acme", START + time * MILLISECOND, 1, {}) for time in times)
        emitted = feed.slice(StreamingSlice(f"at {arrival}", "s1", START + arrival * SECOND, rows))
        reader.read(emitted)
        came.append([(each.revision, each.withdrawn, each.result.rows) for each in emitted])
    assert came == [[(1, False, 1)], [(2, True, 0)], [(3, False, 3)]]


def test_a_row_in_time_before_a_session_that_a_stop_brought_out_takes_it_over() -> None:
    spec = WindowSpec(
        stream="ticks",
        name="w",
        kind=WindowKind.SESSION,
        gap=SECOND,
        aggregates=(Aggregate("n", Function.COUNT),),
    )
    feed, reader = EventTime(spec, tolerance=SECOND), Reader(spec, stops=True)
    came = []
    for arrival, time in ((20, 9_500), (21, 9_000)):
        rows = (("acme", START + time * MILLISECOND, 1, {}),)
        emitted = feed.slice(StreamingSlice(f"at {arrival}", "s1", START + arrival * SECOND, rows))
        emitted = [*emitted, *feed.stop()]
        reader.read(emitted)
        came.append(sorted((each.withdrawn, each.result.start - START, each.result.rows) for each in emitted))
    first, both = 9_500 * MILLISECOND, 9_000 * MILLISECOND
    assert came == [[(False, first, 1)], [(False, both, 2), (True, first, 0)]]


@quick
@given(streaming_cases(policies=[LatePolicy.REEMIT], units=[SECOND], max_slices=14))
def test_late_rows_that_count_bring_out_what_the_oracle_says(case: StreamingCase) -> None:
    check(case)


@pytest.mark.soak
@long
@given(streaming_cases(max_slices=20))
def test_what_stands_is_what_the_oracle_says_at_length(case: StreamingCase) -> None:
    check(case)


@quick
@given(streaming_cases(bounded=False), st.sets(st.integers(1, 10), max_size=3))
def test_after_a_stop_it_goes_on_as_if_there_had_been_none(case: StreamingCase, stops: set[int]) -> None:
    feed, compared, reader = event_time(case), Compared(case.spec), Reader(case.spec, stops=True)
    for seq, each in enumerate(case.slices, start=1):
        reader.read(feed.slice(each))
        rows, watermark = met(case, seq)
        out, due = standing(feed.windows), by_id(case.spec, compared.oracle.numbered(rows, watermark))
        assert due.keys() <= out.keys()
        agree(case.spec, due, {which: out[which] for which in due})
        if seq in stops:
            reader.read(feed.stop())
            compared.equal(feed.windows, rows, watermark, flush=True)
    reader.read(feed.stop())
    rows, watermark = met(case, len(case.slices))
    compared.equal(feed.windows, rows, watermark, flush=True)


@quick
@given(streaming_cases(bounded=False, policies=[LatePolicy.DISCARD]))
def test_without_late_rows_results_do_not_depend_on_how_slices_are_cut(case: StreamingCase) -> None:
    """Nor on watermarks on the way."""
    patient = case._replace(tolerance=1000 * WEEK, idle_timeout=None)
    feed, whole = event_time(patient), Windows(case.spec)
    for seq, each in enumerate(case.slices, start=1):
        assert feed.slice(each) == []
        whole.push(rows_of(seq, each))
    feed.stop()
    whole.stop()
    assert repr(standing(feed.windows)) == repr(standing(whole))
    assert set(feed.fates) <= {Fate.ON_TIME}


@quick
@given(streaming_cases(bounded=False), st.integers(1, 3))
def test_in_processing_time_a_row_happens_when_it_arrives(case: StreamingCase, pace: int) -> None:
    """What came out is never changed: no row is late, whatever arrives in the instant of a tick."""
    spec = case.spec
    feed, compared = ProcessingTime(spec), Compared(spec)
    out: list[Emitted] = []
    for seq, each in enumerate(case.slices, start=1):
        feed.slice(each)
        if seq % pace == 0:
            out += feed.tick(each.arrival)
    out += feed.tick(case.now)
    assert all(each.revision == 1 for each in out)
    assert all(each.withdrawn == (each.trigger is Trigger.HAVING) for each in out)
    rows = feed.windows.rows
    assert [row.time for row in rows] == [each.arrival for each in case.slices for _ in each.rows]
    if spec.kind not in ("session", "per_row"):  # which hold the instant at which they end
        compared.equal(feed.windows, rows, case.now)
    over = case.now + spec.gap + spec.lookahead + 1
    feed.tick(over)
    compared.equal(feed.windows, rows, over)
    feed.stop()
    compared.equal(feed.windows, rows, over, flush=True)
    assert set(feed.windows.fates) <= {Fate.ON_TIME}


@quick
@given(streaming_cases(units=[SECOND]), st.integers(0, 2**32))
def test_rows_that_are_on_time_need_no_order(case: StreamingCase, seed: int) -> None:
    """How rows count is theirs: pushed backwards, they come to the same."""
    rows = [row for seq, each in enumerate(case.slices, start=1) for row in rows_of(seq, each)]
    ends = sorted({row.time for row in rows})[:: 1 + seed % 3]
    forwards, backwards = Windows(case.spec), Windows(case.spec)
    since = -inf
    for end in ends:
        some = [row for row in rows if since < row.time <= end]
        forwards.push(sorted(some, key=lambda row: (row.time, row.seq, row.line)))
        backwards.push(reversed(some))
        assert repr(forwards.advance(end)) == repr(backwards.advance(end))
        since = end
    assert repr(forwards.stop()) == repr(backwards.stop())


@quick
@given(streaming_cases(policies=[LatePolicy.DISCARD, LatePolicy.NEXT_WINDOW]))
def test_with_no_lateness_to_spare_only_a_row_of_the_very_watermark_counts(case: StreamingCase) -> None:
    check(case._replace(spec=replace(case.spec, late=LatePolicy.REEMIT, max_lateness=0)))
