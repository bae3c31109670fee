"""The pure core against the oracle: random windows over random feeds, tolerances, cuts, sources and stops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hypothesis_settings import at_length, examples

from tidemill.model.streaming import (
    Fate,
    LatePolicy,
    Trigger,
    WindowKind,
    WindowResult,
    WindowSpec,
    window_id,
)
from tidemill.model.time import SECOND, WEEK
from tidemill.streaming.accumulators import StreamRow
from tidemill.streaming.operators import Emitted, Pipeline, ProcessingPipeline, WindowOperator
from tidemill.testing.strategies_streaming import SCALES, StreamingCase, streaming_cases
from tidemill.testing.streaming import StreamingOracle, StreamingRow, StreamingSlice, meet, same_results

quick = examples(200)
long = at_length(10_000)


class Standing:
    """What a reader of everything that came out takes to be true, and what it may rely on."""

    def __init__(self, spec: WindowSpec, *, stops: bool = False) -> None:
        self.spec = spec
        self.stops = stops  # on the way
        self.last: dict[tuple[str, tuple[object, ...]], Emitted] = {}

    def read(self, emitted: Iterable[Emitted]) -> None:
        for each in emitted:
            name = (each.window_id, each.result.group)
            before = self.last.get(name)
            assert each.revision == (before.revision + 1 if before else 1)
            key = each.result.group[: len(self.spec.key)]
            assert each.window_id == window_id(
                self.spec, each.result.tenant, key, each.result.start, each.ordinal
            )
            if each.withdrawn:
                assert before is not None
                assert not before.withdrawn
            else:
                assert before is None or before.withdrawn or before.result != each.result
            if not self.stops and self.spec.late is not LatePolicy.REEMIT:
                assert each.revision == 1, "only late rows change what is out"
            assert (each.trigger is Trigger.LATE) <= (self.spec.late is LatePolicy.REEMIT)
            assert set(each.supersedes) <= {window for window, _ in self.last}, "it replaces what was out"
            self.last[name] = each

    def results(self) -> list[WindowResult]:
        stand = [each for each in self.last.values() if not each.withdrawn]
        return [each.result for each in sorted(stand, key=lambda each: each.order)]


def rows_of(seq: int, each: StreamingSlice) -> list[StreamRow]:
    return [
        StreamRow(tenant, time, seq, line, each.name, size, fields)
        for line, (tenant, time, size, fields) in enumerate(each.rows, start=1)
    ]


def pipeline(case: StreamingCase) -> Pipeline:
    return Pipeline(
        case.spec,
        case.tolerance,
        idle_timeout=case.idle_timeout,
        max_bytes=case.max_bytes,
        scales=SCALES,
    )


def met(case: StreamingCase, upto: int, now: int | None = None) -> tuple[list[StreamingRow], int | None]:
    told = meet(
        case.slices[:upto],
        case.tolerance,
        idle_timeout=case.idle_timeout,
        max_bytes=case.max_bytes,
        now=now,
    )
    return told.rows, told.watermark


def equal(spec: WindowSpec, found: Sequence[WindowResult], told: Sequence[WindowResult]) -> None:
    if not same_results(spec, found, told):
        assert list(found) == list(told)


def check_core(case: StreamingCase) -> None:
    core, oracle, reader = pipeline(case), StreamingOracle(case.spec, SCALES), Standing(case.spec)
    for seq, each in enumerate(case.slices, start=1):
        reader.read(core.slice(rows_of(seq, each), source=each.source, arrival=each.arrival))
        rows, watermark = met(case, seq)
        assert core.watermark == watermark
        equal(case.spec, reader.results(), oracle.standing(rows, watermark))
    reader.read(core.tick(case.now))
    rows, watermark = met(case, len(case.slices), case.now)
    assert core.watermark == watermark
    equal(case.spec, reader.results(), oracle.standing(rows, watermark))
    reader.read(core.stop())
    assert core.watermark == watermark
    equal(case.spec, reader.results(), oracle.standing(rows, watermark, flush=True))
    assert core.fates == oracle.fates(rows)
    assert core.ordering.late_dropped == sum(count for fate, count in core.fates.items() if fate != "on_time")


@quick
@given(streaming_cases())
def test_what_stands_is_what_the_oracle_says_after_every_slice(case: StreamingCase) -> None:
    check_core(case)


@quick
@given(streaming_cases(policies=[LatePolicy.REEMIT], units=[SECOND], max_slices=14))
def test_late_rows_that_count_bring_out_what_the_oracle_says(case: StreamingCase) -> None:
    check_core(case)


@pytest.mark.soak
@long
@given(streaming_cases(max_slices=20))
def test_what_stands_is_what_the_oracle_says_at_length(case: StreamingCase) -> None:
    check_core(case)


def check_stops(case: StreamingCase, stops: set[int]) -> None:
    core, oracle, reader = pipeline(case), StreamingOracle(case.spec, SCALES), Standing(case.spec, stops=True)
    for seq, each in enumerate(case.slices, start=1):
        reader.read(core.slice(rows_of(seq, each), source=each.source, arrival=each.arrival))
        rows, watermark = met(case, seq)
        out = {repr(result) for result in reader.results()}
        assert {repr(result) for result in oracle.standing(rows, watermark)} <= out
        if seq in stops:
            reader.read(core.stop())
            equal(case.spec, reader.results(), oracle.standing(rows, watermark, flush=True))
    reader.read(core.stop())
    rows, watermark = met(case, len(case.slices))
    equal(case.spec, reader.results(), oracle.standing(rows, watermark, flush=True))


@quick
@given(streaming_cases(bounded=False), st.sets(st.integers(1, 10), max_size=3))
def test_after_a_stop_it_goes_on_as_if_there_had_been_none(case: StreamingCase, stops: set[int]) -> None:
    check_stops(case, stops)


@quick
@given(streaming_cases(bounded=False, policies=[LatePolicy.DISCARD]))
def test_without_late_rows_results_do_not_depend_on_how_slices_are_cut(case: StreamingCase) -> None:
    """Nor on watermarks on the way."""
    patient = case._replace(tolerance=1000 * WEEK, idle_timeout=None)
    apart, whole = Standing(case.spec), Standing(case.spec)
    core, other = pipeline(patient), pipeline(patient)
    together = []
    for seq, each in enumerate(case.slices, start=1):
        rows = rows_of(seq, each)
        assert core.slice(rows, source=each.source, arrival=each.arrival) == []
        together += rows
    apart.read(core.stop())
    other.slice(together)
    whole.read(other.stop())
    assert apart.results() == whole.results()
    assert set(core.fates) <= {Fate.ON_TIME}


@quick
@given(streaming_cases(bounded=False), st.integers(1, 3))
def test_in_processing_time_a_row_happens_when_it_arrives(case: StreamingCase, pace: int) -> None:
    """A tick at the very instant at which a session ends cannot know of a slice that arrives in that instant
    later on and would join it, so here rows that are a gap apart are two sessions."""
    spec = replace(case.spec, inclusive=False)
    core, reader = ProcessingPipeline(spec, scales=SCALES), Standing(spec)
    oracle = StreamingOracle(spec, SCALES)
    rows: list[StreamingRow] = []
    for seq, each in enumerate(case.slices, start=1):
        core.slice(rows_of(seq, each), arrival=each.arrival)
        rows += [
            StreamingRow(tenant, each.arrival, seq, line, each.name, size, fields)
            for line, (tenant, _, size, fields) in enumerate(each.rows, start=1)
        ]
        if seq % pace == 0:
            reader.read(core.tick(each.arrival))
            equal(spec, reader.results(), oracle.standing(rows, each.arrival))
    reader.read(core.tick(case.now))
    equal(spec, reader.results(), oracle.standing(rows, case.now))
    reader.read(core.stop())
    equal(spec, reader.results(), oracle.standing(rows, case.now, flush=True))
    assert set(core.fates) <= {Fate.ON_TIME}


@quick
@given(streaming_cases(kinds=[WindowKind.TUMBLING, WindowKind.SLIDING, WindowKind.SESSION]))
def test_nothing_is_kept_that_no_late_row_can_reach(case: StreamingCase) -> None:
    core = pipeline(case)
    for seq, each in enumerate(case.slices, start=1):
        core.slice(rows_of(seq, each), source=each.source, arrival=each.arrival)
    for timed in core.ordering.stop():
        core.windows.push([timed.row])
    if core.watermark is not None:
        newest = max(row[1] for each in case.slices for row in each.rows)
        core.windows.advance(newest + case.spec.size + case.spec.gap + case.spec.max_lateness)
        assert core.windows.held == 0


@quick
@given(streaming_cases(units=[SECOND]), st.integers(0, 2**32))
def test_an_operator_needs_no_order_among_rows_that_are_on_time(case: StreamingCase, seed: int) -> None:
    """How rows count is theirs: pushed backwards, they come to the same."""
    rows = [row for seq, each in enumerate(case.slices, start=1) for row in rows_of(seq, each)]
    ends = sorted({row.time for row in rows})[:: 1 + seed % 3]
    forwards, backwards = WindowOperator(case.spec, SCALES), WindowOperator(case.spec, SCALES)
    since = -inf
    for end in ends:
        some = [row for row in rows if since < row.time <= end]
        forwards.push(sorted(some, key=lambda row: (row.time, row.seq, row.line)))
        backwards.push(reversed(some))
        assert forwards.advance(end) == backwards.advance(end)
        since = end
    assert forwards.stop() == backwards.stop()


@quick
@given(streaming_cases(policies=[LatePolicy.DISCARD, LatePolicy.NEXT_WINDOW]))
def test_with_no_lateness_to_spare_only_a_row_of_the_very_watermark_counts(case: StreamingCase) -> None:
    strict = case._replace(spec=replace(case.spec, late=LatePolicy.REEMIT, max_lateness=0))
    check_core(strict)
