"""What Tidemill must produce, said as simply as it can be: one record at a time, everything in memory.

It never imports the engine and never tries to be fast; where the two differ, one of them is wrong.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from tests.support.oracles.clocks import OracleClocks, OracleProgress, SourceClock
from tests.support.oracles.messages import matching_types
from tests.support.oracles.stream import OracleField, OracleStream
from tests.support.oracles.strictjson import (
    Json,
    MalformedError,
    Number,
    canonical,
    has_lone_surrogate,
    read_object,
)

from tidemill.model.errors import InputError
from tidemill.model.levels import BASE, LEVELS, TileKey, below, level_named
from tidemill.model.slices import Counts, RecordOutcome, Reject
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, align, has_offset, parse_instant

ID_BYTES: Final = 1024
TENANT_BYTES: Final = 256
DECIMAL_DIGITS: Final = 18

# powers of ten from the unit of a numeric time to microseconds
_TIME_SCALE = {"unixtimestamp_s": 6, "unixtimestamp_ms": 3, "unixtimestamp_us": 0, "unixtimestamp_ns": -3}
_NUMERAL = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")

Value = str | int | bool | None
Dimensions = tuple[Value, ...]


class Verdict(NamedTuple):
    """The outcome of one record; `reason` only when it was rejected."""

    outcome: RecordOutcome
    reason: Reject | None = None


class Event(NamedTuple):
    """A record that passed every check and now stands before the gate."""

    tenant: str
    event_id: str
    ts: int
    canonical: str
    fields: dict[str, Json]


class RawRow(NamedTuple):
    tenant: str
    event_id: str
    ts: int
    slice: str
    line: int  # the record's number within its slice, from 1
    payload: bytes
    watermark: int | None  # the one it met
    late: bool


class Quarantined(NamedTuple):
    slice: str
    line: int
    outcome: RecordOutcome
    reason: Reject | None
    payload: bytes
    hash: str | None = None  # of a conflict: sha256 of its canonical payload …
    rival: str | None = None  # … and of the accepted one


class Measure(NamedTuple):
    """Exact integers, in units of 10^-scale of the measure's field."""

    n: int
    sum: int
    min: int | None
    max: int | None


class Cell(NamedTuple):
    events: int
    measures: dict[str, Measure]


class CellKey(NamedTuple):
    metric: str
    tenant: str
    dimensions: Dimensions
    bucket: int


class Landing(NamedTuple):
    """One slice as it was landed."""

    slice: str
    records: tuple[bytes, ...]
    arrival: int
    source: str = "default"


class RejectedError(Exception):
    """A rule does not hold; the first one decides."""

    def __init__(self, reason: Reject) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Oracle:
    """Land slices in ledger order, then compare what it holds with what the engine holds."""

    def __init__(self, stream: OracleStream) -> None:
        self.stream = stream
        self.raw: list[RawRow] = []
        self.quarantine: list[Quarantined] = []
        self.duplicates: list[tuple[str, int]] = []  # slice, line
        self.counts: dict[str, Counts] = {}
        self.observed: dict[str, Interval | None] = {}
        self.met: dict[str, int | None] = {}  # slice -> the watermark that its rows met
        self._time = OracleClocks[RawRow](stream.late_tolerance, stream.idle_timeout, stream.max_buffer_bytes)
        self._accepted: dict[tuple[str, str], Event] = {}
        self._landings: dict[str, Landing] = {}
        self._verdicts: dict[str, list[Verdict]] = {}

    def land(
        self, slice_id: str, records: Sequence[bytes], arrival: int, source: str = "default"
    ) -> list[Verdict]:
        """Decide every record, in order. A slice that has landed before changes nothing."""
        if slice_id in self._verdicts:
            return self._verdicts[slice_id]
        self._landings[slice_id] = Landing(slice_id, tuple(records), arrival, source)
        self.met[slice_id] = self._time.met(arrival) if self.stream.in_event_time else None
        first_new = len(self.raw)
        verdicts = [
            self._decide(slice_id, line, payload, arrival, self.met[slice_id])
            for line, payload in enumerate(records, start=1)
        ]
        new = self.raw[first_new:]
        self._verdicts[slice_id] = verdicts
        self.counts[slice_id] = _count(verdicts, late=sum(row.late for row in new))
        times = [row.ts for row in new]
        self.observed[slice_id] = Interval(min(times), max(times) + 1) if times else None
        self._time.accept(source, arrival, [(row.ts, len(row.payload), row) for row in new])
        return verdicts

    @property
    def accepted(self) -> list[Event]:
        """The accepted events in ledger order."""
        return list(self._accepted.values())

    @property
    def clocks(self) -> dict[str, SourceClock]:
        return self._time.sources

    def progress(self) -> OracleProgress:
        """How far the stream has come. By processing time there is nothing to say: no row waits."""
        return self._time.progress() if self.stream.in_event_time else OracleProgress()

    def watermark(self, now: int) -> int | None:
        """As of an instant after the last slice."""
        return self._time.met(now) if self.stream.in_event_time else now

    def ordered(self) -> list[RawRow | int]:
        """The rows that came in time, in order of event time, and the watermarks between them, so far; those
        that are not out yet are `waiting`."""
        return list(self._time.out)

    def waiting(self) -> list[RawRow]:
        return self._time.waiting()

    def declare(self, stream: OracleStream) -> None:
        """What comes from now on is judged by this declaration; what is known stays as it is."""
        self.stream = stream
        self._time.declare(stream.late_tolerance, stream.idle_timeout, stream.max_buffer_bytes)

    def rebuilt(self, without: Collection[str] = ()) -> Oracle:
        """The same story had the slices in `without` never arrived."""
        other = Oracle(self.stream)
        for landing in self._landings.values():
            if landing.slice not in without:
                other.land(*landing)
        return other

    def total(self) -> Counts:
        """The counts of all slices together."""
        return _count(
            [verdict for verdicts in self._verdicts.values() for verdict in verdicts],
            late=sum(row.late for row in self.raw),
        )

    def rollup(self, level: str) -> dict[CellKey, Cell]:
        """Every row of one level of the plain counters; a higher level is computed from the one below it.
        `MetricOracle` says what metrics of other kinds have."""
        wanted = level_named(level)
        lower = below(wanted)
        if lower is None:
            return self._base_rollup()
        cells: dict[CellKey, Cell] = {}
        for key, cell in self.rollup(lower.name).items():
            _add(cells, key._replace(bucket=align(key.bucket, wanted.width)), cell)
        return cells

    def tiles(self) -> dict[TileKey, dict[CellKey, Cell]]:
        """The rows of all levels by the tile that holds them; tiles without rows are not there."""
        tiles: dict[TileKey, dict[CellKey, Cell]] = {}
        for level in LEVELS:
            for key, cell in self.rollup(level.name).items():
                tiles.setdefault(TileKey(level.name, level.tile_of(key.bucket)), {})[key] = cell
        return tiles

    def tile_slices(self) -> dict[int, frozenset[str]]:
        """For each 5s tile, by its start, the slices that added rows to it."""
        made_of: dict[int, set[str]] = {}
        for row in self.raw:
            made_of.setdefault(BASE.tile_of(row.ts), set()).add(row.slice)
        return {start: frozenset(slices) for start, slices in made_of.items()}

    def _decide(
        self, slice_id: str, line: int, payload: bytes, arrival: int, watermark: int | None
    ) -> Verdict:
        try:
            event = check(self.stream, payload, arrival)
        except RejectedError as rejected:
            verdict = Verdict(RecordOutcome.REJECTED, rejected.reason)
            self.quarantine.append(Quarantined(slice_id, line, *verdict, payload))
            return verdict
        first = self._accepted.setdefault((event.tenant, event.event_id), event)
        if first is event:
            late = watermark is not None and event.ts <= watermark
            self.raw.append(RawRow(*event[:3], slice_id, line, payload, watermark, late))
            return Verdict(RecordOutcome.ACCEPTED)
        if first.canonical == event.canonical:
            self.duplicates.append((slice_id, line))
            return Verdict(RecordOutcome.DUPLICATE)
        hashes = (canonical_hash(event.canonical), canonical_hash(first.canonical))
        self.quarantine.append(Quarantined(slice_id, line, RecordOutcome.CONFLICT, None, payload, *hashes))
        return Verdict(RecordOutcome.CONFLICT)

    def _base_rollup(self) -> dict[CellKey, Cell]:
        cells: dict[CellKey, Cell] = {}
        for event in self._accepted.values():
            for name, metric in self.stream.metrics.items():
                key = CellKey(
                    name,
                    event.tenant,
                    tuple(_dimension(lookup(event.fields, column)) for column in metric.dimensions),
                    align(event.ts, BASE.width),
                )
                measures = {
                    column: _measure(lookup(event.fields, column), self.stream.fields[column])
                    for column in metric.measures
                }
                _add(cells, key, Cell(1, measures))
        return cells


# --- the checks, in the order in which they decide ---------------------------------------------


def check(stream: OracleStream, payload: bytes, arrival: int) -> Event:
    """The event in a record, or `RejectedError` with the first rule that it breaks."""
    fields, text = _parse(stream, payload)
    event_id = _event_id(stream, fields)
    tenant = _tenant(stream, fields)
    _check_type(stream, fields)
    ts = _event_time(stream, fields, arrival)
    _check_schema(stream, fields)
    _check_skew(stream, ts, arrival)
    return Event(tenant, event_id, ts, text, fields)


def _parse(stream: OracleStream, payload: bytes) -> tuple[dict[str, Json], str]:
    if len(payload) > stream.record_bytes:
        raise RejectedError(Reject.TOO_LARGE)
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        raise RejectedError(Reject.ENCODING) from None
    try:
        fields = read_object(text, stream.depth)
    except MalformedError:
        raise RejectedError(Reject.MALFORMED) from None
    spelled = canonical(fields)
    # only a well-formed document has strings, so this half of the encoding rule comes after the parse
    if has_lone_surrogate(spelled):
        raise RejectedError(Reject.ENCODING)
    return fields, spelled


def _event_id(stream: OracleStream, fields: dict[str, Json]) -> str:
    parts: list[str | int] = []
    for column in stream.identity:
        value = lookup(fields, column)
        part = value.integer() if isinstance(value, Number) else value
        # isinstance(True, int) holds in Python, but true is not a number here
        if part is None or part == "" or isinstance(part, bool) or not isinstance(part, (str, int)):
            raise RejectedError(Reject.MISSING_ID)
        parts.append(part)
    if len(parts) == 1:
        event_id = str(parts[0])
    else:
        event_id = json.dumps(parts, separators=(",", ":"), ensure_ascii=False)
    if len(event_id.encode()) > ID_BYTES:
        raise RejectedError(Reject.MISSING_ID)
    return event_id


def _tenant(stream: OracleStream, fields: dict[str, Json]) -> str:
    if stream.tenant_column is None:
        assert stream.tenant_value is not None
        return stream.tenant_value
    tenant = lookup(fields, stream.tenant_column)
    if not isinstance(tenant, str) or not tenant:
        raise RejectedError(Reject.MISSING_FIELD)
    if len(tenant.encode()) > TENANT_BYTES:
        raise RejectedError(Reject.WRONG_TYPE)
    return tenant


def _check_type(stream: OracleStream, fields: dict[str, Json]) -> None:
    if stream.type_column is None:
        return
    kind = lookup(fields, stream.type_column)
    if kind is None:
        raise RejectedError(Reject.MISSING_FIELD)
    if not isinstance(kind, str):
        raise RejectedError(Reject.WRONG_TYPE)
    if stream.allowed_types and kind not in stream.allowed_types:
        raise RejectedError(Reject.UNKNOWN_TYPE)


def _event_time(stream: OracleStream, fields: dict[str, Json], arrival: int) -> int:
    if stream.messages is not None and (reported := matching_types(stream.messages, fields)) is not None:
        value, time_type = reported
    elif stream.time_column is not None:
        value, time_type = lookup(fields, stream.time_column), stream.time_type
    elif stream.messages is not None:
        raise RejectedError(Reject.BAD_TIME)
    else:
        return arrival
    ts = _iso_time(value) if time_type == "iso8601" else _unix_time(value, time_type)
    if ts is None or not MIN_INSTANT <= ts < MAX_INSTANT:
        raise RejectedError(Reject.BAD_TIME)
    return ts


def _iso_time(value: Json) -> int | None:
    if not isinstance(value, str) or not has_offset(value):
        return None
    try:
        return parse_instant(value)
    except InputError:
        return None


def _unix_time(value: Json, time_type: str) -> int | None:
    if isinstance(value, str):
        value = Number.parse(value.removeprefix("+")) if _NUMERAL.fullmatch(value) else None
    return value.floored(_TIME_SCALE[time_type]) if isinstance(value, Number) else None


def _check_schema(stream: OracleStream, fields: dict[str, Json]) -> None:
    for column, declared in stream.fields.items():
        value = lookup(fields, column)
        if value is None and declared.required:
            raise RejectedError(Reject.MISSING_FIELD)
        if value is not None and not _CHECKS[declared.type](value, declared):
            raise RejectedError(Reject.WRONG_TYPE)


def _is_decimal(value: Json, declared: OracleField) -> bool:
    rounded = value.rounded(declared.scale or 0) if isinstance(value, Number) else None
    return rounded is not None and abs(rounded) < 10**DECIMAL_DIGITS


_CHECKS: Final[dict[str, Callable[[Json, OracleField], bool]]] = {
    "string": lambda value, _: isinstance(value, str),
    "integer": lambda value, _: isinstance(value, Number) and value.integer() is not None,
    "decimal": _is_decimal,
    "float": lambda value, _: isinstance(value, Number),
    "boolean": lambda value, _: isinstance(value, bool),
    "object": lambda value, _: isinstance(value, dict),
    "array": lambda value, _: isinstance(value, list),
    "any": lambda value, _: True,
}


def _check_skew(stream: OracleStream, ts: int, arrival: int) -> None:
    if stream.skew_future is not None and ts > arrival + stream.skew_future:
        raise RejectedError(Reject.SKEW)
    if stream.skew_past is not None and ts < arrival - stream.skew_past:
        raise RejectedError(Reject.TOO_OLD)


# --- small pure rules ---------------------------------------------------------------------------


def lookup(fields: dict[str, Json], column: str) -> Json:
    """The value at a dotted path; None when it is null or the path leads nowhere."""
    value: Json = fields
    for key in column.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def canonical_hash(text: str) -> str:
    """sha256 of a canonical payload, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def _count(verdicts: Sequence[Verdict], late: int) -> Counts:
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    return Counts(
        records=len(verdicts),
        accepted=outcomes[RecordOutcome.ACCEPTED],
        duplicate=outcomes[RecordOutcome.DUPLICATE],
        conflict=outcomes[RecordOutcome.CONFLICT],
        rejected=outcomes[RecordOutcome.REJECTED],
        late=late,
        rejects=dict(sorted(Counter(v.reason.value for v in verdicts if v.reason).items())),
    )


def _dimension(value: Json) -> Value:
    if isinstance(value, Number):
        return value.integer()
    assert value is None or isinstance(value, (str, bool)), value
    return value


def _measure(value: Json, declared: OracleField) -> Measure:
    if value is None:
        return Measure(0, 0, None, None)
    assert isinstance(value, Number), value
    scaled = value.rounded(declared.scale or 0)
    assert scaled is not None, value
    return Measure(1, scaled, scaled, scaled)


def _add(cells: dict[CellKey, Cell], key: CellKey, cell: Cell) -> None:
    old = cells.get(key)
    if old is None:
        cells[key] = cell
        return
    measures = {name: _merge(old.measures[name], new) for name, new in cell.measures.items()}
    cells[key] = Cell(old.events + cell.events, measures)


def _merge(a: Measure, b: Measure) -> Measure:
    lows = [m.min for m in (a, b) if m.min is not None]
    highs = [m.max for m in (a, b) if m.max is not None]
    return Measure(a.n + b.n, a.sum + b.sum, min(lows, default=None), max(highs, default=None))
