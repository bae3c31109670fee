"""What deltas do as values: composed, they do what they do one after the other; taken back, nothing is left.

With numbers whose arithmetic is exact (small multiples of powers of two), so that laws are equalities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.chains.algebra import (
    IDENTITY,
    Affine,
    Change,
    Gone,
    apply,
    apply_all,
    change_of,
    changed,
    compose,
    inverse,
)
from tidemill.model.deltas import Delta, Op
from tidemill.testing.vectors import VectorOracle

DIMENSION = 3
EXACT = st.integers(-64, 64).map(lambda n: n / 8)
FACTORS = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0])
VECTORS = st.none() | st.tuples(EXACT, EXACT, EXACT)


@st.composite
def deltas(draw: st.DrawFn) -> Delta:
    op = draw(st.sampled_from(list(Op)))
    indices = None
    if op not in (Op.REPLACE, Op.DELETE) and draw(st.booleans()):
        indices = tuple(sorted(draw(st.sets(st.integers(0, DIMENSION - 1)))))
    size = {Op.OFFSET: 1, Op.DELETE: 0}.get(op, DIMENSION if indices is None else len(indices))
    if op is Op.SCALE and indices is None and draw(st.booleans()):
        size = 1
    numbers = FACTORS if op is Op.SCALE else EXACT
    return Delta("v", "d", 0, op, tuple(draw(st.lists(numbers, min_size=size, max_size=size))), indices)


CHAINS = st.lists(deltas(), max_size=6)


def change_of_all(chain: list[Delta]) -> Change:
    whole: Change = IDENTITY
    for delta in chain:
        whole = compose(whole, change_of(delta, DIMENSION))
    return whole


@given(CHAINS)
def test_applying_is_what_the_oracle_says(chain: list[Delta]) -> None:
    oracle = VectorOracle(
        DIMENSION, [Delta("v", f"{n:03}", 0, d.op, d.values, d.indices) for n, d in enumerate(chain)]
    )
    found = apply_all(None, chain, DIMENSION)
    assert (None if found is None else list(found)) == oracle.at("v")


@given(VECTORS, deltas())
def test_change_of_a_delta_does_what_the_delta_does(vector: tuple[float, ...] | None, delta: Delta) -> None:
    assert changed(change_of(delta, DIMENSION), vector) == apply(vector, delta, DIMENSION)


@given(VECTORS, CHAINS)
def test_composed_deltas_do_what_they_do_one_after_the_other(
    vector: tuple[float, ...] | None, chain: list[Delta]
) -> None:
    assert changed(change_of_all(chain), vector) == apply_all(vector, chain, DIMENSION)


@given(CHAINS, CHAINS, CHAINS)
def test_composition_does_not_depend_on_grouping(a: list[Delta], b: list[Delta], c: list[Delta]) -> None:
    first, second, third = change_of_all(a), change_of_all(b), change_of_all(c)
    assert compose(compose(first, second), third) == compose(first, compose(second, third))


@given(CHAINS)
def test_identity_changes_nothing(chain: list[Delta]) -> None:
    change = change_of_all(chain)
    assert compose(IDENTITY, change) == change == compose(change, IDENTITY)
    assert changed(IDENTITY, None) is None
    assert changed(IDENTITY, (1.0, 2.0, 3.0)) == (1.0, 2.0, 3.0)
    assert inverse(IDENTITY) == IDENTITY


@given(st.tuples(EXACT, EXACT, EXACT), CHAINS)
def test_inverse_takes_a_change_back(vector: tuple[float, ...], chain: list[Delta]) -> None:
    change = change_of_all(chain)
    back = inverse(change)
    forgets = isinstance(change, Gone) or (isinstance(change, Affine) and 0.0 in change.factor)
    assert (back is None) == forgets
    if back is not None:
        assert changed(back, changed(change, vector)) == vector


@pytest.mark.parametrize(
    ("delta", "back"),
    [
        (Delta("v", "d", 0, Op.ADD, (1.0, 2.0, 3.0)), Affine((1.0, 1.0, 1.0), (-1.0, -2.0, -3.0))),
        (Delta("v", "d", 0, Op.ADD, (2.0,), (1,)), Affine((1.0, 1.0, 1.0), (0.0, -2.0, 0.0))),
        (Delta("v", "d", 0, Op.OFFSET, (4.0,)), Affine((1.0, 1.0, 1.0), (-4.0, -4.0, -4.0))),
        (Delta("v", "d", 0, Op.SCALE, (4.0,)), Affine((0.25, 0.25, 0.25), (0.0, 0.0, 0.0))),
        (Delta("v", "d", 0, Op.SCALE, (0.0,), (1,)), None),
        (Delta("v", "d", 0, Op.SET, (1.0,), (1,)), None),
        (Delta("v", "d", 0, Op.REPLACE, (1.0, 2.0, 3.0)), None),
        (Delta("v", "d", 0, Op.DELETE), None),
    ],
)
def test_inverse_of_each_operation(delta: Delta, back: Affine | None) -> None:
    assert inverse(change_of(delta, DIMENSION)) == back


def test_d4_composed_is_one_change() -> None:
    chain = [
        Delta("v", "1", 0, Op.REPLACE, (1.0, 2.0, 3.0)),
        Delta("v", "2", 1, Op.ADD, (0.5, 0.0, 0.5)),
        Delta("v", "3", 2, Op.ADD, (0.0, 1.0, 0.0)),
    ]
    assert change_of_all(chain) == Affine((0.0, 0.0, 0.0), (1.5, 3.0, 3.5))


def test_what_comes_after_a_deletion_begins_from_zeros() -> None:
    chain = [Delta("v", "1", 0, Op.DELETE), Delta("v", "2", 1, Op.ADD, (2.0,), (1,))]
    assert change_of_all(chain) == Affine((0.0, 0.0, 0.0), (0.0, 2.0, 0.0))
    assert changed(change_of_all(chain[:1]), (1.0, 2.0, 3.0)) is None
