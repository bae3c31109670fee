"""The input of the sparse cases: seeded visits to a few sites as NDJSON slices, spread thinly over months.

Made once and kept under bench/work/. Nothing here is timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from bench.work import START, WORK
from tidemill.model.time import DAY, HOUR, MINUTE, Interval

SITES = 20
KINDS = ("walk_in", "booked", "emergency")
MONTHS = 12
LATE_MONTH = 3
NOTES = ("", "", "", ',"note":"waited outside"', ',"note":"came back the same day"')


@dataclass(frozen=True, slots=True)
class Thin:
    """A slice that says which time it covers."""

    file: str
    bounds: Interval
    arrival: int  # microseconds
    rows: int
    bytes: int


def month(number: int) -> Interval:
    """Months from that of START on, by the calendar."""
    edges = []
    for place in (number, number + 1):
        years, of_year = divmod(place, 12)
        edges.append(datetime(2024 + years, 1 + of_year, 1, tzinfo=UTC))
    return Interval(*(int(edge.timestamp()) * 1_000_000 for edge in edges))


def year(events: int) -> list[Thin]:
    """A year in slices of a month. Busy days have many times the visits of quiet ones, nights hardly any."""
    folder = WORK / f"visits-year-{events}"
    random = np.random.default_rng(19)
    spans = [month(number) for number in range(MONTHS)]
    days = (spans[-1].end - START) // DAY
    weight = random.gamma(1.5, 1.0, days) * (1 + 0.5 * np.sin(np.arange(days) / 58))
    hours = np.repeat(weight, 24) * np.tile(np.bincount(np.arange(7, 20), minlength=24) * 9 + 1, days)
    at = START // HOUR * HOUR + np.sort(random.choice(days * 24, events, p=hours / hours.sum())) * HOUR
    times = np.sort(at + random.integers(0, HOUR // 1000, events) * 1000)
    return [
        _slice(folder, number, times[(times >= span.start) & (times < span.end)], span, span.end + HOUR)
        for number, span in enumerate(spans)
    ]


def late_month(events: int) -> Thin:
    """A month that is there already and has more visits than were heard of."""
    span = month(LATE_MONTH)
    times = np.random.default_rng(23).integers(span.start // 1000, span.end // 1000, events) * 1000
    arrival = month(MONTHS).start + DAY
    return _slice(WORK / f"visits-late-month-{events}", 100, np.sort(times), span, arrival)


def hourly(events: int) -> list[Thin]:
    """One event an hour, in one slice."""
    times = START + np.arange(events) * HOUR + 17 * MINUTE
    span = Interval(START, START + events * HOUR)
    return [_slice(WORK / f"visits-hourly-{events}", 200, times, span, span.end + MINUTE)]


def tiny_slices(slices: int, rows: int) -> list[Thin]:
    """Slices of a few events, one every five minutes."""
    folder, step = WORK / f"visits-tiny-{slices}-{rows}", 5 * MINUTE
    found = []
    for number in range(slices):
        span = Interval(START + number * step, START + (number + 1) * step)
        times = span.start + np.arange(rows) * (step // rows)
        found.append(_slice(folder, 1_000 + number, times, span, span.end + MINUTE))
    return found


def one_late(number: int, at: int, arrival: int) -> Thin:
    """One event of long ago; each number has its own."""
    span = Interval(at, at + MINUTE)
    return _slice(WORK / "visits-one", 100_000 + number, np.array([at]), span, arrival)


def _slice(folder: Path, seed: int, times: np.ndarray, span: Interval, arrival: int) -> Thin:
    """The slice, which is written unless it is there."""
    file = folder / f"{seed:06d}.ndjson"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        temporary.write_text("".join(_lines(seed, times)), encoding="utf-8")
        temporary.replace(file)
    return Thin(str(file), span, arrival, int(times.size), file.stat().st_size)


def _lines(seed: int, times: np.ndarray) -> list[str]:
    """About 180 bytes each."""
    random = np.random.default_rng([29, seed])
    rows = times.size
    columns = (
        times // 1000,
        random.integers(0, SITES, rows),
        random.integers(0, len(KINDS), rows),
        random.integers(100, 90_000, rows),
        random.gamma(2.0, 12.0, rows).round(1),
        random.integers(0, len(NOTES), rows),
        random.integers(0, 2**62, rows),
    )
    table = zip(*(column.tolist() for column in columns), strict=True)
    return [
        f'{{"visit_id":"{seed:06x}-{number:06x}-{some:016x}","ts":{ts},"site":"site-{site:02d}",'
        f'"kind":"{KINDS[kind]}","fee":{fee / 100:.2f},"waited":{waited},"desk":{some % 7}{NOTES[note]}}}\n'
        for number, (ts, site, kind, fee, waited, note, some) in enumerate(table)
    ]
