"""A run of records in one buffer, as the decoders hand them to the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.formats.arrays import Bytes, Ints


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Record i is data[starts[i]:ends[i]]."""

    data: Bytes
    starts: Ints
    ends: Ints
    base: int = 0  # where data[0] stands in the slice's file
    in_place: bool = False  # data is (a range of) the slice's own file, not something decoded from it
