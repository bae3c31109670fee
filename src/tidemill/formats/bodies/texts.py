"""Whether the bytes of a body can be UTF-8 at all, and where in them something stands, for people.

Single bytes that are not UTF-8 are let through where a record can be told from its neighbours.
"""

from __future__ import annotations

import codecs

from tidemill.model.errors import InputError


def utf8_text(content: bytes) -> bytes:
    """The text without a byte order mark; InputError when it is in UTF-16 or UTF-32."""
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
