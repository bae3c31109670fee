"""The application: all routes on one service, every refusal a problem document, an exact OpenAPI.

It opens and closes nothing: the owner of the service does.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI

from tidemill.server import health_routes, ingest_routes, object_routes, otlp_routes, problems, read_routes
from tidemill.server.acknowledgements import Acknowledging
from tidemill.server.console import serving as console
from tidemill.server.openapi import describe

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
    app.include_router(read_routes.router(service))
    app.include_router(health_routes.router())
    app.include_router(console.router())
    describe(app)
    return app
