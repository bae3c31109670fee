"""Merges small parts of a window's results into one: the same rows, with their revisions and batches.

Parts of similar size are merged once there are enough of them, so that a row is rewritten only into a part
several times as large. Results do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.config.stream import Stream
from tidemill.formats.key_runs import crowded_tier
from tidemill.model.streaming import WindowSpec
from tidemill.outputs.windows.results import (
    Changes,
    ResultsFooter,
    group_columns,
    in_order,
    results_schema,
    shaped,
    write_results,
)
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.tables.parts import StagedPart, open_part
from tidemill.storage.tables.snapshot import Part

FAN_IN: Final = 8  # parts of similar size that are merged
LARGE: Final = 16_384  # rows of a part that is not merged any more
MOST_ROWS: Final = 262_144  # rows that are merged at once


@dataclass(frozen=True, slots=True)
class ResultMergeUnit:
    spec: WindowSpec
    stream: Stream
    fingerprint: str
    parts: Sequence[str]  # the oldest first
    folder: str
    name: str


def crowded_results(parts: Sequence[Part]) -> list[Part]:
    """The parts to merge now, oldest first; none if there are few."""
    small = {part.path: part for part in parts if part.rows < LARGE}
    found: list[Part] = []
    rows = 0
    for path in sorted(crowded_tier({path: part.rows for path, part in small.items()}, FAN_IN)):
        rows += small[path].rows
        if rows <= MOST_ROWS:
            found.append(small[path])
    return found


def merge_results(unit: ResultMergeUnit) -> Iterator[StagedPart]:
    schema = results_schema(unit.spec, unit.stream)
    tables = []
    for path in unit.parts:
        with open_part(path) as file:
            tables.append(shaped(file.read(use_threads=False), schema))
    rows = in_order(pa.concat_tables(tables).combine_chunks(), group_columns(unit.spec))
    batches = tuple(sorted(pc.unique(rows.column("batch")).to_pylist()))
    footer = ResultsFooter(unit.spec.stream, unit.spec.name, unit.fingerprint, batches, merged=True)
    yield write_results(warehouse_path(unit.folder), unit.name, unit.spec, Changes(rows, 0, 0), footer)
