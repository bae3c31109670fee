"""Very many windows, entered through the state's own methods, without building any dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidemill.model.slices import set_hash
from tidemill.model.time import HOUR, MINUTE, Interval
from tidemill.model.windows import Build, Dataset, Evaluation, Member, Phase, Window
from tidemill.storage.state.protocol import State


def enter_windows(state: State, stream: str, slice_id: str, starts: Iterable[int]) -> None:
    """Windows that all have this slice, and that no round has looked at yet: they wait."""
    state.assign(stream, {slice_id: starts})


def settle(state: State, stream: str, phases: Mapping[int, Phase], now: int) -> None:
    """Have windows, by start, built, queued or failed."""
    found = [
        _ready(window, members)
        for span in _spans(phases)
        for window, members in state.each_window(stream, span)
        if window.key.start in phases
    ]
    state.evaluate(found)
    builds = state.take("builder", now, now + MINUTE, len(phases))
    done = [(one, _dataset(one), ()) for one in builds if phases[one.key.start] is Phase.BUILT]
    state.complete_all(done, now)
    for one in builds:
        if phases[one.key.start] is Phase.FAILED:
            state.fail(one, "no room", now, 1)
    state.release("builder")


def _spans(starts: Iterable[int]) -> list[Interval]:
    """Where the windows are; neighbours in one span, and not the time between those that are far apart."""
    found: list[Interval] = []
    for at in sorted(starts):
        near = found and at - found[-1].end < HOUR
        found[-1:] = [Interval(found[-1].start, at + 1)] if near else [*found[-1:], Interval(at, at + 1)]
    return found


def _ready(window: Window, members: Sequence[Member]) -> Evaluation:
    names = frozenset(member.name for member in members)
    return Evaluation(
        window.key, window.version, names, {}, True, set_hash(names), trigger="cutoff"
    )  # fmt: skip


def _dataset(build: Build) -> Dataset:
    return Dataset(
        key=build.key, revision=build.revision, hash=build.desired,
        slices=sorted(member.name for member in build.members), rows=1, bytes=100,
        file=f"datasets/{build.key.start}.arrow", sealed=build.seal,
    )  # fmt: skip
