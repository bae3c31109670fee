"""Type names for the arrays that kernels take and give, and the chunk of records that decoders pass to them.

Imports no kernel, so that naming an array does not load Numba.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Ints = NDArray[np.int64]
Offsets = NDArray[np.int32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Record i is data[starts[i]:ends[i]]."""

    data: Bytes
    starts: Ints
    ends: Ints
    base: int = 0  # offset of data[0] in the slice's file
    in_place: bool = False  # data is (a range of) the slice's own file, not something decoded from it
    broken: Mapping[int, str] = field(default_factory=dict)  # what is wrong with records that are none
