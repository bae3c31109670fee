"""Kernels that Numba compiles for large inputs, and Python runs uncompiled for small ones.

Loading Numba takes longer than reading a few vectors. Both ways run the same source without reordering or
fusing operations, so they give the same bits. Numba keeps what it has compiled in files, so that only the
first process after an installation compiles; `compiling_reported` says when it does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def compiling_reported(report: Callable[[], None]) -> Iterator[None]:
    """Inside the block, call `report` once when Numba begins to compile, which takes seconds."""
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        reported = False

        def on_start(self, _event: object) -> None:
            if not self.reported:
                self.reported = True
                report()

        def on_end(self, _event: object) -> None:
            """Only the beginning is reported."""

    with event.install_listener("numba:compile", Listener()):
        yield
