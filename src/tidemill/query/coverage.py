"""What an answer lacks, and why: the words that every answer about data uses, from Python to the console.
Values only: it reads nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.model.time import Interval

Why = Literal["expired", "not_built"]


@dataclass(frozen=True, slots=True)
class Missing:
    """A part of the span that the answer has no numbers for. They are null there, never zero."""

    span: Interval
    why: Why
    detail: str  # one plain sentence
    remedy: str  # what to type or change, or why nothing can be done


@dataclass(frozen=True, slots=True)
class Available:
    """From which instant on each source of an answer still has its data; what is not named has all of it."""

    levels: Mapping[str, int] = field(default_factory=dict)  # by the name of a rollup level
    raw: int | None = None

    def level_from(self, level: str) -> int | None:
        return self.levels.get(level)
