"""The declared fields of a stream as columns of raw: their names in the table, their types, and the
declaration that the columns of a part were made by.

Reads no values, so that looking at a schema loads no compiled code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from tidemill.config.stream import Stream
    from tidemill.config.vectors import Vector

RESERVED: Final = (
    "tenant", "event_time", "event_id", "event_type", "arrival", "watermark", "slice", "line", "payload",
    "payload_bytes", "day",
)  # fmt: skip
"""What raw has of every event; `day` is a folder in tables of former versions."""

SIZE: Final = "payload_bytes"  # size of the record as it was sent; parts of earlier versions have none

LEFT_OUT: Final = "left_out"  # key of a footer: fields that payloads lack, and how they were written

_TYPES: Final = {
    "string": pa.string(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "object": pa.string(),  # these three as JSON text
    "array": pa.string(),
    "any": pa.string(),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A declared field, as it is read from payloads."""

    name: str
    type: str
    scale: int = 0
    items: str | None = None  # of an array
    zone: str | None = None  # zone of timestamps without an offset; None: those are refused

    @property
    def is_json(self) -> bool:
        """Whether its values are kept as JSON text, because their type is not declared further."""
        return self.type in ("object", "any") or (self.type == "array" and self.items is None)

    @property
    def arrow(self) -> pa.DataType:
        if self.items is not None:
            return pa.list_(Column(self.name, self.items, self.scale).arrow)
        return pa.decimal128(18, self.scale) if self.type == "decimal" else _TYPES[self.type]


def declared_column(stream: Stream, name: str) -> Column:
    found = stream.fields[name]
    zone = stream.event_time.timezone if "timestamp" in (found.type, found.items) else None
    return Column(name, found.type, found.scale or 0, found.items, zone)


def vector_columns(vector: Vector) -> tuple[Column, Column, Column, Column]:
    """The columns of raw for a delta: its vector, its operation, its values and its indices."""
    return (
        Column(vector.id, "string"),
        Column(vector.op, "string"),
        Column(vector.values, "array", items="float"),
        Column(vector.indices, "array", items="integer"),
    )


# -- names


def column_paths(names: Sequence[str], reserved: Collection[str] = RESERVED) -> dict[str, tuple[str, ...]]:
    """The path of each field in the table; the steps of a dotted name become structs. A name that is taken
    (by a column that raw has for every event or by another field, ignoring case) gets `_` appended until it
    is free."""
    taken = {name.lower() for name in reserved}
    groups: dict[str, list[str]] = {}
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        first, dot, rest = name.partition(".")
        if dot:
            groups.setdefault(first, []).append(rest)
        else:
            found[name] = (_free(first, taken),)
    for first, inner in groups.items():
        top = _free(first, taken)
        found |= {f"{first}.{rest}": (top, *path) for rest, path in column_paths(inner, ()).items()}
    return found


def _free(name: str, taken: set[str]) -> str:
    while name.lower() in taken:
        name += "_"
    taken.add(name.lower())
    return name


# -- the columns of raw


@dataclass(frozen=True, slots=True)
class RawColumn:
    """A declared field as a column of raw."""

    column: Column
    path: tuple[str, ...]  # in the table: all steps but the last are structs

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def is_own(self) -> bool:
        """Whether it has a column of its own, beside those that raw has for every event."""
        return self.path[0] not in RESERVED

    @property
    def leaf(self) -> str:
        """Its name in a Parquet file."""
        return ".".join(self.path)

    def to_footer(self) -> dict[str, object]:
        one = self.column
        fields = {"name": one.name, "path": list(self.path), "type": one.type}
        more = {"scale": one.scale or None, "items": one.items, "zone": one.zone}
        return fields | {key: value for key, value in more.items() if value is not None}


@dataclass(frozen=True)
class RawColumns:
    """The declaration that the columns of a part are, or were, made by."""

    columns: tuple[RawColumn, ...]
    misfits: frozenset[str] = frozenset()  # fields with a value that the column cannot hold: null in the part
    # Fields whose columns may differ from payloads: decimals that were rounded, an integer -0 as a float.
    rounded: frozenset[str] = frozenset()
    keeps_payload: bool = True  # False: values that columns give back are left out of payloads
    spellings: tuple[tuple[str, str], ...] = ()  # fields left out of payloads, and how values were written
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict, compare=False)  # by field, to show

    @cached_property
    def id(self) -> str:
        """An identifier, equal for declarations that make equal columns."""
        fields = [one.to_footer() for one in self.columns]
        identity = json.dumps(fields if self.keeps_payload else [fields, LEFT_OUT], separators=(",", ":"))
        return hashlib.sha256(identity.encode()).hexdigest()[:16]

    @cached_property
    def own(self) -> tuple[RawColumn, ...]:
        return tuple(one for one in self.columns if one.is_own)

    @cached_property
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns of the table beside those of every part: the size of payloads, then the fields in order
        of declaration, each struct where its first field is."""
        return (pa.field(SIZE, pa.int32()), *_fields([(one.path, one) for one in self.own], self.notes))

    def made(self, misfits: Iterable[str], rounded: Iterable[str]) -> RawColumns:
        """The form in which a part records it."""
        return RawColumns(self.columns, frozenset(misfits), frozenset(rounded), self.keeps_payload)

    def spelled(self, spellings: Iterable[tuple[str, str]]) -> RawColumns:
        """The form of a part whose payloads lack the values that columns give back."""
        return replace(self, spellings=tuple(sorted(spellings)))

    def to_footer(self) -> dict[str, object]:
        return {
            "id": self.id,
            "fields": [one.to_footer() for one in self.columns],
            **({"misfits": sorted(self.misfits)} if self.misfits else {}),
            **({"rounded": sorted(self.rounded)} if self.rounded else {}),
            **({} if self.keeps_payload else {LEFT_OUT: dict(self.spellings)}),
        }


def _fields(
    members: Sequence[tuple[tuple[str, ...], RawColumn]], notes: Mapping[str, Mapping[str, str]]
) -> list[pa.Field]:
    found: list[pa.Field] = []
    for top in dict.fromkeys(path[0] for path, _ in members):
        inner = [(path[1:], one) for path, one in members if path[0] == top]
        if inner[0][0]:
            found.append(pa.field(top, pa.struct(_fields(inner, notes))))
        else:
            ((_, one),) = inner
            found.append(pa.field(top, one.column.arrow, metadata=dict(notes.get(one.name, {})) or None))
    return found


def raw_columns(stream: Stream) -> RawColumns:
    """The columns that the stream declares now: all fields except those kept as JSON text. The columns of
    deltas have types without being declared."""
    deltas = {one.name: one for one in vector_columns(stream.vector)} if stream.vector is not None else {}
    columns = [declared_column(stream, name) for name in stream.fields]
    stored = [deltas.get(column.name, column) if column.is_json else column for column in columns]
    typed = [column for column in stored if not column.is_json]
    known = {column.name: (column.name,) for column in typed if _is_of_every_event(stream, column)}
    paths = column_paths([column.name for column in typed if column.name not in known]) | known
    return RawColumns(
        tuple(RawColumn(column, paths[column.name]) for column in typed),
        keeps_payload=stream.keep_payload,
        notes={column.name: stream.fields[column.name].notes for column in typed},
    )


def _is_of_every_event(stream: Stream, column: Column) -> bool:
    """Whether raw has the values of the field in a column of every event."""
    event_type = stream.event_type.column if stream.event_type is not None else None
    return column.type == "string" and (
        (column.name == "tenant" and stream.tenant.column == "tenant")
        or (column.name == "event_id" and stream.identity == ("event_id",) and stream.gate == "event_id")
        or (column.name == "event_type" == event_type)
    )
