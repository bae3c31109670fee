"""The SQL of leases: take, renew, give back and check them, by the clock of the database.

Every function runs inside a transaction that the caller has opened, so that no lease has two holders.
`lease_rules` has the transitions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

from tidemill.storage.state import lease_rules
from tidemill.storage.state.database import CLOCK, LOCKED, Connection
from tidemill.storage.state.lease_rules import Granted, Lease

_KNOWN: Final = (
    "SELECT name, number, holder, until, length, contested FROM leases"
    f" WHERE name IN (SELECT value FROM json_each(?)) ORDER BY name {LOCKED}"
)
_HOLDERS: Final = (
    "SELECT DISTINCT holder FROM leases WHERE name IN (SELECT value FROM json_each(?)) AND holder IS NOT NULL"
)
_SAVE: Final = (
    "INSERT INTO leases (name, number, holder, until, length, contested) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (name) DO UPDATE SET number = excluded.number, holder = excluded.holder,"
    " until = excluded.until, length = excluded.length, contested = excluded.contested"
)


def holders(db: Connection, names: Collection[str]) -> frozenset[str]:
    found = db.execute(_HOLDERS, (json.dumps(sorted(names)),)).fetchall()
    return frozenset(holder for (holder,) in found)


def take(
    db: Connection,
    names: Collection[str],
    holder: str,
    length: int,
    gone: Collection[str],
    ended: Collection[str],
) -> Granted:
    """Take leases. The caller must have opened a transaction that writes: there is one at a time."""
    rows = db.execute(_KNOWN, (json.dumps(sorted(names)),)).fetchall()
    (now,) = db.execute(f"SELECT {CLOCK}").fetchone()  # after waiting for the rows
    known = {
        name: Lease(name, number, owner, until, lasts, bool(contested))
        for name, number, owner, until, lasts, contested in rows
    }
    granted = lease_rules.grant(known, names, holder, now, length, gone, ended)
    db.executemany(
        _SAVE,
        [(o.name, o.number, o.holder, o.until, o.length, int(o.contested)) for o in granted.leases],
    )
    return granted


def settle(db: Connection, holder: str) -> None:
    db.execute("UPDATE leases SET contested = 0 WHERE holder = ?", (holder,))


def renew(db: Connection, holder: str) -> int:
    return db.execute(f"UPDATE leases SET until = {CLOCK} + length WHERE holder = ?", (holder,)).rowcount


def release(db: Connection, holder: str) -> None:
    db.execute("UPDATE leases SET holder = NULL WHERE holder = ?", (holder,))


def lost(db: Connection, holder: str, held: Mapping[str, int]) -> list[str]:
    kept = db.execute("SELECT name, number FROM leases WHERE holder = ?", (holder,)).fetchall()
    return lease_rules.lost(dict(kept), held)
