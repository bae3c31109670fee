"""Readers beside each other: exact answers for many at once, and who reads slowly or leaves is no trouble."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from tests.support.patience import PATIENCE
from tests.support.served_project import HOUR, PROJECT

from tidemill.server import window_routes
from tidemill.server.reader_threads import AT_ONCE

PIECES = 2_000


@pytest.mark.long
def test_many_ask_while_events_come_and_every_answer_is_one_that_stood(serving):
    served = serving(text=PROJECT)
    rounds, each = 4, 10
    served.send("requests", [served.request(f"0-{i}") for i in range(each)])
    served.settle()
    done = threading.Event()

    def asking(path: str, key: str) -> list[int]:
        seen = []
        with httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
            while True:
                over = done.is_set()
                answer = http.get(path)
                assert answer.status_code == 200, answer.text
                found = answer.json()
                seen.append(found["rows"][0]["count"] if key == "count" else found[key])
                if over:
                    return seen

    paths = [
        ("/v1/query?q=SELECT count FROM requests", "count"),
        ("/v1/streams/requests/search?total=1", "total"),
    ]
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(asking, *paths[n % 2]) for n in range(8)]
        try:
            for number in range(1, rounds):
                served.send("requests", [served.request(f"{number}-{i}") for i in range(each)])
                served.settle()
        finally:
            done.set()
        for one in running:
            seen = one.result(PATIENCE)
            assert seen == sorted(seen)
            assert set(seen) <= set(range(each, rounds * each + 1, each))
            assert seen[-1] == rounds * each


def test_downloads_that_nobody_reads_hold_up_nobody_and_are_not_made(serving, monkeypatch):
    served = serving(text=PROJECT)
    served.send("requests", served.request("a"))
    served.settle()
    made: list[int] = []
    ended: list[int] = []
    end = threading.Event()
    listeners = 3 * AT_ONCE

    def endless(*_given: object) -> Iterator[bytes]:
        """A dataset of more than any socket holds."""
        try:
            for number in range(PIECES):
                made.append(number)
                yield bytes(64 << 10)
        finally:
            ended.append(1)
            if len(ended) == listeners:
                end.set()

    monkeypatch.setattr(window_routes, "pieces", endless)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=served.url, timeout=PATIENCE)) for _ in range(listeners)
        ]
        for client in clients:
            answer = stack.enter_context(client.stream("GET", f"/v1/streams/requests/datasets/{HOUR}"))
            assert answer.status_code == 200
        for _ in range(20):  # all of them are open, and there are fewer threads than that
            query = served.http.get("/v1/query", params={"q": "SELECT count FROM requests"})
            assert query.json()["rows"] == [{"count": 1}]
        assert not ended
        assert max(made) < PIECES - 1
    assert end.wait(PATIENCE)  # those who left are let go


def test_a_download_that_fails_midway_is_not_whole(serving, monkeypatch):
    served = serving(text=PROJECT)
    served.send("requests", served.request("a"))
    served.settle()

    def breaking(*_given: object) -> Iterator[bytes]:
        yield b"some"
        raise OSError("the disk is gone")

    monkeypatch.setattr(window_routes, "pieces", breaking)
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        served.http.get(f"/v1/streams/requests/datasets/{HOUR}")
    monkeypatch.undo()
    assert served.http.get(f"/v1/streams/requests/datasets/{HOUR}").status_code == 200
