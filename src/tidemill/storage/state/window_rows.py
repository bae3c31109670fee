"""Windows, their members and events as rows and back. Pure: no database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from tidemill.model.slices import contribution_name
from tidemill.model.time import Interval
from tidemill.model.windows import Member, OutboxEvent, Phase, Window, WindowKey
from tidemill.storage.state.phases import StoredWindow
from tidemill.storage.state.rows import (
    Value,
    decision_code,
    interval,
    repeats_from,
    text_or_none,
    whole,
    whole_or_none,
)

WINDOW_COLUMNS: Final = (
    "stream", "start", "span", "version", "phase", "reason", "detail", "check_at", "ready", "desired",
    "observed", "revision", "sealed", "seal", "file", "rows", "bytes", "built_at", "trigger", "attempts",
    "not_before", "owner", "lease_until", "error", "building", "due", "priority", "blocked_by",
    "rules", "columns", "checksum",
)  # fmt: skip
MEMBER: Final = (  # of `window_slices m` joined with `slices s` and with `o`, the slice that it replays
    "m.slice, s.id, s.judgement, coalesce(o.arrival, s.arrival), s.declared_start, s.declared_end,"
    " s.observed_start, s.observed_end, s.metadata, m.desired, m.observed, m.ignored, coalesce(o.seq, s.seq),"
    " s.rejected, m.runs, s.watermark, s.repeats"
)
EVENT: Final = "seq, id, type, stream, time, data"


def row_of_window(stored: StoredWindow, version: int) -> tuple[Value, ...]:
    window = stored.window
    return (
        window.key.stream, window.key.start, window.key.span, version, window.phase.value,
        window.reason, window.detail, window.check_at, int(window.ready), window.desired, window.observed,
        window.revision, window.sealed, window.seal, window.file, window.rows, window.bytes,
        window.built_at, window.trigger, window.attempts, window.not_before, window.owner,
        window.lease_until, window.error, stored.building, int(stored.due), window.key.priority,
        window.blocked_by, window.rules, window.columns, window.checksum,
    )  # fmt: skip


def window_from_row(row: tuple[Value, ...]) -> StoredWindow:
    (
        stream, start, span, version, phase, reason, detail, check_at, ready, desired, observed, revision,
        sealed, seal, file, rows, bytes_, built_at, trigger, attempts, not_before, owner, lease_until, error,
        building, due, _, blocked_by, rules, columns, checksum,
    ) = row  # fmt: skip
    window = Window(
        key=WindowKey(str(stream), whole(start), whole(span)),
        version=whole(version),
        phase=Phase(str(phase)),
        reason=text_or_none(reason),
        detail=text_or_none(detail),
        check_at=whole_or_none(check_at),
        ready=bool(ready),
        desired=text_or_none(desired),
        observed=text_or_none(observed),
        revision=whole(revision),
        sealed=whole_or_none(sealed),
        seal=whole_or_none(seal),
        file=text_or_none(file),
        rows=whole_or_none(rows),
        bytes=whole_or_none(bytes_),
        built_at=whole_or_none(built_at),
        trigger=text_or_none(trigger),
        attempts=whole(attempts),
        not_before=whole(not_before),
        owner=text_or_none(owner),
        lease_until=whole_or_none(lease_until),
        error=text_or_none(error),
        blocked_by=whole_or_none(blocked_by),
        rules=text_or_none(rules),
        columns=text_or_none(columns),
        checksum=text_or_none(checksum),
    )
    return StoredWindow(window, due=bool(due), building=text_or_none(building))


def member_from(row: tuple[Value, ...]) -> Member:
    (
        seq, id_, decision, arrival, declared_start, declared_end, observed_start, observed_end, metadata,
        desired, observed, ignored, rank, rejected, runs, watermark, repeats,
    ) = row  # fmt: skip
    declared = interval(declared_start, declared_end)
    return Member(
        slice=str(id_),
        seq=whole(seq),
        name=contribution_name(str(id_), whole(decision)),
        arrival=whole(arrival),
        bounds=declared if declared is not None else interval(observed_start, observed_end),
        desired=bool(desired),
        observed=observed == decision_code(whole(decision)),
        ignored=text_or_none(ignored),
        metadata=text_or_none(metadata),
        rank=whole(rank),
        rejected=whole(rejected),
        runs=None if runs is None else runs_from(str(runs)),
        met=whole_or_none(watermark),
        repeats=repeats_from(text_or_none(repeats)),
    )


def runs_text(runs: Sequence[Interval]) -> str:
    """Runs as text: each start and end as the distance from the instant before it, which is short."""
    ends = [instant for run in runs for instant in (run.start, run.end)]
    return " ".join(str(end - before) for before, end in pairwise([0, *ends]))


def runs_from(text: str) -> tuple[Interval, ...]:
    ends = list(accumulate(map(int, text.split())))
    return tuple(Interval(start, end) for start, end in zip(ends[::2], ends[1::2], strict=True))


def event_row(event: OutboxEvent) -> tuple[Value, ...]:
    data = json.dumps(event.data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return (event.id, event.type, event.stream, event.time, data)


def event_from(row: tuple[Value, ...]) -> OutboxEvent:
    seq, id_, type_, stream, time, data = row
    return OutboxEvent(whole(seq), str(id_), str(type_), str(stream), whole(time), json.loads(str(data)))
