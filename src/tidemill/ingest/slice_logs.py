"""The logs beside the slices, together: whether they are intact, and how a damaged one is repaired.

Landings and retractions are rewritten from the ledger; expiries, declarations and gateways from the copy of
their lines in the state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tidemill.ingest.declarations import DeclarationLog
from tidemill.ingest.expiries import ExpiryLog
from tidemill.ingest.gateway.gateways import GatewayLog
from tidemill.ingest.lines import LineFile
from tidemill.ingest.log import LandingLog
from tidemill.ingest.retractions import RetractionLog
from tidemill.model.damage import Damage, FileKind
from tidemill.model.errors import StorageError
from tidemill.storage import layout
from tidemill.storage.state.protocol import State

log = logging.getLogger(__name__)

_MEANING: Final = {  # of a line that is lost
    layout.LANDINGS: "slices that landed are looked for on disk and in raw",
    layout.RETRACTIONS: "slices that were retracted may count again: retract them again",
    layout.EXPIRIES: "what has expired may be asked for again",
    layout.DECLARATIONS: "answers may not say from when on a metric counts",
    layout.GATEWAYS: "a log of a gateway that is missing may not be missed",
}
NAMES: Final = (layout.LANDINGS, layout.RETRACTIONS, layout.EXPIRIES, layout.DECLARATIONS, layout.GATEWAYS)


def check_log(warehouse: Path, state: State, name: str) -> bool:
    """Read a log, without a lock. DamageError if a line is missing or changed; False: the state does not know
    its length, so that lines missing at its end would not be noticed."""
    is_known = state.log_head(name) is not None
    lines: dict[str, Callable[[], Iterator[object]]] = {
        layout.LANDINGS: lambda: LandingLog(warehouse).lines(state),
        layout.RETRACTIONS: lambda: RetractionLog(warehouse).lines(state),
        layout.EXPIRIES: lambda: ExpiryLog(warehouse, state).lines(),
        layout.DECLARATIONS: lambda: DeclarationLog(warehouse, state).lines(),
        layout.GATEWAYS: lambda: GatewayLog(warehouse, state).lines(),
    }
    for _ in lines[name]():
        pass
    return is_known


def mend_log(warehouse: Path, state: State, name: str) -> bool:
    """If the log is damaged, rewrite it from the state; whether it was. DamageError if the state does not
    have enough."""
    mend: dict[str, Callable[[], bool]] = {
        layout.LANDINGS: lambda: LandingLog(warehouse).mend(state),
        layout.RETRACTIONS: lambda: RetractionLog(warehouse).mend(state),
        layout.EXPIRIES: lambda: ExpiryLog(warehouse, state).mend(),
        layout.DECLARATIONS: lambda: DeclarationLog(warehouse, state).mend(),
        layout.GATEWAYS: lambda: GatewayLog(warehouse, state).mend(),
    }
    return mend[name]()


def mend_logs(warehouse: Path, state: State) -> None:
    """All of them, as far as the state has enough."""
    for name in NAMES:
        try:
            mend_log(warehouse, state, name)
        except StorageError as error:
            log.warning("a log could not be repaired: %s", error)


def check_copy(warehouse: Path, name: str) -> None:
    """DamageError when the copy of a log is not what was written to it."""
    LineFile(warehouse, name, _is_line).check_copy()


def mend_copy(warehouse: Path, name: str) -> None:
    """Write the copy of a log again."""
    LineFile(warehouse, name, _is_line).copy_anew()


def restore_logs(warehouse: Path) -> list[Damage]:
    """Without a state: restore each log from itself and its copy, as far as possible. Returns what is
    lost."""
    lost: list[Damage] = []
    for name in NAMES:
        file = LineFile(warehouse, name, _is_line)
        found = file.restore_from_copy()
        if found is not None:
            log.warning("the log %s was put back from its copy: %d lines", name, found.kept)
        if found is not None and found.lost:
            reason = f"{found.lost} of {found.kept + found.lost} lines are lost; {_MEANING[name]}"
            where = file.path.relative_to(warehouse).as_posix()
            lost.append(Damage(where, FileKind.SLICE_LOG, "", reason))
    return lost


def _is_line(text: bytes) -> bool | None:
    try:
        return True if isinstance(json.loads(text), dict) else None
    except ValueError:
        return None


def record_logs(warehouse: Path, state: State) -> None:
    """Record the logs in a state that was made again."""
    LandingLog(warehouse).record(state)
    RetractionLog(warehouse).record(state)
    ExpiryLog(warehouse, state).record()
    DeclarationLog(warehouse, state).record()
    GatewayLog(warehouse, state).record()
