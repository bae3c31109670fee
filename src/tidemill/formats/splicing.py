"""Replaces spans of records by other texts, each byte copied once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numba import njit

from tidemill.formats.byte_access import copy_bytes

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints, Mask


@njit(cache=True, nogil=True)
def _splice(
    b: Bytes, starts: Ints, ends: Ints, froms: Ints, tos: Ints, chosen: Mask,
    texts: Bytes, text_from: Ints, text_to: Ints, offsets: Ints, out: Bytes,
) -> None:  # fmt: skip
    """Spans may come in any order; they do not overlap."""
    order = np.empty(froms.shape[0], np.int64)
    for i in range(starts.size):
        count = 0
        for f in range(froms.shape[0]):
            if chosen[f, i]:
                at = count
                while at > 0 and froms[order[at - 1], i] > froms[f, i]:
                    order[at] = order[at - 1]
                    at -= 1
                order[at] = f
                count += 1
        p = starts[i]
        o = offsets[i]
        for k in range(count):
            f = order[k]
            copy_bytes(b, p, froms[f, i], out, o)
            o += froms[f, i] - p
            copy_bytes(texts, text_from[f, i], text_to[f, i], out, o)
            o += text_to[f, i] - text_from[f, i]
            p = tos[f, i]
        copy_bytes(b, p, ends[i], out, o)


def spliced(
    data: Bytes,
    ends: Ints,
    froms: Ints,
    tos: Ints,
    chosen: Mask,
    texts: Bytes,
    text_from: Ints,
    text_to: Ints,
) -> pa.StringArray:
    """Records, which end at `ends[1:]` in the data, with the chosen spans [field, record] replaced by
    texts[text_from:text_to]."""
    grown = ((text_to - text_from) - (tos - froms)) * chosen
    offsets = np.zeros(ends.size, np.int64)
    np.cumsum(np.diff(ends) + grown.sum(axis=0), out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    _splice(data, ends[:-1], ends[1:], froms, tos, chosen, texts, text_from, text_to, offsets, out)
    return pa.StringArray.from_buffers(
        ends.size - 1, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)
    )


__all__ = ["spliced"]
