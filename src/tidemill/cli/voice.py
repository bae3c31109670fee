"""Where text goes: tables and lines that are the result, and advice beside it.

One place decides that; who says something is handed it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class Voice:
    table: Callable[[RenderableType], None]
    line: Callable[..., None]
    note: Callable[[str], None]
