"""One accept batch: pending slices in ledger order through stage, gate and write to one raw commit.

The raw commit is the commit point. What a crash leaves before it is removed and done again; what it leaves
after it is recorded by `catch_up` from the commit itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from tidemill.config import EngineSettings as EngineSettings
from tidemill.config import Limits, Stream
from tidemill.engine import Engine
from tidemill.engine.jobs import spread
from tidemill.formats.arrays import Mask
from tidemill.formats.arrow import one
from tidemill.formats.declared_columns import raw_columns
from tidemill.formats.kernels import compiling_reported
from tidemill.formats.key_runs import key_ranges
from tidemill.formats.read_plan import ReadPlan, plan_for, reading_of
from tidemill.formats.stored_slice import is_compressed
from tidemill.ingest.retraction_log import RetractionLog
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import Codec, Counts, Format, Repeat, SliceEntry, SliceStatus, set_hash
from tidemill.model.time import Interval
from tidemill.raw.accept.gate import Gated, GateUnit, KeyedChunk, gate
from tidemill.raw.accept.repeated_rows import find_repeats
from tidemill.raw.accept.slice_clocks import Passing, SliceClocks, all_again, recorded, settled
from tidemill.raw.accept.stage import SlicePiece, StagedChunk, StageUnit, stage
from tidemill.raw.accept.staged_fields import StagedFields
from tidemill.raw.accept.write import Tap, WriteChunk, WriteUnit, Written, write
from tidemill.raw.failed_slices import declaration, next_try, trouble_with
from tidemill.raw.footers import BatchFooter, ProgressAt, SliceSummary
from tidemill.raw.quarantine import REPLAY
from tidemill.raw.stream_buffer import Piece as Timings
from tidemill.raw.stream_buffer import Rows, StreamBuffer, buffered
from tidemill.raw.tables import is_by_day, quarantine_table, raw_table
from tidemill.raw.watermark import TimeRules
from tidemill.storage import layout
from tidemill.storage.bucket_path import BucketPath, local_copy
from tidemill.storage.files import Removal
from tidemill.storage.ipc import read_ipc
from tidemill.storage.state.protocol import BatchRecord, ClockState, Progress, SliceResult, State
from tidemill.storage.tables.parts import StagedPart
from tidemill.storage.tables.table import Table

log = logging.getLogger(__name__)

WRITE_BYTES: Final = 160 << 20  # slice bytes that become one set of raw parts
LARGE_BYTES: Final = 16 << 20  # of a raw part: scans gain nothing from larger ones
MANY_SLICES: Final = 64  # in a raw part; packing them in groups would make more parts, not fewer
NEVER_LARGE: Final = 1 << 62  # for parts whose slices may have to be packed separately
GATE_KEYS: Final = 100_000  # with fewer keys one task decides the whole batch
TASKS_PER_CORE: Final = 2
CHUNKS_PER_PIECE: Final = 2  # chunks of a large slice that several tasks read

Report = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch did."""

    id: str
    stream: str
    record: BatchRecord
    raw_parts: int
    raw_bytes: int
    taps: Path | None  # folder with what the tap wrote, valid until `finish`


@dataclass(slots=True)
class _Slice:
    """A slice of the batch in progress."""

    entry: SliceEntry
    chunks: list[int] = field(default_factory=list)  # numbers of its staged chunks
    error: str | None = None
    retry_at: int | None = None  # set with an error of its storage
    failed_as: str | None = None  # set with an error of its content
    watermark: int | None = None
    duplicate: int = 0
    conflict: int = 0
    repeats: Sequence[Repeat] = ()
    read_before: str = ""  # how its records were read before it was sent back; empty: not known


@dataclass(frozen=True, slots=True)
class _Moved:
    """How far the batch moves the clocks of the stream."""

    clocks: Sequence[ClockState]  # of the sources in it
    progress: Progress
    buffer: StreamBuffer


class Acceptor:
    """Accepts the slices of one stream."""

    def __init__(
        self,
        warehouse: Path,
        stream: Stream,
        limits: Limits,
        settings: EngineSettings,
        engine: Engine,
        state: State,
        tap: Tap | None = None,
        progress: Report = lambda _step, _done: None,
    ) -> None:
        self.warehouse = warehouse
        self.stream = stream
        self.settings = settings
        self.engine = engine
        self.state = state
        self.tap = tap
        self.progress = progress
        self.plan: ReadPlan = plan_for(stream, limits)
        self.reading = reading_of(stream, limits)
        self.time = TimeRules.of(stream)
        self.columns = raw_columns(stream)
        self.fields = StagedFields.of(self.columns, self.plan)
        self.raw: Table = raw_table(warehouse, stream.name, self.columns)
        self.quarantine: Table = quarantine_table(warehouse, stream.name)
        self.runs = layout.gate(warehouse, stream.name)
        self.refused_before: Callable[[], int | None] = lambda: None  # events of an earlier time are refused
        self._buffer: tuple[int, StreamBuffer] | None = None  # for a version of raw
        self._removal = Removal()  # of staged files that were read

    def accept(self, now: int = 0) -> Batch | None:
        """Accept the oldest pending slices that fit one batch; None if there are none. Those whose file
        cannot be read are tried again some time after `now`."""
        base = self.raw.refresh(), self.quarantine.refresh()  # before anything is read that others may change
        entries = self.state.pending(self.stream.name, self.settings.batch_bytes)
        if not entries:
            return None
        batch = batch_id(entries)
        log.info("accepting %d slices", len(entries), extra={"stream": self.stream.name, "batch": batch})
        work = self.raw.staging(batch)
        self.runs.mkdir(parents=True, exist_ok=True)

        self.progress("stage", 0.0)
        before = self._readings_before(entries)
        slices = [_Slice(entry, read_before=before.get(entry.id, "")) for entry in entries]
        with compiling_reported(partial(self.progress, "compile for this machine, once", 0.0)):
            chunks = self._stage(slices, work, now)
        failpoint("accept.after_stage")

        self.progress("gate", 0.35)
        first_lines = _first_lines(slices, chunks)
        gated = self._gate(batch, slices, chunks, first_lines, work)
        self._count(slices, gated)
        self._find_repeats(slices, chunks, gated)
        moved = self._clocks(slices, chunks, gated)
        failpoint("accept.after_gate")

        self.progress("write", 0.45)
        written = self._write(batch, slices, chunks, first_lines, gated, moved, work, now)
        failpoint("accept.after_write")

        self.progress("commit", 0.95)
        record = self._commit(batch, slices, chunks, gated, moved, written, base)
        if not isinstance(work, BucketPath):  # in a bucket, each file would be a request
            # Not before: while the batch is not committed, another process may stage the same one.
            self._removal.start(Path(path) for chunk in chunks for path in (chunk.keys, chunk.columns))
        self._buffer = (record.raw_version, moved.buffer)
        self.progress("commit", 1.0)
        parts = [part for w in written for part in w.raw]
        return Batch(
            id=batch,
            stream=self.stream.name,
            record=record,
            raw_parts=len(parts),
            raw_bytes=sum(part.size for part in parts),
            taps=work if self.tap is not None else None,
        )

    def moved_on(self, before: int, version: int) -> None:
        """Raw has a new version with the same rows: what is known of the old one holds for it."""
        if self._buffer is not None and self._buffer[0] == before:
            self._buffer = (version, self._buffer[1])

    def finish(self) -> None:
        """Empty staging: nothing more is read from it."""
        self._removal.wait()
        self.raw.clean_staging()
        self.quarantine.clean_staging()

    # -- stage

    def _readings_before(self, entries: Sequence[SliceEntry]) -> Mapping[str, str]:
        again = {entry.id for entry in entries if entry.attempt}
        return RetractionLog(self.warehouse).readings(self.state, again) if again else {}

    def _stage(self, slices: Sequence[_Slice], work: Path, now: int) -> list[StagedChunk]:
        pieces = [piece for s in slices for piece in self._pieces(s.entry)]
        pieces = [replace(piece, order=number) for number, piece in enumerate(pieces)]
        groups = spread([max(1, p.size) for p in pieces], self._tasks(sum(p.size for p in pieces)))
        plan = replace(self.plan, sealed_before=self.refused_before(), located=self.fields.located)
        units = [
            StageUnit(plan, [pieces[i] for i in group], str(work), self.settings.chunk_bytes, self.fields)
            for group in groups
        ]
        found = self.engine.run(stage, units, "stage", sum(p.size for p in pieces))
        staged = sorted(found, key=lambda chunk: chunk.order)
        by_id = {s.entry.id: s for s in slices}
        for chunk in staged:
            if chunk.error is not None:
                self._fail(by_id[chunk.slice], chunk, chunk.error, now)
        # If a piece of a slice fails, none of its records count.
        chunks = [chunk for chunk in staged if by_id[chunk.slice].error is None]
        for number, chunk in enumerate(chunks):
            by_id[chunk.slice].chunks.append(number)
        return chunks

    def _fail(self, s: _Slice, chunk: StagedChunk, error: str, now: int) -> None:
        trouble = trouble_with(self.warehouse / s.entry.slice.path, s.entry.slice)
        s.error = error if trouble in (None, error) else f"{error}; {trouble}"
        if chunk.by_storage or trouble is not None:
            s.retry_at, s.failed_as = next_try(self.stream.pack, s.entry.failures, now), None
        elif s.retry_at is None:
            s.failed_as = declaration(self.stream)
        context = {"stream": self.stream.name, "slice": chunk.slice}
        log.error("slice cannot be read: %s", s.error, extra=context)

    def _pieces(self, entry: SliceEntry) -> list[SlicePiece]:
        new = entry.slice
        whole = SlicePiece(
            order=0,
            slice=new.id,
            path=str(self.warehouse / new.path),
            format=new.format,
            codec=new.codec,
            arrival=new.arrival,
            size=new.size,
            landed=new.size,
            csv=self.stream.csv,
            json=self.stream.json_rows,
        )
        size = self.settings.chunk_bytes * CHUNKS_PER_PIECE
        if new.format is not Format.NDJSON or new.codec is not Codec.NONE or new.size <= size * 3 // 2:
            return [whole]
        with suppress(OSError):  # reported when it is read
            if is_compressed(local_copy(self.warehouse / new.path)):
                return [whole]
        return [
            replace(whole, size=min(size, new.size - start), byte_range=(start, min(start + size, new.size)))
            for start in range(0, new.size, size)
        ]

    def _tasks(self, size: int) -> int:
        """How many tasks to use: small work is not worth distributing."""
        return max(1, min(TASKS_PER_CORE * self.engine.parallelism, size >> 21))

    # -- gate

    def _gate(
        self,
        batch: str,
        slices: Sequence[_Slice],
        chunks: Sequence[StagedChunk],
        first_lines: Sequence[int],
        work: Path,
    ) -> list[Gated]:
        keys = sum(chunk.valid for chunk in chunks)
        if not self.plan.gated or keys == 0:
            return []
        seqs = {s.entry.id: s.entry.seq for s in slices}
        keyed = [
            KeyedChunk(seqs[chunk.slice], first_lines[number], chunk.keys)
            for number, chunk in enumerate(chunks)
        ]
        runs = [str(self.runs / name) for name in self.state.runs(self.stream.name)]
        count = 1 if keys < GATE_KEYS else self.engine.parallelism
        units = [
            GateUnit(
                low=low,
                high=high,
                chunks=keyed,
                runs=runs,
                run=str(self.runs / f"{batch}-{i}{layout.RUN_SUFFIX}"),
                drops=str(work / f"drops-{i}.arrow"),
            )
            for i, (low, high) in enumerate(key_ranges(count))
        ]
        return self.engine.run(gate, units, "gate", sum(chunk.bytes for chunk in chunks))

    def _count(self, slices: Sequence[_Slice], gated: Sequence[Gated]) -> None:
        for s in slices:
            for number in s.chunks:
                s.duplicate += sum(g.duplicates.get(number, 0) for g in gated)
                s.conflict += sum(g.conflicts.get(number, 0) for g in gated)

    def _find_repeats(
        self, slices: Sequence[_Slice], chunks: Sequence[StagedChunk], gated: Sequence[Gated]
    ) -> None:
        drops = [g.drops for g in gated if g.drops is not None and g.duplicates]
        staged = [(s.entry, {number: chunks[number].columns for number in s.chunks}) for s in slices]
        found = find_repeats(self.state, self.stream, staged, drops) if drops else {}
        for s in slices:
            s.repeats = found.get(s.entry.id, ())

    def _clocks(
        self, slices: Sequence[_Slice], chunks: Sequence[StagedChunk], gated: Sequence[Gated]
    ) -> _Moved:
        """The watermark as the slices pass in ledger order: what each one meets, and what it leaves."""
        now = {s.entry.id: self._passing(s, chunks, gated) for s in slices}
        if _sent_back(slices):  # accepted slices may follow: all pass again, each at its offset
            entries = [e for e in self.state.slices(self.stream.name) if e.id not in now]
            offsets = {e.id: e.seq for e in (*entries, *(s.entry for s in slices))}
            passings = sorted([*recorded(settled(entries)), *now.values()], key=lambda p: offsets[p.slice])
            clocks, watermarks = all_again(self.time, passings, self.raw)
            found = dict(zip((p.slice for p in passings), watermarks, strict=True))
        else:
            progress = self.state.progress(self.stream.name)
            states = self.state.clocks(self.stream.name)
            clocks = SliceClocks(self.time, states, progress, self._buffered(progress))
            found = {p.slice: clocks.pass_by(p) for p in now.values()}
        for s in slices:
            s.watermark = found[s.entry.id]
        moving = {p.source for p in now.values() if p.newest is not None}
        return _Moved(clocks.states(moving), clocks.progress, clocks.buffer)

    def _passing(self, s: _Slice, chunks: Sequence[StagedChunk], gated: Sequence[Gated]) -> Passing:
        newest = [_newest_accepted(number, chunks[number], gated) for number in s.chunks]
        return Passing(
            slice=s.entry.id,
            source=s.entry.slice.source,
            arrival=s.entry.slice.arrival,
            newest=max((time for time in newest if time is not None), default=None),
            rows=_rows(s.chunks, chunks, gated),
        )

    def _buffered(self, progress: Progress) -> StreamBuffer:
        """The buffer that earlier batches left; that of the last commit of this process is in memory."""
        known, self._buffer = self._buffer, None
        if known is not None and known[0] == self.raw.version:
            return known[1]
        return buffered(self.raw, progress.watermark) if progress.buffered_rows else StreamBuffer()

    # -- write

    def _write(
        self, batch: str, slices: Sequence[_Slice], chunks: Sequence[StagedChunk], first_lines: Sequence[int],
        gated: Sequence[Gated], moved: _Moved, work: Path, now: int,
    ) -> list[Written]:  # fmt: skip
        by_id = {s.entry.id: s for s in slices}
        groups = self._write_groups(chunks)
        quarantine = self.quarantine.staging(batch)
        drops = [g.drops for g in gated if g.drops is not None]
        rivals = self._rivals(gated)
        replayed = self._replayed(slices)
        summarised: set[str] = set()
        units = []
        # Slices of one part may have to be packed separately.
        apart = bool(self.stream.manifests.partition_by)
        for number, group in enumerate(groups):
            members = [by_id[chunks[i].slice] for i in group]
            if number == len(groups) - 1:
                members.extend(s for s in slices if not s.chunks)  # failed, or without records
            # A slice that spans units is reported once, where it begins.
            summaries = [self._summary(s, chunks) for s in _unique(members) if s.entry.id not in summarised]
            summarised.update(s.entry.id for s in members)
            units.append(
                WriteUnit(
                    name=f"{batch}-{number:04d}",
                    chunks=[
                        WriteChunk(
                            index=i,
                            staged=chunks[i],
                            first_line=first_lines[i],
                            watermark=by_id[chunks[i].slice].watermark,
                            replayed=replayed.get(chunks[i].slice, ()),
                        )
                        for i in group
                    ],
                    drops=drops,
                    slices=rivals,
                    raw_folder=str(work),
                    quarantine_folder=str(quarantine),
                    footer=self._footer(batch, summaries, gated, moved, first=number == 0),
                    dimensions=len(self.plan.dimensions),
                    measures=len(self.plan.measures),
                    fields=self.fields,
                    has_type=self.plan.type_column is not None,
                    arrival=slices[0].entry.slice.arrival,
                    by_day=is_by_day(self.raw),
                    large=NEVER_LARGE if apart else LARGE_BYTES,
                    many=NEVER_LARGE if apart else max(MANY_SLICES, self.stream.pack.slices),
                    now=now,
                    tap=self.tap,
                )
            )
        return self.engine.run(write, units, "write", sum(chunk.bytes for chunk in chunks))

    def _write_groups(self, chunks: Sequence[StagedChunk]) -> list[list[int]]:
        """Which chunks are written together: one group for each unit of work, at least one."""
        total = sum(chunk.bytes for chunk in chunks)
        count = -(-total // WRITE_BYTES)
        if count > 1:  # so that all cores are busy to the end
            count = -(-count // self.engine.parallelism) * self.engine.parallelism
        elif total >= GATE_KEYS * 100:
            count = self.engine.parallelism
        return spread([max(1, chunk.bytes) for chunk in chunks], max(1, count)) or [[]]

    def _footer(
        self,
        batch: str,
        summaries: Sequence[SliceSummary],
        gated: Sequence[Gated],
        moved: _Moved,
        *,
        first: bool,
    ) -> BatchFooter:
        """The footer of a part; the first part also has the facts of the batch as a whole."""
        return BatchFooter(
            stream=self.stream.name,
            batch=batch,
            slices=tuple(summaries),
            runs=tuple(Path(g.run).stem for g in gated if g.run) if first else (),
            clocks=tuple(moved.clocks) if first else (),
            progress=ProgressAt(self.raw.version + 1, moved.progress) if first else None,
            reading=self.reading,
        )

    def _rivals(self, gated: Sequence[Gated]) -> dict[int, str]:
        """The slices with which a conflict of this batch conflicts, by ledger offset."""
        if not any(g.conflicts for g in gated):
            return {}
        seqs: set[int] = set()
        for g in gated:
            if g.drops is not None:
                seqs.update(np.unique(one(read_ipc(g.drops).column("seq")).to_numpy()).tolist())
        held = {seq: self.state.slice_at(seq) for seq in sorted(seqs)}
        return {seq: entry.id for seq, entry in held.items() if entry is not None}

    def _replayed(self, slices: Sequence[_Slice]) -> dict[str, tuple[str, ...]]:
        """For slices that were decided before: files of later slices that took records out of quarantine."""
        if not _sent_back(slices):
            return {}
        replays = [
            entry
            for entry in self.state.slices(self.stream.name)
            if entry.slice.source == REPLAY and entry.status is not SliceStatus.RETRACTED
        ]
        return {
            s.entry.id: tuple(str(self.warehouse / r.slice.path) for r in replays if r.seq > s.entry.seq)
            for s in slices
            if s.entry.attempt
        }

    def _summary(self, s: _Slice, chunks: Sequence[StagedChunk]) -> SliceSummary:
        counts = self._counts(s, chunks)
        return SliceSummary(
            id=s.entry.id,
            records=counts.records,
            duplicate=counts.duplicate,
            conflict=counts.conflict,
            rejects=counts.rejects,
            watermark=s.watermark,
            error=s.error,
            decision=self._decision(s, counts.accepted),
            by_storage=s.retry_at is not None,
            failed_as=s.failed_as,
            retried=s.entry.retried,
            repeats=tuple(s.repeats),
        )

    def _counts(self, s: _Slice, chunks: Sequence[StagedChunk]) -> Counts:
        rejects: dict[str, int] = {}
        for number in s.chunks:
            for reason, count in chunks[number].rejects.items():
                rejects[reason] = rejects.get(reason, 0) + count
        valid = sum(chunks[number].valid for number in s.chunks)
        return Counts(
            records=sum(chunks[number].records for number in s.chunks),
            accepted=valid - s.duplicate - s.conflict,
            duplicate=s.duplicate,
            conflict=s.conflict,
            rejected=sum(rejects.values()),
            rejects=dict(sorted(rejects.items())),
        )

    # -- commit

    def _commit(
        self,
        batch: str,
        slices: Sequence[_Slice],
        chunks: Sequence[StagedChunk],
        gated: Sequence[Gated],
        moved: _Moved,
        written: Sequence[Written],
        base: tuple[int, int],
    ) -> BatchRecord:
        """Raw and quarantine must still be at the versions `base`: a process that was taken for dead and goes
        on must not add what another has accepted since."""
        quarantined = [w.quarantine for w in written if w.quarantine is not None]
        quarantine_version = self._commit_quarantine(batch, quarantined, base[1])
        parts = self.raw.publish([part for w in written for part in w.raw])
        failpoint("raw.before_commit")
        raw_version = self.raw.commit(parts, info={"batch": batch}, base=base[0])
        failpoint("raw.after_commit")
        record = BatchRecord(
            stream=self.stream.name,
            batch=batch,
            raw_version=raw_version,
            quarantine_version=quarantine_version,
            results=[self._result(s, chunks, written) for s in slices],
            clocks=moved.clocks,
            tiles=_merged_tiles(written),
            runs=[Path(g.run).name for g in gated if g.run is not None],
            progress=moved.progress,
        )
        self.state.apply_batch(record)
        failpoint("accept.after_state")
        return record

    def _commit_quarantine(self, batch: str, staged: Sequence[StagedPart], base: int) -> int:
        if not staged:
            return self.quarantine.version
        parts = self.quarantine.publish(staged)
        failpoint("quarantine.before_commit")
        version = self.quarantine.commit(parts, info={"batch": batch}, base=base)
        failpoint("quarantine.after_commit")
        return version

    def _result(self, s: _Slice, chunks: Sequence[StagedChunk], written: Sequence[Written]) -> SliceResult:
        bounds = [w.bounds[s.entry.id] for w in written if s.entry.id in w.bounds]
        counts = self._counts(s, chunks)
        late = sum(w.late.get(s.entry.id, 0) for w in written)
        return SliceResult(
            slice=s.entry.id,
            counts=replace(counts, late=late),
            observed=Interval(min(b[0] for b in bounds), max(b[1] for b in bounds) + 1) if bounds else None,
            watermark=s.watermark,
            error=s.error,
            decision=self._decision(s, counts.accepted),
            retry_at=s.retry_at,
            failed_as=s.failed_as,
            retried=s.entry.retried,
            repeats=s.repeats,
        )

    def _decision(self, s: _Slice, accepted: int) -> int:
        """One higher if the slice was sent back and what it adds may differ now: other records of it are
        accepted (a retraction only removes rivals, so accepted records stay accepted and their number is
        enough to compare), its records are read in another way (the declaration has changed), it repeats rows
        of others, or metrics depend on earlier events."""
        entry = s.entry
        changed = entry.accepted_before is not None and (
            accepted != entry.accepted_before
            or s.read_before not in ("", self.reading)
            or bool(s.repeats)
            or self.stream.in_order
        )
        return entry.decision + 1 if changed else entry.decision


def batch_id(entries: Sequence[SliceEntry]) -> str:
    """Equal for equal slices; different if some of them were sent back to the gate, since the files of the
    earlier batch are still on disk."""
    return set_hash(map(_try, entries))[:24]


def _try(entry: SliceEntry) -> str:
    name = f"{entry.id}@{entry.attempt}" if entry.attempt else entry.id
    return f"{name}+{entry.retried}" if entry.retried else name


def _sent_back(slices: Sequence[_Slice]) -> bool:
    return any(s.entry.attempt for s in slices)


def _unique(slices: Sequence[_Slice]) -> list[_Slice]:
    return list({s.entry.id: s for s in slices}.values())


def _first_lines(slices: Sequence[_Slice], chunks: Sequence[StagedChunk]) -> list[int]:
    """The line of each chunk's first record; lines count the records of a slice from 1."""
    lines = [0] * len(chunks)
    for s in slices:
        line = 1
        for number in s.chunks:
            lines[number] = line
            line += chunks[number].records
    return lines


def _newest_accepted(number: int, chunk: StagedChunk, gated: Sequence[Gated]) -> int | None:
    keep = _kept(number, chunk, gated)
    if chunk.max_time is None or keep is None:
        return chunk.max_time
    times = one(read_ipc(chunk.columns).column("event_time")).to_numpy()
    return int(times[keep].max()) if keep.any() else None


def _kept(number: int, chunk: StagedChunk, gated: Sequence[Gated]) -> Mask | None:
    """Which of the valid records of a chunk are accepted; None: all."""
    if not any(number in g.duplicates or number in g.conflicts for g in gated):
        return None
    keep = np.ones(chunk.valid, np.bool_)
    for g in gated:
        if g.drops is not None:
            drops = read_ipc(g.drops)
            of_chunk = one(drops.column("chunk")).to_numpy() == number
            keep[one(drops.column("at")).to_numpy()[of_chunk]] = False
    return keep


def _rows(numbers: Sequence[int], chunks: Sequence[StagedChunk], gated: Sequence[Gated]) -> Rows:
    """Accepted rows of a slice; chunks that end before the given instant are not opened."""

    def after(instant: int) -> Iterator[Timings]:
        for number in numbers:
            newest = chunks[number].max_time
            if newest is None or newest <= instant:
                continue
            columns = read_ipc(chunks[number].columns)
            times = one(columns.column("event_time")).to_numpy()
            later = times > instant
            keep = _kept(number, chunks[number], gated)
            if keep is not None:
                later &= keep
            start, end = (one(columns.column(name)).to_numpy()[later] for name in ("start", "end"))
            yield times[later], end - start

    return after


def _merged_tiles(written: Sequence[Written]) -> Mapping[int, frozenset[str]]:
    tiles: dict[int, frozenset[str]] = {}
    for w in written:
        for start, names in w.tiles.items():
            tiles[start] = tiles.get(start, frozenset()) | names
    return tiles
