"""The SQL of the queue of windows to build: take under a lease, complete, fail, give back.

Every function runs inside a transaction that the caller has opened, so that no window has two owners.
`window_rules` has the transitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tidemill.model.windows import Build, Dataset, OutboxEvent, Phase, WindowKey
from tidemill.storage.state import outbox_sql, window_rules
from tidemill.storage.state.database import LOCKED, UNTAKEN, Connection
from tidemill.storage.state.rows import window_from_row
from tidemill.storage.state.window_rules import StoredWindow
from tidemill.storage.state.windows_sql import WINDOW, hold, members, record_observed, save, stamp

NEVER: Final = (1 << 63) - 1
QUEUED: Final = f"SELECT {WINDOW} FROM windows INDEXED BY windows_queue WHERE phase = 'queued'"
LEASED: Final = f"SELECT {WINDOW} FROM windows INDEXED BY windows_leases WHERE phase = 'building'"
LENGTH: Final = "SELECT count(*) FROM windows INDEXED BY windows_queue WHERE phase = 'queued'"
ORDER: Final = "ORDER BY priority DESC, stream, start"
NEWEST: Final = "ORDER BY priority, stream DESC, start DESC"


def take(
    db: Connection,
    owner: str,
    now: int,
    lease_until: int,
    limit: int,
    streams: Sequence[str] | None,
    *,
    newest: bool,
    void: Mapping[WindowKey, int] | None = None,
    longest: int | None = None,
) -> list[Build]:
    if limit <= 0 or (streams is not None and not streams):
        return []
    names = tuple(streams or ())
    of_streams = f" AND stream IN ({', '.join('?' * len(names))})" if names else ""
    latest = min(now + longest, NEVER) if longest is not None else NEVER  # later: the clock was put back
    rows = db.execute(
        f"{QUEUED} AND (not_before <= ? OR not_before > ?){of_streams} {NEWEST if newest else ORDER}"
        f" LIMIT ? {UNTAKEN}",
        (now, latest, *names, limit),
    ).fetchall()
    queued = [window_from_row(row) for row in rows]
    run_out = _run_out(db, now, of_streams, names, void)
    if not queued and not run_out:
        return []  # a builder that looks again and again writes nothing
    version = stamp(db)
    for stored in run_out:
        lost = window_rules.released(stored, counted=True)
        if lost.window.phase is Phase.QUEUED:
            queued.append(lost)
        else:
            save(db, lost, version)
    builds = []
    for stored in sorted(queued, key=_order, reverse=newest)[:limit]:
        leased = window_rules.taken(stored, owner, lease_until)
        save(db, leased, version)
        found = members(db, leased.window.key)
        used = [member for member in found if member.desired]
        ignored = sum(member.ignored is not None for member in found)
        builds.append(replace(window_rules.build_of(leased, used), ignored=ignored))
    return builds


def _run_out(
    db: Connection,
    now: int,
    of_streams: str,
    names: Sequence[str],
    void: Mapping[WindowKey, int] | None,
) -> list[StoredWindow]:
    """Windows whose leases hold no more: those of `void` that were not renewed since, or by the clock."""
    if void is None:
        rows = db.execute(f"{LEASED} AND lease_until <= ?{of_streams} {UNTAKEN}", (now, *names)).fetchall()
        return [window_from_row(row) for row in rows]
    if not void:
        return []
    leased = [window_from_row(row) for row in db.execute(f"{LEASED}{of_streams} {UNTAKEN}", names).fetchall()]
    return [one for one in leased if void.get(one.window.key) == one.window.lease_until]


def _order(stored: StoredWindow) -> tuple[int, str, int]:
    key = stored.window.key
    return -key.priority, key.stream, key.start


def renew(db: Connection, owner: str, keys: Sequence[WindowKey], lease_until: int) -> list[WindowKey]:
    return [
        key
        for key in keys
        if db.execute(
            "UPDATE windows SET lease_until = ?"
            " WHERE stream = ? AND start = ? AND span = ? AND phase = 'building' AND owner = ?",
            (lease_until, key.stream, key.start, key.span, owner),
        ).rowcount
    ]


def complete(
    db: Connection,
    build: Build,
    dataset: Dataset,
    now: int,
    events: Sequence[OutboxEvent],
    version: int,
) -> bool:
    stored = hold(db, build.key)
    after = None if stored is None else window_rules.completed(stored, build, dataset, now)
    if after is None:
        return False
    save(db, after, version)
    record_observed(db, build.key, {member.seq: member.name for member in build.members})
    outbox_sql.enter(db, events)
    return True


def fail(db: Connection, build: Build, error: str, not_before: int, tries: int) -> bool:
    stored = hold(db, build.key)
    if stored is None or not window_rules.holds(stored, build):
        return False
    save(db, window_rules.failed(stored, error, not_before, tries), stamp(db))
    return True


def release(db: Connection, owner: str) -> int:
    rows = db.execute(f"{LEASED} AND owner = ? {LOCKED}", (owner,)).fetchall()
    version = stamp(db)
    for row in rows:
        save(db, window_rules.released(window_from_row(row)), version)
    return len(rows)


def retry(db: Connection, stream: str, start: int | None = None) -> int:
    of_start, value = ("", ()) if start is None else (" AND start = ?", (start,))
    rows = db.execute(
        f"SELECT {WINDOW} FROM windows WHERE stream = ? AND phase = 'failed'{of_start} {LOCKED}",
        (stream, *value),
    ).fetchall()
    version = stamp(db)
    for row in rows:
        save(db, window_rules.retried(window_from_row(row)), version)
    return len(rows)


def length(db: Connection, stream: str | None = None) -> int:
    of_stream, value = ("", ()) if stream is None else (" AND stream = ?", (stream,))
    return int(db.execute(LENGTH + of_stream, value).fetchone()[0])
