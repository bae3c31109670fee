"""A client of a Tidemill server: sends events until they are durable, queries, and receives events.

It knows the API and nothing of a warehouse, so it needs no engine beside it.
"""

from tidemill.client.aio import AsyncClient
from tidemill.client.responses import ClientError, DatasetEvent, Ingestion, Outcome, Sent
from tidemill.client.retries import Retries
from tidemill.client.sync import Client

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "DatasetEvent",
    "Ingestion",
    "Outcome",
    "Retries",
    "Sent",
]
