"""What the results of a window are made of at one moment, and what is to be computed then.

Values only: who looks, and what comes of it, is `refresh`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.model.streaming import Close, WindowSpec
from tidemill.outputs.windows.checkpoints import Checkpoint
from tidemill.outputs.windows.tasks import Task
from tidemill.storage.tables.snapshot import Snapshot
from tidemill.storage.tables.table import Table


@dataclass(frozen=True, slots=True)
class Look:
    """What results are made of: raw, and the watermark of the stream, at one moment."""

    raw: Table
    watermark: int | None
    now: int
    flush: bool = False  # a graceful stop: open windows come out as they are
    sealed: int | None = None  # raw before this instant is gone: windows that begin there stay as they are
    forgotten: int | None = None  # datasets that end before this instant are gone

    def sealed_for(self, spec: WindowSpec) -> int | None:
        """Windows that begin before this instant are never computed again."""
        gone = [self.sealed, self.forgotten] if spec.close is Close.COMPLETE else [self.sealed]
        return max((instant for instant in gone if instant is not None), default=None)

    @property
    def snapshot(self) -> Snapshot:
        return self.raw.snapshot()


@dataclass(frozen=True, slots=True)
class WindowWork:
    """What is to be computed of a window, as of one look."""

    look: Look
    checkpoint: Checkpoint  # when it is done
    task: Task
    batch: int
