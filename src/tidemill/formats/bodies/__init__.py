"""Bodies of requests: bytes in, records ready to be made durable out. Pure: no sockets, no files."""

from tidemill.formats.bodies.decompress import ENCODINGS, decompressed
from tidemill.formats.bodies.media_types import MEDIA_TYPES, read_body, warm

__all__ = ["ENCODINGS", "MEDIA_TYPES", "decompressed", "read_body", "warm"]
