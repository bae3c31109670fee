"""Reads the event times of records that hold several messages, for a chunk at once; only messages are read.

`decide` defines the time of a message; a record whose messages have no certain time is left to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tidemill.formats.arrays import Ints, Mask, RecordChunk
from tidemill.formats.decide import Number, RuleError, message_time
from tidemill.formats.json_core import ARRAY
from tidemill.formats.locate import locate, paths_of
from tidemill.formats.read_plan import MessageRule

# The records are known to be strict JSON, so nothing needs to be refused here.
_DECODER: Final = json.JSONDecoder(parse_float=Number, parse_int=Number)
_BETWEEN: Final = re.compile(r"[ \t\n\r,]*")


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """For each row: the time, whether it was read, and whether no message has a time."""

    time: Ints
    was_read: Mask
    none: Mask


def message_times(rule: MessageRule, chunk: RecordChunk, rows: Ints) -> MessageTimes:
    """The times of the messages of these rows, which are known to be valid JSON."""
    spans = locate(chunk.data, chunk.starts[rows], chunk.ends[rows], paths_of((rule.column,)))
    found = MessageTimes(
        time=np.zeros(rows.size, np.int64),
        was_read=np.zeros(rows.size, np.bool_),
        none=spans.tags[0] != ARRAY,
    )
    for row in np.flatnonzero(~found.none).tolist():
        text = chunk.data[spans.starts[0, row] : spans.ends[0, row]].tobytes().decode()
        try:
            time = message_time(_messages(text), rule)
        except (RuleError, RecursionError):
            continue
        found.none[row] = time is None
        if time is not None:
            found.time[row], found.was_read[row] = time, True
    return found


def _messages(array: str) -> Iterator[object]:
    """The elements of a JSON array one by one: usually the first one decides, and no other is read."""
    place = 1
    while True:
        between = _BETWEEN.match(array, place)
        assert between is not None
        place = between.end()
        if array[place] == "]":
            return
        message, place = _DECODER.raw_decode(array, place)
        yield message


__all__ = ["MessageTimes", "message_times"]
