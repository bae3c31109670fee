"""Rows of the state and the values they hold: ledger entries, receipts, windows, their members, events; and
what an entry adds to the totals of its stream. Pure: no database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

from tidemill.model.gateway import Receipt
from tidemill.model.slices import (
    Codec,
    Counts,
    Format,
    NewSlice,
    Repeat,
    SliceEntry,
    SliceStatus,
    contribution_name,
)
from tidemill.model.time import Interval
from tidemill.model.windows import Member, OutboxEvent, Phase, Window, WindowKey
from tidemill.storage.state.window_rules import StoredWindow

SLICE_COLUMNS: Final = (
    "seq", "id", "stream", "source", "name", "format", "codec", "path", "size", "arrival",
    "declared_start", "declared_end", "status", "records", "accepted", "duplicate", "conflict",
    "rejected", "late", "rejects", "observed_start", "observed_end", "watermark", "batch", "error",
    "landings", "metadata", "attempt", "judgement", "accepted_before", "retracted_at", "retract_reason",
    "retried", "failures", "retry_at", "failed_as", "replays", "repeats",
)  # fmt: skip
TRIES: Final = ("failures", "retry_at", "failed_as")  # columns of a slice that only the state knows
TOTALS: Final = (
    "pending_slices", "accepted_slices", "failed_slices", "retracted_slices", "landings", "retried", "bytes",
    "records", "accepted", "duplicate", "conflict", "rejected", "late",
)  # fmt: skip
RECEIPT_COLUMNS: Final = (
    "id", "stream", "tenant", "slice", "first", "records", "window", "at", "repeated",
)  # fmt: skip
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

Value = int | str | None


def to_row(entry: SliceEntry) -> tuple[Value, ...]:
    new, counts = entry.slice, entry.counts
    return (
        entry.seq, new.id, new.stream, new.source, new.name, new.format.value, new.codec.value,
        new.path, new.size, new.arrival, *bounds(new.declared), entry.status.value, counts.records,
        counts.accepted, counts.duplicate, counts.conflict, counts.rejected, counts.late,
        rejects_text(counts.rejects), *bounds(entry.observed), entry.watermark,
        entry.batch, entry.error, entry.landings, new.metadata, entry.attempt,
        entry.decision, entry.accepted_before, entry.retracted_at, entry.retract_reason,
        entry.retried, entry.failures, entry.retry_at,
        entry.failed_as, new.replays, repeats_text(entry.repeats),
    )  # fmt: skip


def from_row(row: tuple[Value, ...]) -> SliceEntry:
    (
        seq, id_, stream, source, name, format_, codec, path, size, arrival, declared_start, declared_end,
        status, records, accepted, duplicate, conflict, rejected, late, rejects, observed_start,
        observed_end, watermark, batch, error, landings, metadata, attempt, decision,
        accepted_before, retracted_at, retract_reason, retried, failures, retry_at, failed_as, replays,
        repeats,
    ) = row  # fmt: skip
    return SliceEntry(
        seq=whole(seq),
        slice=NewSlice(
            id=str(id_),
            stream=str(stream),
            source=str(source),
            name=str(name),
            format=Format(str(format_)),
            codec=Codec(str(codec)),
            path=str(path),
            size=whole(size),
            arrival=whole(arrival),
            declared=interval(declared_start, declared_end),
            metadata=text_or_none(metadata),
            replays=text_or_none(replays),
        ),
        status=SliceStatus(str(status)),
        counts=Counts(
            records=whole(records),
            accepted=whole(accepted),
            duplicate=whole(duplicate),
            conflict=whole(conflict),
            rejected=whole(rejected),
            late=whole(late),
            rejects=json.loads(str(rejects)),
        ),
        observed=interval(observed_start, observed_end),
        watermark=whole_or_none(watermark),
        batch=text_or_none(batch),
        error=text_or_none(error),
        landings=whole(landings),
        attempt=whole(attempt),
        decision=whole(decision),
        accepted_before=whole_or_none(accepted_before),
        retracted_at=whole_or_none(retracted_at),
        retract_reason=text_or_none(retract_reason),
        retried=whole(retried),
        failures=whole(failures),
        retry_at=whole_or_none(retry_at),
        failed_as=text_or_none(failed_as),
        repeats=repeats_from(text_or_none(repeats)),
    )


def contribution(entry: SliceEntry) -> dict[str, int]:
    """What one entry adds to the totals of its stream; a retracted one counts, but its records do not."""
    counts = entry.counts if entry.status is not SliceStatus.RETRACTED else Counts()
    parts = {
        f"{entry.status.value}_slices": 1,
        "landings": entry.landings,
        "retried": entry.retried,
        "bytes": entry.slice.size,
        "records": counts.records,
        "accepted": counts.accepted,
        "duplicate": counts.duplicate,
        "conflict": counts.conflict,
        "rejected": counts.rejected,
        "late": counts.late,
    }
    parts.update((f"reject_{code}", count) for code, count in counts.rejects.items())
    return parts


def bounds(interval: Interval | None) -> tuple[int | None, int | None]:
    return (interval.start, interval.end) if interval else (None, None)


def rejects_text(rejects: Mapping[str, int]) -> str:
    return json.dumps({str(code): count for code, count in sorted(rejects.items())}, separators=(",", ":"))


def repeats_text(repeats: Sequence[Repeat]) -> str | None:
    """The repeats as text; None if there are none, which is the usual case."""
    return json.dumps([one.as_fields() for one in repeats], separators=(",", ":")) if repeats else None


def repeats_from(text: str | None) -> tuple[Repeat, ...]:
    return () if text is None else tuple(Repeat.from_fields(fields) for fields in json.loads(text))


def decision_code(decision: int) -> int:
    """The number with which a row records the decision of its slice that it was built with; 0: it was not
    built."""
    return decision + 1


def interval(start: Value, end: Value) -> Interval | None:
    return None if start is None or end is None else Interval(whole(start), whole(end))


def whole(value: Value) -> int:
    assert isinstance(value, int), value
    return value


def whole_or_none(value: Value) -> int | None:
    return None if value is None else whole(value)


def text_or_none(value: Value) -> str | None:
    return None if value is None else str(value)


def receipt_row(receipt: Receipt) -> tuple[Value, ...]:
    return (
        receipt.id, receipt.stream, receipt.tenant, receipt.slice, receipt.first, receipt.records,
        receipt.window, receipt.at, int(receipt.repeated),
    )  # fmt: skip


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
