"""Random acts on windows in every store: whatever the order, what is kept fits together."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from tests.storage.state.conftest import (
    NewStore,
    accept,
    assign,
    dataset_of,
    event_of,
    key_of,
    name_of,
    verdict_of,
    window_at,
)

from tidemill.model.slices import SliceStatus, set_hash
from tidemill.model.time import HOUR, MINUTE
from tidemill.model.windows import Build, Phase
from tidemill.storage.state.protocol import ClockState, Retraction, State

HOURS = range(6)
TRIES = 3


class Walk:
    """One random history; `step` does something, `check` says whether it can be."""

    def __init__(self, state: State, seed: int) -> None:
        self.state, self.dice = state, random.Random(seed)
        self.now = self.number = self.told = 0
        self.held: list[Build] = []  # as the builders believe
        self.revisions: Counter[int] = Counter()
        self.acts = [self.arrive, self.arrive, self.evaluate, self.evaluate, self.take, self.take,
                     self.complete, self.complete, self.complete, self.fail, self.force, self.retract,
                     self.release, self.retry, self.wait, self.mark]  # fmt: skip
        self.checkpoints: dict[str, str] = {}

    def step(self) -> None:
        self.dice.choice(self.acts)()

    def arrive(self) -> None:
        self.number += 1
        accept(self.state, self.number)
        assign(self.state, {self.number: self.dice.sample(HOURS, self.dice.randint(0, 3))})

    def evaluate(self) -> None:
        for window, members in self.state.due("requests", self.now, self.dice.randint(1, 9)):
            used = [n for n in range(1, self.number + 1) if self.dice.random() < 0.8]
            verdict = verdict_of(window, members, used)
            verdict = replace(verdict, ready=bool(verdict.used) and self.dice.random() < 0.8)
            assert self.state.evaluate([verdict]) == []

    def take(self) -> None:
        leased = {
            window.key
            for window in self.state.windows(phase=Phase.BUILDING)
            if window.lease_until is not None and window.lease_until > self.now
        }
        builds = self.state.take(self.dice.choice("ab"), self.now, self.now + MINUTE, 2)
        assert builds == sorted(builds, key=lambda build: -build.key.priority)
        for build in builds:
            assert build.key not in leased
            assert build.members, "nothing to build"
            assert build.desired == set_hash(member.name for member in build.members)
        self.held += builds

    def complete(self) -> None:
        if self.held:
            build = self.held.pop(self.dice.randrange(len(self.held)))
            dataset = dataset_of(build)
            self.told += 1
            before = self.state.window(build.key)
            event = event_of(f"{self.told}")
            done = self.state.complete(build, dataset, self.now, [event])
            assert ([told.id for told in self.state.outbox()][-1:] == [event.id]) == done
            if done:
                window = window_at(self.state, build.key.start // HOUR)
                assert (window.observed, window.revision, window.file) == (
                    build.desired, dataset.revision, dataset.file,
                )  # fmt: skip
            else:
                assert self.state.window(build.key) == before

    def fail(self) -> None:
        if self.held:
            build = self.held.pop()
            self.state.fail(build, "broken", self.now + self.dice.choice([0, 2 * MINUTE]), TRIES)

    def force(self) -> None:
        hours = self.dice.sample(HOURS, 2)
        self.state.force([key_of(hour) for hour in hours], "rebuild", reopen=self.dice.random() < 0.5)

    def retract(self) -> None:
        accepted = self.state.slices("requests", SliceStatus.ACCEPTED)
        if accepted and self.dice.random() < 0.4:
            taken, *rest = self.dice.sample(accepted, min(3, len(accepted)))
            again = {entry.id: entry.counts.accepted for entry in rest}
            hours = {entry.id: self.windows_of(entry.id) for entry in rest}
            act = Retraction(self.state.retractions() + 1, "requests", taken.id, "wrong", self.now, again)
            assert self.state.apply_retraction(act, [ClockState("file", 1, 0)], 1, 1)
            assert self.state.windows_of(taken.id) == []
            for entry in rest:
                number = next(n for n in range(1, self.number + 1) if name_of(n) == entry.id)
                accept(self.state, number, decision=entry.decision + self.dice.randint(0, 1))
                if self.dice.random() < 0.8:
                    assign(self.state, {number: hours[entry.id]})

    def windows_of(self, slice_id: str) -> list[int]:
        return [window.key.start // HOUR for window, _ in self.state.windows_of(slice_id)]

    def release(self) -> None:
        if self.dice.random() < 0.3:
            self.state.release(self.dice.choice("ab"))

    def retry(self) -> None:
        self.state.retry("requests")

    def wait(self) -> None:
        self.now += self.dice.choice([1, MINUTE])

    def mark(self) -> None:
        """A streaming window moves on, or is given up, beside all the others."""
        self.told += 1
        name, event = self.dice.choice(["minutes", "sessions"]), event_of(f"{self.told}")
        mark = self.dice.choice([None, f"{self.told}"])
        self.state.set_checkpoint("requests", name, mark, [event])
        if mark is None:
            self.checkpoints.pop(name, None)
        else:
            self.checkpoints[name] = mark
        assert self.state.outbox()[-1].id == event.id

    def check(self) -> None:
        assert self.state.checkpoints("requests") == self.checkpoints
        phases: Counter[Phase] = Counter()
        due = {window.key for window, _ in self.state.due("requests", self.now, 1000)}
        for window in self.state.windows("requests"):
            found = self.state.window(window.key)
            assert found is not None
            assert found[0] == window
            members, phase = found[1], window.phase
            phases[phase] += 1
            assert [member.seq for member in members] == sorted(member.seq for member in members)
            if window.desired is not None:
                assert window.desired == set_hash(member.name for member in members if member.desired)
            else:
                assert window.key in due
            built = set_hash(member.name for member in members if member.observed)
            assert window.observed in (None, built) or window.key in due or phase is not Phase.BUILT
            assert (phase is Phase.BUILDING) == (window.owner is not None) == (window.lease_until is not None)
            if phase in (Phase.QUEUED, Phase.FAILED):
                assert window.ready
                assert window.desired != window.observed
            if phase is Phase.BUILT:
                assert window.desired == window.observed is not None
            assert (phase is Phase.FAILED) <= (window.attempts >= TRIES)
            hour = window.key.start // HOUR
            assert window.revision >= self.revisions[hour]
            self.revisions[hour] = window.revision
            counts = self.state.member_counts([window.key])[window.key]
            assert counts == (
                sum(member.desired for member in members),
                sum(member.observed for member in members),
                sum(member.ignored is not None for member in members),
                sum(member.rejected for member in members if member.desired),
            )
        assert {
            phase: count for phase, count in self.state.window_counts("requests").items() if count
        } == phases
        assert self.state.queue_length() == phases[Phase.QUEUED]

    def settle(self) -> None:
        """Builders that work, and a coordinator that takes every member: it all ends built."""
        self.now += 10 * MINUTE
        self.state.force([window.key for window in self.state.windows()], "last")
        unlaid = self.state.unassigned_slices("requests", 1000)
        self.state.assign("requests", {entry.id: [0] for entry in unlaid})
        for _ in range(2):
            for window, members in self.state.due("requests", self.now, 1000):
                assert self.state.evaluate([verdict_of(window, members, ready=bool(members))]) == []
            self.state.retry("requests")
            for build in self.state.take("last", self.now, self.now + MINUTE, 1000):
                assert self.state.complete(build, dataset_of(build), self.now)
        for window in self.state.windows():
            _, members = self.state.window(window.key) or (window, [])
            if members:
                assert window.phase is Phase.BUILT
                assert {member.observed for member in members} == {True}


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_windows_fit_together(
    request: pytest.FixtureRequest, new_store: NewStore, seed: int
) -> None:
    if seed > 1 and request.node.callspec.params["new_store"] != "sqlite":
        pytest.skip("two walks say what there is to say of the other database")
    state = new_store()()
    walk = Walk(state, seed)
    state.declare_layout("requests", HOUR)
    for _ in range(120):
        walk.step()
        walk.check()
    walk.settle()
    walk.check()
    assert sum(walk.revisions.values()) > len(HOURS)  # something was built more than once
    state.close()
