"""Events of the outbox as CloudEvents 1.0 in structured JSON: equal events are equal bytes.

Nothing is sent or read here: the data of an event were fixed when it was entered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidemill.model.time import format_instant
from tidemill.model.windows import OutboxEvent

CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"


def cloud_event(event: OutboxEvent, source: str, warehouse: Path | None = None) -> dict[str, object]:
    """The event in its envelope. With the warehouse, a location in it is also given as an absolute `uri`:
    that is not in the outbox, so that a warehouse can be moved."""
    data = dict(event.data)
    location = data.get("location")
    if warehouse is not None and isinstance(location, str):
        data["uri"] = (warehouse.absolute() / location).as_uri()
    start = data.get("start")
    return {
        "specversion": "1.0",
        "id": event.id,
        "source": source,
        "type": event.type,
        "subject": f"{event.stream}/{start}" if start is not None else event.stream,
        "time": format_instant(event.time),
        "datacontenttype": "application/json",
        "data": data,
    }


def encoded(cloud: Mapping[str, object]) -> bytes:
    """One line of JSON without a line end. Keys are sorted, since a state need not keep their order."""
    text = json.dumps(cloud, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # half of a surrogate pair becomes the escape \udxxx, which is also how JSON writes it
    return text.encode("utf-8", "backslashreplace")
