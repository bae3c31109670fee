"""Settings from the environment: `TIDEMILL_WAREHOUSE`, and `TIDEMILL__ENGINE__CORES=2` for the rest.

They replace values of the file before validation, so the same rules apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemill.config.problems import ConfigProblem, Document, Path, SourcePosition, dotted, variable_position
from tidemill.config.yaml_document import parse_value
from tidemill.model.suggestions import choices

WAREHOUSE: Final = "TIDEMILL_WAREHOUSE"
PREFIX: Final = "TIDEMILL__"


def apply_overrides(document: Document, environ: Mapping[str, str]) -> None:
    """Replace values of the file by those of the environment. Empty variables are ignored."""
    for name in sorted(environ):
        if name.startswith(PREFIX) and environ[name].strip():
            _apply(document, name, environ[name])
    if environ.get(WAREHOUSE, "").strip():
        _put(document, document.data, ("warehouse",), environ[WAREHOUSE], variable_position(WAREHOUSE))


def _apply(document: Document, name: str, text: str) -> None:
    position = variable_position(name)
    words = name.removeprefix(PREFIX).split("__")
    if not all(words):
        document.problems.append(
            ConfigProblem(position, "the name is not a path of keys", "for example TIDEMILL__ENGINE__CORES")
        )
        return
    section = document.data
    path: Path = ()
    for word in words[:-1]:
        key = _key(section, word)
        path = (*path, key)
        if path[0] == "streams" and len(path) == 2 and key not in section:
            document.problems.append(
                ConfigProblem(
                    position, f"there is no stream {key!r}", choices(key, tuple(section), "streams")
                )
            )
            return
        inner = section.get(key)
        if inner is None:
            inner = section[key] = {}
            document.positions.setdefault(path, position)
        if not isinstance(inner, dict):
            document.problems.append(
                ConfigProblem(
                    position, f"{dotted(path)} is a value, not a section", f"set it whole: {_whole(path)}"
                )
            )
            return
        section = inner
    path = (*path, _key(section, words[-1]))
    if path[0] == "streams" and len(path) <= 2:
        document.problems.append(
            ConfigProblem(
                position, "streams are declared in the file", "override a setting of a stream instead"
            )
        )
        return
    _forget(document, path)
    _put(document, section, path, parse_value(text, position, path, document), position)


def _key(section: Mapping[str, object], word: str) -> str:
    """The key that `word` names: itself, the only key that differs in case, or a new one in lower case."""
    if word in section:
        return word
    alike = [key for key in section if key.lower() == word.lower()]
    return alike[0] if len(alike) == 1 else word.lower()


def _put(
    document: Document, section: dict[str, object], path: Path, value: object, position: SourcePosition
) -> None:
    section[str(path[-1])] = value
    document.positions[path] = position


def _forget(document: Document, path: Path) -> None:
    """Drop the line numbers of what is replaced."""
    for known in [known for known in document.positions if known[: len(path)] == path]:
        del document.positions[known]


def _whole(path: Path) -> str:
    return f"{PREFIX}{'__'.join(str(key) for key in path).upper()}='{{…}}'"
