"""How long a test waits for what must come: longer than the slowest machine takes, so that only what never
comes fails. No test is done sooner or later because of it."""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 600.0  # seconds
