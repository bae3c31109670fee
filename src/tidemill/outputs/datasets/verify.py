"""Verifies datasets: each current one is built again from raw, outside the warehouse, and compared.

It changes nothing. Equal sets of slices give equal bytes, so bytes are compared.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tidemill.config import Stream
from tidemill.engine import Engine
from tidemill.engine.jobs import spread
from tidemill.model.errors import StorageError
from tidemill.model.slices import SliceEntry, SliceStatus, contribution_of, set_hash
from tidemill.model.time import align
from tidemill.model.windows import Build, Dataset, Evaluation, Member, Window, WindowKey
from tidemill.outputs.datasets.catalog import dataset_of
from tidemill.outputs.datasets.dataset import Layout, columns_declared, layout_of
from tidemill.outputs.datasets.kernel import BuildUnit, WindowUnit, build_windows
from tidemill.outputs.datasets.pending_slices import PendingSlices
from tidemill.outputs.datasets.rules import (
    WATERMARK,
    WindowRules,
    admit,
    evaluate,
    has_other_rules,
    windows_of,
)
from tidemill.storage.bucket_path import local_copy, size_of
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.snapshot import Snapshot

Difference = tuple[str, str]  # the window, and what is wrong with its dataset
_GROUP = 256  # windows that one unit builds again


@dataclass(frozen=True, slots=True)
class _Proof:
    unit: BuildUnit
    files: Sequence[str]  # of the datasets in the warehouse
    rows: Sequence[int]  # of each


def verify_datasets(
    engine: Engine,
    stream: Stream,
    warehouse: Path,
    windows: Sequence[Window],
    entries: Sequence[SliceEntry],
    raw: Snapshot,
    scratch: Path,
    raw_from: int | None = None,
) -> tuple[int, list[Difference]]:
    """How many datasets were compared with raw, and the differences; those of windows that begin before
    `raw_from`, where raw has expired, are only checked for damage."""
    known, columns = {entry.id: entry for entry in entries}, columns_declared(stream)
    differences: list[Difference] = []
    good: list[tuple[Window, Dataset]] = []
    compared = 0
    for window in windows:
        if window.file is None or window.observed is None:
            continue
        is_sealed = raw_from is not None and window.key.start < raw_from
        compared += not is_sealed
        dataset, wrong = _inspect(warehouse, window, known)
        differences += [(str(window.key.interval), text) for text in wrong]
        # Otherwise another set of slices is about to be built.
        current = not wrong and window.desired == window.observed
        if dataset is None or not current or is_sealed:
            continue
        if dataset.columns == columns:
            good.append((window, dataset))
        else:
            differences.append((str(window.key.interval), f"{window.file} has other columns than declared"))
    parts = _parts_by_window(raw, [window.key for window, _ in good])
    differences += [
        (str(window.key.interval), f"raw gives no rows, and {dataset.file} has {dataset.rows}")
        for window, dataset in good
        if dataset.rows and window.key not in parts
    ]
    layouts = cache(layout_of)
    by_layout: dict[Layout, list[Dataset]] = {}
    for window, dataset in good:
        if window.key in parts:
            by_layout.setdefault(layouts(warehouse / dataset.file), []).append(dataset)
    proofs = []
    for layout, alike in by_layout.items():
        for group in spread([1] * len(alike), max(2 * engine.parallelism, -(-len(alike) // _GROUP))):
            datasets = [alike[i] for i in group]
            again = [WindowUnit(_build_again(dataset, known), parts[dataset.key]) for dataset in datasets]
            unit = BuildUnit(stream, str(scratch), again, layout=layout)
            files = [str(warehouse / dataset.file) for dataset in datasets]
            proofs.append(_Proof(unit, files, [dataset.rows for dataset in datasets]))
    read = {path for proof in proofs for window in proof.unit.windows for path in window.raw}
    size = sum(size_of(path) for path in read)
    differences += engine.run(_prove, proofs, "verify datasets", size)
    return compared, differences


def verify_sets(
    state: State, rules: WindowRules, stream: str, entries: Sequence[SliceEntry], now: int
) -> Iterator[Difference]:
    """Compare every window with the ledger and the rules: its members, which of them count, and whether it is
    ready. Windows that the next round evaluates anyway are skipped."""
    due = {window.key for window, _ in state.due(stream, now, sys.maxsize >> 1)}
    pending = PendingSlices(state.undecided(stream), rules.future)
    waiting = {entry.id for entry in state.unassigned_slices(stream, len(entries) + 1)}
    touching: dict[int, set[str]] = {}
    for entry in entries:
        settled = entry.status is SliceStatus.ACCEPTED and entry.id not in waiting
        for start in _surely_touched(entry, rules) if settled else ():
            if not rules.is_forgotten(start):
                touching.setdefault(start, set()).add(entry.id)
    for window, members in state.each_window(stream):
        if window.key.span != rules.span:
            continue
        missing = touching.pop(window.key.start, set()) - {member.slice for member in members}
        for slice_id in sorted(missing):
            yield str(window.key.interval), f"slice {slice_id} touches it and is not known to"
        if rules.is_sealed(window.key.interval):
            continue  # it does not change, whatever touches it
        if has_other_rules(window, rules):
            yield str(window.key.interval), "it was evaluated by other rules than are declared now"
            continue
        used, _ = admit(window.key.interval, members, rules, window.sealed)
        counting = {member.name for member in members if member.desired}
        evaluated = window.desired is not None and not waiting
        if evaluated and set_hash(counting) == window.desired and counting != {m.name for m in used}:
            yield str(window.key.interval), "the slices that count are not those that the rules name"
        elif evaluated and window.key not in due:
            evaluation = evaluate(window, members, rules, now, pending)
            if WATERMARK not in (evaluation.reason, window.reason) and (
                evaluation.ready,
                evaluation.reason,
            ) != (
                window.ready,
                window.reason,
            ):
                yield (
                    str(window.key.interval),
                    f"it is {_readiness(window)}, by the rules {_readiness(evaluation)}",
                )
    for start, slices in sorted(touching.items()):
        key = WindowKey(stream, start, rules.span)
        yield str(key.interval), f"{len(slices)} slices touch it and there is no such window"


def _readiness(of: Window | Evaluation) -> str:
    return "ready" if of.ready else f"waiting ({of.detail or of.reason})"


def _surely_touched(entry: SliceEntry, rules: WindowRules) -> Iterable[int]:
    """Starts of windows that a slice touches by its bounds, or by its first and its last row."""
    if entry.slice.declared is not None:
        return windows_of(entry.slice.declared, rules.span)
    if entry.observed is None:
        return ()
    return {align(entry.observed.start, rules.span), align(entry.observed.end - 1, rules.span)}


def _inspect(
    warehouse: Path, window: Window, known: Mapping[str, SliceEntry]
) -> tuple[Dataset | None, list[str]]:
    """The dataset of a window, and problems that can be found without building anything."""
    try:
        dataset = dataset_of(warehouse, window)
    except StorageError as error:
        return None, [f"its dataset cannot be read: {window.file}: {error.message}"]
    return dataset, list(_wrong(dataset, window, known))


def _wrong(dataset: Dataset, window: Window, known: Mapping[str, SliceEntry]) -> Iterator[str]:
    if (dataset.key, dataset.revision, dataset.hash) != (window.key, window.revision, window.observed):
        yield f"{window.file} is not the dataset that the state knows"
    if (dataset.rows, dataset.bytes) != (window.rows, window.bytes):
        evaluation, found = f"{window.rows} rows, {window.bytes} bytes", f"{dataset.rows} and {dataset.bytes}"
        yield f"the state says {evaluation}; {window.file} has {found}"
    for name in dataset.slices:
        slice_id, decision = contribution_of(name)
        entry = known.get(slice_id)
        if entry is None:
            yield f"{window.file} is made of a slice that the ledger does not know: {slice_id}"
        elif entry.status is SliceStatus.ACCEPTED and entry.decision == decision:
            continue
        elif window.desired == window.observed:
            yield f"{window.file} is made of a slice that does not count any more: {slice_id}"


def _build_again(dataset: Dataset, known: Mapping[str, SliceEntry]) -> Build:
    members = []
    for name in dataset.slices:
        entry = known[contribution_of(name)[0]]
        member = Member(entry.id, entry.seq, name, entry.slice.arrival, entry.bounds, desired=True)
        members.append(replace(member, repeats=entry.repeats))
    return Build(
        key=dataset.key,
        owner="verify",
        lease_until=0,
        attempt=1,
        revision=dataset.revision,
        supersedes=None,
        desired=dataset.hash,
        members=sorted(members, key=lambda member: member.seq),
        trigger="verify",
        seal=dataset.sealed,
    )


def _parts_by_window(raw: Snapshot, keys: Sequence[WindowKey]) -> dict[WindowKey, list[str]]:
    """The parts of raw that may have rows of each window; windows without any are left out. Each part is
    checked once, however many windows there are."""
    keys = sorted(keys)
    starts, ends = [key.start for key in keys], [key.end for key in keys]
    found: dict[WindowKey, list[str]] = {}
    for part, path in zip(raw.parts, raw.paths(), strict=True):
        if not part.rows:
            continue
        first, last = part.mins.get("event_time"), part.maxs.get("event_time")
        low = bisect_right(ends, first) if isinstance(first, int) else 0
        high = bisect_right(starts, last) if isinstance(last, int) else len(keys)
        for key in keys[low:high]:
            found.setdefault(key, []).append(path)
    return found


def _prove(proof: _Proof) -> Iterator[Difference]:
    """A kernel: build the datasets of a unit again and compare them; each is removed at once."""
    scratch = Path(proof.unit.warehouse)
    for number, (file, built) in enumerate(zip(proof.files, build_windows(proof.unit), strict=True)):
        position = str(built.key.interval)
        if built.dataset is None:
            yield position, f"it cannot be built again: {built.error}"
            continue
        if not built.dataset.rows:  # the number of rows in its file was checked before
            if proof.rows[number]:
                yield position, f"raw gives no rows, and {file} has {proof.rows[number]}"
            continue
        fresh = scratch / built.dataset.file
        if not _same(local_copy(file), fresh):
            yield position, f"raw gives something else than {file}"
        fresh.unlink()


def _same(one: Path, other: Path) -> bool:
    if one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as left, other.open("rb") as right:
        while piece := left.read(1 << 20):
            if piece != right.read(1 << 20):
                return False
    return True
