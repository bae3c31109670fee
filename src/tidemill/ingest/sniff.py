"""Recognises a file by its first bytes and its name, and checks that all of it can be read.

If name and content disagree it reports both and stops. Records are not checked: bad lines are left to the
gate.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Final

from tidemill.model.errors import InputError
from tidemill.model.slices import Codec, Format

HEAD_BYTES: Final = 256 * 1024  # holds a whole block of gzip and zstd
MAX_JSON_BYTES: Final = 1024 * 1024 * 1024  # a compressed JSON array is unpacked in memory as a whole
FORMAT_HINT: Final = f"say what it is with --format ({', '.join(Format)})"

_EXTENSIONS: Final = {
    ".ndjson": Format.NDJSON,
    ".jsonl": Format.NDJSON,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".feather": Format.ARROW,
    ".ipc": Format.ARROW,
}
_CODECS: Final = {".gz": Codec.GZIP, ".zst": Codec.ZSTD, ".zstd": Codec.ZSTD}
_CODEC_WORDS: Final = {Codec.NONE: "not compressed", Codec.GZIP: "gzip", Codec.ZSTD: "zstd"}
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ARROW_STREAM: Final = b"\xff\xff\xff\xff"
_OTHERS: Final = (
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"BZh", "bzip2", "compress it with gzip or zstd instead"),
    (b"\xfd7zXZ\x00", "xz", "compress it with gzip or zstd instead"),
    (b"\x04\x22\x4d\x18", "lz4", "compress it with gzip or zstd instead"),
    (b"Obj\x01", "Avro", "convert it to one of " + ", ".join(Format)),
    (b"ORC", "ORC", "convert it to one of " + ", ".join(Format)),
    (b"SQLite format 3", "a SQLite database", "export its rows to one of " + ", ".join(Format)),
    (b"\xff\xfe", "UTF-16 text", "convert it to UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "convert it to UTF-8"),
)
_COLUMNAR: Final = (Format.PARQUET, Format.ARROW)
_TEXT_CONTROLS: Final = b"\t\n\r\x0b\x0c\x1b"
_CONTROLS: Final = bytes(byte for byte in range(32) if byte not in _TEXT_CONTROLS)


def sniff(head: bytes, name: str, format: Format | None = None) -> tuple[Format, Codec]:
    """Format and codec of a file that starts with `head`; `format` is what the caller requires.

    InputError if name (or `format`) and content disagree, or if neither is enough.
    """
    claimed, claimed_codec = by_name(name)
    codec = _codec_of(head)
    if claimed_codec is not Codec.NONE and codec is not claimed_codec and head:
        raise InputError(
            f"its name says {_CODEC_WORDS[claimed_codec]}, its content is {_CODEC_WORDS[codec]}",
            where=name,
            hint="rename the file to what it is, or write it again",
        )
    inner = head if codec is Codec.NONE else _unpacked_head(head, codec, name)
    found = _content(inner, name)
    expected, why = (format, "--format") if format else (claimed, "its name")
    if not inner:
        return expected or Format.NDJSON, codec
    if found in _COLUMNAR and codec is not Codec.NONE:
        raise InputError(
            f"{found} inside {_CODEC_WORDS[codec]} cannot be read in steps",
            where=name,
            hint=f"unpack it first; {found} is compressed inside",
        )
    if expected is None:
        return found or _by_text(inner, name), codec
    if (found in _COLUMNAR or expected in _COLUMNAR) and found is not expected:
        raise InputError(
            f"{why} says {expected}, its content is {found or 'text'}", where=name, hint=FORMAT_HINT
        )
    if format is None and expected is Format.JSON and _is_ndjson(inner):
        return Format.NDJSON, codec
    return expected, codec


def by_name(name: str) -> tuple[Format | None, Codec]:
    """The format and codec by extension: `a.json.gz` is JSON in gzip; None if there is none."""
    path = PurePosixPath(name.lower())
    codec = _CODECS.get(path.suffix, Codec.NONE)
    if codec is not Codec.NONE:
        path = path.with_suffix("")
    return _EXTENSIONS.get(path.suffix), codec


def check_whole(path: Path, format: Format, codec: Codec, name: str) -> int:
    """Read as much of a file as needed to know that it is not cut off; the bytes of content in it.

    A compressed file is unpacked to its end, a columnar one must have its footer or its last message.
    """
    if codec is not Codec.NONE:
        return _unpacked_size(path, format, codec, name)
    size = path.stat().st_size
    if size and format in _COLUMNAR:
        _check_columnar(path, format, name)
    return size


def _codec_of(head: bytes) -> Codec:
    if head.startswith(_GZIP):
        return Codec.GZIP
    if head.startswith(_ZSTD) or (head[1:4] == b"\x2a\x4d\x18" and head[:1] and 0x50 <= head[0] <= 0x5F):
        return Codec.ZSTD
    return Codec.NONE


def _content(head: bytes, name: str) -> Format | None:
    """The columnar format of the content, None for text; anything else is refused."""
    if head.startswith(b"PAR1"):
        return Format.PARQUET
    if head.startswith((b"ARROW1", _ARROW_STREAM)):
        return Format.ARROW
    for magic, what, remedy in _OTHERS:
        if head.startswith(magic):
            raise InputError(f"its content is {what}", where=name, hint=remedy)
    if _looks_binary(head):
        raise InputError(
            "its content is binary, in none of the formats that can be read",
            where=name,
            hint=f"formats: {', '.join(Format)}, text ones also in gzip or zstd",
        )
    return None


def _looks_binary(head: bytes) -> bool:
    """Whether more than a quarter is neither text nor UTF-8. Single bad bytes are left to the gate."""
    if not head:
        return False
    controls = len(head) - len(head.translate(None, _CONTROLS))
    broken = head.decode("utf-8", "replace").count("\ufffd")
    return (controls + broken) * 4 > len(head)


def _by_text(head: bytes, name: str) -> Format:
    text = _strip(head)
    if text.startswith(b"["):
        return Format.JSON
    if text.startswith(b"{"):
        return Format.NDJSON if _is_ndjson(head) or b"\n" not in text else Format.JSON
    raise InputError("neither its name nor its content says what it is", where=name, hint=FORMAT_HINT)


def _is_ndjson(head: bytes) -> bool:
    """Whether it is objects, one a line: one of the first lines is a whole object that begins at the
    margin."""
    text = _strip(head)
    if not text.startswith(b"{"):
        return False
    lines = text.split(b"\n", 16)
    if len(lines) == 1:
        return True  # one line, complete or longer than the head: the same as NDJSON
    return any(line.startswith(b"{") and _is_object(line) for line in lines[:16])


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _strip(head: bytes) -> bytes:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()


def _unpacked_head(head: bytes, codec: Codec, name: str) -> bytes:
    """The first bytes of the content. A cut head has no readable end, so less and less is requested."""
    import pyarrow as pa

    ask = HEAD_BYTES // 4
    while ask:
        try:
            with pa.CompressedInputStream(pa.BufferReader(head), _arrow_codec(codec)) as stream:
                return bytes(stream.read(ask))
        except OSError:
            ask //= 4
    raise InputError(
        f"cannot be unpacked: {_CODEC_WORDS[codec]} is damaged or cut off",
        where=name,
        hint="fetch or write it again",
    )


def _unpacked_size(path: Path, format: Format, codec: Codec, name: str) -> int:
    import pyarrow as pa

    total = 0
    try:
        with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, _arrow_codec(codec)) as stream:
            while piece := stream.read(1024 * 1024):
                total += len(piece)
                if format is Format.JSON and total > MAX_JSON_BYTES:
                    raise InputError(
                        f"unpacks to a JSON array of more than {MAX_JSON_BYTES >> 30} GiB",
                        where=name,
                        hint="write it as NDJSON (one object a line), which is read in steps",
                    )
    except OSError as error:
        raise InputError(
            f"cannot be unpacked after {total} bytes of content: {error}",
            where=name,
            hint="it is damaged or cut off: fetch or write it again",
        ) from error
    return total


def _check_columnar(path: Path, format: Format, name: str) -> None:
    import pyarrow as pa
    import pyarrow.ipc as ipc

    try:
        if format is Format.PARQUET:
            import pyarrow.parquet as pq

            pq.read_metadata(path)
            return
        with pa.memory_map(str(path)) as source:
            if source.read(6) == b"ARROW1":
                source.seek(0)
                with ipc.open_file(source) as file:
                    if file.num_record_batches:
                        file.get_batch(file.num_record_batches - 1)
                return
            source.seek(0)
            with ipc.open_stream(source) as stream:
                for _ in stream:
                    pass
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"is not a whole {format} file: {str(error).splitlines()[0]}",
            where=name,
            hint="it is damaged or cut off: fetch or write it again",
        ) from error


def _arrow_codec(codec: Codec) -> str:
    return "gzip" if codec is Codec.GZIP else "zstd"
