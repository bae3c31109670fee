"""Spark: the session, and the one way in which a kernel runs over units of work."""

from tidemill.engine.executors import runs_here
from tidemill.engine.jobs import Engine
from tidemill.engine.session import SessionSettings

__all__ = ["Engine", "SessionSettings", "runs_here"]
