"""Event time: how a value becomes an instant, and how far a source has come. Pure; no Spark, no I/O."""

from tidemill.eventtime.clock import Clock
from tidemill.eventtime.registry import Origin, Parser, origin, register, registered, resolve

__all__ = ["Clock", "Origin", "Parser", "origin", "register", "registered", "resolve"]
