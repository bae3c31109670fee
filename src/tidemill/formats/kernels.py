"""Kernels that Numba compiles for large inputs, and Python runs uncompiled for small ones.

Loading Numba takes longer than reading a few vectors. Both ways run the same source without reordering or
fusing operations, so they give the same bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from typing import Final, Generic, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

LITTLE: Final = 100_000  # steps that Python can run in the time it takes to load Numba


class Kernel(Generic[P, R]):
    """A function of arrays, written so that Numba can compile it. Kernels may call each other."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function

    @cached_property
    def compiled(self) -> Callable[P, R]:
        from numba import njit

        made: Callable[P, R] = njit(cache=True, nogil=True)(self.function)
        return made

    @property
    def _numba_type_(self) -> object:
        """Lets Numba resolve a kernel that is called by another."""
        return self.compiled._numba_type_  # type: ignore[attr-defined]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it in Python."""
        with np.errstate(all="ignore"):
            return self.function(*args, **kwargs)

    def for_steps(self, steps: int) -> Callable[P, R]:
        """The faster way to run about so many steps: compiled if they are many or Numba is already loaded."""
        return self if steps <= LITTLE and "numba" not in sys.modules else self.compiled
