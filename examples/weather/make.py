"""Writes the slices of this example into data/: a day of the past, what came late of it, and the last hours.

Needs nothing but Python, and gives the same bytes for the same `--now`. Each slice is a file of observations
beside the command that says what it covers; a command alone says that there was nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

STATIONS = {"airport": 31, "harbour": 48, "summit": -52}  # tenths of a degree at night
EVERY = timedelta(minutes=5)
HOUR = timedelta(hours=1)
DAY = datetime(2024, 1, 15, tzinfo=UTC)  # the one in the past
DATASET = {
    "name": "weather",
    "aggregation_span": "PT1H",
    "subject_to_change_window": "PT6H",
    "description": "Ground weather station observations",
    "source_links": [],
    "keywords": ["weather", "temperature"],
}


def observations(start: datetime, end: datetime) -> Iterator[dict[str, object]]:
    """What the stations measured in [start, end). The summit has no hygrometer."""
    at = start
    while at < end:
        minute = at.hour * 60 + at.minute
        warmth = max(0, 60 - abs(minute - 14 * 60) // 8)
        for station, night in STATIONS.items():
            seen: dict[str, object] = {
                "station": station,
                "at": text(at),
                "temperature": (night + warmth) / 10,
                "wind": (minute * 7 + night) % 89 / 10,
            }
            if station != "summit":
                seen["humidity"] = 92 - warmth // 2
            yield seen
        at += EVERY


def lines(start: datetime, end: datetime) -> bytes:
    """A slice as it comes from the collector."""
    return b"".join(json.dumps(seen).encode() + b"\n" for seen in observations(start, end))


def text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def write(folder: Path, start: datetime, end: datetime, *, empty: bool = False, dated: bool = False) -> None:
    """One slice: what the stations measured (nothing, when it is `empty`), and its command."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{start:%H%M}-{end:%H%M}"
    command: dict[str, object] = {"id": f"{start:%Y%m%d}-{name}", "metadata": {"dataset": DATASET}}
    if dated:  # names are in order of time past midnight, too
        name = f"{start:%Y%m%d}-{name}"
    if not empty:
        (folder / f"{name}.ndjson").write_bytes(lines(start, end))
        command["payload_location"] = f"{name}.ndjson"
    command |= {"start_time": text(start), "end_time": text(end)}
    (folder / f"{name}.json").write_text(json.dumps(command, indent=2) + "\n", encoding="utf-8")


def past(folder: Path) -> None:
    """The day in the past: an hour without observations, one with a gap, and one that breaks off."""
    for hour in range(24):
        start = DAY + hour * HOUR
        if hour == 13:
            write(folder, start, start + timedelta(minutes=15))
            write(folder, start + timedelta(minutes=30), start + HOUR)
        elif hour == 23:
            write(folder, start, start + timedelta(minutes=40))
        else:
            write(folder, start, start + HOUR, empty=hour == 3)


def instant(given: str) -> datetime:
    at = datetime.fromisoformat(given)
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the slices of this example.")
    parser.add_argument("--now", type=instant, default=datetime.now(UTC), metavar="T")
    parser.add_argument("--to", type=Path, default=Path("data"), metavar="FOLDER")
    given = parser.parse_args()
    now, to = given.now, given.to
    past(to / f"{DAY:%Y-%m-%d}")
    gap = DAY + timedelta(hours=13, minutes=15)
    write(to / "late", gap, gap + timedelta(minutes=15))
    hour = now.replace(minute=0, second=0, microsecond=0)
    for back in (3, 2, 1):
        write(to / "now", hour - back * HOUR, hour - (back - 1) * HOUR, dated=True)
    sys.stdout.write(f"wrote {len(list(to.rglob('*.json')))} slices to {to}\n")


if __name__ == "__main__":
    main()
