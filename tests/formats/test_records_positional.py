"""JSON records that are arrays get names for their values, and arrays inside objects are found."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config.stream import Json
from tidemill.formats.decode import decode
from tidemill.model.slices import Codec, Format

KLINE = Json(columns=("open_time", "open", "close"))


def records(
    path: Path, content: bytes, settings: Json, chunk_bytes: int = 1 << 20, codec: Codec = Codec.NONE
) -> list[bytes]:
    path.write_bytes(content if codec is Codec.NONE else gzip.compress(content))
    found = []
    for chunk in decode(path, Format.JSON, codec, json=settings, chunk_bytes=chunk_bytes):
        assert chunk.data.flags.writeable  # or the kernels would be compiled twice
        data = chunk.data.tobytes()
        found += [data[s:e] for s, e in zip(chunk.starts.tolist(), chunk.ends.tolist(), strict=True)]
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "response.json"


def test_an_array_of_arrays_becomes_objects_with_their_keys_in_order(file: Path) -> None:
    content = b'[[1705276800000,"42000.10","42000.00"],[ 1705276860000 , "0.0012" ,\n"1e5"]]'
    wanted = [
        b'{"close":"42000.00","open":"42000.10","open_time":1705276800000}',
        b'{"close":"1e5","open":"0.0012","open_time":1705276860000}',
    ]
    for chunk_bytes in (1, 40, 1 << 20):
        assert records(file, content, KLINE, chunk_bytes) == wanted
    assert records(file, b"\xef\xbb\xbf" + content, KLINE, codec=Codec.GZIP) == wanted


def test_values_stay_as_they_were_written(file: Path) -> None:
    content = b'[[1.10,"a\\"],b\\u00e9",{"x":[1, {"y":"}"}]}],[1E+2,null,[]]]'
    assert records(file, content, KLINE) == [
        b'{"close":{"x":[1, {"y":"}"}]},"open":"a\\"],b\\u00e9","open_time":1.10}',
        b'{"close":[],"open":null,"open_time":1E+2}',
    ]


@pytest.mark.parametrize(
    "strange",
    [b"[]", b"[1,2]", b"[1,2,3,4]", b"[1,,3]", b"[1,2,]", b"[1,2,3}", b"[1,{],2},3]", b"7", b'{"open":1}'],
)
def test_what_does_not_fit_is_handed_on_as_it_is(file: Path, strange: bytes) -> None:
    found = records(file, b"[[1,2,3]," + strange + b"]", KLINE)
    assert found[0] == b'{"close":3,"open":2,"open_time":1}'
    assert b"".join(found[1:]).replace(b"]", b"").startswith(strange.replace(b"]", b"")[:2])
    for one in found[1:]:
        assert not one.startswith(b'{"close"')


def test_a_lost_end_spoils_only_the_last_record(file: Path) -> None:
    assert records(file, b'[[1,"2","3"],[4,"5', KLINE) == [
        b'{"close":"3","open":"2","open_time":1}',
        b'[4,"5',
    ]


def test_a_path_leads_to_the_records_of_an_answer_that_wraps_them(file: Path) -> None:
    content = b' {"list":[9], "result": {"data":"list", "list" : [[1,2,3]] , "more":[]}, "code":0}'
    inner = Json(columns=KLINE.columns, path="result.list")
    assert records(file, content, inner) == [b'{"close":3,"open":2,"open_time":1}']
    assert records(file, content, Json(path="list")) == [b"9"]
    objects = b'{"data":[{"a":1},{"a":2}]}'
    assert records(file, objects, Json(path="data")) == [b'{"a":1}', b'{"a":2}']
    assert records(file, objects, Json(path="data"), codec=Codec.GZIP, chunk_bytes=1) == [
        b'{"a":1}',
        b'{"a":2}',
    ]


@pytest.mark.parametrize(
    "content", [b'{"code":-1121,"msg":"data"}', b"{", b'{"data', b'{"data":', b"5", b'"data"']
)
def test_a_path_that_leads_nowhere_leaves_one_record(file: Path, content: bytes) -> None:
    assert records(file, content, Json(path="data")) == [content]


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    rows=st.lists(st.lists(VALUE, min_size=3, max_size=3), max_size=8),
    indent=st.sampled_from([None, 1]),
    chunk_bytes=st.integers(1, 100),
    wrapped=st.booleans(),
)
def test_names_change_no_value(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[list[object]],
    indent: int | None,
    chunk_bytes: int,
    wrapped: bool,
) -> None:
    file = tmp_path_factory.getbasetemp() / "property.json"
    whole = {"before": rows, "data": rows, "after": [[]]} if wrapped else rows
    settings = Json(columns=KLINE.columns, path="data" if wrapped else None)
    found = records(file, json.dumps(whole, indent=indent).encode(), settings, chunk_bytes)
    assert [json.loads(one) for one in found] == [dict(zip(KLINE.columns, row, strict=True)) for row in rows]
