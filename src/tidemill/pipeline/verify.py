"""`verify`: recomputes from raw what is stored and reports differences.

It trusts the bytes of slices and the rows of raw, in that order, and nothing derived from them. Files that
nothing is recomputed from are compared with their checksums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrow import one
from tidemill.formats.key_runs import hash_keys
from tidemill.formats.stored_slice import content_digest
from tidemill.model.damage import FileKind
from tidemill.model.errors import DamageError, StorageError
from tidemill.model.slices import SliceEntry, SliceStatus, id_of
from tidemill.outputs.contract import Difference, Output, RawFacts, Verified
from tidemill.pipeline.documents.scrub import remedy
from tidemill.pipeline.scrub import scrub
from tidemill.raw.batch_removal import quarantined_rows
from tidemill.raw.compare import differences
from tidemill.raw.footers import BatchFooter, PackedFooter
from tidemill.raw.recovered_batches import PartFacts, held_facts, part_facts
from tidemill.raw.retract import finish_retractions
from tidemill.storage.bucket_path import local_copy
from tidemill.storage.state.protocol import Receipts
from tidemill.storage.tables.parts import read_part

if TYPE_CHECKING:
    from tidemill.pipeline.workers import Workers


NOTHING: Final = Verified()


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong."""

    stream: str
    what: str  # stream | slice | raw | quarantine | ids | receipt | tile | window | dataset | result | …
    where: str
    difference: str
    remedy: str = ""  # the command that fixes it, if there is one


@dataclass(frozen=True, slots=True)
class StreamAudit:
    stream: str
    slices: int
    raw_rows: int
    pending: int
    outputs: Mapping[str, Verified] = field(default_factory=dict)  # by name

    def _of(self, output: str) -> Verified:
        return self.outputs.get(output, NOTHING)

    @property
    def tiles(self) -> int:
        return self._of("rollups").compared

    @property
    def datasets(self) -> int:
        return self._of("datasets").compared

    @property
    def results(self) -> int:
        return self._of("windows").compared

    @property
    def index(self) -> int:
        """The number of index parts."""
        return self._of("index").compared

    @property
    def chains(self) -> int:
        """The number of vectors."""
        return self._of("chains").compared

    @property
    def sealed(self) -> int:
        """Tiles that can no longer be compared, since their raw has expired."""
        return self._of("rollups").sealed

    @property
    def sealed_windows(self) -> int:
        """The same for datasets and results."""
        return self._of("datasets").sealed + self._of("windows").sealed


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
    damaged = _scrubbed(workers, streams)  # first: some files are made again as soon as they are needed
    for number, stream in enumerate(streams):
        workers.warehouse.progress(stream, "verify", number / len(streams))
        try:
            finish_retractions(workers.warehouse, workers.acceptor, stream)
            one_audit, found = _audit_stream(workers, stream)
        except StorageError as error:
            if len(streams) == 1 and not isinstance(error, DamageError):
                raise
            one_audit, found = _not_audited(workers, stream, error)  # the others are still verified
        done.append(one_audit)
        findings.extend(found)
        workers.warehouse.progress(stream, "verify", (number + 1) / len(streams))
    return Audit(done, [*_unreported(damaged, findings), *findings])


def _scrubbed(workers: Workers, streams: Sequence[str]) -> list[Finding]:
    """Damage of files that `verify` does not recompute; slices and datasets are checked elsewhere."""
    found = scrub(workers.warehouse, streams, skip=("slices",))
    return [
        Finding(damage.stream, damage.kind.value, damage.file, damage.reason, remedy(damage))
        for damage in found
        if damage.kind is not FileKind.DATASET
    ]


def _unreported(damaged: Sequence[Finding], known: Sequence[Finding]) -> list[Finding]:
    """Damage of files that no other finding names."""
    reported = [f"{finding.where} {finding.difference}" for finding in known]
    return [one for one in damaged if not any(Path(one.where).name in text for text in reported)]


def _not_audited(workers: Workers, stream: str, error: StorageError) -> tuple[StreamAudit, list[Finding]]:
    totals = workers.state.totals(stream)
    slices = len(workers.state.slices(stream))
    where = error.where or stream
    finding = Finding(stream, "stream", where, f"it cannot be verified: {error.message}", error.hint)
    return StreamAudit(stream, slices, 0, totals["pending_slices"]), [finding]


def _audit_stream(workers: Workers, stream: str) -> tuple[StreamAudit, list[Finding]]:
    acceptor = workers.acceptor(stream)
    workers.catch_up(stream)
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
        recorded = workers.warehouse.engine.run(
            part_facts, acceptor.raw.snapshot().paths(speaking), "verify words", 0
        )
        findings += [Finding(stream, *f) for f in _check_tombstones(facts, recorded)]
        other_bytes = {where for _, where, _ in changed}
        differing = differences(
            acceptor,
            [entry for entry in entries if entry.id not in other_bytes],
            _readings([*facts, *recorded]),
            workers.warehouse.expiries.horizons(stream),
        )
        findings += [Finding(stream, *f) for f in differing]
    findings += [Finding(stream, *f) for f in _check_receipts(workers.state, stream, entries)]
    held = quarantined_rows(acceptor.quarantine)
    findings += [Finding(stream, *f) for f in _check_quarantine(entries, held)]
    pending = sum(1 for entry in entries if entry.status is SliceStatus.PENDING)
    rows = acceptor.raw.snapshot().rows
    if len(facts) < len(read):  # outputs cannot be compared with a raw that has holes
        findings += [Finding(stream, *f) for f in read if not isinstance(f, PartFacts)]
        return StreamAudit(stream, len(entries), rows, pending), findings
    if acceptor.plan.gated and paths:
        twice = workers.warehouse.engine.run(repeated_ids, [paths], "verify ids", size)
        findings += [Finding(stream, "ids", f, "accepted more than once") for f in twice]
    raw, now = RawFacts(entries, facts, acceptor.raw.snapshot()), workers.warehouse.clock()
    outputs = {output.name: _verified(output, raw, now) for output in workers.outputs(stream)}
    findings += [
        Finding(stream, one.what, one.where, one.difference, one.remedy)
        for verified in outputs.values()
        for one in verified.differences
    ]
    return StreamAudit(stream, len(entries), rows, pending, outputs), findings


def _verified(output: Output, raw: RawFacts, now: int) -> Verified:
    """Damage in one output does not keep others from being verified."""
    try:
        return output.verify(raw, now)
    except DamageError as error:
        return Verified(differences=[Difference(output.name, error.where, error.message, error.hint)])


def _readings(facts: Sequence[PartFacts]) -> dict[str, str]:
    """How records were read, by batch."""
    footers = (fact.footer for fact in facts)
    return {footer.batch: footer.reading for footer in footers if isinstance(footer, BatchFooter)}


@dataclass(frozen=True, slots=True)
class SliceVerification:
    path: str
    entry: SliceEntry


def _units(workers: Workers, entries: Sequence[SliceEntry]) -> list[list[SliceVerification]]:
    checks = [SliceVerification(str(workers.root / entry.slice.path), entry) for entry in entries]
    groups = max(1, min(len(checks), 2 * workers.warehouse.engine.parallelism))
    return [checks[i::groups] for i in range(groups)] if checks else []


def check_slice(unit: Sequence[SliceVerification]) -> Iterator[tuple[str, str, str]]:
    """Check that the bytes on disk still match the slice's id."""
    for check in unit:
        new = check.entry.slice
        path = local_copy(check.path)
        try:
            digest = content_digest(path)
        except FileNotFoundError:
            yield "slice", new.id, f"its file is gone: {new.path}"
        except OSError as error:
            yield "slice", new.id, f"its file cannot be read: {new.path}: {error.strerror or error}"
        else:
            if id_of(new, digest) != new.id:
                yield "slice", new.id, f"its bytes are not those that landed: {new.path}"


def check_part(path: str) -> Iterator[PartFacts | tuple[str, str, str, str]]:
    """The facts of a raw part, or why it cannot be read."""
    try:
        yield from held_facts(path)
    except StorageError as error:
        yield "raw", error.where or path, error.message, error.hint


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


def _check_tombstones(
    held: Sequence[PartFacts], recorded: Sequence[PartFacts]
) -> Iterator[tuple[str, str, str]]:
    """What stand-ins record of packed parts must equal what the packed parts hold: a lost state is rebuilt
    from the former."""
    counts: dict[str, list[int]] = {}
    own = [fact for fact in held if fact.rows and not isinstance(fact.footer, PackedFooter)]
    for position, facts in enumerate((held, [*own, *recorded])):
        for fact in facts:
            for name, count in fact.accepted.items():
                counts.setdefault(name, [0, 0])[position] += count
    for name, (rows, reported) in sorted(counts.items()):
        if rows != reported:
            yield "raw", name, f"its parts have {rows} rows of it; {reported} are reported"


def _check_receipts(
    state: Receipts, stream: str, entries: Sequence[SliceEntry]
) -> Iterator[tuple[str, str, str]]:
    """A receipt says where an ingestion is: lines that its slice must have."""
    known = {entry.id: entry for entry in entries}
    after = ""
    while page := state.receipts(stream, after):
        for receipt in page:
            entry, last = known.get(receipt.slice), receipt.first + receipt.records - 1
            if entry is None:
                yield (
                    "receipt",
                    receipt.id,
                    f"it names slice {receipt.slice[:12]}, which the ledger does not know",
                )
            elif receipt.first < 1 or receipt.records < 0:
                yield "receipt", receipt.id, f"it says lines {receipt.first} to {last}, which no slice has"
            elif entry.status is SliceStatus.ACCEPTED and last > entry.counts.records:
                records = entry.counts.records
                yield (
                    "receipt",
                    receipt.id,
                    f"it says lines {receipt.first} to {last}; its slice has {records}",
                )
        after = page[-1].id


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
        elif rows > (reported := entry.counts.conflict + entry.counts.rejected):
            yield "quarantine", name, f"the ledger says {reported} were not accepted; quarantine has {rows}"


def repeated_ids(paths: Sequence[str]) -> Iterator[str]:
    """Ids that are in raw more than once: found by hash, reported by text. Rows that were accepted while the
    stream had no gate have none."""
    highs, lows = [], []
    for path in paths:
        rows = _with_ids(path)
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
        rows = _with_ids(path)
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


def _with_ids(path: str) -> pa.Table:
    rows = read_part(path, ["tenant", "event_id"])
    return rows.filter(pc.not_equal(rows.column("event_id"), "")).combine_chunks()
