"""All routes that read, and those for operators, as one router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from tidemill.server import (
    metrics_routes,
    operator_routes,
    overview_routes,
    quarantine_routes,
    query_routes,
    sql_routes,
    stream_events,
    stream_routes,
    trace_routes,
    vector_routes,
    window_routes,
)
from tidemill.server.reader_threads import Readers

if TYPE_CHECKING:
    from tidemill.server.service import Service


def router(service: Service) -> APIRouter:
    readers = Readers(service)
    routes = APIRouter()
    for module in (
        stream_routes,
        window_routes,
        vector_routes,
        query_routes,
        sql_routes,
        quarantine_routes,
        stream_events,
        trace_routes,
        operator_routes,
        overview_routes,
        metrics_routes,
    ):
        routes.include_router(module.router(readers))
    return routes
