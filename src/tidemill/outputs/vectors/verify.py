"""Computes all chains again from raw and reports where the table differs, to the bit.

It trusts raw, and the table only as to which rows are checkpoints; it writes only to staging.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidemill.config.vectors import Vector
from tidemill.formats.arrays import Ints
from tidemill.formats.delta_arrays import deltas_from_rows
from tidemill.outputs.vectors.kernel import Arranged, Gathered, arranged, collapsed, read_rows
from tidemill.outputs.vectors.raw_deltas import Key
from tidemill.outputs.vectors.rules import NONE
from tidemill.outputs.vectors.store import ChainStore
from tidemill.outputs.vectors.table import BUCKETS, ROWS
from tidemill.storage.files import remove_tree
from tidemill.storage.ipc import read_ipc


@dataclass(frozen=True, slots=True)
class ChainDifference:
    """A chain that differs from what raw gives."""

    vector: str
    what: str


@dataclass(frozen=True, slots=True)
class _Unit:
    bucket: str
    raw: Sequence[str]
    current: Sequence[str]
    vector: Vector


def verify_chains(store: ChainStore) -> tuple[int, list[ChainDifference]]:
    """How many chains were compared, and the differences; what is not folded in yet is ignored."""
    store.raw.refresh()
    store.table.refresh()
    folder = store.table.staging("verify")
    try:
        gathered: list[Gathered] | None = store.gather_all(folder)
        if gathered is None:
            return 0, []
        current = store.buckets()
        units = []
        for number in range(BUCKETS):
            bucket = f"{number:02d}"
            parts = [str(store.table.root / part.path) for part in current.get(bucket, ())]
            raw = [found.path for found in gathered if found.bucket == bucket]
            if raw or parts:
                units.append(_Unit(bucket, raw, parts, store.vector))
        size = sum(part.size for parts in current.values() for part in parts)
        answers = store.engine.run(_check, units, "verify chains", size)
    finally:
        remove_tree(folder)
    wrong = [each for each in answers if isinstance(each, ChainDifference)]
    return sum(each for each in answers if isinstance(each, int)), wrong


def _check(unit: _Unit) -> Iterator[int | ChainDifference]:
    truth = arranged(pa.concat_tables([ROWS.empty_table(), *map(read_ipc, unit.raw)]))
    held = arranged(read_rows(unit.current))
    kept, deltas = _chains(held), _chains(truth)
    yield len(kept.keys() | deltas.keys())
    expected = arranged(collapsed(truth, _groups(truth, deltas, held, kept), unit.vector))
    if _same(held.rows, expected.rows):
        return
    chains = _chains(expected)
    for key in sorted(kept.keys() | chains.keys()):
        if key not in chains:
            yield ChainDifference("/".join(key), "raw has no delta of it")
        elif key not in kept:
            yield ChainDifference("/".join(key), "is missing")
        elif not _same(held.rows.slice(*_span(kept[key])), expected.rows.slice(*_span(chains[key]))):
            yield ChainDifference("/".join(key), "its chain differs from what raw gives")


def _span(rows: tuple[int, int]) -> tuple[int, int]:
    return rows[0], rows[1] - rows[0]


def _chains(found: Arranged) -> dict[Key, tuple[int, int]]:
    """Where the rows of each chain begin and end."""
    return dict(zip(found.keys, pairwise(found.chains.starts.tolist()), strict=True))


def _groups(
    truth: Arranged,
    deltas: Mapping[Key, tuple[int, int]],
    held: Arranged,
    kept: Mapping[Key, tuple[int, int]],
) -> Ints:
    """Which deltas of raw each checkpoint contains according to its row."""
    groups, group = np.full(truth.rows.num_rows, NONE, np.int64), 0
    ids, ends = truth.rows.column("delta_id").to_pylist(), held.rows.column("delta_id").to_pylist()
    times, at = truth.chains.ts.tolist(), held.chains.ts.tolist()
    merged, pending = held.rows.column("merged").to_pylist(), held.chains.pending.tolist()
    for key, (start, end) in deltas.items():
        checkpoints = [row for row in range(*kept.get(key, (0, 0))) if not pending[row]]
        positions = {(times[row], ids[row]): row for row in range(start, end)} if checkpoints else {}
        for row in checkpoints:
            last = positions.get((at[row], ends[row]))
            first = last + 1 - merged[row] if last is not None else -1
            if last is not None and first >= start:  # otherwise nothing is merged, and the rows will differ
                groups[first : last + 1] = group
                group += 1
    return groups


def _same(one: pa.Table, other: pa.Table) -> bool:
    plain = [name for name in ROWS.names if name not in ("values", "indices")]
    if not one.select(plain).equals(other.select(plain)):
        return False
    left, right = deltas_from_rows(one), deltas_from_rows(other)
    return (
        np.array_equal(left.value_at, right.value_at)
        and np.array_equal(left.values.view(np.int64), right.values.view(np.int64))
        and np.array_equal(left.dense, right.dense)
        and np.array_equal(left.index_at, right.index_at)
        and np.array_equal(left.indices, right.indices)
    )
