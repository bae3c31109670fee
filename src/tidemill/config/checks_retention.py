"""Rules between the index and the retention of a stream and the rest of it.

Pure: each rule yields findings, and none stops at the first. Nothing is deleted here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise

from tidemill.config.checks_columns import listed, repeats
from tidemill.config.problems import Path
from tidemill.config.stream import Stream
from tidemill.config.validation import ConfigFinding
from tidemill.model.levels import LEVELS
from tidemill.model.time import format_duration

_BROKEN = {("aggregation_span",), ("subject_to_change_window",), ("late_slices",)}


def check_indexed(stream: Stream) -> Iterator[ConfigFinding]:
    """A path need not be in the schema, but must not contradict it."""
    for path, column in listed(("indexed",), stream.indexed):
        parts = column.split(".")
        for length in range(1, len(parts)):
            outer = stream.fields.get(".".join(parts[:length]))
            if outer is not None and outer.type not in ("object", "array", "any"):
                parent = ".".join(parts[:length])
                message = f"{parent!r} is of type {outer.type} and has nothing inside"
                yield ConfigFinding(path, message, f"index {parent}, or declare it as object, array or any")
    yield from repeats(("indexed",), stream.indexed)


def check_retention(stream: Stream, broken: Collection[Path]) -> Iterator[ConfigFinding]:
    """What would expire before it is needed; paths are relative to the stream."""
    declared, at = stream.retention, ("retention",)
    span, late = stream.aggregation_span, stream.late_slices
    if declared.raw is not None and span is not None and not any(path[:1] in _BROKEN for path in broken):
        needed = span + stream.subject_to_change_window + (late.max_lateness or 0)
        if declared.raw < needed:
            why = "aggregation_span and subject_to_change_window"
            if late.max_lateness:
                why = "aggregation_span, subject_to_change_window and max_lateness"
            message = (
                f"rows would be gone after {format_duration(declared.raw)}, before their dataset is made"
            )
            hint = f"use {format_duration(needed)} or longer: {why} together"
            yield ConfigFinding((*at, "raw"), message, hint)
    for level, coarser in pairwise(LEVELS):
        kept = declared.rollups.get(level.name)
        if kept is not None and kept < coarser.width:
            message = (
                f"buckets of {coarser.name} are made of those of {level.name}, which would be gone by then"
            )
            yield ConfigFinding((*at, "rollups", level.name), message, f"use {coarser.name} or longer")


def unused_retention(stream: Stream) -> Iterator[ConfigFinding]:
    """What is declared without effect, or with an effect that may come as a surprise."""
    declared, at = stream.retention, ("retention",)
    raw, index = declared.raw, declared.index
    if raw is not None and index is not None and index > raw:
        message = f"the index is deleted with raw, after {format_duration(raw)}"
        yield ConfigFinding((*at, "index"), message, "make it as long as raw, or shorter")
    if declared.index is not None and not stream.indexed:
        yield ConfigFinding(
            (*at, "index"), "there is no index that it could hold for", "add indexed: [PATH], or leave it out"
        )
    if declared.datasets is not None and stream.aggregation_span is None:
        message = "there are no windows that become datasets"
        yield ConfigFinding((*at, "datasets"), message, "add aggregation_span, such as 1h, or leave it out")
    if declared.rollups and not stream.kept_metrics:
        message = "there are no metrics that it could hold for"
        yield ConfigFinding((*at, "rollups"), message, "add metrics, or leave it out")
    if raw is None:
        if "sealed" in declared.model_fields_set:
            message = "nothing is sealed, since raw is kept for ever"
            yield ConfigFinding((*at, "sealed"), message, "add raw, such as raw: 400d, or leave it out")
        return
    if raw < stream.event_time.late_tolerance:
        message = (
            f"events that are not late may be of a time that raw is gone for after {format_duration(raw)}"
        )
        yield ConfigFinding(
            (*at, "raw"), message, "make it as long as late_tolerance of event_time, or longer"
        )
    past = stream.skew.past if "past" in stream.skew.model_fields_set else None
    if past is not None and raw < past and "sealed" not in declared.model_fields_set:
        message = (
            f"events may be as old as {format_duration(past)} (skew), and of a time that raw is gone for"
        )
        yield ConfigFinding(
            (*at, "raw"), message, "say what becomes of them: sealed: merge, or sealed: refuse"
        )
