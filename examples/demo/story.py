"""The demo as a story: a feed lands, the gate decides, a late slice comes, the proof is made.

It stops at the first error of the environment; a result that is not the feed's truth is told, never hidden.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from examples.demo.datasets import Datasets, Shelf
from examples.demo.facts import Facts, Judged, View
from examples.demo.project import STREAM, Place, disk_errors, shown, start_afresh, tidemill_command
from examples.demo.report import write_report
from examples.demo.telling import Teller, errors_to
from rich.console import Console

from examples.demo import datasets, facts
from tidemill import Mill
from tidemill.model.errors import InputError
from tidemill.model.slices import Reject
from tidemill.model.time import DAY, HOUR, Interval, format_instant
from tidemill.testing import FakeClock
from tidemill.testing.feed import Manifest, RequestFeed, SliceTruth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED: Final = 20240101
SLICES: Final = 24
ROUNDS: Final = 3
LATE_HOURS: Final = (3, 4)  # of the day
LATE_SHARE: Final = 30  # one late event for so many others
QUICK: Final = 10
MIN_EVENTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo found, and where it left it."""

    folder: Path
    warehouse: Path
    report: Path
    facts: Facts
    commands: Sequence[str]
    seconds: float

    @property
    def ok(self) -> bool:
        """Everything was as the feed knows it must be, and the proof holds."""
        return self.facts.ok


def run_demo(
    folder: Path,
    *,
    events: int = 300_000,
    console: Console,
    spark: SparkSession | None = None,
    quick: bool = False,
    warehouse: str | None = None,
) -> DemoResult:
    """Run the story in `folder`, which starts afresh. `quick` tells it with a tenth of the events. The
    warehouse is in the folder, or in a bucket at the address `warehouse`."""
    events = events // QUICK if quick else events
    if events < MIN_EVENTS:
        raise InputError(f"{events} events make no story", hint=f"at least {MIN_EVENTS}")
    began = time.perf_counter()
    place = start_afresh(folder, warehouse)
    feed = RequestFeed(
        seed=SEED, events=events, slices=SLICES, shuffled=True, replays=0.01, conflicts=0.0008, bad=0.002
    )
    story = _Story(place, feed, Teller(console))
    with Mill.open(folder, spark=spark, clock=story.clock, progress=story.progress) as mill:
        found = story.tell(mill, started=spark is not None)
    commands = _commands(folder, story.late_span)
    seconds = time.perf_counter() - began
    with disk_errors(place.report):
        write_report(place.report, found, warehouse=place.shown_warehouse, commands=commands)
    story.end(found, commands, seconds)
    return DemoResult(folder, place.warehouse, place.report, found, commands, seconds)


class _Story:
    """One run of the demo, chapter by chapter."""

    def __init__(self, place: Place, feed: RequestFeed, teller: Teller) -> None:
        self.place = place
        self.feed = feed
        self.teller = teller
        self.clock = FakeClock(feed.start)
        self.span = Interval(feed.start, feed.start + feed.span)
        hours = [feed.start + hour * HOUR for hour in LATE_HOURS]
        self.late_span = Interval(hours[0], hours[-1] + HOUR)

    def progress(self, _stream: str, step: str, share: float) -> None:
        doing = {
            "stage": "Spark reads and checks each record",
            "gate": "Spark decides which are new",
            "write": "Spark sorts and writes raw",
            "commit": "one commit, then the rollups" if share == 1.0 else "one commit",
            "windows": "builders write datasets",
            "verify": "Spark recomputes everything from raw",
        }
        self.teller.reach(share, doing.get(step))

    def tell(self, mill: Mill, *, started: bool) -> Facts:
        tell = self.teller
        tell.title(
            "Tidemill: feeds that arrive late, twice and out of order in, exact rollups and datasets out."
        )
        tell.say(
            "One idea carries it. Every input is an immutable slice. Every output is a pure function of a "
            "set of slices. The hash of that set says whether the output is current."
        )
        truth = self._write_feed()
        if not started:
            self._start_spark(mill)
        self._land_all(mill, truth)
        self._show_outcomes(facts.judge(mill, truth), mill)
        before = self._show_rollups(mill, truth)
        shelf = self._build_datasets(mill, truth)
        return self._late_slice(mill, truth, before, shelf)

    def _write_feed(self) -> Manifest:
        tell, feed = self.teller, self.feed
        tell.chapter(1, "A feed of a day")
        tell.say(
            f"{feed.events:,} web requests of {', '.join(feed.tenant_names())}, in {feed.slices} files. They "
            "come in a shuffled order and hold replays, contradictions, broken lines and wrong times. The "
            "feed is seeded, and it knows what must become of each record."
        )
        with (
            disk_errors(self.place.feed),
            tell.work("writing the feed", f"{feed.slices} files in {shown(self.place.feed)}", feed.slices),
        ):
            return feed.write(self.place.feed, lambda _slice: tell.advance())

    def _start_spark(self, mill: Mill) -> None:
        tell = self.teller
        with (
            tell.work("starting Spark", f"Spark runs; what it logs is in {shown(self.place.spark_log)}"),
            errors_to(self.place.spark_log, keep=tell.owns_stderr),
        ):
            _ = mill.engine.session

    def _land_all(self, mill: Mill, truth: Manifest) -> None:
        tell = self.teller
        tell.chapter(2, "Slices land, the gate decides")
        tell.say(
            "A file becomes a slice: it is synced to disk and entered in the ledger, then acknowledged. Its "
            "id is a sha256 over its stream, the hour it declares and its bytes. The gate then gives every "
            "record one outcome, once: accepted, duplicate, conflict or rejected. A replay changes nothing; "
            "what is refused is kept."
        )
        size = -(-len(truth.slices) // ROUNDS)
        rounds = [truth.slices[i : i + size] for i in range(0, len(truth.slices), size)]
        done = f"{len(truth.slices)} slices landed and accepted in {len(rounds)} rounds"
        with tell.work("landing slices", done, len(rounds)):
            for some in rounds:
                for slice_truth in some:
                    self._land(mill, slice_truth)
                mill.run_until_idle()
                tell.advance()
        again = self._land(mill, truth.slices[0])
        tell.fact(
            f"{truth.slices[0].file} sent once more: the same bytes are the same slice {again[:12]}, "
            "nothing to do"
        )

    def _land(self, mill: Mill, truth: SliceTruth) -> str:
        """Land a file of the feed at its time, with the hours that it is about; the id of its slice."""
        self.clock.set(max(truth.arrival, self.clock()))
        about = self._about(truth)
        done = mill.ingest(STREAM, [self.place.feed / truth.file], start=about.start, end=about.end)
        for refused in done.refused:
            raise refused.error
        return done.landed[0].entry.id

    def _about(self, truth: SliceTruth) -> Interval:
        """What its sender declares: slice-00007 is the eighth part of the day."""
        kind, _, number = truth.file.removesuffix(".ndjson").partition("-")
        if kind == "late":
            return self.late_span
        first, end = (self.feed.start + self.feed.span * i // SLICES for i in (int(number), int(number) + 1))
        return Interval(first, end)

    def _show_outcomes(self, judged: Sequence[Judged], mill: Mill) -> None:
        tell = self.teller
        tell.say("In the order of landing. Truth says whether each number is what the feed knows it must be.")
        tell.table(
            ("slice", "covers", "records", "accepted", "late", "duplicate", "conflict", "rejected", "truth"),
            [_outcome_row(one) for one in judged],
            left=2,
        )
        wrong = sum(not one.ok for one in judged)
        if wrong:
            tell.fact(f"{wrong} slices differ from the truth", good=False)
        else:
            tell.fact(f"all outcomes of all {len(judged)} slices equal the feed's truth", good=True)
        tell.say(
            "Late is not lost: a late event is accepted and counted where it belongs. From the quarantine:"
        )
        for reason in (Reject.SKEW, Reject.BAD_TIME, Reject.MALFORMED):
            for row in mill.quarantine(STREAM, reason=reason.value, limit=1).to_pylist():
                tell.fact(f"{reason.value:<10} {row['detail'] or ''}".rstrip())

    def _show_rollups(self, mill: Mill, truth: Manifest) -> View:
        tell = self.teller
        tell.chapter(3, "Rollups, before the late slice")
        tell.say(
            "Counts and exact sums are kept at 5s, 1m, 1h, 1d and 7d, in tiles. A tile of 5s buckets is made "
            "of slices, a tile above it of the tiles below. A query reads tiles only:"
        )
        tell.code(facts.hours_query(self._around()))
        view = facts.look(mill, self.span)
        right = view.equals(truth)
        tell.table(
            ("hour", "count", "sum(latency_ms)"),
            [
                (_clock(at), f"{view.hours[at].count:,}", f"{view.hours[at].latency_ms:,}")
                for at in self._around().windows(HOUR)
                if at in view.hours
            ],
        )
        tell.fact(_hours_verdict(len(view.hours), right), good=right)
        return view

    def _build_datasets(self, mill: Mill, truth: Manifest) -> Shelf:
        tell = self.teller
        tell.chapter(4, "Datasets, an hour each")
        tell.say(
            "Each hour is handed on as an Arrow file, once slices cover it and it has been over for a day: "
            "that is what the stream declares. So it is a day later now."
        )
        self.clock.set(max(self.clock(), self.span.end + DAY))
        with tell.work("building datasets", "the windows that are ready were built"):
            mill.run_until_idle()
        shelf = datasets.look_up(mill)
        right = shelf.equals(truth)
        found = f"{len(shelf.newest)} datasets, {shelf.rows:,} rows"
        tell.fact(f"{found}: {_rows_verdict(right)}", good=right)
        return shelf

    def _late_slice(self, mill: Mill, truth: Manifest, before: View, shelf: Shelf) -> Facts:
        tell = self.teller
        first, last = _clock(self.late_span.start), _clock(self.late_span.end)
        tell.chapter(5, "A late slice")
        tell.say(
            f"A gateway was cut off from {first} to {last}. Two days later it delivers what it kept. The set "
            "of slices behind some tiles is now another one, so their hashes no longer fit: those are "
            "rebuilt, and nothing else."
        )
        events = max(100, self.feed.events // LATE_SHARE)
        with disk_errors(self.place.feed):
            truth_after = self.feed.late_slice(
                self.place.feed, events, self.late_span.windows(HOUR), after=truth
            )
        with tell.work(
            "the late slice", f"{truth_after.slices[-1].file}: {events:,} events landed, accepted"
        ):
            self._land(mill, truth_after.slices[-1])
            reports = mill.run_until_idle()
        after = facts.look(mill, self.span)
        changes = facts.tile_changes(reports, before, after)
        judged = facts.judge(mill, truth_after)

        tell.table(
            ("level", "tile", "rev", "why", "hash"),
            [
                (
                    change.key.level, format_instant(change.key.start)[:16], f"r{change.revision}",
                    change.reason, f"{(change.hash_before or '-')[:6]} -> {(change.hash_after or '-')[:6]}",
                )
                for change in changes
            ],
            left=5,
        )  # fmt: skip
        tell.fact(f"{len(changes)} of {len(after.tiles)} tiles rebuilt, {after.same(before)} left alone")
        tell.say("The same query again:")
        tell.table(
            ("hour", "count before", "count after", "more", "sum(latency_ms) after"),
            [
                (
                    _clock(at), f"{before.hours[at].count:,}", f"{after.hours[at].count:,}",
                    f"+{after.hours[at].count - before.hours[at].count:,}", f"{after.hours[at].latency_ms:,}",
                )
                for at in self._around().windows(HOUR)
                if at in before.hours and at in after.hours
            ],
        )  # fmt: skip
        right = after.equals(truth_after)
        tell.fact(_hours_verdict(len(after.hours), right), good=right)
        handed = datasets.compare(shelf, datasets.look_up(mill), truth, truth_after, judged[-1].entry.id)
        self._show_datasets(handed, judged)

        tell.chapter(6, "The proof")
        tell.say(
            "verify believes nothing that was derived. It hashes the slices again, counts raw again, builds "
            "every tile and every dataset again from raw on Spark, and compares bit for bit."
        )
        with tell.work("verifying", "verified"):
            proof = facts.prove(mill)
        for finding in proof.findings[:10]:
            tell.fact(finding, good=False)
        checked = (
            f"{proof.slices} slices, {proof.raw_rows:,} raw rows, {proof.tiles} tiles, "
            f"{proof.datasets} datasets"
        )
        verdict = "all equal" if proof.ok else f"{len(proof.findings)} differences"
        tell.fact(f"{checked}: {verdict}", good=proof.ok)
        return Facts(
            span=self.span,
            late_span=self.late_span,
            judged=judged,
            before=before,
            after=after,
            before_true=before.equals(truth),
            after_true=right,
            changes=changes,
            lateness=facts.lateness(mill, judged[-1].entry.id),
            every_5s=facts.count_5s(mill, self.span),
            datasets=handed,
            proof=proof,
        )

    def _show_datasets(self, found: Datasets, judged: Sequence[Judged]) -> None:
        tell = self.teller
        names = {one.entry.id: one.name for one in judged}
        tell.say("Datasets are made of slices, too: those of its hours come out again, as the next revision.")
        tell.table(
            ("window", "revision", "why", "rows before", "rows after"),
            [
                (
                    f"{_clock(one.after.hour)}-{_clock(one.after.hour + HOUR)}", f"r{one.after.revision}",
                    "+ " + ", ".join(sorted(names.get(each, each[:12]) for each in one.added)),
                    f"{one.before.rows if one.before else 0:,}", f"{one.after.rows:,}",
                )
                for one in found.again
            ],
            left=3,
        )  # fmt: skip
        count = f"{len(found.again)} of {len(found.after.newest)} datasets came out again"
        if found.only_the_late:
            tell.fact(f"{count}: the hours of the late slice, because of it", good=True)
        else:
            tell.fact(f"{count}, which are not the hours of the late slice", good=False)
        if found.files_kept:
            tell.fact(
                f"all {found.untouched} files that stood before are untouched, byte for byte", good=True
            )
        else:
            stood = (
                f"{found.untouched} of the {len(found.before.files)} files that stood before are untouched"
            )
            tell.fact(f"{stood}, {len(found.new_files)} are new", good=False)
        tell.fact(f"{found.after.rows:,} rows: {_rows_verdict(found.after_true)}", good=found.after_true)

    def end(self, found: Facts, commands: Sequence[str], seconds: float) -> None:
        tell = self.teller
        tell.chapter(7, "Yours")
        tell.fact(f"report     {shown(self.place.report)}")
        tell.fact(f"warehouse  {self.place.shown_warehouse} (Delta tables and Arrow files)")
        tell.say("Try next:")
        for command in commands:
            tell.code(command)
        done = "Everything is as it must be" if found.ok else "Something is not as it must be: see above"
        tell.fact(f"{done}. {found.total.records:,} records in {seconds:.0f} s.", good=found.ok)

    def _around(self) -> Interval:
        """The late hours, and one on either side."""
        return Interval(self.late_span.start - HOUR, self.late_span.end + HOUR)


def _outcome_row(one: Judged) -> tuple[str, ...]:
    counts = one.counts
    numbers = (
        counts.records, counts.accepted, counts.late, counts.duplicate, counts.conflict, counts.rejected,
    )  # fmt: skip
    name = "late" if one.name.startswith("late") else one.name.removeprefix("slice-000")
    return name, one.covers, *(f"{number:,}" for number in numbers), "equal" if one.ok else "differs"


def _hours_verdict(hours: int, right: bool) -> str:
    if right:
        return f"count and sum of all {hours} hours equal the feed's truth, to the last digit"
    return "the hours differ from the feed's truth"


def _rows_verdict(right: bool) -> str:
    if right:
        return "every accepted record, in the dataset of its hour"
    return "the datasets differ from the feed's truth"


def _clock(at: int) -> str:
    return format_instant(at)[11:16]


def _commands(folder: Path, late: Interval) -> list[str]:
    """Some that work as they are, from the folder that the demo was started in."""
    mill = f"{tidemill_command()} -p {shlex.quote(shown(folder))}"
    query = (
        f"SELECT count, avg(latency_ms) FROM {STREAM} BETWEEN {format_instant(late.start)} "
        f"AND {format_instant(late.end)} INTERVAL 30m GROUP BY region"
    )
    return [
        f"{mill} status",
        f"{mill} query {shlex.quote(query)} --all-tenants",
        f"{mill} quarantine {STREAM} --reason skew",
        f"{mill} windows {STREAM}",
        f"{mill} window {STREAM} {format_instant(late.start)}",
    ]
