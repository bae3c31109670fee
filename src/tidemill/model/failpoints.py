"""Named places where a test can make the process die, to prove that nothing needs repair by hand.

In production the cost is one dictionary look-up; a point fires only when the environment variable
`TIDEMILL_FAILPOINT` names it (`name` or `name:3` for the third time it is passed). `observed` calls a test at
every point that is passed, so that it can copy the warehouse there: the copy is what a process killed at that
point leaves behind, without anything that runs on the way out of an exception.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

POINTS: Final[dict[str, str]] = {
    "wal.after_write": "entries are written to the log, not yet synced",
    "wal.after_sync": "entries are durable, not yet acknowledged",
    "wal.after_close": "which entries a window has is durable, its slice has not landed",
    "wal.after_unlist": "a segment of the log is off the list, its file is still there",
    "wal.after_remove": "a segment of the log is gone, the folder is not yet synced",
    "gateway.after_receipts": "a window is in the ledger and has receipts, the log still holds it",
    "gateway.after_replay": "what a dead gateway had acknowledged is in the ledger, its log is still there",
    "landing.after_temp": "slice bytes are in a temporary file, not yet synced",
    "landing.after_rename": "slice file has its final name, the ledger does not know it",
    "landing.after_log": "the landing is in the log, the ledger does not know it",
    "landing.after_ledger": "slice is in the ledger, not yet acknowledged",
    "compression.before_rename": "a compressed slice is durable under a temporary name",
    "compression.after_rename": "a compressed slice has its name, the folder is not yet synced",
    "retry.after_log": "that failed slices are tried again is in the log, the ledger does not know it",
    "accept.after_stage": "slices are parsed into staging",
    "accept.after_gate": "outcomes are decided and id runs staged",
    "accept.after_write": "raw parts are staged, nothing is committed",
    "quarantine.before_commit": "quarantine parts have their names, no commit",
    "quarantine.after_commit": "quarantine is committed, raw is not",
    "raw.before_commit": "raw parts have their names, no commit",
    "raw.after_commit": "raw is committed, the state does not know it",
    "accept.after_state": "the ledger knows the outcomes, staging is not cleaned",
    "rollups.after_build": "new tiles are staged",
    "rollups.before_commit": "new tiles have their names, no commit",
    "rollups.after_commit": "tiles are committed, the state does not know it",
    "rollups.after_state": "the state knows the new tiles, staging is not cleaned",
    "state_history.after_trails": "observations of a batch are written, the state does not know it",
    "state_history.after_state": "the state knows the tiles of the batch, its observations do not count yet",
    "state_history.after_log": "the observations of the batch count, no tile was built",
    "state_history.after_merge": "observations are merged into new files, the old ones still count",
    "windows.after_lay": "slices are assigned to the windows they touch, none is evaluated",
    "windows.after_evaluate": "windows are evaluated and queued",
    "windows.after_take": "a builder holds a lease, nothing is built",
    "dataset.after_temp": "a dataset is durable under a temporary name",
    "dataset.after_link": "a dataset has its name, the state does not know it",
    "dataset.after_record": "datasets without rows are recorded, the state does not know them",
    "windows.before_state": "datasets are published, the state does not know it",
    "windows.after_state": "the state knows the new datasets, no event was delivered",
    "events.after_send": "a sink has events, its cursor does not know it",
    "results.after_fold": "results of a streaming window are staged",
    "results.before_commit": "results have their names, no commit",
    "results.after_commit": "results are committed, the state does not know it",
    "results.after_state": "the state knows the new results, staging is not cleaned",
    "retract.after_log": "the retraction is in its log, nothing is removed yet",
    "retract.after_raw": "raw no longer has what is undone",
    "retract.after_quarantine": "nor has quarantine; the state does not know it",
    "retract.after_state": "the ledger knows the retraction, nothing is accepted again yet",
    "expire.after_log": "what is to go is in the log of expiries, nothing is removed yet",
    "expire.before_commit": "what stays of raw has its name, no commit",
    "expire.after_commit": "raw or quarantine no longer has it, the state does not know it",
    "expire.after_files": "dataset files are gone, the state still has their windows",
    "expire.after_tiles": "tiles of a level are gone from the table, the state does not know it",
    "pack.after_build": "packed parts are staged, nothing is committed",
    "pack.before_commit": "packed parts have their names, no commit",
    "pack.after_commit": "raw has packed parts instead of small ones, the state does not know it",
    "columns.after_build": "parts with the declared columns are staged, nothing is committed",
    "columns.before_commit": "parts with the declared columns have their names, no commit",
    "columns.after_commit": "raw has parts with the declared columns, the state does not know it",
    "search.after_build": "index parts are staged",
    "search.after_commit": "index parts are committed, staging is not cleaned",
    "chains.after_build": "parts of chains are staged",
    "chains.before_commit": "parts of chains have their names, no commit",
    "chains.after_commit": "parts of chains are committed, staging is not cleaned",
    "gate.after_merge": "id runs are merged into a new one, the old ones are still in use",
}
EXIT_CODE: Final = 86

_passed: dict[str, int] = {}
_observers: list[Callable[[str], None]] = []


def failpoint(name: str) -> None:
    """Die here, at once and without clean-up, if the environment variable names this point."""
    assert name in POINTS, name
    for observer in _observers:
        observer(name)
    setting = os.environ.get("TIDEMILL_FAILPOINT")
    if not setting:
        return
    point, _, count = setting.partition(":")
    if point != name:
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] >= int(count or 1):
        sys.stderr.write(f"failpoint {name}: exit\n")
        sys.stderr.flush()
        os._exit(EXIT_CODE)


@contextmanager
def observed(tell: Callable[[str], None]) -> Iterator[None]:
    """Inside the block, `tell` is called with the name of every point that this process passes, at that
    moment."""
    _observers.append(tell)
    try:
        yield
    finally:
        _observers.remove(tell)
