"""Spark: the session, and the one way in which a kernel runs over units of work."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidemill.engine.executors import runs_here
    from tidemill.engine.jobs import Engine
    from tidemill.engine.session import SessionSettings

__all__ = ["Engine", "SessionSettings", "runs_here"]

_HOMES: Final = {
    "Engine": "tidemill.engine.jobs",
    "SessionSettings": "tidemill.engine.session",
    "runs_here": "tidemill.engine.executors",
}


def __getattr__(name: str) -> object:
    """Load a name when it is first used: the daemon that forks workers may load nothing that starts
    threads."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
