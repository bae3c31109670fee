"""All accepted ids, for the gate: immutable sorted runs, merged in tiers so that they stay few.

A run is a file sorted by key (`run_files`), which names the pieces (one per batch and unit of the gate) that
it holds. Runs can be made again from raw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrow import one, string_buffers
from tidemill.formats.decide import content_hash, parse
from tidemill.formats.key_runs import crowded_tier, hash_keys
from tidemill.formats.scan import scan
from tidemill.model.slices import set_hash
from tidemill.raw.accept.run_files import pieces_of, read_run, write_run
from tidemill.raw.footers import declared_in
from tidemill.raw.part_payloads import PartPayloads
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.checksums import read_arrow, write_arrow
from tidemill.storage.layout import RUN_SUFFIX
from tidemill.storage.tables.parts import open_part

FAN_IN: Final = 12  # runs of similar size that are merged
MAX_CONFIGURED_DEPTH: Final = 512  # accepted events were within the limit when they were accepted


@dataclass(frozen=True, slots=True)
class MergeUnit:
    """Runs to merge, and the range of keys to take from each: low <= high lane < high."""

    runs: Sequence[str]
    low: int
    high: int
    target: str
    pieces: Sequence[str]


def merge(unit: MergeUnit) -> Iterator[str]:
    """Merge sorted runs into one. Each key is in one run only, so there is nothing to decide."""
    runs = [read_run(path).within(unit.low, unit.high) for path in unit.runs]
    highs = np.concatenate([run.high for run in runs])
    order = pa.array(np.argsort(highs, kind="stable"))  # finds the sorted pieces and merges them
    whole = pa.concat_tables([run.table() for run in runs]).combine_chunks()
    write_run(warehouse_path(unit.target), whole.take(order).combine_chunks(), unit.pieces)
    yield unit.target


@dataclass(frozen=True, slots=True)
class RunUnit:
    """A batch whose run is made again from its raw parts."""

    raw: Sequence[str]
    seqs: Mapping[str, int]  # slice -> ledger offset
    target: str
    pieces: Sequence[str]
    sealed: Sequence[str] = ()  # files with the keys of events that have expired …
    ledger_offsets: Sequence[int] = ()  # … of which those of these slices belong to the batch
    only: frozenset[str] | None = None  # the slices of the batch, if its parts hold rows of others too


def make_run(unit: RunUnit) -> Iterator[str]:
    """The run of accepted events as the gate would have written it."""
    tables = [_keys_of(path, unit.seqs, unit.only) for path in unit.raw]
    tables += [_sealed_keys(path, unit.ledger_offsets) for path in unit.sealed]
    whole = pa.concat_tables(tables).combine_chunks()
    order = np.lexsort((one(whole.column("low")).to_numpy(), one(whole.column("high")).to_numpy()))
    write_run(warehouse_path(unit.target), whole.take(pa.array(order)).combine_chunks(), unit.pieces)
    yield unit.target


@dataclass(frozen=True, slots=True)
class SealUnit:
    """Raw parts whose events expire: afterwards the gate knows their ids only from this file."""

    raw: Sequence[str]
    seqs: Mapping[str, int]
    target: str


def seal_keys(unit: SealUnit) -> Iterator[str]:
    """Write the keys of the events, by ledger offset, so that those of a batch are found quickly."""
    whole = pa.concat_tables([_keys_of(path, unit.seqs) for path in unit.raw]).combine_chunks()
    order = np.argsort(one(whole.column("seq")).to_numpy(), kind="stable")
    write_arrow(warehouse_path(unit.target), whole.take(pa.array(order)).combine_chunks())
    yield unit.target


def _sealed_keys(path: str, ledger_offsets: Sequence[int]) -> pa.Table:
    table = read_arrow(path).replace_schema_metadata(None)
    seqs = one(table.column("seq")).to_numpy()
    spans = [
        (int(np.searchsorted(seqs, p)), int(np.searchsorted(seqs, p, side="right"))) for p in ledger_offsets
    ]
    return pa.concat_tables([table.slice(0, 0), *(table.slice(a, b - a) for a, b in spans if a < b)])


def _keys_of(path: str, seqs: Mapping[str, int], only: frozenset[str] | None = None) -> pa.Table:
    with open_part(path) as file:
        payloads = PartPayloads(declared_in(file, path))
        names = list(dict.fromkeys(["tenant", "event_id", "slice", "line", *payloads.names]))
        rows = file.read(names, use_threads=False)
    if only is not None:
        rows = rows.filter(pc.is_in(rows.column("slice"), pa.array(sorted(only), pa.string())))
    rows = rows.combine_chunks()
    tenant = one(rows.column("tenant").dictionary_encode())
    ids, payload = one(rows.column("event_id")), payloads.of(rows)
    high, low = hash_keys(tenant, ids)
    offsets, data = string_buffers(payload)
    ends = offsets.astype(np.int64)
    found = scan(data, ends[:-1], ends[1:], max_depth=MAX_CONFIGURED_DEPTH)
    content = found.content
    for row in np.flatnonzero(found.proven == 0).tolist():  # records that the scanner leaves to the rules
        content[row] = content_hash(parse(bytes(data[ends[row] : ends[row + 1]]), MAX_CONFIGURED_DEPTH))
    slices = one(rows.column("slice").dictionary_encode())
    ledger_offsets = np.array([seqs[name] for name in slices.dictionary.to_pylist()] or [0], np.int64)
    return pa.table(
        {
            "high": high,
            "low": low,
            "content": content,
            "seq": ledger_offsets[slices.indices.to_numpy()],
            "line": rows.column("line"),
            "key": pc.binary_join_element_wise(
                tenant.cast(pa.string()).cast(pa.binary()), ids.cast(pa.binary()), b"\0"
            ),
        }
    )


def plan_merge(sizes: Mapping[str, int]) -> list[str]:
    """Names of the runs to merge now: the smallest tier with FAN_IN runs of similar size.

    The files of one merged run, one per range of keys, stay together.
    """
    families = {_family(name) for name in crowded_tier(sizes, FAN_IN)}
    return sorted(name for name in sizes if _family(name) in families)


def _family(name: str) -> str:
    return name.rpartition("-")[0] if name.startswith("m-") else name


def merged_names(pieces: Sequence[str], count: int = 1) -> list[str]:
    """Names of the `count` files, one per range of keys, for these pieces together."""
    return [f"m-{set_hash(pieces)[:24]}-{number}of{count}{RUN_SUFFIX}" for number in range(count)]


def covering(folder: Path, wanted: frozenset[str]) -> list[str] | None:
    """Names of runs in `folder` that together hold exactly these pieces; None if there are none."""
    there = {path.name for path in folder.glob(f"*{RUN_SUFFIX}")}
    candidates: set[tuple[frozenset[str], tuple[str, ...]]] = set()
    for name in there:
        pieces = frozenset(pieces_of(folder / name))
        if not name.startswith("m-"):
            candidates.add((pieces, (name,)))
            continue
        count = int(name.removesuffix(RUN_SUFFIX).rpartition("of")[2])
        names = merged_names(sorted(pieces), count)
        if there.issuperset(names):
            candidates.add((pieces, tuple(names)))
    chosen: list[str] = []
    missing = set(wanted)
    for held, files in sorted(candidates, key=lambda item: (-len(item[0]), item[1])):
        if held and held <= missing:
            chosen.extend(files)
            missing -= held
    return sorted(chosen) if not missing else None
