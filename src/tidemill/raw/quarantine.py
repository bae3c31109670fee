"""Reads quarantine, and takes records out of it that are to be decided again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.errors import InputError
from tidemill.model.slices import RecordOutcome, Reject, set_hash
from tidemill.raw.quarantine_tenants import RowFilter
from tidemill.raw.tables import INSTANT, QUARANTINE, QUARANTINE_STATS
from tidemill.storage.tables.parts import read_footer, read_part, write_part
from tidemill.storage.tables.snapshot import Part, Range, Snapshot
from tidemill.storage.tables.table import Table

Place = tuple[int, str, int]  # arrival, slice, line

REPLAY: Final = "replay"  # the source of slices that come from quarantine
_REPLAYED = ["slice", "line", "arrival", "reason", "tenant", "payload"]
REASONS = (RecordOutcome.CONFLICT.value, *(reject.value for reject in Reject))


def read_quarantine(
    snapshot: Snapshot | None,
    *,
    reason: str | None = None,
    slice_id: str | None = None,
    limit: int | None = None,
    after: Place | None = None,
    of: RowFilter | None = None,
    outcome: str | None = None,
) -> pa.Table:
    """Rows by (arrival, slice, line), newest arrival first; those after the row `after`, filtered by `of`.
    With a limit, no more than that and one part are in memory."""
    _check(reason)
    if snapshot is None:
        return QUARANTINE.empty_table()
    ranges: dict[str, Range] = {"slice": (slice_id, slice_id)} if slice_id is not None else {}
    if after is not None:
        ranges["arrival"] = (None, after[0])
    whole = QUARANTINE.empty_table()
    for part in sorted(snapshot.select(ranges=ranges), key=_newest, reverse=True):
        if limit is not None and whole.num_rows >= limit > 0 and _newest(part) < _oldest(whole):
            break
        path = snapshot.root / part.path
        rows = read_part(path)
        if reason is not None:
            rows = rows.filter(pc.equal(rows.column("reason"), reason))
        if outcome is not None:
            rows = rows.filter(pc.equal(rows.column("outcome"), outcome))
        if slice_id is not None:
            rows = rows.filter(pc.equal(rows.column("slice"), slice_id))
        if after is not None:
            rows = rows.filter(_behind(rows, after))
        rows = rows.cast(QUARANTINE)
        whole = _first(pa.concat_tables([whole, of(rows) if of is not None else rows]), limit)
    return whole


def _first(rows: pa.Table, limit: int | None) -> pa.Table:
    order = pc.sort_indices(
        rows, sort_keys=[("arrival", "descending"), ("slice", "ascending"), ("line", "ascending")]
    )
    return rows.take(order[:limit] if limit is not None else order)


def _newest(part: Part) -> int:
    found = part.maxs.get("arrival")
    return found if isinstance(found, int) else (1 << 63) - 1


def _oldest(rows: pa.Table) -> int:
    return int(pc.min(rows.column("arrival").cast(pa.int64())).as_py())


def _behind(rows: pa.Table, after: Place) -> pa.ChunkedArray:
    arrival, slice_id, line = rows.column("arrival"), rows.column("slice"), rows.column("line")
    at = pa.scalar(after[0], pa.int64()).cast(INSTANT)
    later = pc.or_(
        pc.greater(slice_id, after[1]),
        pc.and_(pc.equal(slice_id, after[1]), pc.greater(line, after[2])),
    )
    return pc.or_(pc.less(arrival, at), pc.and_(pc.equal(arrival, at), later))


@dataclass(frozen=True, slots=True)
class QuarantineReplay:
    """What leaves quarantine: its bytes as NDJSON, and the parts it was in."""

    content: bytes
    records: int
    slices: Sequence[str]
    lines: Sequence[bytes]  # the records it is made of …
    of: Sequence[str]  # … and the slice of each
    parts: Sequence[Part]
    unnamed: Mapping[int, tuple[str, int]]  # lines of it that name no tenant -> slice and line they came from

    def by_slice(self) -> list[QuarantineReplay]:
        """The same, one for each slice that the records were rejected from, first arrival first."""
        numbers_of: dict[str, list[int]] = {}
        for number, name in enumerate(self.of):
            numbers_of.setdefault(name, []).append(number)
        return [
            replace(
                self,
                content=b"".join(self.lines[n] for n in numbers),
                records=len(numbers),
                slices=[name],
                lines=[self.lines[n] for n in numbers],
                of=[name] * len(numbers),
                unnamed={at: self.unnamed[n + 1] for at, n in enumerate(numbers, 1) if n + 1 in self.unnamed},
            )
            for name, numbers in numbers_of.items()
        ]


def take_out(table: Table, reason: str | None) -> QuarantineReplay | None:
    """The records to decide again, in the order of their first arrival; nothing is changed yet."""
    _check(reason)
    snapshot = table.snapshot()
    found, parts = [], []
    for part in snapshot.parts:
        rows = read_part(table.root / part.path, _REPLAYED)
        matching = rows.filter(pc.equal(rows.column("reason"), reason)) if reason is not None else rows
        if matching.num_rows:
            found.append(matching)
            parts.append(part)
    if not found:
        return None
    whole = pa.concat_tables(found)
    order = pc.sort_indices(
        whole, sort_keys=[("arrival", "ascending"), ("slice", "ascending"), ("line", "ascending")]
    )
    whole = whole.take(order)
    lines = [as_line(payload) + b"\n" for payload in whole.column("payload").to_pylist()]
    slices = whole.column("slice").to_pylist()
    positions = zip(*(whole.column(name).to_pylist() for name in ("tenant", "slice", "line")), strict=True)
    return QuarantineReplay(
        content=b"".join(lines),
        records=len(lines),
        slices=sorted(set(slices)),
        lines=lines,
        of=slices,
        parts=parts,
        unnamed={n: (name, line) for n, (tenant, name, line) in enumerate(positions, 1) if tenant is None},
    )


def as_line(payload: bytes) -> bytes:
    """A record as a replay has it: a line end inside it (an array element) becomes white space, so that it
    stays one record."""
    return payload.replace(b"\r", b" ").replace(b"\n", b" ")


def take_away(table: Table, replay: QuarantineReplay, reason: str | None, now: int) -> None:
    """Remove the records from quarantine once the replayed slice is durable; other rows of the same parts
    stay."""
    name = set_hash(part.path for part in replay.parts)[:24]
    staged = []
    for number, part in enumerate(replay.parts):
        path = table.root / part.path
        rows = read_part(path)
        others = pc.not_equal(rows.column("reason"), reason) if reason is not None else None
        rest = rows.filter(others) if others is not None else rows.slice(0, 0)
        if rest.num_rows:
            staged.append(
                write_part(
                    table.staging(name),
                    f"{name}-{number:04d}.parquet",
                    rest,
                    partition={},
                    footer=read_footer(path),
                    stats_columns=QUARANTINE_STATS,
                )
            )
    table.commit(table.publish(staged), list(replay.parts), info={"replayed": name}, now=now)
    table.clean_staging()


def _check(reason: str | None) -> None:
    if reason is not None and reason not in REASONS:
        raise InputError(f"there is no reason {reason!r}", hint=f"reasons: {', '.join(REASONS)}")
