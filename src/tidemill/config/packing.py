"""How small parts of raw become large ones: how many slices at once, and how soon.

Says nothing about what is in a slice: packing changes no row.
"""

from __future__ import annotations

from typing import Annotated, Final

import pydantic
from pydantic import StrictBool, StrictInt, model_validator

from tidemill.config.quantities import ByteSize, PositiveDuration, wrong
from tidemill.config.schema import SECTION
from tidemill.model.time import MINUTE, SECOND

MIB: Final = 1 << 20


class Pack(pydantic.BaseModel):
    """Slices are packed when there are so many of them, or so many bytes; each of them once."""

    model_config = SECTION

    enabled: StrictBool = True  # by the daemon; `tidemill pack` does it in any case
    slices: Annotated[StrictInt, pydantic.Field(ge=1, le=100_000)] = 64
    bytes: Annotated[ByteSize, pydantic.Field(ge=1)] = 128 * MIB  # of the parts that their rows are in
    partial: PositiveDuration = 5 * SECOND  # until the daemon looks again at a group that is not full
    idle: PositiveDuration = 30 * SECOND  # … and when there is nothing to pack
    retry_delay: PositiveDuration = 5 * SECOND  # until a slice that failed is tried again; doubles each time
    max_retry_delay: PositiveDuration = 10 * MINUTE

    @model_validator(mode="after")
    def _delays_grow(self) -> Pack:
        if self.max_retry_delay < self.retry_delay:
            raise wrong("max_retry_delay is less than retry_delay", "make it as long, or longer")
        if self.idle < self.partial:
            raise wrong("idle is less than partial", "make it as long, or longer")
        return self
