"""The input of the cases about metrics and search: seeded events of a shop's orders as NDJSON slices.

Made once and kept under bench/work/. Nothing here is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.work import START, WORK, Slice
from tidemill.model.time import MINUTE, SECOND

TENANTS = ("acme", "globex", "initech")
REGIONS = ("eu-west", "us-east", "ap-south", "sa-east")
CHANNELS = ("web", "app", "store")
STATES = ("NEW", "PAID", "PACKED", "SENT", "DONE", "FAILED")  # an order goes through all but the last in turn
FAILED = 0.02  # share of events that say so instead
STEPS = 8  # events of one order
RARE = 10  # events with the rare coupon
SLICES = 20


@dataclass(frozen=True, slots=True)
class Orders:
    """`events` of `events / STEPS` orders over `span` microseconds, in slices by time, some a little late."""

    events: int
    span: int
    seed: int = 11

    @property
    def folder(self) -> Path:
        return WORK / f"orders-lives-{self.events}-{self.span // SECOND}"

    def slices(self) -> list[Slice]:
        folder = self.folder
        files = [folder / f"slice-{number:05d}.ndjson" for number in range(SLICES)]
        if not (folder / "done").exists():
            folder.mkdir(parents=True, exist_ok=True)
            for number, file in enumerate(files):
                with file.open("w", encoding="utf-8") as out:
                    out.writelines(self._lines(number))
            (folder / "done").touch()
        step = self.span // SLICES
        return [Slice(str(file), START + (n + 1) * step + 2 * MINUTE) for n, file in enumerate(files)]

    def _lines(self, number: int) -> Iterator[str]:
        """About 260 bytes each. Orders are heard of at random, each as far as it has come by then."""
        rows, orders = self.events // SLICES, max(1, self.events // STEPS)
        random = np.random.default_rng([self.seed, number])
        step = self.span // SLICES
        late = np.where(random.random(rows) < 0.05, 2, 0)  # seconds behind
        at = START // 1000 + (number * step // 1000) + np.sort(random.integers(0, step // 1000, rows))
        at = np.maximum(at - late * 1000, START // 1000)
        rare = set(random.choice(rows, 1).tolist()) if number % (SLICES // RARE) == 0 else set()
        order = random.integers(0, orders, rows)
        life = (at * 1000 - START) / self.span + order * 0.6180339887498949  # each began at another time
        state = (life % 1.0 * (len(STATES) - 1)).astype(np.int64)
        columns = (
            order,
            np.where(random.random(rows) < FAILED, len(STATES) - 1, state),
            random.integers(0, len(REGIONS), rows),
            random.integers(0, len(CHANNELS), rows),
            random.integers(100, 500_000, rows),
            (random.lognormal(3.5, 1.0, rows) * 1000).astype(np.int64),
            random.integers(-50, 5_000, rows),
            random.integers(0, 2**62, rows),
            at,
        )
        table = zip(*(column.tolist() for column in columns), strict=True)
        for row, (order, state, region, channel, cents, took, stock, some, ts) in enumerate(table):
            coupon = ',"coupon":"golden-ticket"' if row in rare else ""
            yield (
                f'{{"event_id":"{number:02x}{some:016x}{row:06x}","ts":{ts},"tenant":"{TENANTS[order % 3]}",'
                f'"order_id":"o-{order:08d}","status":"{STATES[state]}","region":"{REGIONS[region]}",'
                f'"channel":"{CHANNELS[channel]}","amount":{cents / 100},"took_ms":{took / 1000},'
                f'"stock":{stock},"customer":{{"plan":"pro","tags":["a","b"]{coupon}}}}}\n'
            )
