"""Whose data an answer may tell of: the rules for a token that is one tenant's, all of them in one place.

Pure. A tenant never learns of another: not its name, its events, how many there are, nor where they lie.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, TypedDict, TypeVar

from tidemill.config.stream import Stream
from tidemill.model.completeness import Pending
from tidemill.model.errors import ForbiddenError
from tidemill.query import Answer, Explanation
from tidemill.query.search.searching import SearchPage, SearchPlan
from tidemill.server.access.grants import Principal

Said = Mapping[str, object]
AnswerT = TypeVar("AnswerT", Answer, Explanation, SearchPage, SearchPlan)

# What a tenant sees of something that several tenants share: that it exists, and since when.
OF_WINDOW: Final = frozenset({"stream", "start", "end", "state", "revision"})
OF_PAST_DATASET: Final = frozenset({"at", "revision", "changed"})
OF_EVENT: Final = frozenset({"stream", "window", "start", "end", "revision"})
OF_FLUSHED: Final = frozenset({"window", "stream", "source", "trigger"})
# What is left out of an answer about a tenant's own events, since it counts those of all.
NOT_OF_ANSWER: Final = frozenset({"rows_read", "files_read", "version"})
NOT_OF_CELL: Final = frozenset({"tiles", "slices", "slices_total"})
NOT_OF_EVENT: Final = frozenset({"line", "watermark", "late"})  # how many others stand before it, and how far
NOT_OF_EXPLANATION: Final = frozenset({"rows", "files", "version"})
NOT_OF_PAGE: Final = frozenset({"facts"})
NOT_OF_ROW: Final = frozenset({"line"})  # how many records of others stand before it
NOT_OF_LATE_ROW: Final = NOT_OF_ROW | {"watermark", "lateness"}  # how far others were when it came
NOT_OF_RESULT: Final = frozenset({"watermark", "batch"})  # the same, and how many slices there were
NOT_OF_ENTRY: Final = "seq"  # counts the slices of all streams
NOT_OF_CATALOG: Final = frozenset({"parts", "left_out"})
OF_PLAN: Final = frozenset({"stream", "tenant", "span", "order", "payloads", "indexed", "completeness"})
_PENDING: Final[Mapping[str, str]] = {  # said to a tenant of a stream that it shares
    "landed": "data of the stream has landed and is not accepted yet",
    "failed": "data of the stream could not be read",
    "retraction": "data of the stream is being retracted",
    "tiles": "the numbers of some of the time are being built again",
    "windows": "some datasets or results are not built yet",
}


_RETRACTED: Final = "data of the stream that counted then was retracted since"
_OF_PAST: Final = frozenset({"at"})  # how many slices came since is others' business


class TenantRule(TypedDict):
    """How a question to the mill says whose events it is about."""

    tenant: str | None
    all_tenants: bool
    check_tenant: bool


def shares(stream: Stream, who: Principal) -> bool:
    """Whether events of other tenants than who asks can be in the stream."""
    return who.tenant is not None and stream.tenant.value is None


def whose(who: Principal, tenant: str | None, *, all_tenants: bool) -> TenantRule:
    """The tenants of a request. The tenant of a token need not have any events; it learns nothing of other
    tenants."""
    if all_tenants and who.tenant is not None:
        raise ForbiddenError(
            "the token is that of one tenant", hint=f"leave all_tenants out: the tenant is {who.tenant!r}"
        )
    found = tenant_for(who, tenant)
    return {"tenant": found, "all_tenants": all_tenants, "check_tenant": who.tenant is None}


def for_tenant(found: AnswerT, stream: Stream, who: Principal) -> AnswerT:
    """An answer as who asks may have it: what is pending in a shared stream, without numbers. While something
    is, nothing is called complete: from when on it is not would be the time of somebody's events."""
    if not shares(stream, who):
        return found
    pending = tuple(
        Pending(what, None, _PENDING[what], "It is dealt with by the next rounds")
        for what in dict.fromkeys(one.what for one in found.completeness.pending)
    )
    missing = tuple(
        replace(one, detail=_RETRACTED, remedy="ask AS OF a later instant") if one.why == "retracted" else one
        for one in found.completeness.missing
    )
    visible = replace(found.completeness, pending=pending, missing=missing)
    if pending:
        visible = replace(visible, complete_through=None, open=True)
    return replace(found, completeness=visible)


def past_for(said: Said, stream: Stream, who: Principal) -> Said:
    """An answer as of an instant, as who asks may have it."""
    past = said.get("as_of")
    return {**said, "as_of": only(past, _OF_PAST, stream, who)} if isinstance(past, Mapping) else said


def tenant_for(who: Principal, asked: str | None) -> str | None:
    """Whose events a question is about; None: those of all tenants."""
    if who.tenant is None:
        return asked
    if asked is not None and asked != who.tenant:
        raise ForbiddenError(
            "the token is that of another tenant", hint=f"leave the tenant out: it is {who.tenant!r}"
        )
    return who.tenant


def check_operator(who: Principal, what: str) -> None:
    """For what is not any single tenant's."""
    if who.tenant is not None:
        raise ForbiddenError(
            f"{what} are about all tenants, and the token is that of one",
            hint="use an operator's token: `tidemill token create` without --tenant",
        )


def check_whole(stream: Stream, who: Principal, what: str) -> None:
    """For what is only known of a stream as a whole."""
    if shares(stream, who):
        raise ForbiddenError(
            f"{what} of {stream.name} are about all its tenants, and the token is that of one",
            hint="use an operator's token: `tidemill token create` without --tenant",
        )


def only(said: Said, kept: Collection[str], stream: Stream, who: Principal) -> Said:
    """What is said of something that others have a part in."""
    return {name: value for name, value in said.items() if name in kept} if shares(stream, who) else said


def without(said: Said, left_out: Collection[str], stream: Stream, who: Principal) -> Said:
    """What is said of something of their own, without what would tell of others."""
    if not shares(stream, who):
        return said
    return {name: value for name, value in said.items() if name not in left_out}


def entry_for(entry: Said, who: Principal) -> Said:
    """An entry of the ledger as who asks may have it."""
    if who.tenant is None:
        return entry
    return {name: value for name, value in entry.items() if name != NOT_OF_ENTRY}


def event_for(event: Said, stream: Stream, who: Principal) -> Said:
    """A CloudEvent as who asks may have it: where a file lies on the server is the operator's to know."""
    data = event.get("data")
    if who.tenant is None or not isinstance(data, Mapping):
        return event
    visible = {name: value for name, value in data.items() if name not in ("uri", "location")}
    return {**event, "data": only(visible, OF_EVENT, stream, who)}
