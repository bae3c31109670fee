"""Chains of the delta streams of a mill: folded in and compacted by each round, and on request.

Part of the mill. It decides nothing: which chains are compacted, and how, is for the room `chains` to say.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.ingest.retractions import is_judging_again
from tidemill.locks import exclusive
from tidemill.model.errors import InputError
from tidemill.model.slices import SliceStatus

if TYPE_CHECKING:
    from tidemill.chains.keeper import Chained, ChainKeeper, Compaction, Reads, Step
    from tidemill.chains.verify import Difference
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


class Chainer:
    """Of one mill. Who calls anything but `plan`, `verify`, `standing` and `was_read` holds the lock of a
    round, or asks for `compact_now`."""

    def __init__(self, mill: Mill) -> None:
        self._mill = mill
        self._keepers: dict[str, ChainKeeper] = {}
        self._reads: dict[str, Reads] = {}

    def keeper(self, stream: str) -> ChainKeeper:
        """Who keeps the chains of a stream; InputError when it is none of deltas."""
        from tidemill.chains.keeper import ChainKeeper

        mill, declared = self._mill, self._mill.project.stream(stream)
        if declared.kind != "delta":
            names = [name for name, each in mill.project.streams.items() if each.kind == "delta"]
            raise InputError(
                f"stream {stream!r} has no vectors",
                hint=f"streams of deltas: {', '.join(names)}"
                if names
                else "declare a stream with `kind: delta`",
            )
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

    def compact_now(self, stream: str, now: int, *, force: bool = True) -> ChainRound:
        """Both, as one act of its own."""
        with exclusive(self._mill.project.warehouse / ".tick.lock", "compact"):
            self._check_settled(stream)
            return ChainRound(self.refresh(stream, now), self.compact(stream, now, force=force))

    def rebuild(self, stream: str, now: int) -> Chained:
        """Make all chains of a stream again from raw, as one act of its own."""
        with exclusive(self._mill.project.warehouse / ".tick.lock", "rebuild"):
            self._check_settled(stream)
            return self.keeper(stream).rebuild(now)

    def plan(self, stream: str, now: int, *, force: bool = False) -> list[Step]:
        """What `compact` would do."""
        return self.keeper(stream).plan(now, force=force)

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
