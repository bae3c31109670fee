"""Records that hold several messages, as declared: where the messages stand and what names their streams.

What their streams say of event time is filled in by the loader. Nothing here looks at a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pydantic
from pydantic import PrivateAttr

from tidemill.config.schema import SECTION, ColumnName


class MessageTime(NamedTuple):
    """The event time that messages of one stream have: a column of theirs, its type, and the time zone of
    those without an offset."""

    column: str
    type: str
    timezone: str | None = None


class Messages(pydantic.BaseModel):
    """Each record holds an array of messages, in `column`, and each message belongs to a declared stream.

    `stream` is the key of a message that names its stream; `body` the one that holds its fields. None: the
    message itself holds them."""

    model_config = SECTION

    column: str
    stream: ColumnName = "stream"
    body: ColumnName | None = None
    _times: Mapping[str, MessageTime] = PrivateAttr(default_factory=dict)

    @property
    def times(self) -> Mapping[str, MessageTime]:
        """By stream, for those of the project whose event time is in use; empty before they are known."""
        return self._times

    def among(self, times: Mapping[str, MessageTime]) -> Messages:
        """The same, in a project whose streams have these event times."""
        found = self.model_copy()
        found._times = dict(times)
        return found
