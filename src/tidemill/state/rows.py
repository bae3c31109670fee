"""Ledger entries as rows and back, and what an entry adds to its stream's totals. Pure: no database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from tidemill.model.slices import Codec, Counts, Format, NewSlice, SliceEntry, SliceStatus
from tidemill.model.time import Interval

SLICE_COLUMNS: Final = (
    "seq", "id", "stream", "source", "name", "format", "codec", "path", "size", "arrival",
    "declared_start", "declared_end", "status", "records", "accepted", "duplicate", "conflict",
    "rejected", "late", "rejects", "observed_start", "observed_end", "watermark", "batch", "error",
    "landings",
)  # fmt: skip
TOTALS: Final = (
    "pending_slices", "accepted_slices", "failed_slices", "landings", "bytes",
    "records", "accepted", "duplicate", "conflict", "rejected", "late",
)  # fmt: skip

Value = int | str | None


def to_row(entry: SliceEntry) -> tuple[Value, ...]:
    new, counts = entry.slice, entry.counts
    return (
        entry.seq, new.id, new.stream, new.source, new.name, new.format.value, new.codec.value,
        new.path, new.size, new.arrival, *bounds(new.declared), entry.status.value, counts.records,
        counts.accepted, counts.duplicate, counts.conflict, counts.rejected, counts.late,
        rejects_text(counts.rejects), *bounds(entry.observed), entry.watermark, entry.batch,
        entry.error, entry.landings,
    )  # fmt: skip


def from_row(row: tuple[Value, ...]) -> SliceEntry:
    (
        seq, id_, stream, source, name, format_, codec, path, size, arrival, declared_start, declared_end,
        status, records, accepted, duplicate, conflict, rejected, late, rejects, observed_start,
        observed_end, watermark, batch, error, landings,
    ) = row  # fmt: skip
    return SliceEntry(
        seq=_int(seq),
        slice=NewSlice(
            id=str(id_),
            stream=str(stream),
            source=str(source),
            name=str(name),
            format=Format(str(format_)),
            codec=Codec(str(codec)),
            path=str(path),
            size=_int(size),
            arrival=_int(arrival),
            declared=_interval(declared_start, declared_end),
        ),
        status=SliceStatus(str(status)),
        counts=Counts(
            records=_int(records),
            accepted=_int(accepted),
            duplicate=_int(duplicate),
            conflict=_int(conflict),
            rejected=_int(rejected),
            late=_int(late),
            rejects=json.loads(str(rejects)),
        ),
        observed=_interval(observed_start, observed_end),
        watermark=None if watermark is None else _int(watermark),
        batch=None if batch is None else str(batch),
        error=None if error is None else str(error),
        landings=_int(landings),
    )


def contribution(entry: SliceEntry) -> dict[str, int]:
    """What one entry adds to the totals of its stream."""
    counts = entry.counts
    parts = {
        f"{entry.status.value}_slices": 1,
        "landings": entry.landings,
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


def _interval(start: Value, end: Value) -> Interval | None:
    return None if start is None or end is None else Interval(_int(start), _int(end))


def _int(value: Value) -> int:
    assert isinstance(value, int), value
    return value
