"""Events about datasets and results: CloudEvents from the outbox of the state, delivered to the sinks."""

from tidemill.pipeline.events.cloudevents import cloud_event, encoded
from tidemill.pipeline.events.delivery import Delivered, Delivery

__all__ = ["Delivered", "Delivery", "cloud_event", "encoded"]
