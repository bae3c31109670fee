"""Counts of what a soak did: tests add to them, `scripts/soak.py` sums them up. Otherwise nothing is kept."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

FILE: Final = "TIDEMILL_SOAK_FIGURES"  # the environment variable with the path of the file
SEED: Final = "TIDEMILL_SOAK_SEED"


def record(**counts: int) -> None:
    """Add a line to the file of figures, if there is one."""
    if path := os.environ.get(FILE):
        with Path(path).open("a") as file:
            file.write(json.dumps(counts) + "\n")


def seeds(count: int) -> range:
    """Seeds for the repetitions of a test: others for each round of a soak, the same ones otherwise."""
    first = int(os.environ.get(SEED, "0")) * count
    return range(first, first + count)
