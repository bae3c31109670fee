"""Deltas from columns of raw are, bit for bit, those from payloads; where a column says less, payloads are
read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemill.config import parse_project
from tidemill.formats.declared_columns import raw_columns
from tidemill.formats.delta_arrays import deltas_from_payloads, rows_of
from tidemill.formats.payload_columns import typed
from tidemill.model.errors import ConfigError
from tidemill.raw.part_columns import nested_columns, own_columns, payload_sizes
from tidemill.raw.part_deltas import PartDeltas

STREAM = parse_project(
    "version: 1\nstreams:\n  feed:\n    kind: delta\n    vector: {dimension: 3}\n"
    "    event_time: {column: at, type: unixtimestamp_us}\n",
    Path("tidemill.yaml"), ["unixtimestamp_us"], {},
).streams["feed"]  # fmt: skip
PLAIN = [
    '{"vector_id":"v","op":"replace","values":[1,-0.0,2.5e-3]}',
    '{"vector_id":"\\u0076","op":"add","indices":[2.0,0],"values":[0.1,123456789012345678901234567890]}',
    '{"vector_id":"w","op":"delete"}',
    '{"vector_id":"w","op":"offset","values":[5e-324],"indices":null}',
    '{"vector_id":"x","op":"set","indices":[],"values":[]}',
]


def part(lines: list[str]) -> tuple[PartDeltas, pa.RecordBatch, pa.Array]:
    """What a part of raw has of these records."""
    payload = pa.array(lines, pa.string())
    declared = raw_columns(STREAM)
    read = typed(own_columns(declared), payload)
    made = declared.made((name for name, _ in read.misfits), read.rounded)
    rows = {
        "event_time": pa.array(range(len(lines)), pa.timestamp("us", "UTC")),
        "event_id": pa.array([f"d{n}" for n in range(len(lines))]),
        **nested_columns(declared, read.arrays, payload_sizes(payload)),
        "payload": payload,
    }
    assert STREAM.vector is not None
    return PartDeltas(STREAM.vector, made), pa.RecordBatch.from_pydict(rows), payload


@pytest.mark.parametrize(
    ("more", "by_columns"),
    [
        ([], True),
        (['{"vector_id":"v","op":"replace","values":[-0,1,1]}'], False),  # an integer has no negative zero
        (['{"vector_id":7,"op":"delete"}'], False),  # a vector that is named by a number
    ],
    ids=["plain", "an integer -0", "a number"],
)
def test_they_are_those_of_the_payloads(more: list[str], by_columns: bool) -> None:
    deltas, rows, payload = part([*PLAIN, *more])
    assert ("payload" not in deltas.names) == by_columns
    found = deltas.of(rows.select(deltas.names))
    assert STREAM.vector is not None
    wanted = deltas_from_payloads(payload, rows.column("event_time"), rows.column("event_id"), STREAM.vector)
    assert rows_of(found).equals(rows_of(wanted))
    assert np.array_equal(np.signbit(found.values), np.signbit(wanted.values))


@pytest.mark.parametrize(
    "record",
    [{"vector_id": "v", "op": "turn"}, {"op": "delete"}, {"vector_id": "v", "op": "add", "values": [1]}],
)
def test_a_record_that_is_no_delta_is_an_error(record: dict[str, object]) -> None:
    deltas, rows, _ = part([json.dumps(record)])
    with pytest.raises(ConfigError, match="not deltas of these vectors"):
        deltas.of(rows.select(deltas.names))
