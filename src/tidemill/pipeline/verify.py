"""`verify`: recomputes from raw what is stored and says what differs.

It trusts the slices' bytes and the raw rows, in that order, and nothing that was derived from them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from tidemill.formats.arrow import one
from tidemill.formats.key_runs import hash_keys
from tidemill.ingest.landing import content_digest
from tidemill.model.errors import StorageError
from tidemill.model.slices import SliceEntry, SliceStatus, slice_id
from tidemill.model.time import DAY, MIN_INSTANT, Interval
from tidemill.outputs.datasets.rules import rules_of
from tidemill.outputs.rollups.verify import Known, verify_tiles
from tidemill.raw.recall import PACKED, PartFacts, held_facts, part_facts
from tidemill.raw.retract import finish_retractions
from tidemill.raw.undo import quarantined_rows
from tidemill.storage.tables.snapshot import Snapshot

if TYPE_CHECKING:
    from tidemill.outputs.rollups.roller import Roller
    from tidemill.pipeline.workers import Workers


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    stream: str
    what: str  # stream | slice | raw | quarantine | ids | tile | window | dataset | result | index | chain
    where: str
    difference: str
    remedy: str = ""  # the command that mends it, where there is one


@dataclass(frozen=True, slots=True)
class StreamAudit:
    stream: str
    slices: int
    raw_rows: int
    tiles: int
    pending: int
    datasets: int = 0
    results: int = 0
    index: int = 0  # parts of it
    sealed: int = 0  # tiles that can not be held against raw any more, since that is gone
    sealed_windows: int = 0  # the same of datasets and results
    chains: int = 0  # vectors


@dataclass(frozen=True, slots=True)
class Audit:
    streams: Sequence[StreamAudit]
    findings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        return not self.findings


def audit(workers: Workers, streams: Sequence[str]) -> Audit:
    done: list[StreamAudit] = []
    findings: list[Finding] = []
    for number, stream in enumerate(streams):
        workers.warehouse.progress(stream, "verify", number / len(streams))
        try:
            finish_retractions(workers.warehouse, workers.acceptor, stream)
            one_audit, found = _audit_stream(workers, stream)
        except StorageError as error:
            if len(streams) == 1:
                raise
            one_audit, found = _not_audited(workers, stream, error)  # the others are verified all the same
        done.append(one_audit)
        findings.extend(found)
        workers.warehouse.progress(stream, "verify", (number + 1) / len(streams))
    return Audit(done, findings)


def _not_audited(workers: Workers, stream: str, error: StorageError) -> tuple[StreamAudit, list[Finding]]:
    totals = workers.state.totals(stream)
    slices = len(workers.state.slices(stream))
    where = error.where or stream
    finding = Finding(stream, "stream", where, f"it cannot be verified: {error.message}", error.hint)
    return StreamAudit(stream, slices, 0, 0, totals["pending_slices"]), [finding]


def _audit_stream(workers: Workers, stream: str) -> tuple[StreamAudit, list[Finding]]:
    from tidemill.raw.accept.catch_up import catch_up

    acceptor, roller = workers.acceptor(stream), workers.roller(stream)
    catch_up(acceptor)
    roller.catch_up()
    acceptor.raw.refresh()
    entries = workers.state.slices(stream)
    landed = sum(entry.slice.size for entry in entries)
    changed = workers.warehouse.engine.run(check_slice, _units(workers, entries), "verify slices", landed)
    findings = [Finding(stream, *f) for f in changed]
    paths = acceptor.raw.snapshot().paths()
    size = sum(part.size for part in acceptor.raw.snapshot().parts)
    read = workers.warehouse.engine.run(check_part, paths, "verify raw", size)
    facts = [fact for fact in read if isinstance(fact, PartFacts)]
    findings += [Finding(stream, *f) for f in _check_raw(entries, facts, acceptor.raw.snapshot().rows)]
    if len(facts) == len(read):
        speaking = [part for part in acceptor.raw.snapshot().parts if not part.rows]
        said = workers.warehouse.engine.run(
            part_facts, acceptor.raw.snapshot().paths(speaking), "verify words", 0
        )
        findings += [Finding(stream, *f) for f in _check_words(facts, said)]
    held = quarantined_rows(acceptor.quarantine)
    findings += [Finding(stream, *f) for f in _check_quarantine(entries, held)]
    pending = sum(1 for entry in entries if entry.status is SliceStatus.PENDING)
    rows = acceptor.raw.snapshot().rows
    if len(facts) < len(read):  # nothing that is made of raw can be held against a raw with holes
        findings += [Finding(stream, *f) for f in read if not isinstance(f, PartFacts)]
        return StreamAudit(stream, len(entries), rows, 0, pending), findings
    if acceptor.plan.gated and paths:
        twice = workers.warehouse.engine.run(repeated_ids, [paths], "verify ids", size)
        findings += [Finding(stream, "ids", f, "accepted more than once") for f in twice]
    tiles = sealed = 0
    if roller.spec.metrics:
        called = {entry.id: entry.name for entry in entries}
        desired: dict[int, frozenset[str]] = {}
        for fact in facts:
            for start, ids in fact.tiles.items():
                names = frozenset(called.get(each, each) for each in ids)
                desired[start] = desired.get(start, frozenset()) | names
        folder = roller.table.staging("verify")
        known = _known_of_tiles(workers, roller, desired, entries, folder)
        tiles, sealed, differences = verify_tiles(
            roller.spec, roller.plan, acceptor.raw, roller.table, workers.warehouse.engine, known, folder
        )
        shutil.rmtree(folder, ignore_errors=True)
        findings += [Finding(stream, "tile", d.place, d.what) for d in differences]
    datasets, wrong = _check_datasets(workers, stream, entries, acceptor.raw.snapshot())
    findings += wrong
    results, wrong = _check_results(workers, stream)
    findings += wrong
    index, wrong = _check_index(workers, stream)
    findings += wrong
    windows = _sealed_windows(workers, stream)
    chains, unlike = workers.chains.verify(stream)
    findings += [Finding(stream, "chain", d.vector, d.what) for d in unlike]
    done = StreamAudit(
        stream, len(entries), rows, tiles, pending, datasets, results, index, sealed, windows, chains
    )
    return done, findings


def _sealed_windows(workers: Workers, stream: str) -> int:
    """Datasets and results that raw is gone for."""
    sealed = workers.warehouse.expiries.seal(stream)
    if sealed is None:
        return 0
    windows = workers.state.windows(stream, None, Interval(MIN_INSTANT - DAY, sealed))
    results = workers.flow.sealed(stream) if workers.project.stream(stream).windows else 0
    return sum(window.file is not None for window in windows) + results


def _check_index(workers: Workers, stream: str) -> tuple[int, list[Finding]]:
    """Parts of the index, made again beside it."""
    indexer = workers.indexer(stream)
    if indexer is None:
        return 0, []
    wrong = indexer.verify(workers.warehouse.clock())
    return len(indexer.table.snapshot().parts), [Finding(stream, "index", d.part, d.what) for d in wrong]


def _known_of_tiles(
    workers: Workers,
    roller: Roller,
    desired: dict[int, frozenset[str]],
    entries: Sequence[SliceEntry],
    folder: Path,
) -> Known:
    """What tiles are held against: raw alone, and for what is gone from it the state."""
    stream, horizons = roller.stream.name, roller.horizons()
    expired = {
        tile.key: tile.hash
        for level in horizons.levels
        for tile in workers.state.tiles(stream, level, Interval(MIN_INSTANT, horizons.levels[level]))
        if tile.part is None and tile.hash is not None
    }
    if not roller.spec.in_order:
        return Known(desired, expired, horizons.raw)
    called = {entry.id: entry.name for entry in entries}
    known = Known(desired, expired, horizons.raw)
    if horizons.raw is not None:  # who touched which tile is not told by raw any more
        touched = roller.chronicle.touched
    else:
        seqs = {entry.id: entry.seq for entry in entries}
        again = roller.chronicle.recount(roller.raw.snapshot().paths(), seqs, folder)
        admit = again.roster.admit if again.roster is not None else None
        touched, known = again.touched, Known(desired, expired, None, again.cells, admit)
    for start, ids in touched.items():
        names = frozenset(called.get(each, each) for each in ids)
        desired[start] = desired.get(start, frozenset()) | names
    return known


def _check_datasets(
    workers: Workers, stream: str, entries: Sequence[SliceEntry], raw: Snapshot
) -> tuple[int, list[Finding]]:
    """Datasets of the stream, built again beside the warehouse."""
    declared = workers.project.stream(stream)
    rules = rules_of(declared, workers.warehouse.expiries.horizons(stream))
    if rules is None:
        return 0, []
    rules = replace(rules, watermark=workers.watermark(stream))
    from tidemill.outputs.datasets.damage import repair_command
    from tidemill.outputs.datasets.verify import verify_datasets, verify_sets

    findings = [
        Finding(stream, "window", place, what)
        for place, what in verify_sets(workers.state, rules, stream, entries, workers.warehouse.clock())
    ]
    windows = [w for w in workers.state.windows(stream) if w.key.span == declared.aggregation_span]
    with TemporaryDirectory(prefix=".verify-", dir=workers.root) as scratch:
        count, differences = verify_datasets(
            workers.warehouse.engine,
            declared,
            workers.root,
            windows,
            entries,
            raw,
            Path(scratch),
            rules.raw_from,
        )
    wrong = {place for place, _ in differences}
    named = ((str(window.key.interval), window.key) for window in (windows if wrong else ()))
    commands = {place: repair_command(key) for place, key in named if place in wrong}
    findings += [
        Finding(stream, "dataset", place, what, commands.get(place, "")) for place, what in differences
    ]
    return count, findings


def _check_results(workers: Workers, stream: str) -> tuple[int, list[Finding]]:
    """Results of streaming windows, computed again: how many were compared, and what differs."""
    count, findings = 0, []
    for told in workers.flow.verify(stream):
        if isinstance(told, int):
            count += told
        else:
            command = f"tidemill rebuild {stream} --results {told.place.split(' ', 1)[0]}"
            findings.append(Finding(stream, "result", told.place, told.what, command))
    return count, findings


@dataclass(frozen=True, slots=True)
class SliceCheck:
    path: str
    entry: SliceEntry


def _units(workers: Workers, entries: Sequence[SliceEntry]) -> list[list[SliceCheck]]:
    checks = [SliceCheck(str(workers.root / entry.slice.path), entry) for entry in entries]
    groups = max(1, min(len(checks), 2 * workers.warehouse.engine.parallelism))
    return [checks[i::groups] for i in range(groups)] if checks else []


def check_slice(unit: Sequence[SliceCheck]) -> Iterator[tuple[str, str, str]]:
    """The bytes on disk must still be those that the slice's id was made of."""
    for check in unit:
        new = check.entry.slice
        path = Path(check.path)
        try:
            digest = content_digest(path)
        except FileNotFoundError:
            yield "slice", new.id, f"its file is gone: {new.path}"
        except OSError as error:
            yield "slice", new.id, f"its file can not be read: {new.path}: {error.strerror or error}"
        else:
            if slice_id(new.stream, new.declared, digest) != new.id:
                yield "slice", new.id, f"its bytes are not those that landed: {new.path}"


def check_part(path: str) -> Iterator[PartFacts | tuple[str, str, str]]:
    """What a raw part holds, or what keeps it from saying it."""
    try:
        yield from held_facts(path)
    except StorageError as error:
        yield "raw", path, error.message


def _check_raw(
    entries: Sequence[SliceEntry], facts: Sequence[PartFacts], rows: int
) -> Iterator[tuple[str, str, str]]:
    accepted: dict[str, int] = {}
    for fact in facts:
        for name, count in fact.accepted.items():
            accepted[name] = accepted.get(name, 0) + count
    counted = sum(fact.rows for fact in facts)
    if counted != rows:
        yield "raw", "table", f"the log says {rows} rows; its parts hold {counted}"
    for entry in entries:
        found = accepted.pop(entry.id, 0)
        counts = entry.counts
        if entry.status is SliceStatus.RETRACTED:
            if found:
                yield "raw", entry.id, f"it was retracted; raw has {found} rows of it"
        elif found != counts.accepted:
            yield "raw", entry.id, f"the ledger says {counts.accepted} accepted; raw has {found}"
        if counts.records != counts.accepted + counts.duplicate + counts.conflict + counts.rejected:
            yield "raw", entry.id, "its outcomes do not add up to its records"
    for name, count in sorted(accepted.items()):
        yield "raw", name, f"raw has {count} rows of a slice that the ledger does not know"


def _check_words(held: Sequence[PartFacts], said: Sequence[PartFacts]) -> Iterator[tuple[str, str, str]]:
    """What is said for parts that were packed must be what the packed ones hold: a state that is lost is
    rebuilt from the former."""
    counts: dict[str, list[int]] = {}
    own = [fact for fact in held if fact.rows and fact.footer["kind"] != PACKED]
    for place, facts in enumerate((held, [*own, *said])):
        for fact in facts:
            for name, count in fact.accepted.items():
                counts.setdefault(name, [0, 0])[place] += count
    for name, (rows, told) in sorted(counts.items()):
        if rows != told:
            yield "raw", name, f"its parts have {rows} rows of it; {told} are told of"


def _check_quarantine(
    entries: Sequence[SliceEntry], held: Mapping[str, int]
) -> Iterator[tuple[str, str, str]]:
    """A replay takes records away, so there may be fewer than the ledger says, but never more."""
    known = {entry.id: entry for entry in entries}
    for name, rows in sorted(held.items()):
        entry = known.get(name)
        if entry is None:
            yield "quarantine", name, f"it has {rows} rows of a slice that the ledger does not know"
        elif entry.status is SliceStatus.RETRACTED:
            yield "quarantine", name, f"it was retracted; quarantine has {rows} rows of it"
        elif rows > (told := entry.counts.conflict + entry.counts.rejected):
            yield "quarantine", name, f"the ledger says {told} were not accepted; quarantine has {rows}"


def repeated_ids(paths: Sequence[str]) -> Iterator[str]:
    """Ids that stand in raw more than once: found by their hash, told by their text."""
    highs, lows = [], []
    for path in paths:
        rows = pq.read_table(path, partitioning=None, columns=["tenant", "event_id"]).combine_chunks()
        if rows.num_rows:
            tenant = one(rows.column("tenant").dictionary_encode())
            high, low = hash_keys(tenant, one(rows.column("event_id")))
            highs.append(high)
            lows.append(low)
    if not highs:
        return
    high, low = np.concatenate(highs), np.concatenate(lows)
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    again = np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1]))
    if not again.size:
        return
    suspects = {(int(high[i]), int(low[i])) for i in again}
    seen: dict[tuple[str, str], int] = {}
    for path in paths:
        rows = pq.read_table(path, partitioning=None, columns=["tenant", "event_id"]).combine_chunks()
        if not rows.num_rows:
            continue
        hashes = hash_keys(one(rows.column("tenant").dictionary_encode()), one(rows.column("event_id")))
        for row, key in enumerate(zip(*(h.tolist() for h in hashes), strict=True)):
            if key in suspects:
                name = (rows.column("tenant")[row].as_py(), rows.column("event_id")[row].as_py())
                seen[name] = seen.get(name, 0) + 1
    for (tenant, event_id), count in sorted(seen.items()):
        if count > 1:
            yield f"{tenant}/{event_id}"
