"""Bodies are read by compiled parts: they are there before a test is timed."""

from __future__ import annotations

import pytest

from tidemill.formats.bodies import warm


@pytest.fixture(autouse=True, scope="session")
def _compiled() -> None:
    warm()
