"""Views of vectors, chains and compactions.

Only `Text` goes into a cell, so that nothing from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import ID_LETTERS, Note, View, line, listing, many, pairs_table, size
from tidemill.model.time import format_duration, format_instant
from tidemill.pipeline.documents.windows import is_current

if TYPE_CHECKING:
    from tidemill.outputs.vectors.batches import BatchStats
    from tidemill.outputs.vectors.chain_view import ChainLink, ChainView
    from tidemill.outputs.vectors.chainer import Batched, Batches, ChainRound, Published
    from tidemill.outputs.vectors.store import CompactionStep
    from tidemill.pipeline.documents.shapes import Document

SHOWN: Final = 8  # components
NO_DELTAS: Final = Note("no stream of `kind: delta` is declared")


def vector(document: Document) -> View:
    """Yield a vector from its document; only the first components are shown."""
    yield _vector(document)
    values = document["values"]
    if isinstance(values, list) and len(values) > SHOWN:
        yield Note("--output json shows all components, with every bit")


def chain(of: ChainView) -> View:
    yield _chain(of)
    yield _links(of)


def batches(stream: str, of: Batches) -> View:
    yield _batches(of.found) if of.found else line((escaped(stream), "bold"), ": no batches")
    if of.more:
        yield Note(f"the newest {len(of.found):,}; --limit 0 shows all")


def compacted(done: Mapping[str, ChainRound]) -> View:
    for stream, of in done.items():
        yield line((escaped(stream), "bold"), f": {_compacted_words(of)}")
    if not done:
        yield NO_DELTAS


def planned(plans: Mapping[str, Sequence[CompactionStep]]) -> View:
    for stream, steps in plans.items():
        yield _plan(stream, steps) if steps else line((escaped(stream), "bold"), ": nothing to compact")
    if not plans:
        yield NO_DELTAS


def _vector(document: Document) -> Table:
    values = document["values"]
    there = "not there" if values is None else "there"
    if document["pending"]:
        there = "pending: slices are decided again by the next round" + ("" if values is None else "; there")
    pairs = [
        ("at", Text(str(document["at"] or "now"))),
        ("vector", Text(there, style="yellow" if values is None else "green")),
        ("last change", Text(str(document["ts"] or "none ever"))),
    ]
    if document["overflow"]:
        pairs.append(("overflow", Text("a component is no finite number any more", style="red")))
    if isinstance(values, list):
        rest = f", … of {len(values)}" if len(values) > SHOWN else ""
        pairs.append(("values", Text(", ".join(map(repr, values[:SHOWN])) + rest)))
    return pairs_table(escaped(f"{document['stream']} {document['vector_id']}"), pairs)


def _chain(of: ChainView) -> Table:
    batch, kept = of.pending, of.kept_from
    waiting = sum(link.waiting for link in of.deltas)
    pending = many(len(of.deltas), "delta") + (f" ({waiting} not in the chain yet)" if waiting else "")
    current = f"{many(len(of.checkpoints), 'checkpoint')} of {many(of.merged, 'delta')}"
    if batch.deltas:
        pending += f" over {format_duration(batch.duration)}"
    pairs = [
        ("merged", Text(current if of.checkpoints else "nothing yet")),
        ("pending", Text(pending)),
        ("as a batch", Text(f"{many(batch.deltas, 'delta')}, {size(batch.bytes)}")),
        ("size", Text(size(of.bytes))),
        ("every instant", Text("kept" if kept is None else f"kept from {format_instant(kept)}")),
        ("strategy", Text(of.compaction.strategy)),
        ("to be compacted", Text("no" if of.reason is None else f"yes: {of.reason.value}")),
    ]
    return pairs_table(escaped(f"{of.stream} {of.vector_id}"), pairs)


def _links(of: ChainView) -> Table:
    table = listing(
        "ts", "delta_id", "kind", "op", "components", "bytes", "merged", "since",
        right=("components", "bytes", "merged"),
    )  # fmt: skip
    for link in of.links:
        table.add_row(
            Text(format_instant(link.ts)),
            Text(escaped(link.delta_id)),
            Text(_kind(link), style="bold" if link.checkpoint else ""),
            Text(link.op.value),
            f"{link.components:,}",
            f"{link.bytes:,}",
            f"{link.merged:,}",
            Text(format_instant(link.first_ts) if link.checkpoint else ""),
        )
    return table


def _kind(link: ChainLink) -> str:
    return "checkpoint" if link.checkpoint else "waiting" if link.waiting else "delta"


def _batches(found: Sequence[Batched]) -> Table:
    is_published = any(one.published is not None for one in found)
    columns = ("rev", "hash", "trigger") if is_published else ()
    table = listing(
        "window", "until", *columns, "came", "deltas", "vectors", "bytes", "average", "over", "file",
        right=("rev", "came", "deltas", "vectors", "bytes", "average"),
    )  # fmt: skip
    for one in found:
        table.add_row(
            Text(format_instant(one.start)),
            Text(format_instant(one.end)),
            *(_published(one.published) if one.published is not None else ()),
            *_numbers(one.stats),
            Text("" if one.file is None else escaped(str(one.file))),
        )
    return table


def _published(of: Published) -> tuple[str, Text, Text]:
    current = of.damage or ("current" if is_current(of.window) else "out of date")
    trigger = f"{of.window.trigger}" + ("" if current == "current" else f" ({current})")
    return f"{of.window.revision:,}", Text((of.window.observed or "")[:ID_LETTERS]), Text(escaped(trigger))


def _numbers(of: BatchStats | None) -> tuple[str, ...]:
    if of is None:
        return ("", "", "", "", "", "")
    counts = (f"{number:,}" for number in (of.received, of.deltas, of.vectors))
    return *counts, size(of.bytes), f"{of.average:,.1f}", format_duration(of.duration)


def _compacted_words(of: ChainRound) -> str:
    done = of.compacted
    folded = f"{many(of.folded.deltas, 'delta')} put into chains, " if of.folded.deltas else ""
    if done is None or done.idle:
        return f"{folded}nothing to compact"
    sizes = f"{size(done.bytes_before)} before, {size(done.bytes_after)} after"
    return (
        f"{folded}{many(done.chains, 'chain')} compacted ({_reasons(done.reasons)}), "
        f"{many(done.deltas, 'delta')} merged, {sizes}"
    )


def _plan(stream: str, steps: Sequence[CompactionStep]) -> Table:
    table = listing("bucket", "chains", "deltas", "why", "bytes", right=("chains", "deltas", "bytes"))
    table.title, table.title_justify = Text(escaped(stream), style="bold"), "left"
    for step in steps:
        table.add_row(
            Text(step.bucket),
            f"{step.chains:,}",
            f"{step.deltas:,}",
            Text(_reasons(step.reasons)),
            size(step.bytes),
        )
    return table


def _reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} by {reason}" for reason, count in sorted(reasons.items()))
