"""The input of the cases about streaming windows: the same seeded sales, in four degrees of disorder.

A share of the rows arrives up to the tolerance later than they happened, none of them beyond it: so none is
late, and a batch job that knows no watermark has the same answer. Nothing here is timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.work import START, WORK
from tidemill.model.time import SECOND

PER_ROW = 3_600  # microseconds: 2,000,000 rows are two hours
TOLERANCE = 30 * SECOND
SLICES = 20
KEYS = 1_000
REGIONS = 20
SEED = 41
DISORDER = (0, 1, 10, 50)  # per cent


@dataclass(frozen=True, slots=True)
class Arrived:
    """A slice, and when it came."""

    file: str
    arrival: int  # microseconds


@dataclass(frozen=True)
class Sales:
    """Columns in order of event time; amounts in cents."""

    rows: int

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(SEED)
        at = np.sort(random.integers(START // 1000, (START + PER_ROW * self.rows) // 1000, self.rows))
        return {
            "ts": at,
            # A tenth of the rows is of one key; rare ones fall silent for longer than a session's gap.
            "key": (KEYS * random.random(self.rows) ** 3).astype(np.int64),
            "region": random.integers(0, REGIONS, self.rows),
            "value": random.integers(0, 100_000, self.rows),
            "amount": random.integers(1, 1_000_000, self.rows),
        }

    def arrivals(self, disorder: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers in the order in which they arrive, and when each does, in milliseconds.

        A row that is displaced comes less than the tolerance after it happened: everything before it came
        by then, so that no watermark has reached it."""
        random = np.random.default_rng([SEED, disorder])
        displaced = random.random(self.rows) * 100 < disorder
        delay = random.integers(1, TOLERANCE // 1000, self.rows) * displaced
        arrival = self.columns["ts"] + delay
        order = np.argsort(arrival, kind="stable")
        return order, arrival[order]

    def table(self) -> Path:
        """The rows as Parquet, for whoever works out the truth."""
        path = WORK / f"sales-{self.rows}" / "rows.parquet"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({name: pa.array(values) for name, values in self.columns.items()}), path)
        return path

    def slices(self, disorder: int, count: int = SLICES) -> list[Arrived]:
        """In order of arrival, as many rows in each; written unless they are there."""
        folder = WORK / f"sales-{self.rows}" / f"disorder-{disorder}-{count}"
        order, arrival = self.arrivals(disorder)
        found = []
        for number, rows in enumerate(np.array_split(np.arange(self.rows), count)):
            file = folder / f"{number:04d}.ndjson"
            if not file.exists():
                self._write(file, order[rows])
            found.append(Arrived(str(file), int(arrival[rows[-1]]) * 1000 + SECOND))
        return found

    def _write(self, file: Path, rows: np.ndarray) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        taken = [rows.tolist(), *(self.columns[name][rows].tolist() for name in self.columns)]
        with temporary.open("w", encoding="utf-8") as out:
            for number, ts, key, region, value, amount in zip(*taken, strict=True):
                out.write(
                    f'{{"id":"s-{number:08d}","ts":{ts},"key":"k-{key:04d}","region":"region-{region:02d}",'
                    f'"value":{value},"amount":{amount // 100}.{amount % 100:02d}}}\n'
                )
        temporary.replace(file)
