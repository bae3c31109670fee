"""Encrypts cursors and offsets for tenants: they contain numbers that count what belongs to others.

SIV with HMAC-SHA256, as the MAC and as the stream, so that the standard library is enough. Texts that were
changed, or sealed for another tenant, are refused. The key is in the warehouse: all its servers have the
same.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from hashlib import sha256
from pathlib import Path
from typing import Final

from tidemill.model.errors import InputError
from tidemill.server.access.token_file import changing
from tidemill.storage import layout
from tidemill.storage.files import atomic_write, storage_errors

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
PADDED: Final = 32  # bytes: otherwise the length of a text would show the size of a number in it


class Seals:
    """Seals and opens. The key is made when it is first needed. Thread-safe."""

    def __init__(self, warehouse: Path) -> None:
        self._path = layout.seal_key(warehouse)
        self._keys: tuple[bytes, bytes] | None = None

    def seal(self, text: str, tenant: str) -> str:
        plain = text.encode()
        plain += b"\0" * (-len(plain) % PADDED)
        tag = self._tag(plain, tenant)
        return base64.urlsafe_b64encode(tag + self._mixed(plain, tag)).decode().rstrip("=")

    def open(self, sealed: str, tenant: str) -> str:
        """The text that was sealed for this tenant; InputError if it is not one of ours."""
        try:
            whole = base64.urlsafe_b64decode(sealed.encode("ascii") + b"=" * (-len(sealed) % 4))
        except (UnicodeError, binascii.Error):
            whole = b""
        tag, mixed = whole[:TAG_BYTES], whole[TAG_BYTES:]
        plain = self._mixed(mixed, tag)
        if len(tag) < TAG_BYTES or not hmac.compare_digest(tag, self._tag(plain, tenant)):
            raise InputError(
                "this cursor is not from an answer to this tenant",
                hint="leave it out to begin with the first, or use one of an earlier answer as it is",
            )
        return plain.rstrip(b"\0").decode()

    def _tag(self, plain: bytes, tenant: str) -> bytes:
        name = tenant.encode()
        text = len(name).to_bytes(4, "big") + name + plain
        return hmac.digest(self._both()[0], text, "sha256")[:TAG_BYTES]

    def _mixed(self, text: bytes, tag: bytes) -> bytes:
        """XOR with the key stream of the tag; applied twice, it gives the text."""
        key = self._both()[1]
        blocks = range(-(-len(text) // sha256().digest_size))
        stream = b"".join(hmac.digest(key, tag + block.to_bytes(4, "big"), "sha256") for block in blocks)
        return bytes(one ^ other for one, other in zip(text, stream, strict=False))

    def _both(self) -> tuple[bytes, bytes]:
        """The key for tags, and the key for streams."""
        if self._keys is None:
            key = self._read() or self._made()
            self._keys = hmac.digest(key, b"tag", "sha256"), hmac.digest(key, b"stream", "sha256")
        return self._keys

    def _read(self) -> bytes | None:
        """The key; None if there is none yet, or a process died while it made one."""
        with storage_errors("read", self._path):
            try:
                found = self._path.read_bytes()
            except FileNotFoundError:
                return None
        return found if len(found) == KEY_BYTES else None

    def _made(self) -> bytes:
        with changing(self._path):
            if (found := self._read()) is not None:  # another process was faster
                return found
            key = secrets.token_bytes(KEY_BYTES)
            atomic_write(self._path, key, mode=0o600)
            return key
