"""Identifies callers and checks their permissions: tokens, scopes, the Host of a server without tokens, rate
limits.

Nothing of a request is read before its caller is known.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from fastapi import Depends
from starlette.requests import Request

from tidemill.config.gateway import is_loopback
from tidemill.model.errors import ForbiddenError, TidemillError
from tidemill.server.access.tokens import LOCAL, Principal, Scope
from tidemill.server.parameters import check_parameters

if TYPE_CHECKING:
    from tidemill.server.service import Service

MAX_HOST: Final = 255


def service_of(request: Request) -> Service:
    return cast("Service", request.app.state.service)


def caller(*scopes: Scope) -> Any:
    """A dependency that gives the `Principal` of a request that may use one of `scopes`:
    `principal: Principal = caller(Scope.READ)`, or `Annotated[Principal, caller(Scope.READ)]`."""

    async def dependency(request: Request) -> Principal:  # not a plain function: those take a thread each
        return admitted(request, *scopes)

    return Depends(dependency)


def admitted(request: Request, *scopes: Scope) -> Principal:
    """The principal of a request. AuthError: unknown; ForbiddenError: not allowed; RateLimitError: too
    often."""
    service = service_of(request)
    principal = _principal(service, request, service.clock())
    if not any(principal.may(scope) for scope in scopes):
        needed = " or ".join(scope.value for scope in scopes)
        raise ForbiddenError(
            f"the token may not do this: it needs the scope {needed}",
            hint=f"make one with `tidemill token create --scope {scopes[0].value}`",
        )
    service.rates.admit(principal, 1, service.timer())
    check_parameters(request)
    return principal


def sender_of(request: Request, principal: Principal) -> str:
    """The holder of a quota: a token, or, without tokens, the address of the client."""
    if principal is not LOCAL:
        return principal.id
    return request.client.host if request.client is not None else LOCAL.id


def is_still(request: Request, principal: Principal) -> bool:
    """Whether the caller would be admitted again as the same: for long-running responses."""
    service = service_of(request)
    try:
        return _principal(service, request, service.clock()) == principal
    except TidemillError:  # also if that is unknown: the file of tokens is damaged
        return False


def _principal(service: Service, request: Request, now: int) -> Principal:
    if service.tokens.any_made() or not service.loopback:
        return service.tokens.authenticate(request.headers.get("authorization"), now)
    _check_host(request)
    return LOCAL


@lru_cache(maxsize=64)  # the same one in nearly every request
def _is_here(host: str) -> bool:
    """Whether a Host header names this machine, whatever the port."""
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name.lower())


def _check_host(request: Request) -> None:
    """A page of another site can make a browser call this server, but only under that site's name."""
    host = request.headers.get("host", "")
    if len(host) > MAX_HOST or not _is_here(host):
        raise ForbiddenError(
            f"the request is addressed to {host[:MAX_HOST]!r}",
            hint="without tokens only 127.0.0.1, [::1] and localhost are served; `tidemill token create`",
        )
    if request.headers.get("origin", f"http://{host}") != f"http://{host}":
        raise ForbiddenError(
            "the request comes from a web page of another site",
            hint="without tokens only the console may do that: run `tidemill token create`",
        )
