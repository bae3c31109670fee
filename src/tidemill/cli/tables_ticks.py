"""What the mill did or would do, as lines for people: rounds, builds, retractions, expiries, remakings.

What came from outside is shown with escapes and never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tidemill.cli.shown import shown
from tidemill.cli.tables import ID_LETTERS, Piece, level_words, many, outcome_words, size
from tidemill.cli.tables_packing import look_words
from tidemill.cli.tables_results import refreshed_words
from tidemill.model.time import format_duration, format_instant
from tidemill.pipeline.documents import shapes as plain
from tidemill.pipeline.documents import ticks as plain_ticks

if TYPE_CHECKING:
    from tidemill.model.slices import SliceEntry
    from tidemill.outputs.datasets.builder import Outcome
    from tidemill.outputs.vectors.chainer import ChainRound
    from tidemill.pipeline.documents.ticks import Remaking
    from tidemill.pipeline.reports import StreamTick, TickReport
    from tidemill.pipeline.retention import ExpiryPlan, ExpiryStep
    from tidemill.raw.retract import RetractionPlan


def tick_lines(report: TickReport, *, details: bool) -> Iterator[list[Piece]]:
    for busy in plain_ticks.busy(report):
        done, builds = busy.tick, busy.builds
        line: list[Piece] = [(format_instant(report.now)[:19] + "Z ", "dim"), (done.stream, "bold"), ": "]
        line.append("; ".join([*_parts(done, builds), *refreshed_words(busy.results)]))
        line.append((f"; {plain.took(report.seconds)}", "dim"))
        yield line
        if not details:
            continue
        for tile in plain_ticks.in_order(done.tiles):
            place = f"  {tile.key.level:>3} {format_instant(tile.key.start)}"
            yield [
                (place, "cyan"),
                f"  revision {tile.revision}, {many(tile.rows, 'row')}: {shown(tile.reason)}",
            ]
        for one in builds:
            yield ["  ", *build_line(one)]
    for step in report.expired:
        yield [(format_instant(report.now)[:19] + "Z ", "dim"), *_gone(step)]
    for sent in report.delivered if details else ():
        if sent.delivered:
            yield [(f"  {shown(sent.sink)}", "cyan"), f"  has {many(sent.delivered, 'more event')}"]


def _parts(done: StreamTick, builds: Sequence[Outcome]) -> Iterator[str]:
    if done.batch is not None:
        results = done.batch.record.results
        failed = sum(1 for result in results if result.error is not None)
        words = outcome_words(plain.total([result.counts for result in results]))
        yield f"{many(len(results), 'slice')}{f' ({failed:,} failed)' if failed else ''}, {words}"
    if done.batch is not None or done.tiles:
        levels = f" ({level_words(plain_ticks.by_level(done.tiles))})" if done.tiles else ""
        yield f"{many(len(done.tiles), 'tile')} built{levels}"
    if done.indexed is not None and not done.indexed.idle:
        gone = f", {done.indexed.removed:,} removed" if done.indexed.removed else ""
        yield f"{many(done.indexed.built, 'index part')} built{gone}"
    if done.packed is not None and not done.packed.idle:
        yield look_words(done.packed)
    if done.compacted:
        yield f"{many(done.compacted, 'part')} of rollups merged"
    if done.chains is not None:
        yield from _chain_words(done.chains)
    if words := _window_words(done, builds):
        yield words


def _chain_words(done: ChainRound) -> Iterator[str]:
    if not done.folded.idle:
        again = f", {many(done.folded.remade, 'chain')} made again" if done.folded.remade else ""
        yield f"{many(done.folded.deltas, 'delta')} put into chains{again}"
    if done.compacted is not None and not done.compacted.idle:
        of = done.compacted
        sizes = f"{size(of.bytes_before)} to {size(of.bytes_after)}"
        yield f"{many(of.chains, 'chain')} compacted, {many(of.deltas, 'delta')} merged, {sizes}"


def _window_words(done: StreamTick, builds: Sequence[Outcome]) -> str:
    """`3 windows queued, 2 built, 1 failed`: what is nought is left out, but the noun never."""
    found = plain_ticks.by_outcome(builds)
    counts = {word: found[word] for word in ("built", "failed", "lost")}
    if done.windows is not None:
        counts = {"queued": done.windows.queued, **counts, "withdrawn": done.windows.withdrawn}
    told = [(count, word) for word, count in counts.items() if count]
    if done.windows is not None and done.windows.waiting and not told:
        told = [(done.windows.waiting.total(), "waiting")]
    words = []
    if told:
        (first, word), *rest = told
        words = [f"{many(first, 'window')} {word}", *(f"{count:,} {other}" for count, other in rest)]
    if done.windows is not None and done.windows.ignored:
        words.append(f"too late for {many(done.windows.ignored, 'window')}")
    return ", ".join(words)


def build_line(of: Outcome) -> Iterator[Piece]:
    """What became of one try to build a window."""
    yield (f"{of.key.stream} {of.key.interval}", "cyan")
    if of.error is not None:
        yield (f"  try {of.attempt} failed: {shown(of.error)}", "red")
    elif of.dataset is None or of.lost:
        yield ("  built, but another builder was faster", "yellow")
    else:
        built = of.dataset
        slices = many(len(built.slices), "slice")
        yield f"  revision {built.revision}, {many(built.rows, 'row')} of {slices}: {shown(of.trigger)}"
    yield (f"; {plain.took(of.seconds)}", "dim")


def retraction_lines(plan: RetractionPlan, done: SliceEntry | None) -> Iterator[list[Piece]]:
    """The plan, step by step; then what the ledger says of the slice, once it was carried out."""
    yield [(f"{plan.entry.slice.stream} {plan.entry.id[:ID_LETTERS]}", "bold"), f": {shown(plan.why)}"]
    for number, step in enumerate(plan.steps, start=1):
        yield [(f"{number:>4}. ", "dim"), shown(str(step))]
    if done is not None:
        yield [("retracted ", "magenta"), (done.id[:ID_LETTERS], "bold"), f"  {shown(done.slice.name)}"]


def expiry_lines(plan: ExpiryPlan, done: Sequence[ExpiryStep] | None) -> Iterator[list[Piece]]:
    """The plan, step by step; or what went, once it was carried out."""
    if not plan.steps:
        yield ["no retention is declared: everything is kept"]
    for step in done or ():
        yield _gone(step)
    if done is not None and not done and plan.steps:
        yield ["nothing is old enough to go, or all of it is still needed"]
    for step in plan.steps:
        where = (f"{step.stream} {step.what}", "bold")
        if done is None:
            yield [where, f", kept {format_duration(step.keep)}: {_going(step)}"]
        if step.held_by is not None:
            yield [where, (" is held back", "yellow"), f" by {shown(step.held_by)}"]


def remade_lines(stream: str, of: Remaking, *, done: bool) -> Iterator[list[Piece]]:
    """What is made again from raw, or would be."""
    made = "made again" if done else "to make again"
    if of.tiles is not None:
        tiles = many(sum(of.tiles.values()), "tile")
        levels = f" ({level_words(of.tiles)})" if of.tiles else ""
        sealed = f"; {many(of.sealed, 'tile')} of 5s sealed: raw is gone" if of.sealed else ""
        yield [(f"{stream} rollups", "bold"), f": {tiles}{levels} {made}{sealed}"]
    if of.parts is not None:
        yield [(f"{stream} index", "bold"), f": {many(of.parts, 'part')} {made}"]


def _going(step: ExpiryStep) -> str:
    if not step.due:
        return f"nothing before {format_instant(step.before)}"
    return f"{_amount(step)} before {format_instant(step.before)}"


def _gone(step: ExpiryStep) -> list[Piece]:
    where = (f"{step.stream} {step.what}", "bold")
    return [("expired ", "magenta"), where, f": {_amount(step)} before {format_instant(step.before)}"]


def _amount(step: ExpiryStep) -> str:
    windows = f" of {many(step.windows, 'window')}" if step.windows else ""
    return f"{many(step.rows, 'row')} in {many(step.files, 'file')}{windows}, {size(step.bytes)},"
