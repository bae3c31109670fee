"""Text that somebody else wrote, as it can be put on a terminal. It never changes what is printable."""

from __future__ import annotations


def shown(text: str, *, lines: bool = False) -> str:
    """`text` as it can be put on a terminal: what is not printable is written as an escape."""
    if text.isprintable():
        return text
    kept = "\n" if lines else ""
    return "".join(
        char
        if char.isprintable() or char in kept
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )
