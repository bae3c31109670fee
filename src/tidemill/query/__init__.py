"""The query text, its plan and its execution in process over the rollups. Never recomputes from raw."""

from tidemill.query.answer import Answer, Completeness, Explanation, Freshness
from tidemill.query.querier import Querier
from tidemill.query.run import Runner
from tidemill.query.source import Files, NoRollups, SnapshotSource, Source

__all__ = [
    "Answer",
    "Completeness",
    "Explanation",
    "Files",
    "Freshness",
    "NoRollups",
    "Querier",
    "Runner",
    "SnapshotSource",
    "Source",
]
