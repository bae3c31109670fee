"""Names that a file may give: streams, metrics, windows, transitions, sinks.

They become folders and columns, so nothing else passes.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from tidemill.config.quantities import wrong
from tidemill.model.names import NAME_HINT, is_safe_name


def _name(name: str) -> str:
    if not is_safe_name(name):
        raise wrong(f"name {name!r} is not allowed", NAME_HINT)
    return name


SafeName = Annotated[str, AfterValidator(_name)]
