"""Conditions as they are written in `tidemill.yaml`: text that is known to parse.

Whether the columns of one exist and can be compared so is for `checks_conditions`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from tidemill.config.quantities import wrong
from tidemill.model.conditions.declared import parse_condition
from tidemill.model.errors import QueryError


def _condition(text: str) -> str:
    try:
        parse_condition(text)
    except QueryError as error:
        raise wrong(f"{error.message} at character {(error.position or 0) + 1}", error.hint) from None
    return text


Condition = Annotated[str, AfterValidator(_condition)]
