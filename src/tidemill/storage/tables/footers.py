"""Reads JSON footers of parts with care. Each format is a frozen dataclass beside the code that writes its
parts, with `to_footer` and `from_footer`; here is what they share.

A key that earlier versions did not write gets the default of its format. A footer without a key that every
version wrote is damaged, or was written by an unknown version.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.model.errors import StorageError

Footer = Mapping[str, object]


def number_in(footer: Footer, key: str, default: int | None = None) -> int:
    value = footer.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid_footer(key)
    return value


def optional_number_in(footer: Footer, key: str) -> int | None:
    return None if footer.get(key) is None else number_in(footer, key)


def text_in(footer: Footer, key: str, default: str | None = None) -> str:
    value = footer.get(key, default)
    if not isinstance(value, str):
        raise invalid_footer(key)
    return value


def texts_in(footer: Footer, key: str) -> tuple[str, ...]:
    return tuple(map(str, items_in(footer, key)))


def items_in(footer: Footer, key: str) -> list[object]:
    value = footer.get(key)
    if not isinstance(value, list):
        raise invalid_footer(key)
    return value


def fields_in(footer: Footer, key: str) -> dict[str, object]:
    return as_fields(footer.get(key), key)


def as_fields(value: object, key: str) -> dict[str, object]:
    """The value of a key, or one of several items there, as a JSON object."""
    if not isinstance(value, dict):
        raise invalid_footer(key)
    return value


def invalid_footer(key: str) -> StorageError:
    return StorageError(
        f"the footer of a part has no valid {key!r}",
        hint="the part is damaged, or was written by a version that this one does not know: restore it from "
        "a copy of the warehouse",
    )
