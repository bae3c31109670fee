"""The logs beside the slices, together: whether they are whole, and how a damaged one is made whole again.

Landings and retractions are made again from the ledger; expiries, declarations and gateways from the copy of
their lines that the state has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tidemill.ingest.declarations import DeclarationLog
from tidemill.ingest.expiries import ExpiryLog
from tidemill.ingest.gateway.gateways import GatewayLog
from tidemill.ingest.log import LandingLog
from tidemill.ingest.retractions import RetractionLog
from tidemill.model.errors import StorageError
from tidemill.storage import layout
from tidemill.storage.state.protocol import State

log = logging.getLogger(__name__)

NAMES: Final = (layout.LANDINGS, layout.RETRACTIONS, layout.EXPIRIES, layout.DECLARATIONS, layout.GATEWAYS)


def check_log(warehouse: Path, state: State, name: str) -> bool:
    """Read a log, without a lock. DamageError when a line is missing or changed; False: the state does not
    know how far it goes, so that lines missing at its end would not be noticed."""
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
    """If the log is damaged, write it anew from what the state knows; whether it was. DamageError when the
    state does not know enough."""
    mend: dict[str, Callable[[], bool]] = {
        layout.LANDINGS: lambda: LandingLog(warehouse).mend(state),
        layout.RETRACTIONS: lambda: RetractionLog(warehouse).mend(state),
        layout.EXPIRIES: lambda: ExpiryLog(warehouse, state).mend(),
        layout.DECLARATIONS: lambda: DeclarationLog(warehouse, state).mend(),
        layout.GATEWAYS: lambda: GatewayLog(warehouse, state).mend(),
    }
    return mend[name]()


def mend_logs(warehouse: Path, state: State) -> None:
    """All of them, as far as the state knows enough."""
    for name in NAMES:
        try:
            mend_log(warehouse, state, name)
        except StorageError as error:
            log.warning("a log could not be repaired: %s", error)


def record_logs(warehouse: Path, state: State) -> None:
    """A state that was made anew takes the logs as they are."""
    LandingLog(warehouse).record(state)
    RetractionLog(warehouse).record(state)
    ExpiryLog(warehouse, state).record()
    DeclarationLog(warehouse, state).record()
    GatewayLog(warehouse, state).record()
