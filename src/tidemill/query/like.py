"""LIKE patterns in the one form that every engine reads in the same way. Never matches anything itself."""

from __future__ import annotations

import re


def plain_pattern(pattern: str) -> str:
    """The same pattern with backslashes only where they are needed: engines differ on the others."""
    return re.sub(
        r"\\(.)", lambda found: found[0] if found[1] in "%_\\" else found[1], pattern, flags=re.DOTALL
    )
