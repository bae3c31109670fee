"""Telling the world of datasets: CloudEvents from the outbox of the state, delivered to the sinks."""

from tidemill.events.cloudevents import cloud_event, encoded
from tidemill.events.delivery import Delivered, Delivery

__all__ = ["Delivered", "Delivery", "cloud_event", "encoded"]
