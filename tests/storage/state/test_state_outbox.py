"""The outbox in every store: in order, each event once, and how far each sink is."""

from __future__ import annotations

import threading

from tests.storage.state.conftest import Open, dataset_of, event_of, queue

from tidemill.model.time import HOUR, MINUTE
from tidemill.model.windows import OutboxEvent
from tidemill.storage.state.protocol import State


def put(state: State, *events: OutboxEvent) -> None:
    state.observe([], events)


def test_events_come_back_in_order_as_they_were_entered(state: State) -> None:
    data = {"rows": 3, "ratio": 0.5, "supersedes": None, "of": {"b": [1, "ü"], "a": True}}
    put(state, event_of("a", time=9), OutboxEvent(0, "b", "tidemill.dataset.withdrawn", "other", 3, data))
    put(state, event_of("c"))
    first, second, third = state.outbox()
    assert [event.id for event in (first, second, third)] == ["a", "b", "c"]
    assert 0 < first.seq < second.seq < third.seq
    assert second == OutboxEvent(second.seq, "b", "tidemill.dataset.withdrawn", "other", 3, data)
    assert state.outbox(after=first.seq) == [second, third]
    assert state.outbox(limit=2) == [first, second]
    assert state.outbox(stream="requests") == [first, third]
    assert state.outbox(after=first.seq, stream="requests", limit=5) == [third]
    assert state.outbox(after=third.seq) == []


def test_the_same_event_is_entered_once_and_keeps_its_place(state: State) -> None:
    put(state, event_of("a"), event_of("b"))
    before = state.outbox()
    put(state, event_of("b", time=99), event_of("a"), event_of("c"), event_of("c"))
    after = state.outbox()
    assert after[:2] == before
    assert [event.id for event in after] == ["a", "b", "c"]
    assert after[2].seq > after[1].seq


def test_an_event_goes_in_with_the_dataset_or_not_at_all(state: State) -> None:
    queue(state, {1: [0]})
    (build,) = state.take("me", 0, MINUTE, 1)
    assert state.complete(build, dataset_of(build), 1, [event_of("built")])
    assert not state.complete(build, dataset_of(build), 1, [event_of("too late")])
    assert [event.id for event in state.outbox()] == ["built"]


def test_a_sink_never_goes_back(state: State, opener: Open) -> None:
    assert state.delivered("webhook") == 0
    state.set_delivered("webhook", 7)
    state.set_delivered("webhook", 3)
    state.set_delivered("file", 2)
    again = opener()
    assert (again.delivered("webhook"), again.delivered("file"), again.delivered("new")) == (7, 2, 0)
    again.close()


def test_a_reader_never_overtakes_a_writer(state: State) -> None:
    """Who has read up to a place has everything before it."""
    seen: list[str] = []
    stop = threading.Event()

    def follow() -> None:
        place = 0
        while True:
            last = stop.is_set()
            for event in state.outbox(after=place, limit=3):
                seen.append(event.id)
                place = event.seq
            if last and not state.outbox(after=place):
                return

    def write(writer: str) -> None:
        for number in range(30):
            put(state, event_of(f"{writer}{number}", time=HOUR))

    reader = threading.Thread(target=follow)
    writers = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert sorted(seen) == sorted(f"{writer}{number}" for writer in "ab" for number in range(30))
    assert seen == [event.id for event in state.outbox()]
