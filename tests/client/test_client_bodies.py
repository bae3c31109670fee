"""Events become request bodies: ids before the first try, bounded sizes, nothing lost on the way to JSON."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.client.arrow import ARROW, bodies
from tidemill.client.bodies import Ids, RequestPacker, compressed
from tidemill.model.errors import InputError

NO_ZONE = datetime(2024, 1, 15, tzinfo=UTC).replace(tzinfo=None)


def ids(column="event_id"):
    numbers = count(1)
    return Ids.at(column, lambda: f"new-{next(numbers)}")


def packed(events, *, column="event_id", most_events=1000, most_bytes=1 << 20):
    packer = RequestPacker(ids(column), most_events, most_bytes)
    found = [body for event in events if (body := packer.add(event)) is not None]
    return [*found, *([last] if (last := packer.rest()) is not None else [])]


def records(body):
    return [json.loads(line) for line in body.content.splitlines()]


# -- ids


def test_an_event_without_an_id_gets_one_and_the_callers_is_left_alone():
    event = {"a": 1}
    (body,) = packed([event, {"event_id": "mine"}, {"event_id": None}])
    assert [one["event_id"] for one in records(body)] == ["new-1", "mine", "new-2"]
    assert event == {"a": 1}


def test_the_id_may_be_inside_other_columns():
    event = {"meta": {"region": "eu"}}
    (body,) = packed([event, {}, {"meta": {"id": 7}}], column="meta.id")
    assert records(body) == [
        {"meta": {"region": "eu", "id": "new-1"}}, {"meta": {"id": "new-2"}}, {"meta": {"id": 7}},
    ]  # fmt: skip
    assert event == {"meta": {"region": "eu"}}


def test_without_an_id_column_events_go_as_they_are():
    (body,) = packed([{"a": 1}], column=None)
    assert records(body) == [{"a": 1}]


def test_a_path_through_something_else_is_told_with_the_number_of_the_event():
    with pytest.raises(InputError, match="event 2: 'meta' holds no other column"):
        packed([{}, {"meta": "text"}], column="meta.id")
    with pytest.raises(InputError, match="is not a column name"):
        ids("meta.")


# -- sizes


def test_events_are_packed_by_count():
    found = packed(({"event_id": str(n)} for n in range(7)), most_events=3)
    assert [body.events for body in found] == [3, 3, 1]
    assert [one["event_id"] for body in found for one in records(body)] == list("0123456")


def test_events_are_packed_by_bytes_and_one_that_is_larger_goes_alone():
    sizes = [10, 10, 500, 10]
    found = packed(({"event_id": "x" * size} for size in sizes), most_bytes=60)
    assert [body.events for body in found] == [2, 1, 1]


@given(st.lists(st.integers(0, 80), max_size=40), st.integers(1, 5), st.integers(1, 200))
def test_packing_keeps_every_event_in_order_within_its_bounds(sizes, most_events, most_bytes):
    events = [{"event_id": "x" * size, "n": n} for n, size in enumerate(sizes)]
    found = packed(events, most_events=most_events, most_bytes=most_bytes)
    assert [one for body in found for one in records(body)] == events
    assert all(body.events == len(records(body)) <= most_events for body in found)
    assert all(len(body.content) <= most_bytes or body.events == 1 for body in found)


def test_a_body_is_compressed_above_a_size():
    assert compressed(b"x" * 100, above=100) == (b"x" * 100, {})
    assert compressed(b"x" * 100, above=None) == (b"x" * 100, {})
    content, headers = compressed(b"x" * 101, above=100)
    assert (gzip.decompress(content), headers) == (b"x" * 101, {"content-encoding": "gzip"})
    assert content == compressed(b"x" * 101, above=100)[0]


# -- JSON


def test_decimals_and_instants_are_exact():
    at = datetime(2024, 1, 15, 12, tzinfo=UTC)
    (body,) = packed([{"event_id": "a", "price": Decimal("0.10"), "at": at, "on": date(2024, 1, 15)}])
    assert body.content == (
        b'{"event_id":"a","price":0.10,"at":"2024-01-15T12:00:00+00:00","on":"2024-01-15"}\n'
    )


@pytest.mark.parametrize(
    "value",
    [float("nan"), [float("inf")], {"b": float("-inf")}, 1 << 64, NO_ZONE, object(), Decimal("NaN")],
    ids=["NaN", "infinity", "nested", "65 bits", "no zone", "object", "decimal NaN"],
)  # fmt: skip
def test_what_is_no_json_is_refused_before_anything_is_sent(value):
    with pytest.raises(InputError, match="event 2") as found:
        packed([{"event_id": "a", "b": None}, {"event_id": "b", "value": value}])
    assert found.value.hint


def test_what_is_no_event_is_refused():
    with pytest.raises(InputError, match="event 1: str is not an event"):
        packed(["text"])


# -- Arrow


def tables(found):
    return [pa.ipc.open_stream(body.content).read_all() for body in found]


def test_a_table_is_cut_into_streams_and_rows_without_an_id_get_one():
    table = pa.table({"event_id": ["a", None, "c"], "n": [1, 2, 3]})
    found = list(bodies(table, ids(), 2, 1 << 20))
    assert [(body.events, body.media) for body in found] == [(2, ARROW), (1, ARROW)]
    assert [one.to_pydict() for one in tables(found)] == [
        {"event_id": ["a", "new-1"], "n": [1, 2]}, {"event_id": ["c"], "n": [3]},
    ]  # fmt: skip


def test_a_table_is_cut_by_bytes_too():
    table = pa.table({"event_id": ["x" * 100] * 8})
    found = list(bodies(table, ids(), 1000, 250))
    assert sum(body.events for body in found) == 8
    assert all(body.events <= 2 for body in found)


def test_ids_are_put_inside_structs():
    table = pa.table({"meta": [{"id": None, "r": 1}, {"id": "b", "r": 2}]})
    (found,) = tables(bodies(table, ids("meta.id"), 10, 1 << 20))
    assert found["meta"].to_pylist() == [{"id": "new-1", "r": 1}, {"id": "b", "r": 2}]
    (without,) = tables(bodies(pa.table({"n": [1]}), ids("meta.id"), 10, 1 << 20))
    assert without.to_pylist() == [{"n": 1, "meta": {"id": "new-1"}}]


def test_a_column_that_cannot_take_an_id_is_told():
    with pytest.raises(InputError, match="is not text"):
        list(bodies(pa.table({"event_id": [1, None]}), ids(), 10, 1 << 20))
