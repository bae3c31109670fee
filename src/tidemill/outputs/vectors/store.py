"""Keeps the chains of one stream: adds what was accepted, rebuilds after retractions, compacts.

Desired is the set of accepted slices, observed is what the parts of the table were made from; a crash at any
point is handled by the difference. It never changes raw, and is the only writer of the table.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain as joined
from pathlib import Path
from typing import Final

import numpy as np

from tidemill.config import Stream
from tidemill.engine import Engine
from tidemill.engine.jobs import spread
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import SliceEntry, set_hash
from tidemill.outputs.vectors.kernel import (
    ChainUnit,
    Compacted,
    CompactUnit,
    Facts,
    Gathered,
    GatherUnit,
    LateUnit,
    build,
    compact,
    facts,
    gather,
    late,
    reads_of,
    without,
)
from tidemill.outputs.vectors.raw_deltas import Key
from tidemill.outputs.vectors.rules import NONE, REASONS, Reason, merges, needed
from tidemill.outputs.vectors.table import VERSION, ChainFooter, Made, chain_table, in_bucket
from tidemill.storage.tables.parts import StagedPart, read_footer
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table

log = logging.getLogger(__name__)

MOST_PARTS: Final = 16  # parts of a bucket; with more they are merged
MOST_READS: Final = 1_000_000  # vectors whose reads are counted; with more, counting starts over


@dataclass(frozen=True, slots=True)
class Chained:
    """What a refresh did."""

    slices: int = 0  # folded in
    deltas: int = 0
    remade: int = 0  # chains that were made again, since a delta came before their checkpoint
    whole: bool = False  # all chains were made again: something was retracted, or the declaration changed
    version: int = 0  # of the table

    @property
    def idle(self) -> bool:
        return not (self.slices or self.deltas or self.remade or self.whole)


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did."""

    chains: int = 0
    deltas: int = 0  # merged into checkpoints
    bytes_before: int = 0  # of the buckets that were rewritten
    bytes_after: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)  # chains by reason
    version: int = 0
    overflowed: int = 0  # vectors of those buckets that are not finite, or were prevented from that
    pieces: int = 0  # pieces in which it was done, to bound memory

    @property
    def idle(self) -> bool:
        return not self.chains


@dataclass(frozen=True, slots=True)
class CompactionStep:
    """What a compaction would do to a bucket."""

    bucket: str
    chains: int
    deltas: int
    reasons: Mapping[str, int]
    bytes: int  # that would be read and rewritten


class Reads:
    """How often each vector was read since its chain was last compacted, by this process; thread-safe. Beyond
    a limit, counting starts over."""

    def __init__(self, most: int = MOST_READS) -> None:
        self._most = most
        self._counts: Counter[Key] = Counter()
        self._guard = threading.Lock()

    def add(self, keys: Sequence[Key]) -> None:
        with self._guard:
            if len(self._counts) + len(keys) > self._most:
                self._counts.clear()
            self._counts.update(keys)

    def of(self, keys: Sequence[Key]) -> dict[Key, int]:
        """The counts of the vectors that were read."""
        with self._guard:
            if not self._counts:
                return {}
            return {key: self._counts[key] for key in keys if key in self._counts}

    def forget(self, keys: Iterable[Key]) -> None:
        with self._guard:
            for key in keys:
                self._counts.pop(key, None)


class ChainStore:
    """The chains of one stream. `slices` gives its accepted slices in ledger order; `raw` is used as it is: a
    caller that has committed to it must refresh it. `memory`: bytes that a compaction may use."""

    def __init__(
        self,
        warehouse: Path,
        stream: Stream,
        engine: Engine,
        raw: Table,
        slices: Callable[[], Sequence[SliceEntry]],
        reads: Reads,
        memory: int,
    ) -> None:
        assert stream.vector is not None, stream.name
        self.stream = stream
        self.vector = stream.vector
        self.engine = engine
        self.raw = raw
        self.table = chain_table(warehouse, stream.name)
        self._memory = memory
        self._reads = reads
        self._slices = slices
        self._declared = declared_as(stream)
        self._settled: tuple[int, int] | None = None  # versions of raw and chains that were found to agree
        # What the table covered, and the parts of raw that were completely folded in by then.
        self._used: tuple[int, frozenset[str]] = (0, frozenset())
        self._footers: dict[str, ChainFooter] = {}  # of parts, by path
        self._facts: dict[str, tuple[tuple[str, ...], Facts]] = {}  # of buckets, with the parts they are of

    # -- desired and observed

    def made(self) -> Made:
        """What the table was made from; nothing if its declaration differs."""
        self._read_current()
        answers = [footer.made for footer in self._footers.values() if footer.declared == self._declared]
        if len(answers) < len(self._footers):
            return Made()
        return max(answers, key=lambda made: made.through, default=Made())

    def footers(self) -> Mapping[str, ChainFooter]:
        """The footers of the current parts."""
        self._read_current()
        return self._footers

    def _read_current(self) -> None:
        paths = [part.path for part in self.table.snapshot().parts]
        known = self._footers
        self._footers = {
            path: known.get(path) or ChainFooter.from_footer(read_footer(self.table.root / path))
            for path in paths
        }

    def refresh(self, now: int) -> Chained:
        """Bring the table in line with the accepted slices, in one commit. Cheap when there is nothing new.

        Must not be called while slices are being decided again: raw then lacks some of the accepted rows.
        """
        self.raw.refresh()
        self.table.refresh()
        versions = (self.raw.version, self.table.version)
        if self._settled == versions:
            return Chained(version=self.table.version)
        return self._follow(now, rebuild=False)

    def rebuild(self, now: int) -> Chained:
        """Make all chains again from raw, whatever the table says."""
        self.raw.refresh()
        self.table.refresh()
        return self._follow(now, rebuild=True)

    def _follow(self, now: int, *, rebuild: bool) -> Chained:
        raw = self.raw.version
        self.table.clean_staging()
        entries, made = list(self._slices()), self.made()
        current = set_hash(entry.name for entry in entries if entry.seq <= made.through)
        whole = rebuild or (bool(self._footers) and current != made.hash)
        new = entries if whole else [entry for entry in entries if entry.seq > made.through]
        target = Made(max((e.seq for e in entries), default=0), set_hash(e.name for e in entries))
        done = self._fold_in(new, target, entries, now, whole=whole) if new or whole else Chained()
        self._settled = (raw, self.table.version)
        self._used = (self.made().through, frozenset(part.path for part in self.raw.snapshot().parts))
        if not (done.deltas or whole):
            return Chained(version=self.table.version)
        return Chained(len(new), done.deltas, done.remade, whole, self.table.version)

    # -- making it so

    def _fold_in(
        self, new: Sequence[SliceEntry], made: Made, entries: Sequence[SliceEntry], now: int, *, whole: bool
    ) -> Chained:
        seed = f"{made.through} {made.hash} {self._declared}"
        if whole:  # a part of the same slices may exist: it is removed, which frees its name
            seed = f"{seed} {self.table.version}"
        folder = self.table.staging(_short(seed))
        parts = self.raw.snapshot().parts
        through, used = self._used
        known = used if not whole and self.made().through >= through else frozenset()
        unseen = [part for part in parts if part.path not in known]
        fresh = self._gather(unseen, new, None, folder, "new")
        current = self.buckets()
        removes = [part for found in current.values() for part in found] if whole else []
        again: dict[str, frozenset[Key]] = {}
        if not whole:
            again = self._late(fresh, current)
            keys = frozenset(joined.from_iterable(again.values()))
            more = self._gather(parts, entries, keys, folder, "again") if keys else []
            fresh = [found for found in fresh if found.bucket not in again] + self._others(fresh, again, more)
        units = list(self._units(fresh, {} if whole else current, again, made, folder, seed))
        built = self.engine.run(build, units, "chains", sum(part.size for part in unseen))
        for unit in units if not whole else ():
            removes += current.get(unit.bucket, []) if unit.current else []
        self._commit(built, removes, made, now)
        deltas = sum(found.rows for found in fresh)
        return Chained(len(new), deltas, sum(map(len, again.values())), whole)

    def gather_all(self, folder: Path) -> list[Gathered] | None:
        """All deltas in raw of the slices that the chains are made from; None if those have changed: then the
        next round makes the chains again."""
        made = self.made()
        entries = [entry for entry in self._slices() if entry.seq <= made.through]
        if set_hash(entry.name for entry in entries) != made.hash:
            return None
        return self._gather(self.raw.snapshot().parts, entries, None, folder, "all")

    def _gather(
        self,
        parts: Sequence[Part],
        entries: Sequence[SliceEntry],
        only: frozenset[Key] | None,
        folder: Path,
        name: str,
    ) -> list[Gathered]:
        """Deltas of these slices, from raw, by bucket."""
        root, slices = self.raw.root, frozenset(entry.id for entry in entries)
        held = [part for part in parts if part.rows]
        groups = spread([part.size for part in held], 4 * self.engine.parallelism)
        units = [
            GatherUnit(
                [str(root / held[i].path) for i in group],
                slices,
                only,
                self.vector,
                str(folder),
                f"{name}-{number:04d}",
            )
            for number, group in enumerate(groups)
        ]
        return self.engine.run(gather, units, "chains: read raw", sum(part.size for part in held))

    def _late(
        self, fresh: Sequence[Gathered], current: Mapping[str, Sequence[Part]]
    ) -> dict[str, frozenset[Key]]:
        """By bucket, the vectors whose chains must be made again."""
        found: dict[str, frozenset[Key]] = {}
        for bucket in sorted({each.bucket for each in fresh}):
            of_bucket = [each for each in fresh if each.bucket == bucket]
            first = min(each.first for each in of_bucket)
            behind = [part for part in current.get(bucket, ()) if self._checkpoints_until(part) >= first]
            if behind:
                unit = LateUnit(
                    [each.path for each in of_bucket], [str(self.table.root / p.path) for p in behind]
                )
                keys = self.engine.run(late, [unit], "chains: late", sum(part.size for part in behind))
                if keys:
                    found[bucket] = frozenset(keys)
        return found

    def _checkpoints_until(self, part: Part) -> int:
        newest = self._footers[part.path].checkpoints_until
        return newest if newest is not None else -(2**63)

    def _others(
        self, fresh: Sequence[Gathered], again: Mapping[str, frozenset[Key]], more: Sequence[Gathered]
    ) -> list[Gathered]:
        """For buckets with chains that are made again: all deltas of those, and the new ones of the
        others."""
        rest = [without(found, again[found.bucket]) for found in fresh if found.bucket in again]
        return [*(found for found in rest if found.rows), *more]

    def _units(
        self,
        fresh: Sequence[Gathered],
        current: Mapping[str, Sequence[Part]],
        again: Mapping[str, frozenset[Key]],
        made: Made,
        folder: Path,
        seed: str,
    ) -> Iterator[ChainUnit]:
        for bucket in sorted({found.bucket for found in fresh}):
            there = current.get(bucket, ())
            rewritten = bucket in again or len(there) >= MOST_PARTS
            yield ChainUnit(
                bucket,
                [found.path for found in fresh if found.bucket == bucket],
                [str(self.table.root / part.path) for part in there] if rewritten else (),
                again.get(bucket, frozenset()),
                made,
                self._declared,
                str(folder),
                f"{seed} {' '.join(part.path for part in there) if rewritten else ''}",
            )

    def _commit(self, built: Sequence[StagedPart], removes: Sequence[Part], made: Made, now: int) -> None:
        failpoint("chains.after_build")
        if built or removes:
            parts = self.table.publish(built)
            failpoint("chains.before_commit")
            self.table.commit(parts, removes, info={"through": str(made.through)}, now=now)
            failpoint("chains.after_commit")
            log.info(
                "%d parts of chains for %d", len(parts), len(removes), extra={"stream": self.stream.name}
            )
        self.table.clean_staging()

    # -- compaction

    def plan(self, now: int, *, force: bool = False) -> list[CompactionStep]:
        """What `compact` would do now."""
        self.table.refresh()
        steps = []
        for bucket, parts in self.buckets().items():
            found = self._facts_of(bucket, parts)
            reads = reads_of(found.keys, len(found.chains), self._reads.of(found.keys))
            reasons = needed(found.chains, self.stream.compaction, now, reads)
            if force:
                reasons[reasons == NONE] = REASONS.index(Reason.ASKED)
            groups = merges(found.chains, self.stream.compaction, now, reads, reasons != NONE)
            touched = np.unique(found.chains.chain[groups != NONE])
            if touched.size:
                answers = Counter(REASONS[n].value for n in reasons[touched].tolist())
                deltas = int(np.count_nonzero((groups != NONE) & found.chains.pending))
                size = sum(part.size for part in parts)
                steps.append(CompactionStep(bucket, int(touched.size), deltas, dict(answers), size))
        return steps

    def compact(self, now: int, *, force: bool = False) -> Compaction:
        """Compact the chains that need it (with `force`: everything that can be merged), in one commit; no
        commit if there is nothing to merge."""
        steps = self.plan(now, force=force)
        if not steps:
            return Compaction(version=self.table.version)
        self.table.clean_staging()
        made, buckets = self.made(), self.buckets()
        seed = f"compact {now} {force} {self.table.version}"
        folder = self.table.staging(_short(seed))
        at_once = max(1, min(len(steps), self.engine.parallelism))
        units = [
            CompactUnit(
                step.bucket,
                [str(self.table.root / part.path) for part in buckets[step.bucket]],
                self.stream.compaction,
                self.vector,
                now,
                force,
                self._reads.of(self._facts[step.bucket][1].keys),
                self._memory // at_once,
                made,
                self._declared,
                str(folder),
                f"{seed} {' '.join(part.path for part in buckets[step.bucket])}",
            )
            for step in steps
        ]
        done: list[Compacted] = self.engine.run(compact, units, "compact", sum(step.bytes for step in steps))
        assert [each.bucket for each in done] == [step.bucket for step in steps], "as planned"
        removes = [part for each in done for part in buckets[each.bucket]]
        in_step = self._settled is not None and self._settled[1] == self.table.version
        self._commit([each.part for each in done], removes, made, now)
        if in_step and self._settled is not None:  # no delta was added or removed
            self._settled = (self._settled[0], self.table.version)
        for unit in units:
            self._reads.forget(unit.reads)
        reasons: Counter[str] = Counter()
        for each in done:
            reasons.update(each.reasons)
        return Compaction(
            sum(each.chains for each in done),
            sum(each.deltas for each in done),
            sum(part.size for part in removes),
            sum(each.part.size for each in done),
            dict(reasons),
            self.table.version,
            sum(each.overflowed for each in done),
            sum(each.pieces for each in done),
        )

    def buckets(self) -> dict[str, list[Part]]:
        """The current parts, by bucket."""
        found: dict[str, list[Part]] = {}
        for part in self.table.snapshot().parts:
            found.setdefault(in_bucket(part), []).append(part)
        return dict(sorted(found.items()))

    def _facts_of(self, bucket: str, parts: Sequence[Part]) -> Facts:
        """Facts of a bucket; read once for its current parts."""
        paths = tuple(part.path for part in parts)
        known = self._facts.get(bucket)
        if known is None or known[0] != paths:
            (found,) = facts([str(self.table.root / path) for path in paths])
            known = self._facts[bucket] = (paths, found)
        return known[1]


def declared_as(stream: Stream) -> str:
    """What the rows of the table depend on besides raw."""
    assert stream.vector is not None, stream.name
    declaration = json.dumps([VERSION, stream.vector.model_dump(mode="json")], sort_keys=True)
    return hashlib.blake2b(declaration.encode(), digest_size=8).hexdigest()


def _short(seed: str) -> str:
    return hashlib.blake2b(seed.encode(), digest_size=12).hexdigest()
