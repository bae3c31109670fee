"""Reading what a part says of itself. Each format is a frozen dataclass beside the code that writes its
parts, with `to_footer` and `from_footer`; here is what those need to read JSON with care.

A key that older versions did not write is read with the default that its format names. A footer without a
key that every version wrote is damaged, or was written by a version that is not known here.
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
    """What is said under a key, or as one of several items there, as an object of JSON."""
    if not isinstance(value, dict):
        raise invalid_footer(key)
    return value


def invalid_footer(key: str) -> StorageError:
    return StorageError(
        f"the footer of a part has no valid {key!r}",
        hint="the part is damaged, or was written by a version that this one does not know: restore it from "
        "a copy of the warehouse",
    )
