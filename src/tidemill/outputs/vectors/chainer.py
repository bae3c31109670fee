"""The chains of the delta streams of a warehouse: extended and compacted by each round, and on request.

Which chains are compacted, and how, is decided in `rules`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.ingest import arguments
from tidemill.ingest.retraction_log import is_deciding_again
from tidemill.model.errors import InputError
from tidemill.model.slices import SliceStatus
from tidemill.model.time import HOUR, Interval, format_duration, format_instant, parse_duration
from tidemill.model.windows import Window
from tidemill.storage.files import atomic_write, storage_errors

if TYPE_CHECKING:
    from tidemill.config import Stream
    from tidemill.formats.delta_arrays import Deltas
    from tidemill.ingest.warehouse import Warehouse
    from tidemill.outputs.vectors.batches import BatchStats, WindowBatch
    from tidemill.outputs.vectors.store import Chained, ChainStore, Compaction, CompactionStep, Reads
    from tidemill.outputs.vectors.table import ChainFooter
    from tidemill.outputs.vectors.verify import ChainDifference
    from tidemill.storage.tables.snapshot import Snapshot
    from tidemill.storage.tables.table import Table

# Imports inside functions keep start-up short: a vector is read without what builds chains.


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChainRound:
    """What one round did for the chains of a stream."""

    folded: Chained
    compacted: Compaction | None = None  # None: not done in the background
    current: ChainStatus | None = None  # the chains afterwards; None: not known

    @property
    def idle(self) -> bool:
        return self.folded.idle and (self.compacted is None or self.compacted.idle)


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """Contents of the chain table of a stream, from its log and the footers of its parts."""

    parts: int = 0
    bytes: int = 0
    checkpoints: int = 0
    pending: int = 0  # deltas
    overflowed: int = 0  # checkpoints with a component that is not finite, or was prevented from that
    through: int = 0  # the last ledger offset that is folded in


@dataclass(frozen=True, slots=True)
class Published:
    """Facts about a batch that is the dataset of a declared window."""

    window: Window
    ignored: int  # slices that were too late for it
    damage: str | None  # what is wrong with its file; None: nothing


@dataclass(frozen=True, slots=True)
class Batched:
    """The batch of a window [start, end), and where it was written; None: it was not."""

    start: int
    end: int
    stats: BatchStats | None  # None: its file is damaged
    file: Path | None
    published: Published | None = None  # None: it was made on request


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches by time; if there are more, the older ones are left out."""

    found: Sequence[Batched]
    more: bool = False


class Chainer:
    """The chains of one warehouse. The caller must hold the tick lock, except for what only reads (`plan`,
    `windows`, `batches`, `verify`, `current`), `was_read` and `compact_now`."""

    def __init__(
        self,
        warehouse: Warehouse,
        raw: Callable[[str], Table],
        deltas: Callable[[str, int | None, int | None, str | None], tuple[str, Deltas]],
        published: Callable[[str, Interval, Path | None, int | None], Batches],
    ) -> None:
        """`raw`: gives the table of a stream for writing; `deltas`: those of a span and a tenant;
        `published`: copies the newest datasets of a stream that start in a span to a folder."""
        self._warehouse = warehouse
        self._raw = raw
        self._deltas = deltas
        self._published = published
        self._stores: dict[str, ChainStore] = {}
        self._reads: dict[str, Reads] = {}
        self._overflowed: dict[str, int] = {}  # checkpoints that were warned about, by stream

    def store(self, stream: str) -> ChainStore:
        """The store of a stream's chains; InputError if it is not a delta stream."""
        from tidemill.outputs.vectors.store import ChainStore

        warehouse, declared = self._warehouse, self._declared(stream)
        if stream not in self._stores:
            self._stores[stream] = ChainStore(
                warehouse.root,
                declared,
                warehouse.engine,
                self._raw(stream),
                lambda: warehouse.state.slices(stream, SliceStatus.ACCEPTED),
                self._reads_of(stream),
                min(declared.compaction.memory or sys.maxsize, warehouse.project.engine.compaction_memory),
            )
        return self._stores[stream]

    def forget(self, stream: str) -> None:
        """Close the tables of a stream; they are opened again when needed."""
        self._stores.pop(stream, None)

    def round(self, stream: str, now: int) -> ChainRound | None:
        """Fold in what was accepted, then compact what needs it, if compaction runs in the background. None
        if the stream has no vectors, or while slices of it are being decided again."""
        from tidemill.storage.tables.table import tidy

        warehouse, declared = self._warehouse, self._warehouse.project.stream(stream)
        if declared.kind != "delta" or is_deciding_again(warehouse.state, stream):
            return None
        if warehouse.existing("raw", stream) is None:
            return None
        warehouse.progress(stream, "chains", 0.0)
        folded = self.refresh(stream, now)
        warehouse.progress(stream, "chains", 0.5)
        compacted = self.compact(stream, now) if declared.compaction.background else None
        warehouse.progress(stream, "chains", 1.0)
        store = self.store(stream)
        tidy([store.table], warehouse.project.engine.keep_replaced, now)
        current = _status(store.table.snapshot(), list(store.footers().values()))
        self._warn_of_overflow(declared, current.overflowed)
        return ChainRound(folded, compacted, current)

    def _warn_of_overflow(self, stream: Stream, overflowed: int) -> None:
        """Warn once about each new one."""
        known, self._overflowed[stream.name] = self._overflowed.get(stream.name, 0), overflowed
        if overflowed > known and stream.vector is not None:
            what = "have deltas that were left out" if stream.vector.stays_finite else "are no finite numbers"
            log.warning("%d vectors %s: overflow", overflowed, what, extra={"stream": stream.name})

    def refresh(self, stream: str, now: int) -> Chained:
        """Fold in what was accepted since."""
        return self.store(stream).refresh(now)

    def compact(self, stream: str, now: int, *, force: bool = False) -> Compaction:
        """Compact the chains that need it; with `force`, whatever can be merged."""
        return self.store(stream).compact(now, force=force)

    def compact_now(self, stream: str, now: int, *, force: bool = True, rebuild: bool = False) -> ChainRound:
        """Fold in what was accepted, then compact; with `rebuild`, all chains are rebuilt from raw first.
        Works on all streams alone. Returns what was done."""
        with self._warehouse.working("compact"):
            self._check_settled(stream)
            folded = self.store(stream).rebuild(now) if rebuild else self.refresh(stream, now)
            return ChainRound(folded, self.compact(stream, now, force=force))

    def plan(self, stream: str, now: int, *, force: bool = False) -> list[CompactionStep]:
        """The steps that a compaction would take now. Changes nothing."""
        self._declared(stream)
        if self._warehouse.existing("chains", stream) is None:
            return []
        return self.store(stream).plan(now, force=force)

    def batches(
        self,
        stream: str,
        every: str | int | None = None,
        start: str | int | None = None,
        end: str | int | None = None,
        *,
        tenant: str | None = None,
    ) -> Iterator[WindowBatch]:
        """Iterate over the deltas of a tenant, one batch for each window of the width `every`, by default
        that of the stream's datasets, or an hour. Windows that hold the start or the end are cut there."""
        from tidemill.outputs.vectors.batches import window_batches

        declared = self._declared(stream)
        width = parse_duration(every) if isinstance(every, str) else every
        width = declared.aggregation_span or HOUR if width is None else width
        if width <= 0:
            raise InputError("the width of a window must be above zero", hint="for example --window 1h")
        since, until = (None if edge is None else arguments.instant(edge) for edge in (start, end))
        owner, deltas = self._deltas(stream, since, until, tenant)
        return window_batches(deltas, width, owner)

    def windows(
        self,
        stream: str,
        every: str | int | None = None,
        start: str | int | None = None,
        end: str | int | None = None,
        *,
        tenant: str | None = None,
        folder: Path | None = None,
        limit: int | None = None,
    ) -> Batches:
        """The newest `limit` batches of deltas of a stream: the datasets of its windows that start in the
        span. Batches of another width or of one tenant, or of a stream without windows, are made now. With
        `folder`, each is written to a file in it."""
        if folder is not None:
            with storage_errors("create the folder", folder):
                folder.mkdir(parents=True, exist_ok=True)
        declared = self._declared(stream)
        is_whole = tenant in (None, declared.tenant.value)
        if every is None and declared.aggregation_span is not None and is_whole:
            return self._published(stream, arguments.span(start, end), folder, limit)
        made = [_written(one, folder) for one in self.batches(stream, every, start, end, tenant=tenant)]
        return Batches(made if limit is None else made[-limit:], more=limit is not None and len(made) > limit)

    def _declared(self, stream: str) -> Stream:
        """The stream; InputError if it is not a delta stream."""
        declared = self._warehouse.project.stream(stream)
        if declared.kind != "delta":
            names = [name for name, each in self._warehouse.project.streams.items() if each.kind == "delta"]
            raise InputError(
                f"stream {stream!r} has no vectors",
                hint=f"streams of deltas: {', '.join(names)}"
                if names
                else "declare a stream with `kind: delta`",
            )
        return declared

    def _check_settled(self, stream: str) -> None:
        if is_deciding_again(self._warehouse.state, stream):
            raise InputError(
                f"slices of {stream!r} are being decided again",
                hint="run `tidemill run --once`, then the same again",
            )

    def verify(self, stream: str) -> tuple[int, list[ChainDifference]]:
        """How many chains were compared with raw, and the differences."""
        if self._warehouse.project.stream(stream).kind != "delta":
            return 0, []
        from tidemill.outputs.vectors.verify import verify_chains

        return verify_chains(self.store(stream))

    def was_read(self, stream: str, tenant: str, ids: Collection[str]) -> None:
        """Count reads of these vectors: `adaptive` keeps their chains shorter."""
        if self._warehouse.project.stream(stream).compaction.strategy == "adaptive":
            self._reads_of(stream).add([(tenant, name) for name in ids])

    def _reads_of(self, stream: str) -> Reads:
        from tidemill.outputs.vectors.store import Reads

        return self._reads.setdefault(stream, Reads())

    def current(self, stream: str) -> ChainStatus | None:
        """The status of the chains, without opening a table for writing; None if the stream has no
        vectors."""
        if self._warehouse.project.stream(stream).kind != "delta":
            return None
        from tidemill.outputs.vectors.table import ChainFooter
        from tidemill.storage.tables.parts import read_footer

        found = self._warehouse.snapshot("chains", stream)
        if found is None:
            return ChainStatus()
        return _status(found, [ChainFooter.from_footer(read_footer(path)) for path in found.paths()])


def _status(found: Snapshot, footers: Sequence[ChainFooter]) -> ChainStatus:
    return ChainStatus(
        len(found.parts),
        sum(part.size for part in found.parts),
        sum(footer.checkpoints for footer in footers),
        sum(footer.pending for footer in footers),
        sum(footer.overflowed for footer in footers),
        max((footer.made.through for footer in footers), default=0),
    )


def _written(one: WindowBatch, folder: Path | None) -> Batched:
    file = None if folder is None else folder / file_name(one.start, one.end)
    if file is not None:
        atomic_write(file, one.batch.content)
    return Batched(one.start, one.end, one.batch.stats, file)


def file_name(start: int, end: int) -> str:
    begins = format_instant(start).replace("-", "").replace(":", "")
    return f"{begins}_{format_duration(end - start)}.arrow"
