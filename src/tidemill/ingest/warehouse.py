"""An open warehouse: the project, the state, the tables, the engine and the clock.

Whatever works on a warehouse takes this, or the parts of it that it needs. Opening is cheap: it starts no JVM
and loads neither Arrow nor Delta before they are needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.config import Project
from tidemill.ingest.declaration_log import DeclarationLog
from tidemill.ingest.expiry_log import ExpiryLog, Loss
from tidemill.ingest.landing import Landing
from tidemill.model.clock import Clock, WatchedClock
from tidemill.model.errors import NotFoundError
from tidemill.model.names import SHARED_STAGING
from tidemill.model.slices import SliceEntry
from tidemill.storage import layout, leases
from tidemill.storage.bucket_path import BucketPath
from tidemill.storage.leases import HeldLeases
from tidemill.storage.sessions import OpenSession, SessionFile
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.readers import TableReaders
from tidemill.storage.tenure import Tenures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.engine import Engine
    from tidemill.storage.tables.snapshot import Snapshot
    from tidemill.storage.tables.table import Table

# Imports inside functions keep start-up short: opening a project needs neither Spark nor Delta.

MOST_SOURCES: Final = 100_000  # slices whose source is cached

Progress = Callable[[str, str, float], None]  # stream, step, share done


def no_progress(_stream: str, _step: str, _done: float) -> None:
    """For callers that do not show progress."""


class Warehouse:
    """The warehouse of one project; `close` releases the state and the engine."""

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
        self._tenures = Tenures()
        self._sources: dict[str, str] = {}
        self._session_file = SessionFile(self.root)

    def close(self) -> None:
        if "engine" in self.__dict__:
            self.engine.close()
            self._session_file.close()
        self.state.close()

    def sharing(self) -> AbstractContextManager[HeldLeases]:
        """Work beside other processes, on the streams that the body takes leases of."""
        return leases.sharing(self.root, self.state, self.project.engine.lease, self._tenures)

    def working(self, act: str, patience: float = 0.0) -> AbstractContextManager[HeldLeases]:
        """Work on all streams alone; wait at most `patience` seconds for other processes, then BusyError."""
        length, streams = self.project.engine.lease, self.project.streams
        return leases.working(self.root, self.state, length, streams, act, patience)

    def arrival(self, now: int | None = None) -> int:
        """The arrival of what is landed now, by default the time of the clock; arrivals never go back."""
        return self.landing.arrival(self.clock() if now is None else now)

    def clock_behind(self) -> int:
        """How far the clock is behind the last arrival: more than a little if it was set back."""
        return max(0, self.landing.last_arrival() - self.clock())

    @cached_property
    def engine(self) -> Engine:
        from tidemill.engine import Engine, SessionSettings, runs_here

        declared = self.project.engine
        cores = declared.cores if isinstance(declared.cores, int) else None
        settings = SessionSettings(declared.master, cores, declared.memory, declared.conf)
        shared: Path | None = self.root
        if isinstance(self.root, BucketPath):  # every machine connects to it by itself
            shared = None
            if not runs_here(self._spark, settings):
                os.environ[SHARED_STAGING] = "1"
        return Engine(
            self._spark,
            settings,
            inline_bytes=declared.inline_bytes,
            shared=shared,
            on_start=self._session_started,
        )

    def _session_started(self, master: str, ui: str | None) -> None:
        self._session_file.open(OpenSession(os.getpid(), master, ui))

    def existing(self, kind: layout.TableKind, stream: str) -> Table | None:
        """A table as it is now, for the one thread that works on it; None before the first write."""
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
        """Close the tables of a stream; they are opened again when needed."""
        for key in [key for key in self._tables if key[1] == stream]:
            del self._tables[key]
        self._tenures.end(stream)
        self.readers.forget(stream)

    def snapshot(self, kind: layout.TableKind, stream: str) -> Snapshot | None:
        """The current contents of a table, for any thread; None before the first write. Parts that are lost
        for good are left out: `lost` lists them."""
        found = self.readers.snapshot(kind, stream)
        return found if found is None else self.without_lost(kind, stream, found)

    def without_lost(self, kind: layout.TableKind, stream: str, found: Snapshot) -> Snapshot:
        lost = layout.in_table(found.root, self.root, [one.file for one in self.lost(kind, stream, found)])
        if not lost:
            return found
        return replace(found, parts=[part for part in found.parts if part.path not in lost])

    def lost(self, kind: layout.TableKind, stream: str, found: Snapshot | None = None) -> list[Loss]:
        """Damaged parts of a table that cannot be made again and were not restored. `found` is the table, if
        the caller has it."""
        known = self.expiries.losses(stream).get(kind, ())
        found = (found or self.readers.snapshot(kind, stream)) if known else None
        if found is None:
            return []
        from tidemill.storage.tables.part_checksums import is_whole

        folder = found.root.relative_to(self.root).as_posix()
        there = {f"{folder}/{part.path}" for part in found.parts}
        return [one for one in known if one.file in there and not is_whole(self.root / one.file)]

    def slice(self, id_or_prefix: str) -> SliceEntry:
        """An entry of the ledger, by its id or a prefix of it."""
        entry = self.state.slice(id_or_prefix)
        if entry is None:
            raise NotFoundError(
                f"there is no slice {id_or_prefix!r}", hint="`tidemill ledger` lists the slices"
            )
        return entry

    def source_of(self, slice_id: str) -> str:
        """The source of a slice, which never changes; "" for one that is not in the ledger."""
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
