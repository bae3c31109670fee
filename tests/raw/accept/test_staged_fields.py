"""The declared fields of staged records have the values that were sent."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from tidemill.config import Limits
from tidemill.config.stream import Stream
from tidemill.formats.declared_columns import raw_columns
from tidemill.formats.read_plan import plan_for
from tidemill.model.slices import Codec, Format
from tidemill.raw.accept.stage import SlicePiece, StageUnit, stage
from tidemill.raw.accept.staged_fields import StagedFields
from tidemill.storage.ipc import read_ipc

RECORDS = [
    b'{"id":"a","at":1,"n":7,"s":"plain","price":"x","site":{"name":"north"}}',  # refused: price is a text
    b'{"id":"b","at":2,"n":-0,"s":"caf\xc3\xa9","price":1.5,"site":{"name":"north"}}',
    b'{"id":"c","at":3,"n":1e2,"s":"a\\nb","price":0.25}',
    b"{",  # refused
    b'{"site":{"name":null,"floor":3},"price":12345678.125,"s":null,"at":4,"id":"d"}',
    b'{"id":"e", "at":5, "n":12, "s":"", "price":-1, "site":{"name":"\\u00fc"}, "more":[{"n":9}]}',
]


@pytest.mark.parametrize("with_list", [False, True])
def test_fields_are_typed_when_a_slice_is_staged(tmp_path: Path, *, with_list: bool) -> None:
    declared: dict[str, object] = {
        "id": "string",
        "at": "integer",
        "n": "integer",
        "s": "string",
        "price": {"type": "decimal", "scale": 3},
        "site.name": "string",
    }
    if with_list:
        declared["tags"] = {"type": "array", "items": "integer"}
    stream = Stream.model_validate(
        {
            "name": "feed",
            "schema": declared,
            "event_time": {"column": "at", "type": "unixtimestamp_s"},
            "identity": "id",
            "metrics": {
                "sales": {"kind": "counter", "dimensions": ["site.name", "n"], "measures": ["price"]}
            },
        }
    )
    records = [
        record.replace(b'"at":', b'"tags":[1,2],"at":') if with_list and b'"id":"b"' in record else record
        for record in RECORDS
    ]
    file = tmp_path / "slice.ndjson"
    file.write_bytes(b"\n".join(records) + b"\n")
    columns = raw_columns(stream)
    fields = StagedFields.of(columns, plan_for(stream, Limits()))
    plan = replace(plan_for(stream, Limits()), located=fields.located)
    size = file.stat().st_size
    piece = SlicePiece(0, "s", str(file), Format.NDJSON, Codec.NONE, 10_000_000, size, size)
    (chunk,) = stage(StageUnit(plan, [piece], str(tmp_path), 1 << 20, fields))

    staged = read_ipc(chunk.columns)
    values = fields.values(staged)
    assert [array.type for array in values] == [own.column.arrow for own in columns.own]
    found = {own.name: array.to_pylist() for own, array in zip(columns.own, values, strict=True)}
    sent = [json.loads(record, parse_float=Decimal) for record in records if record not in (RECORDS[0], b"{")]
    expected = {
        "id": ["b", "c", "d", "e"],
        "at": [2, 3, 4, 5],
        "n": [0, 100, None, 12],
        "s": [one.get("s") for one in sent],
        "price": [one.get("price") for one in sent],
        "site.name": [one.get("site", {}).get("name") for one in sent],
        "tags": [one.get("tags") for one in sent],
    }
    assert found == {name: expected[name] for name in found}
    assert {"n", "s", "price", "site.name", *(["tags"] if with_list else [])} <= set(found)
    assert (chunk.valid, chunk.rejects) == (4, {"wrong_type": 1, "malformed": 1})
    assert fields.made([staged], [np.ones(4, np.bool_)]) == columns.made((), ())


def test_a_part_is_marked_if_an_accepted_value_was_rounded(tmp_path: Path) -> None:
    stream = Stream.model_validate(
        {
            "name": "feed",
            "schema": {"id": "string", "at": "integer", "price": {"type": "decimal", "scale": 2}},
            "event_time": {"column": "at", "type": "unixtimestamp_s"},
            "identity": "id",
        }
    )
    prices = ["1.25", "1.255", "1.250", "1e2", "7"]
    file = tmp_path / "slice.ndjson"
    file.write_text(
        "".join(f'{{"id":"{number}","at":1,"price":{price}}}\n' for number, price in enumerate(prices))
    )
    columns = raw_columns(stream)
    fields = StagedFields.of(columns, plan_for(stream, Limits()))
    plan = replace(plan_for(stream, Limits()), located=fields.located)
    size = file.stat().st_size
    piece = SlicePiece(0, "s", str(file), Format.NDJSON, Codec.NONE, 10_000_000, size, size)
    (chunk,) = stage(StageUnit(plan, [piece], str(tmp_path), 1 << 20, fields))
    staged = read_ipc(chunk.columns)
    for accepted, rounded in [([0, 2, 4], set()), ([0, 1], {"price"}), ([3], {"price"})]:
        mask = np.isin(np.arange(len(prices)), accepted)
        assert fields.made([staged], [mask]).rounded == rounded
