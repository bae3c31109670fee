"""The queue of windows in every store: priority, leases, compare-and-set, failures, and racing builders."""

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from dataclasses import replace

import pytest
from tests.storage.state.conftest import (
    Open,
    accept,
    assign,
    build_all,
    dataset_of,
    event_of,
    judge_due,
    key_of,
    members_at,
    name_of,
    queue,
    verdict_of,
    window_at,
)
from tests.support.patience import PATIENCE

from tidemill.model.slices import set_hash
from tidemill.model.time import HOUR, MINUTE, SECOND
from tidemill.model.windows import Phase, WindowKey
from tidemill.storage.state.protocol import State

SPAWN = multiprocessing.get_context("spawn")


# -- taking


def test_a_build_says_everything_that_a_builder_needs(state: State) -> None:
    accept(state, 1, 2, 3)
    assign(state, {3: [10], 1: [10], 2: [10]})
    ((window, members),) = state.due("requests", 0, 10)
    assert state.evaluate([replace(verdict_of(window, members, [1, 3]), seal=3, trigger="cutoff")]) == []
    (build,) = state.take("me", 5, MINUTE, 10)
    assert (build.key, build.owner, build.lease_until) == (key_of(10), "me", MINUTE)
    assert (build.attempt, build.revision, build.supersedes) == (1, 1, None)
    assert (build.trigger, build.seal) == ("cutoff", 3)
    assert build.desired == set_hash([name_of(1), name_of(3)])
    assert [member.slice for member in build.members] == [name_of(1), name_of(3)]
    assert all(member.desired for member in build.members)
    taken = window_at(state, 10)
    assert (taken.phase, taken.owner, taken.lease_until, taken.attempts) == (
        Phase.BUILDING, "me", MINUTE, 1,
    )  # fmt: skip
    assert state.take("other", 5, MINUTE, 10) == []
    assert state.queue_length() == 0


def test_w7_the_oldest_window_is_taken_first(state: State) -> None:
    queue(state, {1: [11, 9], 2: [10]})
    assert [build.key for build in state.take("me", 0, MINUTE, 2)] == [key_of(9), key_of(10)]
    assert [build.key for build in state.take("me", 0, MINUTE, 2)] == [key_of(11)]
    assert state.take("me", 0, MINUTE, 0) == []


def test_ties_go_by_stream_and_streams_can_be_chosen(state: State) -> None:
    queue(state, {1: [10, 9]}, stream="b")
    queue(state, {2: [10]}, stream="c")
    queue(state, {3: [10]}, stream="a")
    assert state.take("me", 0, MINUTE, 10, []) == []
    assert [build.key.stream for build in state.take("me", 0, MINUTE, 1, ["c", "nobody"])] == ["c"]
    state.release("me")
    taken = [(build.key.start // HOUR, build.key.stream) for build in state.take("me", 0, MINUTE, 10)]
    assert taken == [(9, "b"), (10, "a"), (10, "b"), (10, "c")]


def test_windows_of_one_second_have_one_priority_and_go_by_start(state: State) -> None:
    accept(state, 1)
    state.declare_layout("requests", SECOND // 4)
    state.assign("requests", {name_of(1): [SECOND // 2, SECOND // 4, 0]})
    judge_due(state)
    builds = state.take("me", 0, MINUTE, 10)
    assert {build.key.priority for build in builds} == {0}
    assert [build.key.start for build in builds] == [0, SECOND // 4, SECOND // 2]


def test_several_windows_are_only_taken_up_to_the_limit(state: State) -> None:
    """W15 at the level of the state: what one builder holds is what it asked for."""
    queue(state, {number: [number] for number in range(1, 6)})
    first = state.take("me", 0, MINUTE, 2)
    assert (len(first), state.queue_length(), state.window_counts("requests")[Phase.BUILDING]) == (2, 3, 2)


# -- leases


def test_w18_a_lease_runs_out_and_the_window_is_built_once(state: State) -> None:
    queue(state, {1: [10]})
    (lost,) = state.take("dead", 0, MINUTE, 10)
    assert state.take("me", MINUTE - 1, 2 * MINUTE, 10) == []
    (build,) = state.take("me", MINUTE, 2 * MINUTE, 10)
    assert (build.key, build.owner, build.attempt, build.revision) == (key_of(10), "me", 2, 1)
    assert state.complete(build, dataset_of(build), 70, [event_of("once")])
    assert not state.complete(lost, dataset_of(lost), 80, [event_of("twice")])
    assert not state.fail(lost, "late to fail", 0, 3)
    assert [event.id for event in state.outbox()] == ["once"]
    window = window_at(state, 10)
    assert (window.phase, window.revision, window.built_at, window.attempts) == (Phase.BUILT, 1, 70, 0)
    assert state.take("me", 1 << 60, 1 << 61, 10) == []


def test_a_lease_that_ran_out_goes_by_priority_like_the_rest(state: State) -> None:
    queue(state, {1: [10]})
    state.take("dead", 0, MINUTE, 10)
    queue(state, {2: [9], 3: [11]})
    assert [build.key for build in state.take("me", MINUTE, 2 * MINUTE, 2)] == [key_of(9), key_of(10)]
    assert [build.key for build in state.take("me", MINUTE, 2 * MINUTE, 2)] == [key_of(11)]


def test_a_lease_is_renewed_by_its_owner_only(state: State) -> None:
    queue(state, {1: [10, 11]})
    first, second = state.take("me", 0, MINUTE, 10)
    version = window_at(state, 10).version
    assert state.renew("other", [first.key], 9 * MINUTE) == []
    assert state.renew("me", [first.key, key_of(12)], 9 * MINUTE) == [first.key]
    assert window_at(state, 10).lease_until == 9 * MINUTE
    assert window_at(state, 10).version == version  # a judgement on it still holds
    assert [build.key for build in state.take("other", MINUTE, 2 * MINUTE, 10)] == [second.key]
    assert state.renew("me", [first.key, second.key], 10 * MINUTE) == [first.key]
    assert state.complete(first, dataset_of(first), 1)
    assert state.renew("me", [first.key], 11 * MINUTE) == []


def test_a_lease_that_ran_out_is_held_until_somebody_takes_the_window(state: State) -> None:
    queue(state, {1: [10]})
    (build,) = state.take("me", 0, MINUTE, 10)
    assert state.renew("me", [build.key], 5 * MINUTE) == [build.key]
    assert state.complete(build, dataset_of(build), 6 * MINUTE)


def test_what_is_released_is_as_if_it_had_not_been_taken(state: State) -> None:
    queue(state, {1: [10, 11, 12]})
    (first,) = state.take("me", 0, MINUTE, 1)
    assert state.fail(first, "broken", 7, 5)
    before = window_at(state, 10)
    state.take("me", 7, MINUTE, 2)
    state.take("other", 7, MINUTE, 1)
    assert state.release("me") == 2
    assert state.release("me") == state.release("nobody") == 0
    assert replace(window_at(state, 10), version=before.version) == before
    assert (window_at(state, 11).phase, window_at(state, 11).attempts) == (Phase.QUEUED, 0)
    assert window_at(state, 12).phase is Phase.BUILDING
    assert [build.attempt for build in state.take("me", 7, MINUTE, 2)] == [2, 1]


# -- compare and set


def test_a_completed_build_is_what_the_window_is_made_of(state: State) -> None:
    accept(state, 1, 2)
    assign(state, {1: [10], 2: [10]})
    ((window, members),) = state.due("requests", 0, 10)
    assert state.evaluate([replace(verdict_of(window, members, [1]), seal=1)]) == []
    (build,) = state.take("me", 0, MINUTE, 10)
    dataset = dataset_of(build)
    assert state.complete(build, dataset, 42, [event_of("a"), event_of("b")])
    after = window_at(state, 10)
    assert (after.phase, after.observed, after.revision) == (Phase.BUILT, build.desired, 1)
    assert (after.file, after.rows, after.bytes, after.built_at) == (dataset.file, 10, 1000, 42)
    assert (after.sealed, after.owner, after.lease_until, after.error) == (1, None, None, None)
    assert (after.attempts, after.not_before, after.trigger) == (0, 0, "complete")
    marks = members_at(state, 10)
    assert (marks[1].observed, marks[2].observed) == (True, False)
    assert state.member_counts([key_of(10)]) == {key_of(10): (1, 1, 1, 1)}
    assert [event.id for event in state.outbox()] == ["a", "b"]
    assert state.due("requests", 1 << 60, 10) == []


def test_a_revision_that_is_not_higher_is_refused(state: State) -> None:
    queue(state, {1: [10]})
    (build,) = build_all(state)
    state.force([build.key], "rebuild")
    judge_due(state)
    (again,) = state.take("me", 0, MINUTE, 10)
    before = window_at(state, 10)
    assert not state.complete(again, dataset_of(again, revision=1), 9, [event_of("no")])
    assert window_at(state, 10) == before
    assert state.outbox() == []
    assert state.complete(again, dataset_of(again, revision=7), 9)  # the next free number of the folder
    assert window_at(state, 10).revision == 7


def test_w19_the_newer_revision_stays_when_the_older_set_finishes_last(state: State) -> None:
    queue(state, {1: [10]})
    (old,) = state.take("slow", 0, MINUTE, 10)
    accept(state, 2)
    assign(state, {2: [10]})
    judge_due(state)
    assert window_at(state, 10).phase is Phase.BUILDING  # a window under lease keeps its phase
    (new,) = state.take("fast", MINUTE, 2 * MINUTE, 10)
    assert [member.slice for member in new.members] == [name_of(1), name_of(2)]
    assert new.attempt == 1  # another set: new tries
    assert state.complete(new, dataset_of(new), 3)
    assert not state.complete(old, dataset_of(old), 4)
    assert not state.complete(old, dataset_of(old, revision=9), 4)
    window = window_at(state, 10)
    assert (window.revision, window.observed) == (1, set_hash([name_of(1), name_of(2)]))


def test_an_owner_that_took_the_window_again_cannot_complete_its_older_set(state: State) -> None:
    queue(state, {1: [10]})
    (old,) = state.take("me", 0, MINUTE, 10)
    accept(state, 2)
    assign(state, {2: [10]})
    judge_due(state)
    (new,) = state.take("me", MINUTE, 2 * MINUTE, 10)
    assert not state.complete(old, dataset_of(old), 3)
    assert not state.fail(old, "broken", 0, 1)
    assert state.complete(new, dataset_of(new), 3)


def test_when_desired_moves_on_during_a_build_the_window_is_queued_again(state: State) -> None:
    queue(state, {1: [10]})
    (build,) = state.take("me", 0, MINUTE, 10)
    accept(state, 2)
    assign(state, {2: [10]})
    ((window, members),) = state.due("requests", 0, 10)
    assert state.evaluate([replace(verdict_of(window, members), trigger="slices")]) == []
    assert state.complete(build, dataset_of(build), 1)
    after = window_at(state, 10)
    assert (after.phase, after.revision, after.observed) == (Phase.QUEUED, 1, build.desired)
    assert {number: member.observed for number, member in members_at(state, 10).items()} == {
        1: True, 2: False,
    }  # fmt: skip
    (again,) = state.take("me", 0, MINUTE, 10)
    assert (again.revision, again.supersedes, again.trigger, again.attempt) == (2, 1, "slices", 1)
    assert state.complete(again, dataset_of(again), 2)
    assert window_at(state, 10).phase is Phase.BUILT


def test_when_a_slice_arrives_but_is_not_judged_the_build_is_completed_and_the_window_stays_due(
    state: State,
) -> None:
    queue(state, {1: [10]})
    (build,) = state.take("me", 0, MINUTE, 10)
    accept(state, 2)
    assign(state, {2: [10]})
    assert state.complete(build, dataset_of(build), 1)
    assert window_at(state, 10).phase is Phase.BUILT
    assert [window.key for window, _ in state.due("requests", 0, 10)] == [key_of(10)]


@pytest.mark.parametrize("end", ["complete", "fail", "release", "lease"])
def test_when_a_window_is_no_longer_ready_it_waits_after_the_build(state: State, end: str) -> None:
    queue(state, {1: [10]})
    (build,) = state.take("me", 0, MINUTE, 10)
    accept(state, 2)
    assign(state, {2: [10]})
    judge_due(state, ready=False)
    if end == "complete":
        assert state.complete(build, dataset_of(build), 1)
    elif end == "fail":
        assert state.fail(build, "broken", 0, 3)
    elif end == "release":
        assert state.release("me") == 1
    assert state.take("other", MINUTE, 2 * MINUTE, 10) == []
    after = window_at(state, 10)
    assert (after.phase, after.reason, after.owner, after.attempts) == (Phase.WAITING, "gap", None, 0)


def test_many_are_completed_in_one_go_each_for_itself(state: State) -> None:
    queue(state, {1: [9, 10, 11]})
    builds = state.take("me", 0, MINUTE, 10)
    assert state.force([key_of(10)], "rebuild") == [key_of(10)]
    done = [(build, dataset_of(build), [event_of(f"e{build.key.start // HOUR}")]) for build in builds]
    assert state.complete_all(done, 5) == [True, False, True]
    assert state.complete_all(done, 6) == [False, False, False]
    assert state.complete_all([], 6) == []
    assert [event.id for event in state.outbox()] == ["e9", "e11"]


# -- failures


def test_no_window_waits_longer_than_the_longest_delay_when_the_clock_is_put_back(state: State) -> None:
    queue(state, {1: [10]})
    (build,) = state.take("me", 1000, 1060, 10)
    assert state.fail(build, "disk full", not_before=1030, tries=3)
    assert state.take("me", 100, 160, 10, longest=930) == []
    (again,) = state.take("me", 100, 160, 10, longest=929)
    assert again.attempt == 2


def test_a_lease_that_is_void_is_taken_unless_it_was_renewed(state: State) -> None:
    queue(state, {1: [10]})
    (build,) = state.take("me", 0, MINUTE, 10)
    assert state.take("you", 5 * MINUTE, 6 * MINUTE, 10, void={}) == []  # whatever the clock says
    assert state.renew("me", [build.key], 2 * MINUTE) == [build.key]
    assert state.take("you", 0, MINUTE, 10, void={build.key: MINUTE}) == []
    (taken,) = state.take("you", 0, MINUTE, 10, void={build.key: 2 * MINUTE})
    assert (taken.owner, taken.attempt) == ("you", 2)


def test_w16_a_failed_build_is_back_at_the_same_priority_and_then_built(state: State) -> None:
    queue(state, {1: [10]})
    (build,) = state.take("me", 0, MINUTE, 10)
    assert state.fail(build, "disk full", not_before=30, tries=3)
    window = window_at(state, 10)
    assert (window.phase, window.error, window.not_before) == (Phase.QUEUED, "disk full", 30)
    assert (window.attempts, window.owner, window.revision) == (1, None, 0)
    assert state.queue_length() == 1
    assert not state.fail(build, "again", 0, 3)
    assert state.take("me", 29, MINUTE, 10) == []
    queue(state, {2: [11]})
    first, second = state.take("me", 30, MINUTE, 10)
    assert (first.key, first.attempt, second.key) == (key_of(10), 2, key_of(11))
    assert state.complete(first, dataset_of(first), 40)
    window = window_at(state, 10)
    assert (window.phase, window.error, window.attempts, window.revision) == (Phase.BUILT, None, 0, 1)


def test_w17_a_window_that_always_fails_is_set_aside_and_blocks_nobody(state: State) -> None:
    queue(state, {1: [9], 2: [10]})
    now, built, tries = 0, [], 0
    while state.queue_length():
        now += 10
        for build in state.take("me", now, now + MINUTE, 1):
            if build.key == key_of(9):
                tries += 1
                assert state.fail(build, f"try {build.attempt}", now + 15, 3)
            else:
                built.append(build.key)
                assert state.complete(build, dataset_of(build), now)
    assert (built, tries) == ([key_of(10)], 3)
    window = window_at(state, 9)
    assert (window.phase, window.attempts, window.error) == (Phase.FAILED, 3, "try 3")
    assert [found.key for found in state.windows(phase=Phase.FAILED)] == [key_of(9)]
    assert state.take("me", 1 << 60, 1 << 61, 10) == []


def test_a_failed_window_is_retried_with_all_its_tries(state: State) -> None:
    queue(state, {1: [9, 10], 2: [11]})
    for build in state.take("me", 0, MINUTE, 10):
        assert state.fail(build, "broken", 1000, 1)
    assert state.retry("requests", 7 * HOUR) == state.retry("other") == 0
    assert state.retry("requests", 10 * HOUR) == 1
    window = window_at(state, 10)
    assert (window.phase, window.attempts, window.not_before, window.error) == (Phase.QUEUED, 0, 0, None)
    assert state.retry("requests") == 2
    assert [build.attempt for build in state.take("me", 0, MINUTE, 10)] == [1, 1, 1]
    assert state.retry("requests") == 0


@pytest.mark.parametrize("tries", [1, 3], ids=["failed", "delayed"])
def test_the_same_set_judged_again_gets_no_new_tries(state: State, tries: int) -> None:
    queue(state, {1: [10]})
    (build,) = state.take("me", 0, MINUTE, 10)
    assert state.fail(build, "broken", 1000, tries)
    before = window_at(state, 10)
    accept(state, 2)
    assign(state, {2: [10]})
    ((window, members),) = state.due("requests", 0, 10)
    assert state.evaluate([verdict_of(window, members, [1])]) == []  # the new one is late
    assert replace(window_at(state, 10), version=before.version) == before


@pytest.mark.parametrize("tries", [1, 3], ids=["failed", "delayed"])
def test_another_set_gets_new_tries_at_once(state: State, tries: int) -> None:
    queue(state, {1: [10]})
    (build,) = state.take("me", 0, MINUTE, 10)
    assert state.fail(build, "broken", 1000, tries)
    accept(state, 2)
    assign(state, {2: [10]})
    judge_due(state)
    window = window_at(state, 10)
    assert (window.phase, window.attempts, window.not_before, window.error) == (Phase.QUEUED, 0, 0, None)
    (again,) = state.take("me", 0, MINUTE, 10)
    assert again.attempt == 1


def test_a_set_that_moved_on_while_its_build_failed_has_no_delay(state: State) -> None:
    queue(state, {1: [10]})
    (build,) = state.take("me", 0, MINUTE, 10)
    accept(state, 2)
    assign(state, {2: [10]})
    judge_due(state)
    assert state.fail(build, "broken", 1000, 1)
    (again,) = state.take("me", 0, MINUTE, 10)
    assert (again.attempt, len(again.members)) == (1, 2)


def test_the_tries_of_a_builder_that_dies_are_counted(state: State) -> None:
    """It cannot say that it failed: whoever takes the window next sees how often it was tried."""
    queue(state, {1: [10]})
    attempts = [
        state.take("dying", minute * MINUTE, (minute + 1) * MINUTE, 1)[0].attempt for minute in range(4)
    ]
    assert attempts == [1, 2, 3, 4]


# -- builders side by side


def test_threads_never_take_the_same_window(state: State) -> None:
    queue(state, {1: list(range(60))})
    taken: list[WindowKey] = []

    def work(owner: str) -> None:
        while builds := state.take(owner, 0, MINUTE, 2):
            taken.extend(build.key for build in builds)
            results = state.complete_all([(build, dataset_of(build), ()) for build in builds], 1)
            assert all(results)

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(taken) == Counter(key_of(hour) for hour in range(60))
    assert state.window_counts("requests")[Phase.BUILT] == 60


def _build_in_process(opener: Open, owner: str) -> None:
    opened = opener()
    while builds := opened.take(owner, 0, MINUTE, 1):
        (build,) = builds
        assert opened.complete(build, dataset_of(build), 1, [event_of(f"{owner}:{build.key.start}")])
    opened.close()


def test_processes_never_take_the_same_window(opener: Open, state: State) -> None:
    queue(state, {1: list(range(60))})
    workers = [SPAWN.Process(target=_build_in_process, args=(opener, f"p{number}")) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert [worker.exitcode for worker in workers] == [0, 0]
    built = Counter(int(event.id.split(":")[1]) // HOUR for event in state.outbox())
    assert built == Counter(range(60))
    assert {window.revision for window in state.windows()} == {1}


def _take_and_die(opener: Open) -> None:
    opener().take("dead", 0, MINUTE, 3)


def test_what_a_dead_process_held_is_built_by_another(opener: Open, state: State) -> None:
    queue(state, {1: list(range(5))})
    worker = SPAWN.Process(target=_take_and_die, args=(opener,))
    worker.start()
    worker.join(PATIENCE)
    assert state.window_counts("requests")[Phase.BUILDING] == 3
    assert len(build_all(state, now=1)) == 2
    assert len(build_all(state, now=MINUTE)) == 3
    assert {(window.phase, window.revision) for window in state.windows()} == {(Phase.BUILT, 1)}
