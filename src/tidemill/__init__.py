"""Tidemill: late, repeated and out-of-order feeds in; exact windows, rollups and datasets out."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.client import AsyncClient, Client

try:
    __version__ = version("tidemill")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0.0.0"

__all__ = ["AsyncClient", "Client", "__version__"]


def __getattr__(name: str) -> object:
    """The clients, once somebody asks for them: `import tidemill` loads nothing else."""
    if name in ("AsyncClient", "Client"):
        return getattr(import_module("tidemill.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
