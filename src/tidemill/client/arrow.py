"""Encodes Arrow tables as request bodies: Arrow streams of bounded size, with an id in every row.

Only callers that send tables need pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidemill.client.bodies import Body, Ids
from tidemill.model.errors import InputError

if TYPE_CHECKING:
    Batches = Iterable[pa.RecordBatch]

ARROW: Final = "application/vnd.apache.arrow.stream"


def bodies(
    table: pa.Table | pa.RecordBatch | Batches, ids: Ids, most_events: int, most_bytes: int
) -> Iterator[Body]:
    """Yield bodies one at a time, so that a reader of more than fits in memory can be sent."""
    for batch in _batches(table):
        for start in range(0, batch.num_rows, most_events):
            yield from _cut(batch.slice(start, most_events), ids, most_bytes)


def _batches(table: pa.Table | pa.RecordBatch | Batches) -> Batches:
    if isinstance(table, pa.Table):
        found: Batches = table.to_batches()
        return found
    return [table] if isinstance(table, pa.RecordBatch) else table


def _cut(rows: pa.RecordBatch, ids: Ids, most_bytes: int) -> Iterator[Body]:
    if rows.num_rows > 1 and rows.nbytes > most_bytes:
        half = rows.num_rows // 2
        yield from _cut(rows.slice(0, half), ids, most_bytes)
        yield from _cut(rows.slice(half), ids, most_bytes)
        return
    named = _named(rows, ids)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, named.schema) as writer:
        writer.write_batch(named)
    yield Body(sink.getvalue().to_pybytes(), named.num_rows, ARROW)


def _named(rows: pa.RecordBatch, ids: Ids) -> pa.RecordBatch:
    if not ids.path:
        return rows
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    _fill(columns, ids.path, ids, rows.num_rows)
    return pa.RecordBatch.from_pydict(columns)


def _fill(columns: dict[str, pa.Array], path: tuple[str, ...], ids: Ids, count: int) -> None:
    """Add ids where there are none, at `path` in columns or in the structs they hold."""
    name, *rest = path
    there = columns.get(name)
    if rest:
        if there is not None and not pa.types.is_struct(there.type):
            raise InputError(f"{name!r} holds no other column", hint="name the column of the id by id_column")
        inner = {} if there is None else {f.name: there.field(n) for n, f in enumerate(there.type)}
        _fill(inner, tuple(rest), ids, count)
        columns[name] = pa.StructArray.from_arrays(list(inner.values()), names=list(inner))
    elif there is None or pa.types.is_null(there.type):
        columns[name] = pa.array([ids.new() for _ in range(count)], pa.string())
    elif there.null_count:
        if not (pa.types.is_string(there.type) or pa.types.is_large_string(there.type)):
            raise InputError(f"{name!r} has rows without an id and is not text", hint="give every row an id")
        filled = [value if value is not None else ids.new() for value in there.to_pylist()]
        columns[name] = pa.array(filled, there.type)
