"""What Tidemill must remember besides the tables, as small protocols of atomic acts: one for each concern.

Every method is one transaction. Everything here can be rebuilt from the warehouse by `recover`,
so nothing may be kept here that the slices and the tables do not also say; but receipts, which only make it
quick for a while to find what an ingestion became, and damages, which a scrub finds again: both are gone with
the state they were kept in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

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
    watermark: int | None  # met by its records
    error: str | None = None  # set when the slice as a whole could not be read
    decision: int = 0  # as `SliceEntry.decision` is to be
    retry_at: int | None = None  # with an error by its storage: when it is tried again
    failed_as: str | None = None  # with an error by its content: the declaration that it was read by
    retried: int = 0  # as `SliceEntry.retried` was when it was decided
    repeats: Sequence[Repeat] = ()  # as `SliceEntry.repeats` is to be


@dataclass(frozen=True, slots=True)
class ClockState:
    """Event-time progress of one source of a stream."""

    source: str
    max_seen: int
    watermark: int
    arrival: int = 0  # of its last slice with an accepted record: from then on it may fall idle


@dataclass(frozen=True, slots=True)
class Progress:
    """Event-time progress of a stream as its last accepted slice left it: of all its sources together."""

    watermark: int | None = None  # never goes back, but by a retraction
    emitted: int = 0  # how often it moved
    buffered_rows: int = 0  # accepted, and after the watermark: not released yet
    buffered_bytes: int = 0  # of their payloads
    released_early: int = 0  # rows that the bound of the buffer let go before their time


NO_PROGRESS: Final = Progress()  # of a stream that nothing was accepted of


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


@dataclass(frozen=True, slots=True)
class TileBuild:
    """A tile as it was just committed."""

    key: TileKey
    hash: str
    revision: int
    part: str | None  # None: the tile has no rows
    rows: int
    slices: frozenset[str] = field(default_factory=frozenset)  # of a 5s tile


@dataclass(frozen=True, slots=True)
class Retraction:
    """The act of taking a slice back, as the landing log has it; or, with no slice, of sending slices back to
    the gate because what was accepted from them is damaged."""

    n: int  # which act of the log it is, from 1
    stream: str
    slice: str  # "": none is taken back
    reason: str
    at: int
    again: Mapping[str, int]  # slices sent back to the gate -> how many records were accepted from them


class Logs(Protocol):
    """How far the logs beside the slices go. A log may be ahead of the state, never behind it."""

    def hold(self, log: str) -> AbstractContextManager[None]:
        """One holder at a time among the machines that share the state; on one machine a file is locked."""
        ...

    def log_head(self, log: str) -> LogHead | None:
        """As it was last recorded; None: the log itself is all that is known."""
        ...

    def record_log(self, log: str, head: LogHead, lines: Sequence[bytes] = ()) -> None:
        """The log has this head now; `lines` are the last ones of it, which are kept here as well."""
        ...

    def log_lines(self, log: str) -> list[bytes]:
        """The lines that are kept, in order."""
        ...

    def forget_log(self, log: str) -> None:
        """The log itself is all that is known: it is about to be written again."""
        ...


class Ledger(Logs, Protocol):
    """The slices of a warehouse in order of arrival, what batches decided about them, and when those that
    failed are tried again. `fates` has the transitions of an entry."""

    def enter(self, new: NewSlice) -> SliceEntry:
        """Append to the ledger and return the entry. A slice with a known id is not entered again:
        its `landings` goes up and the existing entry (landings > 1) is returned. One that failed by its
        storage is due to be tried again at once then."""
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
        """The entry with that place in the ledger."""
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

    def offset_at(self, instant: int) -> int:
        """The offset of the last slice that had arrived by an instant; 0: none. What could be read only later
        has a later one."""
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
        """Slices that wait for the gate, and those that failed, by place in the ledger. Costs what it
        finds."""
        ...

    def apply_batch(self, record: BatchRecord) -> bool:
        """Apply it once; False when this (stream, batch) was applied before. Clocks and versions never
        go back. A slice that failed before may be decided again. A decided slice has the judgement of its
        result and no `accepted_before`; with an error, one failure more, and when it is tried again as the
        result says; without, no failures. StorageError when the ledger does not know one of its slices, or
        has it as retracted."""
        ...

    def has_batch(self, stream: str, batch: str) -> bool: ...

    # -- those that failed

    def failing(
        self, stream: str, now: int, declared: str, limit: int, longest: int | None = None
    ) -> list[SliceEntry]:
        """Failed slices that are to be tried again, by place: those whose `retry_at` is not after `now`, the
        longest due if there are more, then those that failed by their content under another declaration than
        `declared`. None waits longer than `longest`: what is later than that was set by a clock that was put
        back since. Costs what it finds."""
        ...

    def postpone(self, slice_id: str, error: str, retry_at: int) -> None:
        """A failed slice still cannot be read, by its storage: one failure more, the error is this one, and
        it is tried again then. Nothing happens to one that has not failed."""
        ...

    def send_again(self, slice_ids: Sequence[str], head: LogHead | None = None) -> list[SliceEntry]:
        """Failed slices go to the gate again, each behind all that is in the ledger, in the order given, all
        or none (StorageError when one has not failed). They are PENDING at their new place, `retried` one
        higher, without error, batch or time to be tried; `failures` stays until they are decided. Their
        batches are forgotten when none of their slices is left in them. `head` is as in `enter_all`."""
        ...

    def prioritise(self, stream: str) -> int:
        """All failed slices of a stream are due, whatever they failed by, as if they had failed once; how
        many there are."""
        ...


class Retractions(Protocol):
    """Slices that were taken back."""

    def retractions(self) -> int:
        """How many acts of retraction were applied; the landing log has as many, or more after a crash."""
        ...

    def apply_retraction(
        self,
        act: Retraction,
        clocks: Sequence[ClockState],
        raw_version: int,
        quarantine_version: int,
        progress: Progress = NO_PROGRESS,
    ) -> bool:
        """Make it as if the slice had never arrived, once: False when it was taken back before. Acts of one
        stream are applied in their order (StorageError when a slice is not in the stream's ledger).

        The slice becomes RETRACTED, whatever it was (its counts, bounds and error stay for the story, but
        the counts leave the totals and it is of no batch), those of `again` become PENDING with their counts
        and outcome reset, `attempt` one higher, `accepted_before` as given, the judgement as it was. Their
        batches are forgotten when none of their slices is left in them. `clocks` become all clocks of the
        stream and `progress` its progress, even where that goes back; versions never do.

        All of them leave the desired sets of tiles, which are then stale (a tile that was never built and has
        nothing left is forgotten), and the members of windows, which are then due, and no longer
        `sealed` where they were built with the retracted slice itself, be it that it was sent back before. A
        window that a *desired* member left is as if it had not been judged: WAITING without a reason, not
        ready, desired None, and a lease on it is broken, so that what is being built from it is not recorded.
        What was built keeps its marks: a slice that comes back under the name it was built with is observed.
        An act without a slice does the same to those of `again` alone.
        """
        ...


class Clocks(Protocol):
    """How far the sources of a stream have come in event time, and the stream as a whole."""

    def clocks(self, stream: str) -> list[ClockState]: ...

    def progress(self, stream: str) -> Progress:
        """As the newest batch left it: with a batch it becomes the batch's, but its watermark and counts (not
        what is buffered) never go back. `NO_PROGRESS` before the first."""
        ...


class Runs(Protocol):
    """The id runs that make up the memory of the gate."""

    def runs(self, stream: str) -> list[str]:
        """Names of the id runs that make up the gate's index, oldest first."""
        ...

    def replace_runs(self, stream: str, old: Sequence[str], new: Sequence[str]) -> bool:
        """Swap merged runs, the new ones at the place of the oldest; False when one of `old` is gone."""
        ...


class Versions(Protocol):
    """How far the logs of tables are entered in the state."""

    def table_versions(self, stream: str) -> Mapping[str, int]:
        """Per table (`raw`, `quarantine`, `rollups`) the newest version this state has seen."""
        ...

    def record_seen(self, stream: str, versions: Mapping[str, int]) -> None:
        """It has seen these versions, by table: all that they say is entered. They never go back."""
        ...

    def forget_versions(self, stream: str, tables: Collection[str]) -> None:
        """These tables of a stream are lost and begin again."""
        ...


class Tiles(Protocol):
    """Tiles of rollups: the slices that they should be made of, and those that they were made of."""

    def stale_tiles(self, stream: str) -> list[BaseTile]:
        """5s tiles whose desired set differs from the observed one, oldest first. Its cost depends
        on how many are stale, not on how many there are."""
        ...

    def base_tile(self, stream: str, start: int) -> BaseTile | None: ...

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
        """Put slices (by id) into the desired sets of 5s tiles (by start) that they need have no rows in, but
        whose rows they change. To do it again changes nothing. StorageError, and nothing is changed, for a
        slice that the ledger does not know."""
        ...

    def lose_tiles(self, stream: str, parts: Collection[str]) -> int:
        """The tiles in these parts of the rollups table are lost: they are stale, as if they had never been
        built. Of those above the base, the first 5s tile below is stale, so that they are built with it. How
        many there were."""
        ...

    def miss_tiles(self, stream: str, level: str, starts: Collection[int]) -> None:
        """Tiles of a level above the base are not there, though those below are: the first 5s tile below each
        is stale, so that they are built with it."""
        ...

    def apply_tiles(
        self, stream: str, version: int, builds: Iterable[TileBuild], moved: Iterable[TileBuild] = ()
    ) -> None:
        """Record tiles as committed at `version` of the rollups table, atomically. For a 5s tile the
        observed set becomes `slices`, whose `set_hash` its hash must be. Tiles that only `moved` are known,
        and the same as before but for the part they stand in."""
        ...


class Checkpoints(Protocol):
    """How far the results of streaming windows have come."""

    def checkpoints(self, stream: str) -> Mapping[str, str]:
        """Per streaming window (by name) how far its results have come, as its keeper wrote it."""
        ...

    def set_checkpoint(
        self, stream: str, window: str, checkpoint: str | None, events: Sequence[OutboxEvent] = ()
    ) -> None:
        """Replace the mark of a window (None: forget it), and enter the events in the outbox, at once."""
        ...


class Windows(Protocol):
    """Windows that become datasets: their members, readiness and phase. `phases` has the transitions."""

    def span(self, stream: str) -> int | None:
        """The aggregation span that the stream's windows are laid out for."""
        ...

    def layout(self, stream: str) -> tuple[int, str] | None:
        """What `declare_layout` was told last."""
        ...

    def declare_layout(self, stream: str, span: int, declared: str = "") -> None:
        """Windows are of this span from now on, and `declared` names the rules and columns that they are
        evaluated by. When the span was another, all windows of the stream are forgotten, leases too (their
        files stay), and every accepted slice is `unlaid` again. When only the rules were others, all windows
        are due; when the first word of `declared` was another, slices without declared bounds leave them,
        too, and are unlaid again. When nothing changed, nothing happens."""
        ...

    def unassigned_slices(self, stream: str, limit: int) -> list[SliceEntry]:
        """Accepted slices whose windows were not entered yet, in ledger order. A batch makes its accepted
        slices unlaid; a slice that is retracted or sent back is not unlaid."""
        ...

    def reach(self, stream: str, reason: str, watermark: int) -> int:
        """WAITING windows with this reason that end at the watermark or before it are due; how many."""
        ...

    def recede(self, stream: str, watermark: int) -> int:
        """BUILT windows that end after the watermark are due: a retraction may have set it back. How many."""
        ...

    def assign(
        self,
        stream: str,
        windows: Mapping[str, Iterable[int]],
        runs: Mapping[str, Mapping[int, Sequence[Interval]]] | None = None,
    ) -> None:
        """Enter slices (by id) as members of the windows that start there; those windows are due at once,
        the slices are no longer unlaid. `runs`: what a slice covers of each window (by start; nothing where
        it is left out), for slices that do not cover what their bounds say.
        To enter one again changes nothing, nor does one that is not accepted (any more). StorageError before
        `declare_layout`, and for a slice that the ledger does not know."""
        ...

    def due(self, stream: str, now: int, limit: int) -> list[tuple[Window, list[Member]]]:
        """Windows to be judged: something about them changed, or `check_at` has come; oldest first, with
        their members by place in the ledger. Costs what is due, not what there is. `check_at` has come when
        it is not after `now`."""
        ...

    def evaluate(self, evaluated: Sequence[Evaluation]) -> list[WindowKey]:
        """Record judgements, each if the window still has the version it was made on; which were not.

        Marks members desired or ignored, sets ready, reason, detail, check_at, desired, seal, blocked_by; the
        window is no longer due, and its events enter the outbox. Whatever becomes of the slice at the place
        `blocked_by` makes the window due again; a judgement is not recorded when that has happened already.
        `withdraw` takes observed, file, rows, bytes,
        built_at, columns and the members' observed marks away first (the revision stays). `reshape` forgets
        observed only, `unseal` the seal that it has. Then, unless a lease is
        held on it (run out or not): BUILT when observed is what is desired (and sealed at once, if there is
        a seal); QUEUED when ready, with the trigger, new tries and no delay, unless it was QUEUED or FAILED
        for the same desired hash, in which case it stays as it is; else WAITING. Attempts, delay and error
        go with every other phase. A window under lease keeps its phase: `complete`, `fail` and `release`
        look at desired again; its trigger is the new one if what is desired is not what is being built. A
        window without members that never had a dataset is forgotten.
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
        """By (start, stream), only those whose start lies in `span`; `newest`: the other way round."""
        ...

    def each_window(self, stream: str, span: Interval | None = None) -> Iterator[tuple[Window, list[Member]]]:
        """What `window` says of each that starts in the span (all, when None), by start, and read page by
        page: for those who look at all of them."""
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
        """By start of a window in `within`, the first arrival of its members; a replay counts as of the slice
        whose records it holds."""
        ...

    def window_extent(self, stream: str, width: int) -> Interval | None:
        """From the start of the first window of this width to the end of the last; None: there is none."""
        ...

    def window_counts(self, stream: str) -> Mapping[Phase, int]: ...

    def member_counts(self, keys: Sequence[WindowKey]) -> Mapping[WindowKey, MemberCounts]:
        """Per window; zeros where there is none."""
        ...

    def forget_windows(self, stream: str, before: int) -> int:
        """Windows that end at this instant or earlier are as if they had never been laid, leases too; how
        many. What the outbox says of them stays."""
        ...

    def windows_of(self, slice_id: str, limit: int | None = None) -> list[tuple[Window, Member]]:
        """The windows a slice is a member of, by start; the first `limit` of them."""
        ...

    def windows_touched(self, slice_id: str) -> int:
        """How many windows a slice is a member of."""
        ...

    def force(self, keys: Sequence[WindowKey], trigger: str, *, reopen: bool = False) -> list[WindowKey]:
        """Have windows built again although their set did not change: observed is forgotten (file, rows,
        revision and the members' marks stay), the trigger is this one, and they are due. One that is QUEUED
        or FAILED gets new tries; a QUEUED one stays so, all others are WAITING; a lease is broken. With
        `reopen` everything that arrived so far counts: `sealed` becomes the newest place in the ledger.
        Answers which of them exist."""
        ...


class Leases(Protocol):
    """Windows that somebody builds: nobody else does as long as the lease holds."""

    def renew(self, owner: str, keys: Sequence[WindowKey], lease_until: int) -> list[WindowKey]:
        """Prolong leases that `owner` still holds; which those are. A lease that ran out is held until
        somebody else takes the window."""
        ...

    def release(self, owner: str) -> int:
        """Give back what `owner` holds, as if it had not been taken (on a graceful stop); how many. Attempts,
        delay and error are as before, or again when desired has moved on (as in `fail`)."""
        ...


class Queue(Leases, Protocol):
    """Windows that are to be built, by priority."""

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
        """Up to `limit` windows, by priority, highest first (ties by stream), with `newest` in the opposite
        order: QUEUED ones whose `not_before` has come, and BUILDING ones whose lease ran out (`lease_until`
        is not after `now`; with `void`, just those that it names, unless they were renewed since). None waits
        longer than `longest`, by whatever clock. Each becomes BUILDING under a new lease, its attempts one
        higher. No window is ever given to two owners at once. One whose lease ran out is first looked at as
        by `release`, attempts counted, and taken only if it is to be built. `Build.supersedes` is the
        revision there is a file of. `Build.seal` is what `sealed` is once this is built: the seal, else as
        it is. A builder that dies never calls `fail`: who takes a window looks at `Build.attempt` too."""
        ...

    def complete(self, build: Build, dataset: Dataset, now: int, events: Sequence[OutboxEvent] = ()) -> bool:
        """Compare and set: if `build.owner` still holds the lease (see `renew`), for the set that the build
        is made of, and the revision is lower than the dataset's, observed, revision, file, rows, bytes,
        built_at and (from `build.seal`, if set) sealed become the dataset's, the members built are marked
        observed, the lease and the error go, tries start again, and the events enter the outbox, all at once.
        The phase becomes BUILT, or QUEUED when desired has moved on meanwhile and is ready, or WAITING when
        it has and is not. Otherwise nothing changes and the answer is False."""
        ...

    def complete_all(
        self, done: Sequence[tuple[Build, Dataset, Sequence[OutboxEvent]]], now: int
    ) -> list[bool]:
        """`complete` each, in one transaction."""
        ...

    def fail(self, build: Build, error: str, not_before: int, tries: int) -> bool:
        """Give a window back after a failed try, at the same priority, not to be taken before
        `not_before`; FAILED when `tries` were made. When desired has moved on meanwhile, as `evaluate` has
        it: BUILT, WAITING, or QUEUED with new tries and no delay. False when the lease was lost."""
        ...

    def retry(self, stream: str, start: int | None = None) -> int:
        """FAILED windows back into the queue with all their tries, without delay; how many."""
        ...

    def queue_length(self, stream: str | None = None) -> int:
        """QUEUED windows, those that wait for their delay too. Costs what is queued."""
        ...


class Outbox(Protocol):
    """Events, in the order in which they are delivered."""

    def outbox(self, after: int = 0, limit: int = 1000, stream: str | None = None) -> list[OutboxEvent]:
        """Events with a higher `seq`, in order. An event with a known id is not entered again, by any act,
        and keeps its place; a later event always has a higher `seq`, and is never seen before an earlier
        one."""
        ...

    def delivered(self, sink: str) -> int:
        """The `seq` up to which a sink has everything; 0 for a new one."""
        ...

    def set_delivered(self, sink: str, seq: int) -> None:
        """Never goes back."""
        ...


class Receipts(Protocol):
    """What ingestions became, for a while."""

    def keep_receipts(self, receipts: Sequence[Receipt], until: int) -> None:
        """Each can be asked for by its id until it is dropped. One that is known stays as it is, and is kept
        until the later of both instants; so after a failure, which may leave some of many kept, the same is
        asked for again. The ledger need not know the slice."""
        ...

    def receipt(self, id: str) -> Receipt | None:
        """None for one that was never kept, or was dropped; no clock is looked at."""
        ...

    def receipts(self, stream: str, after: str = "", limit: int = 1000) -> list[Receipt]:
        """Those of a stream whose ids come after one, in that order."""
        ...

    def drop_receipts(self, before: int) -> int:
        """Forget those that were to be kept until this instant or an earlier one, some at a time; how
        many. Costs what goes."""
        ...


class Damages(Protocol):
    """Files that were found damaged and are not repaired yet."""

    def record_damages(self, found: Sequence[Damage], now: int) -> None:
        """Each is known from now on, by its file; one that was known keeps the time it was found first."""
        ...

    def damages(self, stream: str | None = None) -> list[KnownDamage]:
        """All of them, or those of a stream, by file."""
        ...

    def clear_damages(self, files: Collection[str]) -> None:
        """These files are whole again, or no longer needed."""
        ...


class StreamLeases(Protocol):
    """Who works on which stream. While leases are held (`storage.leases`), every act that writes is refused
    once one of them was taken over."""

    def lease_holders(self, names: Collection[str]) -> frozenset[str]:
        """Those who have one of them and did not give it back, also if it has run out."""
        ...

    def take_leases(
        self,
        names: Collection[str],
        holder: str,
        length: int,
        gone: Collection[str] = (),
        ended: Collection[str] = (),
    ) -> Granted:
        """Take all of them, or none if a holder that is not in `gone` has one of them, for so many
        microseconds by the clock of the database. Holders in `ended` have nothing under way."""
        ...

    def settle_leases(self, holder: str) -> None:
        """Holders before this one have nothing under way any more that could still be committed."""
        ...

    def renew_leases(self, holder: str) -> int:
        """How many it has."""
        ...

    def release_leases(self, holder: str) -> None:
        """Nothing that the holder began is under way."""
        ...

    def lost_leases(self, holder: str, held: Mapping[str, int]) -> list[str]:
        """Of these leases, by name and number, those that the holder has no more."""
        ...

    def close(self) -> None: ...


class Recovery(Protocol):
    """Filling a state that was lost, and showing all of one."""

    def restore(
        self, entries: Sequence[SliceEntry], records: Sequence[BatchRecord], retractions: int | None = None
    ) -> None:
        """Fill an empty state (else StorageError) in one transaction: the ledger as given, then the
        batches in the order given. So many acts of the log of retractions are applied (None: one for each
        retracted entry). Layouts, marks,
        deliveries and receipts that it has do not make it less empty, and stay."""
        ...

    def observe(self, datasets: Sequence[Dataset], events: Sequence[OutboxEvent]) -> None:
        """For `recover`: record the newest dataset of each window as observed (sealed too), as it stands in
        the warehouse, members marked, with `built_at` unknown; and fill the outbox. The windows are due, and
        made when no slice touches them. Datasets of another span than the stream's are left out."""
        ...

    def dump(self) -> dict[str, list[dict[str, object]]]:
        """Every table as plain rows in a defined order: what `recover` must reproduce. So without what only
        the state knows: outcomes of retracted slices; of failed ones how often and when they are tried, and
        what those that are tried by time say; versions, `built_at`, triggers, leases, attempts (a window that
        is being built or was set aside is shown as queued), `seq` and time of events, what was delivered,
        marks of streaming windows, receipts, heads of logs, damages."""
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
    """All that is remembered of one warehouse.

    The names of a tile's or window's slices (`BaseTile.desired`, `TileBuild.slices`, `Member.name` …) are
    `SliceEntry.name`; everything else goes by id.
    """

    def trim_log(self) -> None:
        """Give back the space of what was written and is in place by now, unless somebody is reading: for
        moments without other work. It changes nothing that can be read."""
        ...

    def close(self) -> None: ...
