"""Groups come out in the order of their keys, however many there are and however far apart they lie."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidemill.outputs.rollups.grouping import GroupCodes, coded, grouped


@pytest.mark.parametrize("distinct", [1, 7, 400, 5_000, 60_000])
@pytest.mark.parametrize("span", [60_000, 1 << 40, (1 << 63) - 1])
def test_rows_are_grouped_as_numpy_would(distinct: int, span: int) -> None:
    """Few or many, near (each has a place) or far apart (they are hashed, or sorted if most are distinct)."""
    random = np.random.default_rng(distinct)
    values = random.integers(0, span, distinct)[random.integers(0, distinct, 100_000)]
    of, first = grouped([GroupCodes(values, span)])
    wanted, inverse = np.unique(values, return_inverse=True)
    assert values[first].tolist() == wanted.tolist()
    assert of.tolist() == inverse.tolist()


@pytest.mark.parametrize("runs", [1, 2, 3, 5, 32, 33])
def test_sorted_runs_are_grouped_as_numpy_would(runs: int) -> None:
    """Few ascending runs are merged, more are hashed; the first row of a group is its first in any case."""
    random = np.random.default_rng(runs)
    values = np.concatenate([np.sort(random.integers(0, 1000, 40)) << 40 for _ in range(runs)])
    of, first = grouped([GroupCodes(values, 1 << 50)])
    wanted, at, inverse = np.unique(values, return_index=True, return_inverse=True)
    assert values[first].tolist() == wanted.tolist()
    assert first.tolist() == at.tolist()
    assert of.tolist() == inverse.tolist()


def test_very_many_rows_are_grouped_as_numpy_would() -> None:
    values = np.random.default_rng(1).integers(0, 1 << 21, 600_000)
    of, first = grouped([GroupCodes(values, 1 << 21)])
    wanted, at, inverse = np.unique(values, return_index=True, return_inverse=True)
    assert (values[first] == wanted).all()
    assert (first == at).all()
    assert (of == inverse).all()


def test_codes_that_do_not_fit_a_word_together_are_grouped_in_steps() -> None:
    random = np.random.default_rng(1)
    columns = [random.integers(0, 5, 20_000) * 10**12 for _ in range(4)]
    of, first = grouped([GroupCodes(column, 5 * 10**12) for column in columns])
    rows = list(zip(*columns, strict=True))
    ranks = {row: rank for rank, row in enumerate(sorted(set(rows)))}
    assert of.tolist() == [ranks[row] for row in rows]
    assert [rows[i] for i in first.tolist()] == sorted(set(rows))


def test_codes_follow_the_values_and_nothing_comes_first() -> None:
    text = pa.DictionaryArray.from_arrays(
        pa.array([1, None, 0, 2, 3]), pa.array(["é", "a", "a", "\U0001f30a"])
    )
    assert coded(text).of.tolist() == [1, 0, 2, 1, 3]  # a text may stand in a dictionary twice
    assert coded(pa.array([True, None, False])).of.tolist() == [2, 0, 1]
    numbers = coded(pa.array([2**63 - 1, None, -(2**63), 0])).of
    assert np.argsort(numbers).tolist() == [1, 2, 3, 0]
    assert coded(pa.chunked_array([pa.array([5, None]), pa.array([4])])).of.tolist() == [2, 0, 1]


def test_no_rows_are_no_groups() -> None:
    of, first = grouped(
        [coded(pa.array([], pa.int64())), coded(pa.array([], pa.string()).dictionary_encode())]
    )
    assert (of.size, first.size) == (0, 0)
