"""Chains of the delta streams of a mill: folded in and compacted by each round, and on request.

Part of the mill. It decides nothing: which chains are compacted, and how, is for the room `chains` to say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import given
from tidemill.ingest.retractions import is_judging_again
from tidemill.lake.sync import atomic_write, storage_errors
from tidemill.locks import exclusive
from tidemill.model.errors import InputError
from tidemill.model.slices import SliceStatus
from tidemill.model.time import HOUR, format_duration, format_instant, parse_duration

if TYPE_CHECKING:
    from tidemill.chains.batches import BatchStats, WindowBatch
    from tidemill.chains.keeper import Chained, ChainKeeper, Compaction, Reads, Step
    from tidemill.chains.verify import Difference
    from tidemill.config import Stream
    from tidemill.mill import Mill


@dataclass(frozen=True, slots=True)
class ChainRound:
    """What one round did for the chains of a stream."""

    folded: Chained
    compacted: Compaction | None = None  # None: it is not done in the background

    @property
    def idle(self) -> bool:
        return self.folded.idle and (self.compacted is None or self.compacted.idle)


@dataclass(frozen=True, slots=True)
class ChainStanding:
    """What the chain table of a stream holds; from its log and the footers of its parts."""

    parts: int = 0
    bytes: int = 0
    checkpoints: int = 0
    pending: int = 0  # deltas
    through: int = 0  # the last place in the ledger that is folded in


@dataclass(frozen=True, slots=True)
class Batched:
    """The batch of a window [start, end), and where it was written; None: it was not."""

    start: int
    end: int
    stats: BatchStats
    file: Path | None


class Chainer:
    """Of one mill. Who calls anything but `plan`, `batches`, `verify`, `standing` and `was_read` holds the
    lock of a round, or asks for `compact_now`."""

    def __init__(self, mill: Mill) -> None:
        self._mill = mill
        self._keepers: dict[str, ChainKeeper] = {}
        self._reads: dict[str, Reads] = {}

    def keeper(self, stream: str) -> ChainKeeper:
        """Who keeps the chains of a stream; InputError when it is none of deltas."""
        from tidemill.chains.keeper import ChainKeeper

        mill, declared = self._mill, self._declared(stream)
        if stream not in self._keepers:
            self._keepers[stream] = ChainKeeper(
                mill.project.warehouse,
                declared,
                mill.engine,
                mill.acceptor(stream).raw,
                lambda: mill.state.slices(stream, SliceStatus.ACCEPTED),
                self._reads_of(stream),
            )
        return self._keepers[stream]

    def round(self, stream: str, now: int) -> ChainRound | None:
        """Fold in what was accepted, then compact what needs it, when that is done in the background. None:
        there are no vectors, or slices are judged again, and chains wait until all of them are."""
        from tidemill.rounds import tidy

        mill, declared = self._mill, self._mill.project.stream(stream)
        if declared.kind != "delta" or is_judging_again(mill.state, stream):
            return None
        if mill.existing("raw", stream) is None:
            return None
        mill.progress(stream, "chains", 0.0)
        folded = self.refresh(stream, now)
        mill.progress(stream, "chains", 0.5)
        compacted = self.compact(stream, now) if declared.compaction.background else None
        mill.progress(stream, "chains", 1.0)
        tidy([self.keeper(stream).table], mill.project.engine.keep_replaced, now)
        return ChainRound(folded, compacted)

    def refresh(self, stream: str, now: int) -> Chained:
        """Fold in what was accepted since."""
        return self.keeper(stream).refresh(now)

    def compact(self, stream: str, now: int, *, force: bool = False) -> Compaction:
        """Compact the chains that need it; with `force`, whatever can be merged."""
        return self.keeper(stream).compact(now, force=force)

    def compact_now(self, stream: str, now: int, *, force: bool = True, rebuild: bool = False) -> ChainRound:
        """Both, as one act of its own; with `rebuild` all chains are made again from raw first."""
        with exclusive(self._mill.project.warehouse / ".tick.lock", "compact"):
            self._check_settled(stream)
            folded = self.keeper(stream).rebuild(now) if rebuild else self.refresh(stream, now)
            return ChainRound(folded, self.compact(stream, now, force=force))

    def plan(self, stream: str, now: int, *, force: bool = False) -> list[Step]:
        """What `compact` would do. It makes nothing, not even a table."""
        self._declared(stream)
        if self._mill.existing("chains", stream) is None:
            return []
        return self.keeper(stream).plan(now, force=force)

    def batches(
        self,
        stream: str,
        every: str | int | None = None,
        start: str | int | None = None,
        end: str | int | None = None,
        *,
        tenant: str | None = None,
    ) -> Iterator[WindowBatch]:
        """The deltas of each window as one batch; windows are as wide as the stream's datasets, or an hour.

        Those that hold the start or the end are cut there.
        """
        from tidemill.chains.batches import window_batches

        declared = self._declared(stream)
        width = parse_duration(every) if isinstance(every, str) else every
        width = declared.aggregation_span or HOUR if width is None else width
        if width <= 0:
            raise InputError("windows of deltas have a width above zero", hint="for example --window 1h")
        since, until = (None if edge is None else given.instant(edge) for edge in (start, end))
        return window_batches(self._mill.vector_desk.deltas(stream, since, until, tenant), width)

    def batched(self, found: Iterable[WindowBatch], folder: Path | None = None) -> Iterator[Batched]:
        """What the batches are, each written to a file of the folder, if one is named."""
        if folder is not None:
            with storage_errors("create the folder", folder):
                folder.mkdir(parents=True, exist_ok=True)
        for one in found:
            file = None
            if folder is not None:
                begins = format_instant(one.start).replace("-", "").replace(":", "")
                file = folder / f"{begins}_{format_duration(one.end - one.start)}.arrow"
                atomic_write(file, one.batch.content)
            yield Batched(one.start, one.end, one.batch.stats, file)

    def _declared(self, stream: str) -> Stream:
        """InputError when it is none of deltas."""
        declared = self._mill.project.stream(stream)
        if declared.kind != "delta":
            names = [name for name, each in self._mill.project.streams.items() if each.kind == "delta"]
            raise InputError(
                f"stream {stream!r} has no vectors",
                hint=f"streams of deltas: {', '.join(names)}"
                if names
                else "declare a stream with `kind: delta`",
            )
        return declared

    def _check_settled(self, stream: str) -> None:
        if is_judging_again(self._mill.state, stream):
            raise InputError(
                f"slices of {stream!r} are being judged again",
                hint="run `tidemill run --once`, then the same again",
            )

    def verify(self, stream: str) -> tuple[int, list[Difference]]:
        """How many chains were held against raw, and what differs."""
        if self._mill.project.stream(stream).kind != "delta":
            return 0, []
        from tidemill.chains.verify import verify_chains

        return verify_chains(self.keeper(stream))

    def was_read(self, stream: str, tenant: str, ids: Collection[str]) -> None:
        """Somebody read these vectors: `adaptive` keeps their chains shorter."""
        if self._mill.project.stream(stream).compaction.strategy == "adaptive":
            self._reads_of(stream).add([(tenant, name) for name in ids])

    def _reads_of(self, stream: str) -> Reads:
        from tidemill.chains.keeper import Reads

        return self._reads.setdefault(stream, Reads())

    def standing(self, stream: str) -> ChainStanding | None:
        """Starts nothing and opens no table to write; None: the stream has no vectors."""
        if self._mill.project.stream(stream).kind != "delta":
            return None
        from tidemill.lake.parts import read_footer

        found = self._mill.snapshot("chains", stream)
        if found is None:
            return ChainStanding()
        footers = [read_footer(path) for path in found.paths()]
        return ChainStanding(
            len(found.parts),
            sum(part.size for part in found.parts),
            sum(_number(footer, "checkpoints") for footer in footers),
            sum(_number(footer, "pending") for footer in footers),
            max((_number(footer, "through") for footer in footers), default=0),
        )


def _number(footer: dict[str, object], key: str) -> int:
    value = footer[key]
    assert isinstance(value, int), footer
    return value
