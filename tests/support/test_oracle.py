"""The oracle against the contract, case by case: the golden cases, every reject rule, the laws."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from tests.support.oracles.clocks import SourceClock
from tests.support.oracles.oracle import CellKey, Oracle, Verdict, canonical_hash
from tests.support.oracles.stream import REQUESTS, OracleField, OracleMetric, OracleStream

from tidemill.model.errors import ConfigError
from tidemill.model.levels import NAMES
from tidemill.model.slices import Counts, RecordOutcome, Reject
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, Interval, parse_instant

T0 = parse_instant("2024-01-01T10:00:00Z")
NOW = T0 + HOUR
ACCEPTED = Verdict(RecordOutcome.ACCEPTED)
DUPLICATE = Verdict(RecordOutcome.DUPLICATE)
CONFLICT = Verdict(RecordOutcome.CONFLICT)


def request(event_id: object = "e1", at: int = T0, **more: object) -> bytes:
    event = {"event_id": event_id, "ts": at // 1000, "event_type": "request", "tenant": "acme"}
    return json.dumps(event | more).encode()


def reject(record: bytes, stream: OracleStream = REQUESTS, arrival: int = NOW) -> Reject | None:
    """The reason for which a single record is rejected, or None when it is accepted."""
    (verdict,) = Oracle(stream).land("s", [record], arrival)
    return verdict.reason


# --- golden cases --------------------------------------------------------------------------------


def test_m1_identical_event_is_a_duplicate_and_changes_nothing() -> None:
    oracle = Oracle(REQUESTS)
    event = request(api="/a", status=200, latency_ms=1.5)
    assert oracle.land("s1", [event], NOW) == [ACCEPTED]
    before = (oracle.tiles(), list(oracle.raw), dict(oracle.clocks))
    assert oracle.land("s2", [event, event], NOW) == [DUPLICATE, DUPLICATE]
    assert (oracle.tiles(), oracle.raw, oracle.clocks) == before
    assert oracle.quarantine == []
    assert oracle.counts["s2"] == Counts(records=2, duplicate=2)


RESPELLED = (
    rb'{"status":2e2,"tenant":"acme","ts":1704103200000.0,"event_type":"request","event_id":"e1","x":[1,-0]}',
    b'{"tenant":"acme",\r"event_id":"\\u00651","x":[1e0,0],"ts":17041032e5,"status":2E2,"event_type":"request"}',
)


@pytest.mark.parametrize("replay", RESPELLED)
def test_m1_key_order_white_space_and_spelling_do_not_make_a_conflict(replay: bytes) -> None:
    oracle = Oracle(REQUESTS)
    assert oracle.land("s1", [request(status=200, x=[1, 0]), replay], NOW) == [ACCEPTED, DUPLICATE]


@pytest.mark.parametrize(
    "rival",
    [request(status=500), request(at=T0 + SECOND, status=200), request(status=200, extra=None), request()],
)
def test_m2_other_payload_is_a_conflict_with_both_hashes(rival: bytes) -> None:
    oracle = Oracle(REQUESTS)
    oracle.land("s1", [request(status=200)], NOW)
    before = oracle.tiles()
    assert oracle.land("s2", [rival], NOW) == [CONFLICT]
    assert oracle.tiles() == before
    (entry,) = oracle.quarantine
    assert (entry.slice, entry.line, entry.outcome, entry.reason) == ("s2", 1, RecordOutcome.CONFLICT, None)
    assert entry.payload == rival
    assert entry.rival == canonical_hash(
        '{"event_id":"e1","event_type":"request","status":2e2,"tenant":"acme","ts":17041032e5}'
    )
    assert entry.hash not in (None, entry.rival)


def test_the_key_is_tenant_and_id() -> None:
    oracle = Oracle(REQUESTS)
    assert oracle.land("s", [request(), request(tenant="globex")], NOW) == [ACCEPTED, ACCEPTED]


def test_m3_two_counters_with_equal_dimensions_have_separate_totals() -> None:
    metrics = {
        "hits": OracleMetric(("api",), ("bytes",)),
        "time": OracleMetric(("api",), ("latency_ms",)),
    }
    oracle = Oracle(replace(REQUESTS, metrics=metrics))
    oracle.land("s", [request("a", api="/a", bytes=10), request("b", api="/a", latency_ms=0.25)], NOW)
    assert oracle.rollup("5s") == {
        ("hits", "acme", ("/a",), T0): (2, {"bytes": (1, 10, 10, 10)}),
        ("time", "acme", ("/a",), T0): (2, {"latency_ms": (1, 250, 250, 250)}),
    }


def test_m4_each_level_is_the_sum_of_the_5s_rows() -> None:
    oracle = Oracle(REQUESTS)
    oracle.land("s", [request(str(i), T0 - i * 1007 * SECOND, latency_ms=i / 8) for i in range(900)], NOW)
    base = oracle.rollup("5s")
    assert len({key.bucket for key in base}) == 900
    for level in NAMES:
        cells = oracle.rollup(level)
        assert sum(cell.events for cell in cells.values()) == 900
        sums = [cell.measures["latency_ms"] for cell in cells.values()]
        assert sum(m.sum for m in sums) == 125 * sum(range(900))
        assert (min(m.min or 0 for m in sums), max(m.max or 0 for m in sums)) == (0, 125 * 899)
    # epoch aligned: the week of Monday 1 January 2024 began on Thursday 28 December
    assert parse_instant("2023-12-28T00:00:00Z") in {key.bucket for key in oracle.rollup("7d")}


def test_m9_a_late_success_corrects_its_minute() -> None:
    oracle = Oracle(replace(REQUESTS, metrics={"tries": OracleMetric(("status",))}))

    def counts(status: int) -> dict[int, int]:
        cells = oracle.rollup("1m").items()
        return {(k.bucket - T0) // MINUTE: c.events for k, c in cells if k.dimensions == (status,)}

    failure = request("f", T0 + 98 * SECOND, status=500)
    oracle.land("s1", [request("a", T0 + 128 * SECOND, status=200), failure], T0 + 130 * SECOND)
    assert (counts(200), counts(500)) == ({2: 1}, {1: 1})
    oracle.land("s2", [request("b", T0 + 175 * SECOND, status=200)], T0 + 195 * SECOND)
    assert (counts(200), counts(500)) == ({2: 2}, {1: 1})


# --- reject rules, in their order ------------------------------------------------------------------


def test_too_large_is_decided_by_bytes_and_first() -> None:
    small = replace(REQUESTS, record_bytes=100)
    assert reject(request(api="/" + "x" * 100), small) is Reject.TOO_LARGE
    assert reject(b"\xff" * 101, small) is Reject.TOO_LARGE
    assert reject(b"x" * 100, small) is Reject.MALFORMED


@pytest.mark.parametrize("broken", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"])
def test_invalid_utf8_is_encoding_even_when_malformed_too(broken: bytes) -> None:
    assert reject(b'{"event_id":"' + broken) is Reject.ENCODING
    assert reject(request()[:-1] + b',"x":"' + broken + b'"}') is Reject.ENCODING


def test_lone_surrogate_escape_is_encoding_in_values_and_keys() -> None:
    assert reject(request(x="\ud800")) is Reject.ENCODING
    assert reject(request(x=[{"\udfff": 1}])) is Reject.ENCODING
    assert reject(request(x="\ud83d\ude00")) is None
    assert reject(b'{"event_id":"\\ud800"') is Reject.MALFORMED


@pytest.mark.parametrize(
    "record",
    [b"{", b"[]", b"null", b'{"a":NaN}', b'{"a":1,"a":1}', b"\xef\xbb\xbf{}", b'{"a":"\x00"}', b"\x00",
     b'{"a":"\x1f"}', request() + b"{}", b'{"a":' + b"[" * 64 + b"]" * 64 + b"}"],
)  # fmt: skip
def test_malformed(record: bytes) -> None:
    assert reject(record) is Reject.MALFORMED


def test_depth_limit_is_inclusive() -> None:
    assert reject(request(x=json.loads("[" * 63 + "]" * 63))) is None
    assert reject(request(x=json.loads("[" * 64 + "]" * 64))) is Reject.MALFORMED


@pytest.mark.parametrize("bad", [None, "", True, 1.5, [], {}, 2**63, "x" * 1025, "é" * 513])
def test_unusable_ids_are_missing(bad: object) -> None:
    assert reject(request(bad)) is Reject.MISSING_ID
    assert reject(b'{"tenant":5}') is Reject.MISSING_ID  # before the tenant is looked at


def test_ids_may_be_integers_or_several_columns() -> None:
    fields = {"v": OracleField("any")}
    one = OracleStream("s", fields, identity=("id",), tenant_value="t")
    oracle = Oracle(one)
    same = [b'{"id":7}', b'{"id":7.0}', b'{"id":"7"}']
    assert oracle.land("s", same, NOW) == [ACCEPTED, DUPLICATE, CONFLICT]
    assert oracle.raw[0].event_id == "7"

    several = Oracle(replace(one, identity=("a", "meta.n")))
    records = [b'{"a":"x\\"\\u00e9\\n","meta":{"n":-1}}', b'{"a":"x"}', b'{"a":"x","meta":[1]}']
    missing = Verdict(RecordOutcome.REJECTED, Reject.MISSING_ID)
    assert several.land("s", records, NOW) == [ACCEPTED, missing, missing]
    assert several.raw[0].event_id == '["x\\"é\\n",-1]'


@pytest.mark.parametrize(
    ("tenant", "reason"),
    [(None, Reject.MISSING_FIELD), ("", Reject.MISSING_FIELD), (5, Reject.MISSING_FIELD),
     ("t" * 256, None), ("t" * 257, Reject.WRONG_TYPE), ("é" * 129, Reject.WRONG_TYPE)],
)  # fmt: skip
def test_tenant(tenant: object, reason: Reject | None) -> None:
    assert reject(request(tenant=tenant, event_type=1 if reason else "request")) is reason


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(None, Reject.MISSING_FIELD), (1, Reject.WRONG_TYPE), ("Request", Reject.UNKNOWN_TYPE)],
)
def test_event_type(kind: object, reason: Reject) -> None:
    assert reject(request(event_type=kind, ts="never")) is reason


@pytest.mark.parametrize("value", [None, True, "", "1.", "+-1", "0x1", "٣", "yesterday", [], 1e30, -1e30])
def test_bad_time(value: object) -> None:
    assert reject(request(ts=value)) is Reject.BAD_TIME


@pytest.mark.parametrize(
    ("time_type", "value", "us"),
    [("unixtimestamp_s", "1", SECOND), ("unixtimestamp_s", "1.0000019", 1_000_001),
     ("unixtimestamp_s", '"+1"', SECOND), ("unixtimestamp_s", '"-01"', -SECOND),
     ("unixtimestamp_s", '"1.0000019"', 1_000_001), ("unixtimestamp_ms", '"-0.0001"', -1),
     ("unixtimestamp_ms", "1500", 1_500_000), ("unixtimestamp_us", "-0.5", -1),
     ("unixtimestamp_ns", "-1", -1), ("unixtimestamp_ns", "1999", 1),
     ("unixtimestamp_s", "-62135596800", -62_135_596_800 * SECOND),
     ("unixtimestamp_s", "-62135596800.000001", None), ("unixtimestamp_s", "253402300800", None),
     ("unixtimestamp_s", "253402300799.9999999", 253_402_300_800 * SECOND - 1),
     ("iso8601", '"1970-01-01T00:00:01.5Z"', 1_500_000), ("iso8601", '"1970-01-01T01:00:00+01:00"', 0),
     ("iso8601", '"0001-01-01T00:00:00+01:00"', None), ("iso8601", "5", None)],
)  # fmt: skip
def test_v28_event_times(time_type: str, value: str, us: int | None) -> None:
    stream = OracleStream("s", time_column="t", time_type=time_type, tenant_value="x")  # type: ignore[arg-type]
    oracle = Oracle(stream)
    oracle.land("s", [f'{{"event_id":"e","t":{value}}}'.encode()], NOW)
    assert [row.ts for row in oracle.raw] == ([] if us is None else [us])


def test_processing_time_is_the_arrival() -> None:
    oracle = Oracle(OracleStream("s", tenant_value="x", skew_past=0, skew_future=0))
    assert oracle.land("s1", [b'{"event_id":"e"}'], NOW) == [ACCEPTED]
    assert oracle.land("s2", [b'{"event_id":"e"}'], NOW + 1) == [DUPLICATE]
    assert oracle.raw[0].ts == NOW


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [(OracleField("string"), ['""', '"x"'], ["1", "true", "[]"]),
     (OracleField("integer"), ["1", "1.0", "1e3", "-0", "9223372036854775807"],
      ["1.5", "1e-1", "9223372036854775808", '"1"', "true"]),
     (OracleField("decimal", scale=3), ["1", "0.0005", "999999999999999.9994", "-1e14"],
      ["1e15", "999999999999999.9995", '"1"', "false"]),
     (OracleField("float"), ["1", "1e999", "-0.5e-999"], ['"1"', "true"]),
     (OracleField("boolean"), ["true", "false"], ["1", '"true"']),
     (OracleField("object"), ["{}"], ["[]", "1"]),
     (OracleField("array"), ["[]"], ["{}", '"[]"']),
     (OracleField("any"), ["{}", "[]", "1", '"x"', "true"], [])],
)  # fmt: skip
def test_schema_types(declared: OracleField, good: list[str], bad: list[str]) -> None:
    stream = OracleStream("s", {"a.b": declared}, tenant_value="x")

    def outcome(text: str, at: OracleStream = stream) -> Reject | None:
        return reject(f'{{"event_id":"e","a":{{"b":{text}}}}}'.encode(), at)

    assert [outcome(text) for text in good] == [None] * len(good)
    assert [outcome(text) for text in bad] == [Reject.WRONG_TYPE] * len(bad)
    required = replace(stream, fields={"a.b": declared._replace(required=True)})
    assert outcome("null") is None
    assert outcome("null", required) is Reject.MISSING_FIELD


def test_the_first_declared_field_decides() -> None:
    fields = {"a": OracleField("string"), "b": OracleField("string", required=True)}
    record = b'{"event_id":"e","a":1}'
    assert reject(record, OracleStream("s", fields, tenant_value="x")) is Reject.WRONG_TYPE
    flipped = dict(reversed(fields.items()))
    assert reject(record, OracleStream("s", flipped, tenant_value="x")) is Reject.MISSING_FIELD


def test_skew_bounds_are_inclusive_and_checked_last() -> None:
    stream = replace(REQUESTS, skew_past=HOUR, skew_future=DAY)
    assert reject(request(at=NOW + DAY), stream) is None
    assert reject(request(at=NOW + DAY + 1000), stream) is Reject.SKEW
    assert reject(request(at=NOW - HOUR), stream) is None
    assert reject(request(at=NOW - HOUR - 1000), stream) is Reject.TOO_OLD
    assert reject(request(at=NOW - 2 * HOUR, status="x"), stream) is Reject.WRONG_TYPE


def test_a_rejected_record_does_not_take_the_id() -> None:
    oracle = Oracle(REQUESTS)
    wrong = Verdict(RecordOutcome.REJECTED, Reject.WRONG_TYPE)
    assert oracle.land("s", [request(status="x"), request(status=200)], NOW) == [wrong, ACCEPTED]
    assert oracle.raw[0][3:] == ("s", 2, request(status=200), None, False)
    assert oracle.counts["s"] == Counts(2, accepted=1, rejected=1, rejects={"wrong_type": 1})


# --- watermark, slices, levels ---------------------------------------------------------------------


def test_rows_meet_the_watermark_that_stood_before_their_slice() -> None:
    oracle = Oracle(REQUESTS)
    oracle.land("s1", [request("a", T0 + 10 * SECOND), request("b", T0)], NOW, "edge")
    assert oracle.clocks == {"edge": SourceClock(T0 + 10 * SECOND, T0 + 8 * SECOND, NOW)}
    edge = [request("c", T0 + 8 * SECOND), request("d", T0 + 9 * SECOND)]
    oracle.land("s2", edge, NOW, "edge")
    oracle.land("s3", [request("e", T0)], NOW, "core")
    met = [(row.event_id, row.watermark, row.late) for row in oracle.raw]
    wm = T0 + 8 * SECOND
    assert met[:2] == [("a", None, False), ("b", None, False)]
    assert met[2:] == [("c", wm, True), ("d", wm, False), ("e", wm, True)]
    assert (oracle.counts["s2"].late, oracle.total().late) == (1, 2)
    assert oracle.met == {"s1": None, "s2": wm, "s3": wm}
    assert oracle.clocks["edge"].watermark == wm
    assert oracle.observed["s1"] == Interval(T0, T0 + 10 * SECOND + 1)


def test_what_is_not_accepted_moves_no_clock() -> None:
    oracle = Oracle(REQUESTS)
    oracle.land("s1", [request("a", NOW + 2 * DAY), b"x"], NOW)
    assert oracle.clocks == {}
    assert oracle.observed == {"s1": None}


def test_the_least_of_the_sources_holds_the_stream_until_it_is_idle() -> None:
    oracle = Oracle(replace(REQUESTS, late_tolerance=0, idle_timeout=MINUTE))
    oracle.land("s1", [request("a", T0 + 5 * SECOND)], NOW, "edge")
    oracle.land("s2", [request("b", T0 + 90 * SECOND), request("c", T0 + 80 * SECOND)], NOW + 1, "core")
    oracle.land("s3", [request("d", T0 + 70 * SECOND), request("e", T0 + 100 * SECOND)], NOW + MINUTE, "core")
    assert oracle.met == {"s1": None, "s2": T0 + 5 * SECOND, "s3": T0 + 90 * SECOND}
    reported = [row if isinstance(row, int) else row.event_id for row in oracle.ordered()]
    assert reported == ["a", T0 + 5 * SECOND, "c", "b", T0 + 90 * SECOND, "e", T0 + 100 * SECOND]
    oracle.land("s4", [request("f", T0 + 20 * SECOND), request("g", T0 + 200 * SECOND)], NOW + MINUTE, "edge")
    assert [row.event_id for row in oracle.raw if row.late] == ["d", "f"]
    assert [row.event_id for row in oracle.waiting()] == ["g"]  # core holds it
    size = len(request("g", T0 + 200 * SECOND))
    assert oracle.progress() == (T0 + 100 * SECOND, 3, 1, size, 0)
    assert oracle.watermark(NOW + 2 * MINUTE - 1) == T0 + 100 * SECOND
    assert oracle.watermark(NOW + 2 * MINUTE) == T0 + 100 * SECOND  # both are idle, and were heard of last


def test_a_bounded_buffer_lets_go_of_the_oldest() -> None:
    size = len(request("a", T0))
    oracle = Oracle(replace(REQUESTS, late_tolerance=HOUR, max_buffer_bytes=2 * size))
    oracle.land("s1", [request(name, T0 + n * SECOND) for n, name in enumerate("abcd")], NOW)
    assert oracle.progress() == (T0 + SECOND, 2, 2, 2 * size, 2)
    assert [row if isinstance(row, int) else row.event_id for row in oracle.ordered()] == [
        T0 + 3 * SECOND - HOUR, "a", "b", T0 + SECOND,
    ]  # fmt: skip


def test_by_processing_time_nothing_is_late() -> None:
    oracle = Oracle(replace(REQUESTS, time_column=None))
    oracle.land("s1", [request("a")], NOW)
    oracle.land("s2", [request("b")], NOW - DAY)
    assert [row.watermark for row in oracle.raw] == [None, None]
    assert (oracle.total().late, oracle.progress()) == (0, (None, 0, 0, 0, 0))


def test_the_same_slice_lands_once() -> None:
    oracle = Oracle(REQUESTS)
    assert oracle.land("s", [request()], NOW) == oracle.land("s", [request()], NOW + 1) == [ACCEPTED]
    assert oracle.counts == {"s": Counts(1, accepted=1)}


def test_dimensions_and_measures_may_be_missing() -> None:
    oracle = Oracle(REQUESTS)
    oracle.land("s", [request("a", latency_ms=None), request("b", latency_ms=-2.0005), request("c")], NOW)
    key = CellKey("requests", "acme", (None, None, None), T0 - 10 * HOUR)
    assert oracle.rollup("1d") == {key: (3, {"latency_ms": (1, -2000, -2000, -2000)})}


def test_tiles_hold_every_row_of_every_level_once() -> None:
    oracle = Oracle(REQUESTS)
    oracle.land("s1", [request("a", T0), request("b", T0 + 14 * MINUTE)], NOW)
    oracle.land("s2", [request("c", T0 + 14 * MINUTE), request("d", T0 + 15 * MINUTE)], NOW)
    assert oracle.tile_slices() == {T0: {"s1", "s2"}, T0 + 15 * MINUTE: {"s2"}}
    tiles = oracle.tiles()
    for level in NAMES:
        rows = [item for key, cells in tiles.items() if key.level == level for item in cells.items()]
        assert dict(rows) == oracle.rollup(level)
        assert len(rows) == len(dict(rows))


def test_a_retracted_slice_was_never_there() -> None:
    oracle = Oracle(REQUESTS)
    oracle.land("s1", [request("a", status=200), request("b")], NOW)
    oracle.land("s2", [request("a", status=200), request("b", status=500), request("c")], NOW)
    without = oracle.rebuilt(without={"s1"})
    assert [(row.event_id, row.slice) for row in without.raw] == [("a", "s2"), ("b", "s2"), ("c", "s2")]
    assert oracle.rebuilt().raw == oracle.raw


def test_without_conflicts_the_order_of_arrival_is_irrelevant() -> None:
    slices = {
        "s1": [request("a", T0), request("b", T0 + MINUTE)],
        "s2": [request("b", T0 + MINUTE), request("c", T0 - HOUR, latency_ms=3)],
        "s3": [request("d", T0 + DAY // 2), b"junk", request("a", T0)],
    }
    seen = []
    for order in itertools.permutations(slices):
        oracle = Oracle(REQUESTS)
        for name in order:
            oracle.land(name, slices[name], NOW + DAY)
        seen.append(({(r.tenant, r.event_id, r.ts) for r in oracle.raw}, oracle.tiles()))
    assert all(result == seen[0] for result in seen)


@pytest.mark.parametrize(
    "wrong",
    [{"tenant_value": "both"}, {"identity": ()}, {"time_type": "unixtimestamp"}, {"depth": 0},
     {"fields": {"a": OracleField("decimal")}}, {"metrics": {"m": OracleMetric(("latency_ms",))}},
     {"metrics": {"m": OracleMetric((), ("nothing",))}}],
)  # fmt: skip
def test_a_stream_that_makes_no_sense_is_refused_with_a_hint(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as error:
        replace(REQUESTS, **wrong)  # type: ignore[arg-type]
    assert error.value.hint
