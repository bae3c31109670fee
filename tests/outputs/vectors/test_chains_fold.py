"""The kernel against the definition: the bits of a vector are those of applying its deltas one by one."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples
from tests.support.oracles.vectors import VectorOracle

from tidemill.config.vectors import Vector
from tidemill.formats.delta_arrays import (
    Deltas,
    deltas_from_payloads,
    deltas_from_rows,
    order_of,
    rows_of,
    taken,
)
from tidemill.formats.kernels import Kernel
from tidemill.model.deltas import Delta, Op
from tidemill.outputs.vectors.fold import fold

DIMENSION = 5
AWKWARD = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.1,
            1 / 3,
            5e-324,
            -5e-324,
            2.2250738585072014e-308,
            1e-310,
            1.7976931348623157e308,
        ]
    ),
    st.integers(-(2**70), 2**70).map(float),
)
SPARSE = (Op.SET, Op.ADD, Op.SCALE, Op.OFFSET)


@st.composite
def changes(
    draw: st.DrawFn, values: st.SearchStrategy[float] = AWKWARD
) -> tuple[str, int, Op, tuple, tuple | None]:
    op = draw(st.sampled_from(list(Op)))
    indices = None
    if op in SPARSE and draw(st.booleans()):
        indices = tuple(draw(st.permutations(range(DIMENSION)))[: draw(st.integers(0, DIMENSION))])
    size = DIMENSION if indices is None else len(indices)
    if op in (Op.OFFSET, Op.DELETE):
        size = 1 if op is Op.OFFSET else 0
    if op is Op.SCALE and indices is None and draw(st.booleans()):
        size = 1
    found = tuple(draw(st.lists(values, min_size=size, max_size=size)))
    return draw(st.sampled_from(["a", "b", "\u00e9"])), draw(st.integers(0, 6)), op, found, indices


def numbered(found: Sequence[tuple[str, int, Op, tuple, tuple | None]]) -> list[Delta]:
    """Ids whose order as text is not that of their numbers."""
    return [
        Delta(vector, f"d{number}", ts, op, values, indices)
        for number, (vector, ts, op, values, indices) in enumerate(found)
    ]


CHAINS = st.lists(changes(), max_size=40).map(numbered)


def table_of(deltas: Sequence[Delta]) -> pa.Table:
    return pa.table(
        {
            "vector_id": pa.array([d.vector_id for d in deltas], pa.string()),
            "ts": pa.array([d.ts for d in deltas], pa.timestamp("us", "UTC")),
            "delta_id": pa.array([d.delta_id for d in deltas], pa.string()),
            "op": pa.array([d.op.value for d in deltas], pa.string()),
            "indices": pa.array([d.indices for d in deltas], pa.list_(pa.int32())),
            "values": pa.array([d.values for d in deltas], pa.list_(pa.float64())),
        }
    )


def ordered(deltas: Deltas) -> Deltas:
    return taken(deltas, order_of(deltas))


def bits(vector: Sequence[float] | None) -> bytes | None:
    return None if vector is None else struct.pack(f"{len(vector)}d", *vector)


def folded(deltas: Deltas, until: int | None = None) -> dict[str, bytes | None]:
    found = fold(None, None, deltas, DIMENSION, until)
    return {
        name: found.matrix[row].tobytes() if found.exists[row] else None
        for row, name in enumerate(deltas.names.to_pylist())
    }


@examples(300)
@given(CHAINS, st.none() | st.integers(-1, 7))
@example(numbered([("a", 0, Op.SCALE, (-1.0,), None), ("a", 0, Op.ADD, (-0.0,), (2,))]), None)
@example(numbered([("a", 0, Op.REPLACE, (1e308,) * 5, None), ("a", 1, Op.SCALE, (1e308,), None)]), None)
def test_kernel_gives_the_bits_of_one_delta_after_the_other(deltas: list[Delta], until: int | None) -> None:
    oracle = VectorOracle(DIMENSION, deltas)
    expected = {name: bits(oracle.at(name, until)) for name in oracle.ids}
    assert folded(ordered(deltas_from_rows(table_of(deltas))), until) == expected


@examples(150)
@given(CHAINS, st.integers(0, 7))
def test_going_on_from_a_vector_is_the_same_as_from_the_beginning(deltas: list[Delta], instant: int) -> None:
    oracle = VectorOracle(DIMENSION, deltas)
    whole = ordered(deltas_from_rows(table_of(deltas)))
    before = fold(None, None, whole, DIMENSION, instant)
    kept = before.matrix.copy()
    after = fold(before.matrix, before.exists, taken(whole, whole.ts > instant), DIMENSION)
    assert np.array_equal(before.matrix, kept, equal_nan=True)  # what it began with is left alone
    for row, name in enumerate(whole.names.to_pylist()):
        assert bool(after.exists[row]) == (oracle.at(name) is not None)
        if after.exists[row]:
            assert after.matrix[row].tobytes() == bits(oracle.at(name))
        first = oracle.chain(name, instant)
        last = whole.ids[int(before.last[row])].as_py() if before.last[row] >= 0 else None
        assert last == (first[-1].delta_id if first else None)


@examples(150)
@given(CHAINS)
def test_deltas_are_the_same_from_payloads_as_from_rows(deltas: list[Delta]) -> None:
    payloads = [
        json.dumps({"vector_id": d.vector_id, "op": d.op, "values": d.values, "indices": d.indices})
        for d in deltas
    ]
    rows = table_of(deltas)
    read = deltas_from_payloads(
        pa.array(payloads, pa.string()), rows["ts"], rows["delta_id"], Vector(dimension=DIMENSION)
    )
    expected = rows_of(deltas_from_rows(rows))
    assert rows_of(read).equals(expected)
    assert read.values.tobytes() == deltas_from_rows(rows).values.tobytes()  # -0.0 equals 0.0 and is not it


def read_values(*spelled: str, more: str = "") -> Deltas:
    payload = f'{{"vector_id": "v", "op": "replace", "values": [{", ".join(spelled)}]{more}}}'
    some = [pa.array([text]) for text in (payload, 0, "d")]
    return deltas_from_payloads(*some, Vector(dimension=len(spelled)))


@examples(300)
@given(
    st.one_of(
        st.from_regex(r"-?(0|[1-9][0-9]{0,30})\.[0-9]{1,25}(e[+-]?[0-9]{1,2})?", fullmatch=True),
        st.from_regex(r"-?[1-9][0-9]{0,40}", fullmatch=True),
        st.floats(allow_nan=False, allow_infinity=False).map(repr),
    )
)
@example("2.2250738585072011e-308")
@example("9007199254740993")
@example("-0.0")
@example("123456789012345678901234567890123456789012345678901234567890")
def test_number_is_the_nearest_float64(spelled: str) -> None:
    assert bits([float(spelled)]) == read_values(spelled).values.tobytes()


def test_integer_has_no_sign_of_zero() -> None:
    assert math.copysign(1.0, read_values("-0").values[0]) == 1.0
    assert math.copysign(1.0, read_values("-0.0").values[0]) == -1.0


def test_numbers_that_no_float_holds_may_stand_elsewhere_in_a_payload() -> None:
    deltas = read_values("1.5", "-0", "3e2", more=f', "far": 1e999, "long": {"9" * 5000}')
    assert deltas.values.tobytes() == bits([1.5, 0.0, 300.0])


def test_vector_is_called_by_all_the_digits_of_its_number() -> None:
    payloads = [
        f'{{"vector_id": {number}, "op": "delete"}}'
        for number in ("7", "-0", "7.0", "9007199254740993.0", "1e3", "-9223372036854775808")
    ]
    read = deltas_from_payloads(
        pa.array(payloads), pa.array([0] * 6), pa.array(list("abcdef")), Vector(dimension=3)
    )
    names = read.names.take(pa.array(read.vectors)).to_pylist()
    assert names == ["7", "0", "7", "9007199254740993", "1000", "-9223372036854775808"]


@pytest.mark.parametrize(
    "members",
    [
        {"op": "replace", "values": [1, 2]},
        {"op": "set", "values": [1, 2, 3], "indices": [0, 1]},
        {"op": "set", "values": [1], "indices": [3]},
        {"op": "set", "values": [1], "indices": [-1]},
        {"op": "replace", "values": [1, 2, 3], "indices": [0, 1, 2]},
        {"op": "offset", "values": [1, 2, 3]},
        {"op": "delete", "values": [1]},
    ],
)
def test_what_was_accepted_as_something_else_never_reaches_the_kernel(members: dict[str, object]) -> None:
    payload = pa.array([json.dumps({"vector_id": "v", **members})])
    with pytest.raises(ValueError, match="vectors of 3 components"):
        deltas_from_payloads(payload, pa.array([0]), pa.array(["d"]), Vector(dimension=3))


def test_d4_deltas_add_up() -> None:
    deltas = [
        Delta("v", "1", 0, Op.REPLACE, (1.0, 2.0, 3.0)),
        Delta("v", "2", 1, Op.ADD, (0.5, 0.0, 0.5)),
        Delta("v", "3", 2, Op.ADD, (0.0, 1.0, 0.0)),
    ]
    found = fold(None, None, ordered(deltas_from_rows(table_of(deltas))), 3)
    assert found.matrix.tolist() == [[1.5, 3.0, 3.5]]
    assert VectorOracle(3, deltas).at("v") == [1.5, 3.0, 3.5]


def test_d5_from_a_checkpoint() -> None:
    ones, twos = Delta("v", "1", 0, Op.ADD, (1.0,) * 3), Delta("v", "2", 1, Op.ADD, (2.0,) * 3)
    checkpoint = fold(None, None, deltas_from_rows(table_of([ones])), 3)
    found = fold(checkpoint.matrix, checkpoint.exists, deltas_from_rows(table_of([twos])), 3)
    assert found.matrix.tolist() == [[3.0, 3.0, 3.0]]


def test_deltas_of_one_instant_are_in_order_of_their_ids_as_text() -> None:
    deltas = [
        Delta("v", name, 7, Op.SET, (float(n),), (0,)) for n, name in enumerate(["9", "10", "\u00e9", "z"])
    ]
    whole = deltas_from_rows(table_of(deltas))
    assert [deltas[row].delta_id for row in order_of(whole)] == ["10", "9", "z", "\u00e9"]


@pytest.mark.parametrize("finite", [False, True])
def test_python_and_numba_run_the_kernel_alike(monkeypatch, finite: bool) -> None:
    deltas = [
        Delta("v", "1", 1, Op.REPLACE, (0.1, 1e308, -0.0)),
        Delta("v", "2", 2, Op.ADD, (0.2, 1e308, 0.0)),
        Delta("w", "3", 2, Op.SET, (3.0,), (2,)),
        Delta("v", "4", 3, Op.SCALE, (1.1,)),
        Delta("w", "5", 4, Op.OFFSET, (0.7,), (1,)),
        Delta("w", "6", 5, Op.DELETE),
    ]
    arrays = deltas_from_rows(table_of(deltas))
    compiled = fold(None, None, arrays, 3, finite=finite)
    monkeypatch.setattr(Kernel, "for_steps", lambda self, _steps: self)
    as_it_is = fold(None, None, arrays, 3, finite=finite)
    for name in ("matrix", "exists", "last", "left_out"):
        assert getattr(as_it_is, name).tobytes() == getattr(compiled, name).tobytes(), name


_SHOW = """
import os, sys, tempfile
os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp()
import numba, numpy as np
from tidemill.outputs.vectors import fold
from tidemill.formats.delta_arrays import ROWS, deltas_from_rows
deltas = deltas_from_rows(ROWS.empty_table())
fold.fold(None, None, deltas, 3)
[code] = fold._fold.compiled.inspect_asm().values()
print("mul" in code, "fmadd" in code or "fmsub" in code)
"""


def test_compiled_kernel_never_fuses_a_product_and_a_sum() -> None:
    """A fused one rounds once where the definition rounds twice."""
    done = subprocess.run([sys.executable, "-c", _SHOW], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
