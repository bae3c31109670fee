"""What becomes of what comes late: slices that windows were served without, and rows behind the watermark.

Declared only; who is late and what it changes is decided elsewhere.
"""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import model_validator

from tidemill.config.quantities import PositiveDuration, wrong
from tidemill.config.schema import SECTION


class LateSlices(pydantic.BaseModel):
    """What becomes of slices that arrive after the cutoff of a window that was served by then: they are
    discarded (recorded as ignored for that window), or for a while make it come out again."""

    model_config = SECTION

    policy: Literal["discard", "reemit"] = "discard"
    max_lateness: PositiveDuration | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: object) -> object:
        return _with_policy(data)

    @model_validator(mode="after")
    def _only_reemit_has_an_end(self) -> LateSlices:
        _check_end(self.policy, self.max_lateness, "7d")
        return self


class LateRows(pydantic.BaseModel):
    """What becomes of rows that are late: `discard`, `next_window`, or `{policy: reemit, max_lateness: 1h}`.
    `by` says what makes them late: the watermark that they met, or that their window had ended by then."""

    model_config = SECTION

    policy: Literal["discard", "next_window", "reemit"] = "discard"
    by: Literal["row", "window"] = "row"
    max_lateness: PositiveDuration | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: object) -> object:
        return _with_policy(data)

    @model_validator(mode="after")
    def _only_reemit_has_an_end(self) -> LateRows:
        _check_end(self.policy, self.max_lateness, "1h")
        return self


def _with_policy(data: object) -> object:
    return {"policy": data} if isinstance(data, str) else data


def _check_end(policy: str, max_lateness: int | None, example: str) -> None:
    if policy == "reemit" and max_lateness is None:
        raise wrong("reemit needs max_lateness", f"write {{policy: reemit, max_lateness: {example}}}")
    if policy != "reemit" and max_lateness is not None:
        raise wrong(f"{policy} has no max_lateness", "leave it out, or use policy: reemit")
