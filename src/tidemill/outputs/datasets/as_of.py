"""What the dataset of a window was at an instant of arrival, by the revisions that are kept. Pure.

A revision is made of slices. From the instant at which the last of them had arrived, and what it lacks of the
revision before had been retracted, the dataset is that revision, until the next one. If that is gone, it is
unknown when it began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.model.windows import Dataset, Member

if TYPE_CHECKING:
    from tidemill.model.slices import SliceEntry

Finds = Callable[[str], "SliceEntry | None"]


@dataclass(frozen=True, slots=True)
class KeptRevision:
    """A revision, and the instant of arrival from which on the dataset is this one."""

    dataset: Dataset
    since: int


@dataclass(frozen=True, slots=True)
class PastDataset:
    """The dataset of a window at the instant of arrival `at`."""

    at: int
    revision: KeptRevision | None  # None: there was none yet, or it is not kept
    kept: Sequence[KeptRevision]  # by revision
    slices_after: Sequence[str]  # slices of the newest revision that this one lacks
    not_built: Sequence[str]  # slices that had arrived by then and count, and were built only later

    @property
    def changed(self) -> bool:
        """Whether the dataset is another now."""
        newest = self.kept[-1] if self.kept else None
        return newest != self.revision

    @property
    def reaches_back_to(self) -> int | None:
        """Before this instant nothing is known: the revisions of then are gone. None: all are kept."""
        first = self.kept[0] if self.kept else None
        return first.since if first is not None and first.dataset.revision > 1 else None


def kept_revisions(
    revisions: Sequence[Dataset], members: Sequence[Member], find: Finds
) -> list[KeptRevision]:
    """`find` looks a slice up in the ledger, by its id."""
    arrivals = {member.name: member.arrival for member in members}
    found: list[KeptRevision] = []
    before: frozenset[str] = frozenset()
    since = 0
    for dataset in sorted(revisions, key=lambda one: one.revision):
        now = frozenset(dataset.slices)
        for name in now - before:
            since = max(since, _arrival(name, arrivals, find))
        for name in before - now:
            entry = find(_id(name))
            since = max(since, (entry.retracted_at or 0) if entry is not None else 0)
        found.append(KeptRevision(dataset, since))
        before = now
    return found


def dataset_at(kept: Sequence[KeptRevision], members: Sequence[Member], at: int, last: int) -> PastDataset:
    """`last` is the newest revision that there was."""
    current = [one for one in kept if one.since <= at]
    found = current[-1] if current else None
    arrived = {member.name for member in members if member.arrival <= at and member.desired}
    if found is not None and arrived != set(found.dataset.slices):
        following = kept[len(current)].dataset.revision if len(current) < len(kept) else last + 1
        if following > found.dataset.revision + 1:
            found = None  # a revision in between may have been the dataset then
    held = frozenset(found.dataset.slices) if found is not None else frozenset()
    newest = frozenset(kept[-1].dataset.slices) if kept else frozenset()
    return PastDataset(at, found, kept, sorted(newest - held), sorted(arrived - held))


def _arrival(name: str, arrivals: dict[str, int], find: Finds) -> int:
    if name in arrivals:
        return arrivals[name]
    entry = find(_id(name))
    return entry.slice.arrival if entry is not None else 0


def _id(name: str) -> str:
    """The slice id of a member: once a retraction changed what was accepted from a slice, its name is
    `id~n`."""
    return name.partition("~")[0]
