"""Ledger entries as rows and back, what an entry adds to its stream's totals, and receipts as rows. Pure: no
database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from tidemill.model.gateway import Receipt
from tidemill.model.slices import Codec, Counts, Format, NewSlice, Repeat, SliceEntry, SliceStatus
from tidemill.model.time import Interval

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
    """The number by which a row records that it was built with that decision of its slice; 0 means that it
    was not."""
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
