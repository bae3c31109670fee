"""The bytes of a log: the head of a segment, and frames that hold a submission or the close of a window.

Pure: no files, no clock. A frame whose checksums do not match is not a frame.

A segment begins with a head, which is durable before the first frame is written. A frame is a header and its
content; each has a checksum of its own, so a header can be trusted if the content is damaged. Every frame
begins with the mark of its segment, random bytes that no sender knows: content cannot pass for a frame, and
after damage a reader finds the next frame by the mark. A header also records where the group it was written
with began: everything before that was durable by then.

Version 1 had one checksum for both, and none in its header. It is read, but no longer written.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final
from zlib import crc32

from tidemill.model.gateway import Entry, Submission, WindowOutput, WindowStats
from tidemill.model.slices import Format
from tidemill.model.time import Interval

VERSION: Final = 2  # that is written
_MAGICS: Final = {version: b"TMWAL\x00\x00" + bytes([version]) for version in (1, VERSION)}
MARK_BYTES: Final = 8
MAX_CARRIED: Final = (1 << 32) - 1

_HEAD: Final = struct.Struct("<8sQQQ8s")  # magic, number, first lsn, bytes of the segment before, mark
_OPENINGS: Final = {
    1: struct.Struct("<8sI"),  # mark, checksum of all
    VERSION: struct.Struct("<8sII"),  # mark, checksum of the header, checksum of what is carried
}
_FACTS: Final = struct.Struct("<BIQQq")  # kind, bytes carried, start of the group, lsn, arrival
_ENTRY: Final = struct.Struct(
    "<BIIIIi"
)  # format; records, unnamed; bytes of stream, source, tenant (-1: none)
_BOUNDS: Final = struct.Struct("<qq")  # what a bounded entry opens with: start, end
_RUNS: Final = struct.Struct("<II")  # bytes of the window as JSON, number of runs
_RUN: Final = struct.Struct("<QI")  # first lsn, how many
_CRC: Final = struct.Struct("<I")

HEAD_BYTES: Final = _HEAD.size + _CRC.size
_MARK_AT: Final = _HEAD.size - MARK_BYTES
_HEADER_BYTES: Final = {version: opening.size + _FACTS.size for version, opening in _OPENINGS.items()}
FRAME_BYTES: Final = _HEADER_BYTES[VERSION]  # of a header that is written

# On disk: a number, once used, stays with its format.
_NUMBERS: Final = {Format.NDJSON: 1, Format.JSON: 2, Format.CSV: 3, Format.PARQUET: 4, Format.ARROW: 5}
_FORMATS: Final = {number: format_ for format_, number in _NUMBERS.items()}


class Kind(IntEnum):
    ENTRY = 1
    CLOSE = 2
    BOUNDED = 3  # an entry with declared bounds


_KINDS: Final = frozenset(Kind)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a segment."""

    number: int
    first: int  # the lsn of its first entry
    before: int  # bytes of the previous segment, which was full; 0: there was none
    mark: bytes
    version: int = VERSION

    @property
    def header_bytes(self) -> int:
        """Of each frame."""
        return _HEADER_BYTES[self.version]

    def packed(self) -> bytes:
        text = _HEAD.pack(_MAGICS[self.version], self.number, self.first, self.before, self.mark)
        return text + _CRC.pack(crc32(text))


def head_of(text: bytes) -> Head | None:
    """The head; None if it is not whole."""
    if len(text) != HEAD_BYTES or crc32(text[: _HEAD.size]) != _CRC.unpack_from(text, _HEAD.size)[0]:
        return None
    magic, number, first, before, mark = _HEAD.unpack_from(text)
    for version, known in _MAGICS.items():
        if magic == known:
            return Head(number, first, before, mark, version)
    return None


def possible_heads(text: bytes, number: int) -> list[Head]:
    """What the head of a damaged segment may have been, from its first bytes: the mark is in the head and
    again in the first frame, and one of the two may be intact. Where its entries start is not known."""
    marks = dict.fromkeys(text[at : at + MARK_BYTES] for at in (_MARK_AT, HEAD_BYTES))
    return [
        Head(number, 0, 0, mark, version)
        for mark in marks
        if len(mark) == MARK_BYTES and any(mark)
        for version in (VERSION, 1)
    ]


# -- writing


@dataclass(frozen=True, slots=True)
class Carried:
    """The content of a frame, with the part of its checksum that needs neither lsn nor position."""

    kind: Kind
    parts: tuple[bytes, ...]
    size: int
    crc: int


def _carried(kind: Kind, *parts: bytes) -> Carried:
    size = crc = 0
    for part in parts:
        size += len(part)
        crc = crc32(part, crc)
    assert size <= MAX_CARRIED, size
    return Carried(kind, parts, size, crc)


@lru_cache(maxsize=1024)
def _spelled(stream: str, source: str, tenant: str | None) -> tuple[int, int, int, bytes]:
    names = stream.encode(), source.encode(), b"" if tenant is None else tenant.encode()
    return len(names[0]), len(names[1]), -1 if tenant is None else len(names[2]), b"".join(names)


def carried_entry(submission: Submission) -> Carried:
    """Takes one pass over the content, which is not copied."""
    stream, source, tenant, names = _spelled(submission.stream, submission.source, submission.tenant)
    offsets = submission.unnamed
    facts = _ENTRY.pack(_NUMBERS[submission.format], submission.records, len(offsets), stream, source, tenant)
    listed = struct.pack(f"<{len(offsets)}I", *offsets) if offsets else b""
    if submission.declared is None:
        return _carried(Kind.ENTRY, facts + names + listed, submission.content)
    bounds = _BOUNDS.pack(submission.declared.start, submission.declared.end)
    return _carried(Kind.BOUNDED, bounds + facts + names + listed, submission.content)


def carried_close(output: WindowOutput, lsns: Sequence[int]) -> Carried:
    window = json.dumps(asdict(output), separators=(",", ":")).encode()
    runs = list(runs_of(lsns))
    packed = b"".join(_RUN.pack(first, count) for first, count in runs)
    return _carried(Kind.CLOSE, _RUNS.pack(len(window), len(runs)), window, packed)


def framed(carried: Carried, mark: bytes, group: int, lsn: int, arrival: int) -> bytes:
    """The bytes before the parts of `carried`. `group` is where its group begins in the segment."""
    facts = _FACTS.pack(carried.kind, carried.size, group, lsn, arrival)
    return _OPENINGS[VERSION].pack(mark, _header_crc(mark, carried.crc, facts), carried.crc) + facts


def _header_crc(mark: bytes, carried_crc: int, facts: bytes) -> int:
    return crc32(facts, crc32(_CRC.pack(carried_crc), crc32(mark)))


def runs_of(lsns: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of each unbroken run in ascending numbers."""
    first = count = 0
    for lsn in lsns:
        assert lsn >= first + count, "the lsns of a window ascend"
        if count and lsn == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = lsn, 1
    if count:
        yield first, count


# -- reading


@dataclass(frozen=True, slots=True)
class Opening:
    """The header of a frame. In version 1 it is only a claim until the checksum of the frame matches."""

    kind: int
    size: int  # bytes that are carried
    group: int
    lsn: int
    arrival: int
    crc: int
    covered: bytes  # of the header, by that checksum

    def holds(self, carried: bytes) -> bool:
        return len(carried) == self.size and crc32(self.covered, crc32(carried)) == self.crc


def opening_of(text: bytes, mark: bytes, version: int = VERSION) -> Opening | None:
    """The header; None if these bytes do not begin a frame of the segment with this mark."""
    if len(text) != _HEADER_BYTES[version] or not text.startswith(mark):
        return None
    facts = text[_OPENINGS[version].size :]
    kind, size, group, lsn, arrival = _FACTS.unpack(facts)
    if kind not in _KINDS:
        return None
    if version == 1:
        _, crc = _OPENINGS[1].unpack_from(text)
        return Opening(kind, size, group, lsn, arrival, crc, facts)
    _, header, crc = _OPENINGS[VERSION].unpack_from(text)
    if header != _header_crc(mark, crc, facts):
        return None
    return Opening(kind, size, group, lsn, arrival, crc, b"")


def _entry_at(opening: Opening) -> int:
    """Where the entry begins in the content."""
    return _BOUNDS.size if opening.kind == Kind.BOUNDED else 0


def feed_of(opening: Opening, carried: bytes) -> tuple[str, str]:
    """Stream and source of the entry that these bytes are."""
    at = _entry_at(opening)
    _, _, _, stream, source, _ = _ENTRY.unpack_from(carried, at)
    at += _ENTRY.size
    middle = at + stream
    return carried[at:middle].decode(), carried[middle : middle + source].decode()


def entry_of(gateway: str, opening: Opening, carried: bytes) -> Entry:
    at = _entry_at(opening)
    declared = Interval(*_BOUNDS.unpack_from(carried)) if at else None
    format_, records, offsets, stream, source, tenant = _ENTRY.unpack_from(carried, at)
    at += _ENTRY.size
    names: list[str] = []
    for length in (stream, source, max(tenant, 0)):
        names.append(carried[at : at + length].decode())
        at += length
    unnamed = struct.unpack_from(f"<{offsets}I", carried, at)
    submission = Submission(
        stream=names[0],
        source=names[1],
        content=carried[at + 4 * offsets :],
        records=records,
        format=_FORMATS[format_],
        tenant=None if tenant < 0 else names[2],
        unnamed=unnamed,
        declared=declared,
    )
    return Entry(gateway, opening.lsn, opening.arrival, submission)


def close_of(carried: bytes) -> tuple[WindowOutput, list[tuple[int, int]]]:
    """A window, and the runs of lsns that it contains."""
    size, count = _RUNS.unpack_from(carried)
    fields = json.loads(carried[_RUNS.size : _RUNS.size + size])
    stats = WindowStats(**fields.pop("stats"))
    at = _RUNS.size + size
    runs = [_RUN.unpack_from(carried, at + number * _RUN.size) for number in range(count)]
    return WindowOutput(**fields, stats=stats), [(first, length) for first, length in runs]
