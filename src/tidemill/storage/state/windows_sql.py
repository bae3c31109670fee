"""The SQL of windows and their members: declare, assign, find due ones, evaluate, force, read.

Every function runs inside a transaction that the caller has opened, and costs no more than the windows it
touches. `window_rules` has the transitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tidemill.model.errors import StorageError
from tidemill.model.slices import SliceEntry, SliceStatus, contribution_of, set_hash
from tidemill.model.time import Interval
from tidemill.model.windows import (
    Dataset,
    Evaluation,
    Member,
    MemberCounts,
    OutboxEvent,
    Phase,
    Undecided,
    Window,
    WindowKey,
)
from tidemill.storage.state import outbox_sql, window_rules
from tidemill.storage.state.database import EVERY, LOCKED, Connection
from tidemill.storage.state.ledger_sql import ENTRY, entry_by_id, entry_of
from tidemill.storage.state.rows import (
    MEMBER,
    WINDOW_COLUMNS,
    decision_code,
    from_row,
    interval,
    member_from,
    row_of_window,
    runs_text,
    window_from_row,
)
from tidemill.storage.state.window_rules import StoredWindow

STAMP: Final = "UPDATE counters SET value = value + 1 WHERE name = 'version' RETURNING value"
WINDOW: Final = ", ".join(WINDOW_COLUMNS)
_WINDOW_OF: Final = ", ".join(f"w.{column}" for column in WINDOW_COLUMNS)
UNASSIGNED: Final = (
    f"SELECT {ENTRY} FROM slices WHERE seq IN"
    " (SELECT slice FROM unlaid WHERE stream = ? ORDER BY slice LIMIT ?) ORDER BY seq"
)
CHANGED: Final = f"SELECT {WINDOW} FROM windows INDEXED BY windows_due WHERE due = 1 AND stream = ?"
CHECKED: Final = (
    f"SELECT {WINDOW} FROM windows INDEXED BY windows_check"
    " WHERE due = 0 AND check_at IS NOT NULL AND stream = ? AND check_at <= ?"
)
_MEMBERS: Final = (
    f"SELECT {MEMBER} FROM window_slices m JOIN slices s ON s.seq = m.slice"
    " LEFT JOIN slices o ON o.id = s.replays"
    " WHERE m.stream = ? AND m.start = ? AND m.member = 1"
)
_ENTER_MEMBER: Final = (
    "INSERT INTO window_slices (stream, start, slice, member, desired, observed, ignored, runs)"
    " VALUES (?, ?, ?, 1, 0, 0, NULL, ?) ON CONFLICT (stream, start, slice)"
    " DO UPDATE SET member = 1, runs = excluded.runs "
    " WHERE window_slices.member = 0 OR window_slices.runs IS NOT excluded.runs"
)
_LOAD: Final = f"SELECT {WINDOW} FROM windows WHERE stream = ? AND start = ? AND span = ?"
_INSERT: Final = f"INSERT INTO windows ({WINDOW}) VALUES ({', '.join('?' * len(WINDOW_COLUMNS))})"
_UPDATE: Final = (
    f"UPDATE windows SET {', '.join(f'{column} = ?' for column in WINDOW_COLUMNS[3:])}"
    " WHERE stream = ? AND start = ? AND span = ?"
)
_SET_MEMBER: Final = (
    "UPDATE window_slices SET desired = ?, ignored = ? WHERE stream = ? AND start = ? AND slice = ?"
)
_FORGET_LEFT: Final = (
    "DELETE FROM window_slices WHERE stream = ? AND start = ? AND member = 0 AND observed = 0"
)


def stamp(db: Connection) -> int:
    """A version that no window has had; all windows of a transaction may share it."""
    return int(db.execute(STAMP).fetchone()[0])


def load(db: Connection, key: WindowKey) -> StoredWindow | None:
    row = db.execute(_LOAD, (key.stream, key.start, key.span)).fetchone()
    return window_from_row(row) if row else None


def hold(db: Connection, key: WindowKey) -> StoredWindow | None:
    """`load`, and lock the row for a change."""
    row = db.execute(f"{_LOAD} {LOCKED}", (key.stream, key.start, key.span)).fetchone()
    return window_from_row(row) if row else None


def save(db: Connection, stored: StoredWindow, version: int) -> None:
    row = row_of_window(stored, version)
    db.execute(_UPDATE, (*row[3:], *row[:3]))


def members(db: Connection, key: WindowKey) -> list[Member]:
    rows = db.execute(f"{_MEMBERS} ORDER BY m.slice", (key.stream, key.start)).fetchall()
    return [member_from(row) for row in rows]


# -- assigning slices to windows


def span(db: Connection, stream: str) -> int | None:
    row = db.execute("SELECT span FROM layouts WHERE stream = ?", (stream,)).fetchone()
    return int(row[0]) if row else None


def layout(db: Connection, stream: str) -> tuple[int, str] | None:
    row = db.execute("SELECT span, declared FROM layouts WHERE stream = ?", (stream,)).fetchone()
    return (int(row[0]), str(row[1])) if row else None


def declare_layout(db: Connection, stream: str, new: int, declared: str) -> None:
    assert new > 0, new
    old = layout(db, stream)
    if old == (new, declared):
        return
    db.execute(
        "INSERT INTO layouts (stream, span, declared) VALUES (?, ?, ?) ON CONFLICT (stream)"
        " DO UPDATE SET span = excluded.span, declared = excluded.declared",
        (stream, new, declared),
    )
    if old is None:  # nothing can have been assigned yet
        return
    if old[0] == new:  # the windows are the same ones, evaluated by other rules
        db.execute("UPDATE windows SET due = 1, version = ? WHERE stream = ?", (stamp(db), stream))
        if old[1].partition(" ")[0] != declared.partition(" ")[0]:
            _assign_again(db, stream)
        return
    db.execute("DELETE FROM windows WHERE stream = ?", (stream,))
    db.execute("DELETE FROM window_slices WHERE stream = ?", (stream,))
    db.execute(
        "INSERT INTO unlaid (stream, slice)"
        " SELECT stream, seq FROM slices WHERE stream = ? AND status = 'accepted' ON CONFLICT DO NOTHING",
        (stream,),
    )


def _assign_again(db: Connection, stream: str) -> None:
    """Slices without bounds may cover something else by other rules: remove them from their windows, to be
    assigned again."""
    unbound = "SELECT seq FROM slices WHERE stream = ? AND declared_start IS NULL"
    of_them = f"stream = ? AND slice IN ({unbound})"
    db.execute(
        f"UPDATE window_slices SET member = 0, desired = 0, ignored = NULL WHERE {of_them}", (stream, stream)
    )
    db.execute(f"DELETE FROM window_slices WHERE observed = 0 AND {of_them}", (stream, stream))
    db.execute(
        f"INSERT INTO unlaid (stream, slice) SELECT ?, seq FROM slices"
        f" WHERE status = 'accepted' AND seq IN ({unbound}) ON CONFLICT DO NOTHING",
        (stream, stream),
    )


def mark_reached_due(db: Connection, stream: str, reason: str, watermark: int) -> int:
    return db.execute(
        "UPDATE windows SET due = 1 WHERE stream = ? AND phase = 'waiting' AND reason = ?"
        " AND start <= ? - span",
        (stream, reason, watermark),
    ).rowcount


def mark_receded_due(db: Connection, stream: str, watermark: int) -> int:
    return db.execute(
        "UPDATE windows SET due = 1 WHERE stream = ? AND phase = 'built' AND start > ? - span AND due = 0",
        (stream, watermark),
    ).rowcount


def forget(db: Connection, stream: str, before: int) -> int:
    width = span(db, stream)
    if width is None:
        return 0
    where = (stream, before - width)
    db.execute("DELETE FROM window_slices WHERE stream = ? AND start <= ?", where)
    return db.execute("DELETE FROM windows WHERE stream = ? AND start <= ?", where).rowcount


def unassigned_slices(db: Connection, stream: str, limit: int) -> list[SliceEntry]:
    return [from_row(row) for row in db.execute(UNASSIGNED, (stream, limit)).fetchall()]


def assign(
    db: Connection,
    stream: str,
    windows: Mapping[str, Iterable[int]],
    runs: Mapping[str, Mapping[int, Sequence[Interval]]],
) -> None:
    width = span(db, stream)
    if width is None:
        raise StorageError(
            f"the windows of stream {stream} are not assigned",
            hint="declare `aggregation_span` on the stream; the next round assigns its slices",
        )
    touched: set[int] = set()
    for slice_id, starts in windows.items():
        entry = entry_of(db, stream, slice_id)
        if entry.status is not SliceStatus.ACCEPTED:
            continue  # it was retracted or sent back meanwhile
        covered = runs.get(slice_id)
        for start in starts:
            assert start % width == 0, f"{start} is not the start of a window of {width}"
            text = None if covered is None else runs_text(covered.get(start, ()))
            if db.execute(_ENTER_MEMBER, (stream, start, entry.seq, text)).rowcount:
                touched.add(start)
        db.execute("DELETE FROM unlaid WHERE stream = ? AND slice = ?", (stream, entry.seq))
    version = stamp(db) if touched else 0
    for start in touched:
        _touch(db, WindowKey(stream, start, width), version)


def _touch(db: Connection, key: WindowKey, version: int) -> None:
    """Make a window due; create it if it does not exist."""
    changed = db.execute(
        "UPDATE windows SET due = 1, version = ? WHERE stream = ? AND start = ?",
        (version, key.stream, key.start),
    )
    if not changed.rowcount:
        db.execute(_INSERT, row_of_window(StoredWindow(Window(key, version), due=True), version))


# -- evaluating


def due(db: Connection, stream: str, now: int, limit: int) -> Iterator[tuple[Window, list[Member]]]:
    rows = db.execute(f"{CHANGED} ORDER BY start LIMIT ?", (stream, limit)).fetchall()
    rows += db.execute(f"{CHECKED} ORDER BY start LIMIT ?", (stream, now, limit)).fetchall()
    for row in sorted(rows, key=lambda row: int(row[1]))[:limit]:
        window = window_from_row(row).window
        yield window, members(db, window.key)


def undecided(db: Connection, stream: str) -> list[Undecided]:
    rows = db.execute(
        "SELECT s.id, s.seq, coalesce(o.arrival, s.arrival), s.declared_start, s.declared_end, s.status,"
        " s.retry_at FROM slices s INDEXED BY slices_by_status LEFT JOIN slices o ON o.id = s.replays"
        " WHERE s.stream = ? AND s.status IN ('pending', 'failed') ORDER BY s.seq",
        (stream,),
    ).fetchall()
    return [
        Undecided(
            slice=id_,
            seq=seq,
            arrival=arrival,
            declared=interval(start, end),
            failed=status == SliceStatus.FAILED,
            retried=status == SliceStatus.FAILED and retry_at is not None,
        )
        for id_, seq, arrival, start, end, status, retry_at in rows
    ]


def evaluate(db: Connection, evaluated: Sequence[Evaluation]) -> list[WindowKey]:
    void: list[WindowKey] = []
    version = stamp(db)
    for evaluation in evaluated:
        stored = hold(db, evaluation.key)
        if stored is None or stored.window.version != evaluation.version or _is_unblocked(db, evaluation):
            void.append(evaluation.key)
            continue
        present = members(db, evaluation.key)
        if present or stored.window.revision:
            _record_evaluation(db, evaluation, present)
            save(db, window_rules.evaluated(stored, evaluation), version)
        else:
            key = (evaluation.key.stream, evaluation.key.start)
            db.execute("DELETE FROM window_slices WHERE stream = ? AND start = ?", key)
            db.execute("DELETE FROM windows WHERE stream = ? AND start = ?", key)
        outbox_sql.enter(db, evaluation.events)
    return void


def _is_unblocked(db: Connection, evaluation: Evaluation) -> bool:
    """Whether the slice that the window was to wait for has been decided meanwhile."""
    if evaluation.blocked_by is None:
        return False
    row = db.execute("SELECT status FROM slices WHERE seq = ?", (evaluation.blocked_by,)).fetchone()
    return row is None or row[0] not in (SliceStatus.PENDING, SliceStatus.FAILED)


def _record_evaluation(db: Connection, evaluation: Evaluation, present: Sequence[Member]) -> None:
    key = evaluation.key
    unknown = evaluation.used - {member.name for member in present}
    assert not unknown, f"{key}: {sorted(unknown)} are no members"
    assert evaluation.desired == set_hash(evaluation.used), f"{key}: desired is not the hash of what is used"
    db.executemany(
        _SET_MEMBER,
        [
            (int(desired), ignored, key.stream, key.start, member.seq)
            for member in present
            for desired, ignored in [(member.name in evaluation.used, evaluation.ignored.get(member.name))]
            if (member.desired, member.ignored) != (desired, ignored)
        ],
    )
    if evaluation.withdraw:
        record_observed(db, key, {})


def record_observed(db: Connection, key: WindowKey, built: Mapping[int, str]) -> None:
    """Record that the window was built from these slices (offset -> name)."""
    row = (key.stream, key.start)
    rows = db.execute(
        "SELECT slice, observed FROM window_slices WHERE stream = ? AND start = ?", row
    ).fetchall()
    decision_codes = {seq: decision_code(contribution_of(name)[1]) for seq, name in built.items()}
    flips = [
        (decision_codes.get(seq, 0), *row, seq)
        for seq, observed in rows
        if observed != decision_codes.get(seq, 0)
    ]
    db.executemany(
        "UPDATE window_slices SET observed = ? WHERE stream = ? AND start = ? AND slice = ?", flips
    )
    unknown = decision_codes.keys() - {seq for seq, _ in rows}
    db.executemany(
        "INSERT INTO window_slices (stream, start, slice, member, desired, observed, ignored)"
        " VALUES (?, ?, ?, 0, 0, ?, NULL)",
        [(*row, seq, decision_codes[seq]) for seq in unknown],
    )
    db.execute(_FORGET_LEFT, row)


def force(
    db: Connection, keys: Sequence[WindowKey], trigger: str, *, reopen: bool = False
) -> list[WindowKey]:
    (newest,) = db.execute("SELECT coalesce(max(seq), 0) FROM slices").fetchone()
    version = stamp(db)
    found: list[WindowKey] = []
    for key in dict.fromkeys(keys):
        stored = hold(db, key)
        if stored is not None:
            save(db, window_rules.forced(stored, trigger, newest if reopen else None), version)
            found.append(key)
    return found


def observe(db: Connection, datasets: Sequence[Dataset], events: Sequence[OutboxEvent]) -> None:
    version = stamp(db)
    for dataset in sorted(datasets, key=lambda dataset: dataset.revision):
        key = dataset.key
        if span(db, key.stream) != key.span:
            continue
        _touch(db, key, version)
        stored = hold(db, key)
        assert stored is not None, key
        if dataset.revision < stored.window.revision:
            continue
        save(db, window_rules.observed(stored, dataset), version)
        entries = {name: entry_by_id(db, contribution_of(name)[0]) for name in dataset.slices}
        record_observed(db, key, {entry.seq: name for name, entry in entries.items() if entry is not None})
    outbox_sql.enter(db, events)


def leave(db: Connection, stream: str, seqs: str, retracted: int) -> None:
    """Remove slices (a JSON list of offsets) from all windows. One of them was retracted; windows that it had
    left earlier may have been built with it."""
    of_them = "stream = ? AND slice IN (SELECT CAST(value AS bigint) FROM json_each(?))"
    rows = db.execute(
        "SELECT start, max(desired), max(CASE WHEN observed != 0 AND slice = ? THEN 1 ELSE 0 END)"
        " FROM window_slices"
        f" WHERE (member = 1 OR slice = ?) AND {of_them} GROUP BY start",
        (retracted, retracted, stream, seqs),
    ).fetchall()
    db.execute(
        f"UPDATE window_slices SET member = 0, desired = 0, ignored = NULL WHERE {of_them}", (stream, seqs)
    )
    db.execute(f"DELETE FROM window_slices WHERE observed = 0 AND {of_them}", (stream, seqs))
    db.execute(f"DELETE FROM unlaid WHERE {of_them}", (stream, seqs))
    width = span(db, stream)
    version = stamp(db)
    for start, desired, built in rows:
        assert width is not None, stream
        stored = hold(db, WindowKey(stream, start, width))
        assert stored is not None, (stream, start)
        save(db, window_rules.without_slices(stored, desired=bool(desired), built=bool(built)), version)


# -- looking


def windows(
    db: Connection,
    stream: str | None = None,
    phase: Phase | None = None,
    span: Interval | None = None,
    *,
    newest: bool = False,
    limit: int | None = None,
) -> list[Window]:
    conditions: dict[str, int | str | None] = {
        "stream = ?": stream,
        "phase = ?": phase.value if phase else None,
        "start >= ?": span.start if span else None,
        "start < ?": span.end if span else None,
    }
    used = {condition: value for condition, value in conditions.items() if value is not None}
    order = "DESC" if newest else "ASC"
    rows = db.execute(
        f"SELECT {WINDOW} FROM windows WHERE {' AND '.join(used) or 'true'}"
        f" ORDER BY start {order}, stream {order} LIMIT ?",
        (*used.values(), EVERY if limit is None else limit),
    ).fetchall()
    return [window_from_row(row).window for row in rows]


def with_members(
    db: Connection, stream: str, within: Interval | None, limit: int
) -> list[tuple[Window, list[Member]]]:
    """The first windows that start in a span (or at any time), each with its members. Takes two queries."""
    found = windows(db, stream, span=within, limit=limit)
    if not found:
        return []
    rows = db.execute(
        f"SELECT m.start, {MEMBER} FROM window_slices m JOIN slices s ON s.seq = m.slice"
        " LEFT JOIN slices o ON o.id = s.replays"
        " WHERE m.stream = ? AND m.start BETWEEN ? AND ? AND m.member = 1 ORDER BY m.start, m.slice",
        (stream, found[0].key.start, found[-1].key.start),
    )
    of_start: dict[int, list[Member]] = {window.key.start: [] for window in found}
    for start, *row in rows:
        of_start[start].append(member_from(row))
    return [(window, of_start[window.key.start]) for window in found]


def counts(db: Connection, stream: str) -> dict[Phase, int]:
    rows = db.execute(
        "SELECT phase, count(*) FROM windows INDEXED BY windows_by_phase WHERE stream = ? GROUP BY phase",
        (stream,),
    ).fetchall()
    return dict.fromkeys(Phase, 0) | {Phase(phase): count for phase, count in rows}


def member_counts(db: Connection, key: WindowKey) -> MemberCounts:
    if load(db, key) is None:
        return MemberCounts()
    counts = db.execute(
        "SELECT coalesce(sum(m.desired), 0), count(CASE WHEN m.observed = s.judgement + 1 THEN 1 END),"
        " count(m.ignored), coalesce(sum(CASE WHEN m.desired = 1 THEN s.rejected END), 0)"
        " FROM window_slices m JOIN slices s ON s.seq = m.slice"
        " WHERE m.stream = ? AND m.start = ? AND m.member = 1",
        (key.stream, key.start),
    ).fetchone()
    return MemberCounts(*map(int, counts))


def windows_touched(db: Connection, slice_id: str) -> int:
    entry = entry_by_id(db, slice_id)
    if entry is None:
        return 0
    where = (entry.slice.stream, entry.seq)
    found = db.execute(
        "SELECT count(*) FROM window_slices WHERE stream = ? AND slice = ? AND member = 1", where
    )
    return int(found.fetchone()[0])


def windows_of(db: Connection, slice_id: str, limit: int | None = None) -> list[tuple[Window, Member]]:
    entry = entry_by_id(db, slice_id)
    if entry is None:
        return []
    rows = db.execute(
        f"SELECT {_WINDOW_OF}, {MEMBER} FROM (SELECT * FROM window_slices"
        " WHERE slice = ? AND member = 1 AND stream = ? ORDER BY start LIMIT ?) m"
        " JOIN windows w ON w.stream = m.stream AND w.start = m.start"
        " JOIN slices s ON s.seq = m.slice LEFT JOIN slices o ON o.id = s.replays ORDER BY m.start",
        (entry.seq, entry.slice.stream, EVERY if limit is None else limit),
    ).fetchall()
    width = len(WINDOW_COLUMNS)
    return [(window_from_row(row[:width]).window, member_from(row[width:])) for row in rows]
