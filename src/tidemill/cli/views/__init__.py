"""Results for people: a view is a function of a result that yields tables, lines and notes.

Each module of commands has a module of views of the same name; `layout` has what they are made of.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from tidemill.cli.views import (
        cluster,
        datasets,
        event_time,
        ingest,
        maintenance,
        project,
        queries,
        results,
        serve,
        status,
        tokens,
        trace,
        vectors,
        windows,
    )
else:
    # Loaded when it is first used: Rich takes a while to load, and `--output json` needs none of it.
    def __getattr__(name: str) -> ModuleType:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")


__all__ = (
    "cluster", "datasets", "event_time", "ingest", "maintenance", "project", "queries", "results", "serve",
    "status", "tokens", "trace", "vectors", "windows",
)  # fmt: skip
