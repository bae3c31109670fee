"""The public test kit: clocks set by hand, a seeded feed, and reference results of streaming windows.

It never imports the engine. The feed is in `tidemill.testing.feed`, which needs numpy.
"""

from tidemill.testing.clock import FakeClock, SteppableClock
from tidemill.testing.streaming import StreamingOracle, StreamingRow, StreamingSlice, meet, same_results

__all__ = [
    "FakeClock",
    "SteppableClock",
    "StreamingOracle",
    "StreamingRow",
    "StreamingSlice",
    "meet",
    "same_results",
]
