"""When a chain is compacted and which of its rows become one: the rules alone, without a table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config.vectors import CompactionSettings
from tidemill.model.time import DAY, MINUTE, SECOND
from tidemill.outputs.vectors.rules import HOT, NONE, ChainFacts, Chains, Reason, merges, needed, needs

NOW = 1_000 * MINUTE


def settings(strategy: str, **more: object) -> CompactionSettings:
    """Compacted by none of the triggers unless the test says so."""
    quiet = {"delta_threshold": 1000, "max_chain_length": 1000, "time_threshold": "3650d"}
    return CompactionSettings.model_validate({"strategy": strategy, **quiet, **more})


def pending(*ts: int, checkpoints: int = 0, reads: int = 0) -> ChainFacts:
    """Deltas, the first of which may be checkpoints instead."""
    return ChainFacts(ts, [place < checkpoints for place in range(len(ts))], reads)


def groups(chain: ChainFacts, of: CompactionSettings, now: int = NOW) -> list[int]:
    return merges(chain.as_chains, of, now, np.array([chain.reads])).tolist()


def test_d6_of_100_pending_tiered_merge_keeps_the_youngest_10() -> None:
    """D6."""
    found = groups(pending(*range(100)), settings("tiered_merge", keep_recent=10))
    assert found == [0] * 90 + [NONE] * 10


def test_d6_with_a_checkpoint_before_them_it_goes_into_the_new_one() -> None:
    found = groups(pending(*range(6), checkpoints=1), settings("tiered_merge", keep_recent=2))
    assert found == [0, 0, 0, 0, NONE, NONE]


@pytest.mark.parametrize("count", [0, 1, 9, 10])
def test_tiered_merge_with_no_more_than_it_keeps_does_nothing_and_is_not_asked_for(count: int) -> None:
    of = settings("tiered_merge", keep_recent=10, delta_threshold=1, time_threshold="1s")
    assert groups(pending(*range(count)), of) == [NONE] * count
    assert needs(pending(*range(count)), of, NOW) is None
    assert needs(pending(*range(15)), of, NOW) is Reason.COUNT


def test_full_merge_takes_all_and_leaves_a_lone_checkpoint_alone() -> None:
    of = settings("full_merge")
    assert groups(pending(1, 2, 3), of) == [0, 0, 0]
    assert groups(pending(1, checkpoints=1), of) == [NONE]


def test_d7_time_boundary_makes_one_row_of_each_interval_that_is_over() -> None:
    """D7: deltas at 0 s and 1 s, boundary 10 s."""
    of = settings("time_boundary", interval="10s")
    assert groups(pending(0, SECOND), of, 10 * SECOND) == [0, 0]
    assert groups(pending(0, SECOND), of, 10 * SECOND - 1) == [NONE, NONE]
    several = pending(0, SECOND, 10 * SECOND, 25 * SECOND, 31 * SECOND)
    assert groups(several, of, 39 * SECOND) == [0, 0, 1, 2, NONE]


def test_time_boundary_leaves_intervals_with_nothing_new_as_they_are() -> None:
    of = settings("time_boundary", interval="10s")
    found = groups(pending(SECOND, 12 * SECOND, 13 * SECOND, 21 * SECOND, checkpoints=2), of, DAY)
    assert found == [NONE, 0, 0, 1]


def test_boundaries_before_the_epoch_are_aligned_like_those_after_it() -> None:
    of = settings("time_boundary", interval="10s")
    assert groups(pending(-11 * SECOND, -SECOND, 0, SECOND), of, DAY) == [0, 1, 2, 2]


def test_adaptive_merges_hot_chains_in_full_and_cold_ones_tiered() -> None:
    of = settings("adaptive", keep_recent=2)
    reads = HOT // 5
    assert groups(pending(*range(5), reads=reads), of) == [0] * 5
    assert groups(pending(*range(5), reads=reads - 1), of) == [0, 0, 0, NONE, NONE]


def test_a_chain_that_stays_too_long_is_merged_in_full_whatever_the_strategy() -> None:
    of = settings("time_boundary", interval="10s", delta_threshold=1, max_chain_length=3)
    ts = [place * 10 * SECOND for place in range(4)]
    assert groups(pending(*ts[:3]), of, DAY) == [0, 1, 2]
    assert groups(pending(*ts), of, DAY) == [0, 0, 0, 0]
    assert needs(pending(*ts, checkpoints=3), of, DAY) is Reason.LENGTH


def test_each_reason_is_reached_and_the_gravest_is_told() -> None:
    of = settings("full_merge", delta_threshold=3, max_chain_length=4, time_threshold="1m")
    assert needs(pending(NOW, NOW), of, NOW) is None
    assert needs(pending(NOW - MINUTE + 1, NOW), of, NOW) is None
    assert needs(pending(NOW - MINUTE, NOW), of, NOW) is Reason.AGE
    assert needs(pending(NOW - MINUTE + 1, NOW), of, NOW + 1) is Reason.AGE
    assert needs(pending(NOW, NOW, NOW), of, NOW) is Reason.COUNT
    assert needs(pending(0, NOW, NOW, NOW, NOW, checkpoints=3), of, NOW) is Reason.LENGTH
    assert needs(pending(0, NOW, NOW, NOW, checkpoints=2), of, NOW) is None


def test_a_chain_is_not_written_anew_for_every_delta_that_comes() -> None:
    """One delta every 30 s: those that are merged are several at a time, and no more than half as many as are
    kept wait for that."""
    of = settings("tiered_merge", keep_recent=10, time_threshold="1m")
    ts: list[int] = []
    merged: list[int] = []
    for step in range(60):
        now = NOW + step * 30 * SECOND
        ts.append(now)
        if needs(pending(*ts), of, now) is not None:
            count = sum(group != NONE for group in groups(pending(*ts), of, now))
            merged.append(count)
            del ts[:count]
        assert len(ts) <= 15
    assert merged == [5] * 10


def test_few_deltas_are_merged_where_none_of_the_chain_stays() -> None:
    of = settings("adaptive", keep_recent=10, time_threshold="1m")
    few = [NOW - MINUTE, NOW]
    assert needs(pending(*few, reads=HOT), of, NOW) is Reason.AGE
    assert needs(pending(*few), of, NOW) is None
    many = settings("tiered_merge", keep_recent=200, delta_threshold=100)
    assert needs(pending(*range(201)), many, 201) is None
    assert needs(pending(*range(300)), many, 300) is Reason.COUNT


def test_the_age_of_a_checkpoint_does_not_count() -> None:
    of = settings("full_merge", time_threshold="1m")
    assert needs(pending(0, NOW, checkpoints=1), of, NOW) is None
    assert needs(pending(0, checkpoints=1), of, NOW) is None


chains = st.lists(
    st.tuples(st.lists(st.integers(-100, 100), min_size=1, max_size=12).map(sorted), st.integers(0, 12)),
    max_size=5,
)
strategies = st.sampled_from(["full_merge", "tiered_merge", "time_boundary", "adaptive"])


@given(
    found=chains,
    strategy=strategies,
    now=st.integers(-50, 150),
    keep=st.integers(0, 4),
    reads=st.integers(0, 400),
)
def test_chains_are_judged_as_if_each_were_alone(
    found: list[tuple[list[int], int]], strategy: str, now: int, keep: int, reads: int
) -> None:
    of = settings(
        strategy,
        keep_recent=keep,
        interval="10us",
        delta_threshold=4,
        max_chain_length=6,
        time_threshold="30us",
    )
    facts = [pending(*ts, checkpoints=n, reads=reads) for ts, n in found]
    together = Chains(
        np.cumsum([0, *(len(each.ts) for each in facts)]),
        np.array([ts for each in facts for ts in each.ts], np.int64),
        np.array([not done for each in facts for done in each.checkpoints], np.bool_),
    )
    counts = np.full(len(facts), reads)
    assert needed(together, of, now, counts).tolist() == [
        NONE if (why := needs(each, of, now)) is None else list(Reason).index(why) for each in facts
    ]
    alone = [groups(each, of, now) for each in facts]
    shifted: list[int] = []
    for each in alone:
        base = max((group + 1 for group in shifted if group != NONE), default=0)
        shifted += [NONE if group == NONE else base + group for group in each]
    assert merges(together, of, now, counts).tolist() == shifted


@given(found=chains.filter(bool), strategy=strategies, now=st.integers(-50, 150), keep=st.integers(0, 4))
def test_what_was_merged_is_not_merged_again(
    found: list[tuple[list[int], int]], strategy: str, now: int, keep: int
) -> None:
    """A second compaction with nothing new is a no-op."""
    of = settings(strategy, keep_recent=keep, interval="10us", delta_threshold=1, max_chain_length=6)
    for ts, checkpoints in found:
        chain = pending(*ts, checkpoints=checkpoints)
        once = groups(chain, of, now)
        left: list[tuple[int, bool]] = []
        for place, group in enumerate(once):
            if group == NONE:
                left.append((ts[place], chain.checkpoints[place]))
            elif place + 1 == len(once) or once[place + 1] != group:
                left.append((ts[place], True))
        again = ChainFacts([at for at, _ in left], [done for _, done in left])
        assert set(groups(again, of, now)) == {NONE}
        assert needs(again, of, now) is None
