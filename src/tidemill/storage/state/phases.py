"""What becomes of a window by each act on it: from the window as it is kept to the window as it shall be.

Pure functions, so that the acts read like their contract; nothing here knows how windows are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill.model.windows import Build, Dataset, Evaluation, Member, Phase, Window


@dataclass(frozen=True, slots=True)
class Kept:
    """A window with what only the store needs to know of it."""

    window: Window
    due: bool  # something changed since it was judged
    building: str | None = None  # hash of the set that the lease on it is for


def evaluated(kept: Kept, verdict: Evaluation) -> Kept:
    before = kept.window
    if verdict.withdraw:
        before = replace(before, observed=None, file=None, rows=None, bytes=None, built_at=None, columns=None)
    if verdict.reshape:  # it is to be built again, from whatever slices
        before = replace(before, observed=None)
    if verdict.unseal:
        before = replace(before, sealed=None)
    after = replace(
        before,
        reason=verdict.reason,
        detail=verdict.detail,
        check_at=verdict.check_at,
        ready=verdict.ready,
        desired=verdict.desired,
        seal=verdict.seal,
        blocked_by=verdict.blocked_by,
        rules=verdict.rules,
    )
    trigger = verdict.trigger or "slices"
    if before.phase is Phase.BUILDING:
        if verdict.ready and verdict.desired != kept.building:
            after = replace(after, trigger=trigger)
        return Kept(after, due=False, building=kept.building)
    if after.desired == after.observed:
        after = replace(after, sealed=after.sealed if verdict.seal is None else verdict.seal)
        return Kept(_fresh(after, Phase.BUILT), due=False)
    if not verdict.ready:
        return Kept(_fresh(after, Phase.WAITING), due=False)
    if before.phase in (Phase.QUEUED, Phase.FAILED) and before.desired == verdict.desired:
        return Kept(after, due=False)
    return Kept(replace(_fresh(after, Phase.QUEUED), trigger=trigger), due=False)


def bereft(kept: Kept, *, desired: bool, built: bool) -> Kept:
    """After slices left it; `desired`: one of those was to be used; `built`: it was built with the retracted
    one itself, so what the window was sealed for is gone."""
    window = replace(kept.window, sealed=None if built else kept.window.sealed, seal=None)
    if not desired:
        return replace(kept, window=window, due=True)
    window = replace(window, reason=None, detail=None, check_at=None, ready=False, desired=None)
    return Kept(_fresh(window, Phase.WAITING), due=True)


def forced(kept: Kept, trigger: str, newest: int | None) -> Kept:
    window = replace(kept.window, observed=None, trigger=trigger)
    if newest is not None:
        window = replace(window, sealed=newest, seal=None)
    queued = window.phase is Phase.QUEUED
    return Kept(_fresh(window, Phase.QUEUED if queued else Phase.WAITING), due=True)


def taken(kept: Kept, owner: str, lease_until: int) -> Kept:
    window = kept.window
    lease = replace(
        window, phase=Phase.BUILDING, owner=owner, lease_until=lease_until, attempts=window.attempts + 1
    )
    return replace(kept, window=lease, building=window.desired)


def build_of(kept: Kept, used: list[Member]) -> Build:
    """What the one who took it is to do."""
    window = kept.window
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


def holds(kept: Kept, build: Build) -> bool:
    """Whether the lease that the build was made under still stands."""
    window = kept.window
    return window.phase is Phase.BUILDING and (window.owner, kept.building) == (build.owner, build.desired)


def completed(kept: Kept, build: Build, dataset: Dataset, now: int) -> Kept | None:
    """None when the build came too late."""
    assert dataset.key == build.key, f"{dataset.key} is not {build.key}"
    assert dataset.hash == build.desired, f"{build.key}: built {dataset.hash}, not {build.desired}"
    if not holds(kept, build) or kept.window.revision >= dataset.revision:
        return None
    window = replace(
        kept.window,
        observed=dataset.hash,
        revision=dataset.revision,
        file=dataset.file,
        rows=dataset.rows,
        bytes=dataset.bytes,
        built_at=now,
        sealed=kept.window.sealed if build.seal is None else build.seal,
        columns=dataset.columns,
        checksum=dataset.checksum,
    )
    return replace(kept, window=_fresh(window, _phase(window)), building=None)


def failed(kept: Kept, error: str, not_before: int, tries: int) -> Kept:
    window = kept.window
    if _moved_on(kept):
        return replace(kept, window=_fresh(window, _phase(window)), building=None)
    phase = Phase.FAILED if window.attempts >= tries else Phase.QUEUED
    given_back = replace(
        window, phase=phase, error=error, not_before=not_before, owner=None, lease_until=None
    )
    return replace(kept, window=given_back, building=None)


def released(kept: Kept, *, counted: bool = False) -> Kept:
    """Not under lease any more; `counted`: the try was made, but nobody knows what came of it."""
    window = kept.window
    if _moved_on(kept):
        return replace(kept, window=_fresh(window, _phase(window)), building=None)
    attempts = window.attempts if counted else window.attempts - 1
    given_back = replace(window, phase=Phase.QUEUED, attempts=attempts, owner=None, lease_until=None)
    return replace(kept, window=given_back, building=None)


def retried(kept: Kept) -> Kept:
    return replace(kept, window=_fresh(kept.window, Phase.QUEUED))


def observed(kept: Kept, dataset: Dataset) -> Kept:
    window = replace(
        kept.window,
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
        return replace(kept, window=window, due=True)
    return replace(kept, window=_fresh(window, _phase(window)), due=True)


def _moved_on(kept: Kept) -> bool:
    window = kept.window
    return window.desired != kept.building or window.desired == window.observed or not window.ready


def _phase(window: Window) -> Phase:
    """Where it stands by its last judgement."""
    if window.observed is not None and window.desired == window.observed:
        return Phase.BUILT
    return Phase.QUEUED if window.ready else Phase.WAITING


def _fresh(window: Window, phase: Phase) -> Window:
    """In that phase, without a lease, with all its tries."""
    return replace(window, phase=phase, attempts=0, not_before=0, owner=None, lease_until=None, error=None)
