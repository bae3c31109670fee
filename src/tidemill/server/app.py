"""The application: all routes on one service, every refusal a problem document, an exact OpenAPI.

It opens and closes nothing: the owner of the service does.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, FastAPI

from tidemill.server import (
    health_routes,
    ingest_routes,
    metrics_routes,
    object_routes,
    operator_routes,
    otlp_routes,
    overview_routes,
    problems,
    quarantine_routes,
    query_routes,
    sql_routes,
    stream_events,
    stream_routes,
    trace_routes,
    vector_routes,
    window_routes,
)
from tidemill.server.acknowledgements import Acknowledging
from tidemill.server.console import routes as console
from tidemill.server.openapi import describe
from tidemill.server.reader_threads import Readers

if TYPE_CHECKING:
    from tidemill.server.service import Service

SUMMARY: Final = "Events in, exact windows, rollups, answers and datasets out."


def create_app(service: Service) -> FastAPI:
    app = FastAPI(
        title="Tidemill",
        summary=SUMMARY,
        version=version("tidemill"),
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    problems.handle(app)
    acknowledging = Acknowledging(service)
    app.include_router(ingest_routes.router(service, acknowledging))
    app.include_router(otlp_routes.router(service, acknowledging))
    app.include_router(object_routes.router())
    app.include_router(_reading(Readers(service)))
    app.include_router(health_routes.router())
    app.include_router(console.router())
    describe(app)
    return app


def _reading(readers: Readers) -> APIRouter:
    """All routes that read, and those for operators."""
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
