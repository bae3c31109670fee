"""Delivery: every sink gets every event of the outbox, in order, at least once.

A sink's cursor in the state moves only after the sink has an event, so a crash repeats events and loses none.
Each sink has a thread of its own: a slow or broken one delays neither the others nor the round.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from tidemill.config.events import Events, FileSink, RedisSink, Sink, WebhookSink
from tidemill.model.errors import TidemillError
from tidemill.model.failpoints import failpoint
from tidemill.model.time import format_instant
from tidemill.model.windows import OutboxEvent
from tidemill.pipeline.events.cloudevents import cloud_event, encoded
from tidemill.pipeline.events.file_sink import FileSender
from tidemill.pipeline.events.redis_sink import RedisSender
from tidemill.pipeline.events.sink import Message, Sender, Trouble
from tidemill.pipeline.events.webhook import WebhookSender
from tidemill.storage.state.protocol import Outbox

log = logging.getLogger(__name__)

PATIENCE: Final = 1.0  # seconds that a call waits for sinks; slower ones continue in the background
ROUND: Final = 5.0  # seconds after which a sink with more events waits for the next call
STOP: Final = 5.0  # seconds that closing waits for a running request


@dataclass(frozen=True, slots=True)
class Delivered:
    """What happened at one sink since the last call."""

    sink: str
    delivered: int  # events
    error: str | None = None
    next_try: int | None = None  # after an error


@dataclass(frozen=True, slots=True)
class _Round:
    delivered: int
    trouble: Trouble | None = None


@dataclass(slots=True)
class _Lane:
    """A sink and its recent history; a new process does not know that and tries at once."""

    name: str
    sender: Sender
    running: Future[_Round] | None = None
    failures: int = 0  # in a row
    next_try: int | None = None


class Delivery:
    """The sinks of a project. Call `deliver` regularly, and `close` before the state is closed."""

    def __init__(
        self,
        state: Outbox,
        events: Events,
        root: Path,
        *,
        warehouse: Path | None = None,
        environment: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """Relative paths of sinks are from `root`; with `warehouse` events also have the `uri` of a dataset;
        secrets are read from `environment` (None: the environment of the process) whenever they are
        needed."""
        variables = os.environ if environment is None else environment
        self._state = state
        self._events = events
        self._warehouse = warehouse
        self._patience = patience
        self._stop = threading.Event()
        self._lanes = [_Lane(name, _sender(sink, root, variables)) for name, sink in events.sinks.items()]

    def deliver(self, now: int) -> list[Delivered]:
        """Send what the sinks do not have yet, and report; sinks without news are left out."""
        reported = self._collect(now)
        begun = [lane for lane in self._lanes if self._is_due(lane, now)]
        for lane in begun:
            self._begin(lane, now)
        wait([lane.running for lane in begun if lane.running], timeout=self._patience)
        return reported + self._collect(now)

    def close(self, patience: float = STOP) -> None:
        """Start nothing more, and wait a while for running requests; what they leave is repeated."""
        self._stop.set()
        wait([lane.running for lane in self._lanes if lane.running], timeout=patience)

    def _is_due(self, lane: _Lane, now: int) -> bool:
        if self._stop.is_set() or lane.running is not None:
            return False
        if lane.next_try is not None and now < lane.next_try:
            return False
        return bool(self._state.outbox(self._state.delivered(lane.name), 1))

    def _begin(self, lane: _Lane, now: int) -> None:
        running: Future[_Round] = Future()
        lane.running = running

        def work() -> None:
            try:
                running.set_result(self._round(lane, now))
            except BaseException as error:  # noqa: BLE001 - `_collect` raises it where somebody sees it
                running.set_exception(error)

        # a daemon thread, so that a hanging request does not keep the process alive
        threading.Thread(target=work, name=f"sink {lane.name}", daemon=True).start()

    def _round(self, lane: _Lane, now: int) -> _Round:
        """Chunk by chunk until the sink has everything, fails, or has used its time."""
        began = monotonic()

        def go_on() -> bool:
            return not self._stop.is_set() and monotonic() - began < ROUND

        delivered = 0
        try:
            after = self._state.delivered(lane.name)
            while go_on() and (events := self._state.outbox(after, lane.sender.chunk)):
                messages = [Message(event.id, self._body(event)) for event in events]
                sent = lane.sender.send(messages, now, go_on)
                if sent.count:
                    failpoint("events.after_send")
                    after = events[sent.count - 1].seq
                    self._state.set_delivered(lane.name, after)
                    delivered += sent.count
                if sent.trouble is not None:
                    return _Round(delivered, sent.trouble)
        except TidemillError as error:  # an error of the state: what was sent meanwhile is repeated
            return _Round(delivered, Trouble(str(error), error.hint))
        return _Round(delivered)

    def _body(self, event: OutboxEvent) -> bytes:
        return encoded(cloud_event(event, self._events.source, self._warehouse))

    def _collect(self, now: int) -> list[Delivered]:
        reported = []
        for lane in self._lanes:
            if lane.running is None or not lane.running.done():
                continue
            finished, lane.running = lane.running, None
            reported.append(self._settled(lane, finished.result(), now))
        return reported

    def _settled(self, lane: _Lane, done: _Round, now: int) -> Delivered:
        """Record the outcome, and decide when the sink is tried again."""
        if done.trouble is None:
            if lane.failures:
                log.info("events arrive again", extra={"sink": lane.name})
            lane.failures, lane.next_try = 0, None
            return Delivered(lane.name, done.delivered)
        trouble = done.trouble
        lane.failures = 1 if done.delivered else lane.failures + 1
        lane.next_try = now + self._delay(lane.failures, trouble)
        log.log(
            logging.ERROR if trouble.refused else logging.WARNING,
            "%s (%s); nothing is lost, the next try is at %s",
            trouble.message,
            trouble.hint,
            format_instant(lane.next_try),
            extra={"sink": lane.name},
        )
        return Delivered(lane.name, done.delivered, trouble.message, lane.next_try)

    def _delay(self, failures: int, trouble: Trouble) -> int:
        doubled = self._events.retry_delay << min(failures - 1, 40)
        return max(min(doubled, self._events.max_retry_delay), trouble.retry_after or 0)


def _sender(sink: Sink, root: Path, environment: Mapping[str, str]) -> Sender:
    match sink:
        case FileSink():
            return FileSender(root / Path(sink.path).expanduser())
        case WebhookSink():
            return WebhookSender(sink, environment)
        case RedisSink():
            return RedisSender(sink, environment)
