"""Problems of a configuration with their positions, and the one error that lists them all.

Every problem has a position (a line of the file or an environment variable) and names what is valid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemill.model.errors import ConfigError

Path = tuple[str | int, ...]
"""The way into the file: keys, and positions in lists."""


@dataclass(frozen=True, slots=True, order=True)
class SourcePosition:
    """A line of the file, or an environment variable (sorted after all lines)."""

    order: int
    text: str


def line_position(file: str, line: int) -> SourcePosition:
    return SourcePosition(line, f"{file}:{line}")


def variable_position(name: str) -> SourcePosition:
    return SourcePosition(1 << 62, f"environment variable {name}")


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    position: SourcePosition
    message: str
    hint: str

    @property
    def line(self) -> str:
        return f"{self.position.text}: {self.message} ({self.hint})"


@dataclass(slots=True)
class Document:
    """The plain data of a file and its overrides, with the position of each value."""

    file: str
    data: dict[str, object] = field(default_factory=dict)
    positions: dict[Path, SourcePosition] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)
    # The file is valid, but something in it has no effect.
    warnings: list[ConfigProblem] = field(default_factory=list)

    def position(self, path: Path) -> SourcePosition:
        """The position of `path`, or else of the nearest section around it."""
        for length in range(len(path), 0, -1):
            if found := self.positions.get(path[:length]):
                return found
        return line_position(self.file, 1)

    def report(self, path: Path, message: str, hint: str) -> None:
        self.problems.append(self._problem(path, message, hint))

    def warn(self, path: Path, message: str, hint: str) -> None:
        self.warnings.append(self._problem(path, message, hint))

    def _problem(self, path: Path, message: str, hint: str) -> ConfigProblem:
        text = f"{dotted(path)}: {message}" if path else message
        return ConfigProblem(self.position(path), text, hint)


def dotted(path: Path) -> str:
    """`streams.requests.source_links[0].href`"""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{key}" if text else key
    return text


def config_error(problems: Iterable[ConfigProblem]) -> ConfigError:
    """All problems in the order of the file, one on each line with its position."""
    first, *others = sorted(dict.fromkeys(problems), key=lambda problem: problem.position)
    if not others:
        return ConfigError(first.message, hint=first.hint, where=first.position.text)
    lines = [f"{first.message} ({first.hint})"]
    lines += [other.line for other in others]
    return ConfigError(
        "\n".join(lines), hint=f"{len(lines)} problems, one on each line", where=first.position.text
    )
