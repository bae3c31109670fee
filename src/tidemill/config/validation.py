"""Validates plain data as a model, and translates pydantic's errors into the words of the file.

Knows the shape of models in general, not their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tidemill.config.problems import Path
from tidemill.model.suggestions import choices

_SECTION: Final = "should be a section of keys and values"
_MESSAGES: Final = {
    "string_type": ("should be text", "put quotes around it"),
    "bool_type": ("should be true or false", "use true or false"),
    "int_type": ("should be a whole number", "use digits only"),
    "tuple_type": ("should be a list", "use [a, b] or one `- item` on each line"),
    "mapping_type": (_SECTION, "use key: value, indented, or {key: value}"),
    "dict_type": (_SECTION, "use key: value, indented, or {key: value}"),
    "model_attributes_type": (_SECTION, "use key: value, indented, or {key: value}"),
    "model_type": (_SECTION, "use key: value, indented, or {key: value}"),
    "string_too_short": ("should not be empty", "write some text, or leave it out"),
    "string_too_long": ("should have at most {max_length} characters", "use a shorter one"),
    "too_short": ("should not be empty", "give at least one"),
    "too_long": ("has more than {max_length} items", "leave some out"),
    "decimal_type": ("should be a number", "use a number such as 0.5"),
    "decimal_parsing": ("should be a number", "use a number such as 0.5"),
    "finite_number": ("should be a number", "use a number such as 0.5"),
    "greater_than_equal": ("should be at least {ge}", "use a larger one"),
    "less_than_equal": ("should be at most {le}", "use a smaller one"),
}
_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ConfigFinding:
    """A problem of a model, at a path relative to it."""

    path: Path
    message: str
    hint: str


def validate(
    model: type[_M], data: Mapping[str, object], reserved: frozenset[str] = frozenset()
) -> _M | list[ConfigFinding]:
    """The model of `data`, or everything that is wrong with it.

    `reserved` are keys of the model that must not be in the file.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        details = _worth_saying(error.errors(include_url=False))
        return [_finding(model, data, detail, reserved) for detail in details]


def keys_of(model: type[BaseModel], reserved: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """The keys that a section may have, as they are written."""
    names = (info.alias or name for name, info in model.model_fields.items())
    return tuple(name for name in names if name not in reserved)


def _worth_saying(details: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Without the findings that a list is too short, if that is only because elements of it are invalid."""
    positions = [detail["loc"] for detail in details]
    return [
        detail
        for detail, position in zip(details, positions, strict=True)
        if detail["type"] != "too_short"
        or not any(len(other) > len(position) and other[: len(position)] == position for other in positions)
    ]


def _finding(
    model: type[BaseModel], data: Mapping[str, object], detail: ErrorDetails, reserved: frozenset[str]
) -> ConfigFinding:
    kind, value = detail["type"], detail["input"]
    context = detail.get("ctx", {})
    if kind in ("extra_forbidden", "missing"):
        *location, last = detail["loc"]
        path = _path(data, location)
        section = _annotation_at(model, data, path)
        if kind == "missing":
            return ConfigFinding(path, f"{last} is missing", _missing_hint(section, str(last)))
        valid = keys_of(section, reserved if section is model else frozenset()) if section else ()
        return ConfigFinding((*path, last), "unknown key", choices(str(last), valid, "keys"))
    path = _path(data, detail["loc"])
    if kind == "tidemill":
        return ConfigFinding(path, str(context["message"]), str(context["hint"]))
    if kind == "literal_error":
        valid = tuple(re.findall(r"'([^']*)'", str(context["expected"])))
        message = f"{_shown(value)} is not a valid {detail['loc'][-1]}"
        return ConfigFinding(path, message, choices(str(value), valid, "choices"))
    if kind == "union_tag_not_found" and isinstance(value, dict):
        return ConfigFinding(path, "kind is missing", f"add kind: {' | '.join(_kinds(model, data, path))}")
    if kind == "union_tag_invalid":
        valid = _kinds(model, data, path)
        tag = str(context["tag"])
        return ConfigFinding(
            (*path, "kind"), f"{_shown(tag)} is not a valid kind", choices(tag, valid, "choices")
        )
    if kind in _MESSAGES:
        words, hint = _MESSAGES[kind]
        return ConfigFinding(path, f"{_shown(value)} {words.format(**context)}", hint)
    reason = detail["msg"].removeprefix("Input ")
    return ConfigFinding(path, f"{_shown(value)} {reason}", "`tidemill init DIR` writes an example")


def _path(data: object, location: Sequence[str | int]) -> Path:
    """The part of pydantic's location that exists in the data: without tags, `[key]` and short forms."""
    path: Path = ()
    tag: object = None  # a tag comes before the keys of its section, and may be equal to one of them
    for key in location:
        if key == tag:
            tag = None
            continue
        match data:
            case dict() if key in data:
                data = data[key]
            case list() if isinstance(key, int) and key < len(data):
                data = data[key]
            case _:
                continue
        path = (*path, key)
        tag = data.get("kind") if isinstance(data, dict) else None
    return path


def _shown(value: object) -> str:
    """Scalars as they are, truncated; sections and lists by their type."""
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _missing_hint(section: type[BaseModel] | None, key: str) -> str:
    for name, info in section.model_fields.items() if section else ():
        if (info.alias or name) == key and get_origin(info.annotation) is Literal:
            return f"add {key}: {' | '.join(str(choice) for choice in get_args(info.annotation))}"
    return f"add {key}: …"


def _annotation_at(model: type[BaseModel], data: object, path: Path) -> type[BaseModel] | None:
    """The model of the section at `path`, following the annotations of `model`."""
    models = _models_at(model, data, path)
    return models[0] if models else None


def _kinds(model: type[BaseModel], data: object, path: Path) -> tuple[str, ...]:
    """What `kind` may be in the section at `path`."""
    return tuple(str(kind) for found in _models_at(model, data, path) for kind in _kinds_of(found))


def _models_at(model: type[BaseModel], data: object, path: Path) -> list[type[BaseModel]]:
    """The models that the section at `path` may have; of several, the one of its `kind` if that is known."""
    found: object = model
    for key in path:
        found = _inside(_plain(found, data), key)
        match data:  # the tag that `_path` found
            case dict():
                data = data.get(key)
            case list():
                data = data[int(key)]
    chosen = _plain(found, data)
    models = get_args(chosen) if get_origin(chosen) in (Union, UnionType) else (chosen,)
    return [one for one in models if isinstance(one, type) and issubclass(one, BaseModel)]


def _plain(annotation: object, value: object) -> object:
    """Without `Annotated` and `| None`; of several models, the one of the value's `kind`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain(get_args(annotation)[0], value)
    if origin is tuple and isinstance(value, dict):  # a single value in place of a list of one
        return _plain(get_args(annotation)[0], value)
    if origin in (Union, UnionType):
        arguments = [arg for arg in get_args(annotation) if arg is not type(None)]
        if len(arguments) == 1:
            return _plain(arguments[0], value)
        kind = value.get("kind") if isinstance(value, dict) else None
        return next((arg for arg in arguments if kind in _kinds_of(arg)), annotation)
    return annotation


def _kinds_of(model: object) -> tuple[object, ...]:
    if isinstance(model, type) and issubclass(model, BaseModel) and "kind" in model.model_fields:
        return get_args(model.model_fields["kind"].annotation)
    return ()


def _inside(annotation: object, key: str | int) -> object:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.items()
        return next((info.annotation for name, info in fields if (info.alias or name) == key), None)
    arguments = get_args(annotation)
    if isinstance(key, int):
        return arguments[0] if arguments else None
    return arguments[1] if len(arguments) == 2 else None
