"""Reading quarantine, and taking out of it what is to be judged again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.accept.tables import QUARANTINE, QUARANTINE_STATS
from tidemill.lake.parts import read_footer, write_part
from tidemill.lake.snapshot import Part, Snapshot
from tidemill.lake.table import Table
from tidemill.model.errors import InputError
from tidemill.model.slices import Outcome, Reject, set_hash

REPLAY: Final = "replay"  # the source of slices that come out of quarantine
_REPLAYED = ["slice", "line", "arrival", "reason", "payload"]
REASONS = (Outcome.CONFLICT.value, *(reject.value for reject in Reject))


def read_quarantine(
    snapshot: Snapshot | None,
    *,
    reason: str | None = None,
    slice_id: str | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Rows in the order of (arrival, slice, line), newest arrival first."""
    _check(reason)
    if snapshot is None:
        return QUARANTINE.empty_table()
    ranges = {"slice": (slice_id, slice_id)} if slice_id is not None else None
    found = [QUARANTINE.empty_table()]
    for path in snapshot.paths(snapshot.select(ranges=ranges)):
        rows = pq.read_table(path, partitioning=None)
        if reason is not None:
            rows = rows.filter(pc.equal(rows.column("reason"), reason))
        if slice_id is not None:
            rows = rows.filter(pc.equal(rows.column("slice"), slice_id))
        found.append(rows.cast(QUARANTINE))
    whole = pa.concat_tables(found)
    order = pc.sort_indices(
        whole, sort_keys=[("arrival", "descending"), ("slice", "ascending"), ("line", "ascending")]
    )
    return whole.take(order[:limit] if limit is not None else order)


@dataclass(frozen=True, slots=True)
class Replay:
    """What leaves quarantine: its bytes as NDJSON, and the parts it was in."""

    content: bytes
    records: int
    slices: Sequence[str]
    parts: Sequence[Part]


def take_out(table: Table, reason: str | None) -> Replay | None:
    """The records to judge again, in the order in which they first came; nothing is changed yet."""
    _check(reason)
    snapshot = table.snapshot()
    found, parts = [], []
    for part in snapshot.parts:
        rows = pq.read_table(table.root / part.path, partitioning=None, columns=_REPLAYED)
        mine = rows.filter(pc.equal(rows.column("reason"), reason)) if reason is not None else rows
        if mine.num_rows:
            found.append(mine)
            parts.append(part)
    if not found:
        return None
    whole = pa.concat_tables(found)
    order = pc.sort_indices(
        whole, sort_keys=[("arrival", "ascending"), ("slice", "ascending"), ("line", "ascending")]
    )
    payloads = [as_line(payload) for payload in whole.column("payload").take(order).to_pylist()]
    return Replay(
        content=b"".join(payload + b"\n" for payload in payloads),
        records=len(payloads),
        slices=sorted(set(whole.column("slice").to_pylist())),
        parts=parts,
    )


def as_line(payload: bytes) -> bytes:
    """A record as a replay has it: with a line end inside it (an array element) it stays one record, since
    that is only white space there."""
    return payload.replace(b"\r", b" ").replace(b"\n", b" ")


def take_away(table: Table, replay: Replay, reason: str | None, now: int) -> None:
    """Once the replayed slice is durable: its records leave quarantine, others of the same parts stay."""
    name = set_hash(part.path for part in replay.parts)[:24]
    staged = []
    for number, part in enumerate(replay.parts):
        path = table.root / part.path
        rows = pq.read_table(path, partitioning=None)
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
