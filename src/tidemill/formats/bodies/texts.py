"""Checks the encoding of a body, and describes positions in it.

Single bytes that are not UTF-8 are let through as long as records can be separated; the gate rejects their
record.
"""

from __future__ import annotations

import codecs

from tidemill.model.errors import InputError


def utf8_text(content: bytes) -> bytes:
    """The text without a byte order mark; InputError if it is UTF-16 or UTF-32."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content[:2]:
        raise InputError(
            "the body is in UTF-16 or UTF-32", where="body", hint="send it in UTF-8, which is what JSON is in"
        )
    return content.removeprefix(codecs.BOM_UTF8)


def position_of(content: bytes, position: int) -> str:
    """`line 3 column 7`, from 1, counting characters."""
    before = content[:position]
    column = before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")
    return f"line {before.count(10) + 1} column {len(column) + 1}"
