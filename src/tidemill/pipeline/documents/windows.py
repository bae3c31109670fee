"""Windows, datasets and builds as plain data with stable snake_case keys.

Only formats: what a window is and why it waits was decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.model.slices import SliceEntry
from tidemill.model.time import format_duration, format_instant
from tidemill.model.windows import Dataset, Member, Window, WindowKey, WindowStatus
from tidemill.outputs.datasets.damage import repair_command
from tidemill.pipeline.documents.shapes import Document, entry, instant, interval, took
from tidemill.storage.bucket_path import location

if TYPE_CHECKING:
    from tidemill.outputs.datasets.as_of import PastDataset
    from tidemill.outputs.datasets.builder import BuildOutcome
    from tidemill.outputs.datasets.changes import RevisionChanges
    from tidemill.outputs.datasets.reader import RebuildStep, WindowStory, WindowView
    from tidemill.outputs.datasets.timeline import Timeline


def key(of: WindowKey) -> Document:
    return {"stream": of.stream, "start": format_instant(of.start), "end": format_instant(of.end)}


def view(of: WindowView) -> Document:
    window = of.window
    return {
        **key(window.key),
        "window_id": window.key.id,
        "state": of.status.value,
        "reason": of.reason,
        "detail": of.detail,
        "remedy": of.remedy,
        "slices": {"desired": of.desired, "observed": of.observed, "ignored": of.ignored},
        "rejected": of.rejected,
        "current": of.current,
        "revision": window.revision,
        "rows": window.rows,
        "bytes": window.bytes,
        "built_at": instant(window.built_at),
        "age": format_duration(of.age),
    }


def listed(views: Sequence[WindowView], *, more: bool) -> Document:
    return {"windows": [view(one) for one in views], "more": more}


def details(of: WindowStory) -> Document:
    window, rules = of.view.window, of.rules
    lease = {"owner": window.owner, "until": instant(window.lease_until)} if window.owner else None
    return {
        **view(of.view),
        "rules": {
            "aggregation_span": format_duration(rules.span),
            "subject_to_change_window": format_duration(rules.stc),
            "allow_incomplete_windows": rules.allow_incomplete,
            "gap_tolerance": format_duration(rules.gap_tolerance),
            "max_lateness": format_duration(rules.max_lateness),
        },
        "cutoff": format_instant(cutoff(of)),
        "last_arrival": format_instant(of.cutoff),
        "desired_hash": window.desired,
        "observed_hash": window.observed,
        "sealed": window.sealed,
        "trigger": window.trigger,
        "attempts": window.attempts,
        "error": window.error,
        "lease": lease,
        "next": _next(of),
        "file": window.file,
        "members": [member(one) for one in of.members],
        "revisions": [dataset(one, window) for one in of.revisions],
    }


def _next(of: WindowStory) -> Document | None:
    """What takes the window to its next state, and when that can be at the earliest; None if nothing does."""
    window, status = of.view.window, of.view.status
    match status:
        case WindowStatus.WAITING | WindowStatus.FAILED:
            return {"at": instant(window.check_at), "what": of.view.remedy}
        case WindowStatus.READY:
            return {"at": None, "what": "the next round queues it: `tidemill run`"}
        case WindowStatus.QUEUED:
            at = window.not_before or None
            return {"at": instant(at), "what": "a builder takes it: `tidemill run` or `tidemill build`"}
        case WindowStatus.BUILDING:
            return {"at": instant(window.lease_until), "what": "its builder publishes it, or loses its lease"}
        case WindowStatus.BUILT:
            until = format_instant(of.cutoff)
            return {"at": until, "what": f"slices that arrive by {until} make a new revision"}
        case WindowStatus.FINAL:
            return None


def cutoff(of: WindowStory) -> int:
    """From here on the window may be built; late slices can count for longer."""
    return of.view.window.key.end + of.rules.stc


def member(of: Member) -> Document:
    return {
        "slice": of.slice,
        "name": of.name,
        "seq": of.seq,
        "arrival": format_instant(of.arrival),
        "covers": interval(of.bounds),
        "used": of.desired,
        "observed": of.observed,
        "ignored": of.ignored,
        "rejected": of.rejected,
    }


def dataset(of: Dataset, window: Window) -> Document:
    """A revision in the warehouse."""
    return {
        "revision": of.revision,
        "current": is_current(window) and of.revision == window.revision,
        "hash": of.hash,
        "rows": of.rows,
        "bytes": of.bytes,
        "slices": list(of.slices),
        "file": of.file,
    }


def past_dataset(of: PastDataset) -> Document:
    """What a dataset was at an instant of arrival."""
    found = of.revision
    return {
        "at": format_instant(of.at),
        "revision": None if found is None else found.dataset.revision,
        "since": None if found is None else format_instant(found.since),
        "rows": None if found is None else found.dataset.rows,
        "hash": None if found is None else found.dataset.hash,
        "file": None if found is None else found.dataset.file,
        "changed": of.changed,
        "slices_after": list(of.slices_after),
        "not_built": list(of.not_built),
        "reaches_back_to": instant(of.reaches_back_to),
        "revisions": [
            {"revision": one.dataset.revision, "since": format_instant(one.since)} for one in of.kept
        ],
    }


def is_current(window: Window) -> bool:
    """Whether its newest dataset is what it should be."""
    return window.observed is not None and window.observed == window.desired


def newest(of: Window, damage: str | None) -> Document:
    """The newest dataset of a window, and what is wrong with its file."""
    return {
        **key(of.key),
        "window_id": of.key.id,
        "revision": of.revision,
        "current": is_current(of),
        "state": of.phase.value,
        "hash": of.observed,
        "rows": of.rows,
        "bytes": of.bytes,
        "built_at": instant(of.built_at),
        "file": of.file,
        "damage": damage,
        "remedy": None if damage is None else repair_command(of.key),
    }


def datasets(warehouse: Path, found: Sequence[tuple[Window, str | None]], *, more: bool) -> Document:
    """The newest dataset of each window, with what is wrong with its file."""
    listed = [newest(window, damage) for window, damage in found]
    return {"warehouse": location(warehouse), "datasets": listed, "more": more}


def rebuild_plan(stream: str, steps: Sequence[RebuildStep]) -> Document:
    return {"stream": stream, "steps": [step(one) for one in steps]}


def step(of: RebuildStep) -> Document:
    return {
        **key(of.key),
        "action": of.action,
        "revision": of.revision,
        "next_revision": of.next_revision,
        "slices": of.slices,
        "late": of.late,
        "hash": of.hash,
        "reason": of.reason,
    }


def rebuilt(stream: str, steps: Sequence[RebuildStep], outcomes: Sequence[BuildOutcome]) -> Document:
    """The plan, each step with its outcome; null if nothing was done or another builder has it."""
    by_key = last_of(outcomes)
    done = [
        {**step(one), "outcome": outcome(by_key[one.key]) if one.key in by_key else None} for one in steps
    ]
    return {"stream": stream, "steps": done}


def last_of(outcomes: Sequence[BuildOutcome]) -> Mapping[WindowKey, BuildOutcome]:
    return {one.key: one for one in outcomes}


def outcome(of: BuildOutcome) -> Document:
    built = of.dataset
    return {
        **key(of.key),
        "outcome": outcome_word(of),
        "trigger": of.trigger,
        "attempt": of.attempt,
        "revision": built.revision if built else None,
        "rows": built.rows if built else None,
        "bytes": built.bytes if built else None,
        "slices": len(built.slices) if built else None,
        "hash": built.hash if built else None,
        "file": built.file if built else None,
        "error": of.error,
        "took": took(of.seconds),
    }


def outcome_word(of: BuildOutcome) -> str:
    if of.error is not None:
        return "failed"
    return "lost" if of.lost else "built"


def slice_with_windows(of: SliceEntry, pairs: Sequence[tuple[Window, Member]], total: int) -> Document:
    """A slice and the first windows it touches; `total` counts all of them."""
    return {**entry(of), "windows": touched(pairs), "windows_total": total}


def touched(pairs: Sequence[tuple[Window, Member]]) -> list[Document]:
    """The windows of one slice, and whether it counts there."""
    return [
        {
            "start": format_instant(window.key.start),
            "end": format_instant(window.key.end),
            "state": window.phase.value,
            "used": one.desired,
            "observed": one.observed,
            "ignored": one.ignored,
        }
        for window, one in pairs
    ]


def timeline(of: Timeline, stream: str, now: int, cutoff: int, watermark: int | None) -> Document:
    """Instants in the lists are microseconds since the epoch: there may be very many."""
    reasons = sorted({one.reason for one, _ in of.windows or () if one.reason is not None})
    return {
        "stream": stream,
        "now": format_instant(now),
        "window": format_duration(of.width),
        "span": interval(of.span),
        "extent": interval(of.extent),
        "watermark": instant(watermark),
        "cutoff": format_instant(cutoff),
        "total": of.total,
        "states": [status.value for status in WindowStatus],
        "reasons": reasons,
        "windows": None if of.windows is None else _columns(of, reasons),
        "buckets": None if of.stretches is None else _buckets(of),
        "slices": _slices(of),
        "slices_total": of.slices_total,
        "gaps": [[gap.start, gap.end] for gap in of.gaps],
    }


def _columns(of: Timeline, reasons: Sequence[str]) -> Document:
    states = {status: number for number, status in enumerate(WindowStatus)}
    numbers = {reason: number for number, reason in enumerate(reasons)}
    windows = of.windows or ()
    waiting = (WindowStatus.WAITING, WindowStatus.FAILED)
    return {
        "start": [one.start for one, _ in windows],
        "end": [one.start + of.width for one, _ in windows],
        "state": [states[status] for _, status in windows],
        "reason": [
            numbers[one.reason] if one.reason is not None and status in waiting else -1
            for one, status in windows
        ],
        "revision": [one.revision for one, _ in windows],
        "rows": [one.rows for one, _ in windows],
    }


def _buckets(of: Timeline) -> Document:
    stretches = of.stretches or ()
    return {
        "width": of.stretch,
        "start": [one.start for one in stretches],
        **{status.value: [one.counts.get(status, 0) for one in stretches] for status in WindowStatus},
    }


def _slices(of: Timeline) -> Document:
    found = of.slices
    return {
        "id": [one.id for one in found],
        "name": [one.name for one in found],
        "start": [one.start for one in found],
        "end": [one.end for one in found],
        "arrival": [one.arrival for one in found],
        "late": [one.late for one in found],
        "declared": [one.is_declared for one in found],
        "accepted": [one.accepted for one in found],
        "status": [one.status.value for one in found],
    }


def changes(of: RevisionChanges) -> Document:
    return {
        **key(of.key),
        "from": of.old_revision,
        "to": of.new.revision,
        "added": of.added,
        "removed": of.removed,
        "unchanged": of.unchanged,
        "slices": {"added": of.slices_added, "removed": of.slices_removed},
        "columns": list(of.columns),
        "rows": [{"change": change, "row": row} for change, row in of.rows],
    }
