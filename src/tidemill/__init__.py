"""Tidemill: late, repeated and out-of-order feeds in; exact windows, rollups and datasets out."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidemill.client import AsyncClient, Client
    from tidemill.mill import Mill, recover
    from tidemill.model.errors import TidemillError

    __version__: str

__all__ = ["AsyncClient", "Client", "Mill", "TidemillError", "__version__", "recover"]

_HOMES: Final = {
    "AsyncClient": "tidemill.client",
    "Client": "tidemill.client",
    "Mill": "tidemill.mill",
    "TidemillError": "tidemill.model.errors",
    "recover": "tidemill.mill",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used: `import tidemill` alone loads nothing else."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "__version__":
        return _version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tidemill")
    except PackageNotFoundError:  # running from a source tree that was never installed
        return "0.0.0"
