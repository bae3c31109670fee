"""Limits how many windows the events of one request touch, since each touched window is a dataset to build.

Events are read as the gate will read them, so that only events that will be accepted count. A request with
fewer events than allowed windows is not read at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

import numpy as np

from tidemill.config import Limits, Stream
from tidemill.formats.arrays import RecordChunk
from tidemill.formats.decode import decode
from tidemill.formats.read import read_chunk
from tidemill.formats.read_plan import plan_for
from tidemill.formats.split import split_lines
from tidemill.model.errors import TooSpreadError
from tidemill.model.gateway import Submission
from tidemill.model.slices import Codec, Format
from tidemill.model.time import DAY, format_duration

_CHUNK: Final = 4 << 20  # bytes read at a time


def check_spread(submission: Submission, stream: Stream, limits: Limits, most: int, now: int) -> None:
    """Raise TooSpreadError if the events lie in more than `most` windows."""
    if submission.records <= most or not stream.in_event_time:
        return
    unit = unit_of(stream)
    plan = plan_for(stream, limits)
    found: set[int] = set()
    for chunk in _chunks(submission):
        times = read_chunk(plan, chunk, now).columns.column("event_time").to_numpy()
        found.update(np.unique(times // unit).tolist())
        if len(found) > most:
            raise _too_spread(most, unit)


def warm(stream: Stream, limits: Limits) -> None:
    """Load or compile the kernels that read events, so that no request waits for them."""
    data = np.frombuffer(bytearray(b"{}\n"), np.uint8)
    read_chunk(plan_for(stream, limits), RecordChunk(data, *split_lines(data, 0, data.size)), 0)


def unit_of(stream: Stream) -> int:
    """The windows that are counted: those of the datasets, or days if there are none or they are longer."""
    return min(stream.aggregation_span or DAY, DAY)


def _chunks(submission: Submission) -> Iterator[RecordChunk]:
    if submission.format is Format.NDJSON:
        data = np.frombuffer(bytearray(submission.content), np.uint8)
        yield RecordChunk(data, *split_lines(data, 0, data.size))
        return
    with NamedTemporaryFile(prefix="tidemill-") as file:
        file.write(submission.content)
        file.flush()
        yield from decode(Path(file.name), submission.format, Codec.NONE, chunk_bytes=_CHUNK)


def _too_spread(most: int, unit: int) -> TooSpreadError:
    what = "days" if unit == DAY else f"windows of {format_duration(unit)}"
    return TooSpreadError(
        f"the events lie in more than {most:,} {what}",
        where="gateway.requests.spread",
        hint="send them in several requests, ordered by time; or land them as a file with `tidemill ingest`, "
        "which has no such limit; or allow more with gateway.requests.spread",
    )
