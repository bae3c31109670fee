"""Serves the files of the console, and those of the chart library from where its wheel was installed.

The files hold no data, so they need no token; the pages get their data from the API. The chart library is
found without being imported.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidemill.model.errors import NotFoundError
from tidemill.server.parameters import check_parameters

STATIC: Final = Path(__file__).parent / "static"
PREFIX: Final = "/console/"
_VERSION: Final = "v-"  # prefix of the name of a version
INDEX: Final = "index.html"
CHARTS: Final = "bokeh"  # the package whose wheel brings the chart library
_CHART_FILES: Final = ("bokeh.min.js", "bokeh-api.min.js")
_MEDIA: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Pages may load and call only this server. The chart library makes style elements of its own.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept-Encoding",
}
_ASKED_AGAIN: Final = "no-cache"  # validated each time, sent only if it changed
_FOR_EVER: Final = "public, max-age=31536000, immutable"  # its name changes with its contents


@dataclass(frozen=True, slots=True)
class _ConsoleFile:
    """A file as it is sent."""

    content: bytes
    packed: bytes
    tag: str
    media: str


def router() -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    routes.add_api_route("/", _index, methods=["GET", "HEAD"], response_class=Response)
    routes.add_api_route(PREFIX + "{name:path}", _file, methods=["GET", "HEAD"], response_class=Response)
    return routes


async def _index(request: Request) -> Response:
    check_parameters(request)
    index = _file_named(INDEX)
    names = index.content.replace(PREFIX.encode(), f"{PREFIX}{_version()}/".encode())
    return _sent(request, _packed(names, index.media), _ASKED_AGAIN)


async def _file(request: Request, name: str) -> Response:
    """A file by its name, or by its name under the version of all files, which may be kept for ever."""
    check_parameters(request)
    version, _, rest = name.partition("/")
    kept = version.startswith(_VERSION)
    file_name = rest if kept else name
    return _sent(
        request, _file_named(file_name), _FOR_EVER if kept and version == _version() else _ASKED_AGAIN
    )


def _file_named(name: str) -> _ConsoleFile:
    path = _paths().get(name)
    if path is None or not path.is_file():
        raise NotFoundError(f"the console has no file {name[:80]!r}", hint="the console is at /")
    status = path.stat()
    return _read(path, status.st_mtime_ns, status.st_size)


def _version() -> str:
    """A name that identifies the contents of all files."""
    tags = [_file_named(name).tag for name, path in sorted(_paths().items()) if path.is_file()]
    return _VERSION + hashlib.sha256("".join(tags).encode()).hexdigest()[:16]


def _sent(request: Request, found: _ConsoleFile, kept: str) -> Response:
    headers = {**_HEADERS, "Cache-Control": kept, "ETag": found.tag}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    content = found.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"], content = "gzip", found.packed
    return Response(content, headers=headers, media_type=found.media)


@cache
def _paths() -> dict[str, Path]:
    """Every file that is served, by the name in the request: no other name leads to a file."""
    own = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.suffix in _MEDIA}
    return {**own, **chart_files()}


def chart_files() -> dict[str, Path]:
    """The files of the chart library, by name; none where it is not installed."""
    spec = find_spec(CHARTS)
    folders = spec.submodule_search_locations if spec is not None else None
    folder = Path(next(iter(folders))) if folders else None
    return {name: folder / "server" / "static" / "js" / name for name in _CHART_FILES} if folder else {}


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int, _size: int) -> _ConsoleFile:
    """The content of a file; read again when it changed."""
    return _packed(path.read_bytes(), _MEDIA[path.suffix])


@lru_cache(maxsize=64)
def _packed(content: bytes, media: str) -> _ConsoleFile:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return _ConsoleFile(content, gzip.compress(content, 6, mtime=0), tag, media)
