"""Events as CloudEvents 1.0: the envelope, and the same bytes every time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.pipeline.events.conftest import event_of

from tidemill.pipeline.events import cloud_event, encoded

EVENT = event_of(13)


def test_the_envelope_has_what_cloudevents_asks_for() -> None:
    cloud = cloud_event(EVENT, "https://example.com/mill")
    assert cloud == {
        "specversion": "1.0",
        "id": EVENT.id,
        "source": "https://example.com/mill",
        "type": "tidemill.dataset.available",
        "subject": "weather/2024-01-15T13:00:00Z",
        "time": "2024-01-15T12:00:00Z",
        "datacontenttype": "application/json",
        "data": EVENT.data,
    }
    assert json.loads(encoded(cloud)) == cloud


def test_with_the_warehouse_the_location_is_an_address_too() -> None:
    data = cloud_event(EVENT, "test", Path("/data/my mill"))["data"]
    assert data == {
        **EVENT.data,
        "uri": "file:///data/my%20mill/datasets/weather/aggregation/13_1h/r1.arrow",
    }


def test_the_bytes_do_not_depend_on_the_order_of_keys() -> None:
    turned = replace(EVENT, data=dict(reversed(EVENT.data.items())))
    assert list(turned.data) != list(EVENT.data)
    assert encoded(cloud_event(turned, "test")) == encoded(cloud_event(EVENT, "test"))


def test_it_is_one_line_of_utf8() -> None:
    body = encoded({"data": "Föhn\n\ud800"})
    assert body == '{"data":"Föhn\\n\\ud800"}'.encode()
    assert json.loads(body) == {"data": "Föhn\n\ud800"}
