"""The public test kit: a clock set by hand, and small models of what Tidemill must produce.

It never imports the engine, so that it can contradict it. The seeded feed is in `tidemill.testing.feed`
(needs numpy), the hypothesis strategies in `tidemill.testing.strategies` and
`tidemill.testing.strategies_streaming` (need hypothesis).
"""

from tidemill.testing.clock import FakeClock
from tidemill.testing.oracle import Oracle, Quarantined, RawRow, Verdict
from tidemill.testing.stream import (
    READINGS,
    REQUESTS,
    OracleField,
    OracleMessages,
    OracleMetric,
    OracleStream,
)
from tidemill.testing.streaming import StreamingOracle, StreamingRow, StreamingSlice, meet, same_results
from tidemill.testing.windows import (
    Act,
    Land,
    OracleDataset,
    OracleRules,
    OracleWindow,
    Retract,
    Round,
    Tick,
    WindowOracle,
)

__all__ = [
    "READINGS",
    "REQUESTS",
    "Act",
    "FakeClock",
    "Land",
    "Oracle",
    "OracleDataset",
    "OracleField",
    "OracleMessages",
    "OracleMetric",
    "OracleRules",
    "OracleStream",
    "OracleWindow",
    "Quarantined",
    "RawRow",
    "Retract",
    "Round",
    "StreamingOracle",
    "StreamingRow",
    "StreamingSlice",
    "Tick",
    "Verdict",
    "WindowOracle",
    "meet",
    "same_results",
]
