"""Tidemill: late, repeated and out-of-order feeds in; exact windows, rollups and datasets out."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.client import AsyncClient, Client

    __version__: str

__all__ = ["AsyncClient", "Client", "__version__"]


def __getattr__(name: str) -> object:
    """The clients and the version, once somebody asks for them: `import tidemill` loads nothing else."""
    if name in ("AsyncClient", "Client"):
        return getattr(import_module("tidemill.client"), name)
    if name == "__version__":
        return _version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tidemill")
    except PackageNotFoundError:  # running from a source tree that was never installed
        return "0.0.0"
