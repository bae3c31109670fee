"""Forks the Python workers of a session on this machine: PySpark's own daemon, whose workers end in silence.

Spark ends a worker that has idled for a minute by closing its socket. The worker then tries to report that
through the socket, and PySpark prints a stack trace about it to the terminal. Spark runs this module; nothing
that it imports may start a thread, since it forks.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from pyspark import daemon

Worker = Callable[[socket.socket, bool], int]

_CLOSED = 1  # an exit code: the worker serves no further tasks


def ending_quietly(worker: Worker) -> Worker:
    """The worker, for which a closed connection is no error."""

    def serve(sock: socket.socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except BrokenPipeError:
            return _CLOSED

    return serve


if __name__ == "__main__":
    daemon.worker = ending_quietly(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
