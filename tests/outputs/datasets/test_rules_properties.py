"""The laws of the rules of windows, and the rules against the oracle: on members made at random, and through
whole scripts with a ledger of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import at_length, examples
from tests.support.oracles import windows as naive
from tests.support.oracles.stream import READINGS
from tests.support.oracles.windows import Act, Land, OracleRules, OracleWindow, Retract, Tick, WindowOracle
from tests.support.strategies.feeds import FIRST_ARRIVAL, WindowScript, window_rules, window_scripts
from tests.support.window_status import is_final

from tidemill.model.slices import set_hash
from tidemill.model.time import Interval, align
from tidemill.model.windows import Evaluation, Member, Phase, Window, WindowKey
from tidemill.outputs.datasets.rules import (
    WindowRules,
    admit,
    evaluate,
    is_complete,
    readiness,
    windows_of,
)

quick = examples(100)
scripted = examples(50)


# --- members made at random, on a grid so small that everything touches everything ------------------


class Case(NamedTuple):
    rules: WindowRules
    window: Interval
    members: list[Member]
    sealed: int | None
    now: int

    @property
    def kept(self) -> Window:
        return Window(WindowKey("s", self.window.start, self.rules.span), version=1, sealed=self.sealed)


SMALL = st.builds(
    WindowRules,
    span=st.integers(4, 12),
    stc=st.integers(0, 4),
    allow_incomplete=st.booleans(),
    gap_tolerance=st.one_of(st.integers(0, 3), st.integers(0, 14)),  # also longer than the window
    max_lateness=st.integers(0, 3),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rules = draw(SMALL)
    window = Interval(start := draw(st.integers(-2, 2)) * rules.span, start + rules.span)
    moments = st.integers(window.start - 3, window.end + 3)
    pairs = st.tuples(moments, moments).map(lambda pair: Interval(min(pair), max(pair)))
    points = moments.map(lambda moment: Interval(moment, moment))
    last = window.end + rules.stc + rules.max_lateness
    seqs = draw(st.lists(st.integers(1, 9), unique=True, max_size=5))
    members = [
        Member(
            slice=f"s{seq}",
            seq=seq,
            name=f"s{seq}",
            arrival=draw(st.integers(window.start, last + 3)),
            bounds=draw(st.one_of(pairs, pairs, pairs, points, st.none())),
        )
        for seq in seqs
    ]
    sealed = draw(st.one_of(st.none(), st.none(), st.integers(1, 9)))
    return Case(rules, window, members, sealed, draw(st.integers(window.start, last + 3)))


def as_oracle_rules(rules: WindowRules) -> OracleRules:
    return OracleRules(
        rules.span, rules.stc, rules.allow_incomplete, rules.gap_tolerance, rules.max_lateness
    )  # fmt: skip


@quick
@given(cases(), st.data())
def test_any_order_of_the_members_gives_the_same_answer(case: Case, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(case.members))
    evaluation = evaluate(case.kept, case.members, case.rules, case.now)
    assert evaluate(case.kept, shuffled, case.rules, case.now) == evaluation
    assert admit(case.window, shuffled, case.rules, case.sealed) == admit(
        case.window, case.members, case.rules, case.sealed
    )


@quick
@given(cases(), st.data())
def test_slices_that_came_in_time_may_have_come_in_any_order(case: Case, data: st.DataObject) -> None:
    last = case.window.end + case.rules.stc
    on_time = [replace(one, arrival=min(one.arrival, last)) for one in case.members]
    order = data.draw(st.permutations(on_time))
    other = [
        replace(one, seq=place.seq, arrival=place.arrival)
        for one, place in zip(order, on_time, strict=True)
    ]  # fmt: skip
    evaluation, again = (evaluate(case.kept, members, case.rules, case.now) for members in (on_time, other))
    assert (evaluation.used, evaluation.desired, evaluation.ready) == (again.used, again.desired, again.ready)
    assert evaluation.used == {one.name for one in on_time}


@quick
@given(cases())
def test_used_and_ignored_are_the_members_each_in_one_of_them(case: Case) -> None:
    used, ignored = admit(case.window, case.members, case.rules, case.sealed)
    assert sorted([*(one.name for one in used), *ignored]) == sorted(one.name for one in case.members)
    assert [one.seq for one in used] == sorted(one.seq for one in used)
    assert set(ignored.values()) <= {"late"}
    last = case.window.end + case.rules.stc + case.rules.max_lateness
    late = {one.name for one in case.members if one.arrival > last}
    assert set(ignored) <= late
    if case.sealed is not None:
        assert set(ignored) == late - {one.name for one in case.members if one.seq <= case.sealed}


@quick
@given(cases())
def test_what_is_built_and_sealed_is_judged_the_same_again(case: Case) -> None:
    evaluation = evaluate(case.kept, case.members, case.rules, case.now)
    again = evaluate(replace(case.kept, sealed=evaluation.seal), case.members, case.rules, case.now)
    if evaluation.ready:
        assert (again.used, again.ignored, again.desired) == (
            evaluation.used,
            evaluation.ignored,
            evaluation.desired,
        )
        assert again.seal == evaluation.seal


@quick
@given(cases(), st.data())
def test_two_touching_halves_cover_what_the_whole_covers(case: Case, data: st.DataObject) -> None:
    whole = [one for one in case.members if one.bounds is not None]
    assume(whole)
    one = data.draw(st.sampled_from(whole))
    assert one.bounds is not None
    cut = data.draw(st.integers(one.bounds.start, one.bounds.end))
    halves = [
        replace(one, bounds=Interval(one.bounds.start, cut)),
        replace(one, slice="half", name="half", seq=10, bounds=Interval(cut, one.bounds.end)),
    ]
    split = [other for other in case.members if other is not one] + halves
    tolerance = case.rules.gap_tolerance
    assert is_complete(case.window, split, tolerance) == is_complete(case.window, case.members, tolerance)
    evaluation, again = (readiness(case.window, used, case.rules, case.now) for used in (case.members, split))
    assert evaluation == again


@quick
@given(cases(), st.data())
def test_one_more_slice_or_a_wider_tolerance_never_makes_a_complete_window_incomplete(
    case: Case, data: st.DataObject
) -> None:
    tolerance = case.rules.gap_tolerance
    assume(case.members)
    fewer = list(case.members)
    fewer.remove(data.draw(st.sampled_from(fewer)))
    if is_complete(case.window, fewer, tolerance):
        assert is_complete(case.window, case.members, tolerance)
        assert is_complete(case.window, fewer, tolerance + 1)


@quick
@given(cases())
def test_time_changes_the_answer_only_when_it_was_said_to(case: Case) -> None:
    evaluation = readiness(case.window, case.members, case.rules, case.now)
    later = range(case.now, case.window.end + case.rules.stc + 20)
    unchanged = [now for now in later if evaluation.check_at is None or now < evaluation.check_at]
    assert all(readiness(case.window, case.members, case.rules, now) == evaluation for now in unchanged)
    if evaluation.check_at is not None:
        assert evaluation.check_at > case.now
        assert (
            readiness(case.window, case.members, case.rules, evaluation.check_at).reason != evaluation.reason
        )


@examples(60)  # most cases are not final
@given(cases(), cases())
def test_once_final_nothing_that_arrives_changes_what_is_used(case: Case, more: Case) -> None:
    case = case._replace(now=case.window.end + case.rules.stc + case.rules.max_lateness + 1)
    evaluation = evaluate(case.kept, case.members, case.rules, case.now)
    assume(evaluation.ready)
    sealed = case.sealed if evaluation.seal is None else evaluation.seal
    built = replace(case.kept, phase=Phase.BUILT, sealed=sealed, observed=evaluation.desired)
    assume(is_final(built, case.members, case.rules, case.now))
    newest = max([case.now, *(one.arrival for one in case.members)])
    arriving = [
        replace(one, slice=f"n{n}", name=f"n{n}", seq=100 + n, arrival=newest + n)
        for n, one in enumerate(more.members)
    ]
    again = evaluate(built, [*case.members, *arriving], case.rules, newest + 100)
    assert (again.used, again.desired, again.ready) == (evaluation.used, evaluation.desired, True)
    assert {one.name for one in arriving} <= set(again.ignored)
    assert again.seal == sealed


@quick
@given(cases())
def test_the_rules_and_the_oracle_agree_on_any_members(case: Case) -> None:
    rules = as_oracle_rules(case.rules)
    tolerance = rules.gap_tolerance
    assert is_complete(case.window, case.members, tolerance) == naive.is_complete(
        case.window, case.members, tolerance
    )
    evaluation = readiness(case.window, case.members, case.rules, case.now)
    assert evaluation.reason == naive.why_not_ready(case.window, case.members, rules, case.now)
    assert evaluation.ready == (evaluation.reason is None) == (evaluation.detail is None)


@given(st.integers(-(10**16), 10**16), st.integers(0, 10**6), st.integers(1, 10**6))
def test_the_windows_of_bounds_are_those_with_an_instant_in_them(start: int, length: int, span: int) -> None:
    found = windows_of(Interval(start, start + length), span)
    assume(len(found) < 1000)
    assert all(each % span == 0 for each in found)
    if length == 0:
        assert list(found) == []
    else:
        first, last = align(start, span), align(start + length - 1, span)
        assert list(found) == list(range(first, last + 1, span))


# --- scripts ---------------------------------------------------------------------------------------


class Kept:
    """What a store keeps of windows, in memory: the rules evaluate, and what they say is done at once.

    Records go through the oracle's gate, which also knows what slices are called after a retraction."""

    def __init__(self, rules: OracleRules) -> None:
        self.oracle = WindowOracle(READINGS, rules)
        self.rules = WindowRules(
            rules.span, rules.stc, rules.allow_incomplete, rules.gap_tolerance, rules.max_lateness
        )
        self.windows: dict[int, Window] = {}
        self.members: dict[int, list[Member]] = {}  # at the last tick
        self.evaluation: dict[int, Evaluation] = {}
        self.built: dict[int, frozenset[str]] = {}
        self.landed: dict[str, Land] = {}  # those that count

    def play(self, acts: Iterable[Act], *, compare: bool = True) -> Kept:
        for act in acts:
            self.oracle.play([act])
            if isinstance(act, Land):
                if act.slice in self.oracle.gate.counts:
                    self.landed.setdefault(act.slice, act)
            elif isinstance(act, Retract):
                self.retract(act.slice)
            else:
                done = self.tick(act.at)
                if compare:
                    self.agree(act.at, *done)
        return self

    def retract(self, gone: str) -> None:
        del self.landed[gone]
        for start, members in self.members.items():
            used = self.evaluation[start].used
            if any(member.slice == gone and member.name in used for member in members):
                self.windows[start] = replace(self.windows[start], sealed=None)

    def touching(self) -> dict[int, set[str]]:
        """The slices of each window, by the bounds and rows they have. Without declared bounds, a slice
        covers the time between two of its rows where it is no longer than the tolerance."""
        found: dict[int, set[str]] = {}
        for each, act in self.landed.items():
            rows = sorted(row.ts for row in self.oracle.gate.raw if row.slice == each)
            near = [pair for pair in pairwise(rows) if pair[1] - pair[0] <= self.rules.gap_tolerance + 1]
            covered = [act.declared] if act.declared else [Interval(*pair) for pair in near]
            starts = {start for one in covered for start in windows_of(one, self.rules.span)}
            for start in starts | {align(ts, self.rules.span) for ts in rows}:
                found.setdefault(start, set()).add(each)
        return found

    def tick(self, now: int) -> tuple[list[tuple[int, int]], list[int]]:
        """(start, revision) of what is built, starts of what is withdrawn."""
        built: list[tuple[int, int]] = []
        withdrawn: list[int] = []
        touching = self.touching()
        for start in sorted({*touching, *self.windows}):
            members = self.oracle.members(start)
            assert {member.slice for member in members} == touching.get(start, set())
            kept = self.windows.get(start)
            if kept is None:
                kept = Window(WindowKey("s", start, self.rules.span), version=1)
            elif not self.is_due(kept, members, now):
                continue
            marked = [replace(one, observed=one.name in self.built.get(start, ())) for one in members]
            evaluation = evaluate(kept, marked, self.rules, now)
            self.members[start], self.evaluation[start] = members, evaluation
            if evaluation.withdraw:
                kept = replace(kept, observed=None)
                self.built.pop(start)
                withdrawn.append(start)
            if evaluation.ready and evaluation.seal is not None:
                kept = replace(kept, sealed=evaluation.seal)
            if evaluation.ready and evaluation.desired != kept.observed:
                kept = replace(kept, observed=evaluation.desired, revision=kept.revision + 1)
                self.built[start] = evaluation.used
                built.append((start, kept.revision))
            phase = Phase.BUILT if kept.observed == evaluation.desired else Phase.WAITING
            self.windows[start] = replace(kept, phase=phase, check_at=evaluation.check_at)
            if not members and kept.revision == 0:
                del self.windows[start], self.members[start]
        return built, withdrawn

    def is_due(self, kept: Window, members: Sequence[Member], now: int) -> bool:
        """Nothing else makes a store look at a window again."""
        is_time = kept.check_at is not None and kept.check_at <= now
        return is_time or members != self.members[kept.key.start]

    def agree(self, now: int, built: list[tuple[int, int]], withdrawn: list[int]) -> None:
        expected = self.oracle.windows(now)
        last = self.oracle.rounds[-1]
        assert built == [(made.start, made.revision) for made in last.built]
        assert withdrawn == list(last.withdrawn)
        assert set(self.windows) == set(expected)
        for start, window in expected.items():
            assert self.seen(start, now) == window

    def seen(self, start: int, now: int) -> OracleWindow:
        kept, evaluation, members = self.windows[start], self.evaluation[start], self.members[start]
        return OracleWindow(
            interval=kept.key.interval,
            members=frozenset(one.name for one in members),
            used=evaluation.used,
            ignored=frozenset(evaluation.ignored),
            hash=evaluation.desired,
            ready=evaluation.ready,
            reason=evaluation.reason,
            observed=kept.observed,
            revision=kept.revision,
            sealed=kept.sealed,
            final=is_final(kept, members, self.rules, now),
        )


@scripted
@given(window_scripts(around=(FIRST_ARRIVAL, 0)))
def test_through_any_script_the_rules_say_what_the_oracle_says(script: WindowScript) -> None:
    Kept(script.rules).play(script.acts)


@pytest.mark.soak
@at_length(5000)
@given(window_scripts(around=(FIRST_ARRIVAL, 0), max_acts=30))
def test_through_any_script_the_rules_say_what_the_oracle_says_at_length(script: WindowScript) -> None:
    Kept(script.rules).play(script.acts)


def in_good_time(script: WindowScript) -> list[Land]:
    """The slices of a script, all of them before the first of its windows."""
    landings = [act for act in script.acts if isinstance(act, Land)]
    earliest = min(act.at for act in script.acts) - 30 * script.rules.span
    return [act._replace(at=earliest + number) for number, act in enumerate(landings)]


@scripted
@given(
    window_scripts(rules=window_rules().map(lambda r: replace(r, allow_incomplete=False)), retractions=False),
    st.data(),
)
def test_at_any_pace_windows_whose_slices_came_in_time_end_the_same(
    script: WindowScript, data: st.DataObject
) -> None:
    landings = in_good_time(script)
    end = script.acts[-1].at + 100 * script.rules.span
    slow = Kept(script.rules).play([*landings, Tick(end)])
    ticks = data.draw(st.lists(st.integers(landings[0].at, end), max_size=20))
    acts: list[Act] = sorted([*landings, *map(Tick, ticks)], key=lambda act: act.at)
    eager = Kept(script.rules).play([*acts, Tick(end)])
    assert {start: slow.seen(start, end) for start in slow.windows} == {
        start: eager.seen(start, end) for start in eager.windows
    }
    assert {start: made._replace(at=0) for start, made in slow.oracle.datasets.items()} == {
        start: made._replace(at=0) for start, made in eager.oracle.datasets.items()
    }
    for start, window in slow.windows.items():
        seen = slow.seen(start, end)
        assert (window.revision, seen.final) == ((1, True) if seen.ready else (0, False))
        assert seen.ignored == frozenset()


@scripted
@given(window_scripts(retractions=False))
def test_once_final_a_window_keeps_its_set_its_revision_and_its_rows(script: WindowScript) -> None:
    kept = Kept(script.rules)
    final: dict[int, tuple[str, int, object]] = {}
    for act in script.acts:
        kept.play([act])
        if not isinstance(act, Tick):
            continue
        now = {start: kept.seen(start, act.at) for start in kept.windows}
        for start, (digest, revision, rows) in final.items():
            assert (now[start].hash, now[start].revision, now[start].final) == (digest, revision, True)
            assert kept.oracle.datasets[start].rows == rows
        for start, window in now.items():
            if window.final:
                assert window.hash == set_hash(window.used)
                final[start] = (window.hash, window.revision, kept.oracle.datasets[start].rows)
