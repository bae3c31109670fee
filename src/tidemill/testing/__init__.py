"""The public test kit: a clock set by hand, and small models of what Tidemill must produce.

It never imports the engine, so that it can contradict it. The seeded feed is in `tidemill.testing.feed`
(needs numpy), the hypothesis strategies in `tidemill.testing.strategies`,
`tidemill.testing.strategies_streaming` and `tidemill.testing.strategies_metrics` (need hypothesis).
"""

from tidemill.testing.clock import FakeClock, SteppableClock
from tidemill.testing.kinds import (
    OracleCounter,
    OracleGauge,
    OracleHistogram,
    OracleRatio,
    OracleState,
    OracleTerm,
)
from tidemill.testing.metrics import MetricOracle
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
from tidemill.testing.vectors import VectorOracle
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
    "MetricOracle",
    "Oracle",
    "OracleCounter",
    "OracleDataset",
    "OracleField",
    "OracleGauge",
    "OracleHistogram",
    "OracleMessages",
    "OracleMetric",
    "OracleRatio",
    "OracleRules",
    "OracleState",
    "OracleStream",
    "OracleTerm",
    "OracleWindow",
    "Quarantined",
    "RawRow",
    "Retract",
    "Round",
    "SteppableClock",
    "StreamingOracle",
    "StreamingRow",
    "StreamingSlice",
    "Tick",
    "VectorOracle",
    "Verdict",
    "WindowOracle",
    "meet",
    "same_results",
]
