"""Streams of deltas: what they declare, what follows from it, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tidemill.config import Project, Stream, parse_project
from tidemill.config.vectors import Vector
from tidemill.model.errors import ConfigError
from tidemill.model.time import HOUR, MINUTE

FILE = Path("tidemill.yaml")
TYPES = ("iso8601", "unixtimestamp_ms")

DELTAS = """\
version: 1
streams:
  points:
    kind: delta
    vector: {dimension: 3}
    compaction: {keep_recent: 4}
    event_time: {column: ts, type: iso8601}
"""


def load(text: str) -> Project:
    return parse_project(text, FILE, TYPES, {})


def stream(text: str) -> Stream:
    return load(text).stream("points")


def changed(*pairs: tuple[str, str]) -> str:
    text = DELTAS
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def types(found: Stream) -> dict[str, tuple[str, bool]]:
    return {name: (field.type, field.required) for name, field in found.fields.items()}


def test_without_a_schema_the_columns_of_a_delta_are_declared_by_its_kind() -> None:
    points = stream(DELTAS)
    assert (points.kind, points.identity, points.gate) == ("delta", ("delta_id",), "event_id")
    assert points.vector == Vector(dimension=3, id="vector_id", op="op", values="values", indices="indices")
    assert types(points) == {
        "delta_id": ("string", True),
        "ts": ("any", False),
        "vector_id": ("any", True),
        "op": ("string", True),
        "values": ("array", False),
        "indices": ("array", False),
    }
    assert pickle.loads(pickle.dumps(points)) == points  # noqa: S301


def test_without_a_schema_columns_that_other_sections_name_are_declared_too() -> None:
    text = changed(("{dimension: 3}", "{dimension: 3, id: of.vector}"))
    points = stream(text + "    identity: [source, number]\n    tenant: owner\n")
    assert types(points) == {
        "source": ("string", True),
        "number": ("string", True),
        "ts": ("any", False),
        "owner": ("string", True),
        "of.vector": ("any", True),
        "op": ("string", True),
        "values": ("array", False),
        "indices": ("array", False),
    }


def test_schema_says_more_of_a_column_and_the_rest_still_follows() -> None:
    points = stream(DELTAS + "    schema: {ts: string, vector_id: integer, delta_id: integer, why: string}\n")
    assert types(points) == {
        "delta_id": ("integer", False),
        "vector_id": ("integer", False),
        "op": ("string", True),
        "values": ("array", False),
        "indices": ("array", False),
        "ts": ("string", False),
        "why": ("string", False),
    }
    assert points.identity == ("delta_id",)


def test_with_a_schema_a_column_that_is_not_in_it_is_a_mistake_as_anywhere() -> None:
    error = refused(DELTAS + "    schema: {why: string}\n")
    assert "column 'ts' is not in the schema" in str(error)


def test_compaction_is_that_of_the_seed_by_default() -> None:
    compaction = stream(changed(("    compaction: {keep_recent: 4}\n", ""))).compaction
    assert compaction.model_dump() == {
        "strategy": "tiered_merge",
        "keep_recent": 10,
        "interval": HOUR,
        "delta_threshold": 100,
        "time_threshold": MINUTE,
        "max_chain_length": 1000,
        "background": True,
        "memory": None,
    }


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return caught.value


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "hint"),
    [
        (
            "    vector: {dimension: 3}\n", "", 4,
            "a stream of deltas needs to know its vectors", "add vector: {dimension: 384}",
        ),
        (
            "    kind: delta\n", "    schema: {a: string, ts: string}\n    identity: a\n", 6,
            "only a stream of deltas has vectors", "add kind: delta to the stream, or leave it out",
        ),
        ("kind: delta", "kind: vectors", 4, "'vectors' is not a valid kind", "choices: events, delta"),
        ("{dimension: 3}", "{dimension: 0}", 5, "0 should be at least 1", "use a larger one"),
        ("{dimension: 3}", "{dimension: 70000}", 5, "at most 65536", "use a smaller one"),
        ("{dimension: 3}", "{id: v}", 5, "dimension is missing", "add dimension: …"),
        (
            "{dimension: 3}", "{dimension: 3, id: 'no name'}", 5,
            "column name 'no name' is not allowed", "use letters, digits and _",
        ),
        (
            "{dimension: 3}", "{dimension: 3, values: x, indices: x}", 5,
            "column 'x' cannot be both values and indices", "name a column for each of them",
        ),
        ("{dimension: 3}", "{dimension: 3, size: 3}", 5, "unknown key", "keys: dimension, id, op, values"),
        (
            "    kind: delta\n", "    kind: delta\n    schema: {ts: string, op: integer}\n", 6,
            "column 'op' is of type integer", "op of a delta is string or any",
        ),
        (
            "    kind: delta\n", "    kind: delta\n    schema: {ts: string, values: string}\n", 6,
            "column 'values' is of type string", "values of a delta is array or any",
        ),
        (
            "    kind: delta\n", "    kind: delta\n    gate: none\n", 5,
            "deltas are identified and ordered by their identity", "use gate: event_id",
        ),
        (
            "    kind: delta\n", "    kind: delta\n    format: csv\n", 5,
            "a cell of a CSV file is never an array", "use another format: ndjson",
        ),
        (
            "    kind: delta\n", "    kind: delta\n    messages: {column: values}\n", 5,
            "a record of a stream of deltas is one delta", "leave it out",
        ),
        (
            "keep_recent: 4", "strategy: merge", 6,
            "'merge' is not a valid strategy", "full_merge, tiered_merge, time_boundary, adaptive",
        ),
        (
            "keep_recent: 4", "delta_threshold: 100, max_chain_length: 99", 6,
            "max_chain_length is less than delta_threshold", "make it as large, or larger",
        ),
        (
            "keep_recent: 4", "keep_recent: 1000", 6,
            "keep_recent is not less than max_chain_length", "keep fewer, or allow longer chains",
        ),
    ],
)  # fmt: skip
def test_mistake_names_its_line_and_what_is_valid(
    old: str, new: str, line: int, message: str, hint: str
) -> None:
    error = refused(changed((old, new)))
    said = next(text for text in str(error).splitlines() if message in text)
    assert said.startswith(f"tidemill.yaml:{line}: streams.points")
    assert hint in f"{error} {error.hint}"


def test_compaction_of_a_stream_without_vectors_is_refused() -> None:
    text = str(
        refused(changed(("    kind: delta\n    vector: {dimension: 3}\n", "    schema: {ts: string}\n")))
    )
    assert "streams.points.compaction: only a stream of deltas has vectors" in text


@pytest.mark.parametrize(
    ("compaction", "said"),
    [
        ("strategy: full_merge, keep_recent: 4", "full_merge keeps no deltas by their number"),
        ("strategy: time_boundary, keep_recent: 4", "time_boundary keeps no deltas by their number"),
        ("interval: 1h", "tiered_merge knows no boundaries of time"),
    ],
)
def test_what_the_strategy_does_not_use_is_warned_about(compaction: str, said: str) -> None:
    [warning] = load(changed(("keep_recent: 4", compaction))).warnings
    assert said in warning
    assert "tidemill.yaml:6" in warning


def test_raw_of_deltas_does_not_expire() -> None:
    project = load(changed(("    kind: delta\n", "    kind: delta\n    retention: {raw: 90d}\n")))
    [warning] = project.warnings
    assert "raw of deltas does not expire" in warning


def test_what_the_strategy_uses_is_not_warned_about() -> None:
    for compaction in ("strategy: adaptive, keep_recent: 4", "strategy: time_boundary, interval: 10s"):
        assert load(changed(("keep_recent: 4", compaction))).warnings == ()


def test_a_dimension_that_no_record_has_room_for_is_refused() -> None:
    text = DELTAS.replace("dimension: 3", "dimension: 1000")
    with pytest.raises(ConfigError) as caught:
        load(text.replace("version: 1", "version: 1\nlimits: {record_bytes: 1000}"))
    assert "streams.points.vector.dimension: a delta of all 1000 components has 2000 bytes" in str(
        caught.value
    )
    assert "make limits.record_bytes larger than its 1000" in caught.value.hint
    (warning,) = load(text.replace("version: 1", "version: 1\nlimits: {record_bytes: 20000}")).warnings
    assert "a delta of all 1000 components can have 25000 bytes" in warning
    assert load(text).warnings == ()
