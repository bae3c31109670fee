"""The checkpoint of a window's results: how far they have been computed.

It caches what the results table and raw show. Without it everything is computed again, with the same results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

from tidemill.config.stream import Stream
from tidemill.model.streaming import Close, WindowSpec
from tidemill.outputs.windows.unfit import UnfitValues
from tidemill.storage.tables.log import Commit

UNKNOWN = -1  # lower than any version of a table
EXPIRED: Final = "expired"  # in the info of a commit of raw that only removes expired rows …
PACKED: Final = "packed"  # … and of one that moves the same rows to other parts


@dataclass(frozen=True, slots=True)
class Checkpoint:
    fingerprint: str  # of the declaration
    version: int = UNKNOWN  # of the results table that holds them
    raw: int = UNKNOWN  # version of raw they are made from
    watermark: int | None = None  # windows are published up to here
    carried: tuple[str, ...] = ()  # files with the rows of windows that were open then
    unsettled: int | None = None  # the least start of an open window that has results in the table
    heard: int = 0  # `close: complete`: outbox offset up to which datasets are taken into account
    unfit: tuple[UnfitValues, ...] = ()  # values that the results leave out

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def fingerprint_of(spec: WindowSpec, stream: Stream) -> str:
    """A hash of everything declared that results depend on."""
    by_datasets = spec.close is Close.COMPLETE
    return f"{spec.fingerprint}/{stream.aggregation_span}" if by_datasets else spec.fingerprint


def read_checkpoint(text: str | None, fingerprint: str) -> Checkpoint | None:
    """The checkpoint; None if there is none, or if it belongs to another declaration."""
    if text is None:
        return None
    fields = json.loads(text)
    values = tuple(UnfitValues(*one) for one in fields.get("unfit", ()))
    checkpoint = Checkpoint(**{**fields, "carried": tuple(fields["carried"]), "unfit": values})
    return checkpoint if checkpoint.fingerprint == fingerprint else None


def changes_rows(commits: Iterable[Commit]) -> bool:
    """Whether any of these commits of raw added or removed rows that results can be made from."""
    return any(
        (commit.added or commit.removed) and EXPIRED not in commit.info and PACKED not in commit.info
        for commit in commits
    )
