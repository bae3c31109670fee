"""Queries: the text, its plan, and its execution in process over the rollups.

Names are loaded on first use: finding what is pending needs neither a parser nor DuckDB.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.query.answer import Answer, Explanation
    from tidemill.query.querier import Querier
    from tidemill.query.run import Runner
    from tidemill.query.source import Files, NoRollups, SnapshotSource, Source

__all__ = [
    "Answer",
    "Explanation",
    "Files",
    "NoRollups",
    "Querier",
    "Runner",
    "SnapshotSource",
    "Source",
]

_MODULES = {
    "answer": ("Answer", "Explanation"),
    "querier": ("Querier",),
    "run": ("Runner",),
    "source": ("Files", "NoRollups", "SnapshotSource", "Source"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"tidemill.query.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
