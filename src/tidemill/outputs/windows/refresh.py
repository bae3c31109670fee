"""Keeps the results of one declared window current: finds what raw or the watermark changed, has it computed,
commits it.

This is the only way results are made: late rows, retractions, restarts and lost checkpoints differ only in
how much is computed again. Results that have not changed are not written.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.config.stream import Stream
from tidemill.engine import Engine
from tidemill.engine.jobs import spread
from tidemill.ingest.expiry_log import WINDOWS, ExpiryLog, Loss
from tidemill.model.errors import StorageError
from tidemill.model.failpoints import failpoint
from tidemill.model.streaming import Close, WindowKind, WindowSpec
from tidemill.model.time import MIN_INSTANT, Interval, format_instant
from tidemill.model.windows import OutboxEvent
from tidemill.outputs.windows.affected_windows import disturbed_starts, first_instants, merged, restarts
from tidemill.outputs.windows.announce import announcements, results_available
from tidemill.outputs.windows.checkpoints import (
    EXPIRED,
    PACKED,
    Checkpoint,
    fingerprint_of,
    read_checkpoint,
)
from tidemill.outputs.windows.compaction import ResultMergeUnit, crowded_results, merge_results
from tidemill.outputs.windows.completeness import affected_by_datasets, has_news
from tidemill.outputs.windows.damage import DamagedPart, damaged_parts, leave_out, lost_span, sealed_before
from tidemill.outputs.windows.extract import AT, Extracted, ExtractUnit, RowScope, extract, rows_of
from tidemill.outputs.windows.fold import FoldedResults, FoldUnit, fold
from tidemill.outputs.windows.keys import Key
from tidemill.outputs.windows.offsets import SliceOffsets
from tidemill.outputs.windows.open_sessions import carries_sums
from tidemill.outputs.windows.planning import (
    ALL,
    Task,
    WindowInputs,
    WindowWork,
    buckets_for,
    clipped,
    closing,
    cuts_for,
    first_trigger,
    parts_for,
    processing_watermark,
)
from tidemill.outputs.windows.results import (
    ResultScope,
    ResultsFooter,
    current,
    current_results,
    results_schema,
    results_table,
)
from tidemill.outputs.windows.row_group_cache import RowGroups
from tidemill.outputs.windows.unfit import UnfitValues, together
from tidemill.outputs.windows.verify import ResultDifference, check
from tidemill.storage import layout
from tidemill.storage.bucket_path import size_of
from tidemill.storage.checksums import is_whole, read_arrow
from tidemill.storage.files import make_folder, remove_tree, storage_errors
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.log import Commit
from tidemill.storage.tables.parts import read_footer, read_part
from tidemill.storage.tables.schemas import stored_schema
from tidemill.storage.tables.snapshot import Part, Snapshot
from tidemill.storage.tables.table import Table

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WindowRefresh:
    """What one refresh of a window did."""

    window: str
    results: int = 0
    withdrawn: int = 0

    @property
    def idle(self) -> bool:
        return not (self.results or self.withdrawn)


class Refresher:
    """Maintains one window of one stream. Only one process at a time may."""

    def __init__(
        self,
        warehouse: Path,
        stream: Stream,
        spec: WindowSpec,
        engine: Engine,
        state: State,
        slice_offsets: SliceOffsets,
        shared: RowGroups,
        expiries: ExpiryLog,
    ) -> None:
        self.stream = stream
        self.spec = spec
        self.engine = engine
        self.state = state
        self.slice_offsets = slice_offsets
        self.shared = shared
        self.expiries = expiries
        self.root = layout.results(warehouse, stream.name, spec.name)
        self._warehouse = warehouse
        self._table: Table | None = None
        self._cleaned = False  # whether leftovers of a dead process were removed

    # -- the table and the checkpoint

    @property
    def table(self) -> Table:
        if self._table is None:
            self._table = results_table(self._warehouse, self.spec, self.stream)
        return self._table

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.spec, self.stream)

    def checkpoint(self) -> Checkpoint | None:
        """How far the results have been computed, including what a crash left between the commit and the
        state."""
        checkpoint = self._known()
        if checkpoint is not None and self._table is None and Table.existing(self.root) is None:
            checkpoint = None  # the results were removed in order to be made again
        if checkpoint is None:
            self._clear_other()
            self._announce_last()
            return None
        self.table.expect(checkpoint.version)
        if self.table.version != checkpoint.version:
            for commit in self.table.commits(after=checkpoint.version):
                if "batch" in commit.info:
                    self._take_up(commit, commit.info.get("mark"))
                    log.warning("recorded committed results", extra={"stream": self.stream.name})
            self._seen_up_to(self.table.version)
            checkpoint = self._known()
        return checkpoint

    def _seen_up_to(self, version: int) -> None:
        """Commits up to this version of the results table do not affect what was computed."""
        checkpoint = self._known()
        if checkpoint is not None and checkpoint.version < version:
            announced = replace(checkpoint, version=version).text()
            self.state.set_checkpoint(self.stream.name, self.spec.name, announced)

    def _known(self) -> Checkpoint | None:
        return read_checkpoint(self.state.checkpoints(self.stream.name).get(self.spec.name), self.fingerprint)

    def _clear_other(self) -> None:
        """Remove results of another declaration: they are made again from raw."""
        existing = Table.existing(self.root)
        if existing is None:
            return
        first = existing.snapshot().paths()[:1]
        others = [ResultsFooter.from_footer(read_footer(path)).fingerprint for path in first]
        fits = existing.schema == stored_schema(results_schema(self.spec, self.stream), ())
        if any(one != self.fingerprint for one in others) or not fits:
            context = {"stream": self.stream.name, "window": self.spec.name}
            log.warning(
                "the declaration of the window changed: its results are computed again", extra=context
            )
            self._table = None
            # If the window is declared as before once more, the next table must not be mistaken for this one.
            self.state.set_checkpoint(self.stream.name, self.spec.name, None)
            with storage_errors("clear the results", self.root):
                remove_tree(self.root)

    def _announce_last(self) -> None:
        """A process may have died between the first commit of a table and its checkpoint."""
        existing = Table.existing(self.root)
        if existing is not None and existing.version > 0:
            self._take_up(existing.last_commit(), None)

    def _take_up(self, commit: Commit, checkpoint: str | None) -> None:
        if "batch" in commit.info:
            parts = [str(self.root / path) for path in commit.added]
            announced = self.events(parts, int(commit.info["batch"]), int(commit.info["now"]))
            self.state.set_checkpoint(self.stream.name, self.spec.name, checkpoint, announced)

    def events(self, parts: Sequence[str], batch: int, now: int) -> list[OutboxEvent]:
        """The events of a commit, from the parts that it added."""
        columns = ["start", "end", "window_id", "withdrawn", "rows", "late_rows", "revision", "trigger"]
        tables = [read_part(path, [*columns, "batch"]) for path in parts]
        of_batch = [table.filter(pc.equal(table.column("batch"), batch)) for table in tables]
        announced = [one for table in of_batch if table.num_rows for one in announcements(self.spec, table)]
        return results_available(self.spec, announced, batch, now)

    # -- what is to be done

    def needed(self, raw: int) -> tuple[int, str]:
        """From which instant on unpublished results need raw, which is at this version."""
        checkpoint = self._known()
        if checkpoint is None:
            return ALL.start, "whose results are not made yet"
        if self.spec.close is Close.COMPLETE:
            news = has_news(self.state, self.stream.name, checkpoint.heard)
            return (ALL.start, "which has not heard of all datasets") if news else (ALL.end, "")
        if checkpoint.raw != raw or checkpoint.watermark is None:
            return ALL.start, "whose results are behind raw"
        if self.spec.kind.by_time:
            return (
                checkpoint.watermark - self.spec.size + 1,
                f"which is out up to {format_instant(checkpoint.watermark)}",
            )
        at = checkpoint.watermark + 1
        carried = self._carried(checkpoint)
        if carried is None:
            return ALL.start, "whose open windows have to be found again"
        column = "start" if carries_sums(self.spec) else AT
        for path in carried:
            at = min([at, *pc.min_max(read_arrow(path).column(column)).as_py().values()])
        return at, f"of which one is open since {format_instant(at)}"

    def sealed(self, inputs: WindowInputs) -> int:
        """How many results are never computed again."""
        sealed = inputs.sealed_for(self.spec)
        if sealed is None or Table.existing(self.root) is None:
            return 0
        snapshot = self.table.snapshot()
        paths = snapshot.paths(snapshot.select(None, {"start": (None, sealed - 1)}))
        scope = ResultScope(starts=[Interval(ALL.start, sealed)])
        return int(current(current_results(self.spec, self.stream, paths, scope)).num_rows)

    def damaged(self, *, read: bool) -> list[DamagedPart]:
        """Parts of the results that were deleted or damaged."""
        existing = self._table or Table.existing(self.root)
        return damaged_parts(existing, read=read) if existing is not None else []

    def repair(self, now: int, *, read: bool) -> int:
        """Remove damaged parts, and have the next refresh compute everything again and publish what is
        missing. How many there were."""
        damaged = self.damaged(read=read)
        if damaged:
            context = {"stream": self.stream.name, "window": self.spec.name, "parts": len(damaged)}
            what = f"{damaged[0].part.path} {damaged[0].what}"
            log.warning("results are damaged and made again: %s", what, extra=context)
            self.expiries.append(self.losses([one.part for one in damaged], now))
            leave_out(self.root, damaged, now)
            self._table = None
            self.state.set_checkpoint(self.stream.name, self.spec.name, None)
        return len(damaged)

    def losses(self, parts: Sequence[Part] | None, now: int) -> list[Loss]:
        """What is lost for good with parts of the results (None: with the whole table): windows that begin
        before raw does are never computed again."""
        sealed = sealed_before(self.spec, self.expiries.horizons(self.stream.name))
        if sealed is None:
            return []
        what, folder = f"{WINDOWS}{self.spec.name}", self.root.relative_to(self._warehouse)
        if parts is None:
            whole = Interval(MIN_INSTANT, sealed)
            return [Loss(self.stream.name, what, whole, folder.as_posix(), now)]
        found = []
        for part in parts:
            if (span := lost_span(part, sealed)) is not None:
                found.append(Loss(self.stream.name, what, span, (folder / part.path).as_posix(), now))
        return found

    def refresh(self, inputs: WindowInputs) -> WindowRefresh:
        """Bring the results up to the watermark, or up to the datasets that were built."""
        work = self.plan(inputs)
        return self.finish(work, self.compute(work)) if isinstance(work, WindowWork) else work

    def plan(self, inputs: WindowInputs) -> WindowWork | WindowRefresh:
        """What there is to compute; if nothing, what was done instead."""
        if inputs.watermark is not None and not self.stream.in_event_time:
            inputs = replace(inputs, watermark=processing_watermark(self.spec, inputs.watermark))
        self.repair(inputs.now, read=False)
        checkpoint = self.checkpoint()
        new = Checkpoint(self.fingerprint, -1, inputs.snapshot.version, inputs.watermark)
        if self.spec.close is Close.COMPLETE:
            task, new = self._by_datasets(checkpoint, new, inputs)
        else:
            if (
                checkpoint is None
                and inputs.watermark is None
                and not (inputs.flush or self.table.snapshot().parts)
            ):
                return WindowRefresh(self.spec.name)
            task = self._by_watermark(checkpoint, inputs)
        if task is None:
            return self._nothing(checkpoint, new)
        self.slice_offsets.refresh(inputs.snapshot.version, again=task.whole)
        return WindowWork(inputs, new, task, self.table.version + 1)

    def _nothing(self, checkpoint: Checkpoint | None, new: Checkpoint) -> WindowRefresh:
        """Nothing to compute: record what was checked, so that it is not checked again."""
        if checkpoint is not None:
            new = replace(
                new,
                version=checkpoint.version,
                carried=checkpoint.carried,
                unsettled=checkpoint.unsettled,
                unfit=checkpoint.unfit,
            )
            if (new.raw, new.heard) != (checkpoint.raw, checkpoint.heard):
                self.state.set_checkpoint(self.stream.name, self.spec.name, new.text())
            if not self._cleaned:
                self._clean_up(new)
        return WindowRefresh(self.spec.name)

    def _by_datasets(
        self, checkpoint: Checkpoint | None, new: Checkpoint, inputs: WindowInputs
    ) -> tuple[Task | None, Checkpoint]:
        before = checkpoint.heard if checkpoint is not None else 0
        sealed = inputs.sealed_for(self.spec)
        heard, task = affected_by_datasets(self.spec, self.stream, self.state, before, sealed)
        return task, replace(new, heard=heard, watermark=None)

    def _by_watermark(self, checkpoint: Checkpoint | None, inputs: WindowInputs) -> Task | None:
        added = self._added(checkpoint, inputs)
        if checkpoint is None or added is None:
            return self._all_again(inputs, gone=checkpoint is not None)
        watermark = inputs.watermark
        before = checkpoint.watermark
        if watermark is None or (before is not None and watermark < before):
            return self._all_again(inputs, gone=True)
        late = self._late_rows(added, before, inputs) if before is not None else None
        if self.spec.kind.by_time:
            starts = closing(self.spec, before, watermark)
            if late is not None and before is not None:
                starts += disturbed_starts(self.spec, late, before)
            if inputs.flush:
                starts.append(Interval(watermark - self.spec.size + 1, ALL.end))
            starts = self._not_sealed(merged(starts), inputs)
            return self._of_grid(starts, inputs) if starts else None
        if before == watermark and late is None and not inputs.flush:
            return None
        return self._of_keys(checkpoint, late, watermark, inputs)

    def _all_again(self, inputs: WindowInputs, *, gone: bool) -> Task:
        trigger = first_trigger(self.spec, flush=inputs.flush)
        (span,) = self._not_sealed([ALL], inputs)
        starts = (span,) if self.spec.kind.by_time else ()
        scope = RowScope(span, starts=starts or None)
        return Task(scope, starts, whole=True, gone=gone, flush=inputs.flush, trigger=trigger)

    def _not_sealed(self, starts: Sequence[Interval], inputs: WindowInputs) -> list[Interval]:
        """The starts of windows that may be computed."""
        sealed = inputs.sealed_for(self.spec)
        return list(starts) if sealed is None else clipped(starts, sealed, ALL.end)

    def _of_grid(self, starts: Sequence[Interval], inputs: WindowInputs) -> Task:
        span = Interval(starts[0].start, starts[-1].end + self.spec.size)
        trigger = first_trigger(self.spec, flush=inputs.flush)
        return Task(RowScope(span, starts=starts), starts, flush=inputs.flush, trigger=trigger)

    def _of_keys(
        self, checkpoint: Checkpoint, late: pa.Table | None, watermark: int, inputs: WindowInputs
    ) -> Task | None:
        carried = self._carried(checkpoint)
        if carried is None:
            return self._all_again(inputs, gone=False)
        again: dict[Key, int] = {}
        if late is not None:
            held = self.table.snapshot().paths()
            first = first_instants(self.spec, late)
            again = restarts(self.spec, self.stream, first, carried, held, inputs.sealed)
        low = ALL.start if checkpoint.watermark is None else checkpoint.watermark + 1
        span = Interval(min([low, *again.values()]), ALL.end if inputs.flush else watermark + 1)
        if not (carried or again or inputs.flush or parts_for(self.spec, inputs.snapshot, [span])):
            return None
        floor = None
        if self.spec.kind is WindowKind.PER_ROW and checkpoint.watermark is not None:
            floor = low - self.spec.reach
        concerned = [
            low if floor is None else floor,
            *again.values(),
            *([checkpoint.unsettled] if checkpoint.unsettled is not None else []),
        ]
        return Task(
            held_from=min(concerned),
            scope=RowScope(span, again=again or None, since=low if again else None),
            again=again,
            carried=carried,
            floor=floor,
            flush=inputs.flush,
            trigger=first_trigger(self.spec, flush=inputs.flush),
        )

    def _carried(self, checkpoint: Checkpoint) -> list[str] | None:
        """Files of open windows; None if one is missing, damaged, or from before sessions had sums: then
        everything is read again from raw."""
        paths = [layout.open_rows(self.root) / name for name in checkpoint.carried]
        sums = carries_sums(self.spec)
        if not all(is_whole(path) and (path.suffix == layout.OPEN_SUMS_SUFFIX) == sums for path in paths):
            return None
        return [str(path) for path in paths]

    def _added(self, checkpoint: Checkpoint | None, inputs: WindowInputs) -> list[Part] | None:
        """Parts added to raw since the checkpoint; None if unknown, or if parts were removed."""
        if checkpoint is None:
            return None
        try:
            commits = inputs.raw.commits(after=checkpoint.raw)
        except StorageError:  # the log was trimmed
            return None
        added: dict[str, None] = {}
        for commit in commits:
            if EXPIRED in commit.info:  # what it removed is sealed
                continue
            if PACKED not in commit.info:
                if commit.removed:
                    return None
                added |= dict.fromkeys(commit.added)
            elif not added.keys().isdisjoint(commit.removed):  # a new part was replaced
                added = {path: None for path in added if path not in set(commit.removed)}
                added |= dict.fromkeys(commit.added)
        parts = inputs.snapshot.by_path
        return [parts[path] for path in added if path in parts]

    def _late_rows(self, added: Sequence[Part], before: int, inputs: WindowInputs) -> pa.Table | None:
        """The used rows of new parts that count where windows may be published already; None: there are
        none."""
        if not added:
            return None
        self.slice_offsets.refresh(inputs.snapshot.version, again=False)
        low = inputs.sealed if inputs.sealed is not None else ALL.start
        if low > before:
            return None
        span = Interval(low, before + 1)
        snapshot = replace(inputs.snapshot, parts=added)
        parts = parts_for(self.spec, snapshot, [span])
        found = self._extract(RowScope(span), snapshot, parts, [], 1, "late")
        files = [path for one in found for path in one.files.values()]
        return rows_of(self.spec, self.stream, files) if files else None

    # -- doing it

    def _extract(
        self,
        scope: RowScope,
        snapshot: Snapshot,
        parts: Sequence[Part],
        cuts: Sequence[int],
        buckets: int,
        name: str,
    ) -> list[Extracted]:
        if not parts:
            return []
        folder = self.table.staging(name)
        size = sum(part.size for part in parts)
        ledger = self.slice_offsets.touching(scope.span)
        paths = snapshot.paths(parts)
        groups = spread([max(1, part.size) for part in parts], buckets_for(size, 2 * self.engine.parallelism))
        units = [
            ExtractUnit(
                spec=self.spec,
                stream=self.stream,
                parts=[paths[i] for i in group],
                ledger=ledger,
                scope=scope,
                cuts=cuts,
                buckets=buckets,
                folder=str(folder),
                name=f"rows-{number}",
                shared=self.shared,
            )
            for number, group in enumerate(groups)
        ]
        return self.engine.run(extract, units, f"rows of {self.spec.name}", size)

    def _units(self, task: Task, inputs: WindowInputs, batch: int) -> list[FoldUnit]:
        """The buckets of a task, with their rows extracted."""
        by_time = self.spec.kind.by_time
        reach = self.spec.size - 1 if by_time else 0
        spans = [Interval(s.start, s.end + reach) for s in task.only or task.starts] or [task.scope.span]
        snapshot = inputs.snapshot
        parts = parts_for(self.spec, snapshot, spans)
        size = sum(part.size for part in parts)
        buckets = buckets_for(size, self.engine.parallelism)
        cuts = cuts_for(self.spec, parts, task.starts, buckets) if by_time else []
        buckets = len(cuts) + 1 if by_time else buckets
        found = self._extract(task.scope, snapshot, parts, cuts, buckets, f"{batch}-rows")
        units = [self._unit(task, inputs, found, cuts, bucket, buckets, batch) for bucket in range(buckets)]
        return [unit for unit in units if unit.starts] if by_time else units

    def _unit(
        self,
        task: Task,
        inputs: WindowInputs,
        found: Sequence[Extracted],
        cuts: Sequence[int],
        bucket: int,
        buckets: int,
        batch: int,
    ) -> FoldUnit:
        low = cuts[bucket - 1] if cuts and bucket else ALL.start
        high = cuts[bucket] if bucket < len(cuts) else ALL.end
        starts = clipped(task.starts, low, high)
        return FoldUnit(
            spec=self.spec,
            stream=self.stream,
            fingerprint=self.fingerprint,
            files=[one.files[bucket] for one in found if bucket in one.files],
            held=self._held(task, starts),
            watermark=inputs.watermark,
            flush=task.flush,
            trigger=task.trigger,
            batch=batch,
            folder=str(self.table.staging(str(batch))),
            name=f"{batch:08d}-{bucket:04d}.parquet",
            starts=starts,
            only=clipped(task.only, low, high) if task.only is not None else None,
            bucket=bucket,
            buckets=buckets,
            carried=task.carried,
            again=task.again,
            floor=task.floor,
            whole=task.whole,
            gone=task.gone,
            sealed=inputs.sealed_for(self.spec),
            unfit=frozenset(value for one in found for value in one.unfit),
        )

    def _held(self, task: Task, starts: Sequence[Interval]) -> list[str]:
        """Parts of the results table that may hold what a bucket computes."""
        snapshot = self.table.snapshot()
        if self.spec.kind.by_time:
            found: dict[str, Part] = {}
            for one in starts:
                found |= {p.path: p for p in snapshot.select(None, {"start": (one.start, one.end - 1)})}
            return snapshot.paths([found[path] for path in sorted(found)])
        if task.held_from is None:
            return snapshot.paths()
        return snapshot.paths(snapshot.select(None, {"start": (task.held_from, None)}))

    def verify(self, inputs: WindowInputs) -> list[ResultDifference | int]:
        """Compute everything again and compare; the numbers count compared results. What raw or the watermark
        changed since the last refresh is left to the next one."""
        unreadable = [one for one in self.damaged(read=True) if not one.readable]
        if unreadable:
            return [ResultDifference(f"{self.spec.name} {one.part.path}", one.what) for one in unreadable]
        checkpoint = self.checkpoint()
        if checkpoint is None or checkpoint.raw != inputs.snapshot.version:
            return []
        inputs = replace(inputs, watermark=checkpoint.watermark)
        task: Task | None = self._all_again(inputs, gone=False)
        if self.spec.close is Close.COMPLETE:
            heard, task = affected_by_datasets(
                self.spec, self.stream, self.state, 0, inputs.sealed_for(self.spec)
            )
            if heard != checkpoint.heard:
                return []
        if task is None:
            return []
        self.slice_offsets.refresh(inputs.snapshot.version, again=True)
        units = self._units(task, inputs, self.table.version + 1)
        size = sum(part.size for part in inputs.snapshot.parts)
        found = self.engine.run(check, units, f"verify {self.spec.name}", size)
        self.table.clean_staging()
        return found

    def compute(self, work: WindowWork) -> list[FoldedResults]:
        """Changes nothing but staging: several windows may be computed at once."""
        units = self._units(work.task, work.inputs, work.batch)
        if not self.spec.kind.by_time:
            units = self._carrying(units)
        size = sum(size_of(path) for unit in units for path in unit.files)
        return self.engine.run(fold, units, f"fold {self.spec.name}", size)

    def finish(self, work: WindowWork, folded: Sequence[FoldedResults]) -> WindowRefresh:
        """Commit what was computed, and record the checkpoint."""
        table, inputs, batch = self.table, work.inputs, work.batch
        failpoint("results.after_fold")
        carried = tuple(Path(one.carried).name for one in folded if one.carried is not None)
        unsettled = min((one.unsettled for one in folded if one.unsettled is not None), default=None)
        new = replace(
            work.checkpoint,
            version=table.version,
            carried=carried,
            unsettled=unsettled,
            unfit=self._unfit(work, folded),
        )
        parts = [one.part for one in folded if one.part is not None]
        events: list[OutboxEvent] = []
        if parts:
            new = replace(new, version=batch)
            published = table.publish(parts)
            failpoint("results.before_commit")
            info = {"batch": str(batch), "mark": new.text(), "now": str(inputs.now)}
            version = table.commit(published, info=info)
            assert version == batch, (version, batch)
            failpoint("results.after_commit")
            announced = [announced for one in folded for announced in one.announced]
            events = results_available(self.spec, announced, batch, inputs.now)
        self.state.set_checkpoint(self.stream.name, self.spec.name, new.text(), events)
        failpoint("results.after_state")
        self._clean_up(new)
        if parts:
            self.compact(inputs.now)
        results, withdrawn = sum(one.results for one in folded), sum(one.withdrawn for one in folded)
        return WindowRefresh(self.spec.name, results, withdrawn)

    def _unfit(self, work: WindowWork, folded: Sequence[FoldedResults]) -> tuple[UnfitValues, ...]:
        """The values that all results leave out; those of results that are not computed again stay."""
        before, sealed = self._known(), work.inputs.sealed_for(self.spec)
        kept = [
            one
            for one in (before.unfit if before is not None else ())
            if not work.task.whole or (sealed is not None and one.first < sealed)
        ]
        return tuple(sorted(together(kept, (value for one in folded for value in one.unfit))))

    def compact(self, now: int) -> int:
        """Merge small parts of the results of similar size; how many were removed."""
        crowded = crowded_results(self.table.snapshot().parts)
        if not crowded:
            return 0
        number = self.table.version + 1
        unit = ResultMergeUnit(
            self.spec,
            self.stream,
            self.fingerprint,
            [str(self.root / part.path) for part in crowded],
            str(self.table.staging(f"{number}-merged")),
            f"{number:08d}-merged.parquet",
        )
        size = sum(part.size for part in crowded)
        merged_parts = self.engine.run(merge_results, [unit], f"merge results of {self.spec.name}", size)
        published = self.table.publish(merged_parts)
        info = {"compacted": str(number)}
        self.table.commit(published, crowded, info=info, now=now, data_change=False)
        self._seen_up_to(self.table.version)
        self.table.clean_staging()
        return len(crowded)

    def _carrying(self, units: Sequence[FoldUnit]) -> list[FoldUnit]:
        """The units, each with a new file for the rows of open windows: others may read the previous files
        meanwhile, and a process that dies before the checkpoint is set continues from those."""
        folder = layout.open_rows(self.root)
        make_folder(folder, top=self.root)
        names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
        number = 1 + max((int(name.partition("-")[0]) for name in names), default=0)
        suffix = layout.OPEN_SUMS_SUFFIX if carries_sums(self.spec) else layout.OPEN_ROWS_SUFFIX
        return [
            replace(unit, open_file=str(folder / f"{number:08d}-{unit.bucket:04d}{suffix}")) for unit in units
        ]

    def _clean_up(self, checkpoint: Checkpoint) -> None:
        """Remove files of windows that were open before, and what a crash left."""
        self.table.clean_staging()
        folder = layout.open_rows(self.root)
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in checkpoint.carried:
                path.unlink(missing_ok=True)
        self._cleaned = True
