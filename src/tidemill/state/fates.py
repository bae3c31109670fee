"""What becomes of an entry of the ledger by a retraction: from the entry as it is to what it shall be.

Pure functions; nothing here knows how entries are stored.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.model.errors import StorageError
from tidemill.model.slices import Counts, SliceEntry, SliceStatus
from tidemill.state.protocol import Retraction


def after_retraction(entry: SliceEntry, act: Retraction) -> SliceEntry:
    """Retracted, if it is the one that is taken back; else sent back to the gate."""
    return _retracted(entry, act) if entry.id == act.slice else _sent_back(entry, act)


def _retracted(entry: SliceEntry, act: Retraction) -> SliceEntry:
    if entry.status is SliceStatus.RETRACTED:
        return entry  # the first act is the story
    return replace(
        entry,
        status=SliceStatus.RETRACTED,
        batch=None,
        accepted_before=None,
        retracted_at=act.at,
        retract_reason=act.reason,
    )


def _sent_back(entry: SliceEntry, act: Retraction) -> SliceEntry:
    if entry.status is SliceStatus.RETRACTED:
        raise StorageError(
            f"slice {entry.id} can not go back to the gate: it was retracted",
            hint="run `tidemill recover` to rebuild the state from the warehouse",
        )
    return replace(
        entry,
        status=SliceStatus.PENDING,
        counts=Counts(),
        observed=None,
        watermark=None,
        batch=None,
        error=None,
        attempt=entry.attempt + 1,
        accepted_before=act.again[entry.id],
    )
