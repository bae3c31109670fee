"""Deltas as flat arrays: read from payloads or tables, sorted, written as tables.

Changes only their form; nothing here computes with components.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemill.config.vectors import Vector
from tidemill.formats.arrays import Bytes, Ints, Mask, Offsets
from tidemill.formats.arrow import one
from tidemill.formats.json_values import at
from tidemill.formats.kernels import Kernel
from tidemill.model.deltas import Op

# Imports inside functions keep start-up short: reading a few vectors needs no Numba.

Floats = NDArray[np.float64]
Item = TypeVar("Item", bound=np.generic)

OPS: Final = (Op.REPLACE, Op.SET, Op.ADD, Op.SCALE, Op.OFFSET, Op.DELETE)  # by code
CODES: Final = {op.value: code for code, op in enumerate(OPS)}
REPLACE, SET, ADD, SCALE, OFFSET, DELETE = range(6)  # codes of the operations: positions in OPS
_AT_ONCE: Final = 256  # payloads held as Python objects at a time: few stay in the processor's caches
_WHOLE_DIGITS: Final = 20
_OP_NAMES: Final = pa.array([op.value for op in OPS])
ROWS: Final = pa.schema(
    [
        ("vector_id", pa.string()),
        ("ts", pa.int64()),
        ("delta_id", pa.string()),
        ("op", pa.string()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)


@dataclass(frozen=True, slots=True)
class Deltas:
    """Deltas by row. Row i has values[value_at[i]:value_at[i + 1]], and indices likewise; a dense row has no
    indices and covers all components."""

    names: pa.Array  # the vectors, each once
    vectors: Ints  # the position in `names` of the row's vector
    ts: Ints
    ids: pa.Array  # delta_id
    ops: Bytes  # positions in OPS
    dense: Mask
    index_at: Ints
    indices: Offsets
    value_at: Ints
    values: Floats

    def __len__(self) -> int:
        return int(self.vectors.size)


def deltas_from_rows(rows: pa.Table) -> Deltas:
    """Deltas of a table with the columns of `ROWS`; a row without indices is dense. Times may be
    timestamps."""
    names, vectors = coded(one(rows.column("vector_id")))
    ops = one(rows.column("op"))
    if pa.types.is_dictionary(ops.type):
        ops = ops.dictionary_decode()
    dense, index_at, indices = _lists(one(rows.column("indices")), pa.int32(), np.int32)
    _, value_at, values = _lists(one(rows.column("values")), pa.float64(), np.float64)
    return Deltas(
        names=names,
        vectors=vectors,
        ts=_instants(one(rows.column("ts"))),
        ids=one(rows.column("delta_id")),
        ops=pc.index_in(ops, _OP_NAMES).to_numpy(zero_copy_only=False).astype(np.uint8),
        dense=dense,
        index_at=index_at,
        indices=indices,
        value_at=value_at,
        values=values,
    )


def deltas_from_payloads(
    payloads: pa.Array | pa.ChunkedArray,
    event_time: pa.Array | pa.ChunkedArray,
    event_id: pa.Array | pa.ChunkedArray,
    vector: Vector,
) -> Deltas:
    """Deltas of accepted events. A payload that is not a delta of this vector, which the gate refuses, raises
    KeyError, TypeError, ValueError or the like.

    A number is read as the nearest float64; an integer has no negative zero.
    """
    ts = _instants(one(event_time))
    texts, ids = one(payloads), one(event_id)
    names: list[str] = []
    read: list[tuple[Bytes, Mask, Ints, Offsets, Ints, Floats]] = []
    for start in range(0, len(texts), _AT_ONCE):
        some = texts.slice(start, _AT_ONCE).to_pylist()
        records = _objects(some)
        names += _texts(records, vector.id, some)
        read.append(_arrays(records, vector))
    if not read:
        return deltas_from_rows(ROWS.empty_table())
    vector_ids, vectors = coded(pa.array(names, pa.string()))
    ops, dense, index_at, indices, value_at, values = zip(*read, strict=True)
    deltas = Deltas(
        names=vector_ids,
        vectors=vectors,
        ts=ts,
        ids=ids,
        ops=np.concatenate(ops),
        dense=np.concatenate(dense),
        index_at=_behind(index_at),
        indices=np.concatenate(indices),
        value_at=_behind(value_at),
        values=np.concatenate(values),
    )
    _check_shapes(deltas, vector.dimension)  # the kernel checks no bounds
    return deltas


def deltas_from_columns(
    columns: Sequence[pa.Array], event_time: pa.Array, event_id: pa.Array, vector: Vector
) -> Deltas:
    """The same for columns of vectors, operations, values and indices. ValueError if a row is not a delta."""
    names, ops, values, indices = columns
    if names.null_count or pc.index_in(ops, _OP_NAMES).null_count:
        raise ValueError("not all of them name a vector and an operation")
    rows = pa.table(
        {
            "vector_id": names.cast(pa.string()),
            "ts": event_time,
            "delta_id": event_id,
            "op": ops,
            "indices": indices,
            "values": values,
        }
    )
    deltas = deltas_from_rows(rows)
    _check_shapes(deltas, vector.dimension)
    return deltas


def _check_shapes(deltas: Deltas, dimension: int) -> None:
    counts, ops, dense = np.diff(deltas.value_at), deltas.ops, deltas.dense
    takes = np.where(dense, dimension, np.diff(deltas.index_at))
    takes[ops == OFFSET] = 1
    takes[ops == DELETE] = 0
    fits = (counts == takes) | ((ops == SCALE) & dense & (counts == 1))
    fits &= dense | ((ops != REPLACE) & (ops != DELETE))
    inside = (deltas.indices >= 0) & (deltas.indices < dimension)
    if not (fits.all() and inside.all()):
        raise ValueError(f"not all of them are deltas of vectors of {dimension} components")


def _objects(texts: Sequence[str | bytes]) -> list[object]:
    try:
        if texts and isinstance(texts[0], bytes):
            joined = b"[" + b",".join(texts) + b"]"  # type: ignore[arg-type]
        else:
            joined = ("[" + ",".join(texts) + "]").encode()  # type: ignore[arg-type]
        found: list[object] = orjson.loads(joined)
    except orjson.JSONDecodeError:  # a number beyond float64 in a member that is not used
        found = [json.loads(text, parse_int=_whole) for text in texts]
    return found


def _whole(text: str) -> int | float:
    return int(text) if len(text) <= _WHOLE_DIGITS else float(text)


def _getter(column: str) -> Callable[[object], object]:
    if "." in column:
        return lambda record: at(record, column)
    return lambda record: record.get(column)  # type: ignore[attr-defined]


def _texts(records: Sequence[object], column: str, payloads: Sequence[str | bytes]) -> list[str]:
    get = _getter(column)
    found = [get(record) for record in records]
    return [
        name if type(name) is str else str(name) if type(name) is int else _exact(payload, column)
        for name, payload in zip(found, payloads, strict=True)
    ]


def _exact(payload: str | bytes, column: str) -> str:
    """An integer that is spelled 7.0 or 7e3, and may have more digits than a float64 holds."""
    from tidemill.formats.decide import Number  # loads Numba, which reading a few vectors does without

    found = at(json.loads(payload, parse_int=Number, parse_float=Number), column)
    assert isinstance(found, Number), "the gate takes texts and whole numbers"
    return str(found.integer())


def _arrays(records: Sequence[object], vector: Vector) -> tuple[Bytes, Mask, Ints, Offsets, Ints, Floats]:
    op, get_indices, get_values = _getter(vector.op), _getter(vector.indices), _getter(vector.values)
    ops = np.array([CODES[op(record)] for record in records], np.uint8)  # type: ignore[index]
    found = [get_indices(record) for record in records]
    dense = np.array([items is None for items in found], np.bool_)
    index_at, places = _flat(found)
    indices = np.array(places, np.float64).astype(np.int32)  # 2.0 is the index 2
    value_at, numbers = _flat([get_values(record) for record in records])
    return ops, dense, index_at, indices, value_at, np.array(numbers, np.float64)


def _flat(lists: Sequence[object]) -> tuple[Ints, list[float]]:
    there: list[list[float]] = [items or [] for items in lists]  # type: ignore[misc]
    offsets = np.zeros(len(there) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, there), np.int64, len(there)), out=offsets[1:])
    return offsets, list(chain.from_iterable(there))


def rows_of(deltas: Deltas) -> pa.Table:
    """The table that `deltas_from_rows` reads."""
    return pa.table(
        {
            "vector_id": deltas.names.take(pa.array(deltas.vectors)),
            "ts": pa.array(deltas.ts),
            "delta_id": deltas.ids,
            **changes_of(deltas),
        },
        schema=ROWS,
    )


def changes_of(deltas: Deltas) -> dict[str, pa.Array]:
    """The last three columns of that table: what each row does."""
    offsets = pa.array(deltas.index_at.astype(np.int32), mask=np.append(deltas.dense, False))
    value_at = pa.array(deltas.value_at.astype(np.int32))
    return {
        "op": _OP_NAMES.take(pa.array(deltas.ops)),
        "indices": pa.ListArray.from_arrays(offsets, pa.array(deltas.indices, pa.int32())),
        "values": pa.ListArray.from_arrays(value_at, pa.array(deltas.values, pa.float64())),
    }


def coded(ids: pa.Array) -> tuple[pa.Array, Ints]:
    """The distinct ids, and the position of each row's id among them."""
    if not pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_encode()
    codes = ids.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return ids.dictionary, codes


def taken(deltas: Deltas, chosen: Ints | Mask) -> Deltas:
    """The rows at these positions, in that order, or those of a mask. Names stay as they are."""
    rows: Ints = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.int64)
    index_at, indices = _parts(deltas.index_at, deltas.indices, rows)
    value_at, values = _parts(deltas.value_at, deltas.values, rows)
    return Deltas(
        names=deltas.names,
        vectors=deltas.vectors[rows],
        ts=deltas.ts[rows],
        ids=deltas.ids.take(pa.array(rows)),
        ops=deltas.ops[rows],
        dense=deltas.dense[rows],
        index_at=index_at,
        indices=indices,
        value_at=value_at,
        values=values,
    )


def order_of(deltas: Deltas) -> Ints:
    """The order of rows by (vector, ts, delta_id)."""
    order = np.lexsort((deltas.ts, deltas.vectors))
    vectors, ts = deltas.vectors[order], deltas.ts[order]
    same = (vectors[1:] == vectors[:-1]) & (ts[1:] == ts[:-1])
    if not same.any():
        return order
    tied = np.append(same, False)  # ids are strings and slow to compare: only where times are equal
    tied[1:] |= same
    positions = np.flatnonzero(tied)
    rows = order[positions]
    rank = np.empty(rows.size, np.int64)
    rank[pc.sort_indices(deltas.ids.take(pa.array(rows))).to_numpy()] = np.arange(rows.size)
    order[positions] = rows[np.lexsort((rank, ts[positions], vectors[positions]))]
    return order


def _instants(array: pa.Array) -> Ints:
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    return _writable(array.to_numpy(zero_copy_only=False), np.int64)


def _lists(array: pa.Array, of: pa.DataType, kind: type[Item]) -> tuple[Mask, Ints, NDArray[Item]]:
    """Which lists are null, where each begins and ends, and the values."""
    if pa.types.is_fixed_size_list(array.type) or array.type.value_type != of:
        array = array.cast(pa.list_(of))
    absent = np.asarray(pc.is_null(array))
    sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    at = np.zeros(len(array) + 1, np.int64)
    np.cumsum(sizes, out=at[1:])
    return absent, at, _writable(array.flatten().to_numpy(zero_copy_only=False), kind)


def _writable(array: NDArray[np.generic], kind: type[Item]) -> NDArray[Item]:
    """A copy, since Arrow's memory is read-only and the kernels would be compiled again for that."""
    return array.astype(kind, copy=not array.flags.writeable)


def _behind(offsets: Sequence[Ints]) -> Ints:
    sizes = np.concatenate([np.diff(at) for at in offsets])
    out = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=out[1:])
    return out


def _parts(at: Ints, items: NDArray[Item], rows: Ints) -> tuple[Ints, NDArray[Item]]:
    out = np.zeros(rows.size + 1, np.int64)
    np.cumsum(at[rows + 1] - at[rows], out=out[1:])
    taken = np.empty(int(out[-1]), items.dtype)
    _copy.for_steps(taken.size + rows.size)(at, items, rows, out, taken)
    return out, taken


@Kernel
def _copy(at: Ints, items: NDArray[Item], rows: Ints, out: Ints, taken: NDArray[Item]) -> None:
    for k in range(rows.size):
        low, to = at[rows[k]], out[k]
        for i in range(out[k + 1] - to):
            taken[to + i] = items[low + i]


__all__ = [
    "ADD",
    "CODES",
    "DELETE",
    "OFFSET",
    "OPS",
    "REPLACE",
    "ROWS",
    "SCALE",
    "SET",
    "Deltas",
    "Floats",
    "changes_of",
    "coded",
    "deltas_from_columns",
    "deltas_from_payloads",
    "deltas_from_rows",
    "order_of",
    "rows_of",
    "taken",
]
