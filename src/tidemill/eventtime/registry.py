"""Event-time types by name: each turns the value of a column into UTC microseconds.

A parser never guesses a unit and never uses a float; for a value that it cannot read it raises ValueError
with a reason, which rejects that record and does not stop the pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_FLOOR, Context, Decimal
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from operator import index
from typing import Final, Literal

from tidemill.model.errors import InputError
from tidemill.model.time import INSTANT_HINT, MAX_INSTANT, MIN_INSTANT, has_offset, parse_instant
from tidemill.model.zones import instant_of_wall, zone_named

Parser = Callable[[object], int]
"""A JSON value (int, Decimal for other numbers, str, bool, None …) to UTC microseconds."""

ENTRY_POINTS: Final = "tidemill.eventtime"

# Wide enough for every instant to 1e-40 s, and rounding down, so that cutting a longer number here
# and flooring it to a microsecond afterwards give the same as flooring the exact value.
_EXACT: Final = Context(prec=60, rounding=ROUND_FLOOR, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
_NAIVE_HINT: Final = "end it with Z or +02:00, or declare event_time.timezone"
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")


def _in_range(us: int) -> int:
    if not MIN_INSTANT <= us < MAX_INSTANT:
        raise ValueError("the time is outside the years 1 to 9999")
    return us


def _kind(value: object) -> str:
    """Return the JSON name of the type of `value`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return "a number" if isinstance(value, int | Decimal) else f"a {type(value).__name__}"


def _floor(number: Decimal, exponent: int) -> int:
    """`number * 10**exponent` microseconds, floored; refused before a huge integer is made of it."""
    if not number.is_finite():
        raise ValueError(f"{number} is not a time")
    if number and number.adjusted() + exponent > 20:
        raise ValueError("the time is outside the years 1 to 9999")
    scaled = _EXACT.scaleb(number, exponent)
    return int(scaled.to_integral_value(ROUND_FLOOR, _EXACT))


def _unix(exponent: int) -> Parser:
    """Return a parser of numbers whose unit is `10**exponent` microseconds."""

    def parse(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            factor = 10 ** abs(exponent)
            return _in_range(value * factor if exponent >= 0 else value // factor)
        if isinstance(value, Decimal):
            return _in_range(_floor(value, exponent))
        if isinstance(value, str):
            if not _NUMBER.fullmatch(value):
                raise ValueError(f"{value[:40]!r} is not a number")
            return _in_range(_floor(Decimal(value), exponent))
        raise ValueError(f"a Unix timestamp is a number or a string of digits, not {_kind(value)}")

    return parse


@cache
def iso8601_in(zone: str | None) -> Parser:
    """A parser of ISO 8601 times; those without an offset are local times in `zone`. None: those are
    ambiguous and refused."""
    where = None if zone is None else zone_named(zone)

    def parse(value: object) -> int:
        if not isinstance(value, str):
            raise ValueError(f"an ISO 8601 time is a string, not {_kind(value)}")
        try:
            found = parse_instant(value)
        except InputError:
            raise ValueError(f"{value[:40]!r} is not an ISO 8601 time; {INSTANT_HINT}") from None
        if has_offset(value):
            return _in_range(found)
        if where is None:
            raise ValueError(f"{value[:40]!r} does not say its offset from UTC; {_NAIVE_HINT}")
        instant = instant_of_wall(where, found)
        if instant is None:
            raise ValueError(f"no clock in {zone} showed {value[:40]!r}: it was put forward over it")
        return _in_range(instant)

    return parse


_parsers: Final[dict[str, Parser]] = {
    "unixtimestamp_s": _unix(6),
    "unixtimestamp_ms": _unix(3),
    "unixtimestamp_us": _unix(0),
    "unixtimestamp_ns": _unix(-3),
    "iso8601": iso8601_in(None),
}
_BUILT_IN: Final = frozenset(_parsers)


def register(name: str, parser: Parser) -> None:
    """Add a type to this process. A name that another parser has is refused, not replaced.

    Spark's Python workers are other processes: a type that is used there comes from an entry point
    of the group `tidemill.eventtime`, in a package that is installed wherever Spark runs.
    """
    if _parsers.setdefault(name, parser) is not parser:
        raise InputError(
            f"event-time type {name!r} is registered already",
            hint=f"choose a name other than {', '.join(sorted(_parsers))}",
        )


def resolve(name: str) -> Parser:
    """Return the parser of a type, from an entry point if no registered type has the name."""
    if name not in _parsers:
        found = {point for point in entry_points(group=ENTRY_POINTS) if point.name == name}
        if not found:
            raise InputError(
                f"there is no event-time type {name!r}", hint=f"types: {', '.join(registered())}"
            )
        if len(found) > 1:
            raise InputError(
                f"event-time type {name!r} is provided more than once",
                hint=f"uninstall all but one of {', '.join(sorted(p.value for p in found))}",
            )
        register(name, _load(found.pop()))
    return _parsers[name]


def registered() -> tuple[str, ...]:
    """Return the names of every type that `resolve` knows, including those of installed packages."""
    return tuple(sorted({*_parsers, *(point.name for point in entry_points(group=ENTRY_POINTS))}))


class Registered(Collection[str]):
    """The same names, looked up when they are used. A built-in type is found without reading installed
    packages."""

    def __contains__(self, name: object) -> bool:
        return name in _parsers or name in registered()

    def __iter__(self) -> Iterator[str]:
        return iter(registered())

    def __len__(self) -> int:
        return len(registered())


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a type comes from."""

    kind: Literal["built_in", "entry_point", "registered"]
    provided_by: str | None = None  # of an entry point: the function, and the package that brings it


def origin(name: str) -> Origin:
    """Return where a registered type comes from, without loading it. Raises InputError for an unknown
    type."""
    if name in _BUILT_IN:
        return Origin("built_in")
    found = sorted({_described(point) for point in entry_points(group=ENTRY_POINTS) if point.name == name})
    if found:
        return Origin("entry_point", ", ".join(found))
    resolve(name)
    return Origin("registered")


def fault_of(name: str) -> str | None:
    """Return why a registered type cannot be used; None if it can. It loads a third party's parser."""
    try:
        resolve(name)
    except InputError as error:
        return error.message
    return None


def read_time(parser: Parser, value: object) -> int:
    """`value` as UTC microseconds. A parser may be third-party code: whatever it raises, and whatever it
    returns that is not an integer, becomes a ValueError for this value."""
    try:
        found: object = parser(value)
    except (ValueError, ArithmeticError) as error:
        raise ValueError(str(error)) from error
    except Exception as error:
        raise ValueError(f"the parser failed with {type(error).__name__}: {error}") from error
    if isinstance(found, bool):
        raise ValueError(f"the parser returned {found}, not whole microseconds")
    try:
        return index(found)  # type: ignore[arg-type]
    except TypeError:
        shown = repr(found)[:40]
        raise ValueError(f"the parser returned {shown}, not whole microseconds") from None


def _described(point: EntryPoint) -> str:
    package = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"{point.value}{package}"


def _reason(error: Exception) -> str:
    text = str(error) or "no reason given"
    return text if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {text}"


def _load(point: EntryPoint) -> Parser:
    try:
        parser = point.load()
    except Exception as error:  # a module may raise anything while it is imported
        raise InputError(
            f"event-time type {point.name!r} cannot be loaded from {point.value}: {_reason(error)}",
            hint="repair or uninstall the package that provides it",
        ) from error
    if not callable(parser):
        raise InputError(
            f"event-time type {point.name!r}: {point.value} is not a function",
            hint="the entry point names a function of one value that returns UTC microseconds",
        )
    loaded: Parser = parser
    return loaded
