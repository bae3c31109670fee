"""Instants, durations and half-open intervals."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.errors import InputError
from tidemill.model.time import (
    DAY,
    HOUR,
    MAX_INSTANT,
    MIN_INSTANT,
    MINUTE,
    SECOND,
    WEEK,
    Interval,
    align,
    cut,
    format_duration,
    format_instant,
    from_datetime,
    iso_duration,
    parse_duration,
    parse_instant,
    to_datetime,
)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("5s", 5 * SECOND),
        ("1m", MINUTE),
        ("1h", HOUR),
        ("250ms", 250_000),
        ("7us", 7),
        ("2h30m", 2 * HOUR + 30 * MINUTE),
        ("2h 30m", 2 * HOUR + 30 * MINUTE),
        ("1.5h", 90 * MINUTE),
        ("0.000001s", 1),
        ("400d", 400 * DAY),
        ("1w", WEEK),
        ("0", 0),
        ("0s", 0),
        ("PT1H", HOUR),
        ("P1D", DAY),
        ("P1W", WEEK),
        ("P1DT2H3M4.5S", DAY + 2 * HOUR + 3 * MINUTE + 4_500_000),
        ("PT0S", 0),
    ],
)
def test_duration_is_read_exactly(text: str, us: int) -> None:
    assert parse_duration(text) == us


@pytest.mark.parametrize(
    "text",
    ["", "s", "5", "5 parsecs", "-5s", "5s-", "P", "PT", "P1DT", "P1Y", "P1M", "p1d", "1.h", "٥s",
     "0.0000001s", "9" * 5000 + "s", 5, True],
)  # fmt: skip
def test_what_is_not_a_duration_is_refused_with_examples(text: str | int) -> None:
    with pytest.raises(InputError) as caught:
        parse_duration(text)
    assert "PT1H" in caught.value.hint


@given(st.integers(0, 10_000 * DAY))
def test_duration_reads_back_what_it_prints(us: int) -> None:
    assert parse_duration(format_duration(us)) == us


@pytest.mark.parametrize(("us", "text"), [(0, "0s"), (5 * SECOND, "5s"), (90 * MINUTE, "1h30m"),
                                          (WEEK, "7d"), (-MINUTE, "-1m"), (1_500, "1ms500us")])  # fmt: skip
def test_duration_prints_short(us: int, text: str) -> None:
    assert format_duration(us) == text


@given(st.integers(0, 1 << 62))
def test_iso_duration_is_read_back(us: int) -> None:
    assert parse_duration(iso_duration(us)) == us


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "PT0S"),
        (HOUR, "PT1H"),
        (6 * HOUR, "PT6H"),
        (DAY, "P1D"),
        (WEEK, "P7D"),
        (36 * HOUR, "P1DT12H"),
        (90 * MINUTE + 5 * SECOND, "PT1H30M5S"),
        (250_000, "PT0.25S"),
        (DAY + 1, "P1DT0.000001S"),
    ],
)
def test_iso_duration_is_the_usual_spelling(us: int, text: str) -> None:
    assert iso_duration(us) == text


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2024-01-15T14:23:45Z", 1_705_328_625_000_000),
        ("2024-01-15 14:23:45", 1_705_328_625_000_000),
        ("2024-01-15t15:23:45+01:00", 1_705_328_625_000_000),
        ("2024-01-15T09:23:45-0500", 1_705_328_625_000_000),
        ("2024-01-15T09:23:45-05", 1_705_328_625_000_000),
        ("2024-01-15T14:23", 1_705_328_580_000_000),
        ("2024-01-15", 1_705_276_800_000_000),
        ("1970-01-01T00:00:00.000001999Z", 1),
        ("1969-12-31T23:59:59,5Z", -500_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),
    ],
)
def test_instant_is_read_exactly_and_no_offset_means_utc(text: str, us: int) -> None:
    assert parse_instant(text) == us


@pytest.mark.parametrize("text", ["", "now", "2024", "2024-1-5", "2024-02-30", "2024-01-01T24:00:00Z",
                                  "2024-01-01T00:00:00+24:00", "2024-01-01T00:00:61Z", "٢٠٢٤-01-01",
                                  "20240101T000000Z", "0000-01-01", "1704106800"])  # fmt: skip
def test_what_is_not_an_instant_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_instant(text)
    assert "2024-01-15T14:23:45Z" in caught.value.hint


@given(st.integers(MIN_INSTANT, MAX_INSTANT - 1))
def test_instant_reads_back_what_it_prints(us: int) -> None:
    assert parse_instant(format_instant(us)) == us
    assert from_datetime(to_datetime(us)) == us


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_500_000, "1970-01-01T00:00:01.500Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (MIN_INSTANT, "0001-01-01T00:00:00Z"),
        (MAX_INSTANT - 1, "9999-12-31T23:59:59.999999Z"),
        (MAX_INSTANT, "+2932897d from 1970"),
        (MIN_INSTANT - DAY, "-719163d from 1970"),
    ],
)
def test_instant_prints_the_digits_it_needs(us: int, text: str) -> None:
    assert format_instant(us) == text


def test_naive_datetime_is_refused_and_other_zones_are_converted() -> None:
    with pytest.raises(InputError, match="without a time zone"):
        from_datetime(datetime(2024, 1, 1))  # noqa: DTZ001
    tokyo = timezone(timedelta(hours=9))
    assert from_datetime(datetime(1970, 1, 1, 9, tzinfo=tokyo)) == 0
    assert to_datetime(HOUR) == datetime(1970, 1, 1, 1, tzinfo=UTC)


def test_w14_windows_are_aligned_to_the_epoch_for_spans_that_do_not_divide_a_day() -> None:
    start = align(parse_instant("2024-01-15T14:23:45Z"), 7 * HOUR)
    assert format_instant(start) == "2024-01-15T09:00:00Z"
    assert format_instant(start + 7 * HOUR) == "2024-01-15T16:00:00Z"


@given(st.integers(MIN_INSTANT, MAX_INSTANT), st.integers(1, 400 * DAY))
def test_every_instant_lies_in_its_window_before_1970_too(us: int, span: int) -> None:
    start = align(us, span)
    assert start <= us < start + span
    assert start % span == 0


def test_intervals_are_half_open() -> None:
    ten = Interval(10, 20)
    assert [ten.holds(us) for us in (9, 10, 19, 20)] == [False, True, True, False]
    assert not ten.overlaps(Interval(20, 30))
    assert not ten.overlaps(Interval(0, 10))
    assert ten.overlaps(Interval(19, 20))
    assert str(Interval(0, SECOND)) == "[1970-01-01T00:00:00Z, 1970-01-01T00:00:01Z)"


def test_reversed_interval_is_refused_and_an_empty_one_is_not() -> None:
    with pytest.raises(InputError, match="before it starts"):
        Interval(1, 0)
    assert list(Interval(5, 5).windows(10)) == []


@pytest.mark.parametrize(("start", "end", "starts"), [(0, 10, [0]), (0, 11, [0, 10]), (9, 10, [0]),
                                                      (-1, 1, [-10, 0]), (12, 35, [10, 20, 30])])  # fmt: skip
def test_windows_that_an_interval_touches(start: int, end: int, starts: list[int]) -> None:
    assert list(Interval(start, end).windows(10)) == starts


def test_a_span_is_cut_by_others_each_instant_once() -> None:
    chance = random.Random(3)
    for _ in range(200):
        start = chance.randrange(20)
        span = Interval(start, start + chance.randrange(20))
        gone = [
            Interval(at, at + chance.randrange(8)) for at in chance.choices(range(40), k=chance.randrange(5))
        ]
        pieces = list(cut(span, gone))
        assert [at for piece, _ in pieces for at in range(piece.start, piece.end)] == list(
            range(span.start, span.end)
        )
        for piece, is_gone in pieces:
            assert all(any(one.holds(at) for one in gone) == is_gone for at in range(piece.start, piece.end))
        assert all(one[1] != other[1] for one, other in pairwise(pieces))
