"""Metrics for Prometheus: the state of the streams, the work of this process, and its gateway.

The numbers cover all tenants, so only operators may read them.
"""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from tidemill.server.reader_threads import Reader, Readers
from tidemill.server.tenancy import check_operator


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["health"], default_response_class=Response)
    readers.service.meter.watch(readers.service.gateway.status)

    async def metrics(principal: Reader) -> Response:
        check_operator(principal, "metrics")
        text = await readers.run(readers.service.meter.text)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    content = {"text/plain": {"schema": {"type": "string"}, "example": "tidemill_gateway_wal_bytes 0.0\n"}}
    routes.add_api_route(
        "/metrics",
        metrics,
        summary="Metrics in the text format of Prometheus",
        operation_id="get_metrics",
        responses={200: {"description": "All of them", "content": content}},
    )
    return routes
