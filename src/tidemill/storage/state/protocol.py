"""What Tidemill must remember besides the tables, as small protocols of atomic acts: one for each concern.

Every method is one transaction. `recover` can rebuild everything here from the warehouse, so the state may
hold nothing that the slices and the tables do not also record. Exceptions are receipts, which for a while
make it quick to find the outcome of an ingestion, and damages, which a scrub finds again: both are lost with
the state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from tidemill.model.damage import Damage, KnownDamage
from tidemill.model.gateway import Receipt
from tidemill.model.levels import BaseTile, TileKey, TileState
from tidemill.model.slices import (
    CountedAs,
    Counts,
    NewSlice,
    Reject,
    Repeat,
    SliceEntry,
    SliceGlance,
    SliceStatus,
)
from tidemill.model.time import Interval
from tidemill.model.windows import (
    Build,
    Dataset,
    Evaluation,
    Member,
    MemberCounts,
    OutboxEvent,
    Phase,
    Undecided,
    Window,
    WindowGlance,
    WindowGroup,
    WindowKey,
)
from tidemill.storage.log_chain import LogHead
from tidemill.storage.state.lease_rules import Granted


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What a batch decided about one of its slices."""

    slice: str
    counts: Counts
    observed: Interval | None
    watermark: int | None  # that its records were compared with
    error: str | None = None  # set when the slice as a whole could not be read
    decision: int = 0  # the new `SliceEntry.decision`
    retry_at: int | None = None  # if its file could not be read: when it is tried again
    failed_as: str | None = None  # if its content is wrong: the declaration that it was read by
    retried: int = 0  # `SliceEntry.retried` when it was decided
    repeats: Sequence[Repeat] = ()  # the new `SliceEntry.repeats`


@dataclass(frozen=True, slots=True)
class ClockState:
    """Event-time progress of one source of a stream."""

    source: str
    max_seen: int
    watermark: int
    arrival: int = 0  # of its last slice with an accepted record: from then on it may fall idle


@dataclass(frozen=True, slots=True)
class Progress:
    """Event-time progress of a stream, over all its sources, after its last accepted slice."""

    watermark: int | None = None  # goes back only by a retraction
    emitted: int = 0  # how often it moved
    buffered_rows: int = 0  # accepted, and after the watermark: not released yet
    buffered_bytes: int = 0  # of their payloads
    released_early: int = 0  # rows released early because the buffer was full


NO_PROGRESS: Final = Progress()  # of a stream without accepted slices


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Everything that one accept batch changes, applied as one transaction."""

    stream: str
    batch: str
    raw_version: int
    quarantine_version: int
    results: Sequence[SliceResult]
    clocks: Sequence[ClockState]
    tiles: Mapping[int, frozenset[str]]  # 5s tile start -> ids of the slices that added rows to it
    runs: Sequence[str] = ()  # the id runs this batch added
    progress: Progress = NO_PROGRESS  # of the stream, after the batch


class TileBuild(NamedTuple):
    """A tile that was just committed. A tuple, since there may be very many."""

    key: TileKey
    hash: str
    revision: int
    part: str | None  # None: the tile has no rows
    rows: int
    slices: frozenset[str] = frozenset()  # of a 5s tile


@dataclass(frozen=True, slots=True)
class Retraction:
    """The retraction of a slice, as the log of retractions records it; or, without a slice, slices that are
    sent back to the gate because what was accepted from them is damaged."""

    n: int  # its number in the log, from 1
    stream: str
    slice: str  # "": no slice is retracted
    reason: str
    at: int
    again: Mapping[str, int]  # slices sent back to the gate -> how many records were accepted from them


class Logs(Protocol):
    """The heads of the logs beside the slices. A log may be ahead of the state, never behind it."""

    def hold(self, log: str) -> AbstractContextManager[None]:
        """Hold a lock on a log among the machines that share the state; on one machine a file is locked
        instead."""
        ...

    def log_head(self, log: str) -> LogHead | None:
        """The head that was last recorded; None: none is recorded, and only the log itself can be read."""
        ...

    def record_log(self, log: str, head: LogHead, lines: Sequence[bytes] = ()) -> None:
        """Record the head of a log; `lines` are its last lines, which are kept here as well."""
        ...

    def log_lines(self, log: str) -> list[bytes]:
        """The lines of a log that are kept here, in order."""
        ...

    def forget_log(self, log: str) -> None:
        """Forget the head and lines of a log, which is about to be rewritten."""
        ...


class Ledger(Logs, Protocol):
    """The slices of a warehouse in order of arrival, what batches decided about them, and when those that
    failed are tried again. `slice_rules` has the transitions of an entry."""

    def enter(self, new: NewSlice) -> SliceEntry:
        """Append to the ledger and return the entry. A slice with a known id is not entered again: its
        `landings` increases and the existing entry (landings > 1) is returned. If its file could not be read
        before, it is tried again at once.
        """
        ...

    def enter_all(self, news: Sequence[NewSlice], head: LogHead | None = None) -> list[SliceEntry]:
        """`enter` each in the order given, all or none of them; `head` is that of the landing log then."""
        ...

    def landings(self) -> int:
        """How many landings were ever entered, repeats and those of `send_again` included; landing compares
        it with its log."""
        ...

    def slice(self, id_or_prefix: str) -> SliceEntry | None:
        """One entry by its id, or by a prefix of it that is unambiguous (else InputError)."""
        ...

    def slice_at(self, seq: int) -> SliceEntry | None:
        """The entry at that offset in the ledger."""
        ...

    def slices(
        self,
        stream: str | None = None,
        status: SliceStatus | None = None,
        *,
        newest: bool = False,
        limit: int | None = None,
        before: int | None = None,
        after: int | None = None,
        outcome: CountedAs | None = None,
        reason: Reject | None = None,
    ) -> list[SliceEntry]:
        """Entries in ledger order (or newest first), of those at offsets below `before` and above `after`;
        with `outcome` or `reason`, those that have records of that outcome, or rejected by that reason."""
        ...

    def last_arrival(self, newest: int) -> int | None:
        """The latest arrival of so many newest slices; None if there is no slice."""
        ...

    def offset_at(self, instant: int) -> int:
        """The offset of the last slice that had arrived by an instant; 0: none. A slice that could only be
        read later has a later offset."""
        ...

    def slice_glances(self, stream: str, span: Interval, limit: int) -> list[SliceGlance]:
        """The newest slices, at most `limit`, that cover some of `span`; retracted ones are left out."""
        ...

    def covered(self, stream: str, span: Interval) -> list[tuple[int, int]]:
        """Start and end of what each slice covers of `span`, by start; retracted ones are left out."""
        ...

    def pending(self, stream: str, max_bytes: int) -> list[SliceEntry]:
        """The oldest pending entries of a stream that fit `max_bytes` (at least one if any)."""
        ...

    def totals(self, stream: str) -> Mapping[str, int]:
        """Sums over the stream's ledger: slices by status (`pending_slices` …), records by outcome
        (`accepted`, …), `late`, `reject_<code>`, `records`, `landings`, `retried`, `bytes`; those without
        a reject code are always there. A retracted slice counts in `retracted_slices`, `landings`,
        `retried` and `bytes` only. Maintained, not scanned."""
        ...

    def undecided(self, stream: str) -> list[Undecided]:
        """Pending and failed slices, by ledger offset. Costs only what it returns."""
        ...

    def apply_batch(self, record: BatchRecord) -> bool:
        """Apply a batch once; False if this (stream, batch) was applied before. Clocks and versions never go
        back. A slice that failed before may be decided again. A decided slice gets the decision of its result
        and no `accepted_before`. With an error its failures increase and `retry_at` is that of the result;
        without one its failures are 0. StorageError if a slice is not in the ledger, or is retracted.
        """
        ...

    def has_batch(self, stream: str, batch: str) -> bool: ...

    # -- those that failed

    def failing(
        self, stream: str, now: int, declared: str, limit: int, longest: int | None = None
    ) -> list[SliceEntry]:
        """Failed slices to try again, by ledger offset: those whose `retry_at` is not after `now` (if there
        are more than `limit`, the longest due), then those whose content was wrong under another declaration
        than `declared`. None waits longer than `longest`: a later `retry_at` was set before the clock was set
        back. Costs only what it returns.
        """
        ...

    def postpone(self, slice_id: str, error: str, retry_at: int) -> None:
        """Record that the file of a failed slice still cannot be read: its failures increase, the error
        becomes this one, and it is tried again at `retry_at`. No effect on a slice that has not failed."""
        ...

    def send_again(self, slice_ids: Sequence[str], head: LogHead | None = None) -> list[SliceEntry]:
        """Send failed slices to the gate again, each at a new offset at the end of the ledger, in the order
        given; all or none (StorageError if one has not failed). They become PENDING, `retried` increases,
        error, batch and `retry_at` are cleared; `failures` stays until they are decided. A batch without
        slices is forgotten. `head` is as in `enter_all`.
        """
        ...

    def prioritise(self, stream: str) -> int:
        """Make all failed slices of a stream due at once, whatever the reason, as if they had failed once;
        how many there are."""
        ...


class Retractions(Protocol):
    """Slices that were retracted."""

    def retractions(self) -> int:
        """How many retractions were applied; their log has as many, or more after a crash."""
        ...

    def apply_retraction(
        self,
        act: Retraction,
        clocks: Sequence[ClockState],
        raw_version: int,
        quarantine_version: int,
        progress: Progress = NO_PROGRESS,
    ) -> bool:
        """Make the state as if the slice had never arrived, once: False if it was retracted before.
        Retractions of one stream are applied in order. StorageError if a slice is not in the stream's ledger.

        The slice becomes RETRACTED, whatever its status was. Its counts, bounds and error stay on record, but
        its counts leave the totals and it belongs to no batch. Slices of `again` become PENDING: their counts
        and outcome are reset, `attempt` increases, `accepted_before` is as given, the decision stays. A batch
        without slices is forgotten. `clocks` replace all clocks of the stream and `progress` its progress,
        even if they go back; versions never do.

        All these slices leave the desired sets of tiles, which become stale (a tile that was never built and
        has no slices left is forgotten). They also leave the members of windows, which become due. A window
        is no longer `sealed` if it was built with the retracted slice, even if that was sent back before. A
        window that loses a *desired* member is as if it had not been evaluated: WAITING without a reason, not
        ready, desired None, and a lease on it is broken, so that a build in progress is not recorded. The
        observed members of built windows stay: a slice that returns under the name it was built with is
        observed. A retraction without a slice does the same to those of `again` alone.
        """
        ...


class Clocks(Protocol):
    """How far the sources of a stream have come in event time, and the stream as a whole."""

    def clocks(self, stream: str) -> list[ClockState]: ...

    def progress(self, stream: str) -> Progress:
        """The progress after the newest batch. A batch replaces it, but the watermark and the counts (not
        what is buffered) never go back. `NO_PROGRESS` before the first batch."""
        ...


class Runs(Protocol):
    """The id runs that make up the memory of the gate."""

    def runs(self, stream: str) -> list[str]:
        """Names of the id runs that make up the gate's index, oldest first."""
        ...

    def replace_runs(self, stream: str, old: Sequence[str], new: Sequence[str]) -> bool:
        """Replace merged runs; the new ones take the position of the oldest. False if one of `old` is
        missing."""
        ...


class Versions(Protocol):
    """Up to which version the logs of tables are recorded in the state."""

    def table_versions(self, stream: str) -> Mapping[str, int]:
        """Per table (`raw`, `quarantine`, `rollups`) the newest version this state has seen."""
        ...

    def record_seen(self, stream: str, versions: Mapping[str, int]) -> None:
        """Record these versions, by table: everything up to them is in the state. They never go back."""
        ...

    def forget_versions(self, stream: str, tables: Collection[str]) -> None:
        """Forget the versions of these tables of a stream, which are lost and start again."""
        ...


class Tiles(Protocol):
    """Tiles of rollups: the slices that they should be made of, and those that they were made of."""

    def stale_tiles(self, stream: str) -> list[BaseTile]:
        """5s tiles whose desired set differs from the observed one, oldest first. Its cost depends
        on how many are stale, not on how many there are."""
        ...

    def base_tiles(self, stream: str, starts: Collection[int]) -> list[BaseTile]:
        """The 5s tiles that begin at `starts` and are known, by start."""
        ...

    def tiles(
        self, stream: str, level: str, spans: Interval | Sequence[Interval] | None = None
    ) -> list[TileState]:
        """Built tiles of a level whose start lies in one of `spans`, by start."""
        ...

    def tile_counts(self, stream: str) -> Mapping[str, int]:
        """Built tiles by level."""
        ...

    def touch_tiles(self, stream: str, tiles: Mapping[int, frozenset[str]]) -> None:
        """Add slices (by id) to the desired sets of 5s tiles (by start) whose rows they change, even if they
        have no rows there. Idempotent. StorageError, without any change, for a slice that is not in the
        ledger.
        """
        ...

    def leave_tiles(self, stream: str, tiles: Mapping[int, frozenset[str]]) -> None:
        """Remove slices (by id) from the desired sets of 5s tiles (by start): nothing of them changes the
        tile any more. The tiles are stale then."""
        ...

    def lose_tiles(self, stream: str, parts: Collection[str]) -> int:
        """Record that the tiles in these parts of the rollups table are lost: they become stale, as if never
        built. For a tile above the base, the first 5s tile below it becomes stale, so that both are built.
        Returns how many tiles there were.
        """
        ...

    def miss_tiles(self, stream: str, level: str, starts: Collection[int]) -> None:
        """Record that tiles of a level above the base are missing or wrong: the first 5s tile below each
        becomes stale, so that both are built. Where there is none, one made of nothing is entered."""
        ...

    def apply_tiles(
        self, stream: str, version: int, builds: Iterable[TileBuild], moved: Iterable[TileBuild] = ()
    ) -> None:
        """Record tiles as committed at `version` of the rollups table, atomically. For a 5s tile the observed
        set becomes `slices`, and its hash must be their `set_hash`. Tiles in `moved` are known and unchanged
        except for the part that holds them.
        """
        ...


class Checkpoints(Protocol):
    """How far the results of streaming windows have come."""

    def checkpoints(self, stream: str) -> Mapping[str, str]:
        """The checkpoint of each streaming window, by name, as its writer made it."""
        ...

    def set_checkpoint(
        self, stream: str, window: str, checkpoint: str | None, events: Sequence[OutboxEvent] = ()
    ) -> None:
        """Replace the checkpoint of a window (None: delete it) and enter the events in the outbox,
        atomically."""
        ...


class Windows(Protocol):
    """Windows of datasets: their members, readiness and phase. `window_rules` has the transitions."""

    def span(self, stream: str) -> int | None:
        """The aggregation span of the stream's windows."""
        ...

    def layout(self, stream: str) -> tuple[int, str] | None:
        """The arguments of the last `declare_layout`."""
        ...

    def declare_layout(self, stream: str, span: int, declared: str = "") -> None:
        """Set the span of windows, and the name `declared` of the rules and columns that they are evaluated
        by. If the span changed, all windows of the stream and their leases are forgotten (their files stay),
        and every accepted slice is unassigned again. If only the rules changed, all windows are due; if the
        first word of `declared` changed, slices without declared bounds also leave them and are unassigned
        again. If nothing changed, there is no effect.
        """
        ...

    def unassigned_slices(self, stream: str, limit: int) -> list[SliceEntry]:
        """Accepted slices that were not assigned to windows yet, in ledger order. A slice becomes unassigned
        when a batch accepts it, and is not unassigned once it is retracted or sent back."""
        ...

    def mark_reached_due(self, stream: str, reason: str, watermark: int) -> int:
        """Make WAITING windows with this reason that end at or before the watermark due; how many."""
        ...

    def mark_receded_due(self, stream: str, watermark: int) -> int:
        """Make BUILT windows that end after the watermark due, since a retraction may have set it back; how
        many."""
        ...

    def assign(
        self,
        stream: str,
        windows: Mapping[str, Iterable[int]],
        runs: Mapping[str, Mapping[int, Sequence[Interval]]] | None = None,
    ) -> None:
        """Add slices (by id) as members of the windows that start there. Those windows become due, and the
        slices are no longer unassigned. `runs`: what a slice covers of each window (by start; left out:
        nothing), for slices that do not cover what their bounds say. Idempotent; a slice that is not accepted
        (any more) is skipped. StorageError before `declare_layout`, and for a slice that is not in the
        ledger.
        """
        ...

    def due(self, stream: str, now: int, limit: int) -> list[tuple[Window, list[Member]]]:
        """Windows to evaluate, because something about them changed or `check_at` is not after `now`; oldest
        first, with their members by ledger offset. The cost depends on how many are due, not on how many
        there are.
        """
        ...

    def evaluate(self, evaluated: Sequence[Evaluation]) -> list[WindowKey]:
        """Record evaluations, each only if the window still has the version it was made for; returns those
        that were not recorded.

        Sets which members are desired or ignored, and ready, reason, detail, check_at, desired, seal,
        blocked_by; the window is no longer due, and its events enter the outbox. Any change of the slice at
        the offset `blocked_by` makes the window due again; if it has changed already, the evaluation is not
        recorded. First, `withdraw` clears observed, file, rows, bytes, built_at, columns and the observed
        members (the revision stays); `reshape` clears observed only; `unseal` clears the seal. Then, unless a
        lease is held on the window (expired or not), its phase becomes BUILT if observed equals desired (and
        it is sealed at once, if there is a seal); QUEUED if it is ready, with the trigger, new tries and no
        delay, unless it was QUEUED or FAILED for the same desired hash, in which case it stays as it is;
        otherwise WAITING. Every other phase clears attempts, delay and error. A window under lease keeps its
        phase, and `complete`, `fail` and `release` compare desired again; it gets the new trigger if desired
        is not what is being built. A window without members that never had a dataset is forgotten.
        """
        ...

    def window(self, key: WindowKey) -> tuple[Window, list[Member]] | None: ...

    def windows(
        self,
        stream: str | None = None,
        phase: Phase | None = None,
        span: Interval | None = None,
        *,
        newest: bool = False,
        limit: int | None = None,
    ) -> list[Window]:
        """Windows by (start, stream), only those whose start lies in `span`; newest first if `newest`
        is set."""
        ...

    def each_window(self, stream: str, span: Interval | None = None) -> Iterator[tuple[Window, list[Member]]]:
        """`window` for each window that starts in the span (None: all), by start, read page by page: for
        callers that need all of them."""
        ...

    def window_glances(self, stream: str, width: int, within: Interval | None) -> list[WindowGlance]:
        """Windows of this width that start in `within` (None: all), by start."""
        ...

    def window_groups(
        self, stream: str, width: int, within: Interval, stretch: int, cutoff: str, now: int
    ) -> list[WindowGroup]:
        """Windows of this width that start in `within`, counted for each stretch of time (they begin at
        multiples of `stretch`) by what decides their states, by start. `cutoff` is the reason of windows
        that wait for theirs."""
        ...

    def first_arrivals(self, stream: str, within: Interval) -> Mapping[int, int]:
        """For each start of a window in `within`, the first arrival of its members; a replay counts with the
        arrival of the slice that it replays."""
        ...

    def window_extent(self, stream: str, width: int) -> Interval | None:
        """From the start of the first window of this width to the end of the last; None: there is none."""
        ...

    def window_counts(self, stream: str) -> Mapping[Phase, int]: ...

    def member_counts(self, keys: Sequence[WindowKey]) -> Mapping[WindowKey, MemberCounts]:
        """The number of members of each window; zeros if there is no such window."""
        ...

    def forget_windows(self, stream: str, before: int) -> int:
        """Forget windows that end at or before this instant, with their leases; how many. Their events stay
        in the outbox."""
        ...

    def windows_of(self, slice_id: str, limit: int | None = None) -> list[tuple[Window, Member]]:
        """The windows a slice is a member of, by start; the first `limit` of them."""
        ...

    def windows_touched(self, slice_id: str) -> int:
        """How many windows a slice is a member of."""
        ...

    def force(self, keys: Sequence[WindowKey], trigger: str, *, reopen: bool = False) -> list[WindowKey]:
        """Have windows built again although their set did not change: observed is cleared (file, rows,
        revision and observed members stay), the trigger becomes this one, and they are due. One that is
        QUEUED or FAILED gets new tries; a QUEUED one stays QUEUED, all others become WAITING; a lease is
        broken. With `reopen` everything that arrived so far counts: `sealed` becomes the newest ledger
        offset. Returns those that exist.
        """
        ...


class Leases(Protocol):
    """Leases on windows: while one is held, no other builder may build the window."""

    def renew(self, owner: str, keys: Sequence[WindowKey], lease_until: int) -> list[WindowKey]:
        """Extend the leases that `owner` still holds; returns those. An expired lease is held until another
        owner takes the window."""
        ...

    def release(self, owner: str) -> int:
        """Give back what `owner` holds, as if it had not been taken (on a graceful stop); how many. Attempts,
        delay and error are as before, or cleared if desired has changed (as in `fail`)."""
        ...


class Queue(Leases, Protocol):
    """The queue of windows to build, by priority."""

    def take(
        self,
        owner: str,
        now: int,
        lease_until: int,
        limit: int,
        streams: Sequence[str] | None = None,
        *,
        newest: bool = False,
        void: Mapping[WindowKey, int] | None = None,
        longest: int | None = None,
    ) -> list[Build]:
        """Take up to `limit` windows, by priority, highest first (ties by stream), with `newest` in reverse
        order: QUEUED ones whose `not_before` is reached, and BUILDING ones whose lease has expired
        (`lease_until` is not after `now`; with `void`, only those that it names, unless they were renewed
        since). None waits longer than `longest`, whatever the clock says. Each becomes BUILDING under a new
        lease, and its attempts increase. No window is ever given to two owners at once. One whose lease
        expired is first treated as by `release`, with the attempt counted, and taken only if it is still to
        be built. `Build.supersedes` is the revision that has a file. `Build.seal` is the value of `sealed`
        after this build: the seal, or the current value. A builder that dies never calls `fail`, so the next
        one must check `Build.attempt` too.
        """
        ...

    def complete(self, build: Build, dataset: Dataset, now: int, events: Sequence[OutboxEvent] = ()) -> bool:
        """Compare and set. If `build.owner` still holds the lease (see `renew`) for the set that was built,
        and the revision is lower than the dataset's, then in one step: observed, revision, file, rows, bytes,
        built_at and (from `build.seal`, if set) sealed become those of the dataset, the members that were
        built become observed, the lease, the error and the attempts are cleared, and the events enter the
        outbox. The phase becomes BUILT; or, if desired has changed meanwhile, QUEUED if it is ready and
        WAITING if not. Otherwise nothing changes and False is returned.
        """
        ...

    def complete_all(
        self, done: Sequence[tuple[Build, Dataset, Sequence[OutboxEvent]]], now: int
    ) -> list[bool]:
        """`complete` each, in one transaction."""
        ...

    def fail(self, build: Build, error: str, not_before: int, tries: int) -> bool:
        """Give a window back after a failed try, at the same priority, not to be taken before `not_before`;
        FAILED after `tries` tries. If desired has changed meanwhile, as in `evaluate`: BUILT, WAITING, or
        QUEUED with new tries and no delay. False if the lease was lost.
        """
        ...

    def retry(self, stream: str, start: int | None = None) -> int:
        """Put FAILED windows back into the queue with all their tries, without delay; how many."""
        ...

    def queue_length(self, stream: str | None = None) -> int:
        """How many windows are QUEUED, including those that are delayed. Costs what is queued."""
        ...


class Outbox(Protocol):
    """Events, in the order in which they are delivered."""

    def outbox(self, after: int = 0, limit: int = 1000, stream: str | None = None) -> list[OutboxEvent]:
        """Events with a higher `seq`, in order. An event with a known id is never entered again and keeps its
        `seq`; a later event always has a higher `seq`, and never becomes visible before an earlier one."""
        ...

    def delivered(self, sink: str) -> int:
        """The `seq` up to which a sink has everything; 0 for a new one."""
        ...

    def set_delivered(self, sink: str, seq: int) -> None:
        """Never goes back."""
        ...


class Receipts(Protocol):
    """The outcomes of ingestions, kept for a while."""

    def keep_receipts(self, receipts: Sequence[Receipt], until: int) -> None:
        """Keep receipts, to be found by their ids until they are dropped. A known receipt is unchanged and is
        kept until the later of both instants, so the call can be repeated after a failure that kept only
        some. The slice need not be in the ledger.
        """
        ...

    def receipt(self, id: str) -> Receipt | None:
        """A receipt by its id; None if it was never kept, or was dropped. No clock is read."""
        ...

    def receipts(self, stream: str, after: str = "", limit: int = 1000) -> list[Receipt]:
        """The receipts of a stream whose ids come after `after`, by id."""
        ...

    def drop_receipts(self, before: int) -> int:
        """Delete receipts that were to be kept until this instant or earlier, some at a time; how many. Costs
        what is deleted."""
        ...


class Damages(Protocol):
    """Files that were found damaged and are not repaired yet."""

    def record_damages(self, found: Sequence[Damage], now: int) -> None:
        """Record damaged files; one that was known keeps the time at which it was first found."""
        ...

    def damages(self, stream: str | None = None) -> list[KnownDamage]:
        """All of them, or those of a stream, by file."""
        ...

    def clear_damages(self, files: Collection[str]) -> None:
        """Forget the damage of these files: they are intact again, or no longer needed."""
        ...


class StreamLeases(Protocol):
    """Leases on streams: which process works on which stream. While leases are held (`storage.leases`), every
    transaction that writes is refused once one of them was taken over."""

    def lease_holders(self, names: Collection[str]) -> frozenset[str]:
        """The holders of these leases that did not give them back, including expired ones."""
        ...

    def take_leases(
        self,
        names: Collection[str],
        holder: str,
        length: int,
        gone: Collection[str] = (),
        ended: Collection[str] = (),
    ) -> Granted:
        """Take all these leases for `length` microseconds by the clock of the database; none if a holder that
        is not in `gone` has one of them. Holders in `ended` have no commit under way."""
        ...

    def settle_leases(self, holder: str) -> None:
        """Record that earlier holders can no longer commit anything."""
        ...

    def renew_leases(self, holder: str) -> int:
        """Renew the leases of a holder; how many it has."""
        ...

    def release_leases(self, holder: str) -> None:
        """Give the leases of a holder back; it must have no commit under way."""
        ...

    def lost_leases(self, holder: str, held: Mapping[str, int]) -> list[str]:
        """Of these leases, by name and number, those that the holder has lost."""
        ...

    def close(self) -> None: ...


class Recovery(Protocol):
    """Filling an empty state, and listing all of a state."""

    def restore(
        self, entries: Sequence[SliceEntry], records: Sequence[BatchRecord], retractions: int | None = None
    ) -> None:
        """Fill an empty state (else StorageError) in one transaction: the ledger as given, then the batches
        in the order given. `retractions` is how many entries of the log of retractions are applied (None: one
        for each retracted entry). Layouts, checkpoints, deliveries and receipts may already exist, and stay.
        """
        ...

    def observe(self, datasets: Sequence[Dataset], events: Sequence[OutboxEvent]) -> None:
        """For `recover`: record the newest dataset of each window in the warehouse as observed, with its
        members and its seal, and `built_at` unknown; and fill the outbox. The windows are due; one that no
        slice touches is created. Datasets of another span than the stream's are left out.
        """
        ...

    def dump(self) -> dict[str, list[dict[str, object]]]:
        """Every table as plain rows in a defined order: what `recover` must reproduce. It leaves out what
        only the state knows: outcomes of retracted slices; tries and errors of failed slices; versions,
        `built_at`, triggers, leases, attempts (a window that is being built or has failed is shown as
        queued), `seq` and time of events, deliveries, checkpoints of streaming windows, receipts, heads of
        logs, damages.
        """
        ...


class State(
    Ledger,
    Retractions,
    Clocks,
    Runs,
    Versions,
    Tiles,
    Checkpoints,
    Windows,
    Queue,
    Outbox,
    Receipts,
    Damages,
    StreamLeases,
    Recovery,
    Protocol,
):
    """The whole state of one warehouse.

    The names of the slices of a tile or window (`BaseTile.desired`, `TileBuild.slices`, `Member.name` …) are
    `SliceEntry.name`; everything else uses ids.
    """

    def trim_log(self) -> None:
        """Free the space of the write-ahead log, unless somebody is reading; for moments without other work.
        It changes no content."""
        ...

    def close(self) -> None: ...
