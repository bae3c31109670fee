"""Event time: how a value becomes an instant, the watermarks of sources and streams, and rows in order.

Pure; no Spark, no I/O.
"""

from tidemill.eventtime.ordering import Ordering, Timed, Watermark
from tidemill.eventtime.registry import (
    Origin,
    Parser,
    Registered,
    fault_of,
    iso8601_in,
    origin,
    read_time,
    register,
    registered,
    resolve,
)
from tidemill.eventtime.watermarks import Clock, SourceClock, StreamClock

__all__ = [
    "Clock",
    "Ordering",
    "Origin",
    "Parser",
    "Registered",
    "SourceClock",
    "StreamClock",
    "Timed",
    "Watermark",
    "fault_of",
    "iso8601_in",
    "origin",
    "read_time",
    "register",
    "registered",
    "resolve",
]
