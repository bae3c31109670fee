"""The input of the cases about windows: seeded readings of weather stations as NDJSON slices with bounds.

Made once and kept under bench/work/, but for the largest. Nothing here is timed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.work import START, WORK
from tidemill.model.time import DAY, HOUR, MINUTE, Interval

NETWORKS = ("alpine", "coast", "inland", "islands", "north")  # the tenants
STATIONS = 400
PER_DAY = 24
SMALL_PER_DAY = 100
QUALITIES = ("good", "good", "good", "good", "good", "suspect", "estimated", "missing")
NOTES = ("", "", "", "", "", "", "", ',"note":"sensor swapped"', ',"note":"Böen über 20 m/s"')


@dataclass(frozen=True, slots=True)
class Bounded:
    """A slice that says which time it covers."""

    file: str
    bounds: Interval
    arrival: int  # microseconds
    rows: int


def lines(seed: int, rows: int, span: Interval) -> Iterator[str]:
    """About 230 bytes each; times spread evenly over the span, ids as no other slice has them."""
    random = np.random.default_rng(seed)
    first, last = span.start // 1000, span.end // 1000
    columns = (
        random.integers(first, last, rows),
        random.integers(0, STATIONS, rows),
        random.integers(0, len(NETWORKS), rows),
        random.integers(-200, 400, rows),
        random.integers(5, 101, rows),
        random.integers(95_000, 104_000, rows),
        random.gamma(2.0, 2.5, rows).round(3),
        random.integers(0, 360, rows),
        random.integers(0, 90, rows),
        random.integers(0, len(QUALITIES), rows),
        random.integers(0, len(NOTES), rows),
        random.integers(0, 2**62, rows),
    )
    table = zip(*(column.tolist() for column in columns), strict=True)
    for at, station, network, heat, humid, press, wind, way, rain, quality, note, some in table:
        yield (
            f'{{"reading_id":"{seed:04x}-{some:016x}","at":{at},"network":"{NETWORKS[network]}",'
            f'"station":"st-{station:04d}","temperature":{heat / 10},"humidity":{humid},'
            f'"pressure":{press / 100},"wind_speed":{wind},"wind_direction":{way},"rain":{rain / 10},'
            f'"quality":"{QUALITIES[quality]}","online":{"true" if way else "false"}{NOTES[note]}}}\n'
        )


def _slice(folder: Path, seed: int, rows: int, span: Interval, arrival: int) -> Bounded:
    """The slice, which is written unless it is there."""
    file = folder / f"{seed:04d}-{rows}.ndjson"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as out:
            out.writelines(lines(seed, rows, span))
        temporary.replace(file)
    return Bounded(str(file), span, arrival, rows)


def days(windows: int, rows: int) -> list[Bounded]:
    """Hourly windows of `rows` readings each, in slices of a day that arrive when it is over."""
    folder = WORK / f"readings-{windows}-{rows}"
    found = []
    for number, first in enumerate(range(0, windows, PER_DAY)):
        hours = min(PER_DAY, windows - first)
        span = Interval(START + first * HOUR, START + (first + hours) * HOUR)
        found.append(_slice(folder, number, hours * rows, span, span.end + MINUTE))
    return found


def late(number: int, first_hour: int, rows: int, arrival: int, hours: int = 3) -> Bounded:
    """New readings of a few hours of long ago; each number has its own."""
    span = Interval(START + first_hour * HOUR, START + (first_hour + hours) * HOUR)
    return _slice(WORK / f"readings-late-{first_hour}", 5_000 + number, rows, span, arrival)


def fresh(number: int, hour: int, rows: int, arrival: int) -> Bounded:
    """A few readings of one hour, that one counted from 1970."""
    span = Interval(hour * HOUR, (hour + 1) * HOUR)
    return _slice(WORK / f"readings-fresh-{hour}", 7_000 + number, rows, span, arrival)


def one_hour(rows: int, slices: int = 10) -> list[Bounded]:
    """One window, in slices that each cover all of it."""
    span, folder = Interval(START, START + HOUR), WORK / f"readings-hour-{rows}"
    return [_slice(folder, 9_000 + n, rows // slices, span, span.end + MINUTE) for n in range(slices)]


def small(slices: int, rows: int) -> list[Bounded]:
    """Slices of a hundredth of a day, one after the other."""
    folder, span = WORK / f"readings-small-{slices}-{rows}", DAY // SMALL_PER_DAY
    spans = [Interval(START + n * span, START + (n + 1) * span) for n in range(slices)]
    return [_slice(folder, n, rows, one, one.end + MINUTE) for n, one in enumerate(spans)]


def discard(slices: list[Bounded]) -> None:
    shutil.rmtree(Path(slices[0].file).parent)
