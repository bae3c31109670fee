"""The generated feeds are what they claim to be, and the oracle obeys its laws over them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples
from tests.support.oracles.oracle import Landing, Oracle
from tests.support.oracles.spelling import SPOILED_TEXT, plain, respelled
from tests.support.oracles.stream import NESTED, REQUESTS, OracleField, OracleStream
from tests.support.oracles.strictjson import canonical, read_object
from tests.support.strategies.feeds import FIRST_ARRIVAL, events, feeds, spoils

from tidemill.model.levels import LEVELS, below
from tidemill.model.slices import RecordOutcome, Reject
from tidemill.model.time import align

FEWER_FIELDS = replace(
    NESTED, fields={name: field for name, field in NESTED.fields.items() if name not in ("meta.at", "part")}
)
STREAMS = [
    replace(REQUESTS, record_bytes=4096),
    FEWER_FIELDS,
    replace(FEWER_FIELDS, time_column=None, skew_past=None),
    replace(FEWER_FIELDS, time_type="unixtimestamp_ns", identity=("part",)),
    replace(
        FEWER_FIELDS,
        time_type="unixtimestamp_s",
        fields={**FEWER_FIELDS.fields, "meta.at": OracleField("string")},
    ),
]
quick = examples(25)


def landed(feed: list[Landing], stream: OracleStream = REQUESTS) -> Oracle:
    oracle = Oracle(stream)
    for landing in feed:
        oracle.land(*landing)
    return oracle


@pytest.mark.parametrize("stream", STREAMS)
@quick
@given(data=st.data())
def test_good_events_are_accepted_and_every_spoiled_one_is_rejected(
    stream: OracleStream, data: st.DataObject
) -> None:
    event = data.draw(events(stream, 7))
    text = plain(event)
    random = Random(data.draw(st.integers(0, 1000)))
    again = respelled(event, random)
    assert "\n" not in text + again
    assert canonical(read_object(text, 64)) == canonical(read_object(again, 64)) == canonical(event)
    outcomes = Oracle(stream).land("good", [text.encode(), again.encode()], FIRST_ARRIVAL)
    assert [verdict.outcome for verdict in outcomes] == [RecordOutcome.ACCEPTED, RecordOutcome.DUPLICATE]

    for name, spoil_text in SPOILED_TEXT.items():
        record = spoil_text(again, random)
        assert b"\n" not in record
        (verdict,) = Oracle(stream).land("bad", [record], FIRST_ARRIVAL)
        assert verdict.outcome is RecordOutcome.REJECTED, (name, record)
    for spoil in (spoil for rule in spoils(stream).values() for spoil in rule):
        broken = read_object(text, 64)
        spoil(broken)
        (verdict,) = Oracle(stream).land("bad", [plain(broken).encode()], FIRST_ARRIVAL)
        assert verdict.outcome is RecordOutcome.REJECTED, broken


@pytest.mark.variety
def test_every_outcome_and_reason_turns_up() -> None:
    seen: Counter[str] = Counter()
    stream = STREAMS[0]

    @examples(50)
    @given(feeds(stream))
    def collect(feed: list[Landing]) -> None:
        total = landed(feed, stream).total()
        assert 1 <= total.records <= 60
        assert total.records == total.accepted + total.duplicate + total.conflict + total.rejected
        seen.update(total.rejects)
        seen.update(
            a=total.accepted, d=total.duplicate, c=total.conflict, late=total.late, slices=len(feed) > 1
        )

    collect()
    # What was sealed depends on what expired before, which no feed knows; this stream limits no past.
    assert stream.skew_past is None
    assert all(seen[reason] for reason in Reject if reason not in (Reject.SEALED, Reject.TOO_OLD)), seen
    assert all(seen[what] for what in ("a", "d", "c", "late", "slices")), seen


@quick
@given(feed=feeds(conflicts=False), data=st.data())
def test_without_conflicts_arrival_order_and_slicing_change_nothing(
    feed: list[Landing], data: st.DataObject
) -> None:
    once = landed(feed)
    assert once.total().conflict == 0
    records = data.draw(st.permutations([record for landing in feed for record in landing.records]))
    other = Oracle(REQUESTS)
    other.land("all", records, feed[-1].arrival)
    assert {row[:3] for row in other.raw} == {row[:3] for row in once.raw}
    assert other.tiles() == once.tiles()
    assert other.total().rejects == once.total().rejects
    assert other.total().duplicate == once.total().duplicate


@quick
@given(feed=feeds())
def test_landing_everything_again_is_a_no_op_for_raw_and_tiles(feed: list[Landing]) -> None:
    oracle = landed(feed)
    raw, tiles, clocks = list(oracle.raw), oracle.tiles(), dict(oracle.clocks)
    before = oracle.total()
    for landing in feed:
        oracle.land(*landing._replace(slice=landing.slice + "-again", arrival=feed[-1].arrival))
    assert (oracle.raw, oracle.tiles(), oracle.clocks) == (raw, tiles, clocks)
    after = oracle.total()
    assert (after.accepted, after.conflict) == (before.accepted, 2 * before.conflict)
    assert after.duplicate == 2 * before.duplicate + before.accepted


@pytest.mark.parametrize("stream", STREAMS[:2])
@quick
@given(data=st.data())
def test_each_level_says_the_same_as_the_one_below(stream: OracleStream, data: st.DataObject) -> None:
    oracle = landed(data.draw(feeds(stream)), stream)
    for level in LEVELS:
        cells = oracle.rollup(level.name)
        assert all(key.bucket % level.width == 0 for key in cells)
        assert sum(cell.events for cell in cells.values()) == len(oracle.raw) * len(stream.metrics)
        lower = below(level)
        if lower is None:
            continue
        for key, cell in cells.items():
            inside = [
                part
                for k, part in oracle.rollup(lower.name).items()
                if k[:3] == key[:3] and align(k.bucket, level.width) == key.bucket
            ]
            assert cell.events == sum(part.events for part in inside)
            for name, (n, total, low, high) in cell.measures.items():
                parts = [part.measures[name] for part in inside]
                assert (n, total) == (sum(p.n for p in parts), sum(p.sum for p in parts))
                assert low == min((p.min for p in parts if p.min is not None), default=None)
                assert high == max((p.max for p in parts if p.max is not None), default=None)


@quick
@given(feed=feeds(), data=st.data())
def test_retraction_is_the_story_without_the_slice(feed: list[Landing], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(feed)).slice
    expected = landed([landing for landing in feed if landing.slice != gone])
    rebuilt = landed(feed).rebuilt(without={gone})
    assert (rebuilt.raw, rebuilt.quarantine, rebuilt.clocks) == (
        expected.raw,
        expected.quarantine,
        expected.clocks,
    )
