"""What the tests of the state share: the stores they run on, and what they put into them.

An implementation joins by one entry in `STORES`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tidemill.model.slices import Codec, Counts, Format, NewSlice, set_hash
from tidemill.model.tiles import TileKey
from tidemill.model.time import MINUTE, Interval
from tidemill.state.protocol import BatchRecord, ClockState, SliceResult, State, TileBuild
from tidemill.state.sqlite import open_state

Open = Callable[[], State]  # opens the same store again and again; it can be sent to another process
NewStore = Callable[[], Open]  # a store that nothing was written to, each time
TILE = 15 * MINUTE


@dataclass(frozen=True)
class SqliteOpener:
    path: Path

    def __call__(self) -> State:
        return open_state(self.path)


def sqlite_stores(request: pytest.FixtureRequest) -> NewStore:
    folder: Path = request.getfixturevalue("tmp_path")
    numbers = itertools.count()
    return lambda: SqliteOpener(folder / f"state{next(numbers) or ''}.db")


STORES: Final[Mapping[str, Callable[[pytest.FixtureRequest], NewStore]]] = {"sqlite": sqlite_stores}


@pytest.fixture(params=sorted(STORES))
def new_store(request: pytest.FixtureRequest) -> NewStore:
    return STORES[request.param](request)


@pytest.fixture
def opener(new_store: NewStore) -> Open:
    return new_store()


@pytest.fixture
def state(opener: Open) -> Iterator[State]:
    opened = opener()
    yield opened
    opened.close()


def name_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def slice_of(number: int, stream: str = "requests", size: int = 100) -> NewSlice:
    return NewSlice(
        id=name_of(number),
        stream=stream,
        source="file",
        name=f"{number}.ndjson",
        format=Format.NDJSON,
        codec=Codec.GZIP,
        path=f"slices/{stream}/2024-01-01/{name_of(number)}.ndjson.gz",
        size=size,
        arrival=1_704_067_200_000_000 + number,
        declared=Interval(0, number) if number % 2 else None,
    )


def result_of(number: int, accepted: int = 8, error: str | None = None, judgement: int = 0) -> SliceResult:
    counts = Counts(accepted + 2, accepted, 1, 0, 1, 3, {"skew": 1})
    return SliceResult(name_of(number), counts, Interval(5, 50), 7, error, judgement)


def batch_of(
    batch: str, numbers: Sequence[int], tiles: Mapping[int, Sequence[int]] | None = None, version: int = 1
) -> BatchRecord:
    return BatchRecord(
        stream="requests",
        batch=batch,
        raw_version=version,
        quarantine_version=version + 10,
        results=[result_of(number) for number in numbers],
        clocks=[ClockState("file", 1000 * version, 900 * version)],
        tiles={start: frozenset(map(name_of, members)) for start, members in (tiles or {}).items()},
        runs=[f"run-{batch}"],
    )


def build_of(start: int, numbers: Sequence[int], revision: int = 1) -> TileBuild:
    names = frozenset(map(name_of, numbers))
    return TileBuild(TileKey("5s", start), set_hash(names), revision, f"p{revision}.parquet", 10, names)
