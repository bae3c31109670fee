"""A batch of a window holds each delta once, in order of time, merged where no bit changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.support.delta_mill import NOON, Plant
from tests.support.delta_mill import delta as at_noon
from tests.support.hypothesis_settings import examples
from tests.support.oracles.vectors import VectorOracle

from tidemill.model.deltas import Delta, Op
from tidemill.model.errors import InputError
from tidemill.model.time import MINUTE, SECOND
from tidemill.outputs.vectors.batches import DeltaBatch, batch_of, deltas_in

DIMENSION = 3


def delta(number: int, op: Op, *values: float, at: tuple[int, ...] | None = None, of: str = "v") -> Delta:
    return Delta(of, f"d{number:03}", number, op, values, at)


def kept(batch: DeltaBatch) -> list[tuple[str, tuple[float, ...], tuple[int, ...] | None]]:
    return [(one.delta_id, one.values, one.indices) for one in batch.deltas]


def test_set_over_set_is_one_set_in_the_place_of_the_later() -> None:
    batch = batch_of([delta(0, Op.SET, 1.0, 5.0, at=(0, 2)), delta(1, Op.SET, 2.0, 7.0, at=(1, 2))])
    assert kept(batch) == [("d001", (1.0, 2.0, 7.0), (0, 1, 2))]


def test_d7_sets_of_a_boundary_are_one_delta() -> None:
    batch = batch_of([delta(0, Op.SET, 1.0, at=(0,)), delta(1_000_000, Op.SET, 2.0, at=(1,))])
    assert [(one.ts, one.indices, one.values) for one in batch.deltas] == [(1_000_000, (0, 1), (1.0, 2.0))]


@pytest.mark.parametrize(
    "last", [delta(9, Op.REPLACE, 1.0, 2.0, 3.0), delta(9, Op.DELETE), delta(9, Op.SET, 1.0, 2.0, 3.0)]
)
def test_what_comes_before_a_whole_vector_or_its_end_is_dropped(last: Delta) -> None:
    batch = batch_of([delta(1, Op.ADD, 1.0, at=(0,)), delta(2, Op.SCALE, 2.0), last])
    assert batch.deltas == (last,)


def test_a_set_over_a_whole_vector_is_a_whole_vector() -> None:
    batch = batch_of([delta(1, Op.REPLACE, 1.0, 2.0, 3.0), delta(2, Op.SET, 9.0, at=(1,))])
    assert [(one.op, one.values) for one in batch.deltas] == [(Op.REPLACE, (1.0, 9.0, 3.0))]


def test_what_would_need_an_addition_stays_apart() -> None:
    """(v + .1) + .2 is not v + (.1 + .2), to the last bit."""
    batch = batch_of([delta(1, Op.ADD, 0.1, at=(0,)), delta(2, Op.ADD, 0.2, at=(0,))])
    assert [one.delta_id for one in batch.deltas] == ["d001", "d002"]


def test_sets_with_an_addition_between_them_stay_apart() -> None:
    given_ = [delta(1, Op.SET, 1.0, at=(0,)), delta(2, Op.ADD, 1.0, at=(1,)), delta(3, Op.SET, 2.0, at=(0,))]
    assert len(batch_of(given_).deltas) == 3


def test_a_delta_that_came_twice_is_there_once_and_counted() -> None:
    once = delta(1, Op.ADD, 1.0, at=(0,))
    batch = batch_of([once, delta(2, Op.ADD, 2.0, at=(0,)), once])
    assert (batch.stats.received, batch.stats.duplicates, batch.stats.deltas) == (3, 1, 2)


def test_deltas_are_in_order_of_time_and_then_of_their_ids() -> None:
    ties = [Delta("v", "b", 5, Op.ADD, (1.0,), (0,)), Delta("w", "a", 5, Op.ADD, (1.0,), (0,))]
    batch = batch_of([*ties, delta(3, Op.ADD, 1.0, at=(0,))])
    assert [(one.ts, one.delta_id) for one in batch.deltas] == [(3, "d003"), (5, "a"), (5, "b")]


def test_stats_of_the_window() -> None:
    batch = batch_of([delta(n, Op.ADD, float(n), at=(0,), of=f"v{n % 20}") for n in (40, 10, 30, 20)])
    stats = batch.stats
    assert (stats.deltas, stats.vectors, stats.start, stats.end, stats.duration) == (4, 2, 10, 40, 30)
    assert stats.bytes == len(batch.content)
    assert stats.average == stats.bytes / 4


def test_a_batch_of_nothing() -> None:
    stats = batch_of([]).stats
    assert (stats.deltas, stats.vectors, stats.average, stats.duration, stats.start) == (0, 0, 0.0, 0, None)
    assert deltas_in(batch_of([]).content) == ()


def test_what_is_compressed_is_smaller_than_what_came() -> None:
    many = [delta(n, Op.ADD, 0.5, 0.25, at=(n % 2, 2), of=f"v{n % 7}") for n in range(2_000)]
    batch = batch_of(many)
    assert batch.stats.bytes < 2_000 * 2 * (8 + 4)  # of values and indices alone
    assert deltas_in(batch.content) == batch.deltas


def test_what_is_no_batch_is_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match="not a batch of deltas"):
        deltas_in(b"something else")


NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=64)


@st.composite
def changes(draw: st.DrawFn) -> Delta:
    op, ts = draw(st.sampled_from(Op)), draw(st.integers(0, 4))
    name = f"{draw(st.integers(0, 30)):02}"
    vector = f"v{int(name) % 2}"  # an id is of one delta, so of one vector
    sparse = op in (Op.SET, Op.ADD, Op.SCALE, Op.OFFSET) and draw(st.booleans())
    indices = (
        tuple(draw(st.lists(st.integers(0, 2), unique=True, max_size=3).map(sorted))) if sparse else None
    )
    if op is Op.DELETE:
        count = 0
    elif op is Op.OFFSET:
        count = 1
    else:
        count = DIMENSION if indices is None else len(indices)
    return Delta(vector, name, ts, op, tuple(draw(NUMBERS) for _ in range(count)), indices)


@examples(200)
@given(before=st.lists(changes(), max_size=5), window=st.lists(changes(), max_size=12))
def test_applied_to_any_vectors_it_gives_the_bits_that_all_deltas_give(
    before: list[Delta], window: list[Delta]
) -> None:
    earlier = {one.delta_id: replace(one, delta_id=f"-{one.delta_id}", ts=one.ts - 10) for one in before}
    once: dict[str, Delta] = {}
    for one in window:
        once.setdefault(one.delta_id, one)
    whole = VectorOracle(DIMENSION, [*earlier.values(), *once.values()])
    batch = batch_of(window)
    assert deltas_in(batch.content) == batch.deltas
    merged = VectorOracle(DIMENSION, [*earlier.values(), *batch.deltas])
    for vector in whole.ids:
        assert bits(merged.at(vector)) == bits(whole.at(vector))


def bits(vector: list[float] | None) -> list[str] | None:
    return None if vector is None else [value.hex() for value in vector]


# -- of the windows of a stream


@examples(8)
@given(
    window=st.lists(changes(), min_size=1, max_size=25, unique_by=lambda one: one.delta_id),
    width=st.integers(1, 3),
)
def test_batches_of_windows_one_after_the_other_give_the_bits_of_the_stream(
    tmp_path_factory: pytest.TempPathFactory, window: list[Delta], width: int
) -> None:
    moved = [replace(one, ts=NOON + one.ts * SECOND) for one in window]
    plant = Plant(tmp_path_factory.mktemp("batches") / "plant", "{strategy: full_merge, delta_threshold: 2}")
    plant.land(*moved[::2])
    plant.land(*moved[1::2], *moved[:3])  # some of them twice
    plant.tick()
    whole, sent = plant.oracle, list[Delta]()
    for one in plant.mill.chains.batches("drift", width * SECOND):
        sent += one.batch.deltas
        assert one.batch == batch_of((x for x in moved if one.start <= x.ts < one.end), "default")
        for vector in whole.ids:
            assert bits(VectorOracle(DIMENSION, sent).at(vector)) == bits(whole.at(vector, one.end - 1))
    plant.mill.close()


def test_windows_are_as_wide_as_asked_for_and_cut_where_asked(tmp_path: Path) -> None:
    plant = Plant(tmp_path / "plant", "{}")
    plant.land(*(at_noon(f"d{n}", f"v{n % 2}", 20 * n, "add", [1, 2, 3]) for n in range(6)))
    plant.tick()
    chains = plant.mill.chains
    reported = [
        (one.start - NOON, one.end - NOON, one.stats.received) for one in chains.windows("drift", "1m").found
    ]
    assert reported == [(0, MINUTE, 3), (MINUTE, 2 * MINUTE, 3)]
    (hour,) = chains.batches("drift")
    assert (hour.start, hour.batch.stats.vectors) == (NOON, 2)
    (some,) = chains.batches("drift", start=NOON + 20 * SECOND, end=NOON + 60 * SECOND)
    assert [one.delta_id for one in some.batch.deltas] == ["d1", "d2"]
    assert list(chains.batches("drift", start="2024-01-16T00:00:00Z")) == []


def test_what_is_taken_back_is_in_no_batch(tmp_path: Path) -> None:
    plant = Plant(tmp_path / "plant", "{}")
    wrong = plant.land(at_noon("d1", "v", 1, "add", [1, 1, 1]))
    plant.land(at_noon("d2", "v", 2, "add", [1, 1, 1]))
    plant.tick()
    plant.take_back(wrong)
    plant.tick()
    (hour,) = plant.mill.chains.batches("drift")
    assert [one.delta_id for one in hour.batch.deltas] == ["d2"]


@pytest.mark.parametrize("width", ["0s", 0, -1])
def test_a_window_without_width_is_refused(tmp_path: Path, width: str | int) -> None:
    plant = Plant(tmp_path / "plant", "{}")
    with pytest.raises(InputError, match=r"width|duration"):
        list(plant.mill.chains.batches("drift", width))
