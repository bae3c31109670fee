"""Stops a daemon cleanly: on SIGINT or SIGTERM it finishes what it is doing and returns.

The work runs in a thread of its own, because Spark replaces the SIGINT handler when its session is started
from the main thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
WAKE_UP: Final = 0.1  # seconds


def until_stopped(work: Callable[[threading.Event], None]) -> None:
    """Run `work` to its end. The first signal sets the event that it is given; a second one interrupts it."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def stop_requested(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    def body() -> None:
        try:
            work(stop)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            errors.append(error)

    before = {number: signal.signal(number, stop_requested) for number in SIGNALS}
    try:
        thread = threading.Thread(target=body, name="tidemill-run", daemon=True)
        thread.start()
        while thread.is_alive():
            # The system may give the signal to any thread; Python's handler runs when this one wakes up.
            thread.join(WAKE_UP)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if errors:
        raise errors[0]
