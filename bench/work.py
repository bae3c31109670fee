"""The input of the benchmark: seeded feeds as NDJSON slices, made once and kept under bench/work/.

Nothing here is timed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemill.model.time import DAY, parse_instant
from tidemill.testing.feed import Manifest, RequestFeed, SliceTruth

WORK = Path(os.environ.get("TIDEMILL_BENCH_WORK", Path(__file__).resolve().parent / "work")).resolve()
START = parse_instant("2024-01-01T00:00:00Z")
LATE_HOURS = range(2, 8)  # of the first day


@dataclass(frozen=True, slots=True)
class Slice:
    file: str
    arrival: int  # microseconds


@dataclass(frozen=True, slots=True)
class Work:
    """Slices in order of arrival, and what must become of the records of each."""

    folder: Path
    slices: tuple[Slice, ...]
    truth: tuple[Mapping[str, int], ...]
    records: int

    def job(self, mode: str) -> str:
        """What a peer is told."""
        slices = [{"file": each.file, "arrival": each.arrival} for each in self.slices]
        return json.dumps({"mode": mode, "slices": slices})

    def discard(self) -> None:
        shutil.rmtree(self.folder)


def _feed(events: int, tenants: int, batch: int) -> RequestFeed:
    """Batch after batch the feed moves on by a day."""
    return RequestFeed(seed=7 + batch, events=events, tenants=tenants, start=START + batch * DAY, span=DAY)


def _work(folder: Path, truths: tuple[SliceTruth, ...]) -> Work:
    def outcomes(each: SliceTruth) -> dict[str, int]:
        counts = each.counts
        named = {
            "accepted": counts.accepted,
            "duplicate": counts.duplicate,
            "conflict": counts.conflict,
            **counts.rejects,
        }
        return {name: number for name, number in sorted(named.items()) if number}

    return Work(
        folder,
        tuple(Slice(str(folder / each.file), each.arrival) for each in truths),
        tuple(outcomes(each) for each in truths),
        sum(each.counts.records for each in truths),
    )


def _manifest(feed: RequestFeed, folder: Path) -> Manifest:
    """Of the feed in the folder, which is written unless it is there (the manifest comes last)."""
    kept = folder / "manifest.json"
    if kept.exists():
        return Manifest.from_json(kept.read_text())
    shutil.rmtree(folder, ignore_errors=True)
    return feed.write(folder)


def batch(events: int, tenants: int = 3, number: int = 0) -> Work:
    """One day of events in 20 slices."""
    folder = WORK / f"feed-{events}-{tenants}-{number}"
    manifest = _manifest(_feed(events, tenants, number), folder)
    return _work(folder, manifest.slices)


def late(events: int, after: int, number: int = 0) -> Work:
    """A slice of new events over six hours of the first day of a feed of `after` events.

    It arrives after ten days, so that the same slice can be late for a short and for a long history;
    different numbers are different events."""
    folder = WORK / f"late-{after}-{events}-{number}"
    whole = _feed(after, 3, 0)
    feed = RequestFeed(
        seed=1007 + number, events=after, tenants=3, start=whole.start, span=10 * DAY, slices=whole.slices
    )
    kept = folder / "manifest.json"
    if kept.exists():
        manifest = Manifest.from_json(kept.read_text())
    else:
        folder.mkdir(parents=True, exist_ok=True)
        hours = [whole.hours()[hour] for hour in LATE_HOURS]
        manifest = feed.late_slice(folder, events, hours, Manifest(feed.seed))
    return _work(folder, manifest.slices)
