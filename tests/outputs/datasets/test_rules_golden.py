"""The rules of windows case by case: alignment, who counts, readiness to the microsecond, seals, finality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.window_status import is_final

from tidemill.model.slices import set_hash
from tidemill.model.time import (
    DAY,
    HOUR,
    MAX_INSTANT,
    MINUTE,
    SECOND,
    WEEK,
    Interval,
    align,
    parse_duration,
    parse_instant,
)
from tidemill.model.windows import Evaluation, Member, Phase, Window, WindowKey
from tidemill.outputs.datasets.rules import (
    WindowRules,
    admit,
    cutoff,
    evaluate,
    readiness,
    windows_of,
)

NEW_YEAR = "2024-01-01"
STRICT = WindowRules(span=HOUR, stc=HOUR)
LOOSE = replace(STRICT, allow_incomplete=True)
FAR = parse_instant("2030-01-01T00:00:00Z")


def at(clock: str, day: str = NEW_YEAR) -> int:
    return parse_instant(f"{day}T{clock}Z")


def between(span: str, day: str = NEW_YEAR) -> Interval:
    """`10:00-10:30` of a day; `24:00` is its end."""
    start, end = span.split("-")
    return Interval(at(start, day), at("00:00", day) + DAY if end == "24:00" else at(end, day))


def member(
    name: str, bounds: str | Interval | None, seq: int = 1, arrival: int = 0, day: str = NEW_YEAR
) -> Member:
    covers = between(bounds, day) if isinstance(bounds, str) else bounds
    return Member(slice=name, seq=seq, name=name, arrival=arrival, bounds=covers)


def members(*bounds: str | Interval | None, day: str = NEW_YEAR) -> list[Member]:
    """Slices `1`, `2` … that all arrived in time."""
    return [member(str(seq), span, seq, day=day) for seq, span in enumerate(bounds, 1)]


def window(clock: str, rules: WindowRules = STRICT, day: str = NEW_YEAR, **kept: object) -> Window:
    return replace(Window(WindowKey("stations", at(clock, day), rules.span), version=7), **kept)  # type: ignore[arg-type]


def evaluated(
    clock: str, touching: Sequence[Member], rules: WindowRules = STRICT, now: int = FAR
) -> Evaluation:
    return evaluate(window(clock, rules), touching, rules, now)


def layout(touching: Sequence[Member], span: int) -> dict[int, list[Member]]:
    """The members of each window, by its start."""
    found: dict[int, list[Member]] = {}
    for one in touching:
        assert one.bounds is not None
        for start in windows_of(one.bounds, span):
            found.setdefault(start, []).append(one)
    return dict(sorted(found.items()))


# --- the golden cases ------------------------------------------------------------------------------


def test_w1_one_slice_one_window() -> None:
    found = layout(members("10:00-11:00"), HOUR)
    assert list(found) == [at("10:00")]
    evaluation = evaluated("10:00", found[at("10:00")])
    assert (evaluation.used, evaluation.ready, evaluation.desired) == ({"1"}, True, set_hash(["1"]))
    assert (evaluation.key, evaluation.version, evaluation.key.priority) == (
        window("10:00").key,
        7,
        -1704106800,
    )


def test_w2_twenty_four_hourly_slices_make_one_day() -> None:
    hours = [f"{h:02}:00-{h + 1:02}:00" for h in range(24)]
    found = layout(members(*hours), DAY)
    assert list(found) == [at("00:00")]
    evaluation = evaluated("00:00", found[at("00:00")], WindowRules(span=DAY, stc=HOUR))
    assert (len(evaluation.used), evaluation.ready) == (24, True)


def test_w3_a_slice_of_three_hours_is_in_three_windows() -> None:
    found = layout(members("10:00-13:00"), HOUR)
    assert list(found) == [at("10:00"), at("11:00"), at("12:00")]
    assert all(evaluated("10:00", holds).used == {"1"} for holds in found.values())


def test_w4_a_gap_holds_up_its_own_window_only() -> None:
    found = layout(members("10:00-10:30", "10:45-11:00", "11:00-12:00"), HOUR)
    first, second = (evaluated(clock, found[at(clock)]) for clock in ("10:00", "11:00"))
    assert (second.used, second.ready, second.reason) == ({"3"}, True, None)
    assert (first.used, first.ready) == ({"1", "2"}, False)
    assert (first.reason, first.detail) == ("gap", "gap 10:30-10:45")


def test_w5_time_alone_makes_a_window_ready() -> None:
    rules = WindowRules(span=HOUR, stc=2 * HOUR)
    slices = members("10:00-11:00")
    early = evaluated("10:00", slices, rules, at("11:30"))
    assert (early.used, early.ready, early.reason) == ({"1"}, False, "cutoff")
    assert (early.check_at, early.detail) == (at("13:00"), "cutoff at 2024-01-01T13:00:00Z")
    assert not evaluated("10:00", slices, rules, at("12:59:59")).ready
    ready = evaluated("10:00", slices, rules, at("13:00"))
    assert (ready.ready, ready.reason, ready.detail, ready.check_at) == (True, None, None, None)


def test_w8_the_missing_edge_and_then_overlap() -> None:
    rules = WindowRules(span=HOUR)
    parts = members("10:09-10:30", "10:30-11:00", "10:00-10:20")
    before = evaluated("10:00", parts[:2], rules)
    assert (before.ready, before.reason) == (False, "coverage")
    assert before.detail == "coverage missing before 10:09"
    after = evaluated("10:00", parts, rules)
    assert (after.used, after.ready) == ({"1", "2", "3"}, True)


def test_w9_allow_incomplete_needs_no_coverage_and_no_cutoff() -> None:
    evaluation = evaluated("10:00", members("10:00-10:30"), LOOSE, now=at("10:30"))
    assert (evaluation.used, evaluation.ready, evaluation.reason, evaluation.check_at) == (
        {"1"},
        True,
        None,
        None,
    )


def test_w10_the_desired_hash_is_the_same_in_any_order() -> None:
    first, second = (
        member(f"0000000{n}-0000-4000-8000-000000000000", "10:00-11:00", seq=n) for n in (1, 2)
    )  # fmt: skip
    expected = "64e6b929e9218779ced6c08927c078f7e0f0810055b508b74fa193cdbf32b315"
    assert evaluated("10:00", [first, second]).desired == expected
    assert evaluated("10:00", [second, first]).desired == expected


W11_DAY = "2024-01-15"
W11 = members("00:30-01:30", "01:45-02:15", "00:15-00:45", day=W11_DAY)


def test_w11_overlapping_slices_strict() -> None:
    evaluation = [
        evaluate(window(clock, day=W11_DAY), holds, STRICT, FAR)
        for clock, holds in zip(("00:00", "01:00", "02:00"), layout(W11, HOUR).values(), strict=True)
    ]
    assert [(one.used, one.ready, one.reason, one.detail) for one in evaluation] == [
        ({"1", "3"}, False, "coverage", "coverage missing before 00:15"),
        ({"1", "2"}, False, "gap", "gap 01:30-01:45"),
        ({"2"}, False, "coverage", "coverage missing after 02:15"),
    ]


def test_w11_overlapping_slices_allow_incomplete() -> None:
    found = layout(W11, HOUR)
    evaluation = [
        evaluate(Window(WindowKey("s", start, HOUR), 1), holds, LOOSE, FAR) for start, holds in found.items()
    ]
    assert [(one.used, one.ready) for one in evaluation] == [
        ({"1", "3"}, True), ({"1", "2"}, True), ({"2"}, True)
    ]  # fmt: skip
    assert [one.key.priority for one in evaluation] == [-1705280400, -1705284000, -1705287600]


def test_w12_ready_at_the_microsecond_of_the_cutoff() -> None:
    rules = WindowRules(span=HOUR, stc=parse_duration("PT6H"))
    day = "2024-01-15"
    slices = members("13:00-14:00", day=day)
    frame = between("13:00-14:00", day)
    assert cutoff(frame, rules) == at("20:00", day)
    early = readiness(frame, slices, rules, at("19:59:59.999999", day))
    assert (early.ready, early.reason, early.check_at) == (False, "cutoff", at("20:00:00", day))
    assert readiness(frame, slices, rules, at("20:00:00", day)).ready


def test_w13_a_slice_after_the_cutoff_of_a_served_window_is_ignored() -> None:
    on_time = member("a", "10:00-11:00", seq=1, arrival=at("11:00"))
    late = member("b", "10:00-12:00", seq=2, arrival=at("12:00:00.000001"))
    alone, both = evaluated("10:00", [on_time]), evaluated("10:00", [on_time, late])
    assert (both.used, both.ignored) == ({"a"}, {"b": "late"})
    assert both.desired == alone.desired
    assert evaluated("11:00", [late]).used == {"b"}


def test_w14_seven_hours_from_the_epoch() -> None:
    instant = at("14:23:45", "2024-01-15")
    (start,) = windows_of(Interval(instant, instant + 1), 7 * HOUR)
    assert Interval(start, start + 7 * HOUR) == between("09:00-16:00", "2024-01-15")


# --- alignment -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "instant", "expected"),
    [
        ("P1D", "2024-01-15T14:23:45Z", "2024-01-15T00:00:00Z"),
        ("7d", "2024-01-01T00:00:00Z", "2023-12-28T00:00:00Z"),
        ("PT90M", "2024-01-15T14:23:45Z", "2024-01-15T13:30:00Z"),
        ("PT1H", "2024-01-15T14:23:45Z", "2024-01-15T14:00:00Z"),
        ("1s", "2024-01-15T14:23:45.999999Z", "2024-01-15T14:23:45Z"),
        ("250ms", "2024-01-15T14:23:45.999999Z", "2024-01-15T14:23:45.750Z"),
        ("7h", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
        ("7h", "1969-12-31T23:59:59.999999Z", "1969-12-31T17:00:00Z"),
        ("1s", "1969-12-31T23:59:58.5Z", "1969-12-31T23:59:58Z"),
        ("PT90M", "1900-01-01T01:00:00Z", "1900-01-01T00:00:00Z"),
    ],
)
def test_windows_are_aligned_to_the_epoch_before_it_too(span: str, instant: str, expected: str) -> None:
    moment = parse_instant(instant)
    found = windows_of(Interval(moment, moment + 1), parse_duration(span))
    assert list(found) == [parse_instant(expected)]


@pytest.mark.parametrize(
    ("bounds", "starts"),
    [
        ("10:00-11:00", ["10:00"]),
        ("10:00-11:00:00.000001", ["10:00", "11:00"]),
        ("09:59:59.999999-10:00", ["09:00"]),
        ("09:59:59.999999-10:00:00.000001", ["09:00", "10:00"]),
        ("10:30-10:30:00.000001", ["10:00"]),
        ("10:30-10:30", []),
        ("10:00-10:00", []),
    ],
)
def test_bounds_touch_the_windows_they_overlap_and_no_neighbour(bounds: str, starts: list[str]) -> None:
    assert list(windows_of(between(bounds), HOUR)) == [at(start) for start in starts]


def test_bounds_across_the_epoch() -> None:
    assert list(windows_of(Interval(-HOUR - 1, HOUR + 1), HOUR)) == [-2 * HOUR, -HOUR, 0, HOUR]


def test_a_slice_of_years_is_in_every_window_and_costs_nothing_to_ask() -> None:
    starts = windows_of(Interval(0, parse_instant("2024-01-01T00:00:00Z")), SECOND)
    assert len(starts) == 1704067200
    assert (starts[0], starts[-1]) == (0, parse_instant("2023-12-31T23:59:59Z"))


# --- coverage and gaps, to the microsecond ---------------------------------------------------------

READY = (None, None)
COVERAGE, GAP = "coverage", "gap"
CASES = {
    "exactly": (["10:00-11:00"], *READY),
    "larger": (["09:00-12:00"], *READY),
    "far larger": ([Interval(-(10**17), 10**17)], *READY),
    "touching": (["10:00-10:30", "10:30-11:00"], *READY),
    "overlapping": (["10:00-10:40", "10:20-11:00"], *READY),
    "one within the other": (["10:00-11:00", "10:10-10:20"], *READY),
    "one within the other, then the rest": (["10:00-10:50", "10:10-10:20", "10:50-11:00"], *READY),
    "the same twice": (["10:00-11:00", "10:00-11:00"], *READY),
    "reaching over both edges": (["09:30-10:20", "10:20-11:30"], *READY),
    "empty but covering": (["10:00-10:15", "10:15-10:45", "10:45-11:00"], *READY),
    "start short of the tolerance": (["10:00:00.999999-11:00"], *READY),
    "start at the tolerance": (["10:00:01-11:00"], *READY),
    "start beyond the tolerance": (
        ["10:00:01.000001-11:00"], COVERAGE, "coverage missing before 10:00:01.000001"
    ),
    "end at the tolerance": (["10:00-10:59:59"], *READY),
    "end beyond the tolerance": (
        ["10:00-10:59:58.999999"], COVERAGE, "coverage missing after 10:59:58.999999"
    ),
    "both edges at the tolerance": (["10:00:01-10:59:59"], *READY),
    "both edges beyond": (["10:09-10:51"], COVERAGE, "coverage missing before 10:09 and after 10:51"),
    "a gap at the tolerance": (["10:00-10:30", "10:30:01-11:00"], *READY),
    "a gap beyond the tolerance": (
        ["10:00-10:30", "10:30:01.000001-11:00"], GAP, "gap 10:30-10:30:01.000001"
    ),
    "gaps are not added up": (
        ["10:00-10:10", "10:10:01-10:20", "10:20:01-10:30", "10:30:01-10:59:59"], *READY
    ),
    "two gaps": (["10:00-10:10", "10:20-10:30", "10:45-11:00"], GAP, "gap 10:10-10:20, 10:30-10:45"),
    "a gap that a third slice bridges": (["10:00-10:20", "10:40-11:00", "10:10-10:50"], *READY),
    "a gap that a slice within another does not hide": (
        ["10:00-10:30", "10:05-10:10", "10:45-11:00"], GAP, "gap 10:30-10:45"
    ),
    "an edge before a gap": (
        ["10:09-10:20", "10:40-11:00"], COVERAGE, "coverage missing before 10:09"
    ),
    "ends where the window starts": (
        ["09:00-10:00"], COVERAGE, "coverage missing between 10:00 and 11:00"
    ),
    "starts where the window ends": (
        ["11:00-12:00"], COVERAGE, "coverage missing between 10:00 and 11:00"
    ),
    "a neighbour does not cover the edge": (
        ["09:00-10:00", "10:09-11:00"], COVERAGE, "coverage missing before 10:09"
    ),
    "no bounds at all": ([None], COVERAGE, "coverage missing between 10:00 and 11:00"),
    "no bounds beside whole ones": ([None, "10:00-11:00"], *READY),
    "empty bounds cover nothing": (
        ["10:00-10:30", "10:30:01-10:30:01", "10:30:02-11:00"], GAP, "gap 10:30-10:30:02"
    ),
    "empty bounds alone": (
        ["10:30-10:30"], COVERAGE, "coverage missing between 10:00 and 11:00"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("bounds", "reason", "detail"), CASES.values(), ids=CASES)
def test_coverage(bounds: list[str | Interval | None], reason: str | None, detail: str | None) -> None:
    for slices in (members(*bounds), members(*bounds)[::-1]):
        evaluation = readiness(between("10:00-11:00"), slices, WindowRules(span=HOUR), FAR)
        assert (evaluation.ready, evaluation.reason, evaluation.detail) == (reason is None, reason, detail)
        assert evaluation.check_at is None


def test_tolerance_zero_and_larger_ones() -> None:
    frame = between("10:00-11:00")
    touching, apart = members("10:00-10:30", "10:30-11:00"), members("10:00-10:30", "10:30:00.000001-11:00")
    exact = WindowRules(span=HOUR, gap_tolerance=0)
    assert readiness(frame, touching, exact, FAR).ready
    assert readiness(frame, apart, exact, FAR).reason == "gap"
    assert readiness(frame, members("10:00:00.000001-11:00"), exact, FAR).reason == "coverage"
    wide = WindowRules(span=HOUR, gap_tolerance=15 * MINUTE)
    assert readiness(frame, members("10:15-10:30", "10:45-10:50"), wide, FAR).ready
    assert readiness(frame, members("10:15-10:30", "10:45:00.000001-10:50"), wide, FAR).reason == "gap"


@pytest.mark.parametrize("start", [-7 * HOUR, -SECOND, 0, at("10:00")])
@pytest.mark.parametrize("span", ["1d", "7h", "PT90M", "1h", "2s"])
def test_edges_and_gaps_are_the_same_for_every_span_and_before_the_epoch(start: int, span: str) -> None:
    length = parse_duration(span)
    begin = align(start, length)
    frame = Interval(begin, begin + length)
    rules = WindowRules(span=length, gap_tolerance=length // 4)
    middle, hole = begin + length // 2, length // 4

    def evaluation(*bounds: tuple[int, int]) -> str | None:
        return readiness(frame, members(*(Interval(*one) for one in bounds)), rules, FAR).reason

    assert evaluation((begin, frame.end)) is None
    assert evaluation((begin + hole, frame.end - hole)) is None
    assert evaluation((begin + hole + 1, frame.end)) == "coverage"
    assert evaluation((begin, frame.end - hole - 1)) == "coverage"
    assert evaluation((begin, middle), (middle + hole, frame.end)) is None
    assert evaluation((begin, middle), (middle + hole + 1, frame.end)) == "gap"


SHORT_AND_TOLERANT = WindowRules(span=SECOND)  # the tolerance is a second unless one says otherwise


def test_a_window_shorter_than_the_tolerance_is_complete_with_any_part_of_it() -> None:
    frame = Interval(at("10:00"), at("10:00:01"))
    part = members(Interval(frame.start, frame.start + 1))
    assert readiness(frame, part, SHORT_AND_TOLERANT, FAR).ready


def test_a_window_shorter_than_the_tolerance_is_not_complete_with_nothing() -> None:
    """A slice that only has a row in it, outside of its declared bounds, does not cover it."""
    frame = Interval(at("10:00"), at("10:00:01"))
    evaluation = readiness(frame, members("09:00-10:00"), SHORT_AND_TOLERANT, FAR)
    assert (evaluation.ready, evaluation.reason) == (False, "coverage")


def test_a_backfill_of_a_window_shorter_than_the_tolerance_counts() -> None:
    """Nothing came in time, so it was not served, however short it is."""
    late = member("a", Interval(at("10:00"), at("10:00:01")), arrival=at("12:00"))
    evaluation = evaluate(window("10:00", SHORT_AND_TOLERANT), [late], SHORT_AND_TOLERANT, FAR)
    assert (evaluation.used, evaluation.ignored, evaluation.ready, evaluation.seal) == ({"a"}, {}, True, 1)


# --- the order of reasons, and how they are told ---------------------------------------------------


def test_the_cutoff_is_told_before_coverage_and_coverage_before_gaps() -> None:
    frame = between("10:00-11:00")
    slices = members("10:09-10:20", "10:40-11:00")
    assert readiness(frame, slices, STRICT, at("11:59:59")).reason == "cutoff"
    assert readiness(frame, slices, STRICT, at("12:00")).reason == "coverage"
    assert readiness(frame, [*slices, *members("10:00-10:09")], STRICT, at("12:00")).reason == "gap"


@pytest.mark.parametrize("rules", [STRICT, LOOSE])
@pytest.mark.parametrize("now", [at("10:30"), FAR])
def test_no_slices_is_a_reason_of_its_own(rules: WindowRules, now: int) -> None:
    evaluation = readiness(between("10:00-11:00"), [], rules, now)
    assert (evaluation.ready, evaluation.reason, evaluation.check_at) == (False, "empty", None)


def test_a_window_within_a_day_tells_the_time_of_day_and_a_longer_one_the_whole_instant() -> None:
    def detail(start: int, span: int, *bounds: Interval) -> str | None:
        rules = WindowRules(span=span)
        return readiness(Interval(start, start + span), members(*bounds), rules, FAR).detail

    day = at("00:00")
    assert detail(day, DAY, between("00:00-23:30")) == "coverage missing after 23:30"
    assert detail(day + 23 * HOUR, HOUR, between("23:00-23:10"), between("23:50-24:00")) == "gap 23:10-23:50"
    assert (
        detail(day, WEEK, Interval(day + DAY, day + WEEK)) == "coverage missing before 2024-01-02T00:00:00Z"
    )
    night = at("22:00")
    assert detail(night, 7 * HOUR, Interval(night, night + HOUR)) == (
        "coverage missing after 2024-01-01T23:00:00Z"
    )


def test_the_last_window_of_all_can_be_told_about() -> None:
    """Its end is no instant that can be written, so it is told as what it is."""
    frame = Interval(MAX_INSTANT - HOUR, MAX_INSTANT)
    evaluation = readiness(
        frame, members(Interval(frame.start - HOUR, frame.start)), STRICT, MAX_INSTANT + DAY
    )
    assert evaluation.detail is not None
    assert evaluation.detail.startswith("coverage missing between ")
    assert "rom 1970" not in evaluation.detail.replace(" from 1970", "")


# --- who counts ------------------------------------------------------------------------------------


def names(used: Sequence[Member]) -> list[str]:
    return [one.name for one in used]


@pytest.mark.parametrize(("lateness", "delay"), [(0, 0), (2 * HOUR, 2 * HOUR)])
def test_a_slice_counts_when_it_arrives_at_the_last_instant_and_not_a_microsecond_later(
    lateness: int, delay: int
) -> None:
    rules = replace(STRICT, max_lateness=lateness)
    frame = between("10:00-11:00")
    whole = member("a", "10:00-11:00", 1, arrival=at("10:30"))
    last = member("b", "10:10-10:20", 2, arrival=at("12:00") + delay)
    beyond = member("c", "10:10-10:20", 3, arrival=at("12:00") + delay + 1)
    used, ignored = admit(frame, [beyond, last, whole], rules, sealed=None)
    assert (names(used), ignored) == (["a", "b"], {"c": "late"})


def test_reemit_does_not_delay_the_cutoff() -> None:
    rules = replace(STRICT, max_lateness=WEEK)
    assert cutoff(between("10:00-11:00"), rules) == at("12:00")
    assert readiness(between("10:00-11:00"), members("10:00-11:00"), rules, at("12:00")).ready


def test_what_came_in_time_but_does_not_cover_makes_a_backfill_of_everything() -> None:
    on_time = member("a", "10:00-10:20", 1, arrival=at("10:20"))
    later = member("b", "10:20-10:40", 2, arrival=at("20:00"))
    last = member("c", "10:40-11:00", 3, arrival=at("21:00"))
    partly = evaluated("10:00", [on_time, later])
    assert (partly.used, partly.ready, partly.seal) == ({"a", "b"}, False, None)
    whole = evaluated("10:00", [on_time, later, last])
    assert (whole.used, whole.ignored, whole.ready, whole.seal) == ({"a", "b", "c"}, {}, True, 3)


def test_a_sealed_window_keeps_what_it_was_built_of_and_ignores_the_rest() -> None:
    on_time = member("a", "10:00-10:20", 1, arrival=at("10:20"))
    late = [member(name, "10:00-11:00", seq, arrival=at("20:00")) for name, seq in (("b", 2), ("c", 3))]
    evaluation = evaluate(window("10:00", sealed=2), [on_time, *late], STRICT, FAR)
    assert (evaluation.used, evaluation.ignored, evaluation.ready, evaluation.seal) == (
        {"a", "b"},
        {"c": "late"},
        True,
        2,
    )


def test_a_seal_does_not_let_in_what_it_shut_out() -> None:
    """However often it is judged, and although a slice that came in time has a later place in the ledger."""
    slices = [
        member("a", "10:00-11:00", 1, arrival=at("20:00")),
        member("shut out", "10:00-11:00", 3, arrival=at("20:00")),
        member("b", "10:00-10:10", 5, arrival=at("11:00")),
    ]
    first = evaluate(window("10:00", sealed=2), slices, STRICT, FAR)
    again = evaluate(window("10:00", sealed=first.seal), slices, STRICT, FAR)
    for evaluation in (first, again):
        assert (evaluation.used, evaluation.ignored, evaluation.ready) == (
            {"a", "b"},
            {"shut out": "late"},
            True,
        )


def test_a_window_that_was_served_is_never_sealed() -> None:
    evaluation = evaluated("10:00", members("10:00-11:00"))
    assert (evaluation.ready, evaluation.seal) == (True, None)


def test_a_served_window_that_was_opened_again_takes_late_slices_up_to_its_seal() -> None:
    on_time = member("a", "10:00-11:00", 1, arrival=at("10:30"))
    late = [member(name, "10:10-10:20", seq, arrival=at("20:00")) for name, seq in (("b", 2), ("c", 3))]
    used, ignored = admit(between("10:00-11:00"), [on_time, *late], STRICT, sealed=2)
    assert (names(used), ignored) == (["a", "b"], {"c": "late"})


def test_allow_incomplete_is_served_by_any_slice_in_time_and_ignores_later_ones() -> None:
    on_time = member("a", "10:00-10:01", 1, arrival=at("12:00"))
    late = member("b", "10:00-11:00", 2, arrival=at("12:00:00.000001"))
    evaluation = evaluated("10:00", [on_time, late], LOOSE)
    assert (evaluation.used, evaluation.ignored, evaluation.ready, evaluation.seal) == (
        {"a"},
        {"b": "late"},
        True,
        None,
    )


def test_an_incomplete_backfill_is_ready_but_sealed_only_when_it_covers() -> None:
    first = member("a", "10:00-10:30", 1, arrival=at("20:00"))
    second = member("b", "10:30-11:00", 2, arrival=at("21:00"))
    partly, whole = evaluated("10:00", [first], LOOSE), evaluated("10:00", [first, second], LOOSE)
    assert (partly.used, partly.ready, partly.seal) == ({"a"}, True, None)
    assert (whole.used, whole.ready, whole.seal) == ({"a", "b"}, True, 2)


def test_the_seal_is_the_place_in_the_ledger_not_the_order_given() -> None:
    late = [member(name, "10:00-11:00", seq, arrival=at("20:00")) for name, seq in (("b", 9), ("a", 4))]
    assert evaluated("10:00", late).seal == 9


def test_sets_go_by_name_once_a_retraction_changed_what_a_slice_holds() -> None:
    again = replace(member("a", "10:00-11:00"), name="a~1")
    evaluation = evaluated("10:00", [again])
    assert (evaluation.used, evaluation.desired) == ({"a~1"}, set_hash(["a~1"]))


# --- withdrawal and finality -----------------------------------------------------------------------


def test_a_dataset_that_holds_what_is_gone_is_withdrawn_when_nothing_may_take_its_place() -> None:
    left = replace(member("a", "10:00-10:30"), observed=True)
    both = window("10:00", observed=set_hash(["a", "b"]), revision=1)
    assert evaluate(both, [left], STRICT, FAR).withdraw
    assert evaluate(both, [], STRICT, FAR).withdraw
    whole = replace(left, bounds=between("10:00-11:00"))
    assert not evaluate(both, [whole], STRICT, FAR).withdraw  # it is built again instead
    assert not evaluate(both, [left], LOOSE, FAR).withdraw
    assert not evaluate(replace(both, observed=None), [left], STRICT, FAR).withdraw
    assert not evaluate(replace(both, observed=set_hash(["a"])), [left], STRICT, FAR).withdraw


def test_final_means_that_nothing_which_still_arrives_counts() -> None:
    served = members("10:00-11:00")
    built = window("10:00", phase=Phase.BUILT)
    assert not is_final(built, served, STRICT, at("12:00"))  # what arrives at this instant still counts
    assert is_final(built, served, STRICT, at("12:00") + 1)
    assert not is_final(replace(built, phase=Phase.QUEUED), served, STRICT, FAR)
    reemit = replace(STRICT, max_lateness=HOUR)
    assert not is_final(built, served, reemit, at("13:00"))
    assert is_final(built, served, reemit, at("13:00") + 1)
    late = [replace(one, arrival=at("20:00")) for one in members("10:00-11:00")]
    assert not is_final(built, late, LOOSE, FAR)
    assert is_final(replace(built, sealed=1), late, LOOSE, FAR)
    expired = replace(LOOSE, raw_from=built.key.end)  # its raw is gone: it is not built again, whatever comes
    assert is_final(built, members("10:20-10:30"), expired, at("10:40"))
    assert not is_final(replace(built, phase=Phase.WAITING), late, expired, FAR)
