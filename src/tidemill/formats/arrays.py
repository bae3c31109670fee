"""Names for the arrays that the kernels pass around."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Ints = NDArray[np.int64]
Offsets = NDArray[np.int32]
Mask = NDArray[np.bool_]
