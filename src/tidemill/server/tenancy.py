"""What a caller with the token of one tenant may see: all rules in one place.

Pure. A tenant never learns anything about another: not its name, its events, their number or their location.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypedDict, TypeVar

from tidemill.config.stream import Stream
from tidemill.model.completeness import Pending
from tidemill.model.errors import ForbiddenError
from tidemill.query import Answer, Explanation
from tidemill.query.search.search import SearchPage, SearchPlan
from tidemill.server.access.grants import Principal

Fields = Mapping[str, object]
AnswerT = TypeVar("AnswerT", Answer, Explanation, SearchPage, SearchPlan)

# What a tenant sees of something that several tenants share: that it exists, and since when.
OF_WINDOW: Final = frozenset({"stream", "start", "end", "state", "revision"})
OF_PAST_DATASET: Final = frozenset({"at", "revision", "changed"})
OF_EVENT: Final = frozenset({"stream", "window", "start", "end", "revision"})
OF_FLUSHED: Final = frozenset({"window", "stream", "source", "trigger"})
# What is left out of an answer about a tenant's own events, since it counts those of all.
NOT_OF_ANSWER: Final = frozenset({"rows_read", "files_read", "version"})
NOT_OF_CELL: Final = frozenset({"tiles", "slices", "slices_total"})
# would show how many events of others come before it
NOT_OF_EVENT: Final = frozenset({"line", "watermark", "late"})
NOT_OF_EXPLANATION: Final = frozenset({"rows", "files", "version"})
NOT_OF_PAGE: Final = frozenset({"facts"})
NOT_OF_ROW: Final = frozenset({"line"})  # would show how many records of others come before it
# would show the progress of others when it arrived
NOT_OF_LATE_ROW: Final = NOT_OF_ROW | {"watermark", "lateness"}
NOT_OF_RESULT: Final = frozenset({"watermark", "batch"})  # the same, and the number of slices
NOT_OF_ENTRY: Final = "seq"  # counts the slices of all streams
NOT_OF_CATALOG: Final = frozenset({"parts", "left_out"})
OF_PLAN: Final = frozenset({"stream", "tenant", "span", "order", "payloads", "indexed", "completeness"})
_PENDING: Final[Mapping[str, str]] = {  # shown to a tenant of a shared stream
    "landed": "data of the stream has landed and is not accepted yet",
    "failed": "data of the stream could not be read",
    "retraction": "data of the stream is being retracted",
    "tiles": "the numbers of some of the time are being built again",
    "windows": "some datasets or results are not built yet",
    "results": "some results are being computed again",
}


_RETRACTED: Final = "data of the stream that counted then was retracted since"
_OF_PAST: Final = frozenset({"at"})  # the number of later slices would tell about others


class TenantRule(TypedDict):
    """The tenant arguments of a call of `Mill`."""

    tenant: str | None
    all_tenants: bool
    check_tenant: bool


def shares(stream: Stream, caller: Principal) -> bool:
    """Whether the stream can have events of other tenants than the caller's."""
    return caller.tenant is not None and stream.tenant.value is None


def tenants_of(caller: Principal, tenant: str | None, *, all_tenants: bool) -> TenantRule:
    """The tenants of a request. The tenant of a token need not have any events; it learns nothing of other
    tenants."""
    if all_tenants and caller.tenant is not None:
        raise ForbiddenError(
            "the token is for one tenant",
            hint=f"leave all_tenants out: the tenant is {caller.tenant!r}",
        )
    found = tenant_for(caller, tenant)
    return {"tenant": found, "all_tenants": all_tenants, "check_tenant": caller.tenant is None}


def for_tenant(found: AnswerT, stream: Stream, caller: Principal) -> AnswerT:
    """An answer as the caller may see it: what is pending in a shared stream, without numbers. While anything
    is pending, no time is reported as complete: that would show the time of someone's events."""
    if not shares(stream, caller):
        return found
    pending = pending_for(found.completeness.pending, stream, caller)
    missing = tuple(
        replace(one, detail=_RETRACTED, remedy="ask AS OF a later instant") if one.why == "retracted" else one
        for one in found.completeness.missing
    )
    visible = replace(found.completeness, pending=pending, missing=missing)
    if pending:
        visible = replace(visible, complete_through=None, open=True)
    return replace(found, completeness=visible)


def pending_for(found: Sequence[Pending], stream: Stream, caller: Principal) -> tuple[Pending, ...]:
    """What is pending, as the caller may see it: in a shared stream only its kind."""
    if not shares(stream, caller):
        return tuple(found)
    kinds = dict.fromkeys(one.what for one in found)
    return tuple(Pending(what, None, _PENDING[what], "The next rounds take care of it") for what in kinds)


def past_for(document: Fields, stream: Stream, caller: Principal) -> Fields:
    """An answer as of an instant, as the caller may see it."""
    past = document.get("as_of")
    return (
        {**document, "as_of": only(past, _OF_PAST, stream, caller)} if isinstance(past, Mapping) else document
    )


def tenant_for(caller: Principal, question: str | None) -> str | None:
    """The tenant of a request; None: all tenants."""
    if caller.tenant is None:
        return question
    if question is not None and question != caller.tenant:
        raise ForbiddenError(
            "the token is for another tenant", hint=f"leave the tenant out: it is {caller.tenant!r}"
        )
    return caller.tenant


def check_operator(caller: Principal, what: str) -> None:
    """ForbiddenError unless the caller is an operator: for data that belongs to no single tenant."""
    if caller.tenant is not None:
        raise ForbiddenError(
            f"{what} are about all tenants, but the token is for one",
            hint="use an operator's token: `tidemill token create --all-tenants`",
        )


def check_whole(stream: Stream, caller: Principal, what: str) -> None:
    """ForbiddenError for a tenant of a shared stream: for facts about the stream as a whole."""
    if shares(stream, caller):
        raise ForbiddenError(
            f"{what} of {stream.name} are about all its tenants, but the token is for one",
            hint="use an operator's token: `tidemill token create --all-tenants`",
        )


def only(document: Fields, kept: Collection[str], stream: Stream, caller: Principal) -> Fields:
    """Only the keys `kept` of a document about something that tenants share."""
    return (
        {name: value for name, value in document.items() if name in kept}
        if shares(stream, caller)
        else document
    )


def without(document: Fields, left_out: Collection[str], stream: Stream, caller: Principal) -> Fields:
    """A document about a tenant's own data, without the keys that would tell about others."""
    if not shares(stream, caller):
        return document
    return {name: value for name, value in document.items() if name not in left_out}


def entry_for(entry: Fields, caller: Principal) -> Fields:
    """An entry of the ledger as the caller may see it."""
    if caller.tenant is None:
        return entry
    return {name: value for name, value in entry.items() if name != NOT_OF_ENTRY}


def event_for(event: Fields, stream: Stream, caller: Principal) -> Fields:
    """A CloudEvent as the caller may see it: only operators see where a file is on the server."""
    data = event.get("data")
    if caller.tenant is None or not isinstance(data, Mapping):
        return event
    visible = {name: value for name, value in data.items() if name not in ("uri", "location")}
    return {**event, "data": only(visible, OF_EVENT, stream, caller)}
