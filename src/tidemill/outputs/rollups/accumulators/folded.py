"""What an accumulator gives: columns of cells, and which group each cell belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidemill.formats.arrays import Ints


@dataclass(frozen=True, slots=True)
class Folded:
    columns: Mapping[str, pa.Array]
    group: Ints | None = None  # of each cell; None: every group has one
