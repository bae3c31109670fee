"""Parquet and Arrow bodies: the file as it is, counted, measured as if written out, and of one tenant."""

from __future__ import annotations

import io
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.config import Stream
from tidemill.config.gateway import Requests
from tidemill.formats.bodies import read_body
from tidemill.formats.bodies.unpacked_size import arrow_size, parquet_size, parquet_sizes
from tidemill.model.errors import ForbiddenError, InputError, TidemillError, TooLargeError
from tidemill.model.gateway import Submission
from tidemill.model.slices import Format

PARQUET = "application/vnd.apache.parquet"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
ARROW_FILE = "application/vnd.apache.arrow.file"
MEDIA = (PARQUET, ARROW_STREAM, ARROW_FILE)
MIB = 1 << 20


def stream(tenant: dict[str, str]) -> Stream:
    schema = {"id": "string", "tenant": "string", "resource.tenant": "string"}
    return Stream.model_validate({"name": "orders", "schema": schema, "identity": "id", "tenant": tenant})


COLUMN = stream({"column": "tenant"})
NESTED = stream({"column": "resource.tenant"})


def written(table: pa.Table, media: str, compression: str | None = None, rows: int = 400) -> bytes:
    sink = io.BytesIO()
    if media == PARQUET:
        pq.write_table(table, sink, compression=compression or "zstd", row_group_size=rows)
        return sink.getvalue()
    new = ipc.new_stream if media == ARROW_STREAM else ipc.new_file
    with new(sink, table.schema, options=ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


def read(
    body: bytes,
    media: str,
    declared: Stream = COLUMN,
    tenant: str | None = None,
    limits: Requests = Requests(),  # noqa: B008 - frozen
) -> Submission:
    return read_body(body, media, declared, limits, tenant, "http")


def of_many_types(rows: int) -> pa.Table:
    return pa.table(
        {
            "id": [str(n) for n in range(rows)],
            "tenant": pa.array(["acme"] * rows).dictionary_encode(),
            "amount": [Decimal("1.25")] * rows,
            "seen": pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", "UTC")),
            "tags": [["a", None, "b"]] * rows,
            "labels": pa.array([[("k", "v")]] * rows, pa.map_(pa.string(), pa.string())),
            "resource": [{"service": "x", "hosts": [{"name": "h"}]}] * rows,
            "blob": [b"\x00\xff"] * rows,
            "nothing": pa.nulls(rows),
            "ok": [True] * rows,
        }
    )


@pytest.mark.parametrize("media", MEDIA)
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_whole_file_is_taken_as_it_is(media: str, compression: str) -> None:
    body = written(of_many_types(1000), media, compression)
    taken = read(body, media, tenant="acme")
    assert taken.content is body
    assert (taken.records, taken.unnamed, taken.tenant) == (1000, (), "acme")
    assert taken.format is (Format.PARQUET if media == PARQUET else Format.ARROW)


@pytest.mark.parametrize("media", MEDIA)
def test_a_file_that_is_cut_off_or_another_is_an_input_error(media: str) -> None:
    whole = written(of_many_types(1000), media)
    for body in (whole[: len(whole) // 2], whole[:20], b"", b"{}"):
        with pytest.raises(InputError) as caught:
            read(body, media)
        assert caught.value.hint
    other = written(of_many_types(1), MEDIA[MEDIA.index(media) - 1])
    with pytest.raises(InputError, match="does not begin"):
        read(other, media)


@pytest.mark.parametrize("media", MEDIA)
def test_rows_are_events_and_there_is_at_least_one(media: str) -> None:
    limits = Requests(events=500)
    assert read(written(of_many_types(500), media), media, limits=limits).records == 500
    with pytest.raises(TooLargeError, match="500 events"):
        read(written(of_many_types(501), media), media, limits=limits)
    with pytest.raises(InputError, match="no events"):
        read(written(of_many_types(0), media), media)


@pytest.mark.parametrize("media", MEDIA)
def test_a_text_that_is_too_long_is_told_by_its_row(media: str) -> None:
    texts = ["x"] * 700
    texts[601] = "y" * 101
    for column in (texts, [{"inner": [text]} for text in texts], pa.array(texts).dictionary_encode()):
        body = written(pa.table({"id": column}), media)
        with pytest.raises(TooLargeError) as caught:
            read(body, media, limits=Requests(field=100))
        assert caught.value.where == "event 602"
        assert read(body, media, limits=Requests(field=101)).records == 700


@pytest.mark.parametrize("media", MEDIA)
def test_depth_is_that_of_the_record(media: str) -> None:
    body = written(pa.table({"a": [{"b": [{"c": 1}]}]}), media)
    assert read(body, media, limits=Requests(depth=4)).records == 1
    with pytest.raises(TooLargeError, match="3 deep"):
        read(body, media, limits=Requests(depth=3))


def repeated(rows: int, size: int) -> list[pa.Array]:
    """One text for many rows, in ways that keep it once."""
    text = "x" * size
    indices = pa.array([0] * rows, pa.int32())
    return [
        pa.DictionaryArray.from_arrays(indices, pa.array([text])),
        pa.DictionaryArray.from_arrays(indices, pa.array([{"a": text}])),
    ]


@pytest.mark.parametrize("media", [ARROW_STREAM, ARROW_FILE])
@pytest.mark.parametrize("kind", [0, 1])
def test_a_text_that_is_kept_once_counts_for_each_row(media: str, kind: int) -> None:
    body = written(pa.table({"a": repeated(9000, 500_000)[kind]}), media)
    assert len(body) < MIB
    with pytest.raises(TooLargeError, match="unpacked"):
        read(body, media)


def test_so_it_does_in_a_parquet_file_and_in_views() -> None:
    table = pa.table({"a": repeated(9000, 500_000)[0]})
    with pytest.raises(TooLargeError, match="unpacked"):
        read(written(table, PARQUET), PARQUET)
    views = pa.table({"a": pa.array(["x" * 1000] * 2000, pa.string_view())})
    assert read(written(views, ARROW_STREAM), ARROW_STREAM).records == 2000
    with pytest.raises(TooLargeError, match="unpacked"):
        read(written(views, ARROW_STREAM, "zstd"), ARROW_STREAM, limits=Requests(body=MIB))


def test_nulls_in_lists_are_written_and_counted() -> None:
    body = written(pa.table({"a": pa.array([[None] * 100_000] * 20, pa.list_(pa.null()))}), ARROW_STREAM)
    with pytest.raises(TooLargeError, match="unpacked"):
        read(body, ARROW_STREAM, limits=Requests(body=MIB))


@pytest.mark.parametrize(("media", "most"), [(PARQUET, 1_000), (ARROW_STREAM, 5_000), (ARROW_FILE, 5_000)])
def test_rows_come_in_few_pieces(media: str, most: int) -> None:
    table = pa.table({"a": [1] * most, "b": [2] * most})
    assert read(written(table, media, rows=2), media).records == most
    with pytest.raises(InputError) as caught:
        read(written(pa.concat_tables([table, table.slice(0, 1)]), media, rows=1), media)
    assert f"{most + 1} pieces of 2 columns" in caught.value.message
    assert "row groups" in caught.value.hint


def test_many_values_that_take_no_bytes_are_counted() -> None:
    body = written(pa.table({"a": [[7] * 300_000] * 4}), PARQUET)
    assert len(body) < 100_000
    with pytest.raises(TooLargeError, match="unpacked"):
        read(body, PARQUET, limits=Requests(body=MIB))


@pytest.mark.parametrize("media", MEDIA)
@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("as_dictionary", [False, True])
def test_a_bomb_is_seen_before_it_is_unpacked(media: str, compression: str, as_dictionary: bool) -> None:
    zeros = pa.array([bytes(8 * MIB) for _ in range(8)])
    table = pa.table({"a": zeros.dictionary_encode() if as_dictionary else zeros})
    body = written(table, media, compression)
    assert len(body) < MIB
    sized = (
        parquet_size(body, parquet_sizes(body)) if media == PARQUET else arrow_size(body, media == ARROW_FILE)
    )
    assert sized >= 8 * MIB  # Parquet, too, keeps an equal value once
    with pytest.raises(TooLargeError, match="unpacked"):
        read(body, media, limits=Requests(body=4 * MIB))


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [False, True])
def test_pages_unpack_to_what_their_headers_say(compression: str, version: str, dictionary: bool) -> None:
    sink = io.BytesIO()
    pq.write_table(
        of_many_types(3000), sink, compression=compression, data_page_version=version, row_group_size=700,
        use_dictionary=dictionary, data_page_size=500, write_batch_size=64, write_page_index=True,
        write_page_checksum=True,
    )  # fmt: skip
    metadata = pq.read_metadata(sink)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    reported = sum(group.total_byte_size for group in groups)
    measured = parquet_size(sink.getvalue(), parquet_sizes(sink.getvalue()))
    assert (
        0.2 * reported < measured < 2 * reported
    )  # headers are in one of them, values without bytes in the other
    assert read(sink.getvalue(), PARQUET).records == 3000


def test_files_of_other_writers_are_read(tmp_path: Path) -> None:
    path = (tmp_path / "d.parquet").as_posix()
    duckdb.sql(f"COPY (SELECT range::VARCHAR AS id, 'acme' AS tenant FROM range(5000)) TO '{path}'")
    assert read(Path(path).read_bytes(), PARQUET, tenant="acme").records == 5000


def test_columns_that_no_record_can_be_made_of_are_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(InputError, match="'a' occurs twice"):
        read(written(twice, ARROW_STREAM), ARROW_STREAM)
    no_json = pa.table({"a": pa.array([[1]], pa.list_view(pa.int64()))})
    with pytest.raises(InputError, match="no JSON form"):
        read(written(no_json, ARROW_STREAM), ARROW_STREAM)


# Tenants.


@pytest.mark.parametrize("media", MEDIA)
def test_a_row_of_another_tenant_is_forbidden_by_its_number(media: str) -> None:
    named = ["acme"] * 600
    named[300] = "other"
    for column in (pa.array(named), pa.array(named).dictionary_encode()):
        body = written(pa.table({"tenant": column}), media)
        with pytest.raises(ForbiddenError) as caught:
            read(body, media, tenant="acme")
        assert caught.value.where == "event 301"
        assert read(body, media, tenant=None).unnamed == ()


@pytest.mark.parametrize("media", MEDIA)
def test_rows_that_name_no_tenant_are_told_by_their_places(media: str) -> None:
    named = ["acme"] * 600
    body = written(pa.table({"tenant": [*named, None, "", "acme"]}), media)
    assert read(body, media, tenant="acme").unnamed == (600, 601)
    without = written(pa.table({"id": ["a", "b"], "tenants": ["other", "other"]}), media)
    assert read(without, media, tenant="acme").unnamed == (0, 1)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_a_tenant_is_read_from_texts_of_every_kind(kind: pa.DataType) -> None:
    for media in (ARROW_STREAM, ARROW_FILE):
        body = written(pa.table({"tenant": pa.array(["acme", None, "other"], kind)}), media)
        with pytest.raises(ForbiddenError):
            read(body, media, tenant="acme")
        body = written(pa.table({"tenant": pa.array(["acme", None], kind)}), media)
        assert read(body, media, tenant="acme").unnamed == (1,)


def test_a_tenant_in_a_struct_is_found() -> None:
    table = pa.table({"resource": [{"tenant": "acme"}, None, {"tenant": None}, {"tenant": "acme"}]})
    assert read(written(table, PARQUET), PARQUET, NESTED, "acme").unnamed == (1, 2)
    other = pa.table({"resource": [{"tenant": "acme"}, {"tenant": "other"}]})
    with pytest.raises(ForbiddenError):
        read(written(other, PARQUET), PARQUET, NESTED, "acme")
    none = pa.table({"resource": ["other"], "resource.tenant": ["other"]})
    assert read(written(none, PARQUET), PARQUET, NESTED, "acme").unnamed == (0,)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"abcd"]),  # base64 in the record, which could be the name of a tenant
        pa.array([0], pa.date32()),
        pa.array([7]),
        pa.array([{"a": "x"}]),
    ],
)
def test_a_tenant_that_is_no_text_is_refused(column: pa.Array) -> None:
    with pytest.raises(InputError, match="names a tenant"):
        read(written(pa.table({"tenant": column}), ARROW_FILE), ARROW_FILE, tenant="acme")


def test_where_one_cannot_say_which_tenant_counts_it_is_refused() -> None:
    in_map = pa.table({"resource": pa.array([[("tenant", "other")]], pa.map_(pa.string(), pa.string()))})
    with pytest.raises(InputError, match="is in a map"):
        read(written(in_map, ARROW_STREAM), ARROW_STREAM, NESTED, "acme")
    twice = pa.StructArray.from_arrays([pa.array(["acme"]), pa.array(["other"])], names=["tenant", "tenant"])
    with pytest.raises(InputError, match="twice"):
        read(written(pa.table({"resource": twice}), ARROW_STREAM), ARROW_STREAM, NESTED, "acme")


@examples(150)
@given(st.sampled_from(MEDIA), st.data())
def test_a_damaged_file_is_rows_or_an_error_of_ours(media: str, data: st.DataObject) -> None:
    body = bytearray(DAMAGED[media])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(8, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    with suppress(TidemillError):
        assert read(bytes(body), media, tenant="acme").records > 0


DAMAGED = {media: written(of_many_types(3), media) for media in MEDIA}
