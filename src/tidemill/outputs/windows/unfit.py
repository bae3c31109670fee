"""Which values the results of a window leave out: the type of their field was changed after the events were
accepted and cannot hold them. The checkpoint of the results records it, so that answers can say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidemill.config.stream import Stream
from tidemill.model.completeness import Missing, unfit
from tidemill.model.time import Interval


class UnfitValues(NamedTuple):
    """Values of a field that events of a tenant have between two instants, both included."""

    field: str
    tenant: str
    first: int
    last: int


def together(one: Iterable[UnfitValues], other: Iterable[UnfitValues]) -> frozenset[UnfitValues]:
    """Both, once for each field and tenant."""
    found: dict[tuple[str, str], UnfitValues] = {}
    for each in (*one, *other):
        known = found.get(each[:2], each)
        found[each[:2]] = UnfitValues(*each[:2], min(known.first, each.first), max(known.last, each.last))
    return frozenset(found.values())


def missing_values(
    stream: Stream, values: Sequence[UnfitValues], span: Interval, tenant: str | None
) -> list[Missing]:
    """What results lack of events in a span, of one tenant or (None) of all."""
    concerned = [one for one in values if tenant in (None, one.tenant)]
    found = []
    for name in dict.fromkeys(one.field for one in concerned):
        of_field = [one for one in concerned if one.field == name]
        reach = Interval(min(one.first for one in of_field), max(one.last for one in of_field) + 1)
        if reach.overlaps(span) and name in stream.fields:
            effect = "results that they belong to leave it out"
            found.append(unfit(reach, None, name, stream.fields[name].described, effect=effect))
    return found
