"""Writes the slices of this example into data/: the clicks of a shop, from its web site and from its app.

Needs nothing but Python, and always gives the same bytes. Clicks come out of order, and some come late: the
app keeps them while the phone is offline.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

DAY = "2024-01-15"
SLICES = {
    "web-1": """
        10:00:05 ann home  view  120
        10:00:20 ann shoes view   80
        10:00:12 bob home  view  200
        10:00:40 ann shoes cart   95 59.90
        10:01:10 bob hats  view   60
        10:00:58 ann shoes paid  310 59.90
    """,
    "app-1": """
        10:00:42 cem home  view  450
        10:01:05 cem hats  cart  380 25.00
        10:00:45 dia home  view  270
        10:01:15 dia shoes view  240
    """,
    "web-2": """
        10:01:55 bob hats  cart   70 25.00
        10:02:04 ann socks view  105
        10:02:12 bob hats  paid  290 25.00
        10:01:24 bob shoes view   85
        10:02:30 ann socks cart  100  7.50
    """,
    "app-2": """
        10:01:30 cem hats  left  410 25.00
        10:02:20 dia shoes cart  230 59.90
        10:02:45 dia shoes paid  520 59.90
        10:01:50 cem home  view  430
    """,
    "web-3": """
        10:03:20 bob home  view   75
        10:01:35 bob shoes view  140
        10:04:40 ann home  view  110
    """,
    "app-3": """
        10:03:05 dia socks view  250
        10:04:30 cem home  view  440
    """,
    # What the phone of ann kept for itself.
    "app-offline": """
        10:01:20 ann hats  view  390
        10:01:41 ann socks view  400
    """,
}


def clicks(name: str) -> Iterable[dict[str, object]]:
    """The clicks of one slice, in the order in which they came."""
    for number, line in enumerate(SLICES[name].strip().splitlines(), 1):
        time, user, page, action, ms, *price = line.split()
        click: dict[str, object] = {"id": f"{name}-{number}", "at": f"{DAY}T{time}Z", "user": user}
        click |= {"page": page, "action": action, "ms": int(ms)}
        if price:
            click["price"] = float(price[0])
        yield click


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the slices of this example.")
    parser.add_argument("--to", type=Path, default=Path("data"), metavar="FOLDER")
    to = parser.parse_args().to
    to.mkdir(parents=True, exist_ok=True)
    for name in SLICES:
        (to / f"{name}.ndjson").write_text("".join(json.dumps(click) + "\n" for click in clicks(name)))
    sys.stdout.write(f"wrote {len(SLICES)} slices to {to}\n")


if __name__ == "__main__":
    main()
