"""The logs beside the slices, together: whether they are intact, and how a damaged one is repaired.

Landings and retractions are rewritten from the ledger; expiries, declarations and gateways from the copy of
their lines in the state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tidemill.ingest.append_log import CopiedLog, LineFile
from tidemill.ingest.declaration_log import DeclarationLog
from tidemill.ingest.expiry_log import ExpiryLog
from tidemill.ingest.gateway.gateway_registry import GatewayLog
from tidemill.ingest.landing_log import LandingLog
from tidemill.ingest.retraction_log import RetractionLog
from tidemill.model.damage import Damage, FileKind
from tidemill.model.errors import StorageError
from tidemill.storage import layout
from tidemill.storage.state.protocol import State

log = logging.getLogger(__name__)

_MEANING: Final = {  # of a line that is lost
    layout.LANDINGS: "slices that landed are searched for on disk and in raw",
    layout.RETRACTIONS: "slices that were retracted may count again: retract them again",
    layout.EXPIRIES: "what has expired may be requested again",
    layout.DECLARATIONS: "answers may not say from when on a metric counts",
    layout.GATEWAYS: "a missing log of a gateway may go unnoticed",
}
NAMES: Final = (layout.LANDINGS, layout.RETRACTIONS, layout.EXPIRIES, layout.DECLARATIONS, layout.GATEWAYS)


class _Log(NamedTuple):
    """What all logs have in common."""

    lines: Callable[[], Iterator[object]]
    record: Callable[[], None]
    repair: Callable[[], bool]


def _logs(warehouse: Path, state: State) -> dict[str, _Log]:
    landings, retractions = LandingLog(warehouse), RetractionLog(warehouse)
    copied: dict[str, CopiedLog[Any]] = {
        layout.EXPIRIES: ExpiryLog(warehouse, state).log,
        layout.DECLARATIONS: DeclarationLog(warehouse, state).log,
        layout.GATEWAYS: GatewayLog(warehouse, state).log,
    }
    return {
        layout.LANDINGS: _Log(
            partial(landings.lines, state), partial(landings.record, state), partial(landings.repair, state)
        ),
        layout.RETRACTIONS: _Log(
            partial(retractions.lines, state),
            partial(retractions.record, state),
            partial(retractions.repair, state),
        ),
        **{name: _Log(one.lines, one.record, one.repair) for name, one in copied.items()},
    }


def check_log(warehouse: Path, state: State, name: str) -> bool:
    """Read a log, without a lock. DamageError if a line is missing or changed; False: the state does not know
    its length, so that lines missing at its end would not be noticed."""
    is_known = state.log_head(name) is not None
    for _ in _logs(warehouse, state)[name].lines():
        pass
    return is_known


def repair_log(warehouse: Path, state: State, name: str) -> bool:
    """If the log is damaged, rewrite it from the state; whether it was. DamageError if the state does not
    have enough."""
    return _logs(warehouse, state)[name].repair()


def repair_logs(warehouse: Path, state: State) -> None:
    """Repair all logs for which the state has enough."""
    for name in NAMES:
        try:
            repair_log(warehouse, state, name)
        except StorageError as error:
            log.warning("a log could not be repaired: %s", error)


def check_copy(warehouse: Path, name: str) -> None:
    """DamageError when the copy of a log is not what was written to it."""
    LineFile(warehouse, name, _is_line).check_copy()


def repair_copy(warehouse: Path, name: str) -> None:
    """Write the copy of a log again."""
    LineFile(warehouse, name, _is_line).rewrite_copy()


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
    for one in _logs(warehouse, state).values():
        one.record()
