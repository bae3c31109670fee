"""Small parts of a window's results merged into one: the same rows, with the revisions and batches they had.

Parts of about one size are merged once there are enough of them, so that a row is written again only when it
comes into a part several times as large. It decides nothing about results, and changes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
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
from tidemill.storage.tables.parts import StagedPart, open_part
from tidemill.storage.tables.snapshot import Part

FAN_IN: Final = 8  # parts of about one size that are merged
LARGE: Final = 16_384  # rows of a part that stays as it is
MOST_ROWS: Final = 262_144  # that are merged at once


@dataclass(frozen=True, slots=True)
class ResultMergeUnit:
    spec: WindowSpec
    stream: Stream
    fingerprint: str
    parts: Sequence[str]  # the oldest first
    folder: str
    name: str


def crowded_results(parts: Sequence[Part]) -> list[Part]:
    """Those to merge now, the oldest first; none when there are few."""
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
    yield write_results(Path(unit.folder), unit.name, unit.spec, Changes(rows, 0, 0), footer)
