"""What the clients read from a real server: answers, pages, its status, and datasets as they come out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from tidemill.client import AsyncClient, Client, ClientError, Retries

HOURS = ("10", "11")


@pytest.fixture
def client(served) -> Iterator[Client]:
    with Client(served.url, retries=Retries(total=0)) as client:
        yield client


def land_hour(served, hour: str) -> None:
    """An hour of `requests` that is whole: its dataset is built."""
    line = {**served.request(f"h{hour}"), "ts": f"2026-01-05T{hour}:30:00Z"}
    day = "2026-01-05T"
    end = f"{day}{int(hour) + 1}:00:00Z"
    served.mill.land(
        "requests", json.dumps(line).encode(), start=f"{day}{hour}:00:00Z", end=end, format="ndjson"
    )
    served.tick()


def test_a_query_is_answered_with_its_rows_and_how_far_to_trust_them(served, client):
    client.send("requests", [served.request(f"e{n}", latency_ms=0.125) for n in range(3)])
    served.settle()
    text = "BETWEEN 2026-01-05T10:00:00Z AND 2026-01-05T11:00:00Z GROUP BY api"
    answer = client.query(f"SELECT count, sum(latency_ms) AS total FROM requests {text}", tenant="acme")
    (row,) = answer["rows"]
    assert (row["api"], row["count"], str(row["total"])) == ("/cart", 3, "0.375")
    assert answer["metric"] == "hits"
    with pytest.raises(ClientError) as wrong:
        client.query("SELECT")
    assert (wrong.value.status, wrong.value.code) == (400, "query")


def test_a_search_reads_every_page(served, client):
    client.send("requests", [served.request(f"e{n:02}", n) for n in range(25)])
    served.settle()
    found = [row["event_id"] for row in client.search("requests", 'WHERE api = "/cart"', limit=10)]
    assert sorted(found) == [f"e{n:02}" for n in range(25)]
    assert list(client.search("requests", 'WHERE api = "/nothing"')) == []


def test_the_status_has_the_gateway_and_the_streams(served, client):
    assert served.gateway.name in json.dumps(client.status(), default=str)


def test_datasets_are_heard_of_in_order_and_again_from_any_place(served, client):
    for hour in HOURS:
        land_hour(served, hour)
    heard = client.events(after=0, stream="requests")
    first, second = next(heard), next(heard)
    heard.close()
    assert [one.type for one in (first, second)] == ["tidemill.dataset.available"] * 2
    assert [one.event["data"]["start"][11:13] for one in (first, second)] == list(HOURS)
    again = client.events(after=first.id)
    assert next(again) == second
    again.close()


def test_the_async_client_hears_what_comes_out_while_it_listens(served):
    async def listen() -> list[str]:
        async with AsyncClient(served.url) as client:
            heard: list[str] = []
            async for one in client.events(after=0):
                heard.append(one.event["data"]["start"][11:13])  # type: ignore[index]
                if len(heard) == len(HOURS):
                    break
                await asyncio.to_thread(land_hour, served, HOURS[len(heard)])
            return heard

    land_hour(served, HOURS[0])
    assert asyncio.run(listen()) == list(HOURS)
