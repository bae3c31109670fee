"""A client of a Tidemill server: sends events until they are durable, asks, and listens.

It knows the API and nothing of a warehouse, so it also works where no engine is installed beside it.
"""

from tidemill.client.aio import AsyncClient
from tidemill.client.answers import ClientError, DatasetEvent, Ingestion, Outcome, Sent
from tidemill.client.retrying import Retries
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
