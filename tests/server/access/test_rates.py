"""Rate limits: a bucket for each token, by the time that is passed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.errors import RateLimitError, Retry
from tidemill.model.time import MILLISECOND, SECOND
from tidemill.server.access import LOCAL, Principal, RateLimits, Scope
from tidemill.server.access.rates import MAX_BUCKETS

NOW = 1_705_327_200 * SECOND


def someone(rate: int | None, name: str = "a") -> Principal:
    return Principal(name, None, frozenset({Scope.INGEST}), rate)


def test_one_seconds_worth_passes_at_once_and_then_as_it_refills():
    limits = RateLimits()
    for _ in range(10):
        limits.admit(someone(10), 1, NOW)
    with pytest.raises(RateLimitError) as raised:
        limits.admit(someone(10), 1, NOW)
    assert (raised.value.after, raised.value.retry) == (0.1, Retry.LATER)
    assert "10 events a second" in raised.value.message
    with pytest.raises(RateLimitError):
        limits.admit(someone(10), 1, NOW + 100 * MILLISECOND - 1)
    limits.admit(someone(10), 1, NOW + 100 * MILLISECOND)


def test_what_was_refused_costs_nothing():
    limits = RateLimits()
    limits.admit(someone(10), 10, NOW)
    for _ in range(100):
        with pytest.raises(RateLimitError):
            limits.admit(someone(10), 1, NOW)
    limits.admit(someone(10), 1, NOW + 100 * MILLISECOND)


def test_more_than_is_left_is_taken_and_paid_off_before_the_next():
    limits = RateLimits()
    limits.admit(someone(100), 500, NOW)
    with pytest.raises(RateLimitError) as raised:
        limits.admit(someone(100), 1, NOW)
    assert raised.value.after == 4.01
    with pytest.raises(RateLimitError):
        limits.admit(someone(100), 1, NOW + 4 * SECOND)
    limits.admit(someone(100), 500, NOW + 4 * SECOND + 10 * MILLISECOND)


@pytest.mark.parametrize("rate", [1, 2, 100, 1000])
def test_a_request_is_admitted_for_its_first_event_and_then_for_the_rest(rate):
    """What it took itself is not in its way, whatever the rate; what others took beyond the rate is."""
    limits = RateLimits()
    limits.admit(someone(rate), 1, NOW)
    limits.admit_rest(someone(rate), 499, NOW)
    assert limits._missing("a", NOW) == 500 * SECOND
    if rate < 500:
        with pytest.raises(RateLimitError):
            limits.admit_rest(someone(rate), 1, NOW)


def test_a_request_of_one_event_has_no_rest():
    limits = RateLimits()
    limits.admit(someone(1), 1, NOW)
    limits.admit_rest(someone(1), 0, NOW)
    limits.admit(someone(1), 1, NOW + SECOND)


def test_a_bucket_is_full_after_a_second_and_holds_no_more():
    limits = RateLimits()
    limits.admit(someone(10), 10, NOW)
    limits.admit(someone(10), 10, NOW + 3600 * SECOND)
    with pytest.raises(RateLimitError):
        limits.admit(someone(10), 1, NOW + 3600 * SECOND)


def test_each_token_has_a_bucket_of_its_own():
    limits = RateLimits()
    limits.admit(someone(1, "a"), 1, NOW)
    limits.admit(someone(1, "b"), 1, NOW)
    with pytest.raises(RateLimitError):
        limits.admit(someone(1, "a"), 1, NOW)


def test_without_a_rate_there_is_no_limit():
    limits = RateLimits()
    for _ in range(3):
        limits.admit(LOCAL, 10**9, NOW)
        limits.admit(someone(None), 10**9, NOW)


def test_a_clock_that_goes_back_gives_nothing():
    limits = RateLimits()
    limits.admit(someone(10), 10, NOW)
    for now in (NOW - SECOND, NOW):
        with pytest.raises(RateLimitError):
            limits.admit(someone(10), 1, now)


def test_tokens_that_rest_are_forgotten():
    limits = RateLimits()
    for number in range(MAX_BUCKETS):
        limits.admit(someone(1, f"t{number}"), 1, NOW)
    limits.admit(someone(1, "last"), 1, NOW + SECOND)
    assert set(limits._buckets) == {"last"}


@given(
    rate=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 3000)), max_size=40),
)
def test_nobody_gets_more_than_the_rate_a_second_and_one_request_ahead(rate, steps):
    limits, now, taken, largest = RateLimits(), NOW, 0, 0
    for pause, cost in steps:
        now += pause
        try:
            limits.admit(someone(rate), cost, now)
        except RateLimitError as error:
            now += round(error.after * SECOND)
            limits.admit(someone(rate), cost, now)  # it is enough to wait as long as one was told
        taken += cost
        largest = max(largest, cost)
        assert taken * SECOND < rate * (now - NOW) + (rate + largest) * SECOND
