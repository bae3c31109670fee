"""What the results of a window are made from at one moment, and what is to be computed then.

Values only; `refresh` uses them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.model.streaming import Close, WindowSpec
from tidemill.outputs.windows.checkpoints import Checkpoint
from tidemill.outputs.windows.tasks import Task
from tidemill.storage.tables.snapshot import Snapshot
from tidemill.storage.tables.table import Table


@dataclass(frozen=True, slots=True)
class WindowInputs:
    """What results are made from: raw, and the watermark of the stream, at one moment."""

    raw: Table
    watermark: int | None
    now: int
    flush: bool = False  # a graceful stop: open windows are published as they are
    # Raw before this instant has expired: windows that begin before it do not change.
    sealed: int | None = None
    forgotten: int | None = None  # datasets that end before this instant have expired

    def sealed_for(self, spec: WindowSpec) -> int | None:
        """Windows that begin before this instant are never computed again."""
        gone = [self.sealed, self.forgotten] if spec.close is Close.COMPLETE else [self.sealed]
        return max((instant for instant in gone if instant is not None), default=None)

    @property
    def snapshot(self) -> Snapshot:
        return self.raw.snapshot()


@dataclass(frozen=True, slots=True)
class WindowWork:
    """What is to be computed of a window."""

    inputs: WindowInputs
    checkpoint: Checkpoint  # to record when it is done
    task: Task
    batch: int
