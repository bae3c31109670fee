"""From a slice's bytes to its records: every format, any chunk size, any split, damage included."""

from __future__ import annotations

import csv as csv_module
import datetime as dt
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.config.stream import Csv
from tidemill.formats import decode as decode_module
from tidemill.formats.decode import decode, line_blocks
from tidemill.model.errors import InputError
from tidemill.model.slices import Codec, Format

LINES = b'{"id":1}\n\n  \t\r\n{"id":2}\r\nnot json\n{"id":"\xff\x00"}\n{"last":true}'
RECORDS = [b'{"id":1}', b'{"id":2}', b"not json", b'{"id":"\xff\x00"}', b'{"last":true}']


def records(
    path: Path,
    format: Format,
    codec: Codec = Codec.NONE,
    csv: Csv | None = None,
    *,
    chunk_bytes: int = 1 << 20,
    byte_range: tuple[int, int] | None = None,
    types: Mapping[str, str] | None = None,
) -> list[bytes]:
    """All records; on the way it is checked that chunks that claim to be the file are the file."""
    found: list[bytes] = []
    whole = path.read_bytes()
    for chunk in decode(
        path, format, codec, csv, chunk_bytes=chunk_bytes, byte_range=byte_range, types=types
    ):
        assert chunk.data.flags.writeable  # or the kernels would be compiled twice
        data = chunk.data.tobytes()
        spans = zip(chunk.starts.tolist(), chunk.ends.tolist(), strict=True)
        for start, end in spans:
            found.append(data[start:end])
            if chunk.in_place:
                assert whole[chunk.base + start : chunk.base + end] == data[start:end]
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slice"


@pytest.mark.parametrize("chunk_bytes", [1, 7, 20, 1 << 20])
@pytest.mark.parametrize("codec", list(Codec))
def test_lines_are_records_and_blank_ones_are_not(path: Path, codec: Codec, chunk_bytes: int) -> None:
    compress = {Codec.NONE: bytes, Codec.GZIP: gzip.compress, Codec.ZSTD: zstandard.compress}[codec]
    path.write_bytes(compress(LINES))
    assert records(path, Format.NDJSON, codec, chunk_bytes=chunk_bytes) == RECORDS


@given(
    lines=st.lists(st.sampled_from([b"", b" ", b"{}", b'{"a":1}', b"x" * 40, b"{}\r"]), max_size=20),
    cuts=st.lists(st.integers(0, 300), max_size=4),
    final=st.booleans(),
    chunk_bytes=st.integers(1, 64),
)
@examples(60)
def test_ranges_of_a_file_own_each_record_once(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    cuts: list[int],
    final: bool,
    chunk_bytes: int,
) -> None:
    content = b"\n".join(lines) + (b"\n" if final else b"")
    path = tmp_path_factory.mktemp("ranges") / "slice"
    path.write_bytes(content)
    edges = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    split = [
        record
        for low, high in pairwise(edges)
        for record in records(path, Format.NDJSON, byte_range=(low, high), chunk_bytes=chunk_bytes)
    ]
    assert split == [line.rstrip(b"\r") for line in lines if line.strip()]


def test_several_members_or_frames_are_one_content(path: Path) -> None:
    path.write_bytes(gzip.compress(b'{"a":') + gzip.compress(b"1}\n{}"))
    assert records(path, Format.NDJSON, Codec.GZIP) == [b'{"a":1}', b"{}"]
    path.write_bytes(zstandard.compress(b'{"a":') + zstandard.compress(b"1}\n{}"))
    assert records(path, Format.NDJSON, Codec.ZSTD) == [b'{"a":1}', b"{}"]


def test_a_line_without_end_is_cut_so_that_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_module, "MAX_RECORD", 10)
    pieces = [b"ok\nxxxxx", b"xxxxxxxx", b"xxxxxxxxxxxxx", b"x\nnext\n", b"y" * 11, b"y" * 99]
    assert b"".join(line_blocks(pieces)) == b"ok\n" + b"x" * 10 + b"\nnext\n" + b"y" * 10


@pytest.mark.parametrize("format", [Format.NDJSON, Format.JSON, Format.CSV, Format.ARROW])
def test_an_empty_slice_has_no_records(path: Path, format: Format) -> None:
    path.write_bytes(b"")
    assert records(path, format) == []


def test_a_byte_order_mark_is_not_part_of_a_record(path: Path) -> None:
    path.write_bytes(b'\xef\xbb\xbf{"a":1}\n')
    assert records(path, Format.NDJSON) == [b'{"a":1}']
    assert records(path, Format.JSON) == [b'{"a":1}']
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf{"a":1}\n'))
    assert records(path, Format.NDJSON, Codec.GZIP) == [b'{"a":1}']
    path.write_bytes(b"\xef\xbb\xbfa\n1\n")
    assert records(path, Format.CSV) == [b'{"a":"1"}']


@pytest.mark.parametrize("chunk_bytes", [1, 12, 1 << 20])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_elements_of_an_array_are_records(path: Path, codec: Codec, chunk_bytes: int) -> None:
    content = b' [ {"a": [1, 2]}, {"b": "],["} ,\n 7 ] '
    path.write_bytes(content if codec is Codec.NONE else gzip.compress(content))
    expected = [b'{"a": [1, 2]}', b'{"b": "],["}', b"7"]
    assert records(path, Format.JSON, codec, chunk_bytes=chunk_bytes) == expected


def test_one_object_is_one_record(path: Path) -> None:
    path.write_bytes(b'{\n "a": 1\n}\n')
    assert records(path, Format.JSON) == [b'{\n "a": 1\n}']


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_a_damaged_slice_says_where(path: Path, codec: Codec) -> None:
    compress = gzip.compress if codec is Codec.GZIP else zstandard.compress
    path.write_bytes(compress(b'{"a":1}\n' * 1000)[:-3])
    for format in (Format.NDJSON, Format.JSON, Format.CSV):
        with pytest.raises(InputError, match=r"cannot be unpacked after byte \d+"):
            records(path, format, codec)


def test_a_missing_slice_is_an_error_of_that_slice(tmp_path: Path) -> None:
    for format in Format:
        with pytest.raises(InputError, match="cannot be"):
            list(decode(tmp_path / "gone", format, Codec.NONE, chunk_bytes=100))


TYPES = {"n": "integer", "x": "float", "d": "decimal", "ok": "boolean", "s": "string", "geo.lat": "float"}


def test_csv_cells_have_the_declared_types(path: Path) -> None:
    path.write_text(
        's,n,x,ok,d,other\n7,7,7.50,true,0.10,7\na"b,-1,1e3,false,-0,ä\n,,,,,\nx,007,.5,TRUE,1.,nan\n'
    )
    assert [record.decode() for record in records(path, Format.CSV, types=TYPES)] == [
        '{"d":0.10,"n":7,"ok":true,"other":"7","s":"7","x":7.50}',
        '{"d":-0,"n":-1,"ok":false,"other":"ä","s":"a\\"b","x":1e3}',
        "{}",
        '{"d":"1.","n":"007","ok":"TRUE","other":"nan","s":"x","x":".5"}',
    ]


@pytest.mark.parametrize("chunk_bytes", [1, 5, 1 << 20])
def test_csv_quotes_hold_delimiters_and_line_ends(path: Path, chunk_bytes: int) -> None:
    path.write_bytes(b'a,b\r\n"x,\r\ny","say ""hi"""\r\n\r\n1,2')
    expected = [b'{"a":"x,\\r\\ny","b":"say \\"hi\\""}', b'{"a":"1","b":"2"}']
    assert records(path, Format.CSV, chunk_bytes=chunk_bytes) == expected
    path.write_bytes(zstandard.compress(path.read_bytes()))
    assert records(path, Format.CSV, Codec.ZSTD, chunk_bytes=chunk_bytes) == expected


def test_csv_rows_that_do_not_fit_are_handed_on_as_they_are(path: Path) -> None:
    path.write_bytes(b'a,b\n1,2\n1\n1,2,3\n   \n"x"y,2\n3,4\n"never closed,5\n6,7\n')
    assert records(path, Format.CSV) == [
        b'{"a":"1","b":"2"}',
        b"1",
        b"1,2,3",
        b'"x"y,2',
        b'{"a":"3","b":"4"}',
        b'"never closed,5\n6,7',
    ]


def test_csv_without_header_with_another_delimiter_and_nested_columns(path: Path) -> None:
    path.write_bytes(b"1;2.5;x\n;;y\n")
    settings_ = Csv(delimiter=";", header=False, columns=("n", "geo.lat", "a.b"))
    assert records(path, Format.CSV, csv=settings_, types=TYPES) == [
        b'{"a.b":"x","geo":{"lat":2.5},"n":1}',
        b'{"a.b":"y"}',
    ]


def test_csv_bytes_that_are_no_text_reach_the_gate_unchanged(path: Path) -> None:
    path.write_bytes(b"a,b\n\xff\x00,\x01\n")
    assert records(path, Format.CSV) == [b'{"a":"\xff\\u0000","b":"\\u0001"}']


def test_csv_column_names_may_hold_anything(path: Path) -> None:
    path.write_bytes(b'"100%s","a""b",\n1,2,3\n4,,6\n')
    assert [json.loads(record) for record in records(path, Format.CSV)] == [
        {"": "3", "100%s": "1", 'a"b': "2"},
        {"": "6", "100%s": "4"},
    ]
    path.write_bytes(b'"100%s",b\n1,2\n')
    assert records(path, Format.CSV) == [b'{"100%s":"1","b":"2"}']


def test_csv_columns_must_have_different_names(path: Path) -> None:
    path.write_bytes(b"a,a\n1,2\n")
    with pytest.raises(InputError, match="'a' occurs twice"):
        records(path, Format.CSV)


TEXT = st.characters(exclude_categories=["Cs"])


@given(
    st.lists(st.tuples(st.text(TEXT), st.text(TEXT)), max_size=20),
    st.integers(1, 50),
)
@examples(50)
def test_csv_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: Sequence[Sequence[str]], chunk_bytes: int
) -> None:
    sink = io.StringIO(newline="")
    csv_module.writer(sink, quoting=csv_module.QUOTE_ALL).writerows([["a", "b"], *rows])
    path = tmp_path_factory.mktemp("csv") / "slice"
    path.write_bytes(sink.getvalue().encode())
    found = [json.loads(record) for record in records(path, Format.CSV, chunk_bytes=chunk_bytes)]
    assert found == [{k: v for k, v in zip("ab", row, strict=True) if v} for row in rows]


def a_table() -> pa.Table:
    zoned = dt.datetime(2024, 1, 15, 14, 23, 45, 120_000, dt.UTC)
    moment = zoned.replace(tzinfo=None)
    return pa.table(
        {
            "z_int": pa.array([1, None, 2**63 - 1], pa.int64()),
            "u8": pa.array([255, 0, None], pa.uint8()),
            "text": pa.array(['a"\n', "ä", None]),
            "dict": pa.array(["x", None, "x"]).dictionary_encode(),
            "flag": pa.array([True, False, None]),
            "f64": pa.array([1.5, float("nan"), float("-inf")]),
            "f32": pa.array([0.1, 1e20, None], pa.float32()),
            "dec": pa.array([Decimal("0.0000001"), Decimal("-12.5"), None], pa.decimal128(20, 7)),
            "us": pa.array([moment, moment.replace(microsecond=0), None], pa.timestamp("us")),
            "ns": pa.array([1, 1_000, 1_000_000_000], pa.timestamp("ns", "UTC")),
            "zoned": pa.array([zoned] * 3, pa.timestamp("ms", "America/New_York")),
            "day": pa.array([dt.date(2024, 2, 29)] * 3),
            "raw": pa.array([b"\x00\xff", b"", None], pa.binary()),
            "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
            "obj": pa.array([{"b": 1, "a": None}, {"b": None, "a": "t"}, None]),
            "map": pa.array([[("b", 2), ("a", 1)], [], None], pa.map_(pa.string(), pa.int32())),
            "none": pa.nulls(3),
        }
    )


EXPECTED = [
    {
        "day": "2024-02-29", "dec": 1e-07, "dict": "x", "f32": 0.1, "f64": 1.5, "flag": True,
        "list": [1, None], "map": {"a": 1, "b": 2}, "ns": "1970-01-01T00:00:00.000000001Z", "obj": {"b": 1},
        "raw": "AP8=",
        "text": 'a"\n', "u8": 255, "us": "2024-01-15T14:23:45.120", "z_int": 1,
        "zoned": "2024-01-15T14:23:45.120Z",
    },
    {
        "day": "2024-02-29", "dec": -12.5, "f32": 1e20, "f64": None, "flag": False, "list": [], "map": {},
        "ns": "1970-01-01T00:00:00.000001Z", "obj": {"a": "t"}, "raw": "", "text": "ä", "u8": 0,
        "us": "2024-01-15T14:23:45", "zoned": "2024-01-15T14:23:45.120Z",
    },
    {
        "day": "2024-02-29", "dict": "x", "f64": None, "ns": "1970-01-01T00:00:01Z",
        "z_int": 2**63 - 1, "zoned": "2024-01-15T14:23:45.120Z",
    },
]  # fmt: skip


def write(path: Path, table: pa.Table, kind: str) -> Format:
    if kind == "parquet":
        pq.write_table(table, path)
        return Format.PARQUET
    with (ipc.new_stream if kind == "stream" else ipc.new_file)(path, table.schema) as writer:
        writer.write_table(table)
    return Format.ARROW


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_columnar_rows_become_canonical_json(path: Path, kind: str) -> None:
    found = [record.decode() for record in records(path, write(path, a_table(), kind))]
    assert [json.loads(text) for text in found] == EXPECTED
    assert [list(json.loads(text)) for text in found] == [sorted(row) for row in EXPECTED]
    assert '"dec":0.0000001,' in found[0]
    assert '"dec":-12.5000000,' in found[1]
    assert " " not in found[0]


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_large_columnar_slices_come_in_order_and_in_pieces(path: Path, kind: str) -> None:
    maps = pa.array([[("k", n)] for n in range(20_000)], pa.map_(pa.string(), pa.int64()))
    table = pa.table({"n": np.arange(20_000), "m": maps})
    format = write(path, table, kind)
    chunks = list(decode(path, format, Codec.NONE, chunk_bytes=50_000))
    assert len(chunks) > 5
    found = [json.loads(record) for record in records(path, format, chunk_bytes=50_000)]
    assert found == [{"n": n, "m": {"k": n}} for n in range(20_000)]


def test_columnar_text_that_is_not_utf8_reaches_the_gate(path: Path) -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"], pa.binary()).buffers())
    format = write(path, pa.table({"a": bad}), "file")
    assert records(path, format) == [b'{"a":"\xff"}']


def test_a_damaged_columnar_slice_says_where(path: Path) -> None:
    pq.write_table(pa.table({"a": ["x" * 50] * 1000}), path, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[20:60] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read at row 1"):
        records(path, Format.PARQUET)


def test_a_type_without_json_form_is_named(path: Path) -> None:
    value = pa.array([pa.MonthDayNano([1, 2, 3])], pa.month_day_nano_interval())
    format = write(path, pa.table({"a": value}), "file")
    with pytest.raises(InputError, match="column 'a' has the type month_day_nano_interval"):
        records(path, format)
