"""How many bytes a columnar file takes when it is unpacked, by the header of each compressed piece, which is
what readers allocate memory by. Nothing is unpacked.

Other places of a file state sizes too, but a sender can write anything there; they are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import unpack_from
from typing import Final

from tidemill.model.errors import InputError

_MOST: Final = 50_000  # pieces that are looked at; no honest body has more
_FOOTER: Final = 1 << 20  # bytes of a footer at most: it is read byte by byte
_CONTINUED: Final = 0xFFFFFFFF
_LEGACY: Final = b"ARROW:experimental_compression"  # how older files declare compression
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


@dataclass(frozen=True, slots=True)
class ParquetSizes:
    """The sizes in the footer of a Parquet file. Read without pyarrow, which can crash the process when asked
    about a damaged footer."""

    rows: int
    columns: int  # the columns of each row group, added up
    groups: int
    chunks: tuple[tuple[int, int], ...]  # start and end of the column chunks of groups with rows


def parquet_sizes(content: bytes) -> ParquetSizes:
    (length,) = unpack_from("<I", content, len(content) - 8)
    start = len(content) - 8 - length
    if start < 4 or not content.endswith(b"PAR1"):
        raise ValueError("it has no footer")
    if length > _FOOTER:
        raise InputError(
            f"the footer of the file is longer than {_FOOTER} bytes",
            where="body",
            hint="write fewer columns, and larger row groups",
        )
    footer, _ = _thrift_struct(content, start)
    groups = [group for group in _list(footer, 4) if isinstance(group, dict)]
    columns = sum(len(_list(group, 1)) for group in groups)
    chunks = [_chunk(column) for group in groups if _int(group, 3) for column in _list(group, 1)]
    return ParquetSizes(_int(footer, 3), columns, len(groups), tuple(chunks))


def _chunk(column: Thrift) -> tuple[int, int]:
    metadata = column.get(3) if isinstance(column, dict) else None
    if not isinstance(metadata, dict):
        raise ValueError("a column is missing from the metadata")
    start = _int(metadata, 9)
    if 11 in metadata and 0 < _int(metadata, 11) < start:
        start = _int(metadata, 11)
    return start, start + _int(metadata, 7)


def parquet_size(content: bytes, sizes: ParquetSizes) -> int:
    """The size of all pages of all columns, by their headers; a value without bytes counts as one."""
    size = pages = 0
    for start, end in sizes.chunks:
        while start < end:
            header, at = _thrift_struct(content, start)
            start = at + _int(header, 3)
            size += max(_int(header, 2), _values(header, 5), _values(header, 8))
            pages += 1
            if pages > _MOST:
                raise _too_many("pages")
    return size


Thrift = int | list["Thrift"] | dict[int, "Thrift"] | None


def _list(header: dict[int, Thrift], field: int) -> list[Thrift]:
    value = header.get(field)
    if not isinstance(value, list):
        raise ValueError("the footer is damaged")
    return value


def _values(header: dict[int, Thrift], kind: int) -> int:
    inner = header.get(kind)
    return _int(inner, 1) if isinstance(inner, dict) else 0


def _int(header: dict[int, Thrift], field: int) -> int:
    value = header.get(field)
    if not isinstance(value, int) or value < 0:
        raise ValueError("the header of a page, or the footer, is damaged")
    return value


def _thrift_struct(content: bytes, at: int) -> tuple[dict[int, Thrift], int]:
    """The fields of a struct in Thrift's compact protocol by number, and the position behind it."""
    fields: dict[int, Thrift] = {}
    number = 0
    while kind := content[at] & 0x0F:
        step = content[at] >> 4
        at += 1
        if step:
            number += step
        else:
            number, at = _varint(content, at)
            number = (number >> 1) ^ -(number & 1)
        if number in fields:  # readers differ on which one counts
            raise ValueError("a field is repeated in a header or the footer")
        fields[number], at = _thrift_value(content, at, kind)
    return fields, at + 1


def _thrift_value(content: bytes, at: int, kind: int) -> tuple[Thrift, int]:
    if kind in (1, 2):
        return 2 - kind, at
    if kind == 3:
        return content[at], at + 1
    if kind in (4, 5, 6):
        value, at = _varint(content, at)
        return (value >> 1) ^ -(value & 1), at
    if kind == 7:
        return None, at + 8
    if kind == 8:
        length, at = _varint(content, at)
        return None, at + length
    if kind in (9, 10):
        return _thrift_list(content, at)
    if kind == 12:
        return _thrift_struct(content, at)
    raise ValueError("a header or the footer has an invalid value")


def _thrift_list(content: bytes, at: int) -> tuple[Thrift, int]:
    length, kind = content[at] >> 4, content[at] & 0x0F
    at += 1
    if length == 15:
        length, at = _varint(content, at)
    values: list[Thrift] = []
    for _ in range(length):
        if kind in (1, 2):  # in a list, a boolean takes a byte
            value: Thrift = content[at]
            at += 1
        else:
            value, at = _thrift_value(content, at, kind)
        values.append(value)
    return values, at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number in a header or the footer has no end")


@dataclass(frozen=True, slots=True)
class _Message:
    metadata: bytes  # a flatbuffer
    body: int  # where its data begins


def arrow_size(content: bytes, in_file: bool) -> int:
    """The size of all compressed buffers, by the length in front of each. Buffers that are not compressed are
    used in place and take no memory."""
    size = looked_at = 0
    for number, message in enumerate(_in_file(content) if in_file else _in_stream(content)):
        for start, length in _compressed(message):
            if length >= 8:
                (plain,) = unpack_from("<q", content, start)
                size += max(plain, 0)  # -1: stored uncompressed
            looked_at += 1
            if looked_at > _MOST:
                raise _too_many("buffers")
        if number > _MOST:
            raise _too_many("messages")
    return size


def _in_stream(content: bytes) -> Iterator[_Message]:
    at = 0
    while at + 4 <= len(content):
        metadata, body = _metadata(content, at)
        if not metadata:
            return
        yield _Message(metadata, body)
        length = _Table.root(metadata).integer(3, "<q")
        if length < 0:
            raise ValueError("a message has a negative length")
        at = body + length


def _in_file(content: bytes) -> Iterator[_Message]:
    (length,) = unpack_from("<i", content, len(content) - 10)
    footer = _Table.root(content[len(content) - 10 - length : len(content) - 10])
    for field in (2, 3):  # dictionaries, record batches
        for at in footer.vector(field, 24):
            start, size = unpack_from("<qi", footer.data, at)
            metadata, _ = _metadata(content, start)
            yield _Message(metadata, start + size)


def _metadata(content: bytes, at: int) -> tuple[bytes, int]:
    """The flatbuffer of a message, empty at the end, and the position behind it."""
    (size,) = unpack_from("<I", content, at)
    at += 4
    if size == _CONTINUED:
        (size,) = unpack_from("<I", content, at)
        at += 4
    return content[at : at + size], at + size


def _compressed(message: _Message) -> Iterator[tuple[int, int]]:
    """Positions and lengths of the buffers of a message, if they are compressed."""
    root = _Table.root(message.metadata)
    kind, batch = root.integer(1, "<B"), root.table(2)
    if kind == _DICTIONARY_BATCH and batch is not None:
        batch = batch.table(1)
    elif kind != _RECORD_BATCH:
        return
    if batch is None or (batch.table(3) is None and _LEGACY not in message.metadata):
        return
    for at in batch.vector(2, 16):
        start, length = unpack_from("<qq", batch.data, at)
        yield message.body + start, length


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a flatbuffer; fields are addressed by their number in the schema."""

    data: bytes
    at: int

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, unpack_from("<I", data, 0)[0])

    def _field(self, position: int) -> int:
        """The position of a field; 0 if it is left out."""
        fields = self.at - unpack_from("<i", self.data, self.at)[0]
        offset = 4 + 2 * position
        if offset >= unpack_from("<H", self.data, fields)[0]:
            return 0
        found: int = unpack_from("<H", self.data, fields + offset)[0]
        return self.at + found if found else 0

    def _pointed(self, position: int) -> int:
        at = self._field(position)
        return at + int(unpack_from("<I", self.data, at)[0]) if at else 0

    def integer(self, position: int, layout: str) -> int:
        at = self._field(position)
        return int(unpack_from(layout, self.data, at)[0]) if at else 0

    def table(self, position: int) -> _Table | None:
        at = self._pointed(position)
        return _Table(self.data, at) if at else None

    def vector(self, position: int, width: int) -> range:
        """The positions of the elements."""
        at = self._pointed(position)
        length = int(unpack_from("<I", self.data, at)[0]) if at else 0
        return range(at + 4, at + 4 + length * width, width)


def _too_many(what: str) -> InputError:
    return InputError(
        f"the file has more than {_MOST} {what}",
        where="body",
        hint="write larger row groups, pages or record batches",
    )
