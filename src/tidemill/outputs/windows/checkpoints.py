"""How far the results of a window have come: what its keeper remembers between two looks.

A cache of what the results table and raw say. Without it everything is computed again, and what stands
does not change.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tidemill.config.stream import Stream
from tidemill.model.streaming import Close, WindowSpec

UNKNOWN = -1  # no version of a table is lower


@dataclass(frozen=True, slots=True)
class Checkpoint:
    fingerprint: str  # of the declaration
    version: int = UNKNOWN  # of the results table that holds them
    raw: int = UNKNOWN  # version of raw they are made of
    watermark: int | None = None  # windows are out up to here
    carried: tuple[str, ...] = ()  # files with the rows of windows that were open then
    unsettled: int | None = None  # the least start of one of those that there are results of in the table
    heard: int = 0  # `close: complete`: place in the outbox up to which datasets are taken into account

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def fingerprint_of(spec: WindowSpec, stream: Stream) -> str:
    """Of everything declared that results depend on."""
    by_datasets = spec.close is Close.COMPLETE
    return f"{spec.fingerprint}/{stream.aggregation_span}" if by_datasets else spec.fingerprint


def read_checkpoint(text: str | None, fingerprint: str) -> Checkpoint | None:
    """None when there is none, or when it is of another declaration."""
    if text is None:
        return None
    fields = json.loads(text)
    checkpoint = Checkpoint(**{**fields, "carried": tuple(fields["carried"])})
    return checkpoint if checkpoint.fingerprint == fingerprint else None
