"""The query text, its plan and its execution in process over the rollups. Never recomputes from raw."""

from tidemill.query.answer import Answer, Explanation
from tidemill.query.coverage import Arrivals, Available, Completeness, Missing, Outdated, Pending
from tidemill.query.querier import Querier
from tidemill.query.run import Runner
from tidemill.query.source import Files, NoRollups, SnapshotSource, Source

__all__ = [
    "Answer",
    "Arrivals",
    "Available",
    "Completeness",
    "Explanation",
    "Files",
    "Missing",
    "NoRollups",
    "Outdated",
    "Pending",
    "Querier",
    "Runner",
    "SnapshotSource",
    "Source",
]
