"""Server-sent events of the outbox: in order, from any place, for many who listen, also slowly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice

import httpx
import pytest
from tests.support.patience import PATIENCE
from tests.support.served_project import PROJECT

from tidemill.model.time import HOUR, parse_instant
from tidemill.model.windows import DATASET_WITHDRAWN, WindowKey
from tidemill.outputs.datasets.announce import withdrawn
from tidemill.server import stream_events

NOON = parse_instant("2026-01-05T12:00:00Z")


@pytest.fixture
def served(serving):
    return serving(text=PROJECT)


def enter(served, *numbers: int, stream: str = "requests") -> None:
    """Have events in the outbox, one of each number."""
    reported = [withdrawn(WindowKey(stream, NOON + n * HOUR, HOUR), 1, f"because {n}", NOON) for n in numbers]
    served.mill.state.observe([], reported)
    served.service.woken.ring()


@contextmanager
def listening(served, **how: object) -> Iterator[Iterator[tuple[str, dict]]]:
    """The events that a listener hears, each with its id, once the server knows of it."""
    with served.http.stream("GET", "/v1/events", timeout=PATIENCE, **how) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines).startswith("retry: ")
        yield heard(lines)


def heard(lines: Iterator[str]) -> Iterator[tuple[str, dict]]:
    said: dict[str, str] = {}
    for line in lines:
        if not line and "data" in said:
            yield said["id"], json.loads(said["data"]) | {"event": said["event"]}
            said = {}
        name, _, value = line.partition(": ")
        said[name] = value


def reasons(events: Iterator[tuple[str, dict]], count: int) -> list[str]:
    return [event["data"]["reason"] for _, event in islice(events, count)]


def test_a_listener_hears_what_comes_from_now_on(served):
    enter(served, 1, 2)
    with listening(served) as events:
        enter(served, 3)
        place, event = next(events)
    assert place == "3"
    assert event["event"] == event["type"] == DATASET_WITHDRAWN
    assert event["subject"] == "requests/2026-01-05T15:00:00Z"
    assert event["data"]["reason"] == "because 3"


def test_a_listener_goes_on_behind_what_it_has(served):
    enter(served, 1, 2, 3)
    with listening(served, params={"after": 0}) as events:
        assert reasons(events, 3) == ["because 1", "because 2", "because 3"]
    with listening(served, params={"after": 0}, headers={"Last-Event-ID": "2"}) as events:
        assert reasons(events, 1) == ["because 3"]
        enter(served, 4)
        assert next(events)[0] == "4"
    with listening(served, headers={"Last-Event-ID": "999"}) as events:  # of another warehouse
        enter(served, 5)
        assert next(events)[0] == "5"


def test_a_listener_may_want_one_stream_only(served):
    with listening(served, params={"stream": "requests", "after": 0}) as events:
        enter(served, 1, stream="shared")
        enter(served, 2)
        assert reasons(events, 1) == ["because 2"]
    assert served.http.get("/v1/events", params={"stream": "nothing"}).status_code == 404


@pytest.mark.parametrize("place", ["x", "-1", "1.5", "9" * 30, "١"])
def test_a_place_that_is_none_is_refused(served, place):
    assert served.http.get("/v1/events", params={"after": place}).status_code == 400
    answer = served.http.get("/v1/events", headers={"Last-Event-ID": place.encode()})
    assert answer.status_code == 400


def test_silence_is_broken_by_comments(served, monkeypatch):
    monkeypatch.setattr(stream_events, "HEARTBEAT", 0.02)
    with served.http.stream("GET", "/v1/events", timeout=PATIENCE) as answer:
        lines = [line for line in islice(answer.iter_lines(), 9) if line]
    assert lines[:2] == ["retry: 1000", "id: 0"]  # who loses it before the first event goes on from there
    assert lines[2:] == [": still here"] * 3


def test_many_listeners_share_one_look_at_the_outbox(served, monkeypatch):
    looks: list[int] = []
    events_of = type(served.mill).events

    def counted(self, after=0, limit=1000, stream=None):
        looks.append(after)
        return events_of(self, after, limit, stream)

    listeners = 20
    with ExitStack() as stack, ThreadPoolExecutor(listeners) as pool:
        opened = [stack.enter_context(listening(served)) for _ in range(listeners)]
        enter(served, 1)
        assert [next(events)[0] for events in opened] == ["1"] * listeners  # all of them follow now
        monkeypatch.setattr(type(served.mill), "events", counted)
        enter(served, 2)
        found = list(pool.map(lambda events: next(events)[0], opened))
    assert found == ["2"] * listeners
    assert len(looks) < listeners


def test_who_reads_slowly_holds_up_nobody_and_misses_nothing(served, monkeypatch):
    """What is kept for all is bounded; who is further behind reads on from the outbox by itself."""
    monkeypatch.setattr(stream_events, "KEPT", 3)
    monkeypatch.setattr(stream_events, "PAGE", 2)
    with listening(served) as slow, listening(served) as quick:
        for number in range(1, 41):
            enter(served, number)
            assert reasons(quick, 1) == [f"because {number}"]
        assert reasons(slow, 40) == [f"because {number}" for number in range(1, 41)]
        outbox = _outbox(served)
        assert len(outbox._kept) <= 3


def _outbox(served) -> stream_events.EventFeed:
    import gc

    return next(
        one for one in gc.get_objects() if isinstance(one, stream_events.EventFeed) and one._listening
    )


def test_listeners_are_let_go_when_the_server_stops(served):
    with served.http.stream("GET", "/v1/events", timeout=PATIENCE) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("retry: ")
        assert next(lines).startswith("id: ")
        served.service.stop()
        assert [line for line in lines if line] == []  # and the answer is over


def test_a_listener_whose_token_is_revoked_hears_no_more(served):
    now = served.mill.clock()
    token, text = served.service.tokens.create(["read"], tenant=None, now=now)
    with listening(served, headers={"Authorization": f"Bearer {text}"}) as events:
        enter(served, 1)
        assert next(events)[0] == "1"
        served.service.tokens.revoke(token.id, now)
        enter(served, 2)
        assert list(events) == []  # and the answer is over


def test_a_listener_that_goes_is_forgotten(served):
    with listening(served) as events:
        enter(served, 1)
        next(events)
        outbox = _outbox(served)
    with listening(served) as events:
        enter(served, 2)
        next(events)
        while outbox._listening > 1:
            served.http.get("/healthz")
    assert isinstance(served.http, httpx.Client)


def test_the_end_of_the_outbox_is_found_without_reading_it(served):
    state = served.mill.state
    for count in range(20):
        assert stream_events.end_of(state) == count
        enter(served, count)
