"""Writes the feed of this example into data/: what a collector of candles leaves behind, request by request.

Needs nothing but Python and no network, and gives the same bytes each time. A manifest beside the responses
says how far each request has come; `--later` is the same folder a day on, when all that can be fetched was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

SOURCE, KIND, INTERVAL, LIMIT = "binance", "klines", "1m", 100
MINUTE = 60_000  # milliseconds, as all times of the feed
SLICE = LIMIT * MINUTE
START = int(datetime(2024, 1, 15, tzinfo=UTC).timestamp()) * 1000
SLICES = 15  # 25 hours: the last one is under way
SYMBOLS = {"BTCUSDT": 42_000_00, "ETHUSDT": 2_500_00, "SOLUSDT": 94_00}  # price in cents
LISTED = {"SOLUSDT": START + 5 * SLICE}  # before that there is nothing to fetch
TROUBLE = {("ETHUSDT", 3): "failed", ("ETHUSDT", 4): "missing", ("BTCUSDT", 6): "failed"}


def candles(symbol: str, start: int, rows: int = LIMIT) -> list[list[object]]:
    """What the exchange answers: arrays, with prices and volumes as strings."""
    dice = random.Random(f"{symbol} {start}")
    price = SYMBOLS[symbol] + dice.randint(-500, 500)
    answer: list[list[object]] = []
    for row in range(rows):
        at = start + row * MINUTE
        close = max(1, price + dice.randint(-300, 300))
        high, low = max(price, close) + dice.randint(0, 99), max(1, min(price, close) - dice.randint(0, 99))
        volume, trades = dice.randint(1, 9_999_999), dice.randint(1, 2_000)
        bought = dice.randint(0, volume)
        answer.append([
            at, text(price), text(high), text(low), text(close), text(volume, 5), at + MINUTE - 1,
            text(volume * price, 7), trades, text(bought, 5), text(bought * price, 7), "0",
        ])  # fmt: skip
        price = close
    return answer


def text(units: int, digits: int = 2) -> str:
    """A decimal number without rounding."""
    whole, rest = divmod(units, 10**digits)
    return f"{whole}.{rest:0{digits}d}"


def hash_of(symbol: str, start: int) -> str:
    """Names the request, before there is an answer."""
    return hashlib.sha256(f"{SOURCE} {KIND} {symbol} {INTERVAL} {LIMIT} {start}".encode()).hexdigest()[:16]


def slices(symbol: str, folder: Path, *, later: bool) -> list[dict[str, object]]:
    """The entries of a manifest; the responses that there are, are written."""
    entries: list[dict[str, object]] = []
    for number in range(SLICES):
        start = START + number * SLICE
        name = hash_of(symbol, start)
        entry: dict[str, object] = {"hash": name, "start_ms": start, "end_ms": start + SLICE}
        trouble = None if later else TROUBLE.get((symbol, number))
        if start < LISTED.get(symbol, START):
            status, rows = "empty", 0
        elif trouble is not None:
            status, rows = trouble, 0
        elif number == SLICES - 1 and not later:
            status, rows = "partial", 40
        else:
            status, rows = "ok", LIMIT
        entry["status"] = status
        if status == "failed":
            entry["error"] = "HTTP 503"
        if rows:
            entry["response"] = f"responses/{name}.json"
            content = json.dumps(candles(symbol, start, rows), separators=(",", ":"))
            (folder / f"responses/{name}.json").write_text(content, encoding="utf-8")
        entries.append(entry)
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the feed of this example.")
    parser.add_argument("--later", action="store_true", help="what was missing has been fetched")
    parser.add_argument("--to", type=Path, default=Path("data"), metavar="FOLDER")
    given = parser.parse_args()
    found = Counter[str]()
    for symbol in SYMBOLS:
        folder = given.to / SOURCE / KIND / "raw" / symbol / INTERVAL / f"limit={LIMIT}"
        (folder / "responses").mkdir(parents=True, exist_ok=True)
        entries = slices(symbol, folder, later=given.later)
        found.update(str(entry["status"]) for entry in entries)
        dataset = {"source": SOURCE, "kind": KIND, "symbol": symbol, "interval": INTERVAL, "limit": LIMIT}
        whole = {"dataset": dataset, "slices": entries}
        fresh = folder / "manifest.json.new"  # the responses first, then in one step what tells of them
        fresh.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        fresh.replace(folder / "manifest.json")
    told = ", ".join(f"{count} {status}" for status, count in sorted(found.items()))
    sys.stdout.write(f"wrote {found.total()} slices to {given.to}: {told}\n")


if __name__ == "__main__":
    main()
