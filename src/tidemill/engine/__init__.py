"""Spark: the session, and the one way in which a kernel runs over units of work."""

from tidemill.engine.jobs import Engine

__all__ = ["Engine"]
