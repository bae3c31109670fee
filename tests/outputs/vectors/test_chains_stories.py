"""Whatever happens to a stream of deltas, in any order: its vectors are what the oracle says, to the bit."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.delta_mill import EAGER, NOON, STRATEGIES, WALK, Plant, compact, copy_of, delta
from tests.support.hypothesis_settings import at_length, examples

from tidemill.model.deltas import Delta, Op
from tidemill.model.failpoints import observed
from tidemill.model.slices import SliceStatus
from tidemill.model.time import MINUTE, SECOND
from tidemill.outputs.vectors.batches import batch_of, deltas_in
from tidemill.pipeline.documents.windows import is_current

SETTINGS = {**STRATEGIES, **{f"eager {name}": text for name, text in EAGER.items()}}
TEN = 10 * SECOND
BATCHES = """aggregation_span: 10s
    coverage: watermark
    late_slices: {policy: reemit, max_lateness: 30d}"""
POINTS = [*WALK, "pack.before_commit", "pack.after_commit"]
few = examples(6)
many = at_length(150)

numbers = st.sampled_from([0.0, -0.0, 0.1, 1 / 3, -2.5, 1e16, 3.0, 1e-300, 7.25, 1e308])


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, float, Op, list[float], list[int] | None]:
    """Vector, seconds, what is done to it."""
    op = draw(st.sampled_from(list(Op)))
    places = None
    if op in (Op.SET, Op.ADD, Op.SCALE, Op.OFFSET) and draw(st.booleans()):
        places = draw(st.lists(st.integers(0, 2), unique=True, min_size=1, max_size=3))
    if op is Op.DELETE:
        size = 0
    elif op is Op.OFFSET:
        size = 1
    elif places is not None:
        size = len(places)
    else:
        size = draw(st.sampled_from([1, 3])) if op is Op.SCALE else 3
    values = draw(st.lists(numbers, min_size=size, max_size=size))
    return draw(st.sampled_from("uvw")), draw(st.integers(0, 40)), op, values, places


steps = st.lists(
    st.one_of(
        st.tuples(st.just("land"), st.lists(changes(), min_size=1, max_size=5)),
        st.tuples(st.just("tick"), st.none()),
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(st.just("retract"), st.integers(0, 5)),
        st.tuples(st.just("crash"), st.sampled_from(POINTS)),
        st.tuples(st.just("wait"), st.integers(1, 20)),
    ),
    min_size=2,
    max_size=9,
)


@pytest.mark.parametrize("name", SETTINGS)
@few
@given(script=steps)
def test_vectors_are_what_the_oracle_says_whatever_happened(
    name: str, script: list[tuple[str, object]]
) -> None:
    played(name, script)


@pytest.mark.soak
@pytest.mark.parametrize("name", SETTINGS)
@many
@given(script=steps)
def test_vectors_are_what_the_oracle_says_at_length(name: str, script: list[tuple[str, object]]) -> None:
    played(name, script)


def played(name: str, script: list[tuple[str, object]]) -> None:
    """Late deltas, repeats, retractions, crashes, packs, compactions; with eager ones vectors stay finite,
    and batches are handed on."""
    is_eager = name.startswith("eager")
    own = {"overflow": "quarantine", "more": BATCHES} if is_eager else {}
    with TemporaryDirectory() as folder:
        plant = Plant(Path(folder) / "plant", SETTINGS[name], pack="{slices: 2}", **own)
        plant.clock.set(NOON + 30 * SECOND)
        made = 0
        for number, (step, given_) in enumerate(script):
            if step == "land":
                assert isinstance(given_, list)
                deltas: list[Delta] = []
                for vector, seconds, op, values, places in given_:
                    made += 1
                    deltas.append(delta(f"d{made * 7 % 101:03d}", vector, seconds, op, values, places))
                plant.land(*deltas)
            elif step == "tick":
                plant.tick()
            elif step == "compact":
                if plant.mill.warehouse.existing("chains", "drift") is not None:
                    compact(plant, force=bool(given_))
            elif step == "retract":
                ids = [entry.id for entry in plant.mill.state.slices("drift", SliceStatus.ACCEPTED)]
                if ids:
                    plant.take_back(ids[int(str(given_)) % len(ids)])
            elif step == "wait":
                plant.clock.advance(int(str(given_)) * SECOND)
            else:
                plant = _died(plant, str(given_), Path(folder) / f"crash-{number}")
        plant.tick()
        plant.check([NOON - MINUTE, NOON + MINUTE])
        check_batches(plant)
        compact(plant)
        plant.check()
        assert plant.mill.chains.verify("drift")[1] == []
        version = plant.version()
        plant.tick()
        compact(plant)
        assert plant.version() == version
        plant.mill.close()


def check_batches(plant: Plant) -> None:
    """A batch is what all deltas of its window come to; each window that the watermark has passed has one."""
    deltas, published = plant.oracle.deltas, plant.mill.chains.windows("drift", "10s").found
    if plant.more:
        passed = plant.mill.watermark("drift") or 0
        published = plant.mill.chains.windows("drift").found
        starts = {one.ts // TEN * TEN for one in deltas}
        assert [one.start for one in published] == sorted(at for at in starts if at + TEN <= passed)
    for one in published:
        inside = [each for each in deltas if one.start <= each.ts < one.end]
        assert one.stats is not None
        assert one.stats.received == len(inside)
        if one.published is not None:
            assert is_current(one.published.window)
            file = plant.mill.project.warehouse / str(one.file)
            assert deltas_in(file.read_bytes()) == batch_of(inside).deltas


def _died(plant: Plant, point: str, folder: Path) -> Plant:
    """Goes on with what is on disk where a round first passes the point, if it does."""
    copies: list[Plant] = []

    def copy(passed: str) -> None:
        if passed == point and not copies:
            copies.append(copy_of(plant, folder))

    with observed(copy):
        plant.tick()
        if plant.mill.warehouse.existing("chains", "drift") is not None:
            compact(plant)
    if not copies:
        return plant
    plant.mill.close()
    return copies[0]
