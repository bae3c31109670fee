"""Whatever is done to a mill, in whatever order: what it acknowledged is there once, and its answers are
those of a plain loop over its input.

`make soak` tells other stories than the normal run, and prints the shortest one that fails."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.support.hypothesis_settings import stories
from tests.support.soak_counts import record
from tests.support.whole_mill import NOON, STREAMS, UNGATED, VECTORS, Delta, Event, WholeMill, whole_span

from tidemill.ingest import compression
from tidemill.model.time import DAY, HOUR, MINUTE
from tidemill.raw.accept import id_runs, run_files

pytestmark = pytest.mark.long

# Few ids, so that events are repeated and contradicted; few instants, so that hours fill.
EVENTS = st.builds(
    Event,
    id=st.integers(0, 30).map("e{}".format),
    at=st.integers(-4 * 24 * 6, 6).map(lambda tens: NOON + tens * 10 * MINUTE + 1),
    amount=st.integers(-500, 500),
    shop=st.sampled_from(["north", "south"]),
)
DELTAS = st.builds(
    lambda number, vector, op, values: Delta(
        f"d{number}", NOON - number * HOUR + number, f"v{vector}", op, values
    ),
    st.integers(0, 40),
    st.integers(0, 2),
    st.sampled_from(["add", "set"]),
    st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
)
BATCH = st.lists(EVENTS, min_size=1, max_size=6)
ANY = st.sampled_from(STREAMS)
GATED = st.sampled_from([name for name in STREAMS if name != UNGATED])
DIES = st.none() | st.integers(1, 25)  # at the fail point of this number
SPAN = st.builds(whole_span, st.integers(0, 100_000), st.integers(1, 120_000))
HOURS = st.tuples(st.integers(-96, 0), st.integers(1, 5)).map(
    lambda drawn: (NOON + drawn[0] * HOUR, NOON + sum(drawn) * HOUR)
)


def flip(path: Path, at: int) -> None:
    """One bit."""
    content = bytearray(path.read_bytes())
    content[at // 8 % len(content)] ^= 1 << at % 8
    path.write_bytes(content)


def cut(path: Path, at: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: at % len(content)])


def delete(path: Path, _at: int) -> None:
    path.unlink()


Harm = Callable[[Path, int], None]
HARMS = st.sampled_from([flip, cut, delete])


class WholeMillMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="whole-mill-"))
        self.limits = pytest.MonkeyPatch()  # so low that a few events reach what many do
        self.limits.setattr(compression, "LEAST_BYTES", 1)
        self.limits.setattr(run_files, "BLOCK", 4)
        self.limits.setattr(run_files, "SIEVED", 4)
        self.limits.setattr(id_runs, "FAN_IN", 3)
        self.it = WholeMill(self.folder)

    def teardown(self) -> None:
        try:
            self.it.assert_right(whole_span(0, 120_000))
        finally:
            self.it.close()
            self.limits.undo()
            shutil.rmtree(self.folder)
            record(stories=1, **asdict(self.it.tried))

    @initialize(events=BATCH, deltas=st.lists(DELTAS, min_size=1, max_size=4))
    def begin(self, events: list[Event], deltas: list[Delta]) -> None:
        for stream in STREAMS:
            self.it.act(lambda stream=stream: self.it.land(stream, events, None), None)
        self.it.act(lambda: self.it.land(VECTORS, deltas, None), None)

    # -- input

    @rule(stream=ANY, events=BATCH, bounds=st.none() | HOURS, dies=DIES)
    def land(
        self, stream: str, events: list[Event], bounds: tuple[int, int] | None, dies: int | None
    ) -> None:
        self.it.act(lambda: self.it.land(stream, events, bounds), dies)

    @rule(stream=ANY, files=st.lists(BATCH, min_size=1, max_size=3, unique_by=str), dies=DIES)
    def ingest(self, stream: str, files: list[list[Event]], dies: int | None) -> None:
        self.it.act(lambda: self.it.ingest(stream, files), dies)

    @rule(deltas=st.lists(DELTAS, min_size=1, max_size=8), dies=DIES)
    def land_deltas(self, deltas: list[Delta], dies: int | None) -> None:
        self.it.act(lambda: self.it.land(VECTORS, deltas, None), dies)

    @rule(bounds=HOURS, dies=DIES)
    def declare_empty(self, bounds: tuple[int, int], dies: int | None) -> None:
        self.it.act(lambda: self.it.declare_empty("visits", *bounds), dies)

    @rule(stream=GATED, requests=st.lists(BATCH, min_size=1, max_size=3), dies=DIES)
    def submit(self, stream: str, requests: list[list[Event]], dies: int | None) -> None:
        self.it.act(lambda: self.it.submit(stream, requests), dies)

    # -- time

    @rule(minutes=st.integers(-90, 24 * 60))
    def set_clock(self, minutes: int) -> None:
        self.it.clock.set(max(NOON - DAY, self.it.clock() + minutes * MINUTE))

    # -- work

    @rule(dies=DIES)
    def tick(self, dies: int | None) -> None:
        self.it.act(lambda: self.it.mill.tick(), dies)

    @rule(dies=DIES, rebuild=st.booleans())
    def pack(self, dies: int | None, *, rebuild: bool) -> None:
        self.it.act(lambda: self.it.mill.pack(rebuild=rebuild), dies)

    @rule(dies=DIES, span=st.none() | HOURS)
    def rebuild(self, dies: int | None, span: tuple[int, int] | None) -> None:
        self.it.act(lambda: self.it.rebuild(span), dies)
        self.it.tried.rebuilt += 1

    @rule(dies=DIES)
    def expire(self, dies: int | None) -> None:
        self.it.act(self.it.expire, dies)

    @precondition(lambda self: any(one.slices for one in self.it.accounts.values()))
    @rule(data=st.data(), dies=DIES)
    def retract(self, data: st.DataObject, dies: int | None) -> None:
        known = [name for one in self.it.accounts.values() for name in one.slices]
        chosen = data.draw(st.sampled_from(range(len(known))), label="number of the slice")
        self.it.act(lambda: self.it.retract(known[chosen]), dies)

    @rule(keep=st.booleans())
    def declare(self, *, keep: bool) -> None:
        self.it.declare(keep_payload=keep)

    @rule(span=SPAN, minutes=st.integers(0, 600))
    def lose_state(self, span: tuple[int, int], minutes: int) -> None:
        self.it.clock.advance(minutes * MINUTE)
        self.it.lose_state()
        self.it.assert_right(span)

    @rule(
        file=st.integers(0, 1 << 16), harm=HARMS, at=st.integers(0, 1 << 20), span=SPAN, restore=st.booleans()
    )
    def damage_and_repair(
        self, file: int, harm: Harm, at: int, span: tuple[int, int], *, restore: bool
    ) -> None:
        self.it.settle()
        files = self.it.files()
        with self.it.damaged(files[file % len(files)], lambda path: harm(path, at), restore=restore):
            self.it.assert_right_or_refused(span)
            self.it.mill.tick()  # whatever is damaged, the rest goes on
            self.it.assert_right_or_refused(span)
        self.it.assert_right(span)

    @rule(span=SPAN)
    def check(self, span: tuple[int, int]) -> None:
        self.it.assert_right(span)


class TestWholeMill(WholeMillMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = stories(2, steps=10)
