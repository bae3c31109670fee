"""Conditions as they are written in `tidemill.yaml`: text that is known to parse.

Whether the columns of one exist and can be compared so is for `checks_conditions`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from tidemill.config.quantities import wrong
from tidemill.model.errors import InputError
from tidemill.model.predicates import parse_predicate


def _condition(text: str) -> str:
    try:
        parse_predicate(text)
    except InputError as error:
        raise wrong(error.message, error.hint) from None
    return text


Condition = Annotated[str, AfterValidator(_condition)]
