"""What the demo finds out, gathered from Tidemill by its public means and compared with the feed's truth.

Values only: nothing here prints, draws or changes the warehouse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import duckdb
from examples.demo.datasets import Datasets
from examples.demo.project import STREAM

from tidemill import Mill
from tidemill.model.levels import LEVELS, TileKey, TileState
from tidemill.model.slices import Counts, SliceEntry
from tidemill.model.time import DAY, HOUR, MINUTE, Interval, align, format_instant, from_datetime
from tidemill.pipeline.reports import TickReport
from tidemill.testing.feed import Manifest, SliceTruth

ON_TIME = -1  # the bin of events that were not late


@dataclass(frozen=True, slots=True)
class Judged:
    """A slice as the ledger tells it, beside what the feed knows about it."""

    entry: SliceEntry
    truth: SliceTruth

    @property
    def name(self) -> str:
        return self.truth.file.removesuffix(".ndjson")

    @property
    def covers(self) -> str:
        """From its first to its last accepted event, to the nearest minute."""
        observed = self.entry.observed
        if observed is None:
            return "-"
        first, last = (align(at + MINUTE // 2, MINUTE) for at in (observed.start, observed.end))
        end = "24:00" if last % DAY == 0 else format_instant(last)[11:16]
        return f"{format_instant(first)[11:16]}-{end}"

    @property
    def counts(self) -> Counts:
        return self.entry.counts

    @property
    def ok(self) -> bool:
        return self.counts == self.truth.counts and self.entry.watermark == self.truth.watermark


@dataclass(frozen=True, slots=True)
class Cell:
    """Events and the exact sum of their latency."""

    count: int = 0
    latency_ms: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class View:
    """The rollups at one moment, as queries tell them."""

    hours: Mapping[int, Cell]
    minutes: Mapping[int, int]
    tiles: Mapping[TileKey, TileState]

    def same(self, other: View) -> int:
        """How many tiles are of the same revision, made of the same, as in the other view."""
        return sum(
            (tile.revision, tile.hash, tile.rows) == (known.revision, known.hash, known.rows)
            for key, tile in self.tiles.items()
            if (known := other.tiles.get(key)) is not None
        )

    def equals(self, truth: Manifest) -> bool:
        """Whether every hour has the count and the sum, to the last digit, that the feed knows."""
        known = {
            int(at): Cell(count, Decimal(total).scaleb(-3)) for at, (count, total) in truth.hours.items()
        }
        return known == dict(self.hours)


@dataclass(frozen=True, slots=True)
class TileChange:
    """A tile that was made again, and why."""

    key: TileKey
    revision: int
    rows: int
    reason: str
    hash_before: str | None
    hash_after: str | None


@dataclass(frozen=True, slots=True)
class Proof:
    """What `verify` recomputed, and what it found to differ."""

    slices: int
    raw_rows: int
    tiles: int
    datasets: int
    findings: Sequence[str]

    @property
    def ok(self) -> bool:
        return not self.findings


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it."""

    span: Interval
    late_span: Interval  # the hours that the late slice is about
    judged: Sequence[Judged]  # in the order of landing; the late slice is the last
    before: View
    after: View
    before_true: bool
    after_true: bool
    changes: Sequence[TileChange]
    lateness: Mapping[
        int, tuple[int, int]
    ]  # whole hours behind the watermark -> events of the feed, of the late slice
    every_5s: Mapping[int, int]
    datasets: Datasets
    proof: Proof

    @property
    def late(self) -> Judged:
        return self.judged[-1]

    @property
    def total(self) -> Counts:
        rejects: dict[str, int] = {}
        for judged in self.judged:
            for reason, count in judged.counts.rejects.items():
                rejects[reason] = rejects.get(reason, 0) + count
        counts = [judged.counts for judged in self.judged]
        return Counts(
            records=sum(c.records for c in counts),
            accepted=sum(c.accepted for c in counts),
            duplicate=sum(c.duplicate for c in counts),
            conflict=sum(c.conflict for c in counts),
            rejected=sum(c.rejected for c in counts),
            late=sum(c.late for c in counts),
            rejects=dict(sorted(rejects.items())),
        )

    @property
    def left_alone(self) -> int:
        """Tiles whose revision, hash and rows the late slice did not change."""
        return self.after.same(self.before)

    @property
    def all_in_datasets(self) -> bool:
        """Whether every accepted record is in a dataset, each in the one of its hour, before and after."""
        found, accepted = self.datasets, self.total.accepted
        rows = (found.before.rows, found.after.rows)
        return rows == (accepted - self.late.counts.accepted, accepted) and (
            found.before_true and found.after_true
        )

    @property
    def ok(self) -> bool:
        untouched = self.left_alone == len(self.after.tiles) - len(self.changes)
        truths = all(judged.ok for judged in self.judged) and self.before_true and self.after_true
        datasets = self.all_in_datasets and self.datasets.ok
        return truths and untouched and datasets and self.proof.ok


def judge(mill: Mill, truth: Manifest) -> list[Judged]:
    """The slices of the ledger in the order of landing, each with its truth."""
    entries = sorted(mill.ledger(STREAM), key=lambda entry: entry.seq)
    return [Judged(entry, known) for entry, known in zip(entries, truth.slices, strict=True)]


def hours_query(span: Interval) -> str:
    return f"SELECT count, sum(latency_ms) FROM {STREAM} {_between(span)} USING ROLLUP 1h"


def look(mill: Mill, span: Interval) -> View:
    """Ask for the rollups as they are now."""
    hours = mill.query(hours_query(span), all_tenants=True).to_pylist()
    by_minute = f"SELECT count FROM {STREAM} {_between(span)} USING ROLLUP 1m"
    minutes = mill.query(by_minute, all_tenants=True).to_pylist()
    return View(
        hours={from_datetime(row["bucket"]): Cell(row["count"], row["sum(latency_ms)"]) for row in hours},
        minutes={from_datetime(row["bucket"]): row["count"] for row in minutes},
        tiles={tile.key: tile for level in LEVELS for tile in mill.state.tiles(STREAM, level.name)},
    )


def count_5s(mill: Mill, span: Interval) -> dict[int, int]:
    text = f"SELECT count FROM {STREAM} {_between(span)} USING ROLLUP 5s FILL zero"
    return {
        from_datetime(row["bucket"]): row["count"] for row in mill.query(text, all_tenants=True).to_pylist()
    }


def tile_changes(reports: Sequence[TickReport], before: View, after: View) -> list[TileChange]:
    """The tiles that these ticks built, level by level."""
    order = {level.name: place for place, level in enumerate(LEVELS)}
    built = [tile for report in reports for stream in report.streams for tile in stream.tiles]
    built.sort(key=lambda tile: (order[tile.key.level], tile.key.start))
    return [
        TileChange(
            key=tile.key,
            revision=tile.revision,
            rows=tile.rows,
            reason=tile.reason,
            hash_before=before.tiles[tile.key].hash if tile.key in before.tiles else None,
            hash_after=after.tiles[tile.key].hash,
        )
        for tile in built
    ]


def lateness(mill: Mill, late_slice: str) -> dict[int, tuple[int, int]]:
    """Events by whole hours behind the watermark they met, read from raw as any Delta reader could."""
    paths = mill.workers.acceptor(STREAM).raw.snapshot().paths()
    with duckdb.connect() as connection:
        rows = connection.execute(
            f"""
            SELECT CASE WHEN watermark IS NULL OR event_time > watermark THEN {ON_TIME}
                        ELSE (epoch_us(watermark) - epoch_us(event_time)) // {HOUR} END AS behind,
                   count(*) FILTER (slice <> $late), count(*) FILTER (slice = $late)
            FROM read_parquet($paths, hive_partitioning = false) GROUP BY behind ORDER BY behind
            """,
            {"paths": paths, "late": late_slice},
        ).fetchall()
    return {behind: (feed, late) for behind, feed, late in rows}


def prove(mill: Mill) -> Proof:
    audit = mill.verify(STREAM)
    done = audit.streams[0]
    found = [f"{finding.what} {finding.where}: {finding.difference}" for finding in audit.findings]
    return Proof(done.slices, done.raw_rows, done.tiles, done.datasets, found)


def _between(span: Interval) -> str:
    return f"BETWEEN {format_instant(span.start)} AND {format_instant(span.end)}"
