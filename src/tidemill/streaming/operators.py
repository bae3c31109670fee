"""Streaming windows one row at a time, in memory: the semantics, without Spark, Arrow or a table.

Time moves by watermarks alone, never by a wall clock; a stop flushes what is open and makes up no watermark.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import count, takewhile

from tidemill.eventtime.ordering import Ordering, Timed, Watermark
from tidemill.model.errors import InputError
from tidemill.model.streaming import (
    Close,
    Fate,
    LatePolicy,
    Trigger,
    Value,
    WindowKind,
    WindowResult,
    WindowSpec,
    window_id,
)
from tidemill.model.time import MIN_INSTANT, Interval, format_instant
from tidemill.streaming.accumulators import StreamRow
from tidemill.streaming.lanes import Cut, Group, Lane, LaneKey, Placed, cut_lane


@dataclass(frozen=True, slots=True)
class Emitted:
    """One result as it came out, or is taken back: then `result` is what stood."""

    window_id: str
    ordinal: int
    revision: int
    trigger: Trigger
    result: WindowResult
    withdrawn: bool = False
    supersedes: tuple[str, ...] = ()  # windows that were out and that this one replaces
    superseded_by: str | None = None

    @property
    def order(self) -> tuple[int, str, int, tuple[tuple[bool, Value], ...]]:
        """By start, tenant, ordinal and group; a group's nulls first."""
        group = tuple((value is not None, value) for value in self.result.group)
        return self.result.start, self.result.tenant, self.ordinal, group


Named = tuple[str, Group]  # a result: its window's id, and its group


@dataclass(slots=True)
class _Told:
    """What came out of a lane: the last of each result, and windows taken back that none has replaced yet."""

    last: dict[Named, Emitted] = field(default_factory=dict)
    replaceable: dict[str, Interval] = field(default_factory=dict)

    def stands(self, name: Named, result: WindowResult) -> bool:
        last = self.last.get(name)
        return last is not None and not last.withdrawn and last.result == result

    def replaced_by(self, window: str, cut: Cut) -> tuple[str, ...]:
        """Windows taken back, now or before, in whose place this one comes."""
        self.replaceable.pop(window, None)
        found = tuple(gone for gone, stood in self.replaceable.items() if _meet(cut.interval, stood))
        for gone in found:
            del self.replaceable[gone]
        return found

    def forget(self, windows: Set[str], reach: int) -> None:
        """These windows, and whatever starts where no row comes to any more."""
        for name, last in list(self.last.items()):
            if last.window_id in windows or last.result.start < reach:
                del self.last[name]
                self.replaceable.pop(last.window_id, None)


class WindowOperator:
    """The windows of one declaration. `push` takes rows that are on time, `late` others; `advance` to a
    watermark, also to the one that holds, makes results come out. `scales` are those of decimal fields.

    Rows may be pushed in any order as long as none counts before the watermark; how they count is theirs: by
    (at, seq, line).
    """

    def __init__(self, spec: WindowSpec, scales: Mapping[str, int] | None = None) -> None:
        if spec.close is not Close.WATERMARK:
            raise InputError(
                f"window {spec.name!r} closes when it is complete, which no watermark tells",
                hint="an operator runs windows with close: watermark",
            )
        self.spec = spec
        self.watermark: int | None = None
        self.fates: Counter[Fate] = Counter()
        self.triggers: Counter[Trigger] = Counter()  # of results
        self.withdrawn = 0
        self._scales = scales or {}
        self._lateness = spec.max_lateness if spec.late is LatePolicy.REEMIT else 0
        self._lanes: dict[LaneKey, Lane] = {}
        self._told: dict[LaneKey, _Told] = {}
        self._touched: set[LaneKey] = set()
        self._due: list[tuple[int, int, LaneKey]] = []  # when a lane is to be looked at
        self._serial = count()

    @property
    def held(self) -> int:
        """How many rows are kept: of open windows, and of those that late rows may still change."""
        return sum(len(lane.rows) for lane in self._lanes.values())

    def push(self, rows: Iterable[StreamRow]) -> None:
        """Rows that are on time."""
        for row in rows:
            # In processing time a slice may arrive at the instant of a tick: no closed window holds it.
            assert self.watermark is None or row.time >= self.watermark, (row.time, self.watermark)
            self.fates[Fate.ON_TIME] += 1
            self._place(row.time, row)

    def late(self, row: StreamRow) -> Fate:
        """A row at or before the watermark. What it changes comes out with the next `advance`."""
        met = row.met if row.met is not None else self.watermark
        row = replace(row, met=met)
        fate = self.spec.fate(row.time, met)
        assert fate is not Fate.ON_TIME, (row.time, met)
        self.fates[fate] += 1
        if fate.used:
            self._place(self.spec.counts_at(row.time, met), row)
        return fate

    def advance(self, watermark: int) -> list[Emitted]:
        """What comes out once nothing at or before the watermark follows, late rows aside."""
        assert self.watermark is None or watermark >= self.watermark, (watermark, self.watermark)
        self.watermark = watermark
        while self._due and self._due[0][0] <= watermark:
            self._touched.add(heapq.heappop(self._due)[2])
        touched, self._touched = self._touched, set()
        return self._in_order([each for key in touched for each in self._settle(key, flush=False)])

    def stop(self) -> list[Emitted]:
        """Everything that is open comes out. Rows that come after a stop go on where it was."""
        settled = [] if self.watermark is None else self.advance(self.watermark)
        return settled + self._in_order(
            [e for key in list(self._lanes) for e in self._settle(key, flush=True)]
        )

    def _in_order(self, emitted: list[Emitted]) -> list[Emitted]:
        self.triggers.update(each.trigger for each in emitted if not each.withdrawn)
        self.withdrawn += sum(each.withdrawn for each in emitted)
        return sorted(emitted, key=lambda each: each.order)

    # -- where rows go

    def _place(self, at: int, row: StreamRow) -> None:
        key = row.values(self.spec.key)
        if self.spec.kind.by_time:
            for window in self.spec.windows_at(at):
                self._insert(
                    LaneKey(row.tenant, key, window.start), Placed(at, row.seq, row.line, row), window.end
                )
        else:
            self._insert(LaneKey(row.tenant, key), Placed(at, row.seq, row.line, row), at)

    def _insert(self, key: LaneKey, placed: Placed, due: int) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane()
            self._told[key] = _Told()
            self._look_again(key, due)
        lane.insert(placed)
        if self.watermark is not None and placed.at <= self.watermark:
            self._touched.add(key)
        elif not self.spec.kind.by_time:
            self._look_again(key, due)

    def _look_again(self, key: LaneKey, instant: int) -> None:
        heapq.heappush(self._due, (instant, next(self._serial), key))

    # -- what becomes of a lane

    def _settle(self, key: LaneKey, *, flush: bool) -> list[Emitted]:
        lane = self._lanes.get(key)
        if lane is None:
            return []
        counted = lane.rows
        if not flush and not self.spec.kind.by_time:
            assert self.watermark is not None
            counted = lane.upto(self.watermark)
        cuts = lane.numbered(cut_lane(self.spec, key, counted, self._scales))
        named = {window_id(self.spec, key.tenant, key.key, cut.start, cut.ordinal): cut for cut in cuts}
        emitted = self._changes(key, named, flush=flush)
        if not flush:
            self._let_go(key, lane, named)
        return emitted

    def _is_closed(self, cut: Cut) -> bool:
        if self.spec.kind in (WindowKind.COUNT, WindowKind.STATE):
            return cut.full
        return self.watermark is not None and cut.end <= self.watermark

    def _changes(self, key: LaneKey, named: Mapping[str, Cut], *, flush: bool) -> list[Emitted]:
        """From what stands to what these windows say."""
        told = self._told[key]
        closed = {each: cut for each, cut in named.items() if flush or self._is_closed(cut)}
        fresh = {
            (each, group): result
            for each, cut in closed.items()
            for group, result in cut.results(self.spec).items()
        }
        changed = {name: result for name, result in fresh.items() if not told.stands(name, result)}
        heirs = {name[0]: closed[name[0]] for name in changed}
        emitted: list[Emitted] = []
        for name, last in told.last.items():
            if not (last.withdrawn or name in fresh or (not flush and self._goes_on(last, named, closed))):
                if last.window_id not in closed:
                    told.replaceable[last.window_id] = Interval(last.result.start, last.result.end)
                emitted.append(self._withdrawal(last, heirs))
        replaced = {each: told.replaced_by(each, cut) for each, cut in heirs.items()}
        for (each, group), result in changed.items():
            stood = told.last.get((each, group))
            emitted.append(
                Emitted(
                    window_id=each,
                    ordinal=closed[each].ordinal,
                    revision=stood.revision + 1 if stood is not None else 1,
                    trigger=Trigger.STOP if flush else self._trigger(stood),
                    result=result,
                    supersedes=replaced[each],
                )
            )
        told.last.update({(each.window_id, each.result.group): each for each in emitted})
        return emitted

    def _trigger(self, stood: Emitted | None) -> Trigger:
        """Late rows alone change what came out closed; what a stop brought out goes on as if it had not."""
        stopped = stood is not None and (stood.trigger is Trigger.STOP or stood.withdrawn)
        if stood is not None and (stood.trigger is Trigger.LATE or not stopped):
            return Trigger.LATE
        match self.spec.kind:
            case WindowKind.COUNT:
                return Trigger.COUNT
            case WindowKind.STATE:
                return Trigger.STATE
            case _:
                return Trigger.WATERMARK

    def _goes_on(self, last: Emitted, named: Mapping[str, Cut], closed: Mapping[str, Cut]) -> bool:
        """Whether it came out by a stop and is still open. What came out closed and is open again because a
        late row prolonged it is not over, and does not stand."""
        if last.trigger is not Trigger.STOP or last.window_id in closed:
            return False
        return last.window_id in named or self.watermark is None or last.result.start > self.watermark

    def _withdrawal(self, last: Emitted, heirs: Mapping[str, Cut]) -> Emitted:
        stood = Interval(last.result.start, last.result.end)
        replacing = (
            each for each, cut in heirs.items() if each != last.window_id and _meet(cut.interval, stood)
        )
        return replace(
            last,
            revision=last.revision + 1,
            trigger=self._trigger(last),
            withdrawn=True,
            supersedes=(),
            superseded_by=next(replacing, None),
        )

    # -- what is no longer needed

    def _let_go(self, key: LaneKey, lane: Lane, named: Mapping[str, Cut]) -> None:
        assert self.watermark is not None
        watermark = self.watermark
        horizon = watermark - self._lateness  # late rows that are used are of this instant or after it
        over = set(takewhile(lambda each: self._is_final(named[each], watermark), named))
        lane.let_go(list(named.values()), len(over), horizon)
        told = self._told[key]
        # A window on a grid starts before its first row, and is forgotten only as a whole.
        reach = MIN_INSTANT if self.spec.kind.by_time else min([horizon, *(row.at for row in lane.rows[:1])])
        told.forget(over, reach)
        if not lane.rows and not told.last:
            del self._lanes[key], self._told[key]
            return
        instants = [cut.end if not self._is_closed(cut) else self._final_at(cut) for cut in named.values()]
        instants += [row.at + self._lateness + 1 for row in lane.rows[:1]]
        instants += [last.result.start + self._lateness + 1 for last in told.last.values()]
        instants += lane.next_after(watermark)
        if ahead := [instant for instant in instants if instant > watermark]:
            self._look_again(key, min(ahead))

    def _is_final(self, cut: Cut, watermark: int) -> bool:
        return self._is_closed(cut) and self._final_at(cut) <= watermark

    def _final_at(self, cut: Cut) -> int:
        """The watermark from which on no row can change a closed window."""
        if self.spec.kind in (WindowKind.COUNT, WindowKind.STATE):
            return cut.last + self._lateness + 1
        return cut.end + self._lateness


def _meet(one: Interval, other: Interval) -> bool:
    return one.start < other.end and other.start < one.end


class Pipeline:
    """Event time: rows of slices as they arrive, put in order, and windowed."""

    def __init__(
        self,
        spec: WindowSpec,
        tolerance: int,
        *,
        idle_timeout: int | None = None,
        max_bytes: int | None = None,
        scales: Mapping[str, int] | None = None,
    ) -> None:
        self.ordering: Ordering[StreamRow] = Ordering(tolerance, idle_timeout, max_bytes)
        self.windows = WindowOperator(spec, scales)

    @property
    def watermark(self) -> int | None:
        return self.windows.watermark

    @property
    def fates(self) -> Counter[Fate]:
        """Of rows that are out of the buffer, or were late."""
        return self.windows.fates

    def slice(self, rows: Iterable[StreamRow], *, source: str = "", arrival: int = 0) -> list[Emitted]:
        """The accepted rows of one slice, which all meet the same watermark."""
        timed = [Timed(row.time, row, row.size) for row in rows]
        out, late = self.ordering.push(timed, source=source, arrival=arrival)
        return self._through(out, late)

    def tick(self, now: int) -> list[Emitted]:
        """Time passes, for sources that are idle."""
        return self._through(self.ordering.tick(now), [])

    def stop(self) -> list[Emitted]:
        self.windows.push(_met(each) for each in self.ordering.stop())
        return self.windows.stop()

    def _through(
        self, out: Sequence[Timed[StreamRow] | Watermark], late: Sequence[Timed[StreamRow]]
    ) -> list[Emitted]:
        """Late rows come in where the watermark is the one that they met: sources that fell silent may have
        moved it before, and the slice itself moves it after."""
        emitted = self._late(late)
        for each in out:
            if isinstance(each, Watermark):
                emitted += self.windows.advance(each.at)
                emitted += self._late(late)
            else:
                self.windows.push([_met(each)])
        return emitted

    def _late(self, rows: Sequence[Timed[StreamRow]]) -> list[Emitted]:
        if not rows or rows[0].met != self.watermark:
            return []
        for each in rows:
            self.windows.late(_met(each))
        assert self.watermark is not None
        return self.windows.advance(self.watermark)


def _met(timed: Timed[StreamRow]) -> StreamRow:
    return replace(timed.row, met=timed.met)


class ProcessingPipeline:
    """Processing time: a row happens when it arrives, and ticks are the watermarks. No row is ever late."""

    def __init__(self, spec: WindowSpec, *, scales: Mapping[str, int] | None = None) -> None:
        self.windows = WindowOperator(spec, scales)

    @property
    def watermark(self) -> int | None:
        return self.windows.watermark

    @property
    def fates(self) -> Counter[Fate]:
        return self.windows.fates

    def slice(self, rows: Iterable[StreamRow], *, arrival: int) -> list[Emitted]:
        """Nothing comes out before the next tick."""
        if self.watermark is not None and arrival < self.watermark:
            raise InputError(
                f"a slice that arrived at {format_instant(arrival)} comes after the tick of "
                f"{format_instant(self.watermark)}",
                hint="hand in slices before the first tick that is later than their arrival",
            )
        self.windows.push(replace(row, time=arrival, met=None) for row in rows)
        return []

    def tick(self, now: int) -> list[Emitted]:
        return self.windows.advance(now)

    def stop(self) -> list[Emitted]:
        return self.windows.stop()
