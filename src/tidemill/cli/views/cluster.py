"""Archives for Spark clusters, as lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import View, line

if TYPE_CHECKING:
    from tidemill.engine.bundle import Bundle


def entry(script: str) -> View:
    yield line(escaped(script))


def bundled(file: Path, made: Bundle, conf: Mapping[str, str]) -> View:
    size = f"{made.size / 2**20:.0f} MiB"
    yield line("wrote ", (escaped(str(file)), "bold"), f": {len(made.packages)} packages, {size}")
    yield line("\nIn tidemill.yaml:")
    yield line("  engine:\n    conf:")
    for key, value in conf.items():
        yield line(f"      {key}: {escaped(value)}")
