"""What an operator should know about ingestion: damaged gateway logs, a clock that was set back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.ingest.gateway.set_aside import damaged_logs
from tidemill.model.clock import STEP
from tidemill.model.damage import Damage

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class IngestHealth:
    """The findings; empty and 0 if there are none."""

    damaged: tuple[Damage, ...] = ()  # stretches of logs that were set aside
    clock_behind: int = (
        0  # microseconds that the wall clock is behind the last arrival, if more than a minute
    )


def ingest_health(warehouse: Warehouse) -> IngestHealth:
    behind = warehouse.clock_behind()
    return IngestHealth(tuple(damaged_logs(warehouse.root)), behind if behind > STEP else 0)
