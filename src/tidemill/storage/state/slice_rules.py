"""The transitions of a ledger entry: each function takes an entry and returns the entry after one act.

Pure functions; nothing here knows how entries are stored.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.model.errors import StorageError
from tidemill.model.slices import Counts, SliceEntry, SliceStatus
from tidemill.storage.state.protocol import Retraction, SliceResult


def after_retraction(entry: SliceEntry, act: Retraction) -> SliceEntry:
    """The entry after a retraction: retracted, if it is the slice that is taken back; otherwise pending
    again."""
    return _retracted(entry, act) if entry.id == act.slice else _sent_back(entry, act)


def _retracted(entry: SliceEntry, act: Retraction) -> SliceEntry:
    if entry.status is SliceStatus.RETRACTED:
        return entry  # the first retraction is the one on record
    return replace(
        entry,
        status=SliceStatus.RETRACTED,
        batch=None,
        accepted_before=None,
        retracted_at=act.at,
        retract_reason=act.reason,
        retry_at=None,
        failed_as=None,
    )


def _sent_back(entry: SliceEntry, act: Retraction) -> SliceEntry:
    if entry.status is SliceStatus.RETRACTED:
        raise StorageError(
            f"slice {entry.id} cannot go back to the gate: it was retracted",
            hint="run `tidemill recover` to rebuild the state from the warehouse",
        )
    return replace(_undecided(entry), attempt=entry.attempt + 1, accepted_before=act.again[entry.id])


def decided(entry: SliceEntry, batch: str, result: SliceResult) -> SliceEntry:
    """The entry after a batch decided it."""
    return replace(
        entry,
        status=SliceStatus.ACCEPTED if result.error is None else SliceStatus.FAILED,
        counts=result.counts,
        observed=result.observed,
        watermark=result.watermark,
        repeats=result.repeats,
        batch=batch,
        error=result.error,
        decision=result.decision,
        accepted_before=None,
        failures=entry.failures + 1 if result.error is not None else 0,
        retry_at=result.retry_at,
        failed_as=result.failed_as,
    )


def landed_again(entry: SliceEntry) -> SliceEntry:
    """The entry after the same bytes landed again; if its file could not be read, it is now due."""
    waits = entry.status is SliceStatus.FAILED and entry.retry_at is not None
    return replace(entry, landings=entry.landings + 1, retry_at=0 if waits else entry.retry_at)


def postponed(entry: SliceEntry, error: str, retry_at: int) -> SliceEntry:
    """The entry after another failed try."""
    return replace(entry, error=error, failures=entry.failures + 1, retry_at=retry_at, failed_as=None)


def sent_again(entry: SliceEntry, offset: int) -> SliceEntry:
    """The entry of a failed slice that is decided again, at a new offset behind all others."""
    if entry.status is not SliceStatus.FAILED:
        raise StorageError(
            f"slice {entry.id} cannot be tried again: it is {entry.status.value}",
            hint="run `tidemill recover` to rebuild the state from the warehouse",
        )
    return replace(_undecided(entry), seq=offset, retried=entry.retried + 1)


def _undecided(entry: SliceEntry) -> SliceEntry:
    """The entry without an outcome: it waits for the gate."""
    return replace(
        entry,
        status=SliceStatus.PENDING,
        counts=Counts(),
        observed=None,
        watermark=None,
        repeats=(),
        batch=None,
        error=None,
        retry_at=None,
        failed_as=None,
    )


def prioritised(entry: SliceEntry) -> SliceEntry:
    """The entry of a failed slice that is due at once."""
    if entry.retry_at is None:
        return replace(entry, failures=0, failed_as="")  # no declaration is called that
    return replace(entry, failures=0, retry_at=0)
