"""Views of landed slices, rounds and retractions.

Text from outside is shown with escapes and never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import (
    ID_LETTERS,
    Note,
    Piece,
    View,
    level_words,
    line,
    many,
    outcome_words,
    size,
)
from tidemill.cli.views.maintenance import expired_pieces, look_words
from tidemill.cli.views.results import refreshed_words
from tidemill.cli.views.windows import build_pieces
from tidemill.model.time import format_instant
from tidemill.pipeline.documents import operations
from tidemill.pipeline.documents import shapes as documents

if TYPE_CHECKING:
    from tidemill.ingest.landing import Landed, LandedMany
    from tidemill.model.slices import SliceEntry
    from tidemill.outputs.datasets.builder import BuildOutcome
    from tidemill.outputs.vectors.chainer import ChainRound
    from tidemill.pipeline.reports import StreamTick, TickReport
    from tidemill.raw.retract import RetractionPlan


def landed(done: LandedMany) -> View:
    for one in done.landed:
        yield landed_line(one)
    for refused in done.refused:
        yield line(("refused ", "red"), escaped(refused.name))
        yield refused.error


def replayed(stream: str, landed: Sequence[Landed]) -> View:
    for one in landed:
        yield landed_line(one)
    if landed:
        yield Note("`tidemill run --once` decides these records again")
    else:
        yield line(f"nothing in the quarantine of {escaped(stream)} to replay")


def landed_line(one: Landed) -> Text:
    new = one.entry.slice
    text = line(
        ("landed  ", "green") if one.new else ("again   ", "yellow"),
        (new.id[:ID_LETTERS], "bold"),
        f"  {size(new.size):>10}  {escaped(new.name)}",
    )
    if not one.new:
        text.append(f"  (the same slice; landed {one.entry.landings} times)", style="dim")
    return text


def tick(report: TickReport, *, details: bool) -> View:
    """Yield what a round did; each tile, window and sink only with `details`."""
    for busy in operations.busy(report):
        done, builds = busy.tick, busy.builds
        words = "; ".join([*_parts(done, builds), *refreshed_words(busy.results)])
        took = (f"; {documents.took(report.seconds)}", "dim")
        yield line(_at(report), (done.stream, "bold"), ": ", words, took)
        if not details:
            continue
        for tile in operations.in_order(done.tiles):
            position = f"  {tile.key.level:>3} {format_instant(tile.key.start)}"
            made = f"  revision {tile.revision}, {many(tile.rows, 'row')}: {escaped(tile.reason)}"
            yield line((position, "cyan"), made)
        for one in builds:
            yield line("  ", *build_pieces(one))
    for step in report.expired:
        yield line(_at(report), *expired_pieces(step))
    for sent in report.delivered if details else ():
        if sent.delivered:
            yield line((f"  {escaped(sent.sink)}", "cyan"), f"  has {many(sent.delivered, 'more event')}")


def _at(report: TickReport) -> Piece:
    return format_instant(report.now)[:19] + "Z ", "dim"


def _parts(done: StreamTick, builds: Sequence[BuildOutcome]) -> Iterator[str]:
    if done.batch is not None:
        results = done.batch.record.results
        failed = sum(1 for result in results if result.error is not None)
        words = outcome_words(documents.total([result.counts for result in results]))
        yield f"{many(len(results), 'slice')}{f' ({failed:,} failed)' if failed else ''}, {words}"
    if done.batch is not None or done.tiles:
        levels = f" ({level_words(operations.by_level(done.tiles))})" if done.tiles else ""
        yield f"{many(len(done.tiles), 'tile')} built{levels}"
    if done.indexed is not None and not done.indexed.idle:
        gone = f", {done.indexed.removed:,} removed" if done.indexed.removed else ""
        yield f"{many(done.indexed.built, 'index part')} built{gone}"
    if done.packed is not None and not done.packed.idle:
        yield look_words(done.packed)
    if done.columns is not None and not done.columns.idle:
        left = f", {many(done.columns.left.rows, 'row')} left" if done.columns.left.parts else ""
        yield f"columns of {many(done.columns.rows, 'row')} made again{left}"
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


def _window_words(done: StreamTick, builds: Sequence[BuildOutcome]) -> str:
    """Return `3 windows queued, 2 built, 1 failed`: zeros are left out, the noun is always there."""
    found = operations.by_outcome(builds)
    counts = {word: found[word] for word in ("built", "failed", "lost")}
    if done.windows is not None:
        counts = {"queued": done.windows.queued, **counts, "withdrawn": done.windows.withdrawn}
    parts = [(count, word) for word, count in counts.items() if count]
    if done.windows is not None and done.windows.waiting and not parts:
        parts = [(done.windows.waiting.total(), "waiting")]
    words = []
    if parts:
        (first, word), *rest = parts
        words = [f"{many(first, 'window')} {word}", *(f"{count:,} {other}" for count, other in rest)]
    if done.windows is not None and done.windows.ignored:
        words.append(f"too late for {many(done.windows.ignored, 'window')}")
    return ", ".join(words)


def retraction(plan: RetractionPlan, done: SliceEntry | None) -> View:
    """Yield the plan step by step; then, if it was carried out, the ledger entry of the slice."""
    yield line((f"{plan.entry.slice.stream} {plan.entry.id[:ID_LETTERS]}", "bold"), f": {escaped(plan.why)}")
    for number, step in enumerate(plan.steps, start=1):
        yield line((f"{number:>4}. ", "dim"), escaped(str(step)))
    if done is not None:
        yield line(("retracted ", "magenta"), (done.id[:ID_LETTERS], "bold"), f"  {escaped(done.slice.name)}")
        yield Note("`tidemill run --once` accepts again what depends on it, and builds what changed")
