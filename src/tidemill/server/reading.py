"""All that is read over HTTP, and what an operator has done, as one router.

It decides nothing: each route is at home in a module of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from tidemill.server import (
    asking,
    measured,
    operating,
    overview,
    reading_quarantine,
    reading_streams,
    reading_vectors,
    reading_windows,
    sql,
    stream_events,
    tracing,
)
from tidemill.server.readers import Readers

if TYPE_CHECKING:
    from tidemill.server.service import Service


def router(service: Service) -> APIRouter:
    readers = Readers(service)
    routes = APIRouter()
    for room in (
        reading_streams,
        reading_windows,
        reading_vectors,
        asking,
        sql,
        reading_quarantine,
        stream_events,
        tracing,
        operating,
        overview,
        measured,
    ):
        routes.include_router(room.router(readers))
    return routes
