"""Takes the spelling of a JSON number apart exactly: digits, exponent, sign.

Makes no floats and compiles nothing: searches that only read the index import it.
"""

from __future__ import annotations

from decimal import MAX_EMAX, Context, Decimal
from typing import Final

HUGE: Final = 10**18  # larger exponents are cut to it
_EXPONENT_DIGITS: Final = 18


def parts_of(text: str) -> tuple[str, int, bool]:
    """Significant digits, exponent, sign; zero is ("", 0, False). An exponent beyond HUGE is cut."""
    digits, exponent, negative = exact_parts_of(text)
    return digits, int(max(-HUGE, min(HUGE, exponent))), negative


def exact_parts_of(text: str) -> tuple[str, int | Decimal, bool]:
    mantissa, _, power = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = whole + fraction
    stripped = digits.rstrip("0")
    significant = stripped.lstrip("0")
    if not significant:
        return "", 0, False
    moved = len(digits) - len(stripped) - len(fraction)
    exponent: int | Decimal
    if len(power) <= _EXPONENT_DIGITS:
        exponent = int(power or 0) + moved
    else:  # not as an int: making one of a million digits takes a minute
        exact = Context(prec=len(power) + _EXPONENT_DIGITS, Emax=MAX_EMAX)
        exponent = exact.add(Decimal(power), Decimal(moved))
    return significant, exponent, mantissa[0] == "-"
