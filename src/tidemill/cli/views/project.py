"""Views of a new project and of versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import View, line

if TYPE_CHECKING:
    from tidemill.cli.sample import SampleFile


def made(folder: Path, files: Sequence[SampleFile], steps: Sequence[tuple[str, str]], *, quiet: bool) -> View:
    """Yield the files that were written, and unless `quiet` the commands to go on with."""
    yield line(
        "made ", (escaped(str(folder / "tidemill.yaml")), "bold"), ", the project: one stream, explained"
    )
    for file in files:
        yield line("made ", (escaped(str(folder / "data" / file.name)), "bold"), f", {file.about}")
    if quiet:
        return
    yield line("\nNext:")
    width = max(len(command) for command, _ in steps)
    for command, why in steps:
        yield line("  ", (escaped(command).ljust(width), "bold"), (f"  # {why}", "dim"))


def versions(versions: Mapping[str, str]) -> View:
    first, *others = versions.items()
    rest = ", ".join(f"{name} {version}" for name, version in others)
    yield line((f"{first[0]} {first[1]}", "bold"), f" ({rest})")
