"""Slices, their identity, the outcomes of their records, and the hash of a set of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from tidemill.model.names import as_unicode
from tidemill.model.time import Interval

RECOVERED: Final = "recovered"  # name of a slice whose landing is lost
CONTENT_AT_RECOVERY: Final = "sha256"  # in the metadata of a slice whose landing is lost: of its bytes then
BY_WINDOW: Final = "window"  # in the metadata of a slice: distinguishes it from others with equal bytes


class RecordOutcome(StrEnum):
    """The gate's decision about a record. It is made once."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    REJECTED = "rejected"


class CountedAs(StrEnum):
    """By what the ledger counts the records of a slice; late records are also accepted ones."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    REJECTED = "rejected"
    LATE = "late"


class Reject(StrEnum):
    """Why a record was rejected."""

    MALFORMED = "malformed"
    MISSING_ID = "missing_id"
    BAD_TIME = "bad_time"
    SKEW = "skew"  # too far ahead of its arrival
    TOO_OLD = "too_old"  # too far before its arrival
    SEALED = "sealed"
    UNKNOWN_TYPE = "unknown_type"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    TOO_LARGE = "too_large"
    ENCODING = "encoding"


class SliceStatus(StrEnum):
    PENDING = "pending"  # in the ledger, not yet through the gate
    ACCEPTED = "accepted"  # every record has its outcome
    FAILED = "failed"  # cannot be read as a whole; kept, with its error, and tried again when that may help
    RETRACTED = "retracted"  # by an explicit act: everything is as if it had never arrived


class Format(StrEnum):
    NDJSON = "ndjson"
    JSON = "json"  # one array of objects, or one object
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


class Codec(StrEnum):
    NONE = "none"
    GZIP = "gz"
    ZSTD = "zst"


@dataclass(frozen=True, slots=True)
class NewSlice:
    """A slice whose bytes are durable at `path`, about to be entered in the ledger."""

    id: str
    stream: str
    source: str  # where it came from; each source has its own watermark
    name: str  # the name that the sender gave it, for people
    format: Format
    codec: Codec
    path: str  # relative to the warehouse, with forward slashes
    size: int  # bytes on disk
    arrival: int
    declared: Interval | None = None
    metadata: str | None = None  # metadata of the dataset from its sender, as JSON
    replays: str | None = None  # the slice whose rejects these are: windows count it as that one

    def __post_init__(self) -> None:
        """The name of a file is bytes: where they are no text, it is kept as text with � in it."""
        for part in ("source", "name"):
            object.__setattr__(self, part, as_unicode(getattr(self, part)))


@dataclass(frozen=True, slots=True)
class Counts:
    """Records of one slice by outcome; they add up to `records`."""

    records: int = 0
    accepted: int = 0
    duplicate: int = 0
    conflict: int = 0
    rejected: int = 0
    late: int = 0  # of the accepted ones, those at or before the watermark they met
    rejects: Mapping[str, int] = field(default_factory=dict)  # by reason


@dataclass(frozen=True, slots=True)
class Repeat:
    """Rows that were accepted from a slice which arrived later than the one that repeats them: the earlier
    arrival could not be read at first, so the later one went through the gate before it."""

    slice: str  # that the rows were accepted from
    times: Interval  # from the first of them to the last (end exclusive)
    lines: Sequence[tuple[int, int]]  # of that slice: stretches, first and last line

    @property
    def rows(self) -> int:
        return sum(last - first + 1 for first, last in self.lines)

    def as_fields(self) -> dict[str, object]:
        """Return the fields for JSON."""
        times = [self.times.start, self.times.end]
        return {"slice": self.slice, "times": times, "lines": [list(stretch) for stretch in self.lines]}

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> Repeat:
        times, lines = fields["times"], fields["lines"]
        assert isinstance(times, list), fields
        assert isinstance(lines, list), fields
        stretches = tuple((int(first), int(last)) for first, last in lines)
        return cls(str(fields["slice"]), Interval(int(times[0]), int(times[1])), stretches)


@dataclass(frozen=True, slots=True)
class SliceEntry:
    """A row of the ledger."""

    seq: int  # its offset in the ledger, from 1; a gap is left where a slice was that was tried again
    slice: NewSlice
    status: SliceStatus = SliceStatus.PENDING
    counts: Counts = field(default_factory=Counts)
    observed: Interval | None = None  # first to last accepted event time (end exclusive)
    watermark: int | None = None  # the stream's watermark that its records met; None: none is late
    batch: str | None = None  # the accept batch that decided it
    error: str | None = None
    landings: int = 1  # how often the same bytes and bounds were landed
    attempt: int = 0  # how often it was sent back to the gate, by the retraction of an earlier slice
    decision: int = 0  # how often that changed what was accepted from it
    accepted_before: int | None = None  # while it is sent back: how many records were accepted from it
    retracted_at: int | None = None
    retract_reason: str | None = None
    retried: int = 0  # how often it went to the gate again after it had failed, at a new offset each time
    failures: int = 0  # how often in a row it could not be read
    retry_at: int | None = None  # its file could not be read: when it is tried again
    failed_as: str | None = None  # its content is wrong: the declaration that it was read by
    repeats: Sequence[Repeat] = ()  # rows of later arrivals that it contains, too

    @property
    def id(self) -> str:
        return self.slice.id

    @property
    def tried_next(self) -> int | None:
        """When it is tried again, for display: one that is due at once was due when it arrived."""
        return None if self.retry_at is None else max(self.retry_at, self.slice.arrival)

    @property
    def name(self) -> str:
        """Its name in the sets that outputs are made of."""
        return contribution_name(self.slice.id, self.decision)

    @property
    def bounds(self) -> Interval | None:
        """What it covers: as declared by its source, else first to last accepted event time."""
        return self.slice.declared if self.slice.declared is not None else self.observed


class SliceGlance(NamedTuple):
    """What a list of very many slices needs of each that has bounds."""

    id: str
    name: str
    start: int  # what it covers: as declared by its source, else first to last accepted event time
    end: int
    arrival: int
    late: int
    is_declared: bool
    accepted: int
    status: SliceStatus


def contribution_name(slice_id: str, decision: int) -> str:
    """The name of what a slice adds to an output: its id, or another name once a retraction changed what was
    accepted from it."""
    return f"{slice_id}~{decision}" if decision else slice_id


def contribution_of(name: str) -> tuple[str, int]:
    """Return the slice and the number of its change that `contribution_name` combined."""
    slice_id, _, decision = name.partition("~")
    return slice_id, int(decision or 0)


def slice_id(stream: str, declared: Interval | None, content_sha256: str, window: str | None = None) -> str:
    """sha256 of stream + declared bounds + bytes (the bytes by their own sha256). What a gateway gathered is
    a slice of its own for each `window`, whatever its bytes are: equal events posted twice are two."""
    bounds = f"{declared.start}:{declared.end}" if declared else "-"
    gathered = f"\n{window}" if window is not None else ""
    return hashlib.sha256(f"{stream}\n{bounds}\n{content_sha256}{gathered}".encode()).hexdigest()


def id_of(new: NewSlice, content_sha256: str) -> str:
    """The id of a slice with these bytes: what `new.id` must be. If the landing is lost, the id cannot be
    computed, and the bytes are compared with those found at recovery."""
    if new.name == RECOVERED and new.metadata is not None:
        fields = json.loads(new.metadata)
        if CONTENT_AT_RECOVERY in fields:
            return new.id if fields[CONTENT_AT_RECOVERY] == content_sha256 else ""
    return slice_id(new.stream, new.declared, content_sha256, identifying_window(new.metadata))


def identifying_window(metadata: str | None) -> str | None:
    """The window of a gateway that is part of the identity of a slice; None where its content is all of it.
    The metadata says so: older slices of gateways are known by their content only."""
    if metadata is None or '"identity"' not in metadata:
        return None
    fields = json.loads(metadata)
    window = fields.get("window") if isinstance(fields, dict) else None
    if not isinstance(window, dict) or window.get("identity") != BY_WINDOW:
        return None
    return str(window.get("id"))


def row_groups(entries: Iterable[SliceEntry], most_rows: int) -> Iterator[list[SliceEntry]]:
    """Yield the entries in order, in groups of at most `most_rows` accepted rows; a larger slice is alone."""
    group: list[SliceEntry] = []
    rows = 0
    for entry in entries:
        if group and rows + entry.counts.accepted > most_rows:
            yield group
            group, rows = [], 0
        group.append(entry)
        rows += entry.counts.accepted
    if group:
        yield group


def set_hash(ids: Iterable[str]) -> str:
    """Return the hash that says whether an output is current. Order and repeats do not matter."""
    return hashlib.sha256(",".join(sorted(set(ids))).encode()).hexdigest()


@lru_cache(maxsize=1024)
def hash_of(names: frozenset[str]) -> str:
    """Return the `set_hash` of a set that many outputs are made of."""
    return set_hash(names)
