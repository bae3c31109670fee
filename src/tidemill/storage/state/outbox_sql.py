"""The SQL of the outbox: events in the order they were entered, each once, and how far each sink has read.

Every function runs inside a transaction that the caller has opened: an event is entered together with the
change it reports, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.model.windows import OutboxEvent
from tidemill.storage.state.database import Connection, greater
from tidemill.storage.state.rows import EVENT, event_from, event_row


def enter(db: Connection, events: Iterable[OutboxEvent]) -> None:
    """Enter events. There is one writer at a time and no row is ever deleted, so the next `seq` is higher
    than all before."""
    db.executemany(
        "INSERT INTO outbox (id, type, stream, time, data) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO NOTHING",
        map(event_row, events),
    )


def page(db: Connection, after: int = 0, limit: int = 1000, stream: str | None = None) -> list[OutboxEvent]:
    of_stream, value = ("", ()) if stream is None else (" AND stream = ?", (stream,))
    rows = db.execute(
        f"SELECT {EVENT} FROM outbox WHERE seq > ?{of_stream} ORDER BY seq LIMIT ?", (after, *value, limit)
    ).fetchall()
    return [event_from(row) for row in rows]


def delivered(db: Connection, sink: str) -> int:
    row = db.execute("SELECT seq FROM deliveries WHERE sink = ?", (sink,)).fetchone()
    return int(row[0]) if row else 0


def set_delivered(db: Connection, sink: str, seq: int) -> None:
    db.execute(
        "INSERT INTO deliveries (sink, seq) VALUES (?, ?)"
        f" ON CONFLICT (sink) DO UPDATE SET seq = {greater('deliveries.seq', 'excluded.seq')}",
        (sink, seq),
    )
