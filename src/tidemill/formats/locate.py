"""Where the values of declared columns stand in records that were proven to be JSON before.

It checks only what it needs to find its way, hashes nothing and copies nothing: for what acceptance decided
long ago. It never judges a record; one that is damaged is marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from tidemill.formats.loads import byte_at
from tidemill.formats.scan import (
    ARRAY,
    ESCAPED,
    EXPONENT,
    FALSE,
    FRACTION,
    INTEGER,
    MISSING,
    NULL,
    OBJECT,
    STRING,
    TRUE,
    plain_end,
    unescape,
)
from tidemill.formats.split import is_space

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints

# What may stand next.
_KEY_OR_END, _KEY, _AFTER = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Paths:
    """Columns as a tree of keys: node 0 is the record, the children of node n are first[n]:first[n + 1]."""

    columns: tuple[str, ...]
    first: Ints
    names: Bytes  # of the children, one right behind the other …
    name_at: Ints  # … from where to where
    field: Ints  # the column that a child is, or -1
    below: Ints  # the node of what lies deeper in it, or -1


def paths_of(columns: Sequence[str]) -> Paths:
    """The tree of dotted columns, children in the order in which they are first named."""
    nodes: list[dict[str, list[int]]] = [{}]  # per node: key -> [column or -1, node below or -1]
    for number, column in enumerate(columns):
        node = 0
        *outer, last = column.split(".")
        for step in outer:
            child = nodes[node].setdefault(step, [-1, -1])
            if child[1] < 0:
                child[1] = len(nodes)
                nodes.append({})
            node = child[1]
        nodes[node].setdefault(last, [-1, -1])[0] = number
    names = [key.encode() for node in nodes for key in node]
    return Paths(
        columns=tuple(columns),
        first=np.cumsum([0, *map(len, nodes)], dtype=np.int64),
        names=np.array(list(b"".join(names)), np.uint8),
        name_at=np.cumsum([0, *map(len, names)], dtype=np.int64),
        field=np.array([field for node in nodes for field, _ in node.values()], np.int64),
        below=np.array([below for node in nodes for _, below in node.values()], np.int64),
    )


@njit(cache=True, inline="always")
def _child(
    text: Bytes, at: int, size: int, node: int, first: Ints, names: Bytes, name_at: Ints, guess: Ints
) -> int:
    """The child of `node` with this name, or -1; the one behind the last one found is looked at first."""
    low = first[node]
    count = first[node + 1] - low
    child = guess[node]
    for _ in range(count):
        start = name_at[child]
        if name_at[child + 1] - start == size:
            q = 0
            while q < size and byte_at(text, at + q) == byte_at(names, start + q):
                q += 1
            if q == size:
                guess[node] = child + 1 if child + 1 < low + count else low
                return child
        child = child + 1 if child + 1 < low + count else low
    return -1


@njit(cache=True, inline="always")
def _string_end(b: Bytes, p: int, end: int) -> tuple[int, int]:
    """Of a string body that starts at p: where its closing quote is (-1: nowhere), and its tag."""
    tag = STRING
    p = plain_end(b, p, end)
    while p < end and byte_at(b, p) == 0x5C:
        tag = ESCAPED
        p = plain_end(b, p + 2, end)
    if p >= end or byte_at(b, p) != 0x22:
        return -1, tag
    return p, tag


@njit(cache=True)
def _container_end(b: Bytes, p: int, end: int) -> int:
    """Behind the container that starts at p; -1 when it does not end."""
    depth = 0
    while p < end:
        c = byte_at(b, p)
        if c == 0x22:
            p, _ = _string_end(b, p + 1, end)
            if p < 0:
                return -1
        elif c == 0x7B or c == 0x5B:
            depth += 1
        elif c == 0x7D or c == 0x5D:
            depth -= 1
            if depth == 0:
                return p + 1
        p += 1
    return -1


@njit(cache=True, inline="always")
def _number_end(b: Bytes, p: int, end: int) -> tuple[int, int]:
    tag = INTEGER
    while p < end:
        c = byte_at(b, p)
        if c == 0x2E:
            tag = FRACTION
        elif c == 0x65 or c == 0x45:
            tag = EXPONENT
        elif not (48 <= c <= 57 or c == 0x2D or c == 0x2B):
            break
        p += 1
    return p, tag


@njit(cache=True, nogil=True)
def _locate(
    b: Bytes,
    starts: Ints,
    ends: Ints,
    first: Ints,
    names: Bytes,
    name_at: Ints,
    field: Ints,
    below: Ints,
    tags: Bytes,
    froms: Ints,
    tos: Ints,
    damaged: Bytes,
) -> None:
    nodes = first.size - 1
    guess = first[:nodes].copy()
    node_at = np.zeros(nodes + 1, np.int64)  # the open objects that lead to a column …
    field_at = np.zeros(nodes + 1, np.int64)  # … and the columns that they are themselves
    scratch = np.empty(0, np.uint8)
    for i in range(starts.size):
        for f in range(tags.shape[0]):
            tags[f, i] = MISSING
            froms[f, i] = 0
            tos[f, i] = 0
        damaged[i] = 1
        p = starts[i]
        end = ends[i]
        while p < end and is_space(byte_at(b, p)):
            p += 1
        if p >= end or byte_at(b, p) != 0x7B:
            continue
        p += 1
        depth = 0
        node_at[0] = 0
        field_at[0] = -1
        state = _KEY_OR_END
        while True:
            while p < end and is_space(byte_at(b, p)):
                p += 1
            if p >= end:
                break
            c = byte_at(b, p)
            if c == 0x7D and state != _KEY:
                p += 1
                if field_at[depth] >= 0:
                    tos[field_at[depth], i] = p
                if depth == 0:
                    while p < end and is_space(byte_at(b, p)):
                        p += 1
                    damaged[i] = p != end
                    break
                depth -= 1
                state = _AFTER
                continue
            if state == _AFTER:
                if c != 0x2C:
                    break
                p += 1
                state = _KEY
                continue
            if c != 0x22:
                break
            s = p + 1
            p, tag = _string_end(b, s, end)
            if p < 0:
                break
            if tag == STRING:
                child = _child(b, s, p - s, node_at[depth], first, names, name_at, guess)
            else:
                if scratch.size < p - s:
                    scratch = np.empty(2 * (p - s), np.uint8)
                size = unescape(b, s, p, scratch)
                if size < 0:
                    break
                child = _child(scratch, 0, size, node_at[depth], first, names, name_at, guess)
            p += 1
            while p < end and is_space(byte_at(b, p)):
                p += 1
            if p >= end or byte_at(b, p) != 0x3A:
                break
            p += 1
            while p < end and is_space(byte_at(b, p)):
                p += 1
            if p >= end:
                break
            column = field[child] if child >= 0 else -1
            c = byte_at(b, p)
            s = p
            if c == 0x7B and child >= 0 and below[child] >= 0:
                if column >= 0:
                    tags[column, i] = OBJECT
                    froms[column, i] = s
                depth += 1
                node_at[depth] = below[child]
                field_at[depth] = column
                p += 1
                state = _KEY_OR_END
                continue
            state = _AFTER
            to = -1
            if c == 0x22:
                s += 1
                to, tag = _string_end(b, s, end)
                if to < 0:
                    break
                p = to + 1
            elif c == 0x2D or 48 <= c <= 57:
                to, tag = _number_end(b, p, end)
                p = to
            elif c == 0x7B or c == 0x5B:
                tag = OBJECT if c == 0x7B else ARRAY
                to = _container_end(b, p, end)
                if to < 0:
                    break
                p = to
            else:
                if c == 0x74:
                    tag = TRUE
                elif c == 0x66:
                    tag = FALSE
                elif c == 0x6E:
                    tag = NULL
                else:
                    break
                to = min(end, p + (5 if tag == FALSE else 4))
                p = to
            if column >= 0:
                tags[column, i] = tag
                froms[column, i] = s
                tos[column, i] = to


@dataclass(frozen=True, slots=True)
class Located:
    """[column, record]: what stands there, and from where to where in the data; of a string without its
    quotes. What is missing has an empty span. Of a damaged record nothing means anything."""

    tags: Bytes
    starts: Ints
    ends: Ints
    damaged: Bytes


def locate(data: Bytes, starts: Ints, ends: Ints, paths: Paths) -> Located:
    shape = (len(paths.columns), starts.size)
    found = Located(
        tags=np.empty(shape, np.uint8),
        starts=np.empty(shape, np.int64),
        ends=np.empty(shape, np.int64),
        damaged=np.empty(starts.size, np.uint8),
    )
    _locate(
        data, starts, ends, paths.first, paths.names, paths.name_at, paths.field, paths.below,
        found.tags, found.starts, found.ends, found.damaged,
    )  # fmt: skip
    return found


@njit(cache=True, nogil=True)
def _texts(b: Bytes, starts: Ints, ends: Ints, escaped: Bytes, out: Bytes, offsets: Ints) -> None:
    n = 0
    for i in range(starts.size):
        offsets[i] = n
        if escaped[i]:
            n += max(0, unescape(b, starts[i], ends[i], out[n:]))
        else:
            for p in range(starts[i], ends[i]):
                out[n] = b[p]
                n += 1
    offsets[starts.size] = n


def unescaped(b: Bytes, starts: Ints, ends: Ints, escaped: Bytes) -> tuple[Bytes, Ints]:
    """The texts of JSON strings one behind the other, and from where to where; never longer than spelled."""
    out = np.empty(int((ends - starts).sum()), np.uint8)
    offsets = np.empty(starts.size + 1, np.int64)
    _texts(b, starts, ends, escaped, out, offsets)
    return out[: int(offsets[-1])], offsets


__all__ = ["Located", "Paths", "locate", "paths_of", "unescaped"]
