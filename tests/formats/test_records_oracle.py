"""Both ways of reading a record, in bulk and one by one, say what the oracle says: over every kind of
stream, for good, respelled, contradicting and spoiled records, and for bytes that mean nothing at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import at_length, examples
from tests.support.oracles.oracle import RejectedError, check, lookup
from tests.support.oracles.project import section
from tests.support.oracles.spelling import plain, respelled
from tests.support.oracles.stream import NESTED, REQUESTS, OracleField, OracleMetric, OracleStream
from tests.support.oracles.strictjson import (
    MalformedError,
    Number,
    canonical,
    has_lone_surrogate,
    read_object,
)
from tests.support.selection import one_in
from tests.support.strategies.feeds import FIRST_ARRIVAL, events, feeds

from tidemill.config import Limits, Stream
from tidemill.formats.arrays import RecordChunk
from tidemill.formats.decide import RefusedRecord, content_hash, decide, parse
from tidemill.formats.read import read_chunk
from tidemill.formats.read_plan import ReadPlan, plan_for
from tidemill.formats.scan import scan
from tidemill.model.time import DAY

NUMBERED = OracleStream(
    name="numbered",
    fields={
        "n": OracleField("integer"),
        "at": OracleField("any"),
        "a": OracleField("object"),
        "a.b": OracleField("any"),
        "a.b.c": OracleField("string"),
        "a.on": OracleField("boolean"),
        "size": OracleField("integer"),
        "cost": OracleField("decimal", scale=0),
        "exact": OracleField("decimal", scale=15, required=True),
    },
    time_column="at",
    time_type="unixtimestamp_ns",
    identity=("n",),
    tenant_value="ténant",
    metrics={
        "sizes": OracleMetric(("a.b.c", "a.on", "n"), ("size", "exact")),
        "costs": OracleMetric(("n",), ("cost", "size")),
    },
    record_bytes=1024,
    depth=4,
)
TYPED = OracleStream(
    name="typed",
    fields={
        "who.name": OracleField("string"),
        "kind": OracleField("string"),
        "event_type": OracleField("string"),  # a plain dimension here: the type is in another column
        "tenant": OracleField("integer"),
        "id": OracleField("string"),
        "at": OracleField("integer"),
    },
    time_column="at",
    time_type="unixtimestamp_ms",
    identity=("id",),
    tenant_column="who.name",
    type_column="kind",
    allowed_types=frozenset({"open", "clösed"}),
    skew_past=0,
    skew_future=0,
    metrics={"by": OracleMetric(("event_type", "id", "who.name", "tenant"), ("tenant", "at"))},
    record_bytes=512,
    depth=2,
)
STREAMS = [
    replace(REQUESTS, record_bytes=4096),
    NESTED,
    replace(NESTED, name="processing", time_column=None, skew_past=None, skew_future=None,
    identity=("part",)),
    replace(NESTED, name="iso_any", fields={**NESTED.fields, "meta.at": OracleField("any")}),
    NUMBERED,
    replace(NUMBERED, name="us", time_type="unixtimestamp_us", identity=("n", "a.b.c")),
    replace(NUMBERED, name="s_decimal", time_type="unixtimestamp_s",
            fields={**NUMBERED.fields, "at": OracleField("decimal", required=True, scale=3)}),
    replace(NUMBERED, name="ms_text", time_type="unixtimestamp_ms",
            fields={**NUMBERED.fields, "at": OracleField("string")}),
    TYPED,
    replace(TYPED, name="roomy", skew_past=2 * DAY, skew_future=None, depth=512, record_bytes=1 << 20),
]  # fmt: skip
by_name = pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
few = examples(6)
many = at_length(1500)

Verdict = tuple[object, ...]
"""("refused", reason), or everything the engine keeps of a valid record but its content hash."""


@cache
def plan_of(name: str) -> ReadPlan:
    stream = next(stream for stream in STREAMS if stream.name == name)
    limits = Limits(record_bytes=stream.record_bytes, depth=stream.depth)
    return plan_for(Stream.model_validate({"name": stream.name, **section(stream)}), limits)


def by_oracle(stream: OracleStream, record: bytes, arrival: int) -> tuple[Verdict, str | None]:
    """What must come out, and the canonical payload."""
    try:
        event = check(stream, record, arrival)
    except RejectedError as error:
        return ("refused", error.reason.value), None
    plan = plan_of(stream.name)

    def number(column: str) -> int | None:
        value = lookup(event.fields, column)
        return value.rounded(stream.fields[column].scale or 0) if isinstance(value, Number) else None

    def dimension(column: str) -> object:
        value = lookup(event.fields, column)
        return value.integer() if isinstance(value, Number) else value

    kind = lookup(event.fields, stream.type_column) if stream.type_column else None
    return (
        event.tenant,
        event.event_id,
        event.ts,
        kind,
        tuple(map(dimension, plan.dimensions)),
        tuple(map(number, plan.measures)),
    ), event.canonical


def one_by_one(plan: ReadPlan, record: bytes, arrival: int) -> tuple[Verdict, int | None]:
    decided = decide(record, plan, arrival)
    if isinstance(decided, RefusedRecord):
        assert decided.detail
        return ("refused", decided.reason.value), None
    row = (
        decided.tenant,
        decided.event_id,
        decided.time,
        decided.event_type,
        decided.dimensions,
        decided.measures,
    )
    return row, decided.content


def chunk_of(records: Sequence[bytes], base: int = 0, between: bytes = b"\n") -> RecordChunk:
    """The records one after another, each known by its span alone."""
    starts, ends, data = [], [], bytearray()
    for record in records:
        data += between
        starts.append(len(data))
        data += record
        ends.append(len(data))
    return RecordChunk(
        np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8),
        np.array(starts, np.int64),
        np.array(ends, np.int64),
        base,
    )


def in_bulk(plan: ReadPlan, chunk: RecordChunk, arrival: int) -> list[tuple[Verdict, int | None]]:
    """The verdicts of `read_chunk`, in the order of the records, each exactly once."""
    read = read_chunk(plan, chunk, arrival)
    found: list[tuple[Verdict, int | None] | None] = [None] * chunk.starts.size
    rows = read.columns.to_pylist()
    assert [row["row"] for row in rows] == sorted(row["row"] for row in rows)
    for row in rows:
        dimensions = tuple(row[f"d{i}"] for i in range(len(plan.dimensions)))
        measures = tuple(row[f"m{i}"] for i in range(len(plan.measures)))
        plain_columns = (row["tenant"], row["event_id"], row["event_time"], row.get("event_type"))
        assert (row["start"], row["end"]) == span_of(chunk, row["row"])
        assert found[row["row"]] is None
        found[row["row"]] = (*plain_columns, dimensions, measures), row["content"]
    for row in read.refused.to_pylist():
        assert (row["start"], row["end"]) == span_of(chunk, row["row"])
        assert row["detail"]
        assert found[row["row"]] is None
        found[row["row"]] = ("refused", row["reason"]), None
    assert None not in found
    return [verdict for verdict in found if verdict is not None]


def span_of(chunk: RecordChunk, row: int) -> tuple[int, int]:
    return int(chunk.starts[row]) + chunk.base, int(chunk.ends[row]) + chunk.base


def agree(stream: OracleStream, records: Sequence[bytes], arrival: int) -> None:
    """Oracle, `decide`, and the bulk reader on one record at a time and on all of them."""
    plan = plan_of(stream.name)
    expected = [by_oracle(stream, record, arrival) for record in records]
    decided = [one_by_one(plan, record, arrival) for record in records]
    for record, (verdict, _), (want, _) in zip(records, decided, expected, strict=True):
        assert verdict == want, record
    together = in_bulk(plan, chunk_of(records, base=1000), arrival)
    for record, verdict, want_both in zip(records, together, decided, strict=True):
        assert verdict == want_both, record
        assert in_bulk(plan, chunk_of([record], between=b""), arrival) == [want_both], record
    # content: one hash for one canonical payload, another for another
    pairs = {(text, content) for (_, text), (_, content) in zip(expected, decided, strict=True) if text}
    assert len(pairs) == len({text for text, _ in pairs}) == len({content for _, content in pairs})


@by_name
@few
@given(data=st.data())
def test_generated_feeds_are_read_as_the_oracle_reads_them(stream: OracleStream, data: st.DataObject) -> None:
    for landing in data.draw(feeds(stream)):
        agree(stream, landing.records, landing.arrival)


@pytest.mark.soak
@by_name
@many
@given(data=st.data())
def test_generated_feeds_are_read_as_the_oracle_reads_them_at_length(
    stream: OracleStream, data: st.DataObject
) -> None:
    for landing in data.draw(feeds(stream)):
        agree(stream, landing.records, landing.arrival)


PIECES = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"\t", b"\r", b"0", b"-", b"+", b".",
    b"e9", b"E-3",
    b"\x00", b"\x7f", b"\xc2", b"\xa0", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\\u", b"\\ud83d",
    b"\\ude00", b"\\u0061",
    b"\\/", b"null", b"true", b"false", b"NaN", b"1", b"00", b"1.50", b"e+0000000000000000000002", b"[[[[",
    b"}}", b'""',
    b'{"a":1}', b',"k":1', b"9223372036854775808", b"\xef\xbb\xbf", b"//", b"'", b"99999999999999999999e-20",
]  # fmt: skip


def mutated(record: bytes, random: Random) -> bytes:
    """The record with a few bytes cut, doubled, swapped or put in, where JSON is most easily hurt."""
    data = bytearray(record)
    for _ in range(random.choice([1, 1, 1, 2, 3, 6])):
        at = random.randrange(len(data) + 1)
        way = random.randrange(5)
        if way == 0:
            data[at:at] = random.choice(PIECES)
        elif way == 1:
            del data[at : at + random.choice([1, 1, 2, 5])]
        elif way == 2 and at < len(data):
            data[at] = random.randrange(256)
        elif way == 3:
            other = random.randrange(len(data) + 1)
            data[at:at] = data[other : other + random.choice([1, 4, 12])]
        else:
            data[at : at + 1] = random.choice(PIECES)
    return bytes(data)


@st.composite
def hurt(draw: st.DrawFn, stream: OracleStream) -> list[bytes]:
    random = Random(draw(st.integers(0, 2**32 - 1)))
    good = [draw(events(stream, number)) for number in range(2)]
    records = [text.encode() for event in good for text in (plain(event), respelled(event, random))]
    records += [mutated(random.choice(records), random) for _ in range(60)]
    records += draw(st.lists(st.binary(max_size=40), max_size=3))
    return records


@by_name
@few
@given(data=st.data())
def test_hurt_bytes_are_read_alike_and_never_raise(stream: OracleStream, data: st.DataObject) -> None:
    agree(stream, data.draw(hurt(stream)), FIRST_ARRIVAL)


@pytest.mark.soak
@by_name
@many
@given(data=st.data())
def test_hurt_bytes_are_read_alike_and_never_raise_at_length(
    stream: OracleStream, data: st.DataObject
) -> None:
    agree(stream, data.draw(hurt(stream)), FIRST_ARRIVAL)


KEYS = st.sampled_from(["a", "b", "é", "a.b", ""])
OBJECTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers().map(str).map(Number.parse), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)
UNITS = {"unixtimestamp_s": 1_000_000, "unixtimestamp_ms": 1000, "unixtimestamp_us": 1}


def scanned(record: bytes) -> int | None:
    """The content hash by the scanner; None where it leaves the record to the rules."""
    chunk = chunk_of([record], between=b"")
    found = scan(chunk.data, chunk.starts, chunk.ends, ())
    return int(found.content[0]) if found.proven[0] else None


@examples(150)
@given(first=OBJECTS, second=OBJECTS, seed=st.integers(0, 2**32 - 1))
@example(first=[], second={}, seed=0)
@example(first=[[]], second=[], seed=0)
@example(first=["a", ["b"]], second=["a", "b"], seed=0)
@example(first={"a": None}, second={}, seed=0)
@example(first={"a": {"b": True}}, second={"a.b": True}, seed=0)
@example(first={"a": "b", "b": "a"}, second={"a": "a", "b": "b"}, seed=0)
@example(first="1", second=Number.parse("1"), seed=0)
@example(first="", second=None, seed=0)
@example(first=Number.parse("0"), second=False, seed=0)
def test_content_hashes_are_equal_exactly_when_canonical_payloads_are(
    first: object, second: object, seed: int
) -> None:
    random = Random(seed)
    hashes: dict[str, set[int]] = {}
    for value in ({"v": first}, {"v": second}, {"v": [first, second]}, {"v": [second, first]}):
        for text in (plain(value), respelled(value, random), respelled(value, random)):
            try:
                spelled = canonical(read_object(text, 64))
            except MalformedError:
                continue
            if has_lone_surrogate(spelled):
                continue
            one = content_hash(parse(text.encode(), 64))
            assert scanned(text.encode()) in (one, None), text
            hashes.setdefault(spelled, set()).add(one)
    assert all(len(found) == 1 for found in hashes.values())
    assert len(set.union(*hashes.values())) == len(hashes)


E20 = "1" + "0" * 20
SAME_NUMBERS = [
    ["0", "-0", "0.0", "0e99", "0e99999999999999999999", "-0.000E-99999999999999999999"],
    ["1", "1.0", "10e-1", "1e0", "1E-0", "1e+0000000000000000000000000", "0.00001e5",
    "1e-00000000000000000000"],
    ["1e5", "100000", "1e0000000000000000000005", "0.1E+06"],
    [f"1e{E20}", f"10e{int(E20) - 1}", f"0.01e{int(E20) + 2}", f"1E+000{E20}"],
    [f"1e-{E20}", f"10e-{int(E20) + 1}", f"0.1e-0{int(E20) - 1}"],
    ["1e1000000000000000000", "10e999999999999999999", "1e+1000000000000000000"],
    ["1e18446744073709551616", "10e18446744073709551615"],
    ["1e999999999", "10e999999998", "1e0999999999"],
    ["1e1000000000", "10e999999999"],
    ["1e-999999999", "0.1e-999999998"],
    ["-1.5", "-15e-1", "-1.50", "-0.15e1"],
    ["9007199254740993", "9007199254740993.0"],
    ["9007199254740992"],
]  # fmt: skip


def test_a_number_is_its_value_however_it_is_spelled_and_however_large() -> None:
    hashes = []
    for spellings in SAME_NUMBERS:
        records = [f'{{"n":{text}}}'.encode() for text in spellings]
        found = {content_hash(parse(record, 4)) for record in records}
        assert len(found) == 1, spellings
        assert {scanned(record) for record in records} <= {*found, None}
        hashes.append(found.pop())
    assert len(set(hashes)) == len(hashes)


ODD_VALUES = [
    *(text for spellings in SAME_NUMBERS for text in spellings),
    "1." + "0" * 600 + "1", "1" * 600, "-" + "1" * 600, "1" * 600 + "e-590", "0." + "4" + "9" * 600, "0.5",
    "1.5", "2.5",
    "-0.5", "-1.5", "0.5000000000000000001", "0.4999999999999999999", "999999999999999999",
    "1000000000000000000",
    "999999999999999999.4", "999999999999999999.5", "-999999999999999999.5", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "9223372036854775807.0",
    "922337203685477580.7e1", "1" + "0" * 18, "1" + "0" * 30, "1e18", "1e-18", "5e-16", "15e-16", "25e-16",
    "5.1e-16",
    "-253402300800", "253402300799.999999999", "253402300800", "1709251200000", "1709251200000000000",
    "1709251200000000000.9",
    "-62135596800000000000", "-62135596800000000001", "true", "null", '""', '"1709251200"',
    '"+1709251200.5"', '"-0"',
    '"1e3"', '"1."', '"2024-02-29T23:59:60Z"', '"2024-02-29"', '"2024-02-29 10:00"',
    '"2024-02-29T10:00:00,5Z"',
    '" 2024-02-29T10:00:00Z "', '"2024-02-29T10:00:00.123456789Z"', '"2024-02-29T10:00:00.1234567890Z"',
    '"2024-02-30T10:00:00Z"', '"2023-02-29T10:00:00Z"', '"1900-02-29T10:00:00Z"', '"2000-02-29T10:00:00Z"',
    '"0001-01-01T00:00:00Z"', '"0001-01-01T00:00:00+00:01"', '"9999-12-31T23:59:59.999999Z"',
    '"9999-12-31T23:59:59.999999-00:01"', '"2024-02-29T10:00:00+23:59"', '"2024-02-29T10:00:00+24:00"',
    '"2024-02-29T10:00:00.Z"', '"2024-02-29t10:00:00z"', '"2024-02-29T10:00:00+01"',
    '"2024-02-29T10:00:00+0130"',
    '"2024-02-29T10:00:00 Z"', '"2024-02-29T1\\u0030:00:00Z"', '"0000-01-01T00:00:00Z"',
    '"2024-00-10T00:00:00Z"',
    '"2024-04-31T00:00:00Z"', '"2024-02-29T24:00:00Z"', '"2024-02-29T10:60:00Z"', '"２024-02-29T10:00:00Z"',
    '"a\\u0000b"', '"\\ud83d\\ude00"', '"' + "é" * 512 + '"', '"' + "é" * 128 + '"', '"' + "x" * 257 + '"',
    '"' + "x" * 1024 + '"', '"' + "x" * 1025 + '"', "[]", "{}", "[1,[2]]", '{"b":{"c":"x"},"on":true}',
    '{"b":[{"c":"x"}]}', '{"b":{"c":["x"]},"on":null}',
]  # fmt: skip


@pytest.mark.long
@by_name
@pytest.mark.parametrize("column", one_in(2, ["identity", "time", "tenant", "other"], first=1))
def test_odd_values_in_every_place(stream: OracleStream, column: str) -> None:
    base: dict[str, object] = {
        "event_id": "e1", "ts": FIRST_ARRIVAL // 1000, "event_type": "request", "tenant": "acme",
        "kind": "open",
        "id": "e1", "n": 1, "part": "p", "exact": 1, "free": 1, "at": FIRST_ARRIVAL * 1000,
        "who": {"name": "w"},
        "meta": {"source": "s", "n": 1, "at": "2024-02-29T23:59:59Z"},
    }  # fmt: skip
    if stream.name.startswith(("s_", "us", "ms", "typed", "roomy")):
        base["at"] = FIRST_ARRIVAL // UNITS[stream.time_type]
    if "a.b.c" in stream.fields:
        base["a"] = {"b": {"c": "x"}}
    if stream.name == "ms_text":
        base["at"] = str(base["at"])
    if stream.fields.get("tenant", OracleField("string")).type == "integer":
        base["tenant"] = 1
    columns = {
        "identity": list(stream.identity),
        "time": [stream.time_column],
        "tenant": [stream.tenant_column, stream.type_column],
        "other": [*stream.fields, "elsewhere"],
    }[column]
    records = []
    for name in columns:
        if name is None:
            continue
        for value in ODD_VALUES:
            records.append(_with(base, name, value))
    assert any(by_oracle(stream, record, FIRST_ARRIVAL)[1] for record in records) or not records
    agree(stream, records, FIRST_ARRIVAL)


def _with(base: dict[str, object], column: str, text: str) -> bytes:
    """The event with the JSON text of a value put at a dotted path, every other column as it was."""
    first, _, rest = column.partition(".")
    members = []
    for key, value in base.items():
        if key != first:
            members.append(f'"{key}":{_json(value)}')
    inner = base.get(first)
    if rest:
        members.append(f'"{first}":{_with(inner if isinstance(inner, dict) else {}, rest, text).decode()}')
    else:
        members.append(f'"{first}":{text}')
    return ("{" + ",".join(members) + "}").encode()


def _json(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f'"{key}":{_json(item)}' for key, item in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def test_records_are_read_alike_however_they_are_cut_into_chunks() -> None:
    stream = STREAMS[0]
    plan = plan_of(stream.name)
    records = []
    for number in range(40):
        event = {"event_id": f"e{number}", "ts": 1, "event_type": "request", "tenant": "t"}
        records.append(_with(event, "region", '"x"' if number % 3 else '"\\u0078"'))
    whole = in_bulk(plan, chunk_of(records), 0)
    for size in (1, 7, 39):
        pieces = [records[i : i + size] for i in range(0, len(records), size)]
        assert [verdict for piece in pieces for verdict in in_bulk(plan, chunk_of(piece), 0)] == whole
    assert {verdict[4][1] for verdict, _ in whole if verdict[0] == "t"} == {"x"}  # type: ignore[index]


def test_an_empty_chunk_has_no_rows() -> None:
    for stream in STREAMS:
        assert in_bulk(plan_of(stream.name), chunk_of([]), 0) == []
