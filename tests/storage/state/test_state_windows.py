"""Windows in every store: laid out, entered, found due, judged, forced, looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.storage.state.conftest import (
    NewStore,
    accept,
    assign,
    batch_of,
    build_all,
    dataset_of,
    event_of,
    judge_due,
    key_of,
    members_at,
    name_of,
    queue,
    result_of,
    slice_of,
    verdict_of,
    window_at,
)

from tidemill.model.errors import StorageError
from tidemill.model.slices import contribution_name, set_hash
from tidemill.model.time import DAY, HOUR, MINUTE, Interval
from tidemill.model.windows import Dataset, Phase, Window, WindowKey
from tidemill.storage.state.protocol import State


def starts(found: list[tuple[Window, list[object]]]) -> list[int]:
    return [window.key.start // HOUR for window, _ in found]


# -- looking at all of them


def test_each_window_comes_with_its_members(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.storage.state.sql_state._WINDOWS_AT_ONCE", 2)
    state.enter_all([slice_of(1), slice_of(2), slice_of(3), slice_of(4, "other")])
    accept(state, 1, 2, 3)
    accept(state, 4, stream="other")
    assign(state, {1: [0, 1, 2, 3, 4], 2: [1, 4], 3: [3]})
    found = list(state.each_window("requests"))
    assert found == [state.window(key_of(hour)) for hour in range(5)]
    assert [len(members) for _, members in found] == [1, 2, 1, 2, 2]
    some = state.each_window("requests", Interval(HOUR, 4 * HOUR))
    assert list(some) == found[1:4]
    assert list(state.each_window("other")) == []


# -- laying


def test_accepted_slices_are_unlaid_until_they_are_laid(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2), slice_of(3), slice_of(4, "other")])
    assert state.unassigned_slices("requests", 10) == []
    accept(state, 1, 2, 3)
    accept(state, 4, stream="other")
    assert state.unassigned_slices("requests", 2) == [state.slice(name_of(1)), state.slice(name_of(2))]
    assign(state, {1: [0], 2: []})
    assert [entry.seq for entry in state.unassigned_slices("requests", 10)] == [3]
    assert [entry.seq for entry in state.unassigned_slices("other", 10)] == [4]


def test_a_slice_that_failed_is_not_unlaid_until_it_is_accepted(state: State) -> None:
    state.enter(slice_of(1))
    state.apply_batch(replace(batch_of("b1", []), results=[result_of(1, 0, "damaged")]))
    assert state.unassigned_slices("requests", 10) == []
    accept(state, 1)
    assert [entry.id for entry in state.unassigned_slices("requests", 10)] == [name_of(1)]


def test_w3_a_slice_is_a_member_of_every_window_it_is_laid_in(state: State) -> None:
    accept(state, 1)
    assign(state, {1: [10, 11, 12]})
    found = state.windows_of(name_of(1))
    assert [window.key for window, _ in found] == [key_of(10), key_of(11), key_of(12)]
    entry = state.slice(name_of(1))
    assert entry is not None
    for window, member in found:
        assert (member.slice, member.seq, member.name) == (name_of(1), 1, name_of(1))
        assert (member.arrival, member.bounds) == (entry.slice.arrival, entry.bounds)
        assert (member.desired, member.observed, member.ignored) == (False, False, None)
        assert (window.phase, window.desired, window.observed, window.revision) == (
            Phase.WAITING, None, None, 0,
        )  # fmt: skip
    assert state.windows_of(name_of(2)) == []


def test_windows_that_end_by_an_instant_are_forgotten_and_others_stay(state: State) -> None:
    queue(state, {1: [10, 11, 12], 2: [10]})
    before = 12 * HOUR
    assert state.forget_windows("requests", before - 1) == 1  # the one of 11 ends a microsecond later
    assert state.forget_windows("requests", before) == 1
    assert state.forget_windows("requests", before) == 0
    assert [window.key for window in state.windows("requests")] == [key_of(12)]
    assert [window.key for window, _ in state.windows_of(name_of(1))] == [key_of(12)]
    assert state.windows_of(name_of(2)) == []
    assert state.member_counts([key_of(11)]) == {key_of(11): (0, 0, 0, 0)}
    assert state.queue_length("requests") == 1
    assert [build.key for build in state.take("me", 0, HOUR, 10)] == [key_of(12)]
    assert state.unassigned_slices("requests", 10) == []
    assert state.forget_windows("other", before) == 0  # nothing was laid out there


def test_a_member_has_what_its_sender_said_and_its_bounds(state: State) -> None:
    state.enter(replace(slice_of(1), metadata='{"name":"weather"}', declared=Interval(3, 9)))
    state.enter(replace(slice_of(2), declared=None))
    accept(state, 1, 2)
    assign(state, {1: [0], 2: [0]})
    members = members_at(state, 0)
    assert (members[1].metadata, members[1].bounds) == ('{"name":"weather"}', Interval(3, 9))
    assert (members[2].metadata, members[2].bounds) == (None, Interval(5, 50))  # as observed
    entry = state.slice(name_of(1))
    assert entry is not None
    assert entry.slice.metadata == '{"name":"weather"}'


def test_to_lay_a_slice_again_changes_nothing(state: State) -> None:
    queue(state, {1: [0]})
    before, version = state.dump(), window_at(state, 0).version
    assign(state, {1: [0]})
    assert state.due("requests", 0, 10) == []
    assert window_at(state, 0).version == version
    assert state.dump() == before


def test_what_is_not_accepted_or_not_known_is_not_laid(state: State) -> None:
    state.enter(slice_of(1))
    assign(state, {1: [0]})
    assert state.windows() == []
    with pytest.raises(StorageError, match=name_of(2)):
        assign(state, {2: [0]})
    accept(state, 3, stream="other")
    with pytest.raises(StorageError, match="are not assigned"):
        state.assign("other", {name_of(3): [0]})


def test_another_span_forgets_the_windows_and_lays_everything_again(state: State) -> None:
    queue(state, {1: [0], 2: [1]})
    queue(state, {9: [0]}, stream="other")
    (building,) = state.take("me", 0, MINUTE, 1, ["requests"])
    assert state.span("requests") == HOUR
    assert state.span("nobody") is None
    state.declare_layout("requests", HOUR)
    assert len(state.windows("requests")) == 2
    state.declare_layout("requests", DAY)
    assert state.span("requests") == DAY
    assert state.windows("requests") == []
    assert state.windows_of(name_of(1)) == []
    assert [entry.id for entry in state.unassigned_slices("requests", 10)] == [name_of(1), name_of(2)]
    assert not state.complete(building, dataset_of(building), 1)
    assert state.renew("me", [building.key], 2 * MINUTE) == []
    assert state.queue_length() == len(state.windows("other")) == 1
    state.assign("requests", {name_of(1): [0], name_of(2): [0]})
    found = state.window(WindowKey("requests", 0, DAY))
    assert found is not None
    assert [member.slice for member in found[1]] == [name_of(1), name_of(2)]
    assert state.window(key_of(0)) is None


# -- due and judged


def test_a_window_is_due_when_something_about_it_changed(state: State) -> None:
    accept(state, 2, 1)
    assign(state, {1: [1, 0], 2: [0]})
    found = state.due("requests", 0, 10)
    assert starts(found) == [0, 1]
    assert [member.slice for member in found[0][1]] == [name_of(2), name_of(1)]  # in ledger order
    assert starts(state.due("requests", 0, 1)) == [0]
    assert state.due("other", 0, 10) == []
    judge_due(state)
    assert state.due("requests", 1 << 60, 10) == []
    accept(state, 3)
    assign(state, {3: [1]})
    assert starts(state.due("requests", 0, 10)) == [1]


def test_w5_a_window_is_due_when_its_time_has_come(state: State) -> None:
    accept(state, 1, 2)
    assign(state, {1: [10], 2: [11]})
    verdicts = [
        replace(verdict_of(*found, ready=False), reason="cutoff", check_at=found[0].key.end + HOUR)
        for found in state.due("requests", 0, 10)
    ]
    assert state.evaluate(verdicts) == []
    first = window_at(state, 10)
    assert (first.phase, first.reason, first.check_at) == (Phase.WAITING, "cutoff", 12 * HOUR)
    assert state.due("requests", 12 * HOUR - 1, 10) == []
    assert starts(state.due("requests", 12 * HOUR, 10)) == [10]
    assert starts(state.due("requests", 13 * HOUR, 10)) == [10, 11]
    accept(state, 3)
    assign(state, {3: [11]})  # due already: once only, and still oldest first
    assert starts(state.due("requests", 13 * HOUR, 10)) == [10, 11]
    assert starts(state.due("requests", 13 * HOUR, 1)) == [10]
    judge_due(state, now=13 * HOUR)
    assert state.due("requests", 1 << 60, 10) == []
    assert state.queue_length() == 2


def test_a_judgement_is_kept_as_it_was_made(state: State) -> None:
    accept(state, 1, 2)
    assign(state, {1: [10], 2: [10]})
    ((window, members),) = state.due("requests", 0, 10)
    verdict = replace(verdict_of(window, members, [1], ready=False), check_at=77, seal=5)
    assert state.evaluate([verdict]) == []
    after = window_at(state, 10)
    assert (after.phase, after.reason, after.detail) == (Phase.WAITING, "gap", "gap 10:30-10:45")
    assert (after.ready, after.check_at, after.seal, after.sealed) == (False, 77, 5, None)
    assert after.desired == set_hash([name_of(1)])
    assert after.version != window.version
    marks = members_at(state, 10)
    assert (marks[1].desired, marks[1].ignored) == (True, None)
    assert (marks[2].desired, marks[2].ignored) == (False, "late")
    assert state.member_counts([key_of(10), key_of(11)]) == {
        key_of(10): (1, 0, 1, 1),
        key_of(11): (0, 0, 0, 0),
    }


def test_a_judgement_on_an_older_version_is_void(state: State) -> None:
    accept(state, 1, 2)
    assign(state, {1: [0, 1]})
    first, second = (verdict_of(*found) for found in state.due("requests", 0, 10))
    assign(state, {2: [0]})  # arrives while it is judged
    gone = replace(first, key=key_of(7))
    told = replace(first, events=[event_of("never")])
    assert state.evaluate([told, second, gone]) == [key_of(0), key_of(7)]
    assert state.outbox() == []
    assert (window_at(state, 0).phase, window_at(state, 1).phase) == (Phase.WAITING, Phase.QUEUED)
    assert starts(state.due("requests", 0, 10)) == [0]
    assert state.evaluate([second]) == [key_of(1)]


def test_a_judgement_made_before_the_windows_were_forgotten_is_void(state: State) -> None:
    accept(state, 1)
    assign(state, {1: [0]})
    ((window, members),) = state.due("requests", 0, 10)
    state.declare_layout("requests", DAY)
    assign(state, {1: [0]})
    assert state.evaluate([verdict_of(window, members)]) == [key_of(0)]


def test_w1_a_ready_window_is_queued_once(state: State) -> None:
    queue(state, {1: [10]})
    window = window_at(state, 10)
    assert (window.phase, window.ready, window.trigger) == (Phase.QUEUED, True, "complete")
    assert window.key.priority == -39600
    found = state.window(key_of(10))
    assert found is not None
    assert state.evaluate([verdict_of(*found)]) == []
    assert state.queue_length() == state.queue_length("requests") == 1
    assert state.queue_length("other") == 0


def test_w6_what_is_built_already_is_not_queued(state: State) -> None:
    queue(state, {1: [10]})
    build_all(state)
    accept(state, 2)
    assign(state, {2: [10]})
    ((window, members),) = state.due("requests", 0, 10)
    assert (
        state.evaluate([verdict_of(window, members, [1])]) == []
    )  # the new one is late: the set is the same
    after = window_at(state, 10)
    assert (after.phase, after.revision, after.observed) == (Phase.BUILT, 1, after.desired)
    assert state.queue_length() == 0
    assert members_at(state, 10)[2].ignored == "late"


def test_w4_a_window_with_a_gap_waits_with_its_reason(state: State) -> None:
    accept(state, 1, 2, 3)
    assign(state, {1: [10], 2: [10], 3: [11]})
    first, second = state.due("requests", 0, 10)
    assert state.evaluate([verdict_of(*first, ready=False), verdict_of(*second)]) == []
    assert [window.key for window in state.windows(phase=Phase.QUEUED)] == [key_of(11)]
    assert (window_at(state, 10).phase, window_at(state, 10).reason) == (Phase.WAITING, "gap")
    assert state.member_counts([key_of(10)]) == {key_of(10): (2, 0, 0, 2)}


def test_a_queued_window_that_is_no_longer_ready_waits(state: State) -> None:
    queue(state, {1: [10]})
    accept(state, 2)
    assign(state, {2: [10]})
    judge_due(state, ready=False)
    assert window_at(state, 10).phase is Phase.WAITING
    assert state.take("me", 0, MINUTE, 10) == []


def test_a_withdrawn_dataset_leaves_its_revision(state: State) -> None:
    queue(state, {1: [10]})
    build_all(state)
    accept(state, 2)
    assign(state, {2: [10]})
    ((window, members),) = state.due("requests", 0, 10)
    verdict = replace(verdict_of(window, members, ready=False), withdraw=True, events=[event_of("withdrawn")])
    assert state.evaluate([verdict]) == []
    after = window_at(state, 10)
    assert (after.phase, after.revision) == (Phase.WAITING, 1)
    assert (after.observed, after.file, after.rows, after.bytes, after.built_at) == (None,) * 5
    assert not members_at(state, 10)[1].observed
    assert [event.id for event in state.outbox()] == ["withdrawn"]
    state.force([key_of(10)], "again")
    judge_due(state)
    (build,) = state.take("me", 0, MINUTE, 10)
    assert (build.revision, build.supersedes) == (2, None)  # there is no file it takes the place of


def test_what_is_built_already_is_sealed_by_its_judgement(state: State) -> None:
    queue(state, {1: [10]})
    build_all(state)
    accept(state, 2)
    assign(state, {2: [10]})
    ((window, members),) = state.due("requests", 0, 10)
    assert state.evaluate([replace(verdict_of(window, members, [1]), seal=1)]) == []
    assert (window_at(state, 10).phase, window_at(state, 10).sealed) == (Phase.BUILT, 1)


def test_judgements_bring_their_events(state: State) -> None:
    accept(state, 1)
    assign(state, {1: [10]})
    ((window, members),) = state.due("requests", 0, 10)
    assert state.evaluate([replace(verdict_of(window, members), events=[event_of("a"), event_of("b")])]) == []
    assert [event.id for event in state.outbox()] == ["a", "b"]


# -- looking


def test_windows_are_listed_by_time_and_stream(state: State) -> None:
    queue(state, {1: [0, 2], 2: [1]})
    queue(state, {3: [1]}, stream="other")
    build_all(state)
    accept(state, 4)
    assign(state, {4: [2]})
    judge_due(state)
    listed = [(window.key.start // HOUR, window.key.stream) for window in state.windows()]
    assert listed == [(0, "requests"), (1, "other"), (1, "requests"), (2, "requests")]
    assert [window.key for window in state.windows(newest=True, limit=2)] == [key_of(2), key_of(1)]
    assert [window.key for window in state.windows("requests", limit=2)] == [key_of(0), key_of(1)]
    assert [window.key for window in state.windows("requests", Phase.QUEUED)] == [key_of(2)]
    assert [window.key for window in state.windows(phase=Phase.BUILT, span=Interval(HOUR, 2 * HOUR))] == [
        key_of(1, "other"),
        key_of(1),
    ]
    assert state.windows("nobody") == []
    counts = state.window_counts("requests")
    assert {phase: count for phase, count in counts.items() if count} == {Phase.BUILT: 2, Phase.QUEUED: 1}
    assert state.window(key_of(9)) is None
    assert state.window(WindowKey("requests", 0, DAY)) is None


# -- forced


def test_a_forced_window_is_built_again_from_the_same_set(state: State) -> None:
    queue(state, {1: [10]})
    (first,) = build_all(state)
    before = window_at(state, 10)
    assert state.force([key_of(10), key_of(11)], "rebuild") == [key_of(10)]
    forced = window_at(state, 10)
    assert (forced.observed, forced.phase, forced.trigger) == (None, Phase.WAITING, "rebuild")
    assert (forced.file, forced.rows, forced.revision) == (before.file, before.rows, 1)
    assert forced.version != before.version
    ((window, members),) = state.due("requests", 0, 10)
    assert state.evaluate([replace(verdict_of(window, members), trigger="rebuild")]) == []
    (second,) = build_all(state)
    assert (second.desired, second.revision, second.supersedes) == (first.desired, 2, 1)
    assert second.trigger == "rebuild"
    after = window_at(state, 10)
    assert (after.phase, after.revision, after.observed) == (Phase.BUILT, 2, first.desired)


def test_a_forced_window_under_lease_is_not_completed(state: State) -> None:
    queue(state, {1: [10]})
    (build,) = state.take("me", 0, MINUTE, 10)
    assert state.force([key_of(10)], "rebuild") == [key_of(10)]
    assert not state.complete(build, dataset_of(build), 1)
    judge_due(state)
    (again,) = state.take("me", 0, MINUTE, 10)
    assert again.attempt == 1
    assert state.complete(again, dataset_of(again), 1)


def test_a_forced_window_that_had_failed_gets_new_tries(state: State) -> None:
    queue(state, {1: [10], 2: [11]})
    for build in state.take("me", 0, MINUTE, 10):
        assert state.fail(build, "broken", 1000, 1 if build.key == key_of(10) else 5)
    assert state.force([key_of(10), key_of(11)], "rebuild") == [key_of(10), key_of(11)]
    judge_due(state)
    builds = state.take("me", 0, MINUTE, 10)
    assert [(build.key, build.attempt) for build in builds] == [(key_of(10), 1), (key_of(11), 1)]


def test_a_reopened_window_takes_everything_that_arrived_so_far(state: State) -> None:
    queue(state, {1: [10]})
    build_all(state)
    accept(state, 2, 3)
    assign(state, {2: [10]})
    ((window, members),) = state.due("requests", 0, 10)
    assert state.evaluate([verdict_of(window, members, [1])]) == []
    assert state.force([key_of(10)], "reopen", reopen=True) == [key_of(10)]
    assert window_at(state, 10).sealed == 3
    judge_due(state)
    (build,) = state.take("me", 0, MINUTE, 10)
    assert build.seal == 3  # so the dataset can say it of itself
    assert state.complete(build, dataset_of(build), 1)
    assert window_at(state, 10).sealed == 3


# -- recovered


def test_a_recovered_state_dumps_the_same(state: State, new_store: NewStore) -> None:
    queue(state, {1: [0, 1], 2: [1]})
    datasets: list[Dataset] = []
    for build in state.take("builder", 0, MINUTE, 10):
        datasets.append(replace(dataset_of(build), sealed=2))
        assert state.complete(replace(build, seal=2), datasets[-1], 4, [event_of(f"e{build.key.start}")])
    accept(state, 3)
    assign(state, {3: [1]})
    ((window, members),) = state.due("requests", 0, 10)
    assert state.evaluate([verdict_of(window, members)]) == []
    (leased,) = state.take("builder", 0, MINUTE, 10)
    assert state.renew("builder", [leased.key], 2 * MINUTE) == [leased.key]

    other = new_store()()
    accept(other, 1, 2)
    accept(other, 3)
    assign(other, {1: [0, 1], 2: [1], 3: [1]})
    other.observe(datasets, [event_of("e3600000000"), event_of("e0")])
    recovered = window_at(other, 0)
    assert (recovered.revision, recovered.observed, recovered.sealed) == (1, datasets[0].hash, 2)
    assert (recovered.file, recovered.rows, recovered.built_at) == (datasets[0].file, datasets[0].rows, None)
    assert starts(other.due("requests", 0, 10)) == [0, 1]
    judge_due(other)
    assert window_at(other, 0).phase is Phase.BUILT
    assert other.dump() == state.dump()
    other.close()


def test_a_dataset_whose_slices_are_gone_is_observed_all_the_same(state: State) -> None:
    accept(state, 1)
    assign(state, {1: [0]})
    names = [name_of(1), contribution_name(name_of(2), 1)]
    dataset = Dataset(key_of(0), 3, set_hash(names), sorted(names), 10, 100, "r3.arrow")
    nobody = replace(dataset, key=key_of(5), slices=[name_of(2)], hash=set_hash([name_of(2)]))
    older = replace(dataset, revision=2, hash=set_hash([name_of(1)]), file="r2.arrow")
    daily = replace(dataset, key=WindowKey("requests", 0, DAY))
    state.observe([dataset, nobody, older, daily], [])
    window = window_at(state, 0)
    assert (window.revision, window.observed, window.file) == (3, dataset.hash, "r3.arrow")
    assert members_at(state, 0)[1].observed
    assert (window_at(state, 5).revision, members_at(state, 5)) == (3, {})
    assert len(state.windows()) == 2
    judge_due(state)
    assert window_at(state, 0).phase is Phase.QUEUED
    (build,) = state.take("me", 0, MINUTE, 1)
    assert (build.revision, build.supersedes) == (4, 3)


def test_a_window_that_nothing_touches_any_more_is_forgotten_unless_it_has_a_dataset(state: State) -> None:
    """Its members leave by a retraction; here one never had any."""
    state.declare_layout("requests", HOUR)
    state.observe([Dataset(key_of(0), 1, set_hash([]), [], 0, 0, "r1.arrow")], [])
    judge_due(state, ready=False)
    assert window_at(state, 0).revision == 1
