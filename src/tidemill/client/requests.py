"""The requests of the API: method, path, parameters, headers and body of each call.

Pure: the transport adds the address and the token. Every request of this API may be sent again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address
from math import ceil
from typing import Final
from urllib.parse import quote

from tidemill.client.bodies import Body, Ids, RequestPacker, compressed
from tidemill.client.retries import Retries, Tries
from tidemill.model.errors import InputError

URL: Final = "http://127.0.0.1:8470"
BATCH: Final = 1000  # events of a request
BATCH_BYTES: Final = 4 << 20
GZIP_ABOVE: Final = 64 << 10
WAITS: Final = 60.0  # seconds on top of the timeout, where the server says how long it waits
NO_BOUNDS: Final[Mapping[str, str]] = {}
SILENCE: Final = 60.0  # seconds; a server that is there says something more often
_JSON: Final = {"content-type": "application/json"}

Bound = str | datetime  # an instant that says its offset from UTC


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    waits: float = 0.0  # seconds that the answer may take longer than usual


@dataclass(frozen=True, slots=True)
class TenantParameters:
    """Which tenants a query is about."""

    tenant: str | None = None
    all_tenants: bool = False

    def fields(self) -> dict[str, object]:
        return {"tenant": self.tenant, "all_tenants": self.all_tenants or None}


def bounds(start: Bound | None, end: Bound | None) -> dict[str, str]:
    """Return declared bounds as parameters of the last request; empty if none are declared."""
    fields = {"start": start, "end": end}
    if start is None and end is None:
        return {}
    if start is None or end is None:
        raise InputError("declared bounds need both ends", hint="give both start and end, half-open")
    return {name: _bound(name, value) for name, value in fields.items() if value is not None}


def _bound(name: str, value: Bound) -> str:
    if isinstance(value, str):
        return value
    if value.tzinfo is None:
        raise InputError(
            f"{name} {value.isoformat()!r} does not say which time zone it is in",
            hint="give the datetime a tzinfo, such as datetime.UTC",
        )
    return value.isoformat()


@dataclass(frozen=True, slots=True)
class Rules:
    """How a client packs events and retries requests."""

    ids: Ids
    batch: int
    batch_bytes: int
    gzip_above: int | None
    retries: Retries
    clock: Callable[[], float]
    random: Callable[[], float]

    def __post_init__(self) -> None:
        if self.batch < 1 or self.batch_bytes < 1:
            raise InputError(
                "a request must hold at least one event", hint="make batch and batch_bytes 1 or more"
            )

    def packer(self) -> RequestPacker:
        return RequestPacker(self.ids, self.batch, self.batch_bytes)

    def tries(self) -> Tries:
        return Tries(self.retries, self.clock(), self.random)

    def events(
        self,
        stream: str,
        body: Body,
        wait: bool | float,
        source: str | None,
        bounds: Mapping[str, str] = NO_BOUNDS,
    ) -> Request:
        content, encoding = compressed(body.content, self.gzip_above)
        headers = {"content-type": body.media, **encoding}
        params = {**({} if source is None else {"source": source}), **(bounds if body.last else NO_BOUNDS)}
        waits = 0.0
        if wait is True:
            params["wait"], waits = "1", WAITS
        elif wait:
            headers["prefer"], waits = f"wait={ceil(wait)}", float(wait)
        path = f"/v1/streams/{quote(stream, safe='')}/events"
        return Request("POST", path, params, headers, content, waits)


def ingestion(id_: str) -> Request:
    return Request("GET", f"/v1/ingestions/{quote(id_, safe='')}")


def query(
    text: str | Mapping[str, object], tenants: TenantParameters, *, strict: bool, as_of: str | None
) -> Request:
    content = _json(query=text, **tenants.fields(), strict=strict or None, as_of=as_of)
    return Request("POST", "/v1/query", headers=_JSON, content=content)


def sql(text: str, tenants: TenantParameters, format_: str, *, strict: bool) -> Request:
    content = _json(sql=text, **tenants.fields(), strict=strict or None, format=format_)
    return Request("POST", "/v1/sql", headers=_JSON, content=content)


def search(
    stream: str,
    asked: str | Mapping[str, object],
    tenants: TenantParameters,
    limit: int | None,
    cursor: str | None,
    *,
    strict: bool,
) -> Request:
    content = _json(search=asked, **tenants.fields(), limit=limit, cursor=cursor, strict=strict or None)
    path = f"/v1/streams/{quote(stream, safe='')}/search"
    return Request("POST", path, headers=_JSON, content=content)


def events(last: str | None, stream: str | None) -> Request:
    headers = {"accept": "text/event-stream", "cache-control": "no-store"}
    if last is not None:
        headers["last-event-id"] = last
    params = {} if stream is None else {"stream": stream}
    return Request("GET", "/v1/events", params, headers, waits=SILENCE)


def overview() -> Request:
    return Request("GET", "/v1/overview")


def status() -> Request:
    return Request("GET", "/v1/status")


def trace(event_id: str, stream: str | None, tenant: str | None) -> Request:
    fields = {"id": event_id, "stream": stream, "tenant": tenant}
    return Request("GET", "/v1/trace", {name: value for name, value in fields.items() if value is not None})


def timeline(stream: str, start: str | None, end: str | None, limit: int | None) -> Request:
    return _of(stream, "timeline", **{"from": start, "to": end}, limit=_text(limit))


def window(stream: str, start: str) -> Request:
    return _of(stream, f"windows/{quote(start, safe='')}")


def window_changes(
    stream: str, start: str, old: int | None, new: int | None, limit: int | None, cursor: str | None
) -> Request:
    path = f"windows/{quote(start, safe='')}/revisions"
    return _of(stream, path, **{"from": _text(old), "to": _text(new)}, limit=_text(limit), cursor=cursor)


def rebuild(stream: str, start: str | None, end: str | None, *, include_late: bool, explain: bool) -> Request:
    fields = {"from": start, "to": end, "include_late": include_late or None, "explain": explain or None}
    return _do(stream, "rebuild", **fields)


def retry(stream: str, at: str | None) -> Request:
    return _do(stream, "retry", at=at)


def replay(stream: str, reason: str | None) -> Request:
    return _do(stream, "replay", reason=reason)


def cell(
    text: str,
    start: str | None,
    group: Mapping[str, object],
    tenants: TenantParameters,
    as_of: str | None,
    limit: int | None,
    cursor: str | None,
) -> Request:
    fields = {
        "q": text,
        "start": start,
        "group": json.dumps(group),
        "tenant": tenants.tenant,
        "all_tenants": "true" if tenants.all_tenants else None,
        "as_of": as_of,
        "limit": _text(limit),
        "cursor": cursor,
    }
    params = {name: value for name, value in fields.items() if value is not None}
    return Request("GET", "/v1/query/cell", params)


def changes(
    stream: str, after: str, start: str | None, end: str | None, limit: int | None, cursor: str | None
) -> Request:
    span = {"from": start, "to": end}
    return _of(stream, "changes", after=after, **span, limit=_text(limit), cursor=cursor)


def vector(stream: str, vector_id: str | int, at: str | None, tenant: str | None) -> Request:
    return _of(stream, f"vectors/{quote(str(vector_id), safe='')}", at=at, tenant=tenant)


def chain(stream: str, vector_id: str | int, tenant: str | None) -> Request:
    return _of(stream, f"chains/{quote(str(vector_id), safe='')}", tenant=tenant)


def deltas(
    stream: str,
    window: str | None,
    start: str | None,
    end: str | None,
    tenant: str | None,
    limit: int | None,
) -> Request:
    most = None if limit is None else str(limit)
    return _of(stream, "deltas", window=window, **{"from": start, "to": end}, tenant=tenant, limit=most)


def results(
    stream: str,
    window: str | None,
    start: str | None,
    end: str | None,
    tenant: str | None,
    limit: int | None,
    *,
    revisions: bool,
) -> Request:
    if window is None:
        return _of(stream, "results")
    span = {"from": start, "to": end}
    fields = {"tenant": tenant, "revisions": "true" if revisions else None}
    most = None if limit is None else str(limit)
    return _of(stream, f"results/{quote(window, safe='')}", **span, **fields, limit=most)


def flush(stream: str | None) -> Request:
    return Request("POST", "/v1/flush", {} if stream is None else {"stream": stream}, waits=WAITS)


def _of(stream: str, path: str, **params: str | None) -> Request:
    fields = {name: value for name, value in params.items() if value is not None}
    return Request("GET", f"/v1/streams/{quote(stream, safe='')}/{path}", fields)


def _do(stream: str, path: str, **fields: object) -> Request:
    path = f"/v1/streams/{quote(stream, safe='')}/{path}"
    return Request("POST", path, headers=_JSON, content=_json(**fields), waits=WAITS)


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def sender(token: str | None) -> dict[str, str]:
    """Return the headers of every request."""
    return {"user-agent": "tidemill"} | ({} if token is None else {"authorization": f"Bearer {token}"})


def is_here(host: str) -> bool:
    """Return whether the server is on this machine; then proxies of the environment are not used."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _json(**fields: object) -> bytes:
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
