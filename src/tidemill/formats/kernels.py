"""Kernels that Numba compiles where there is much to do, and Python runs as they are where there is little.

To load Numba takes longer than to read a few vectors. Both ways run the same source, and neither reorders or
fuses a step: they give the same, bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from typing import Final, Generic, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

LITTLE: Final = 100_000  # steps that Python takes while Numba would be loaded


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
        """By this Numba knows a kernel that another one calls."""
        return self.compiled._numba_type_  # type: ignore[attr-defined]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As it is, in Python."""
        with np.errstate(all="ignore"):
            return self.function(*args, **kwargs)

    def for_steps(self, steps: int) -> Callable[P, R]:
        """The faster way to take about so many steps; where Numba is loaded already, the compiled one."""
        return self if steps <= LITTLE and "numba" not in sys.modules else self.compiled
