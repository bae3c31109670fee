"""Finds the values of declared columns in records that are known to be valid JSON.

It checks only what it needs to navigate, and neither hashes nor copies: the records were accepted before. A
damaged record is marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from tidemill.formats.byte_access import byte_at, copy_bytes
from tidemill.formats.compiled import step, walk
from tidemill.formats.json_core import (
    AFTER_VALUE,
    ARRAY,
    CLOSE_BRACE,
    CLOSE_BRACKET,
    COLON,
    COMMA,
    KEY,
    KEY_OR_END,
    MISSING,
    NULL,
    OBJECT,
    OPEN_BRACE,
    QUOTE,
    STRING,
    container_end,
    is_open,
    is_quoted,
    literal_end,
    number_end,
    same_bytes,
    skip_space,
    starts_number,
    string_end,
    unescape,
)

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints, Mask


@dataclass(frozen=True, slots=True)
class Paths:
    """Columns as a tree of keys: node 0 is the record, the children of node n are first[n]:first[n + 1]."""

    columns: tuple[str, ...]
    first: Ints
    names: Bytes  # names of the children, concatenated …
    name_at: Ints  # … and where each begins
    field: Ints  # the column that a child is, or -1
    below: Ints  # the node for columns inside the child, or -1


def paths_of(columns: Sequence[str]) -> Paths:
    """The tree of dotted columns, children in order of first occurrence."""
    nodes: list[dict[str, list[int]]] = [{}]  # per node: key -> [column or -1, node below or -1]
    for number, column in enumerate(columns):
        node = 0
        *outer, last = column.split(".")
        for name in outer:
            child = nodes[node].setdefault(name, [-1, -1])
            if child[1] < 0:
                child[1] = len(nodes)
                nodes.append({})
            node = child[1]
        nodes[node].setdefault(last, [-1, -1])[0] = number
    names = [key.encode() for node in nodes for key in node]
    assert not any(c in name for name in names for c in b'"\\'), "columns have plain names"
    return Paths(
        columns=tuple(columns),
        first=np.cumsum([0, *map(len, nodes)], dtype=np.int64),
        names=np.array(list(b"".join(names)), np.uint8),
        name_at=np.cumsum([0, *map(len, names)], dtype=np.int64),
        field=np.array([field for node in nodes for field, _ in node.values()], np.int64),
        below=np.array([below for node in nodes for _, below in node.values()], np.int64),
    )


@step
def _child(
    text: Bytes, at: int, size: int, node: int, first: Ints, names: Bytes, name_at: Ints, guess: Ints
) -> int:
    """The child of `node` with this name, or -1; the one after the last match is tried first."""
    low = first[node]
    count = first[node + 1] - low
    child = guess[node]
    for _ in range(count):
        start = name_at[child]
        following = child + 1 if child + 1 < low + count else low
        if name_at[child + 1] - start == size and same_bytes(text, at, names, start, size):
            guess[node] = following
            return child
        child = following
    return -1


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
    field_at = np.zeros(nodes + 1, np.int64)  # … and the columns that these objects are
    scratch = np.empty(0, np.uint8)
    for i in range(starts.size):
        for f in range(tags.shape[0]):
            tags[f, i] = MISSING
            froms[f, i] = 0
            tos[f, i] = 0
        damaged[i] = 1
        end = ends[i]
        p = skip_space(b, starts[i], end)
        if p >= end or byte_at(b, p) != OPEN_BRACE:
            continue
        p += 1
        depth = 0
        node_at[0] = 0
        field_at[0] = -1
        state = KEY_OR_END
        while True:
            p = skip_space(b, p, end)
            if p >= end:
                break
            c = byte_at(b, p)
            if c == CLOSE_BRACE and state != KEY:
                p += 1
                if field_at[depth] >= 0:
                    tos[field_at[depth], i] = p
                if depth == 0:
                    damaged[i] = skip_space(b, p, end) != end
                    break
                depth -= 1
                state = AFTER_VALUE
                continue
            if state == AFTER_VALUE:
                if c != COMMA:
                    break
                p += 1
                state = KEY
                continue
            if c != QUOTE:
                break
            node = node_at[depth]
            child = guess[node]
            size = name_at[child + 1] - name_at[child] if child < field.size else 0
            # Records of a feed mostly have the same key order: try the column that comes next first.
            if size and is_quoted(b, p + 1, end, names, name_at[child], size):
                p += size + 2
                guess[node] = child + 1 if child + 1 < first[node + 1] else first[node]
            else:
                s = p + 1
                p, tag = string_end(b, p, end)
                if p < 0:
                    break
                size = p - 1 - s
                if tag == STRING:
                    child = _child(b, s, size, node, first, names, name_at, guess)
                else:
                    if scratch.size < size:
                        scratch = np.empty(2 * size, np.uint8)
                    size = unescape(b, s, p - 1, scratch)
                    if size < 0:
                        break
                    child = _child(scratch, 0, size, node, first, names, name_at, guess)
            p = skip_space(b, p, end)
            if p >= end or byte_at(b, p) != COLON:
                break
            p = skip_space(b, p + 1, end)
            if p >= end:
                break
            column = field[child] if child >= 0 else -1
            c = byte_at(b, p)
            s = p
            if c == OPEN_BRACE and child >= 0 and below[child] >= 0:
                if column >= 0:
                    tags[column, i] = OBJECT
                    froms[column, i] = s
                depth += 1
                node_at[depth] = below[child]
                field_at[depth] = column
                p += 1
                state = KEY_OR_END
                continue
            state = AFTER_VALUE
            if c == QUOTE:
                p, tag = string_end(b, p, end)
                if p < 0:
                    break
                if column >= 0:
                    tags[column, i] = tag
                    froms[column, i] = s + 1
                    tos[column, i] = p - 1
                continue
            if starts_number(c):
                p, tag = number_end(b, p, end)
            elif is_open(c):
                tag = OBJECT if c == OPEN_BRACE else ARRAY
                p = container_end(b, p, end)
            else:
                p, tag = literal_end(b, p, end)
            if p < 0:
                break
            if column >= 0:
                tags[column, i] = tag
                froms[column, i] = s
                tos[column, i] = p


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a column in some records: their kinds, and their spans in the data."""

    data: Bytes
    tags: Bytes
    starts: Ints
    ends: Ints

    @property
    def present(self) -> Mask:
        return self.tags > NULL

    def text(self, row: int) -> str:
        return self.data[self.starts[row] : self.ends[row]].tobytes().decode()

    def tagged(self, *tags: int) -> Mask:
        wanted = np.zeros(ARRAY + 1, np.bool_)
        wanted[list(tags)] = True
        found: Mask = wanted[self.tags]
        return found


@dataclass(frozen=True, slots=True)
class Located:
    """For [column, record]: the kind of value and its span in the data, without the quotes of a string. A
    missing value has an empty span. The entries of a damaged record are meaningless."""

    tags: Bytes
    starts: Ints
    ends: Ints
    damaged: Bytes

    def values(self, data: Bytes) -> list[Values]:
        """Those of each column."""
        return [Values(data, *each) for each in zip(self.tags, self.starts, self.ends, strict=True)]


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


@walk
def _elements(b: Bytes, starts: Ints, ends: Ints, offsets: Ints, tags: Bytes, froms: Ints, tos: Ints) -> int:
    """The elements of arrays, as many as there is room for; returns how many there are."""
    n = 0
    for i in range(starts.size):
        offsets[i] = n
        end = ends[i]
        p = starts[i] + 1
        while p < end:
            p = skip_space(b, p, end)
            c = byte_at(b, p)
            if c == COMMA:
                p = skip_space(b, p + 1, end)
                c = byte_at(b, p)
            elif c == CLOSE_BRACKET:
                break
            s = p
            quotes = 0
            if c == QUOTE:
                p, tag = string_end(b, p, end)
                quotes = 1
            elif starts_number(c):
                p, tag = number_end(b, p, end)
            elif is_open(c):
                tag = OBJECT if c == OPEN_BRACE else ARRAY
                p = container_end(b, p, end)
            else:
                p, tag = literal_end(b, p, end)
            if p < 0:
                break
            if n < tags.size:
                tags[n] = tag
                froms[n] = s + quotes
                tos[n] = p - quotes
            n += 1
    offsets[starts.size] = n
    return n


def elements(b: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Bytes, Ints, Ints]:
    """The elements of arrays that are known to be valid JSON (an empty span has none): where the elements of
    each array begin, and the kind and the span of each, without the quotes of a string."""
    offsets = np.empty(starts.size + 1, np.int64)
    none = np.empty(0, np.int64)
    count = _elements(b, starts, ends, offsets, np.empty(0, np.uint8), none, none)
    tags, froms, tos = np.empty(count, np.uint8), np.empty(count, np.int64), np.empty(count, np.int64)
    _elements(b, starts, ends, offsets, tags, froms, tos)
    return offsets, tags, froms, tos


@walk
def _texts(b: Bytes, starts: Ints, ends: Ints, escaped: Bytes, out: Bytes, offsets: Ints) -> None:
    n = 0
    for i in range(starts.size):
        offsets[i] = n
        if escaped[i]:
            n += max(0, unescape(b, starts[i], ends[i], out[n:]))
        else:
            copy_bytes(b, starts[i], ends[i], out, n)
            n += ends[i] - starts[i]
    offsets[starts.size] = n


def unescaped(b: Bytes, starts: Ints, ends: Ints, escaped: Bytes) -> tuple[Bytes, Ints]:
    """The unescaped strings, concatenated, and where each begins and ends; never longer than the input."""
    out = np.empty(int((ends - starts).sum()), np.uint8)
    offsets = np.empty(starts.size + 1, np.int64)
    _texts(b, starts, ends, escaped, out, offsets)
    return out[: int(offsets[-1])], offsets


__all__ = ["Located", "Paths", "Values", "elements", "locate", "paths_of", "unescaped"]
