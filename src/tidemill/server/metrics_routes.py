"""What is measured, for Prometheus: the streams as they stand, what this process did, and its gateway.

Numbers of all tenants together, so it is an operator's to read.
"""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from tidemill.server.reader_threads import Reader, Readers
from tidemill.server.tenancy import check_operator


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["health"])
    readers.service.meter.watch(readers.service.gateway.status)

    async def metrics(who: Reader) -> Response:
        check_operator(who, "metrics")
        text = await readers.run(readers.service.meter.text)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    content = {"text/plain": {"schema": {"type": "string"}, "example": "tidemill_gateway_wal_bytes 0.0\n"}}
    routes.add_api_route(
        "/metrics",
        metrics,
        summary="Metrics in the text format of Prometheus",
        operation_id="get_metrics",
        response_class=Response,
        responses={200: {"description": "All of them", "content": content}},
    )
    return routes
