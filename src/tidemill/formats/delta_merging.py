"""Merges deltas where that changes no bit of the result: applied to any vectors, fewer deltas give the same.

Pure. It never computes with components: what would need an addition stays two deltas.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.delta_arrays import DELETE, REPLACE, SET, Deltas, Floats, taken


def merged(deltas: Deltas) -> Deltas:
    """Fewer rows with the same effect, in any order; the input is in the order of `order_of`. A merged row
    has the time and the id of its last."""
    deltas = _without_void(deltas)
    says = np.isin(deltas.ops, (SET, REPLACE))  # operations that set components, whatever they were
    joins = (deltas.ops == SET) & ~deltas.dense  # rows that can be merged with a setting row before them
    joins[:1] = False
    joins[1:] &= says[:-1] & (deltas.vectors[1:] == deltas.vectors[:-1])
    return _joined(deltas, joins) if joins.any() else deltas


def _without_void(deltas: Deltas) -> Deltas:
    """Without the rows before a row that replaces or deletes the whole vector."""
    whole = deltas.dense & np.isin(deltas.ops, (SET, REPLACE, DELETE))
    position = np.arange(len(deltas))
    last = np.zeros(len(deltas.names), np.int64)
    np.maximum.at(last, deltas.vectors[whole], position[whole])
    return taken(deltas, position >= last[deltas.vectors])


def _joined(deltas: Deltas, joins: Mask) -> Deltas:
    """Each run of rows that set components as one row, at the position of its last; in any order."""
    starts = np.flatnonzero(~joins)
    ends = np.append(starts[1:], len(deltas)) - 1
    long = ends > starts
    single, starts, ends = taken(deltas, starts[~long]), starts[long], ends[long]
    run, component, value = _final_values(deltas, starts, ends)
    dense = deltas.dense[starts]
    components = np.bincount(run, minlength=starts.size)
    return Deltas(
        names=deltas.names,
        vectors=np.append(single.vectors, deltas.vectors[ends]),
        ts=np.append(single.ts, deltas.ts[ends]),
        ids=pa.concat_arrays([single.ids, deltas.ids.take(pa.array(ends))]),
        ops=np.append(single.ops, deltas.ops[starts]),
        dense=np.append(single.dense, dense),
        index_at=_behind(single.index_at, np.where(dense, 0, components)),
        indices=np.append(single.indices, component[~dense[run]].astype(np.int32)),
        value_at=_behind(single.value_at, components),
        values=np.append(single.values, value),
    )


def _behind(at: Ints, sizes: Ints) -> Ints:
    return np.append(at, at[-1] + np.cumsum(sizes))


def _final_values(deltas: Deltas, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Floats]:
    """Run, component and final value of everything that runs of rows set, sorted by run and component."""
    sizes = ends - starts + 1
    rows = _counted(starts, sizes)
    counts = np.diff(deltas.value_at)[rows]
    value = deltas.values[_counted(deltas.value_at[rows], counts)]
    component = _counted(np.zeros_like(rows), counts)  # all of a dense row; a sparse one names them
    sparse = ~np.repeat(deltas.dense[rows], counts)
    component[sparse] += np.repeat(deltas.index_at[rows], counts)[sparse]
    component[sparse] = deltas.indices[component[sparse]]
    run = np.repeat(np.repeat(np.arange(starts.size), sizes), counts)
    order = np.lexsort((component, run))  # the stable sort keeps later values behind earlier ones
    run, component, value = run[order], component[order], value[order]
    last = np.ones(run.size, np.bool_)
    last[:-1] = (run[1:] != run[:-1]) | (component[1:] != component[:-1])
    return run[last], component[last], value[last]


def _counted(firsts: Ints, counts: Ints) -> Ints:
    """`counts[i]` consecutive numbers beginning with each first, concatenated."""
    starts = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) + np.repeat(firsts - starts, counts)


__all__ = ["merged"]
