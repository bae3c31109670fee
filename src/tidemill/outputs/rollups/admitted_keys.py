"""The keys that a metric with `max_cardinality` has admitted; all others count under `__other__`.

The first N keys of a tenant in ledger order are admitted forever: a function of the ledger, not of batches.
Totals lose nothing: a key that is not admitted is only renamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.model.metrics import OTHER
from tidemill.outputs.rollups.cells import TEXT, cell_schema
from tidemill.outputs.rollups.events import passing
from tidemill.outputs.rollups.grouping import coded, grouped
from tidemill.outputs.rollups.observations import coded_text, joined
from tidemill.outputs.rollups.spec import Metric, RollupSpec

KEYS_LEFT: Final = ".places"


def key_columns(metric: Metric) -> list[str]:
    """The columns of cells and observations that make a key of one tenant, and the tenant."""
    return ["tenant", *(f"k{i}" for i in range(len(metric.dimensions)))]


def keys_of(metric: Metric, events: pa.Table) -> pa.Table:
    """The keys of the events that the metric counts: tenant, k0 …, slice, and the first line in it."""
    keep = passing(metric, events)
    if metric.following is not None:  # only events of followed objects have a key
        for at in (metric.following.object, metric.following.state):
            valid = np.asarray(one(events.column(f"d{at}")).is_valid())
            keep = valid if keep is None else keep & valid
    columns: dict[str, pa.Array] = {"tenant": coded_text(events.column("tenant"))}
    for i, d in enumerate(metric.dimensions):
        values = events.column(f"d{d.at}")
        columns[f"k{i}"] = coded_text(values) if d.type == "string" else one(values)
    columns["slice"] = coded_text(events.column("slice"))
    line: Ints = one(events.column("line")).to_numpy(zero_copy_only=False)
    found = pa.table(columns)
    if keep is not None and not keep.all():
        found, line = found.filter(pa.array(keep)), line[keep]
    if not found.num_rows:
        return found.append_column("line", pa.array(line, pa.int64()))
    of, first = grouped([coded(found.column(name)) for name in found.column_names])
    least = np.full(first.size, np.iinfo(np.int64).max)
    np.minimum.at(least, of, line)
    return found.take(pa.array(first)).append_column("line", pa.array(least))


def admitted_schema(metric: Metric) -> pa.Schema:
    return pa.schema(
        [
            ("tenant", TEXT),
            *(cell_schema(metric).field(f"k{i}") for i in range(len(metric.dimensions))),
            ("seq", pa.int64()),
            ("line", pa.int64()),
        ]
    )


@dataclass(frozen=True, slots=True)
class AdmittedKeys:
    """The admitted keys of each limited metric, with the ledger offset of their first occurrence."""

    metrics: Mapping[str, Metric]
    admitted: Mapping[str, pa.Table] = field(default_factory=dict)

    @staticmethod
    def of(spec: RollupSpec) -> AdmittedKeys:
        """Without any keys."""
        return AdmittedKeys({metric.name: metric for metric in spec.metrics if metric.limit is not None})

    def keys(self, metric: str) -> pa.Table:
        found = self.admitted.get(metric)
        return admitted_schema(self.metrics[metric]).empty_table() if found is None else found

    def admit(self, cells: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Cells under their admitted keys; cells that now share a key are not merged yet."""
        return {name: self.renamed(name, table) for name, table in cells.items()}

    def renamed(self, metric: str, table: pa.Table) -> pa.Table:
        """Cells or observations in which keys that are not admitted are replaced by `__other__`."""
        if metric not in self.metrics or not table.num_rows:
            return table
        declared = self.metrics[metric]
        names = key_columns(declared)
        others = ~_known(self.keys(metric).select(names), table.select(names))
        if not others.any():
            return table
        for i, d in enumerate(declared.dimensions):
            at = table.schema.get_field_index(f"k{i}")
            column = one(table.column(at))
            changed = _other_text(column, others) if d.type == "string" else _absent(column, others)
            table = table.set_column(at, f"k{i}", changed)
        return table

    def is_full_for(self, metric: str, tenants: Sequence[str]) -> bool:
        """Whether no further key of these tenants can be admitted."""
        counts = self._counts(metric)
        limit = self.metrics[metric].limit or 0
        return all(counts.get(tenant, 0) >= limit for tenant in tenants)

    def grown(self, found: Mapping[str, pa.Table]) -> AdmittedKeys:
        """With the keys that come next in the ledger: per metric tenant, k0 …, seq, line. None of them may
        precede a key that is already admitted, except those that are admitted themselves."""
        admitted = dict(self.admitted)
        for metric, keys in found.items():
            grown = self._with(metric, keys)
            if grown is not None:
                admitted[metric] = grown
        return AdmittedKeys(self.metrics, admitted)

    def before(self, seq: int) -> AdmittedKeys:
        """The keys that slices before this ledger offset admitted."""
        kept = {
            name: table.filter(pc.less(table.column("seq"), seq)) for name, table in self.admitted.items()
        }
        return AdmittedKeys(
            self.metrics, {name: joined([table]) for name, table in kept.items() if table.num_rows}
        )

    def _counts(self, metric: str) -> dict[str, int]:
        counted = self.keys(metric).column("tenant").value_counts()
        return {row["values"]: row["counts"] for row in counted.to_pylist()}

    def _with(self, metric: str, keys: pa.Table) -> pa.Table | None:
        declared, names = self.metrics[metric], key_columns(self.metrics[metric])
        keys = joined([keys.select(admitted_schema(declared).names).cast(admitted_schema(declared))])
        if self.is_full_for(metric, one(keys.column("tenant")).dictionary.to_pylist()):
            return None
        current = self.keys(metric)
        keys = keys.filter(pa.array(~_known(current.select(names), keys.select(names))))
        if not keys.num_rows:
            return None
        keys = keys.take(
            pc.sort_indices(keys, [("seq", "ascending"), ("line", "ascending")])
        ).combine_chunks()
        _, first = grouped([coded(keys.column(name)) for name in names])  # each key at its first occurrence
        keys = keys.take(pa.array(np.sort(first)))
        tenants, rank = coded(keys.column("tenant")), np.empty(keys.num_rows, np.int64)
        order = np.argsort(tenants.of, kind="stable")
        sorted_codes = tenants.of[order]
        begins = np.flatnonzero(np.append(True, sorted_codes[1:] != sorted_codes[:-1]))
        sizes = np.diff(np.append(begins, order.size))
        rank[order] = np.arange(order.size) - np.repeat(begins, sizes)
        counts = self._counts(metric)
        texts = one(keys.column("tenant"))
        had = np.array([counts.get(name, 0) for name in texts.dictionary.to_pylist()], np.int64)
        room = (declared.limit or 0) - had[texts.indices.to_numpy(zero_copy_only=False)]
        admitted = keys.filter(pa.array(rank < room))
        return joined([current, admitted]) if admitted.num_rows else None


def _known(keys: pa.Table, table: pa.Table) -> Mask:
    """For each row whether its key is one of `keys`, compared column by column."""
    if not keys.num_rows:
        return np.zeros(table.num_rows, np.bool_)
    known = np.ones(table.num_rows, np.bool_)
    key_codes, row_codes = np.zeros(keys.num_rows, np.int64), np.zeros(table.num_rows, np.int64)
    for name in table.column_names:
        key_values, their, missing = _alike(one(keys.column(name)), one(table.column(name)))
        known &= ~missing
        both = np.where(missing, 0, their)
        width = (
            int(max(key_values.max(), both.max(initial=0))) + 1
        )  # a dictionary may hold values that no key has
        distinct, key_codes = np.unique(key_codes * width + key_values, return_inverse=True)
        at = np.searchsorted(distinct, row_codes * width + both)
        found = at < distinct.size
        found[found] = distinct[at[found]] == (row_codes * width + both)[found]
        known &= found
        row_codes = np.where(known, at, 0)
    return known


def _alike(keys: pa.Array, values: pa.Array) -> tuple[Ints, Ints, Mask]:
    """Both as codes of the same values (null is 0), and which of `values` no key has."""
    if pa.types.is_dictionary(keys.type):
        texts = keys.dictionary
        key_values = _codes(keys.indices)
        position = pc.index_in(values.dictionary, pc.cast(texts, values.dictionary.type))
        of_text = np.append(np.asarray(position.fill_null(-2)).astype(np.int64) + 1, 0)
        first = np.asarray(pc.index_in(texts, texts)).astype(np.int64)  # a dictionary may have a string twice
        key_values = np.where(key_values > 0, np.append(first, 0)[key_values - 1] + 1, 0)
        their = of_text[_codes(values.indices) - 1]
        return key_values, their, their < 0
    numbers = pc.unique(keys.drop_null())
    key_values = np.asarray(pc.index_in(keys, numbers).fill_null(-1)).astype(np.int64) + 1
    position = np.asarray(pc.index_in(values, numbers).fill_null(-1)).astype(np.int64) + 1
    missing = (position == 0) & np.asarray(values.is_valid())
    return key_values, position, missing


def _codes(indices: pa.Array) -> Ints:
    """Indices from 1; null is 0."""
    filled = pc.fill_null(indices, -1) if indices.null_count else indices
    return np.asarray(filled).astype(np.int64) + 1


def _other_text(column: pa.DictionaryArray, others: Mask) -> pa.DictionaryArray:
    texts = pa.concat_arrays([column.dictionary.cast(pa.string()), pa.array([OTHER])])
    codes = np.where(others, len(column.dictionary), _codes(column.indices) - 1).astype(np.int32)
    return joined_text(pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), texts))


def joined_text(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The strings, each once in the dictionary."""
    first = np.asarray(pc.index_in(column.dictionary, column.dictionary)).astype(np.int32)
    if bool((first == np.arange(first.size)).all()):
        return column
    codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
    absent = np.asarray(column.indices.is_null())
    return pa.DictionaryArray.from_arrays(pa.array(first[codes], mask=absent), column.dictionary)


def _absent(column: pa.Array, others: Mask) -> pa.Array:
    return pc.if_else(pa.array(~others), column, pa.scalar(None, column.type))
