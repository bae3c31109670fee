"""What the mill did or would do, as plain data: a round, a retraction, an expiry, a rebuild, packing.

Streams that had nothing to do in a round are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Final

from tidemill.model.levels import NAMES
from tidemill.model.slices import SliceEntry
from tidemill.model.time import format_duration, format_instant
from tidemill.pipeline.documents.results import refreshed
from tidemill.pipeline.documents.shapes import Document, counts, entry, fault, instant, took, total
from tidemill.pipeline.documents.windows import outcome, outcome_word

if TYPE_CHECKING:
    from tidemill.model.expiry import ExpiryStep
    from tidemill.outputs.datasets.builder import BuildOutcome
    from tidemill.outputs.rollups.roller import Rebuilt
    from tidemill.outputs.windows.refresh import WindowRefresh
    from tidemill.pipeline.reports import StreamTick, TickReport
    from tidemill.pipeline.retention import ExpiryPlan
    from tidemill.raw.compaction.column_rewrite import RemadeColumns
    from tidemill.raw.compaction.packer import Packed, PackRound, PackStep
    from tidemill.raw.retract import RetractionPlan, Step


def tick(report: TickReport, *, details: bool) -> Document:
    """What a round did; each tile and window with its reason only on request."""
    return {
        "now": format_instant(report.now),
        "took": took(report.seconds),
        "streams": [_stream(done, details=details) for done in busy(report)],
        "delivered": [
            {"sink": one.sink, "events": one.delivered, "error": one.error, "next_try": instant(one.next_try)}
            for one in report.delivered
        ],
        "expired": [expiry_step(step) for step in report.expired],
        "faults": [fault(one) for one in report.faults],
    }


@dataclass(frozen=True, slots=True)
class Busy:
    """A stream for which something was done."""

    tick: StreamTick
    builds: Sequence[BuildOutcome]
    results: Sequence[WindowRefresh]  # of streaming windows that were published or withdrawn


def busy(report: TickReport) -> Iterator[Busy]:
    by_stream: dict[str, list[BuildOutcome]] = {}
    for one in report.builds:
        by_stream.setdefault(one.key.stream, []).append(one)
    for done in report.streams:
        builds = by_stream.get(done.stream, [])
        results = [one for one in report.results.get(done.stream, ()) if not one.idle]
        if builds or results or not done.idle:
            yield Busy(done, sorted(builds, key=lambda one: one.key), results)


def _stream(of: Busy, *, details: bool) -> Document:
    done, builds = of.tick, of.builds
    plain: dict[str, object] = {
        "stream": done.stream,
        "batch": _batch(done) if done.batch is not None else None,
        "tiles": by_level(done.tiles),
        "merged_runs": done.merged_runs,
        "index": _indexed(done),
        "packed": _pack_round(done.packed),
        "columns": None if done.columns is None else asdict(done.columns),
        "chains": _chains(done),
        "windows": _windows(done, builds),
        "results": refreshed(of.results),
    }
    if details:
        plain["rebuilt"] = [
            {
                "level": tile.key.level,
                "start": format_instant(tile.key.start),
                "revision": tile.revision,
                "rows": tile.rows,
                "slices": tile.slices,
                "reason": tile.reason,
            }
            for tile in in_order(done.tiles)
        ]
        plain["builds"] = [outcome(one) for one in builds]
    return plain


def columns(stream: str, done: RemadeColumns) -> Document:
    """Which columns of raw were made again, and what is left."""
    return {"stream": stream, **asdict(done)}


def _chains(done: StreamTick) -> Document | None:
    if done.chains is None:
        return None
    folded, compacted = done.chains.folded, done.chains.compacted
    return {
        "slices": folded.slices,
        "deltas": folded.deltas,
        "made_again": folded.remade,
        "compacted": None
        if compacted is None
        else {
            "chains": compacted.chains,
            "deltas": compacted.deltas,
            "bytes_before": compacted.bytes_before,
            "bytes_after": compacted.bytes_after,
            "reasons": dict(compacted.reasons),
            "pieces": compacted.pieces,
        },
    }


def _indexed(done: StreamTick) -> Document | None:
    if done.indexed is None:
        return None
    return {"built": done.indexed.built, "removed": done.indexed.removed, "entries": done.indexed.entries}


def _windows(done: StreamTick, builds: Sequence[BuildOutcome]) -> Document | None:
    if done.windows is None:
        return None
    found = by_outcome(builds)
    return {
        "queued": done.windows.queued,
        **{word: found[word] for word in ("built", "failed", "lost")},
        "waiting": dict(sorted(done.windows.waiting.items())),
        "ignored_slices": done.windows.ignored,
        "withdrawn": done.windows.withdrawn,
        "damaged": done.damaged,
    }


def by_outcome(builds: Sequence[BuildOutcome]) -> Counter[str]:
    return Counter(map(outcome_word, builds))


def in_order(tiles: Sequence[Rebuilt]) -> list[Rebuilt]:
    """By level, then by time."""
    return sorted(tiles, key=lambda tile: (NAMES.index(tile.key.level), tile.key.start))


def by_level(tiles: Sequence[Rebuilt]) -> dict[str, int]:
    found: dict[str, int] = {}
    for tile in in_order(tiles):
        found[tile.key.level] = found.get(tile.key.level, 0) + 1
    return found


def _batch(done: StreamTick) -> Document:
    assert done.batch is not None
    results = done.batch.record.results
    return {
        "id": done.batch.id,
        "slices": len(results),
        "failed_slices": sum(1 for result in results if result.error is not None),
        "raw_parts": done.batch.raw_parts,
        "raw_bytes": done.batch.raw_bytes,
        "counts": counts(total([result.counts for result in results])),
    }


def retraction(plan: RetractionPlan, done: SliceEntry | None) -> Document:
    """The plan, and the slice once it was carried out."""
    return {
        "slice": plan.entry.id,
        "stream": plan.entry.slice.stream,
        "reason": plan.reason,
        "why": plan.why,
        "steps": [{"step": _STEPS[type(step).__name__], **_fields(step)} for step in plan.steps],
        "retracted": None if done is None else entry(done),
    }


@dataclass(frozen=True, slots=True)
class Remaking:
    """What is or would be made again from raw; None: not requested."""

    tiles: Mapping[str, int] | None  # by level
    sealed: int  # 5s tiles whose raw has expired
    parts: int | None  # of the index


def remade(stream: str, of: Remaking, *, done: bool) -> Document:
    tiles = None if of.tiles is None else {"tiles": of.tiles, "sealed_tiles": of.sealed}
    parts = None if of.parts is None else {"parts": of.parts}
    return {"stream": stream, "done": done, "rollups": tiles, "index": parts}


def expiry(plan: ExpiryPlan, done: Sequence[ExpiryStep] | None) -> Document:
    """The plan, and what was deleted once it was carried out."""
    return {
        "now": format_instant(plan.now),
        "steps": [expiry_step(step) for step in plan.steps],
        "expired": None if done is None else [expiry_step(step) for step in done],
    }


def expiry_step(step: ExpiryStep) -> Document:
    return {
        "stream": step.stream,
        "what": step.what,
        "keep": format_duration(step.keep),
        "before": format_instant(step.before),
        "files": step.files,
        "rows": step.rows,
        "bytes": step.bytes,
        "windows": step.windows,
        "held_by": step.held_by,
    }


_STEPS: Final = {"RecordRetracted": "retract", "Undo": "undo_batch", "DecideAgain": "judge_again"}


def _fields(step: Step) -> Document:
    return {field.name: getattr(step, field.name) for field in fields(step)}


def packing(steps: Sequence[PackStep], done: Sequence[Packed] | None, waiting: Mapping[str, int]) -> Document:
    """The plan, and the outcome once it was carried out; by stream how many slices wait for others."""
    return {
        "steps": [_pack_step(one) for one in steps],
        "packed": None if done is None else [_packed(one) for one in done],
        "waiting": dict(waiting),
    }


def _pack_step(of: PackStep) -> Document:
    return {
        "stream": of.stream,
        "slices": list(of.slices),
        "rows": of.rows,
        "bytes": of.bytes,
        "parts_before": of.parts_before,
        "days": list(of.days),
    }


def _packed(of: Packed) -> Document:
    return {
        "stream": of.stream,
        "parts": list(of.parts),
        "slices": list(of.slices),
        "rows": of.rows,
        "bytes_before": of.bytes_before,
        "bytes_after": of.bytes_after,
        "took": took(of.seconds),
    }


def _pack_round(of: PackRound | None) -> Document | None:
    """What a round packed of a stream."""
    if of is None:
        return None
    return {
        "groups": len(of.packed),
        "slices": sum(len(one.slices) for one in of.packed),
        "rows": sum(one.rows for one in of.packed),
        "parts": sum(len(one.parts) for one in of.packed),
        "waiting": of.waiting,
    }
