"""Rules between the vectors of a delta stream and the rest of it: columns of types that suit their use.

Pure: each rule yields findings, and none stops at the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from tidemill.config.checks_columns import DeclaredColumns, one_of
from tidemill.config.problems import Path
from tidemill.config.schema import FieldType
from tidemill.config.stream import Stream
from tidemill.config.validation import ConfigFinding

_TYPES: Final[Mapping[str, tuple[FieldType, ...]]] = {
    "id": ("string", "integer", "any"),
    "op": ("string", "any"),
    "values": ("array", "any"),
    "indices": ("array", "any"),
}
_KEEPS_RECENT: Final = ("tiered_merge", "adaptive")
LEAST_BYTES: Final = 2  # of a component in JSON at least: a digit and a comma
MOST_BYTES: Final = 25  # of a component at most: all digits that a double may have


def check_vectors(
    stream: Stream, columns: DeclaredColumns, broken: Collection[Path]
) -> Iterator[ConfigFinding]:
    """Everything wrong between the vectors and their stream; paths are relative to the stream."""
    if stream.kind != "delta":
        for key in ("vector", "compaction"):
            if key in stream.model_fields_set and ("kind",) not in broken:
                message = "only a stream of deltas has vectors"
                yield ConfigFinding((key,), message, "add kind: delta to the stream, or leave it out")
        return
    if stream.gate != "event_id":
        message = "deltas are identified and ordered by their identity, so all of them must pass the gate"
        yield ConfigFinding(("gate",), message, "leave gate out, or use gate: event_id")
    if stream.format == "csv":
        message = "a cell of a CSV file is never an array"
        yield ConfigFinding(("format",), message, "use another format: ndjson, …")
    if stream.messages is not None:
        message = "a record of a stream of deltas is one delta, and holds no messages"
        yield ConfigFinding(
            ("messages",), message, "leave it out, or land the deltas as records of their own"
        )
    if stream.vector is None:
        if not any(path[0] == "vector" for path in broken):
            hint = "add vector: {dimension: 384}, with as many components as each of its vectors has"
            yield ConfigFinding(("kind",), "a stream of deltas needs to know its vectors", hint)
        return
    yield from _columns(stream, columns)


def _columns(stream: Stream, columns: DeclaredColumns) -> Iterator[ConfigFinding]:
    assert stream.vector is not None
    taken: dict[str, str] = {}
    for key, types in _TYPES.items():
        column = getattr(stream.vector, key)
        path = ("vector", key) if key in stream.vector.model_fields_set else ("vector",)
        yield from columns.check(path, column, types, f"{key} of a delta is {one_of(types)}")
        other = taken.setdefault(column, key)
        if other != key:
            message = f"column {column!r} cannot be both {other} and {key}"
            yield ConfigFinding(path, message, "name a column for each of them")


def check_dimension(stream: Stream, record_bytes: int) -> Iterator[ConfigFinding]:
    """Check that a delta of a whole vector can fit into a record."""
    if stream.vector is not None and stream.vector.dimension * LEAST_BYTES > record_bytes:
        size = f"{stream.vector.dimension * LEAST_BYTES} bytes at least"
        message = f"a delta of all {stream.vector.dimension} components has {size}: it is too large"
        hint = f"make limits.record_bytes larger than its {record_bytes}, or the dimension smaller"
        yield ConfigFinding(("vector", "dimension"), message, hint)


def large_dimension(stream: Stream, record_bytes: int) -> Iterator[ConfigFinding]:
    """Warn if it may not fit when its components have all their digits."""
    if stream.vector is None or stream.vector.dimension * LEAST_BYTES > record_bytes:
        return
    size = stream.vector.dimension * MOST_BYTES
    if size > record_bytes:
        message = f"a delta of all {stream.vector.dimension} components can have {size} bytes"
        hint = f"above limits.record_bytes, {record_bytes}, it is refused as too large: make that larger"
        yield ConfigFinding(("vector", "dimension"), message, hint)


def unused_vectors(stream: Stream) -> Iterator[ConfigFinding]:
    """What is declared and has no effect."""
    if stream.kind == "delta" and stream.retention.raw is not None:
        message = "raw of deltas does not expire: a chain that is made again needs all of it"
        yield ConfigFinding(("retention", "raw"), message, "leave it out")
    set_keys, strategy = stream.compaction.model_fields_set, stream.compaction.strategy
    if "keep_recent" in set_keys and strategy not in _KEEPS_RECENT:
        message = f"{strategy} keeps no deltas by their number"
        yield ConfigFinding(("compaction", "keep_recent"), message, f"use strategy: {one_of(_KEEPS_RECENT)}")
    if "interval" in set_keys and strategy != "time_boundary":
        message = f"{strategy} knows no boundaries of time"
        yield ConfigFinding(
            ("compaction", "interval"), message, "use strategy: time_boundary, or leave it out"
        )


__all__ = ["check_dimension", "check_vectors", "large_dimension", "unused_vectors"]
