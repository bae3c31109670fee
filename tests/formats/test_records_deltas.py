"""Records of a stream of deltas: what is taken, what is refused and in which words, in bulk as one by one."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples
from tests.support.strategies.feeds import FIRST_ARRIVAL

from tidemill.config import Limits, Stream
from tidemill.formats.arrays import RecordChunk
from tidemill.formats.columnar import columnar_records
from tidemill.formats.decide import DecidedRecord, RefusedRecord, decide
from tidemill.formats.delta_check import surely_deltas
from tidemill.formats.read import read_chunk
from tidemill.formats.read_plan import MAX_ID_BYTES, ReadPlan, plan_for
from tidemill.model.deltas import Op
from tidemill.model.slices import Format
from tidemill.outputs.rollups.events import metric_plan

NOW = FIRST_ARRIVAL
DIMENSION = 4


def plan_of(**vector: object) -> ReadPlan:
    declared = {"name": "points", "kind": "delta", "vector": {"dimension": DIMENSION, **vector}}
    return plan_for(Stream.model_validate(declared), Limits())


PLAN = plan_of()


def record(**members: object) -> bytes:
    whole = {"delta_id": "d1", "vector_id": "v1", "op": "add", "values": [1, 2, 3, 4]} | members
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


def chunk_of(records: list[bytes]) -> RecordChunk:
    ends = np.cumsum([len(one) for one in records], dtype=np.int64)
    data = np.frombuffer(bytearray(b"".join(records)), np.uint8)
    return RecordChunk(data, ends - np.array([len(one) for one in records]), ends)


def sure(records: list[bytes], plan: ReadPlan = PLAN) -> list[bool]:
    assert plan.delta is not None
    return surely_deltas(plan.delta, chunk_of(records), np.arange(len(records))).tolist()


PLAIN = [
    record(),
    record(vector_id=7),
    record(values=[-0.0, 1.5, 2e-300, 1e99]),
    record(op="set", indices=[2], values=[5]),
    record(op="set", indices=[3, 0, 1], values=[5, 6, 7]),
    record(op="add", indices=[], values=[]),
    record(op="add", indices=None),
    record(op="scale", values=[2]),
    record(op="scale", values=[2, 2, 2, 2]),
    record(op="scale", indices=[0, 3], values=[2, 0.5]),
    record(op="offset", values=[0.25]),
    record(op="offset", indices=[1, 2], values=[0.25]),
    record(op="replace"),
    record(op="delete", values=...),
    record(op="delete", values=[]),
    record(op="delete", values=None, indices=None),
    b' { "values" : [ 1 , 2.0,\t3e0,-4 ] , "op":"add","vector_id":"v", "delta_id":"d", "more": {"op": 1} } ',
]


@pytest.mark.parametrize("spelled", PLAIN)
def test_delta_is_taken_and_needs_no_second_look(spelled: bytes) -> None:
    verdict = decide(spelled, PLAN, NOW)
    assert isinstance(verdict, DecidedRecord), verdict
    assert sure([spelled]) == [True]


@pytest.mark.parametrize(
    "spelled",
    [
        record(vector_id="caf\u00e9"),  # escaped
        record(vector_id=10**18),
        record(op="set", indices=[1.0], values=[5]),
        b'{"delta_id":"d","vector_id":7e0,"op":"set","indices":[2e0],"values":[1e100]}',
        b'{"delta_id":"d","vector_id":"v","op":"\\u0061dd","indices":[0],"values":[1e+0003]}',
        b'{"delta_id":"d","vector_id":"v","op":"offset","values":[' + b"1" * 200 + b"]}",
    ],
)
def test_delta_that_is_spelled_oddly_is_taken_at_the_second_look(spelled: bytes) -> None:
    assert isinstance(decide(spelled, PLAN, NOW), DecidedRecord)
    assert sure([spelled]) == [False]
    assert read_chunk(PLAN, chunk_of([spelled]), NOW).columns.num_rows == 1


OPS = "replace, set, add, scale, offset, delete"


@pytest.mark.parametrize(
    ("members", "reason", "detail"),
    [
        ({"vector_id": ...}, "missing_field", "vector_id is required: it names the vector"),
        ({"vector_id": None}, "missing_field", "vector_id is required: it names the vector"),
        ({"vector_id": ""}, "wrong_type", "vector_id is not a non-empty string or an integer"),
        ({"vector_id": 1.5}, "wrong_type", "vector_id is not a non-empty string or an integer"),
        ({"vector_id": True}, "wrong_type", "vector_id is not a non-empty string or an integer"),
        ({"vector_id": ["v"]}, "wrong_type", "vector_id is not a non-empty string or an integer"),
        ({"vector_id": "v" * 1025}, "wrong_type", f"vector_id is longer than {MAX_ID_BYTES} bytes"),
        ({"op": ...}, "missing_field", f"op is required: {OPS}"),
        ({"op": "plus"}, "wrong_type", f"op cannot be 'plus'; it is one of {OPS}"),
        ({"op": 3}, "wrong_type", f"op cannot be what it is; it is one of {OPS}"),
        ({"op": "Add"}, "wrong_type", f"op cannot be 'Add'; it is one of {OPS}"),
        ({"values": ...}, "missing_field", "values is required: add takes 4 values"),
        ({"op": "scale", "values": ...}, "missing_field", "values is required: scale takes 1 or 4 values"),
        ({"op": "offset", "values": ...}, "missing_field", "values is required: offset takes 1 value"),
        ({"values": 4}, "wrong_type", "values is not of type array"),
        ({"values": [1, 2]}, "wrong_type", "values: add takes 4 values, and there are 2"),
        ({"op": "offset"}, "wrong_type", "values: offset takes 1 value, and there are 4"),
        ({"op": "scale", "values": []}, "wrong_type", "values: scale takes 1 or 4 values, and there are 0"),
        ({"op": "delete"}, "wrong_type", "values: delete takes no values, and there are 4"),
        ({"values": [1, 2, 3, "4"]}, "wrong_type", "values[3] is not a finite number of 64 bits"),
        ({"values": [1, None, 3, 4]}, "wrong_type", "values[1] is not a finite number of 64 bits"),
        ({"values": [10**400, 2, 3, 4]}, "wrong_type", "values[0] is not a finite number of 64 bits"),
        ({"values": [1, 2, 3, [4]]}, "wrong_type", "values[3] is not a finite number of 64 bits"),
        ({"indices": 2}, "wrong_type", "indices is not of type array"),
        ({"indices": [0, 1]}, "wrong_type", "values: add takes 2 values for 2 indices, and there are 4"),
        ({"indices": [0, 4]}, "wrong_type", "indices[1] is not a whole number from 0 to 3"),
        ({"indices": [-1]}, "wrong_type", "indices[0] is not a whole number from 0 to 3"),
        ({"indices": [0.5]}, "wrong_type", "indices[0] is not a whole number from 0 to 3"),
        ({"indices": ["0"]}, "wrong_type", "indices[0] is not a whole number from 0 to 3"),
        ({"indices": [2, 1, 2]}, "wrong_type", "indices[2] is 2 again; list each once"),
        (
            {"op": "replace", "indices": [0, 1, 2, 3]}, "wrong_type",
            "replace is about all components and takes no indices",
        ),
        (
            {"op": "delete", "indices": [0], "values": []}, "wrong_type",
            "delete is about the whole vector and takes no indices",
        ),
        ({"delta_id": ...}, "missing_id", "delta_id is missing"),
    ],
)  # fmt: skip
def test_record_that_is_no_delta_is_refused_with_what_would_be_one(
    members: dict[str, object], reason: str, detail: str
) -> None:
    spelled = record(**members)
    verdict = decide(spelled, PLAN, NOW)
    assert isinstance(verdict, RefusedRecord)
    assert (verdict.reason.value, verdict.detail) == (reason, detail)
    [row] = read_chunk(PLAN, chunk_of([spelled]), NOW).refused.to_pylist()
    assert (row["reason"], row["detail"]) == (reason, detail)


def test_number_beyond_a_float64_is_refused_however_it_is_spelled() -> None:
    for number in (b"1e309", b"-1e+0400", b"9" * 400, b"2" + b"0" * 90 + b"e99" + b"9"):
        spelled = b'{"delta_id":"d","vector_id":"v","op":"offset","values":[' + number + b"]}"
        assert isinstance(decide(spelled, PLAN, NOW), RefusedRecord)
        assert sure([spelled]) == [False]


def test_columns_may_have_other_names_and_lie_deeper() -> None:
    plan = plan_of(id="of.vector", op="do", values="with.numbers", indices="with.places")
    spelled = b'{"delta_id":"d","do":"set","of":{"vector":3},"with":{"places":[1],"numbers":[2]}}'
    assert isinstance(decide(spelled, plan, NOW), DecidedRecord)
    assert sure([spelled], plan) == [True]
    verdict = decide(record(), plan, NOW)
    assert isinstance(verdict, RefusedRecord)
    assert verdict.detail == "of.vector is required: it names the vector"


ODD = st.sampled_from(
    [
        None, True, False, "", "0", "add", "v", 0, 1, 3, 4, -1, 0.0, 1.0, 2.5, 5e-324, 1e308, 10**30, 2**63,
        [], [0], [1], [3, 1], [0, 1, 2, 3], [0, 0], [4], [1.0], [None], [[]], {}, {"op": "add"}, ...,
    ]
)  # fmt: skip
NUMBERS = st.one_of(st.integers(-5, 5), st.floats(allow_nan=False, allow_infinity=False))


@st.composite
def deltas(draw: st.DrawFn) -> bytes:
    """Mostly deltas, some of them not quite."""
    op = draw(st.sampled_from(list(Op)))
    indices = draw(st.none() | st.lists(st.integers(0, DIMENSION - 1), unique=True, max_size=DIMENSION))
    if op in (Op.REPLACE, Op.DELETE):
        indices = None
    count = DIMENSION if indices is None else len(indices)
    count = {Op.DELETE: 0, Op.OFFSET: 1}.get(op, count)
    values = draw(st.lists(NUMBERS, min_size=count, max_size=count))
    members: dict[str, object] = {
        "vector_id": draw(st.sampled_from(["v", "w", 7, "\u00e9"])),
        "op": op.value,
        "values": values,
        "indices": indices,
    }
    for name in draw(st.lists(st.sampled_from(sorted(members)), max_size=2)):
        members[name] = draw(ODD)
    spelled = record(**members)
    if draw(st.booleans()):
        space = draw(st.sampled_from([b" ", b"\t", b"\n "]))
        spelled = spelled.replace(b",", space + b"," + space).replace(b"[", b"[" + space)
    return spelled


@examples(300)
@given(st.lists(deltas(), min_size=1, max_size=8))
@example([record(op="scale", values=[1e308, -1e308, 5e-324, 0])])
def test_both_ways_agree_on_every_record(records: list[bytes]) -> None:
    verdicts = [decide(one, PLAN, NOW) for one in records]
    for quick, verdict in zip(sure(records), verdicts, strict=True):
        assert not quick or isinstance(verdict, DecidedRecord), verdict
    read = read_chunk(PLAN, chunk_of(records), NOW)
    taken = {row["row"]: row for row in read.columns.to_pylist()}
    refused = {row["row"]: row for row in read.refused.to_pylist()}
    for row, verdict in enumerate(verdicts):
        if isinstance(verdict, DecidedRecord):
            assert (taken[row]["event_id"], taken[row]["content"]) == (verdict.event_id, verdict.content)
        else:
            assert (refused[row]["reason"], refused[row]["detail"]) == (verdict.reason.value, verdict.detail)
    assert len(taken) + len(refused) == len(records)


def test_sparse_deltas_of_a_large_vector_all_go_the_quick_way() -> None:
    random = Random(7)
    plan = plan_of(dimension=384)
    records = [
        record(
            delta_id=f"d{number}",
            vector_id=f"v{number % 50}",
            op=random.choice(["set", "add", "scale"]),
            indices=sorted(random.sample(range(384), 8)),
            values=[random.gauss(0, 1) for _ in range(8)],
        )
        for number in range(2000)
    ]
    assert all(sure(records, plan))


def test_floats_of_a_parquet_slice_keep_their_bits(tmp_path: Path) -> None:
    numbers = [-0.0, 0.0, 0.1, 5e-324, -1.7976931348623157e308, 1e22, 2.0, 1 / 3]
    rows = pa.table({"values": pa.array([numbers], pa.list_(pa.float64()))})
    pq.write_table(rows, tmp_path / "slice.parquet")
    [[spelled]] = columnar_records(tmp_path / "slice.parquet", Format.PARQUET)
    read = [float(number) for number in orjson.loads(spelled)["values"]]
    assert np.array(read).tobytes() == np.array(numbers).tobytes()


def test_metrics_do_not_ask_again_whether_an_accepted_record_is_a_delta() -> None:
    """Its vectors may be declared with another dimension by now."""
    assert metric_plan(PLAN).delta is None
