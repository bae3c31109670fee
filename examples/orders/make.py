"""Writes the slices of this example into data/: what happened to the orders of a shop, yesterday or on --day.

Needs nothing but Python, and gives the same bytes for the same day. Some events come twice, one comes back
with another amount, and some come hours late.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

PRICES = {"shoes": 5990, "socks": 750, "hats": 2500}  # in cents
ORDERS = {
    "o-1": "web   de shoes socks",
    "o-2": "app   de hats",
    "o-3": "web   fr shoes gift",
    "o-4": "phone de socks",
    "o-5": "web   us hats shoes gift",
    "o-6": "app   fr socks",
    "o-7": "web   it hats express",
    "o-8": "app   de socks hats",
    "o-9": "web   de socks",
}
# time, order, status, how long that took, a note; or time, "stock", the article, how many there are
SLICES = {
    "orders-1": """
        10:00:00 stock shoes 20
        10:00:00 stock socks 50
        10:02:11 o-1 PLACED    180
        10:02:40 o-1 PAID      950
        10:05:03 o-2 PLACED     95
        10:05:30 o-2 REFUSED  1210 card expired
        10:20:44 o-3 PLACED    210
        10:09:12 o-2 PAID      870
        10:21:02 o-3 PAID      640
        10:24:00 stock shoes 18
        10:31:15 o-4 PLACED    120
        10:40:00 o-4 CANCELLED  60
        10:48:20 o-1 SENT      310
    """,
    "orders-2": """
        11:03:02 o-5 PLACED    230
        11:03:41 o-5 PAID     1040
        11:10:00 o-2 SENT      290
        11:15:30 o-5 CANCELLED  75
        11:40:10 o-6 PLACED    105
        11:52:00 o-7 PLACED    190
        11:52:33 o-7 REFUSED  2400 card refused by the bank
        11:58:00 stock socks 48
    """,
    # Two of the slice before once more, and one with another amount.
    "orders-3": """
        11:52:00 o-7 PLACED    190
        11:58:00 stock socks 48
        11:40:10 o-6 PLACED    105 a mistake
        12:05:00 stock shoes 17
        12:10:25 o-3 SENT      350
        12:12:00 o-8 PLACED    100
        12:12:21 o-8 PAID      910
        12:20:00 o-6 SENT      280
        12:25:00 o-9 PLACED    115
        12:30:40 o-7 CANCELLED  80
    """,
    # What nobody knew: o-6 was paid before it was sent, and shoes were counted once more.
    "late": """
        11:45:00 o-6 PAID      760
        11:50:00 stock shoes 16
    """,
}


def events(name: str, day: date) -> Iterable[dict[str, object]]:
    """The events of one slice, in the order in which they came."""
    for line in SLICES[name].strip().splitlines():
        time, what, which, number, *note = line.split()
        event: dict[str, object] = {"id": f"{what}-{which}-{time}", "at": f"{day}T{time}Z"}
        if what == "stock":
            yield event | {"kind": "stock", "sku": which, "stock": int(number)}
            continue
        channel, country, *words = ORDERS[what].split()
        cents = sum(PRICES[word] for word in words if word in PRICES) + (100 if "mistake" in note else 0)
        event |= {"kind": "order", "order": what, "status": which, "channel": channel}
        event |= {"amount": cents / 100, "took_ms": int(number), "customer": {"country": country}}
        event["items"] = [{"sku": word, "price": PRICES[word] / 100} for word in words if word in PRICES]
        event["tags"] = [word for word in words if word not in PRICES]
        yield event | ({"note": " ".join(note)} if note else {})


def lines(name: str, day: date) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events(name, day)).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the slices of this example.")
    parser.add_argument("--to", type=Path, default=Path("data"), metavar="FOLDER")
    parser.add_argument("--day", type=date.fromisoformat, metavar="DATE", help="yesterday when left out")
    given = parser.parse_args()
    day = given.day or (datetime.now(UTC) - timedelta(days=1)).date()
    given.to.mkdir(parents=True, exist_ok=True)
    for name in SLICES:
        (given.to / f"{name}.ndjson").write_bytes(lines(name, day))
    sys.stdout.write(f"wrote {len(SLICES)} slices to {given.to}\n")


if __name__ == "__main__":
    main()
