"""The transitions of a window: each function takes a stored window and returns the window after one act.

Pure functions; nothing here knows how windows are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill.model.windows import Build, Dataset, Evaluation, Member, Phase, Window


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """A window as it is stored, with what only the state needs."""

    window: Window
    due: bool  # something changed since it was evaluated
    building: str | None = None  # hash of the set that the lease on it is for


def evaluated(stored: StoredWindow, evaluation: Evaluation) -> StoredWindow:
    before = stored.window
    if evaluation.withdraw:
        before = replace(before, observed=None, file=None, rows=None, bytes=None, built_at=None, columns=None)
    if evaluation.reshape:  # build it again, even from the same slices
        before = replace(before, observed=None)
    if evaluation.unseal:
        before = replace(before, sealed=None)
    after = replace(
        before,
        reason=evaluation.reason,
        detail=evaluation.detail,
        check_at=evaluation.check_at,
        ready=evaluation.ready,
        desired=evaluation.desired,
        seal=evaluation.seal,
        blocked_by=evaluation.blocked_by,
        rules=evaluation.rules,
    )
    trigger = evaluation.trigger or "slices"
    if before.phase is Phase.BUILDING:
        if evaluation.ready and evaluation.desired != stored.building:
            after = replace(after, trigger=trigger)
        return StoredWindow(after, due=False, building=stored.building)
    if after.desired == after.observed:
        after = replace(after, sealed=after.sealed if evaluation.seal is None else evaluation.seal)
        return StoredWindow(_fresh(after, Phase.BUILT), due=False)
    if not evaluation.ready:
        return StoredWindow(_fresh(after, Phase.WAITING), due=False)
    if before.phase in (Phase.QUEUED, Phase.FAILED) and before.desired == evaluation.desired:
        return StoredWindow(after, due=False)
    return StoredWindow(replace(_fresh(after, Phase.QUEUED), trigger=trigger), due=False)


def without_slices(stored: StoredWindow, *, desired: bool, built: bool) -> StoredWindow:
    """After slices left it. `desired`: one of them was in the desired set. `built`: the window was built with
    the retracted slice, so it is no longer sealed."""
    window = replace(stored.window, sealed=None if built else stored.window.sealed, seal=None)
    if not desired:
        return replace(stored, window=window, due=True)
    window = replace(window, reason=None, detail=None, check_at=None, ready=False, desired=None)
    return StoredWindow(_fresh(window, Phase.WAITING), due=True)


def forced(stored: StoredWindow, trigger: str, newest: int | None) -> StoredWindow:
    window = replace(stored.window, observed=None, trigger=trigger)
    if newest is not None:
        window = replace(window, sealed=newest, seal=None)
    queued = window.phase is Phase.QUEUED
    return StoredWindow(_fresh(window, Phase.QUEUED if queued else Phase.WAITING), due=True)


def taken(stored: StoredWindow, owner: str, lease_until: int) -> StoredWindow:
    window = stored.window
    lease = replace(
        window, phase=Phase.BUILDING, owner=owner, lease_until=lease_until, attempts=window.attempts + 1
    )
    return replace(stored, window=lease, building=window.desired)


def build_of(stored: StoredWindow, used: list[Member]) -> Build:
    """The build for the builder that took the window."""
    window = stored.window
    assert window.owner is not None, window.key
    assert window.lease_until is not None, window.key
    assert window.desired is not None, window.key
    return Build(
        key=window.key,
        owner=window.owner,
        lease_until=window.lease_until,
        attempt=window.attempts,
        revision=window.revision + 1,
        supersedes=None if window.file is None else window.revision,
        desired=window.desired,
        members=used,
        trigger=window.trigger or "slices",
        seal=window.sealed if window.seal is None else window.seal,
    )


def holds(stored: StoredWindow, build: Build) -> bool:
    """Whether the lease under which the build was made is still held."""
    window = stored.window
    return window.phase is Phase.BUILDING and (window.owner, stored.building) == (build.owner, build.desired)


def completed(stored: StoredWindow, build: Build, dataset: Dataset, now: int) -> StoredWindow | None:
    """After a build was completed; None if the build came too late."""
    assert dataset.key == build.key, f"{dataset.key} is not {build.key}"
    assert dataset.hash == build.desired, f"{build.key}: built {dataset.hash}, not {build.desired}"
    if not holds(stored, build) or stored.window.revision >= dataset.revision:
        return None
    window = replace(
        stored.window,
        observed=dataset.hash,
        revision=dataset.revision,
        file=dataset.file,
        rows=dataset.rows,
        bytes=dataset.bytes,
        built_at=now,
        sealed=stored.window.sealed if build.seal is None else build.seal,
        columns=dataset.columns,
        checksum=dataset.checksum,
    )
    return replace(stored, window=_fresh(window, _phase(window)), building=None)


def failed(stored: StoredWindow, error: str, not_before: int, tries: int) -> StoredWindow:
    window = stored.window
    if _moved_on(stored):
        return replace(stored, window=_fresh(window, _phase(window)), building=None)
    phase = Phase.FAILED if window.attempts >= tries else Phase.QUEUED
    given_back = replace(
        window, phase=phase, error=error, not_before=not_before, owner=None, lease_until=None
    )
    return replace(stored, window=given_back, building=None)


def released(stored: StoredWindow, *, counted: bool = False) -> StoredWindow:
    """After its lease ended without a result. `counted`: the try counts as an attempt."""
    window = stored.window
    if _moved_on(stored):
        return replace(stored, window=_fresh(window, _phase(window)), building=None)
    attempts = window.attempts if counted else window.attempts - 1
    given_back = replace(window, phase=Phase.QUEUED, attempts=attempts, owner=None, lease_until=None)
    return replace(stored, window=given_back, building=None)


def retried(stored: StoredWindow) -> StoredWindow:
    return replace(stored, window=_fresh(stored.window, Phase.QUEUED))


def observed(stored: StoredWindow, dataset: Dataset) -> StoredWindow:
    window = replace(
        stored.window,
        observed=dataset.hash,
        revision=dataset.revision,
        sealed=dataset.sealed,
        file=dataset.file,
        rows=dataset.rows,
        bytes=dataset.bytes,
        built_at=None,
        columns=dataset.columns,
        checksum=dataset.checksum,
    )
    if window.phase is Phase.BUILDING:
        return replace(stored, window=window, due=True)
    return replace(stored, window=_fresh(window, _phase(window)), due=True)


def _moved_on(stored: StoredWindow) -> bool:
    window = stored.window
    return window.desired != stored.building or window.desired == window.observed or not window.ready


def _phase(window: Window) -> Phase:
    """Its phase by its last evaluation."""
    if window.observed is not None and window.desired == window.observed:
        return Phase.BUILT
    return Phase.QUEUED if window.ready else Phase.WAITING


def _fresh(window: Window, phase: Phase) -> Window:
    """The window in that phase, without a lease and with all its tries left."""
    return replace(window, phase=phase, attempts=0, not_before=0, owner=None, lease_until=None, error=None)
