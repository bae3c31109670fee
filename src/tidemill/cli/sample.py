"""The sample data of `tidemill init`: a few hundred web requests of the last hour.

It is the same on every machine apart from the time, which is relative to `now` so that the skew check passes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidemill.model.time import MILLISECOND, MINUTE, SECOND, align

TENANTS: Final = ("acme", "globex", "initech")
APIS: Final = ("/a", "/b", "/search", "/login")
REGIONS: Final = ("eu", "us", "ap")
STATUSES: Final = (200, 200, 200, 200, 201, 404, 500)
FAR_FUTURE: Final = 32_503_680_000_000  # the year 3000, in milliseconds

Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class SampleFile:
    name: str
    content: str
    about: str


def sample_files(now: int) -> list[SampleFile]:
    """Return two slices in order and a late one; `now` is when they are made."""
    dice = random.Random(20_240_115)
    hour = align(now, MINUTE) - 60 * MINUTE
    first = list(_events(dice, "a", 200, hour, 30 * MINUTE))
    second = list(_events(dice, "b", 180, hour + 30 * MINUTE, 25 * MINUTE))
    late = list(_events(dice, "c", 40, hour + 5 * MINUTE, 10 * MINUTE))
    lines = [_line(event) for event in second]
    for at, bad in (
        (20, _broken(second)),
        (90, [_line(first[7])]),
        (140, [_line(second[3] | {"status": 503})]),
    ):
        lines[at:at] = bad
    return [
        SampleFile("requests-1.ndjson", _text(_line(event) for event in first), "200 requests"),
        SampleFile(
            "requests-2.ndjson",
            _text(iter(lines)),
            "180 more, with 5 bad lines, a replay and a conflict among them",
        ),
        SampleFile("requests-late.ndjson", _text(_line(event) for event in late), "40 that come late"),
    ]


def _events(dice: random.Random, series: str, count: int, start: int, span: int) -> Iterator[Event]:
    for number in range(count):
        at = start + span * number // count + dice.randrange(SECOND)
        yield {
            "event_id": f"{series}-{number:04d}",
            "event_type": "request",
            "ts": at // MILLISECOND,
            "tenant": dice.choice(TENANTS),
            "api": dice.choice(APIS),
            "region": dice.choice(REGIONS),
            "status": dice.choice(STATUSES),
            "latency_ms": dice.randrange(1_000, 400_000) / 1000,
        }


def _broken(events: list[Event]) -> list[str]:
    """Return one line for each of five ways to be rejected."""
    whole = [event | {"event_id": f"bad-{number}"} for number, event in enumerate(events[:5])]
    return [
        _line(whole[0])[:57],
        _line(whole[1] | {"event_type": "heartbeat"}),
        _line(whole[2] | {"status": "ok"}),
        _line(whole[3] | {"ts": FAR_FUTURE}),
        _line({key: value for key, value in whole[4].items() if key != "tenant"}),
    ]


def _line(event: Event) -> str:
    return json.dumps(event, separators=(",", ":"))


def _text(lines: Iterator[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
