"""An open warehouse: what the project declares, what the state knows, the tables, the engine and the clock.

Whatever works on a warehouse takes this, or the parts of it that it needs; what is wired to what is not its
business. Opening is cheap: it starts no JVM and loads neither Arrow nor Delta before they are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tidemill.config import Project
from tidemill.ingest.declarations import DeclarationLog
from tidemill.ingest.expiries import ExpiryLog
from tidemill.ingest.landing import Landing
from tidemill.model.clock import Clock, WatchedClock
from tidemill.model.errors import NotFoundError
from tidemill.model.slices import SliceEntry
from tidemill.storage import layout
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.readers import TableReaders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.engine import Engine
    from tidemill.storage.tables.snapshot import Snapshot
    from tidemill.storage.tables.table import Table

# Imports inside functions keep start-up short: opening a project needs neither Spark nor Delta.

MOST_SOURCES: Final = 100_000  # slices whose source is remembered

Progress = Callable[[str, str, float], None]  # stream, step, share done


def no_progress(_stream: str, _step: str, _done: float) -> None:
    """For those who do not look."""


class Warehouse:
    """Of one project; `close` lets go of the state and the engine."""

    def __init__(
        self,
        project: Project,
        state: State,
        *,
        clock: Clock,
        spark: SparkSession | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.project = project
        self.root = project.warehouse
        self.state = state
        self.clock = WatchedClock.of(clock)
        self.progress: Progress = progress or no_progress
        self._spark = spark
        self.landing = Landing(self.root, state)
        self.expiries = ExpiryLog(self.root, state)
        self.declarations = DeclarationLog(self.root, state)
        self.readers = TableReaders(self.root, state.table_versions)
        self._tables: dict[tuple[str, str], Table] = {}
        self._sources: dict[str, str] = {}

    def close(self) -> None:
        if "engine" in self.__dict__:
            self.engine.close()
        self.state.close()

    def arrival(self, now: int | None = None) -> int:
        """The arrival of what is landed now, by default that of the clock; arrivals never go back."""
        return self.landing.arrival(self.clock() if now is None else now)

    def clock_behind(self) -> int:
        """How far the clock is behind the last arrival: more than a little where it was put back."""
        return max(0, self.landing.last_arrival() - self.clock())

    @cached_property
    def engine(self) -> Engine:
        from tidemill.engine import Engine, SessionSettings

        said = self.project.engine
        cores = said.cores if isinstance(said.cores, int) else None
        settings = SessionSettings(said.master, cores, said.memory, said.conf)
        return Engine(self._spark, settings, inline_bytes=said.inline_bytes, shared=self.root)

    def existing(self, kind: layout.TableKind, stream: str) -> Table | None:
        """A table as it is now, for the one thread that works on it; None before anybody wrote to it."""
        from tidemill.storage.tables.table import Table

        known = self._tables.get((kind, stream))
        if known is not None:
            known.refresh()
            return known
        found = Table.existing(layout.table(self.root, kind, stream))
        if found is not None:
            self._tables[kind, stream] = found
        return found

    def forget(self, stream: str) -> None:
        """Open the tables of a stream again when they are needed next."""
        for key in [key for key in self._tables if key[1] == stream]:
            del self._tables[key]
        self.readers.forget(stream)

    def snapshot(self, kind: layout.TableKind, stream: str) -> Snapshot | None:
        """What a table holds now, for any thread; None before anybody wrote to it."""
        return self.readers.snapshot(kind, stream)

    def slice(self, id_or_prefix: str) -> SliceEntry:
        """An entry of the ledger, by its id or the first characters of it."""
        entry = self.state.slice(id_or_prefix)
        if entry is None:
            raise NotFoundError(
                f"there is no slice {id_or_prefix!r}", hint="`tidemill ledger` lists the slices"
            )
        return entry

    def source_of(self, slice_id: str) -> str:
        """The source that a slice came from, which never changes; "" for one that is not in the ledger."""
        known = self._sources.get(slice_id)
        if known is not None:
            return known
        entry = self.state.slice(slice_id)
        if entry is None:
            return ""
        if len(self._sources) >= MOST_SOURCES:
            self._sources.clear()
        self._sources[slice_id] = entry.slice.source
        return entry.slice.source
