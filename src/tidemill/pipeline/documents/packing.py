"""What packing did or would do, as plain data. Only formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.pipeline.documents.shapes import Document, took

if TYPE_CHECKING:
    from tidemill.raw.compaction.packer import Packed, PackRound, PackStep


def packing(steps: Sequence[PackStep], done: Sequence[Packed] | None, waiting: Mapping[str, int]) -> Document:
    """The plan, and the outcome once it was carried out; by stream how many slices wait for others."""
    return {
        "steps": [step(one) for one in steps],
        "packed": None if done is None else [packed(one) for one in done],
        "waiting": dict(waiting),
    }


def step(of: PackStep) -> Document:
    return {
        "stream": of.stream,
        "slices": list(of.slices),
        "rows": of.rows,
        "bytes": of.bytes,
        "parts_before": of.parts_before,
        "days": list(of.days),
    }


def packed(of: Packed) -> Document:
    return {
        "stream": of.stream,
        "parts": list(of.parts),
        "slices": list(of.slices),
        "rows": of.rows,
        "bytes_before": of.bytes_before,
        "bytes_after": of.bytes_after,
        "took": took(of.seconds),
    }


def look(of: PackRound | None) -> Document | None:
    """What a round packed of a stream."""
    if of is None:
        return None
    return {
        "groups": len(of.packed),
        "slices": sum(len(one.slices) for one in of.packed),
        "rows": sum(one.rows for one in of.packed),
        "parts": sum(len(one.parts) for one in of.packed),
        "waiting": of.waiting,
    }
