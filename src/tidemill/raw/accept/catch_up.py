"""After a crash: records what was committed in the state, and removes what was not.

Runs before every batch, and costs a few look-ups if nothing happened.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from tidemill.engine.jobs import spread
from tidemill.formats.key_runs import key_ranges
from tidemill.model.failpoints import failpoint
from tidemill.raw.accept.batch import Acceptor
from tidemill.raw.accept.id_runs import (
    MergeUnit,
    RunUnit,
    covering,
    make_run,
    merge,
    merged_names,
    plan_merge,
)
from tidemill.raw.accept.run_files import pieces_of
from tidemill.raw.expiry import sealed_files
from tidemill.raw.footers import EXPIRED, PACKED, BatchFooter, packed_footer
from tidemill.raw.part_names import is_shared
from tidemill.raw.recovered_batches import footers, part_facts, records_of
from tidemill.storage.bucket_path import size_of
from tidemill.storage.checksums import is_whole
from tidemill.storage.layout import RUN_SUFFIX
from tidemill.storage.leases import check_commit
from tidemill.storage.tables.log import TAKEN_OVER
from tidemill.storage.tables.table import RESHAPED

log = logging.getLogger(__name__)

PARALLEL_BYTES: Final = 64 << 20  # more bytes of runs than this are merged by all cores


def catch_up(acceptor: Acceptor) -> list[str]:
    """Record the batches that were committed but not recorded; returns them."""
    stream, state = acceptor.stream.name, acceptor.state
    versions = state.table_versions(stream)
    acceptor.raw.expect(versions.get("raw", 0))
    acceptor.quarantine.expect(versions.get("quarantine", 0))
    caught: list[str] = []
    for commit in acceptor.raw.commits(after=versions.get("raw", -1)):
        batch = commit.info.get("batch")
        if not {EXPIRED, PACKED, RESHAPED, TAKEN_OVER}.isdisjoint(commit.info):
            state.record_seen(stream, {"raw": commit.version})
        if batch is None or state.has_batch(stream, batch):
            continue
        facts = [fact for path in commit.added for fact in part_facts(str(acceptor.raw.root / path))]
        record = records_of(stream, facts, commit.version, acceptor.quarantine.refresh())[batch]
        state.apply_batch(replace(record, runs=[f"{run}{RUN_SUFFIX}" for run in record.runs]))
        caught.append(batch)
        log.warning("took up a committed batch", extra={"stream": stream, "batch": batch})
    _drop_uncommitted_quarantine(acceptor, versions.get("quarantine", -1))
    ensure_runs(acceptor)
    return caught


def _drop_uncommitted_quarantine(acceptor: Acceptor, after: int) -> None:
    """Quarantine is committed before raw: remove rows of batches that raw does not have."""
    stream, state = acceptor.stream.name, acceptor.state
    for commit in acceptor.quarantine.commits(after=after):
        batch = commit.info.get("batch")
        if not {EXPIRED, TAKEN_OVER}.isdisjoint(commit.info):
            state.record_seen(stream, {"quarantine": commit.version})
        if batch is None or state.has_batch(stream, batch):
            continue
        current = acceptor.quarantine.snapshot().by_path
        parts = [current[path] for path in commit.added if path in current]
        if parts:
            acceptor.quarantine.commit([], parts, info={"dropped": batch})
            context = {"stream": stream, "batch": batch}
            log.warning("dropped quarantine of an uncommitted batch", extra=context)


def ensure_runs(acceptor: Acceptor) -> None:
    """The gate must know every accepted id: runs that are missing or damaged are made again from raw."""
    known = acceptor.state.runs(acceptor.stream.name)
    missing = [name for name in known if not is_whole(acceptor.runs / name)]
    if missing:
        log.warning("making %d id runs again", len(missing), extra={"stream": acceptor.stream.name})
        acceptor.state.replace_runs(acceptor.stream.name, known, rebuild_runs(acceptor))
        known = acceptor.state.runs(acceptor.stream.name)
    found = list(acceptor.runs.iterdir()) if acceptor.runs.is_dir() else []
    unknown = [path for path in found if path.name not in known]
    if unknown:
        check_commit(acceptor.raw.root)  # after they were listed: none is of a process that took over
    for path in unknown:
        path.unlink(missing_ok=True)


def rebuild_runs(acceptor: Acceptor) -> list[str]:
    """Names of runs that hold every accepted id, oldest first: existing ones if they do, else made from raw
    and from the ids that expiry kept."""
    acceptor.runs.mkdir(parents=True, exist_ok=True)
    for run in acceptor.runs.glob(f"*{RUN_SUFFIX}"):
        if not is_whole(run):
            run.unlink()
    snapshot = acceptor.raw.snapshot()
    seqs = {entry.id: entry.seq for entry in acceptor.state.slices(acceptor.stream.name)}
    recorded = _Recorded(seqs)
    for part, path in zip(snapshot.parts, snapshot.paths(), strict=True):
        if is_shared(part):
            recorded.shared[path] = list(packed_footer(path).batches)
        else:
            recorded.add(path, footers(path), has_rows=part.rows > 0)
    ledger_offsets = {
        piece: (recorded.age(batch), piece) for batch, found in recorded.pieces.items() for piece in found
    }
    at_hand = covering(acceptor.runs, frozenset(ledger_offsets))
    if at_hand is not None:
        oldest = {
            name: min(ledger_offsets[piece] for piece in pieces_of(acceptor.runs / name)) for name in at_hand
        }
        return sorted(at_hand, key=lambda name: (oldest[name], name))
    sealed = sealed_files(acceptor.warehouse, acceptor.raw)
    units = [
        unit for batches in recorded.together() for unit in _run_units(acceptor, recorded, batches, sealed)
    ]
    size = sum(size_of(path) for unit in units for path in unit.raw)
    return [Path(path).name for path in acceptor.engine.run(make_run, units, "id runs", size)]


class _Recorded:
    """What the parts of raw say of batches: which parts hold their rows, their runs and their slices."""

    def __init__(self, seqs: Mapping[str, int]) -> None:
        self.seqs = seqs
        self.paths: dict[str, list[str]] = {}
        self.pieces: dict[str, set[str]] = {}
        self.members: dict[str, set[str]] = {}  # slices of a batch
        self.shared: dict[str, list[str]] = {}  # parts with rows of several batches -> the batches

    def add(self, path: str, footers: Sequence[BatchFooter], *, has_rows: bool) -> None:
        for footer in footers:
            held = self.paths.setdefault(footer.batch, [])
            if has_rows:
                held.append(path)
            self.pieces.setdefault(footer.batch, set()).update(footer.runs)
            self.members.setdefault(footer.batch, set()).update(summary.id for summary in footer.slices)

    def age(self, batch: str) -> int:
        """The ledger offset of its oldest slice."""
        return min((self.seqs[name] for name in self.members[batch]), default=len(self.seqs) + 1)

    def together(self) -> list[list[str]]:
        """Batches in groups: those with rows in one part are read together. Oldest first; batches without a
        run were accepted without a gate, and are left out."""
        leader = {batch: batch for batch, runs in self.pieces.items() if runs}

        def led_by(batch: str) -> str:
            while leader[batch] != batch:
                leader[batch] = leader[leader[batch]]
                batch = leader[batch]
            return batch

        for batches in self.shared.values():
            gated = [batch for batch in batches if batch in leader]
            for one, other in pairwise(gated):
                leader[led_by(one)] = led_by(other)
        found: dict[str, list[str]] = {}
        for batch in sorted(leader, key=self.age):
            found.setdefault(led_by(batch), []).append(batch)
        return list(found.values())


def _run_units(
    acceptor: Acceptor, recorded: _Recorded, batches: Sequence[str], sealed: Sequence[str]
) -> list[RunUnit]:
    """Units for the run of these batches: several if they have many parts."""
    chosen = frozenset(batches)
    pieces = sorted({piece for batch in batches for piece in recorded.pieces[batch]})
    members = frozenset(name for batch in batches for name in recorded.members[batch])
    own = [path for batch in batches for path in recorded.paths[batch]]
    shared = [path for path, held in recorded.shared.items() if not chosen.isdisjoint(held)]
    raw = sorted({*own, *shared})
    sizes = [max(1, size_of(path)) for path in raw]
    files = spread(sizes, max(1, sum(sizes) // PARALLEL_BYTES)) if shared else [list(range(len(raw)))]
    names = merged_names(pieces, max(1, len(files)))
    return [
        RunUnit(
            raw=[raw[i] for i in files[number]] if files else [],
            seqs=recorded.seqs,
            target=str(acceptor.runs / name),
            pieces=pieces,
            sealed=sealed if number == 0 else (),
            ledger_offsets=sorted(recorded.seqs[name] for name in members) if sealed and number == 0 else (),
            only=members if shared else None,
        )
        for number, name in enumerate(names)
    ]


def merge_runs(acceptor: Acceptor) -> Sequence[str]:
    """Merge runs of similar size, so that the gate has few to search; returns the names of removed ones."""
    stream, state = acceptor.stream.name, acceptor.state
    names = state.runs(stream)
    sizes = {name: size_of(acceptor.runs / name) for name in names}
    old = plan_merge(sizes)
    if not old:
        return ()
    pieces = sorted({piece for name in old for piece in pieces_of(acceptor.runs / name)})
    size = sum(sizes[name] for name in old)
    count = acceptor.engine.parallelism if size > PARALLEL_BYTES else 1
    new = merged_names(pieces, count)
    units = [
        MergeUnit([str(acceptor.runs / run) for run in old], low, high, str(acceptor.runs / name), pieces)
        for name, (low, high) in zip(new, key_ranges(count), strict=True)
    ]
    acceptor.engine.run(merge, units, "merge id runs", size)
    failpoint("gate.after_merge")
    if state.replace_runs(stream, old, new):
        for name in old:
            (acceptor.runs / name).unlink(missing_ok=True)
    return old
