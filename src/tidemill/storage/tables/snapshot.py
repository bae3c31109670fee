"""The parts that make up one version of a table, and which of them a filter can touch.

A snapshot never changes and never reads the disk; readers use it, never a glob.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from tidemill.model.time import Interval
from tidemill.storage.tables.part_checksums import without_checksums
from tidemill.storage.tables.stats import Bound, Bounds

Range = tuple[Bound | None, Bound | None]
_ANY: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Part:
    """An immutable Parquet file of a table. Bounds hold every value; instants in them are microseconds."""

    path: str  # relative to the table, with forward slashes, not URL-encoded
    size: int
    rows: int
    partition: dict[str, str] = field(hash=False)
    mins: Bounds = field(hash=False)
    maxs: Bounds = field(hash=False)
    stats: str = field(default="", compare=False, repr=False)  # Delta's JSON, of a part not yet committed

    def may_hold(self, column: str, low: Bound | None, high: Bound | None) -> bool:
        """Whether a row can have `low <= column <= high`; True unless the statistics exclude it."""
        least, most = self.mins.get(column), self.maxs.get(column)
        below = low is not None and most is not None and most < low  # type: ignore[operator]
        above = high is not None and least is not None and least > high  # type: ignore[operator]
        return not (below or above)


@dataclass(frozen=True, slots=True)
class _ByStart:
    """Parts by the minimum of an integer column, each with its position among all."""

    starts: Sequence[int]
    reached: Sequence[int]  # the maximum of each and of those before it
    parts: Sequence[tuple[int, Part]]
    ends: Sequence[int]

    @staticmethod
    def of(parts: Sequence[Part], column: str) -> _ByStart:
        """Without statistics, a part can hold anything."""
        ends = sorted(
            (_integer(part.mins.get(column), -_ANY), _integer(part.maxs.get(column), _ANY), position)
            for position, part in enumerate(parts)
        )
        return _ByStart(
            [start for start, _, _ in ends],
            list(accumulate((end for _, end, _ in ends), max)),
            [(position, parts[position]) for _, _, position in ends],
            [end for _, end, _ in ends],
        )

    def meeting(self, span: Interval) -> Iterator[tuple[int, Part]]:
        at = bisect_left(self.starts, span.end) - 1
        while at >= 0 and self.reached[at] >= span.start:
            if self.ends[at] >= span.start:
                yield self.parts[at]
            at -= 1


def _integer(value: Bound | None, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise


@dataclass(frozen=True)
class Snapshot:
    """All parts of a table at one version."""

    root: Path
    version: int
    parts: Sequence[Part]

    @cached_property
    def by_path(self) -> Mapping[str, Part]:
        return {part.path: part for part in self.parts}

    @cached_property
    def by_name(self) -> Mapping[str, Part]:
        """Parts by their paths without checksums, which are known before they are written."""
        return {without_checksums(part.path): part for part in self.parts}

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def select(
        self,
        partition: Mapping[str, Collection[str]] | None = None,
        ranges: Mapping[str, Range] | None = None,
    ) -> list[Part]:
        """Parts that can hold a matching row. Ranges are inclusive at both ends; None leaves an end open."""
        found = [part for part in self._among(partition or {}) if part.rows]
        for column, (low, high) in (ranges or {}).items():
            found = [part for part in found if part.may_hold(column, low, high)]
        return found

    def _among(self, partition: Mapping[str, Collection[str]]) -> Sequence[Part]:
        """Parts that lie in these partitions, in the order of all."""
        if not partition:
            return self.parts
        found = [
            (position, part)
            for key, parts in self._by_partition.items()
            if all(dict(key)[column] in values for column, values in partition.items())
            for position, part in parts
        ]
        return [part for _, part in sorted(found, key=itemgetter(0))]

    @cached_property
    def _by_partition(self) -> Mapping[tuple[tuple[str, str], ...], Sequence[tuple[int, Part]]]:
        """The parts of each partition, with their positions among all."""
        found: dict[tuple[tuple[str, str], ...], list[tuple[int, Part]]] = {}
        for position, part in enumerate(self.parts):
            found.setdefault(tuple(part.partition.items()), []).append((position, part))
        return found

    def overlapping(self, partition: Mapping[str, str], column: str, spans: Iterable[Interval]) -> list[Part]:
        """Parts of one partition that can hold a row whose value of an integer column lies in one of the
        spans. The cost depends on what is found, not on the size of the table."""
        key = tuple(sorted(partition.items())), column
        known = self._by_start.get(key)
        if known is None:
            known = self._by_start[key] = _ByStart.of(
                self.select({k: [v] for k, v in partition.items()}), column
            )
        found = {position: part for span in spans for position, part in known.meeting(span)}
        return [part for _, part in sorted(found.items(), key=itemgetter(0))]

    @cached_property
    def _by_start(self) -> dict[tuple[tuple[tuple[str, str], ...], str], _ByStart]:
        return {}

    def apart(self, column: str, parts: Sequence[Part]) -> list[list[Part]]:
        """Parts in groups whose values of an integer column do not overlap, in ascending order."""
        low, high = -(1 << 63), (1 << 63) - 1
        ends = [(part.mins.get(column, low), part.maxs.get(column, high), part) for part in parts]
        groups: list[list[Part]] = []
        reached = low
        for least, most, part in sorted(ends, key=lambda one: (int(str(one[0])), one[2].path)):
            if not groups or int(str(least)) > reached:
                groups.append([])
            groups[-1].append(part)
            reached = max(reached, int(str(most)))
        return groups

    def paths(self, parts: Sequence[Part] | None = None) -> list[str]:
        """Absolute paths of `parts` (all when None)."""
        top = str(self.root)
        return [f"{top}/{part.path}" for part in (self.parts if parts is None else parts)]


def plain_path(logged: str) -> str:
    """The path on disk; the log URL-encodes paths."""
    return unquote(logged) if "%" in logged else logged


def _values(column: pa.ChunkedArray) -> list[Bound | None]:
    """Values as Python objects; instants as microseconds. Reading them as integers needs no function of
    Arrow, so that most commands need not load it."""
    if pa.types.is_timestamp(column.type):
        assert column.type.unit == "us", column.type
        return [value for chunk in column.chunks for value in chunk.view(pa.int64()).to_pylist()]
    values: list[Bound | None] = column.to_pylist()
    return values


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    texts: list[str | None] = (
        column if pa.types.is_string(column.type) else column.cast(pa.string())
    ).to_pylist()
    return texts


def _bounds(actions: pa.Table, prefix: str) -> list[Bounds]:
    """For each row the columns called `prefix`*, without nulls."""
    rows: list[Bounds] = [{} for _ in range(actions.num_rows)]
    for name in actions.column_names:
        column = actions.column(name)
        if not name.startswith(prefix) or column.null_count == len(column):
            continue
        key = name.removeprefix(prefix)
        for bounds, value in zip(rows, _values(column), strict=True):
            if value is not None:
                bounds[key] = value
    return rows


def snapshot_of(root: Path, version: int, actions: pa.Table) -> Snapshot:
    """The snapshot of the flattened add actions of a Delta table; parts are sorted by path."""
    keys = [name for name in actions.column_names if name.startswith("partition.")]
    columns = [_texts(actions.column(key)) for key in keys]
    names = [key.removeprefix("partition.") for key in keys]
    partitions = (
        [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        if keys
        else [{} for _ in range(actions.num_rows)]
    )
    parts = [
        Part(plain_path(path), size, rows or 0, partition, mins, maxs)
        for path, size, rows, partition, mins, maxs in zip(
            actions.column("path").to_pylist(),
            actions.column("size_bytes").to_pylist(),
            actions.column("num_records").to_pylist(),
            partitions,
            _bounds(actions, "min."),
            _bounds(actions, "max."),
            strict=True,
        )
    ]
    parts.sort(key=lambda part: part.path)
    return Snapshot(root, version, parts)
