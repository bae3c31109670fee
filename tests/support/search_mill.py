"""A warehouse for tests of the index and the search: events land and are accepted by the mill, in process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidemill.config import Stream
from tidemill.engine import Engine
from tidemill.engine.session import SessionSettings
from tidemill.mill import Mill
from tidemill.model.slices import SliceEntry
from tidemill.model.time import HOUR, MILLISECOND, parse_instant
from tidemill.outputs.index.indexer import Indexer
from tidemill.query.language.parse import parse_search
from tidemill.query.search.search import SearchInputs, SearchPage, search
from tidemill.raw.accept.catch_up import catch_up
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

NOON = parse_instant("2024-01-15T12:00:00Z")
PATHS = ("region", "status", "tags", "user.plan")
CONFIG = """
version: 1
engine: {cores: 2, inline_bytes: 1GiB}
streams:
  requests:
    schema:
      event_id: {type: string, required: true}
      ts: {type: integer, required: true}
      tenant: {type: string, required: true}
    event_time: {column: ts, type: unixtimestamp_ms}
    identity: event_id
    tenant: {column: tenant}
"""


def event(name: str, seconds: float = 0.0, tenant: str = "acme", **more: object) -> dict[str, object]:
    """One that happens so many seconds after noon."""
    return {"event_id": name, "ts": NOON // MILLISECOND + int(seconds * 1000), "tenant": tenant, **more}


class SearchMill:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tidemill.yaml").write_text(CONFIG)
        self.folder = folder
        self.clock = FakeClock(NOON + HOUR)
        self.mill = Mill.open(folder, clock=self.clock)
        self.warehouse = self.mill.project.warehouse
        self.engine = Engine(settings=SessionSettings(cores=2), inline_bytes=1 << 30)
        self._landed = 0

    def land(self, events: Sequence[Mapping[str, object] | str]) -> SliceEntry:
        """A slice of them, accepted."""
        self._landed += 1
        file = self.folder / f"slice-{self._landed:05d}.ndjson"
        lines = [each if isinstance(each, str) else json.dumps(each) for each in events]
        file.write_text("\n".join(lines) + "\n")
        self.clock.advance(1_000)
        (landed,) = self.mill.ingest("requests", [file]).landed
        self.accept()
        return self.mill.slice(landed.entry.id)

    def accept(self) -> None:
        """What a round does up to the raw commit: the rest of it would look after the index itself."""
        acceptor = self.mill.workers.acceptor("requests")
        catch_up(acceptor)
        acceptor.accept()
        acceptor.finish()

    def stream(self, paths: Sequence[str] = PATHS, kept: str | None = None) -> Stream:
        declared = self.mill.project.streams["requests"]
        changed: dict[str, object] = {"indexed": tuple(paths)}
        if kept is not None:
            changed["retention"] = type(declared.retention).model_validate({"index": kept})
        return declared.model_copy(update=changed)

    def raw(self) -> Table:
        table = Table.existing(self.warehouse / "raw" / "requests")
        assert table is not None
        return table

    def indexer(self, paths: Sequence[str] = PATHS, kept: str | None = None) -> Indexer:
        return Indexer(self.warehouse, self.stream(paths, kept), self.engine, self.raw())

    def searched(self, paths: Sequence[str] = PATHS) -> SearchInputs:
        entries = {entry.id: entry.seq for entry in self.mill.state.slices("requests")}
        index = Table.existing(self.warehouse / "index" / "requests")
        return SearchInputs(
            stream="requests",
            raw=self.raw().snapshot(),
            index=index.snapshot() if index is not None else None,
            indexed=tuple(paths),
            bound=max(entries.values(), default=0),
            seqs=entries.get,
        )

    def search(self, text: str, tenant: str | None = None, **more: object) -> SearchPage:
        return search(self.searched(), parse_search(text), tenant=tenant, now=self.clock(), **more)  # type: ignore[arg-type]

    def bytes_of_index(self) -> dict[str, bytes]:
        top = self.warehouse / "index" / "requests"
        return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*.parquet"))}


def ids(found: SearchPage) -> list[str]:
    return [str(name) for name in found.rows.column("event_id").to_pylist()]
