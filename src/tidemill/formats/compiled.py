"""How Numba compiles kernels that walk over bytes.

Numba counts the references to an array wherever one function hands it to another, in each step of a loop, by
an atomic instruction: half of the time of a walk over JSON. A `walk` does not count; so it makes no arrays
and returns none, and only other walks and `step`s may be called in it.
"""

from __future__ import annotations

from typing import Final

from numba import njit

walk: Final = njit(cache=True, nogil=True, _nrt=False)
step: Final = njit(cache=True, nogil=True, _nrt=False, forceinline=True)
