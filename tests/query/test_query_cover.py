"""Which pieces make up a span: each instant once, from the coarsest source that still has it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.completeness import Available
from tidemill.model.levels import BY_NAME, LEVELS, Level
from tidemill.model.time import DAY, HOUR, MIN_INSTANT, MINUTE, SECOND, WEEK, Interval, parse_instant
from tidemill.query.cover import ALL_TIME, Cover, CoverPiece, cover, cover_cells, expired

DAY_ONE = parse_instant("2024-01-01T00:00:00Z")  # a Monday; weeks start on Thursdays
EVERYTHING = Available()


def at(text: str) -> int:
    return parse_instant(f"2024-01-01T{text}Z" if text[2] == ":" else text)


def span(start: str, end: str) -> Interval:
    return Interval(at(start), at(end))


def shown(made: Cover) -> list[tuple[str, int, int]]:
    """Pieces by how far they are from the start of the day."""
    return [(piece.source, piece.span.start - DAY_ONE, piece.span.end - DAY_ONE) for piece in made.pieces]


def test_an_aligned_span_is_read_from_one_level():
    assert shown(cover(span("10:00:00", "12:00:00"), EVERYTHING)) == [("1h", 10 * HOUR, 12 * HOUR)]


def test_finer_buckets_lie_towards_both_ends():
    assert shown(cover(span("10:07:00", "12:30:05"), EVERYTHING)) == [
        ("1m", 10 * HOUR + 7 * MINUTE, 11 * HOUR),
        ("1h", 11 * HOUR, 12 * HOUR),
        ("1m", 12 * HOUR, 12 * HOUR + 30 * MINUTE),
        ("5s", 12 * HOUR + 30 * MINUTE, 12 * HOUR + 30 * MINUTE + 5 * SECOND),
    ]


def test_below_five_seconds_raw_is_read():
    assert shown(cover(span("10:00:01.5", "10:00:12"), EVERYTHING)) == [
        ("raw", 10 * HOUR + 1_500_000, 10 * HOUR + 5 * SECOND),
        ("5s", 10 * HOUR + 5 * SECOND, 10 * HOUR + 10 * SECOND),
        ("raw", 10 * HOUR + 10 * SECOND, 10 * HOUR + 12 * SECOND),
    ]
    inside = cover(span("10:00:01", "10:00:02"), EVERYTHING)
    assert shown(inside) == [("raw", 10 * HOUR + SECOND, 10 * HOUR + 2 * SECOND)]


def test_an_empty_span_has_no_pieces():
    assert cover(span("10:00:01", "10:00:01"), EVERYTHING) == Cover()


def test_all_of_time_is_read_from_the_coarsest_level():
    assert cover(ALL_TIME, EVERYTHING).pieces == (CoverPiece(LEVELS[-1], ALL_TIME),)


def test_a_year_has_a_few_hundred_buckets_below_its_weeks():
    whole = cover(Interval(DAY_ONE + 123_456_789, DAY_ONE + 366 * DAY + 98_765_432_101), EVERYTHING)
    finer = [piece for piece in whole.pieces if piece.level is not None and piece.level.width < WEEK]
    assert sum((p.span.end - p.span.start) // p.level.width for p in finer if p.level) < 2 * (
        12 + 60 + 24 + 7
    )


def test_a_level_that_divides_the_interval_is_the_coarsest():
    made = cover(span("10:07:00", "12:30:00"), EVERYTHING, BY_NAME["1m"])
    assert shown(made) == [("1m", 10 * HOUR + 7 * MINUTE, 12 * HOUR + 30 * MINUTE)]


def test_expired_buckets_are_read_from_the_coarser_that_lie_inside():
    gone = Available({"5s": at("11:00:00"), "1m": at("11:00:00")}, raw=at("23:00:00"))
    assert shown(cover(span("09:00:00", "11:02:00"), gone)) == [
        ("1h", 9 * HOUR, 11 * HOUR),
        ("1m", 11 * HOUR, 11 * HOUR + 2 * MINUTE),
    ]


def test_expired_buckets_are_read_from_finer_ones_where_no_coarser_fits():
    gone = Available({"1h": at("2024-01-02T00:00:00Z")})
    assert shown(cover(span("09:00:00", "11:00:00"), gone)) == [("1m", 9 * HOUR, 11 * HOUR)]


def test_raw_that_is_still_there_stands_in_for_expired_buckets():
    gone = Available({"5s": at("20:00:00"), "1m": at("20:00:00")})
    assert shown(cover(span("10:59:00", "11:00:00"), gone)) == [("raw", 10 * HOUR + 59 * MINUTE, 11 * HOUR)]


def test_what_nothing_has_is_missing():
    gone = Available({"5s": at("20:00:00"), "1m": at("20:00:00")}, raw=at("20:00:00"))
    made = cover(span("10:07:00", "12:30:00"), gone)
    assert shown(made) == [("1h", 11 * HOUR, 12 * HOUR)]
    assert made.missing == (span("10:07:00", "11:00:00"), span("12:00:00", "12:30:00"))


def test_what_is_missing_says_why_and_what_to_do():
    gone = Available({"5s": at("20:00:00"), "1m": at("20:00:00")}, raw=at("20:00:00"))
    reported = expired(span("10:07:00", "11:00:00"), gone)
    assert reported.why == "expired"
    assert reported.detail == "5s, 1m and raw of [2024-01-01T10:07:00Z, 2024-01-01T11:00:00Z) expired"
    assert "whole 1h buckets" in reported.remedy
    every = Available({level.name: at("20:00:00") for level in LEVELS}, raw=at("20:00:00"))
    assert expired(Interval(ALL_TIME.start, at("20:00:00")), every).span.start == MIN_INSTANT


def test_each_cell_is_covered_by_itself():
    edges = [at("00:00:00"), at("05:45:00"), at("2024-01-02T05:45:00Z")]
    assert shown(cover_cells(edges, EVERYTHING)) == [
        ("1h", 0, 5 * HOUR),
        ("1m", 5 * HOUR, 5 * HOUR + 45 * MINUTE),
        ("1m", 5 * HOUR + 45 * MINUTE, 6 * HOUR),
        ("1h", 6 * HOUR, 29 * HOUR),
        ("1m", 29 * HOUR, 29 * HOUR + 45 * MINUTE),
    ]


HORIZON = st.none() | st.integers(0, 30).map(lambda days: DAY_ONE + (days - 15) * DAY)
SOURCES = st.builds(
    lambda levels, raw: Available({k: v for k, v in levels.items() if v is not None}, raw),
    st.fixed_dictionaries({level.name: HORIZON for level in LEVELS}),
    HORIZON,
)


@given(
    start=st.integers(DAY_ONE - 20 * DAY, DAY_ONE + 20 * DAY),
    length=st.integers(0, 10 * SECOND) | st.integers(0, 40 * DAY),
    available=SOURCES,
    coarsest=st.sampled_from(LEVELS),
)
def test_every_instant_is_read_once_or_missing_for_good(start, length, available, coarsest: Level):
    asked = Interval(start, start + length)
    made = cover(asked, available, coarsest)
    spans = sorted([*(piece.span for piece in made.pieces), *made.missing])
    assert sum(each.end - each.start for each in spans) == length
    assert all(one.end == other.start for one, other in pairwise(spans))
    for piece in made.pieces:
        assert piece.span.start < piece.span.end
        since = available.raw if piece.level is None else available.level_from(piece.level.name)
        assert since is None or piece.span.start >= since
        if piece.level is not None:
            assert piece.level.width <= coarsest.width
            assert piece.span.start % piece.level.width == piece.span.end % piece.level.width == 0
    for gone in made.missing:
        for instant in (gone.start, (gone.start + gone.end) // 2, gone.end - 1):
            assert available.raw is not None
            assert instant < available.raw
            for level in LEVELS[: LEVELS.index(coarsest) + 1]:
                bucket = Interval(
                    instant - instant % level.width, instant - instant % level.width + level.width
                )
                since = available.level_from(level.name)
                whole = asked.start <= bucket.start and bucket.end <= asked.end
                assert not whole or (since is not None and bucket.start < since)
