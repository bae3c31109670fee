"""Every table of the SQLite state as plain rows, in a defined order: what `recover` must reproduce.

It leaves out what only the state knows: leases and attempts of builds, when and why something was built, the
outcomes of retracted slices, the tries and last error of failed ones, the order and delivery of events,
checkpoints of streaming windows, and receipts.
"""

from __future__ import annotations

from typing import Final

from tidemill.storage.state.database import Connection
from tidemill.storage.state.rows import SLICE_COLUMNS, TRIES

_OUTCOME: Final = {
    *SLICE_COLUMNS[SLICE_COLUMNS.index("records") : SLICE_COLUMNS.index("error") + 1], "repeats"
}  # fmt: skip
_UNKNOWN: Final = dict.fromkeys(_OUTCOME, "status = 'retracted'") | {
    "error": "status = 'retracted' OR (status = 'failed' AND retry_at IS NOT NULL)"
}
_SLICES: Final = ", ".join(
    f"CASE WHEN {_UNKNOWN[column]} THEN NULL ELSE {column} END AS {column}" if column in _UNKNOWN else column
    for column in SLICE_COLUMNS
    if column not in TRIES
)
_TABLES: Final = {
    "slices": f"SELECT {_SLICES} FROM slices ORDER BY seq",
    "totals": "SELECT * FROM totals WHERE value != 0 ORDER BY stream, name",
    "batches": "SELECT * FROM batches ORDER BY stream, batch",
    "versions": "SELECT * FROM versions ORDER BY stream, part_of",
    "clocks": "SELECT * FROM clocks ORDER BY stream, source",
    "progress": "SELECT * FROM progress WHERE (watermark, emitted, buffered_rows, buffered_bytes,"
    " released_early) IS NOT (NULL, 0, 0, 0, 0) ORDER BY stream",  # equal to having none
    "runs": "SELECT * FROM runs ORDER BY stream, place",
    "tiles": "SELECT * FROM tiles ORDER BY stream, level, start",
    "tile_slices": "SELECT t.stream, t.start, s.id AS slice, t.desired, t.observed"
    " FROM tile_slices t JOIN slices s ON s.seq = t.slice ORDER BY t.stream, t.start, s.id",
    "retractions": "SELECT value AS applied FROM counters WHERE name = 'retractions'",
    "layouts": "SELECT * FROM layouts ORDER BY stream",
    "unlaid": "SELECT u.stream, s.id AS slice FROM unlaid u JOIN slices s ON s.seq = u.slice"
    " ORDER BY u.stream, u.slice",
    "windows": "SELECT stream, start, span,"
    " CASE WHEN phase IN ('building', 'failed') THEN 'queued' ELSE phase END AS phase, reason, detail,"
    " check_at, ready, desired, observed, revision, sealed, seal, file, rows, bytes"
    " FROM windows ORDER BY stream, start",
    "window_slices": "SELECT w.stream, w.start, s.id AS slice, w.member, w.desired, w.observed, w.ignored"
    " FROM window_slices w JOIN slices s ON s.seq = w.slice ORDER BY w.stream, w.start, s.id",
    "outbox": "SELECT id, type, stream FROM outbox ORDER BY stream, type, id",
}


def dump(db: Connection) -> dict[str, list[dict[str, object]]]:
    dumped: dict[str, list[dict[str, object]]] = {}
    for table, query in _TABLES.items():
        rows = db.execute(query)
        columns = [column[0] for column in rows.description]
        dumped[table] = [dict(zip(columns, row, strict=True)) for row in rows]
    return dumped
