"""The JSON documents that the command line and the API share.

They only format: nothing here decides, reads a table or knows a terminal.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from tidemill.pipeline.documents import (
        cell,
        event_time,
        gateway,
        operations,
        overview,
        results,
        scrub,
        search,
        shapes,
        sql,
        trace,
        vectors,
        windows,
    )
else:
    # Loaded on first use: a command that prints text makes no document, and most need one module.
    def __getattr__(name: str) -> ModuleType:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")


__all__ = (
    "cell", "event_time", "gateway", "operations", "overview", "results", "scrub", "search",
    "shapes", "sql", "trace", "vectors", "windows",
)  # fmt: skip
