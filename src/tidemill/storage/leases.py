"""Work on streams under leases: processes share the streams, and one that was replaced commits nothing.

A lease is a row of the state. The holder of a lease may commit; a process that finds one whose holder died or
did not renew it takes it over. Every commit of a table and every act of the state that is made inside
`sharing` or `working` is refused once a lease was taken over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.model.errors import BusyError, LeaseLostError, TidemillError
from tidemill.model.time import SECOND, format_duration
from tidemill.storage import layout, state_owner
from tidemill.storage.bucket_path import BucketPath
from tidemill.storage.lease_holders import HolderFile, is_alive, is_of_this_host, new_holder, owner_of
from tidemill.storage.locks import exclusive, shared
from tidemill.storage.tenure import Tenure, Tenures

if TYPE_CHECKING:
    from tidemill.storage.state.lease_rules import Granted
    from tidemill.storage.state.protocol import StreamLeases

# Imports inside functions keep start-up short: the log of a table is needed only when a stream is taken over.

log = logging.getLogger(__name__)

LANDING_JOB, EVENTS_JOB, SCRUB_JOB = "@landings", "@events", "@scrub"  # of a round, for one process at a time
JOBS: Final = (LANDING_JOB, EVENTS_JOB, SCRUB_JOB)
RENEWALS: Final = 3  # how often a lease is renewed before it would end
STEP: Final = 0.05  # seconds between two checks of leases that others hold


class HeldLeases:
    """The leases of one piece of work, renewed until `close`. One thread takes and checks them."""

    def __init__(
        self, warehouse: Path, state: StreamLeases, length: int, tenures: Tenures | None = None
    ) -> None:
        """`length` is in microseconds; `tenures`: what earlier leases of the same mill left known."""
        self.state = state
        self._warehouse = warehouse
        self._length = length
        name = new_holder(warehouse)
        self._file = HolderFile(warehouse, name)
        self.holder: Final = owner_of(name, 0)
        self.numbers: dict[str, int] = {}  # of the leases that were taken, by name
        self._known = tenures or Tenures()
        self._tenures: dict[str, Tenure] = {}  # by stream
        self._done = threading.Event()
        self._renewing: threading.Thread | None = None

    # -- taking

    def take(self, *names: str) -> bool:
        """Take all leases; False if another process holds one of them. When this returns, a holder that was
        replaced can no longer commit."""
        missing = [name for name in names if name not in self.numbers]
        if not missing:
            return True
        self._file.open()  # first: a holder without a file counts as dead
        before = self.state.lease_holders(missing)
        gone = frozenset(one for one in before if is_alive(self._warehouse, one) is False)
        ended = frozenset(filter(self._has_ended, gone))
        granted = self.state.take_leases(missing, self.holder, self._length, gone, ended)
        if granted.blocked_by:
            return False
        if self._renewing is None:
            self._renewing = threading.Thread(target=self._renew, name="stream leases", daemon=True)
            self._renewing.start()
        self._shut_out(granted)
        self.numbers |= {lease.name: lease.number for lease in granted.leases}
        if isinstance(self._warehouse, BucketPath):
            for lease in granted.leases:
                follows = granted.follows.get(lease.name)
                self._tenures[lease.name] = self._known.begin(lease.name, lease.number, follows)
        return True

    def take_within(self, names: Collection[str], seconds: float) -> bool:
        """The same, but wait at most so many seconds for other holders."""
        for _ in range(1 + int(seconds / STEP)):
            if self.take(*names):
                return True
            if seconds > 0:
                self._done.wait(STEP)
        return False

    def _has_ended(self, holder: str) -> bool:
        """Whether a dead holder certainly has no write under way. That is so on the disk of the system that
        ran it; requests to a bucket, or from other systems, may still arrive."""
        return is_of_this_host(holder) and not isinstance(self._warehouse, BucketPath)

    def _shut_out(self, granted: Granted) -> None:
        """Take the next version of every table that the previous holder may be about to commit to. Its commit
        then fails, is checked again, and is refused. Until this is done, the state records the lease as
        contested.
        """
        for name, holder in granted.left.items():
            log.warning("took over %s from %s, which did not give it back", name, holder)
        contested = [lease for lease in granted.leases if lease.contested]
        for lease in contested:
            if lease.name not in JOBS:
                from tidemill.storage.tables.log import take_version

                for table in layout.tables_of(self._warehouse, lease.name):
                    take_version(table, lease.number)
        if contested:
            self.state.settle_leases(self.holder)

    # -- checking

    def tenure_of(self, file: Path) -> Tenure | None:
        """What is known about the stream of a file; None: the file must be looked at."""
        if not isinstance(file, BucketPath):
            return None
        warehouse, stream = file.of_stream()
        return self._tenures.get(stream) if warehouse == str(self._warehouse) else None

    def check(self, file: Path) -> None:
        """LeaseLostError if any lease was taken over; they must include the lease of the file's stream."""
        stream = file.relative_to(self._warehouse).parts[1]
        assert stream in self.numbers, f"{stream} is worked on without a lease"
        self.confirm()

    def confirm(self) -> None:
        """LeaseLostError if any lease was taken over, or the state that has them was replaced."""
        state_owner.confirm(self._warehouse)
        self.refuse(self.state.lost_leases(self.holder, self.numbers))

    def refuse(self, lost: Collection[str]) -> None:
        if lost:
            streams = [name for name in lost if name not in JOBS] or lost
            raise LeaseLostError(
                f"another process has taken over {', '.join(streams)}: this one did not respond for longer"
                f" than its lease of {format_duration(self._length)}; what it was doing was not committed",
                hint="the next round goes on from what the other process has done; if this process was not "
                "paused, raise engine.lease",
            )

    # -- ending

    def close(self) -> None:
        """Give the leases back. If the state cannot be reached, they end by themselves."""
        is_holder = self._renewing is not None
        self._stop()
        if is_holder:
            try:
                self.state.release_leases(self.holder)
            except TidemillError as error:
                log.warning("leases could not be given back: %s", error)
            self.numbers.clear()
        self._tenures.clear()
        self._file.close()

    def abandon(self) -> None:
        """Stop renewing without giving the leases back: the state that holds them is about to be replaced,
        and nobody may take them before that."""
        self._stop()
        self.numbers.clear()
        self._tenures.clear()
        self.state.close()

    def _stop(self) -> None:
        self._done.set()
        if self._renewing is not None:
            self._renewing.join()
            self._renewing = None

    def _renew(self) -> None:
        while not self._done.wait(self._length / RENEWALS / SECOND):
            try:
                self.state.renew_leases(self.holder)
            except TidemillError as error:  # the next commit finds out whether they were lost
                log.warning("leases could not be renewed: %s", error)


# -- the leases of the current thread

_CURRENT: ContextVar[HeldLeases | None] = ContextVar("tidemill_leases", default=None)


def current_leases() -> HeldLeases | None:
    """The leases that the current thread works under; None: its work needs none."""
    return _CURRENT.get()


def check_commit(table: Path) -> None:
    """LeaseLostError if a commit to this table must not be made any more. The caller must have read the
    version that it commits on before, and must not commit on a later one without checking again."""
    held = _CURRENT.get()
    if held is not None:
        held.check(table)


def tenure_of(file: Path) -> Tenure | None:
    """What the current thread knows about the stream of a file because it holds the lease; None: it must
    look."""
    held = _CURRENT.get()
    return None if held is None else held.tenure_of(file)


@contextmanager
def _under(held: HeldLeases) -> Iterator[HeldLeases]:
    before = _CURRENT.set(held)
    try:
        yield held
    finally:
        _CURRENT.reset(before)
        held.close()


@contextmanager
def sharing(
    warehouse: Path, state: StreamLeases, length: int, tenures: Tenures | None = None
) -> Iterator[HeldLeases]:
    """Work beside other processes, on what the body takes leases of. `tenures` is what is known from the work
    before."""
    with (
        shared(layout.tick_lock(warehouse), "tick"),
        _under(HeldLeases(warehouse, state, length, tenures)) as held,
    ):
        state_owner.confirm(warehouse)
        yield held


@contextmanager
def working(
    warehouse: Path,
    state: StreamLeases,
    length: int,
    streams: Collection[str],
    act: str,
    patience: float = 0.0,
) -> Iterator[HeldLeases]:
    """Work on all streams alone. Waits at most `patience` seconds for other processes, then raises BusyError.
    Processes of one machine wait for each other by a lock, without polling. Nothing is known from the work
    before: such a command looks at everything itself."""
    with (
        exclusive(layout.tick_lock(warehouse), act, patience),
        _under(HeldLeases(warehouse, state, length)) as held,
    ):
        state_owner.confirm(warehouse)
        if not held.take_within([*streams, *JOBS], patience):
            raise BusyError(
                f"another process is working on this warehouse; cannot {act} now",
                where=str(warehouse),
                hint="wait for it, or stop `tidemill run`",
            )
        yield held
