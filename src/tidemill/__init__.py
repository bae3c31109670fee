"""Tidemill: late, repeated and out-of-order feeds in; exact windows, rollups and datasets out."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tidemill")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0.0.0"

__all__ = ["__version__"]
