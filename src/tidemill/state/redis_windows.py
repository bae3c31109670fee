"""The acts on windows, the queue and the outbox, on Redis: look, decide by `phases`, keep if nothing changed.

A decision that somebody else overtook is made again on what there is now, so that each act is as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from tidemill.model.errors import BusyError, StorageError
from tidemill.model.slices import contribution_of, set_hash
from tidemill.model.time import SECOND
from tidemill.model.windows import Build, Dataset, Judged, OutboxEvent, Phase, Window, WindowKey
from tidemill.state import fates, phases
from tidemill.state.phases import Kept
from tidemill.state.protocol import ClockState, Progress, Retraction
from tidemill.state.redis_link import Reply, Store
from tidemill.state.redis_rows import (
    Mark,
    Row,
    Seen,
    clocks_said,
    entries_heard,
    entry_said,
    event_said,
    kept_said,
    number,
    ordered,
    progress_said,
    text,
    texts,
    windows_heard,
)

TRIES: Final = 1000  # each lost one means that another act came through
LONGEST_PAUSE: Final = 0.05
T = TypeVar("T")


class Changes:
    """What an act makes of the windows it looked at, to be kept all at once."""

    def __init__(self, seen: Iterable[Seen]) -> None:
        self._seen = {(each.kept.window.key.stream, each.kept.window.key.start): each for each in seen}
        self._kept: dict[WindowKey, Kept] = {}  # as they shall be
        self._marks: dict[WindowKey, dict[int, Mark]] = {}
        self._checked: dict[WindowKey, str] = {}
        self._dropped: set[WindowKey] = set()
        self._renewed: set[WindowKey] = set()
        self._events: list[Row] = []
        self.spans: dict[str, str] = {}  # that it relies on

    def load(self, key: WindowKey) -> Kept | None:
        found = self._seen.get((key.stream, key.start))
        if found is None or found.kept.window.key != key or key in self._dropped:
            return self._kept.get(key)
        self._checked[key] = found.stamp
        return self._kept.get(key, found.kept)

    def make(self, key: WindowKey) -> Kept:
        self._checked[key] = ""
        return Kept(Window(key, version=0), due=True)

    def save(self, kept: Kept, *, same_version: bool = False) -> None:
        key = kept.window.key
        if key not in self._checked:
            self._checked[key] = self._seen[key.stream, key.start].stamp
        if same_version:
            self._renewed.add(key)
        else:  # it gets its version when it is kept; until then it has none that anybody knows
            kept = replace(kept, window=replace(kept.window, version=-1))
        self._kept[key] = kept

    def drop(self, key: WindowKey) -> None:
        self._dropped.add(key)

    def marks(self, key: WindowKey) -> dict[int, Mark]:
        found = self._seen.get((key.stream, key.start))
        return {**(found.marks if found else {}), **self._marks.get(key, {})}

    def mark(self, key: WindowKey, place: int, mark: Mark) -> None:
        self._marks.setdefault(key, {})[place] = mark

    def observe(self, key: WindowKey, built: Mapping[int, int]) -> None:
        """Make these slices (place -> judgement) the ones that the window was built from."""
        marks = self.marks(key)
        for place, mark in marks.items():
            if mark.observed != built.get(place):
                self.mark(key, place, replace(mark, observed=built.get(place)))
        for place in built.keys() - marks.keys():
            self.mark(key, place, Mark(member=False, desired=False, observed=built[place], judgement=0))

    def tell(self, events: Iterable[OutboxEvent]) -> None:
        self._events += map(event_said, events)

    def said(self) -> dict[str, object]:
        return {
            "checks": [[key.stream, ordered(key.start), stamp] for key, stamp in self._checked.items()],
            "spans": self.spans,
            "puts": [
                {
                    "row": kept_said(kept),
                    "same_version": key in self._renewed,
                    "flags": {
                        str(place): mark.said()
                        for place, mark in self._marks.get(key, {}).items()
                        if mark != self._known(key, place)
                    },
                }
                for key, kept in self._kept.items()
                if key not in self._dropped
            ],
            "drops": [[key.stream, ordered(key.start)] for key in self._dropped],
            "events": self._events,
        }

    def commit(self, store: Store) -> bool:
        if not (self._kept or self._dropped or self._events):
            return True
        (kept,) = store.act("commit", **self.said())
        return number(kept) == 1

    def _known(self, key: WindowKey, place: int) -> Mark | None:
        found = self._seen.get((key.stream, key.start))
        return found.marks.get(place) if found else None


def once(store: Store, attempt: Callable[[], tuple[bool, T]]) -> T:
    """What an attempt answers that was not overtaken."""
    for tried in range(TRIES):
        kept, answer = attempt()
        if kept:
            return answer
        store.link.pause(min(LONGEST_PAUSE, 0.001 * tried))  # not at first: mostly it was one other act
    raise BusyError(
        "other processes change the same windows all the time",
        where=store.link.address,
        hint="try again, with fewer builders",
    )


def these(store: Store, keys: Iterable[WindowKey]) -> list[Seen]:
    wanted = dict.fromkeys((key.stream, ordered(key.start)) for key in keys)
    return windows_heard(*store.look("these", windows=list(wanted)))


# -- laying and judging


def lay(store: Store, stream: str, windows: Mapping[str, Iterable[int]]) -> None:
    given = {slice_id: list(starts) for slice_id, starts in windows.items()}

    def attempt() -> tuple[bool, None]:
        (found,) = store.look("span", stream=stream)
        if found is None:
            raise StorageError(
                f"the windows of stream {stream} are not laid out",
                hint="declare `aggregation_span` on the stream; the next tick lays them out",
            )
        span = number(found)
        starts = {start for each in given.values() for start in each}
        assert all(start % span == 0 for start in starts), f"not all start windows of {span}: {starts}"
        (laid,) = store.act(
            "lay",
            stream=stream,
            span=str(span),
            slices=[[slice_id, [ordered(start) for start in each]] for slice_id, each in given.items()],
            ends={ordered(start): str((start + span) // SECOND) for start in starts},
        )
        return number(laid) == 1, None

    once(store, attempt)


def forget(store: Store, stream: str, before: int) -> int:
    def attempt() -> tuple[bool, int]:
        (span,) = store.look("span", stream=stream)
        if span is None:
            return True, 0
        last = ordered(before - number(span))
        (found,) = store.act("forget", stream=stream, span=text(span), last=last)
        return found is not None, number(found) if found is not None else 0

    return once(store, attempt)


def judge(store: Store, judged: Sequence[Judged]) -> list[WindowKey]:
    def attempt() -> tuple[bool, list[WindowKey]]:
        seen = these(store, (verdict.key for verdict in judged))
        by_key = {each.kept.window.key: each for each in seen}
        changes = Changes(seen)
        void: list[WindowKey] = []
        for verdict in judged:
            kept = changes.load(verdict.key)
            if kept is None or kept.window.version != verdict.version:
                void.append(verdict.key)
                continue
            found = by_key[verdict.key]
            if any(mark.member for mark in found.marks.values()) or kept.window.revision:
                _mark_judged(changes, found, verdict)
                changes.save(phases.judged(kept, verdict))
            else:
                changes.drop(verdict.key)
            changes.tell(verdict.events)
        return changes.commit(store), void

    return once(store, attempt) if judged else []


def _mark_judged(changes: Changes, found: Seen, verdict: Judged) -> None:
    members = {member.seq: member.name for member in found.members()}
    strangers = verdict.used - set(members.values())
    assert not strangers, f"{verdict.key}: {sorted(strangers)} are no members"
    assert verdict.desired == set_hash(verdict.used), (
        f"{verdict.key}: desired is not the hash of what is used"
    )
    for place, name in members.items():
        mark = found.marks[place]
        after = replace(mark, desired=name in verdict.used, ignored=verdict.ignored.get(name))
        if after != mark:
            changes.mark(verdict.key, place, after)
    if verdict.withdraw:
        changes.observe(verdict.key, {})


def force(store: Store, keys: Sequence[WindowKey], trigger: str, *, reopen: bool) -> list[WindowKey]:
    def attempt() -> tuple[bool, list[WindowKey]]:
        changes = Changes(these(store, keys))
        newest = number(store.look("last")[0]) if reopen else None
        found: list[WindowKey] = []
        for key in dict.fromkeys(keys):
            kept = changes.load(key)
            if kept is not None:
                changes.save(phases.forced(kept, trigger, newest))
                found.append(key)
        return changes.commit(store), found

    return once(store, attempt)


def observe(store: Store, datasets: Sequence[Dataset], events: Sequence[OutboxEvent]) -> None:
    ids = {contribution_of(name)[0] for dataset in datasets for name in dataset.slices}
    entries = {entry.id: entry for entry in entries_heard(store.look("entries", ids=sorted(ids))[0])}

    def attempt() -> tuple[bool, None]:
        changes = Changes(these(store, (dataset.key for dataset in datasets)))
        spans: dict[str, Reply] = {}
        for stream in {dataset.key.stream for dataset in datasets}:
            (spans[stream],) = store.look("span", stream=stream)
        changes.spans = {stream: text(span) for stream, span in spans.items() if span is not None}
        for dataset in sorted(datasets, key=lambda dataset: dataset.revision):
            key = dataset.key
            if changes.spans.get(key.stream) != str(key.span):
                continue
            kept = changes.load(key) or changes.make(key)
            if dataset.revision < kept.window.revision:
                changes.save(replace(kept, due=True))
                continue
            changes.save(phases.observed(kept, dataset))
            built = [contribution_of(name) for name in dataset.slices]
            changes.observe(key, {entries[id_].seq: judged for id_, judged in built if id_ in entries})
        changes.tell(events)
        return changes.commit(store), None

    once(store, attempt)


# -- the queue


def take(
    store: Store, owner: str, now: int, lease_until: int, limit: int, streams: Sequence[str] | None
) -> list[Build]:
    if limit <= 0 or (streams is not None and not streams):
        return []
    ask: dict[str, object] = {"now": ordered(now), "limit": limit}
    if streams is not None:
        ask["streams"] = sorted(set(streams))

    def attempt() -> tuple[bool, list[Build]]:
        seen = windows_heard(*store.look("takable", **ask))
        changes = Changes(seen)
        builds: list[Build] = []
        for found in sorted(seen, key=_order):
            kept = found.kept
            if kept.window.phase is Phase.BUILDING:
                kept = phases.released(kept, counted=True)
                if kept.window.phase is not Phase.QUEUED:
                    changes.save(kept)
            if kept.window.phase is Phase.QUEUED and len(builds) < limit:
                leased = phases.taken(kept, owner, lease_until)
                changes.save(leased)
                used = [member for member in found.members() if member.desired]
                builds.append(phases.build_of(leased, used))
        return changes.commit(store), builds

    return once(store, attempt)


def _order(found: Seen) -> tuple[int, str, int]:
    key = found.kept.window.key
    return -key.priority, key.stream, key.start


def renew(store: Store, owner: str, keys: Sequence[WindowKey], lease_until: int) -> list[WindowKey]:
    def attempt() -> tuple[bool, list[WindowKey]]:
        changes = Changes(these(store, keys))
        held: list[WindowKey] = []
        for key in keys:
            kept = changes.load(key)
            if kept is not None and kept.window.phase is Phase.BUILDING and kept.window.owner == owner:
                prolonged = replace(kept.window, lease_until=lease_until)
                changes.save(replace(kept, window=prolonged), same_version=True)
                held.append(key)
        return changes.commit(store), held

    return once(store, attempt)


def complete_all(
    store: Store, done: Sequence[tuple[Build, Dataset, Sequence[OutboxEvent]]], now: int
) -> list[bool]:
    def attempt() -> tuple[bool, list[bool]]:
        changes = Changes(these(store, (build.key for build, _, _ in done)))
        answers: list[bool] = []
        for build, dataset, events in done:
            kept = changes.load(build.key)
            after = None if kept is None else phases.completed(kept, build, dataset, now)
            answers.append(after is not None)
            if after is not None:
                changes.save(after)
                built = {member.seq: contribution_of(member.name)[1] for member in build.members}
                changes.observe(build.key, built)
                changes.tell(events)
        return changes.commit(store), answers

    return once(store, attempt)


def fail(store: Store, build: Build, error: str, not_before: int, tries: int) -> bool:
    def attempt() -> tuple[bool, bool]:
        changes = Changes(these(store, [build.key]))
        kept = changes.load(build.key)
        if kept is None or not phases.holds(kept, build):
            return True, False
        changes.save(phases.failed(kept, error, not_before, tries))
        return changes.commit(store), True

    return once(store, attempt)


def settle(store: Store, act: str, ask: Mapping[str, object], become: Callable[[Kept], Kept]) -> int:
    """Every window that a look finds becomes something else; how many."""

    def attempt() -> tuple[bool, int]:
        seen = windows_heard(*store.look(act, **ask))
        changes = Changes(seen)
        for found in seen:
            changes.save(become(found.kept))
        return changes.commit(store), len(seen)

    return once(store, attempt)


# -- retractions


def retract(
    store: Store,
    act: Retraction,
    clocks: Sequence[ClockState],
    raw_version: int,
    quarantine_version: int,
    progress: Progress,
) -> bool:
    ids = list(dict.fromkeys([act.slice, *act.again]))

    def attempt() -> tuple[bool, bool]:
        known = number(store.look("retractions")[0])
        if act.n <= known:
            return True, False
        if act.n > known + 1:
            raise StorageError(
                f"retraction {act.n} can not be applied: {known} are, and those between are missing",
                hint="run `tidemill recover` to rebuild the state from the warehouse",
            )
        rows, laid, windows = store.look("leaving", stream=act.stream, ids=ids)
        seen = windows_heard(windows, rows)
        changes = Changes(seen)
        gone = next((entry.seq for entry in entries_heard(rows) if entry.id == act.slice), None)
        for found in seen:
            key = found.kept.window.key
            desired = any(mark.desired for mark in found.marks.values())
            built = any(mark.observed is not None for place, mark in found.marks.items() if place == gone)
            changes.save(phases.bereft(found.kept, desired=desired, built=built))
            for place, mark in found.marks.items():
                changes.mark(key, place, replace(mark, member=False, desired=False, ignored=None))
        after = [fates.after_retraction(entry, act) for entry in entries_heard(rows)]
        (done,) = store.act(
            "retract",
            stream=act.stream,
            n=str(act.n),
            applied=str(known),
            leaving=[
                {"before": before, "laid": starts, "after": entry_said(entry)}
                for before, starts, entry in zip(texts(rows), texts(laid), after, strict=True)
            ],
            clocks=clocks_said(clocks),
            progress=progress_said(progress),
            versions={"raw": str(raw_version), "quarantine": str(quarantine_version)},
            **changes.said(),
        )
        return number(done) == 1, True

    return once(store, attempt)
