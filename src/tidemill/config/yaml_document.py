"""Reads YAML text as plain data that remembers the line of every key.

Only the core types of YAML 1.2: `no` and `on` are strings, and so are dates. Tags are refused, a key may
occur once, and no text can make the data grow without bound.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

import yaml

from tidemill.config.problems import ConfigProblem, Document, Path, SourcePosition, dotted, line_position
from tidemill.model.errors import ConfigError

MAX_NODES: Final = 500_000  # otherwise aliases of aliases could expand without end
MAX_DEPTH: Final = 100

_TAG: Final = "tag:yaml.org,2002:"
_CORE: Final = {
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]{1,40}", "-+0123456789"),
    "float": (r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
}
_SYNTAX_HINT: Final = "YAML is indented with spaces; text with : # { } [ ] & * or quotes goes in quotes"


class _CoreLoader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's parser with the core types only. It composes nodes and never constructs objects."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}
    _depth = 0

    # Called around every node. The composer of libyaml recurses on the C stack: without this limit a file of
    # brackets would crash the process.
    def descend_resolver(self, current_node: yaml.Node | None, current_index: object) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = current_node.start_mark if current_node is not None else None
            raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=mark)

    def ascend_resolver(self) -> None:
        self._depth -= 1


for _name, (_pattern, _first) in _CORE.items():
    _CoreLoader.add_implicit_resolver(
        _TAG + _name, re.compile(f"(?:{_pattern})$"), [c if c != "\0" else "" for c in _first]
    )


def parse_document(text: str, file: str) -> Document:
    """The document of a file. Text that is not YAML raises at once."""
    document = Document(file)
    root = _compose(text, file)
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        raise ConfigError(
            "the file is empty", hint="`tidemill init DIR` writes one to start from", where=file
        )
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(
            "the file is not a mapping of keys to values",
            hint="it starts with `version: 1`, `warehouse: …` and `streams:`",
            where=f"{file}:1",
        )
    _YamlReader(document).mapping(root, ())
    return document


def parse_value(text: str, source_position: SourcePosition, path: Path, document: Document) -> object:
    """The value of an override, as if it were in the file at `path`."""
    try:
        root = _compose(text, source_position.text)
    except ConfigError as error:
        document.problems.append(
            ConfigProblem(source_position, f"{dotted(path)}: {error.message}", error.hint)
        )
        return None
    return None if root is None else _YamlReader(document, source_position).value(root, path)


def _compose(text: str, file: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}" if mark else file
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"this is not YAML: {problem}", hint=_SYNTAX_HINT, where=where) from None
    except yaml.reader.ReaderError as error:
        where = f"{file}:{text.count(chr(10), 0, error.position) + 1}"
        raise ConfigError(f"this is not YAML: {error.reason}", hint=_SYNTAX_HINT, where=where) from None
    except (yaml.YAMLError, RecursionError) as error:
        problem = str(error).splitlines()[0]
        raise ConfigError(f"this is not YAML: {problem}", hint=_SYNTAX_HINT, where=file) from None
    return node


class _YamlReader:
    """Walks the nodes once, filling a document; `source_position` overrides the lines of the file."""

    def __init__(self, document: Document, source_position: SourcePosition | None = None) -> None:
        self._document = document
        self._position = source_position
        self._nodes = 0

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        found: dict[str, object] = {} if path else self._document.data
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._report(key_node, path, "a key is not plain text", "write key: value")
                continue
            key = str(key_node.value)  # as written: a key `404` or `true` is a string too
            if key in found:
                self._report(key_node, (*path, key), "this key is given twice", "remove one of the two")
                continue
            self._document.positions[*path, key] = self._at(key_node)
            found[key] = self.value(value_node, (*path, key))
        return found

    def value(self, node: yaml.Node, path: Path) -> object:
        self._nodes += 1
        if self._nodes > MAX_NODES or len(path) > MAX_DEPTH:
            raise ConfigError(
                f"{dotted(path[:8])}: the file is nested too deeply or unfolds to too many values",
                hint="an alias must not contain itself, and aliases of aliases multiply",
                where=self._at(node).text,
            )
        self._document.positions.setdefault(path, self._at(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _scalar(self, node: yaml.Node, path: Path) -> object:
        text = str(node.value)
        try:
            match node.tag.removeprefix(_TAG):
                case "str":
                    return text
                case "null":
                    return None
                case "bool":
                    return text.lower() == "true"
                case "int":
                    return int(text)
                case "float":
                    return float(text)
        except ValueError:
            pass  # `!!int x` is not an int: reported like any other tag
        self._report(node, path, f"the tag {node.tag} does not fit here", "leave the tag out")
        return text

    def _at(self, node: yaml.Node) -> SourcePosition:
        return self._position or line_position(self._document.file, node.start_mark.line + 1)

    def _report(self, node: yaml.Node, path: Path, message: str, hint: str) -> None:
        text = f"{dotted(path)}: {message}" if path else message
        self._document.problems.append(ConfigProblem(self._at(node), text, hint))
