"""What a file is: content first, then its name; and an error when the two disagree."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
import zstandard

from tidemill.ingest.sniff import HEAD_BYTES, check_whole, sniff
from tidemill.model.errors import InputError
from tidemill.model.slices import Codec, Format

TABLE = pa.table({"id": ["a", "b"], "n": [1, 2]})
LINES = b'{"id": 1}\n{"id": 2}\n'
PRETTY = json.dumps({"id": 1, "list": [{"a": 1}, {"a": 2}]}, indent=2).encode()


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink)
    return sink.getvalue()


def arrow(*, stream: bool = False) -> bytes:
    sink = io.BytesIO()
    with (ipc.new_stream if stream else ipc.new_file)(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.ndjson", LINES, (Format.NDJSON, Codec.NONE)),
        ("x.jsonl", LINES, (Format.NDJSON, Codec.NONE)),
        ("x.json", b'[{"id": 1}]', (Format.JSON, Codec.NONE)),
        ("x.json", LINES, (Format.NDJSON, Codec.NONE)),
        ("x.json", b"not json at all", (Format.JSON, Codec.NONE)),
        ("x.json", b'{bad\n{"id": 2}\n', (Format.NDJSON, Codec.NONE)),
        ("x.json", PRETTY, (Format.JSON, Codec.NONE)),
        ("x", PRETTY, (Format.JSON, Codec.NONE)),
        ("x.json", b'{"id": 1}', (Format.NDJSON, Codec.NONE)),
        ("x.log", b"\xef\xbb\xbf  " + LINES, (Format.NDJSON, Codec.NONE)),
        ("stdin", b" \n [1]", (Format.JSON, Codec.NONE)),
        ("X.CSV", b"a,b\n1,2\n", (Format.CSV, Codec.NONE)),
        ("x.csv", b'{"this": "is csv, if you say so"}', (Format.CSV, Codec.NONE)),
        ("x.csv.gz", gzip.compress(b"a,b\n1,2\n"), (Format.CSV, Codec.GZIP)),
        ("x.json.zst", zstandard.compress(b"[1]"), (Format.JSON, Codec.ZSTD)),
        ("stdin", gzip.compress(LINES), (Format.NDJSON, Codec.GZIP)),
        ("x.ndjson", zstandard.compress(LINES), (Format.NDJSON, Codec.ZSTD)),
        ("x.parquet", parquet(), (Format.PARQUET, Codec.NONE)),
        ("stdin", parquet(), (Format.PARQUET, Codec.NONE)),
        ("x.feather", arrow(), (Format.ARROW, Codec.NONE)),
        ("x.arrows", arrow(stream=True), (Format.ARROW, Codec.NONE)),
        ("x.ndjson", b'{"id": "\xff\x00 bad bytes are for the gate"}\n', (Format.NDJSON, Codec.NONE)),
        ("x.csv", b"", (Format.CSV, Codec.NONE)),
        ("stdin", b"", (Format.NDJSON, Codec.NONE)),
    ],
)
def test_content_and_name_say_what_it_is(name: str, content: bytes, expected: tuple[Format, Codec]) -> None:
    assert sniff(content, name) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.parquet", LINES, "its name says parquet, its content is text"),
        ("x.arrow", parquet(), "its name says arrow, its content is parquet"),
        ("x.ndjson", parquet(), "its name says ndjson, its content is parquet"),
        ("x.ndjson.gz", LINES, "its name says gzip, its content is not compressed"),
        ("x.ndjson.gz", zstandard.compress(LINES), "its name says gzip, its content is zstd"),
        ("x.parquet.gz", gzip.compress(parquet()), "parquet inside gzip"),
        ("x.zip", b"PK\x03\x04" + bytes(9), "a zip archive"),
        ("x.ndjson.bz2", b"BZh91AY", "bzip2"),
        ("x.ndjson", "ein Text".encode("utf-16"), "UTF-16"),
        ("x.ndjson", bytes(range(128, 256)) * 9, "binary"),
        ("x.txt", b"hello\n", "neither its name nor its content"),
        ("x.ndjson.gz", b"\x1f\x8b\x08", "damaged or cut off"),
    ],
)
def test_disagreement_is_an_error_that_says_both(name: str, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        sniff(content, name)
    assert caught.value.where == name
    assert caught.value.hint


def test_the_caller_can_say_what_it_is() -> None:
    assert sniff(b"a,b\n1,2\n", "x.txt", Format.CSV) == (Format.CSV, Codec.NONE)
    assert sniff(LINES, "x.csv", Format.NDJSON) == (Format.NDJSON, Codec.NONE)
    assert sniff(LINES, "x.json", Format.JSON) == (Format.JSON, Codec.NONE)
    with pytest.raises(InputError, match="--format says parquet, its content is text"):
        sniff(LINES, "x.ndjson", Format.PARQUET)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_a_large_compressed_file_is_known_by_its_head(compress: object) -> None:
    assert callable(compress)
    content = b'{"id": "' + os.urandom(400_000).hex().encode() + b'"}\n'
    assert sniff(compress(content)[:HEAD_BYTES], "x")[0] is Format.NDJSON


@pytest.mark.parametrize(
    ("content", "format", "codec", "size"),
    [
        (LINES, Format.NDJSON, Codec.NONE, len(LINES)),
        (gzip.compress(LINES) + gzip.compress(LINES), Format.NDJSON, Codec.GZIP, 2 * len(LINES)),
        (zstandard.compress(LINES) + zstandard.compress(LINES), Format.NDJSON, Codec.ZSTD, 2 * len(LINES)),
        (parquet(), Format.PARQUET, Codec.NONE, len(parquet())),
        (arrow(), Format.ARROW, Codec.NONE, len(arrow())),
        (arrow(stream=True), Format.ARROW, Codec.NONE, len(arrow(stream=True))),
    ],
)
def test_whole_files_are_whole(
    tmp_path: Path, content: bytes, format: Format, codec: Codec, size: int
) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    assert check_whole(path, format, codec, "x") == size


@pytest.mark.parametrize(
    ("content", "format", "codec"),
    [
        (gzip.compress(LINES * 99)[:-1], Format.NDJSON, Codec.GZIP),
        (gzip.compress(LINES) + b"garbage", Format.NDJSON, Codec.GZIP),
        (zstandard.compress(LINES * 99)[:-1], Format.NDJSON, Codec.ZSTD),
        (parquet()[:-1], Format.PARQUET, Codec.NONE),
        (arrow()[:-12], Format.ARROW, Codec.NONE),
        (arrow(stream=True)[:-40], Format.ARROW, Codec.NONE),
    ],
)
def test_cut_off_files_are_found_out(tmp_path: Path, content: bytes, format: Format, codec: Codec) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be unpacked|is not a whole") as caught:
        check_whole(path, format, codec, "x")
    assert "cut off" in caught.value.hint
