"""The SQL of receipts: for a while, the id of an ingestion over HTTP leads to its lines in a slice.

Every function runs inside a transaction that the caller has opened. The caller decides which receipts are
dropped; no clock is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tidemill.model.gateway import Receipt
from tidemill.storage.state.database import Connection
from tidemill.storage.state.rows import RECEIPT_COLUMNS, receipt_row

PIECE: Final = 20_000  # receipts deleted in one transaction: other writers must not wait long

_COLUMNS: Final = ", ".join(f'"{column}"' for column in RECEIPT_COLUMNS)  # `window` is a keyword of SQL
_KEEP: Final = (
    f"INSERT INTO receipts ({_COLUMNS}, until) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO UPDATE SET until = excluded.until WHERE excluded.until > receipts.until"
)


def keep(db: Connection, receipts: Iterable[Receipt], until: int) -> None:
    db.executemany(_KEEP, ((*receipt_row(receipt), until) for receipt in receipts))


def receipt(db: Connection, id: str) -> Receipt | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM receipts WHERE id = ?", (id,)).fetchone()
    if row is None:
        return None
    *values, repeated = row
    return replace(Receipt(*values), repeated=bool(repeated))


def page(db: Connection, stream: str, after: str = "", limit: int = 1000) -> list[Receipt]:
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM receipts WHERE stream = ? AND id > ? ORDER BY id LIMIT ?",
        (stream, after, limit),
    )
    return [replace(Receipt(*values), repeated=bool(repeated)) for *values, repeated in rows]


def drop(db: Connection, before: int) -> int:
    """Delete up to `PIECE` of them, those that expired first; returns how many."""
    return db.execute(
        "DELETE FROM receipts WHERE id IN (SELECT id FROM receipts WHERE until <= ? ORDER BY until LIMIT ?)",
        (before, PIECE),
    ).rowcount
