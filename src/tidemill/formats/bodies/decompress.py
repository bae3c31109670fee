"""Decompresses bodies of requests, up to a limit; nothing beyond the limit is unpacked."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from tidemill.model.errors import InputError, MediaTypeError, TooLargeError

ENCODINGS: Final = ("gzip", "zstd", "identity")
_ALIASES: Final = {"": "identity", "x-gzip": "gzip"}
_PIECE: Final = 1 << 18
_GZIP: Final = b"\x1f\x8b"  # needed because Arrow would accept zlib's format as gzip too


def decompressed(content: bytes, encoding: str | None, limit: int) -> bytes:
    """The body without its Content-Encoding. Several gzip members or zstd frames are one body."""
    name = (encoding or "").strip().lower()
    name = _ALIASES.get(name, name)
    if name not in ENCODINGS:
        raise MediaTypeError(
            f"a body in the encoding {encoding!r} is not supported",
            where="Content-Encoding",
            hint=f"use one of {', '.join(ENCODINGS)}; only one at a time",
        )
    if name == "identity":
        check_size(content, limit)
        return content
    if not content or (name == "gzip" and not content.startswith(_GZIP)):
        raise _damaged(name, 0, "it does not begin as it should")
    return _unpacked(content, name, limit)


def check_size(content: bytes, limit: int) -> None:
    if len(content) > limit:
        raise _too_large(limit)


def _unpacked(content: bytes, name: str, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(content), name) as stream:
            while piece := stream.read(min(_PIECE, limit + 1 - size)):
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
                pieces.append(piece)
    except OSError as error:
        raise _damaged(name, size, str(error)) from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(
        f"the body is more than {limit} bytes, or unpacks to more",
        where="body",
        hint="send fewer events in a request, or allow more with gateway.requests.body",
    )


def _damaged(name: str, size: int, why: str) -> InputError:
    return InputError(
        f"the body cannot be unpacked from {name} after {size} bytes of content: {why}",
        where="body",
        hint="it is damaged or cut off: send it again",
    )
