"""The SQL of damaged files, and of the heads of the logs beside the slices.

Every function runs inside a transaction that the caller has opened. A recovered state records no damage; a
scrub finds it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tidemill.model.damage import Damage, FileKind, KnownDamage
from tidemill.storage.log_chain import LogHead
from tidemill.storage.state.database import Connection

_RECORD: Final = (
    "INSERT INTO damages (file, kind, stream, reason, since) VALUES (?, ?, ?, ?, ?) ON CONFLICT (file)"
    " DO UPDATE SET kind = excluded.kind, stream = excluded.stream, reason = excluded.reason"
)


def record(db: Connection, found: Iterable[Damage], now: int) -> None:
    db.executemany(_RECORD, ((one.file, one.kind.value, one.stream, one.reason, now) for one in found))


def damages(db: Connection, stream: str | None = None) -> list[KnownDamage]:
    of_stream, value = ("true", ()) if stream is None else ("stream = ?", (stream,))
    rows = db.execute(
        f"SELECT file, kind, stream, reason, since FROM damages WHERE {of_stream} ORDER BY file", value
    )
    return [
        KnownDamage(Damage(file, FileKind(kind), of, reason), since) for file, kind, of, reason, since in rows
    ]


def clear(db: Connection, files: Iterable[str]) -> None:
    db.executemany("DELETE FROM damages WHERE file = ?", ((file,) for file in files))


# -- logs


def head(db: Connection, log: str) -> LogHead | None:
    row = db.execute("SELECT lines, chain FROM logs WHERE name = ?", (log,)).fetchone()
    return None if row is None else LogHead(*row)


def set_head(db: Connection, log: str, head: LogHead, lines: Sequence[bytes] = ()) -> None:
    db.execute(
        "INSERT INTO logs (name, lines, chain) VALUES (?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET lines = excluded.lines, chain = excluded.chain",
        (log, head.lines, head.chain),
    )
    first = head.lines - len(lines) + 1
    db.executemany(
        "INSERT INTO log_lines (name, number, line) VALUES (?, ?, ?)"
        " ON CONFLICT (name, number) DO UPDATE SET line = excluded.line",
        ((log, first + i, line) for i, line in enumerate(lines)),
    )


def lines(db: Connection, log: str) -> list[bytes]:
    found = db.execute("SELECT line FROM log_lines WHERE name = ? ORDER BY number", (log,))
    return [bytes(line) for (line,) in found]


def forget(db: Connection, log: str) -> None:
    db.execute("DELETE FROM logs WHERE name = ?", (log,))
    db.execute("DELETE FROM log_lines WHERE name = ?", (log,))
