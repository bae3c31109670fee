"""Records of several messages: the first one whose stream has an event time tells the record's, in bulk as
one by one, and for the oracle as for both."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import at_length, examples
from tests.support.oracles.oracle import RejectedError, check
from tests.support.oracles.project import section
from tests.support.oracles.spelling import plain, respelled
from tests.support.oracles.stream import OracleField, OracleMessages, OracleStream
from tests.support.oracles.strictjson import Json, Number
from tests.support.strategies.feeds import FIRST_ARRIVAL, put

from tidemill import eventtime
from tidemill.config import Limits, Stream
from tidemill.config.stream_sections import MessageTime
from tidemill.formats import message_times as bulk
from tidemill.formats.arrays import RecordChunk
from tidemill.formats.decide import DecidedRecord, decide
from tidemill.formats.read import read_chunk
from tidemill.formats.read_plan import ReadPlan, plan_for
from tidemill.model.time import HOUR, SECOND, format_instant

NOW = FIRST_ARRIVAL
BUNDLES = OracleStream(
    name="bundles",
    fields={
        "id": OracleField("string", required=True),
        "at": OracleField("integer"),
        "parts": OracleField("array"),
    },
    identity=("id",),
    tenant_value="one",
    skew_past=HOUR,
    skew_future=HOUR,
    messages=OracleMessages(
        "parts",
        {
            "clicks": ("ts", "unixtimestamp_ms"),
            "errors": ("meta.at", "iso8601"),
            "ticks": ("n", "unixtimestamp_ns"),
        },
        body="data",
    ),
    depth=8,
)
assert BUNDLES.messages is not None
DEEPER = replace(
    BUNDLES,
    name="deeper",
    fields={"id": OracleField("string", required=True), "in.parts": OracleField("array", required=True)},
    messages=BUNDLES.messages._replace(column="in.parts", stream="head.of", body=None),
)
FALLING_BACK = replace(BUNDLES, name="falling_back", time_column="at", time_type="unixtimestamp_s")
ISO_BACK = replace(
    BUNDLES,
    name="iso_back",
    fields={**BUNDLES.fields, "at": OracleField("string")},
    time_column="at",
    time_type="iso8601",
)
STREAMS = [BUNDLES, DEEPER, FALLING_BACK, ISO_BACK]
few = examples(20)
many = at_length(500)
by_name = pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)


def plan_of(stream: OracleStream, **types: str) -> ReadPlan:
    """As the engine reads it; `types` replaces event-time types of messages."""
    declared = Stream.model_validate({"name": stream.name, **section(stream)})
    assert stream.messages is not None
    assert declared.messages is not None
    times = {
        name: MessageTime(column, types.get(name, type))
        for name, (column, type) in stream.messages.times.items()
    }
    reported = declared.model_copy(update={"messages": declared.messages.among(times)})
    return plan_for(reported, Limits(record_bytes=stream.record_bytes, depth=stream.depth))


def chunk_of(records: Sequence[bytes]) -> RecordChunk:
    ends = np.cumsum([len(record) + 1 for record in records], dtype=np.int64) - 1
    starts = ends - np.array([len(record) for record in records], np.int64)
    # Writable, as what is decoded: kernels would be compiled a second time for an array that is not.
    data = np.frombuffer(bytearray().join(r + b"\n" for r in records), np.uint8)
    return RecordChunk(data, starts, ends, 0)


Verdict = int | tuple[str, str]
"""The event time, or the reason of a refusal and its detail."""


def one_by_one(plan: ReadPlan, record: bytes) -> Verdict:
    verdict = decide(record, plan, NOW)
    return verdict.time if isinstance(verdict, DecidedRecord) else (verdict.reason.value, verdict.detail)


def in_bulk(plan: ReadPlan, records: Sequence[bytes]) -> list[Verdict]:
    read = read_chunk(plan, chunk_of(records), NOW)
    found: dict[int, Verdict] = {row["row"]: row["event_time"] for row in read.columns.to_pylist()}
    found |= {row["row"]: (row["reason"], row["detail"]) for row in read.refused.to_pylist()}
    return [found[row] for row in range(len(records))]


def by_oracle(stream: OracleStream, record: bytes) -> int | str:
    try:
        return check(stream, record, NOW).ts
    except RejectedError as error:
        return error.reason.value


def agree(stream: OracleStream, records: Sequence[bytes]) -> None:
    plan = plan_of(stream)
    decided = [one_by_one(plan, record) for record in records]
    assert in_bulk(plan, records) == decided
    short = [verdict if isinstance(verdict, int) else verdict[0] for verdict in decided]
    assert [by_oracle(stream, record) for record in records] == short


# -- what is decided, case by case


def record(*parts: object, **fields: object) -> bytes:
    return json.dumps({"id": "b-1", "parts": parts, **fields}).encode()


def part(stream: object, **data: object) -> dict[str, object]:
    return {"stream": stream, "data": data}


def ms(us: int) -> int:
    return us // 1000


EARLY, LATE = NOW - 20 * SECOND, NOW - 10 * SECOND
ISO = "2024-01-15T14:23:45Z"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((part("clicks", ts=ms(LATE)), part("clicks", ts=ms(EARLY))), LATE),  # the first, not the least
        ((part("pings", ts=ms(EARLY)), part("clicks", ts=ms(LATE))), LATE),  # nobody declares pings
        ((part("ticks", n=LATE * 1000 + 999), part("clicks", ts=ms(EARLY))), LATE),  # by its own type
        (("clicks", None, 7, [part("clicks", ts=1)], {}, part("clicks", ts=ms(LATE))), LATE),  # no messages
        ((part(None), part(7), part(["clicks"]), part("clicks", ts=ms(LATE))), LATE),  # of no stream
        ((part("clicks", ts=str(ms(LATE))),), LATE),
        ((part("clicks", ts=ms(LATE) + 0.0),), LATE),
    ],
)
def test_the_first_message_whose_stream_has_an_event_time_tells_it(
    parts: Sequence[object], expected: int
) -> None:
    assert one_by_one(plan_of(BUNDLES), record(*parts)) == expected
    assert in_bulk(plan_of(BUNDLES), [record(*parts)]) == [expected]
    agree(BUNDLES, [record(*parts)])


@pytest.mark.parametrize(
    ("parts", "detail"),
    [
        ((part("clicks"), part("clicks", ts=ms(LATE))), "ts of message 1, of stream clicks, is missing"),
        ((part("pings"), part("errors", at=ISO)), "meta.at of message 2, of stream errors, is missing"),
        (({"stream": "clicks", "ts": ms(LATE)},), "ts of message 1, of stream clicks, is missing"),
        (({"stream": "clicks", "data": [1]},), "ts of message 1, of stream clicks, is missing"),
        ((part("clicks", ts="soon"),), "ts of message 1, of stream clicks, is no unixtimestamp_ms: 'soon'"),
        ((part("errors", meta={"at": 7}),), "meta.at of message 1, of stream errors, is no iso8601"),
        ((part("clicks", ts=10**30),), "outside the years 1 to 9999"),
        ((), "no message of it has an event time; streams that have one: clicks, errors, ticks"),
        ((part("pings", ts=ms(LATE)),), "no message of it has an event time"),
    ],
)
def test_a_time_that_is_not_there_is_a_bad_time(parts: Sequence[object], detail: str) -> None:
    """Also when a later message has a good one: it is not asked."""
    plan = plan_of(BUNDLES)
    reason, said = one_by_one(plan, record(*parts))  # type: ignore[misc]
    assert reason == "bad_time"
    assert detail in said
    assert in_bulk(plan, [record(*parts)]) == [(reason, said)]
    agree(BUNDLES, [record(*parts)])


def test_a_record_without_messages_has_no_time() -> None:
    for text in (b'{"id":"a"}', b'{"id":"a","parts":null}', b'{"id":"a","parts":"[]"}'):
        assert one_by_one(plan_of(BUNDLES), text)[0] == "bad_time"  # type: ignore[index]
        agree(BUNDLES, [text])


def test_the_own_event_time_is_taken_when_no_message_has_one() -> None:
    plan = plan_of(FALLING_BACK)
    records = [
        record(part("pings"), at=LATE // SECOND),
        record(part("clicks", ts=ms(EARLY)), at=LATE // SECOND),
        record(part("clicks", ts=ms(EARLY))),
        record(part("clicks"), at=LATE // SECOND),
        record(part("pings")),
        record(at=LATE // SECOND),
        record(part("clicks", ts=ms(EARLY)), at=10**19),
    ]
    assert in_bulk(plan, records) == [
        LATE, EARLY, EARLY,
        ("bad_time", "ts of message 1, of stream clicks, is missing"),
        ("bad_time", "at is missing"),
        LATE,
        ("wrong_type", "at is not of type integer"),
    ]  # fmt: skip
    agree(FALLING_BACK, records)


def test_skew_is_that_of_the_stream_that_the_record_is_in() -> None:
    verdict = one_by_one(plan_of(BUNDLES), record(part("clicks", ts=ms(NOW + 2 * HOUR))))
    assert verdict[0] == "skew"  # type: ignore[index]
    agree(BUNDLES, [record(part("clicks", ts=ms(NOW + 2 * HOUR)))])


def test_a_record_that_holds_no_array_is_of_the_wrong_type() -> None:
    text = json.dumps({"id": "a", "parts": {"stream": "clicks"}, "at": LATE // SECOND}).encode()
    assert one_by_one(plan_of(FALLING_BACK), text) == ("wrong_type", "parts is not of type array")
    agree(FALLING_BACK, [text])


def test_own_event_time_types_work_in_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser that is registered, not built in: it travels with the plan."""

    def since_now(value: object) -> int:
        if not isinstance(value, int):
            raise ValueError("no whole number")
        return NOW + value

    monkeypatch.setitem(eventtime.registry._parsers, "since_now", since_now)
    plan = plan_of(BUNDLES, clicks="since_now")
    records = [record(part("clicks", ts=-5)), record(part("clicks", ts="x"))]
    expected = [NOW - 5, ("bad_time", "ts of message 1, of stream clicks, is no since_now: no whole number")]
    assert [one_by_one(plan, r) for r in records] == expected
    assert in_bulk(plan, records) == expected


def test_the_plan_travels_to_other_processes() -> None:
    plan = plan_of(BUNDLES)
    assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301


def test_plain_records_of_messages_are_read_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what tells nothing good goes through all the rules one by one."""
    decided: list[bytes] = []

    def counting(text: bytes, plan: ReadPlan, arrival: int) -> object:
        decided.append(text)
        return decide(text, plan, arrival)

    monkeypatch.setattr("tidemill.formats.read.decide", counting)
    good = [record(part("clicks", ts=ms(LATE) + i), part("errors")) for i in range(20)]
    good += [record(part("pings"), at=LATE // SECOND)]
    bad = [record(part("clicks"))]
    in_bulk(plan_of(FALLING_BACK), good + bad)
    assert decided == bad


def test_messages_behind_the_one_that_tells_are_not_read() -> None:
    seen = bulk._messages('[ {"a":1} ,[2], "]" ]')
    assert isinstance(next(seen), dict)
    assert len(list(seen)) == 2
    assert list(bulk._messages("[]")) == list(bulk._messages("[ \t]")) == []


# -- any records at all


def number(value: int, exponent: int = 0) -> Number:
    return Number.parse(f"{value}e{exponent}")


NAMES = ("clicks", "clicks", "errors", "errors", "ticks", "ticks", "pings", "Clicks", "clicks\u00e9", "")
ODD_TIMES: tuple[Json, ...] = (
    "soon",
    "",
    "2024-01-15",
    "17093",
    None,
    True,
    [],
    {},
    number(1, 30),
    number(-1),
)
ODD: tuple[Json, ...] = (None, "clicks", {}, [], [[]], True)


def some_time(type: str, random: Random) -> Json:
    """Mostly one that the type reads, within an hour or a little more of now."""
    seconds = random.randrange(-4000, 4000)
    if random.random() < 0.2:
        return random.choice(ODD_TIMES)
    if type == "iso8601":
        return format_instant(NOW + seconds * SECOND)
    whole = number(NOW // SECOND + seconds, {"unixtimestamp_s": 0, "unixtimestamp_ms": 3}.get(type, 9))
    return plain(whole) if random.random() < 0.1 else whole


def some_message(declared: OracleMessages, random: Random) -> Json:
    if random.random() < 0.1:
        return random.choice(ODD)
    data: dict[str, Json] = {}
    for column, type in declared.times.values():
        if random.random() < 0.8:
            put(data, column, some_time(type, random))
    name: Json = random.choice(NAMES) if random.random() < 0.9 else random.choice(ODD)
    message: dict[str, Json] = {}
    put(message, declared.stream, name)
    if declared.body is None:
        return data | message
    if random.random() < 0.9:
        put(message, declared.body, data)
    return message


@st.composite
def bundles(draw: st.DrawFn, stream: OracleStream) -> list[bytes]:
    assert stream.messages is not None
    random = Random(draw(st.integers(0, 2**32 - 1)))
    records: list[bytes] = []
    for row in range(30):
        event: dict[str, Json] = {"id": f"b-{row}"}
        held = [some_message(stream.messages, random) for _ in range(random.randrange(5))]
        if random.random() < 0.95:
            put(event, stream.messages.column, held if random.random() < 0.95 else random.choice(ODD))
        if random.random() < 0.6:
            event["at"] = some_time(stream.time_type, random)
        text = plain(event) if random.random() < 0.5 else respelled(event, random)
        records.append(text[: random.randrange(len(text)) if random.random() < 0.03 else None].encode())
    return records


@by_name
@few
@given(data=st.data())
def test_any_records_are_read_alike(stream: OracleStream, data: st.DataObject) -> None:
    agree(stream, data.draw(bundles(stream)))


@pytest.mark.soak
@by_name
@many
@given(data=st.data())
def test_any_records_are_read_alike_at_length(stream: OracleStream, data: st.DataObject) -> None:
    agree(stream, data.draw(bundles(stream)))


def test_streams_without_messages_have_no_rule_for_them() -> None:
    plain_stream: Mapping[str, object] = section(replace(BUNDLES, messages=None))
    declared = Stream.model_validate({"name": "plain", **plain_stream})
    assert plan_for(declared, Limits()).messages is None
