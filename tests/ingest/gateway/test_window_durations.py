"""The kinds of windows: how long one lasts at a rate, and the instant at which its time is over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config.gateway import (
    AdaptiveWindow,
    BufferWindow,
    FixedWindow,
    GatewaySettings,
    SessionWindow,
    SlidingWindow,
)
from tidemill.ingest.gateway.window_durations import closes_at, duration_of, is_moved, least_of
from tidemill.model.time import MILLISECOND, SECOND

INSTANTS = st.integers(-(10**15), 10**16)


def window_of(kind: str, **settings: str | int) -> BufferWindow:
    return GatewaySettings.model_validate({"window": {"kind": kind, **settings}}).window


ADAPTIVE = window_of("adaptive", min="10ms", max="5s", target=100)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0, 5 * SECOND),
        (10, 5 * SECOND),
        (1000, 100 * MILLISECOND),
        (10_000, 10 * MILLISECOND),
        (50_000, 10 * MILLISECOND),
        (20, 5 * SECOND),
        (40, 2_500_000),
        (1e-320, 5 * SECOND),
        (1e300, 10 * MILLISECOND),
    ],
)
def test_d1_adaptive_lasts_as_long_as_its_target_takes_to_come(rate: float, expected: int) -> None:
    assert duration_of(ADAPTIVE, rate) == expected


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_adaptive_is_never_longer_at_a_higher_rate(one: float, other: float) -> None:
    slow, fast = sorted((one, other))
    assert 10 * MILLISECOND <= duration_of(ADAPTIVE, fast) <= duration_of(ADAPTIVE, slow) <= 5 * SECOND


@pytest.mark.parametrize("rate", [0.0, 10.0, 50_000.0])
def test_the_others_do_not_follow_the_rate(rate: float) -> None:
    assert duration_of(window_of("fixed", size="2s"), rate) == 2 * SECOND
    assert duration_of(window_of("tumbling", size="2s"), rate) == 2 * SECOND
    assert duration_of(window_of("sliding", size="4s", step="1s"), rate) == SECOND
    assert duration_of(window_of("session", gap="1s", max="3s"), rate) == 3 * SECOND


@pytest.mark.parametrize("kind", ["fixed", "tumbling"])
@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (0, 100), (1, 100), (99, 100), (100, 200), (250, 300), (-1, 0), (-100, 0), (-101, -100),
    ],
)  # fmt: skip
def test_fixed_closes_at_the_next_multiple_since_the_epoch(kind: str, since: int, expected: int) -> None:
    """One that begins exactly at a boundary lasts a whole size."""
    window = window_of(kind, size="100us")
    assert closes_at(window, since, since, 0.0) == closes_at(window, since, since + 50, 1e6) == expected


@given(INSTANTS, st.integers(1, 10**9))
def test_a_fixed_window_ends_after_it_begins_and_within_its_size(since: int, size: int) -> None:
    end = closes_at(window_of("fixed", size=f"{size}us"), since, since, 0.0)
    assert since < end <= since + size
    assert end % size == 0


def test_sliding_closes_at_every_step() -> None:
    window = window_of("sliding", size="5s", step="2s")
    assert closes_at(window, 3 * SECOND, 3 * SECOND, 0.0) == 4 * SECOND
    assert closes_at(window, 4 * SECOND, 5 * SECOND, 0.0) == 6 * SECOND


def test_session_closes_after_its_gap_and_at_its_longest_in_any_case() -> None:
    window = window_of("session", gap="500ms", max="5s")
    assert closes_at(window, 0, 0, 0.0) == 500 * MILLISECOND
    assert closes_at(window, 0, 2 * SECOND, 0.0) == 2_500_000
    assert closes_at(window, 0, 4_600_000, 0.0) == 5 * SECOND


def test_an_open_adaptive_window_follows_the_rate() -> None:
    assert closes_at(ADAPTIVE, 7, 7, 0.0) == 7 + 5 * SECOND
    assert closes_at(ADAPTIVE, 7, 9, 1000.0) == 7 + 100 * MILLISECOND
    assert closes_at(ADAPTIVE, 7, 9, 50.0) == 7 + 2 * SECOND


def test_who_waits_waits_for_the_least_that_an_adaptive_window_lasts() -> None:
    assert least_of(ADAPTIVE) == 10 * MILLISECOND
    assert [least_of(window_of(kind)) for kind in ("fixed", "tumbling", "sliding", "session")] == [0] * 4


def test_a_change_of_the_rate_concerns_an_adaptive_window_that_would_last_otherwise() -> None:
    assert is_moved(ADAPTIVE, 1000, 100)
    assert is_moved(ADAPTIVE, 0, 100)
    assert not is_moved(ADAPTIVE, 19, 1)  # 5 s at both
    assert not is_moved(ADAPTIVE, 90_000, 11_000)  # 10 ms at both
    assert is_moved(window_of("fixed"), 19, 1)


def test_every_kind_is_known_here() -> None:
    known = {type(window_of(kind)) for kind in ("fixed", "tumbling", "sliding", "session", "adaptive")}
    assert known == {FixedWindow, SlidingWindow, SessionWindow, AdaptiveWindow}
