"""The responses of the API as values: outcomes of events, problems, pages, and server-sent events.

Pure: bytes and headers in, values out. Numbers with a fraction are decimals, since answers are exact.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final

from tidemill.client.retries import AGAIN
from tidemill.model.errors import Retry, TidemillError

Document = dict[str, object]
_DECIDED: Final = frozenset({200, 207, 409, 422})  # a response with outcomes: the caller waited for them


class ClientError(TidemillError):
    """The server refused the request, or could not be reached. `code`, `hint`, `where` and `retry` are from
    its answer."""

    code = "unreachable"
    retry = Retry.LATER
    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        where: str = "",
        status: int | None = None,
        code: str = "unreachable",
        retry: Retry = Retry.LATER,
        problem: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.status = status  # of the answer; None: there was none
        self.code = code
        self.retry = retry
        self.problem = dict(problem or {})  # the document as it came


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one event."""

    index: int  # its place among the events that were sent, from 0
    outcome: str  # accepted, duplicate, conflict or rejected
    event_id: str | None = None
    code: str | None = None  # why it was rejected
    detail: str | None = None
    content_hash: str | None = None
    accepted_hash: str | None = None  # of a conflict: of the one that came first


@dataclass(frozen=True, slots=True)
class Sent:
    """Events that are durable; after waiting, also the outcome of each."""

    ingestions: tuple[str, ...]  # one for each request
    events: int
    status: str  # durable; waited for: decided, or pending when the time ran out
    counts: Mapping[str, int] = field(default_factory=dict)  # events by outcome
    outcomes: tuple[Outcome, ...] = ()

    @property
    def ingestion(self) -> str | None:
        """The id of the last request; None when there was nothing to send."""
        return self.ingestions[-1] if self.ingestions else None

    @property
    def ok(self) -> bool:
        """Whether no event is known to be rejected or in conflict."""
        return not any(self.counts.get(name, 0) for name in ("conflict", "rejected"))


@dataclass(frozen=True, slots=True)
class Ingestion:
    """Where the events of one request are, and their outcomes."""

    ingestion: str
    stream: str
    status: str  # buffered, landed, decided, failed or retracted
    events: int
    slice: str | None = None
    window: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True, slots=True)
class DatasetEvent:
    """One server-sent event: a CloudEvent, and its position in the order of all events."""

    id: str
    type: str
    event: Mapping[str, object]


def document(content: bytes) -> Document:
    """Return the JSON object of a response; empty if it is something else."""
    try:
        fields = json.loads(content, parse_float=Decimal)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def problem_of(status: int, reason: str, content: bytes) -> ClientError | None:
    """Return the error of a response; None if it is not one. Outcomes of events are not errors."""
    if status < 300:
        return None
    fields = document(content)
    if status in _DECIDED and "outcomes" in fields:
        return None
    later = Retry.LATER if status in AGAIN else Retry.NEVER
    title = fields.get("detail") or fields.get("title") or f"the server answered {status} {reason}".rstrip()
    return ClientError(
        str(title),
        hint=_text(fields, "hint") or "",
        where=_text(fields, "where") or "",
        status=status,
        code=_text(fields, "code") or f"http_{status}",
        retry=_retry(fields) or later,
        problem=fields,
    )


def unreachable(url: str, error: Exception) -> ClientError:
    why = str(error) or type(error).__name__
    return ClientError(
        f"the server did not answer: {why}",
        where=url,
        hint="is it running there? `tidemill serve` or `tidemill up` starts one",
    )


def is_worth_another_try(problem: ClientError) -> bool:
    return problem.retry is Retry.LATER and (problem.status is None or problem.status in AGAIN)


def sent(status: int, content: bytes) -> Sent:
    """Read the response to one request with events."""
    fields = document(content)
    if _text(fields, "ingestion") is None:
        raise ClientError(
            f"the server answered {status}, but not as Tidemill does",
            hint="does the address lead to a Tidemill server?",
            status=status,
            code="answer",
            retry=Retry.NEVER,
        )
    found_value = fields.get("status")
    decided = "decided" if status in _DECIDED else "durable"
    return Sent(
        ingestions=(str(fields["ingestion"]),),
        events=_number(fields, "events"),
        status=found_value
        if isinstance(found_value, str)
        else decided,  # of a problem document it is a number
        counts=_counts(fields),
        outcomes=_outcomes(fields),
    )


def together(parts: Sequence[Sent]) -> Sent:
    """Combine the responses to the requests of one call; indexes of events count over all of them."""
    counts: Counter[str] = Counter()
    outcomes: list[Outcome] = []
    events = 0
    for part in parts:
        counts.update(part.counts)
        outcomes += [replace(one, index=one.index + events) for one in part.outcomes]
        events += part.events
    states = [part.status for part in parts]
    return Sent(
        ingestions=tuple(one for part in parts for one in part.ingestions),
        events=events,
        status=next((one for one in states if one != "decided"), "decided" if states else "durable"),
        counts=dict(counts),
        outcomes=tuple(outcomes),
    )


def ingestion(content: bytes) -> Ingestion:
    fields = document(content)
    return Ingestion(
        ingestion=str(fields.get("ingestion", "")),
        stream=str(fields.get("stream", "")),
        status=str(fields.get("status", "")),
        events=_number(fields, "events"),
        slice=_text(fields, "slice"),
        window=_text(fields, "window"),
        counts=_counts(fields),
        outcomes=_outcomes(fields),
    )


def page(content: bytes) -> tuple[list[Document], str | None]:
    """Return the events of one page and the cursor of the next; None after the last page."""
    fields = document(content)
    rows = fields.get("rows")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return found, _text(fields, "cursor")


def _outcomes(fields: Document) -> tuple[Outcome, ...]:
    found_value = fields.get("outcomes")
    return tuple(
        Outcome(
            index=_number(one, "index"),
            outcome=str(one.get("outcome", "")),
            event_id=_text(one, "event_id"),
            code=_text(one, "code"),
            detail=_text(one, "detail"),
            content_hash=_text(one, "content_hash"),
            accepted_hash=_text(one, "accepted_hash"),
        )
        for one in (found_value if isinstance(found_value, list) else ())
        if isinstance(one, dict)
    )


def _counts(fields: Document) -> dict[str, int]:
    found_value = fields.get("counts")
    pairs = found_value.items() if isinstance(found_value, dict) else ()
    return {name: count for name, count in pairs if isinstance(count, int)}


def _text(fields: Document, key: str) -> str | None:
    value = fields.get(key)
    return value if isinstance(value, str) else None


def _retry(fields: Document) -> Retry | None:
    return next((one for one in Retry if one.value == fields.get("retry")), None)


def _number(fields: Document, key: str) -> int:
    value = fields.get(key)
    return value if isinstance(value, int) else 0


_LINE_END: Final = re.compile(r"\r\n|\n|\r")  # and no other: letters that look like one are data


class EventLines:
    """Parses server-sent events, as the HTML standard defines them, over one connection after the other.

    The caller passes in what it reads, and uses `last` and `pause` when it connects again.
    """

    def __init__(self, last: str | None = None) -> None:
        self.last = last  # id of the last event, for Last-Event-ID
        self.pause: float | None = None  # seconds that the server wants before a connection is made again
        self.connected()

    def connected(self) -> None:
        """Discard what the previous connection left unfinished: the server sends it again."""
        self._piece = ""
        self._begin()

    def _begin(self) -> None:
        self._id = self.last
        self._type = ""
        self._data: list[str] = []

    def read(self, text: str) -> Iterator[DatasetEvent]:
        """Parse the text received, and yield the events that it completes."""
        text = self._piece + text
        held = "\r" if text.endswith("\r") else ""  # its line feed may be still to come
        *lines, rest = _LINE_END.split(text.removesuffix(held))
        self._piece = rest + held
        for line in lines:
            if (event := self._line(line)) is not None:
                yield event

    def _line(self, text: str) -> DatasetEvent | None:
        if not text:
            return self._complete()
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.pause = int(value) / 1000
        return None

    def _complete(self) -> DatasetEvent | None:
        data, type_, self.last = "\n".join(self._data), self._type, self._id
        self._begin()
        return DatasetEvent(self.last or "", type_ or "message", document(data.encode())) if data else None
