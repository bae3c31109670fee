"""Which of many parameters the normal run tries: a few, always the same ones. A soak tries all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet


def one_in(share: int, values: Iterable[object], *, first: int = 0) -> list[ParameterSet]:
    """One value in `share`, from the one at `first` on; the others are for a soak."""
    return [
        pytest.param(*value if isinstance(value, tuple) else (value,), marks=_marks(number, first, share))
        for number, value in enumerate(values)
    ]


def _marks(number: int, first: int, share: int) -> tuple[pytest.MarkDecorator, ...]:
    return () if number % share == first % share else (pytest.mark.soak,)
