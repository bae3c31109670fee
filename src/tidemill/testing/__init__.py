"""The public test kit: a clock set by hand, and a small model of what Tidemill must produce.

It never imports the engine, so that it can contradict it. The seeded feed is in `tidemill.testing.feed`
(needs numpy), the hypothesis strategies in `tidemill.testing.strategies` (needs hypothesis).
"""

from tidemill.testing.clock import FakeClock
from tidemill.testing.oracle import Oracle, Quarantined, RawRow, Verdict
from tidemill.testing.stream import REQUESTS, OracleField, OracleMetric, OracleStream

__all__ = [
    "REQUESTS",
    "FakeClock",
    "Oracle",
    "OracleField",
    "OracleMetric",
    "OracleStream",
    "Quarantined",
    "RawRow",
    "Verdict",
]
