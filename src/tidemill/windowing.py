"""The part of the mill that keeps windows: it wires coordinators, builders and exports to one project.

It takes no lock of its own: coordinating happens inside a tick, and building is kept apart by leases.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tidemill.config import Project, Stream
from tidemill.lake.snapshot import Snapshot
from tidemill.lake.table import Table
from tidemill.model.errors import Retry, TidemillError
from tidemill.state.protocol import State
from tidemill.windows.builder import Builders, Outcome, Yard
from tidemill.windows.coordinator import Coordinated, Coordinator
from tidemill.windows.rules import rules_of

if TYPE_CHECKING:
    from tidemill.engine import Engine

log = logging.getLogger(__name__)

AT_ONCE: Final = 512  # windows that a builder beside the daemon builds before it looks up


class WindowYard:
    """Coordinators and builders of a project."""

    def __init__(
        self,
        project: Project,
        state: State,
        engine: Callable[[], Engine],
        progress: Callable[[str, str, float], None],
    ) -> None:
        self._project = project
        self._state = state
        self._engine = engine
        self._progress = progress
        self._declared = {n: s for n, s in project.streams.items() if s.aggregation_span is not None}
        self._raw: dict[str, Table] = {}
        self._guard = threading.Lock()  # of the tables: builders ask for snapshots from their threads

    def coordinate(self, stream: Stream, now: int) -> Coordinated:
        """Bring the queue up to date with the ledger of a stream."""
        rules = rules_of(stream)
        assert rules is not None, stream.name
        return Coordinator(stream, rules, self._state, lambda: self._snapshot(stream.name)).coordinate(now)

    def build(
        self, clock: Callable[[], int], limit: int | None, stop: threading.Event | None = None
    ) -> Sequence[Outcome]:
        """Build what is queued."""
        if not self._declared:
            return ()
        total, done = max(1, self._state.queue_length()), 0

        def told(outcome: Outcome) -> None:
            nonlocal done
            done += 1
            self._progress(outcome.key.stream, "windows", min(1.0, done / total))

        return self._builders(None).build(clock, limit, stop, told)

    def work(
        self,
        clock: Callable[[], int],
        stop: threading.Event,
        interval: float,
        on_build: Callable[[Sequence[Outcome]], None],
        concurrency: int | None,
        *,
        once: bool,
    ) -> None:
        """Build what comes into the queue, until `stop` is set or, with `once`, nothing can be taken."""
        builders = self._builders(concurrency)
        while not stop.is_set():
            try:
                done = builders.build(clock, AT_ONCE, stop)
            except TidemillError as error:
                if error.retry is Retry.NEVER:
                    raise
                log.warning("%s; trying again", error)
                stop.wait(interval)
                continue
            if done:
                on_build(done)
            elif once:
                return
            else:
                stop.wait(interval)

    def _builders(self, concurrency: int | None) -> Builders:
        settings, warehouse = self._project.builder, self._project.warehouse
        yard = Yard(warehouse, self._declared, settings, self._engine(), self._state, self._snapshot)
        return Builders(yard, concurrency)

    def _snapshot(self, stream: str) -> Snapshot | None:
        """Raw as it is now."""
        with self._guard:
            table = self._raw.get(stream) or Table.existing(self._project.warehouse / "raw" / stream)
            if table is None:
                return None
            self._raw[stream] = table
            table.refresh()
            return table.snapshot()
