"""Compares fresh results with current ones: which are published, as which revision and why, and which are
withdrawn, and which window replaced one that is gone.

Rules on two tables in memory; without current results nothing is compared.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.formats.conditions import holds
from tidemill.model.names import column_name
from tidemill.model.slices import set_hash
from tidemill.model.streaming import Function, Trigger, WindowSpec
from tidemill.outputs.windows.aggregate import GROUP, VALUE
from tidemill.outputs.windows.keys import Key
from tidemill.outputs.windows.window_ids import result_codes, window_ids

NOTHING: Final = set_hash(())
_ROUNDED: Final = (Function.AVG, Function.STDDEV)
_LISTS: Final = pa.list_(pa.string())


class Revising:
    """`held` has each (window_id, group) once, in `schema`."""

    def __init__(
        self,
        spec: WindowSpec,
        schema: pa.Schema,
        group: Sequence[str],
        fresh: pa.Table,
        held: pa.Table,
        trigger: Trigger,
        watermark: int | None,
        *,
        again: bool,
    ) -> None:
        self._spec, self._schema, self._group, self._trigger = spec, schema, group, trigger
        self._near = {a.name for a in spec.aggregates if a.type == "float" and a.function in _ROUNDED}
        self._fresh, self._held = fresh, held
        self._ids = window_ids(spec, fresh)
        closed = _mask(fresh.column("closed"))
        before = self._before()
        kept = self._kept()
        # Hidden from readers: gone, or not meeting the condition.
        was_hidden = _mask(held.column("withdrawn"))
        was_gone = _mask(pc.equal(held.column("hash"), NOTHING))
        there = before >= 0
        same = self._same(before, kept, was_hidden)
        comes = closed & ~same
        if not spec.kind.one_after_another:  # else the bounds of hidden ones are needed too
            comes[~kept] &= there[~kept] & ~was_hidden[before[~kept]] if held.num_rows else False
        self._rows = np.flatnonzero(comes)  # of fresh: those that are published
        self._hidden = ~kept[self._rows]
        self._was_hidden = was_hidden
        self._before_rows = before[self._rows]  # of held: the previous row of each, or -1
        still = np.zeros(held.num_rows, np.bool_)
        still[before[closed & there]] = True
        waits = self._waits(closed, watermark)
        if again:  # slices may have gone: only what the open window still holds can stay
            still_held = np.zeros(held.num_rows, np.bool_)
            still_held[before[same & ~closed]] = True
            waits &= still_held
        self._gone = np.flatnonzero(~still & ~was_gone & ~waits)  # of held
        self._past = np.flatnonzero(~still & was_gone)
        self._replaced = spec.kind.one_after_another and bool(self._gone.size or self._past.size)
        self._successors = Successors(self._live(closed) if self._replaced else {})
        self._by: list[str | None] = [None] * self._gone.size
        self._why = [Trigger.RETRACTION] * self._gone.size
        if self._replaced:
            self._settle()
        for number in np.flatnonzero(was_hidden[self._gone]).tolist():
            self._why[number] = Trigger.HAVING

    def _same(self, before: Ints, kept: Mask, was_hidden: Mask) -> Mask:
        """Which fresh results are equal to what is held of them, in slices, values and visibility."""
        there = before >= 0
        same = np.zeros(there.size, np.bool_)
        if not there.any():
            return same
        fresh, held = self._fresh, self._held
        rows, olds = np.flatnonzero(there), before[there]
        equal = pc.equal(_take(fresh, "hash", rows), _take(held, "hash", olds))
        same[rows] = _mask(equal) & (was_hidden[olds] != kept[rows])
        # The same slices can give a window other rows: where windows end depends on rows, also of other
        # groups; each aggregation window has its own slices; and slices that were decided again after a
        # retraction met another watermark.
        for name, new in self._columns():
            old = _take(held, name, olds)
            same[rows] &= _alike(new.take(pa.array(rows)).cast(old.type), old, near=name in self._near)
        return same

    def _waits(self, closed: Mask, watermark: int | None) -> Mask:
        """Which held results a stop published before their windows ended: they stay until those end."""
        held = self._held
        open_ids = self._ids.filter(pa.array(~closed))
        waits = _mask(pc.is_in(held.column("window_id"), open_ids))
        if watermark is not None and self._trigger is not Trigger.STOP:  # a stop publishes buffered rows too
            waits |= held.column("start").cast(pa.int64()).to_numpy() > watermark - self._spec.opens_after
        return waits & _mask(pc.equal(held.column("trigger"), Trigger.STOP.value))

    def _kept(self) -> Mask:
        """Which fresh results meet the condition on results."""
        having, fresh = self._spec.having, self._fresh
        if having is None:
            return np.ones(fresh.num_rows, np.bool_)
        names = {each.name: VALUE + each.name for each in self._spec.aggregates}
        names |= {name: GROUP + name for name in self._spec.grouped_by if name not in names}
        return holds(having.condition, lambda name: (one(fresh.column(names[name])), 0))

    def _columns(self) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """The columns of a result that describe its rows: in the table, and fresh."""
        for name in ("end", "rows", "late_rows", "first_time", "last_time", "bytes"):
            yield name, self._fresh.column(name)
        for aggregate in self._spec.aggregates:
            yield aggregate.name, self._fresh.column(VALUE + aggregate.name)

    def _before(self) -> Ints:
        """For each fresh result, the row of `held` with the same window and group, or -1."""
        fresh, held = self._fresh, self._held
        before = np.full(fresh.num_rows, -1, np.int64)
        if not (fresh.num_rows and held.num_rows):
            return before
        inner = [
            name for name in self._spec.grouped_by if name not in self._spec.key
        ]  # the rest is in the id
        pairs = [(self._ids, held.column("window_id"))]
        for name in inner:
            if column_name(name) in self._group:
                pairs.append((fresh.column(GROUP + name), held.column(column_name(name))))
        both = [pa.concat_arrays([one(new), one(old)]) for new, old in pairs]
        result = result_codes(both)
        own, current = result[: fresh.num_rows], result[fresh.num_rows :]
        at = np.full(result.size, -1, np.int64)
        at[current] = np.arange(current.size)
        assert np.count_nonzero(at >= 0) == current.size, "what stands is there once"
        return at[own]

    # -- windows that took the place of others

    def _live(self, closed: Mask) -> dict[Key, list[FreshWindow]]:
        """The fresh windows of the keys that lost some."""
        written = np.zeros(self._fresh.num_rows, np.bool_)
        written[self._rows] = True
        concerned = self._concerned()
        fresh, ids = self._fresh.take(pa.array(concerned)), self._ids.take(pa.array(concerned))
        closed, written = closed[concerned], written[concerned]
        keys = [fresh.column(GROUP + name).to_pylist() for name in self._spec.key]
        columns = [fresh.column(name).to_pylist() for name in ("tenant", "start", "end", "ordinal")]
        found: dict[str, tuple[int, Key, FreshWindow]] = {}
        rows = zip(ids.to_pylist(), *columns, closed.tolist(), written.tolist(), *keys, strict=True)
        for name, tenant, start, end, ordinal, is_closed, is_written, *key in rows:
            is_written = is_written or (name in found and found[name][2].written)
            live = FreshWindow(name, start, end, not is_closed, is_written)
            found[name] = ordinal, (tenant, tuple(key)), live
        ordered = sorted(found.values(), key=lambda window: (window[2].start, window[0]))
        by_key: dict[Key, list[FreshWindow]] = {}
        for _, key_code, live in ordered:
            by_key.setdefault(key_code, []).append(live)
        return by_key

    def _concerned(self) -> Ints:
        lost = self._held.take(pa.array(np.concatenate([self._gone, self._past])))
        pairs = [(self._fresh.column("tenant"), lost.column("tenant"))]
        for name in self._spec.key:
            pairs.append((self._fresh.column(GROUP + name), lost.column(column_name(name))))
        key_codes = result_codes([pa.concat_arrays([one(new), one(old)]) for new, old in pairs])
        own, current = key_codes[: self._fresh.num_rows], key_codes[self._fresh.num_rows :]
        return np.flatnonzero(np.isin(own, current))

    def _windows(self, rows: Ints) -> list[WithdrawnWindow]:
        """The windows of rows of `held`."""
        some = self._held.take(pa.array(rows))
        keys = [some.column(column_name(name)).to_pylist() for name in self._spec.key]
        start, end = (some.column(name).cast(pa.int64()).to_pylist() for name in ("start", "end"))
        ids, tenants = some.column("window_id").to_pylist(), some.column("tenant").to_pylist()
        return [
            WithdrawnWindow(name, (tenant, tuple(key)), begins, ends)
            for name, tenant, begins, ends, *key in zip(ids, tenants, start, end, *keys, strict=True)
        ]

    def _settle(self) -> None:
        for number, gone in enumerate(self._windows(self._gone)):
            successor = self._successors.of(gone)
            self._by[number] = successor.by
            if successor.overlapped:
                self._why[number] = Trigger.LATE
            if successor.by is not None:
                self._successors.name(successor.by, [gone])
        # A window that was withdrawn before its successor was published names it once it is; if the successor
        # was never published, another takes its place.
        known = {*self._ids.to_pylist(), *self._held.column("window_id").to_pylist()}
        was_by = _take(self._held, "superseded_by", self._past).to_pylist()
        for gone, by in zip(self._windows(self._past), was_by, strict=True):
            heir_id = by if by in known else self._successors.of(gone).by
            if by is not None and heir_id is not None:
                self._successors.name(heir_id, [gone])

    # -- rows to append; all of them get the same watermark and batch

    def results(self) -> pa.Table:
        """The results that are published."""
        fresh = self._fresh.take(pa.array(self._rows))
        count = fresh.num_rows
        columns: dict[str, pa.Array | pa.ChunkedArray] = {
            "window_id": self._ids.take(pa.array(self._rows)),
            "revision": pa.array(self._revisions()),
            "trigger": self._triggers(),
            "supersedes": self._supersedes(),
            "withdrawn": pa.array(self._hidden),
        }
        for name in self._spec.grouped_by:
            columns.setdefault(column_name(name), fresh.column(GROUP + name))
        for aggregate in self._spec.aggregates:
            columns[aggregate.name] = fresh.column(VALUE + aggregate.name)
        for name in ("start", "end", "tenant", "rows", "late_rows", "first_time", "last_time", "bytes"):
            columns[name] = fresh.column(name)
        columns |= {name: fresh.column(name) for name in ("hash", "slices")}
        return self._table(columns, count)

    def _revisions(self) -> Ints:
        revisions = np.ones(self._rows.size, np.int64)
        there = self._before_rows >= 0
        if there.any():
            held = self._held.column("revision").to_numpy()
            revisions[there] = held[self._before_rows[there]] + 1
        return revisions

    def _triggers(self) -> pa.Array:
        """Why each of them is published."""
        why = np.zeros(self._rows.size, np.int32)
        there = np.flatnonzero(self._before_rows >= 0)
        if there.size:
            olds, news = self._before_rows[there], self._rows[there]
            fewer = np.zeros(there.size, np.bool_)
            for name in ("rows", "slices"):
                fewer |= self._fresh.column(name).to_numpy()[news] < self._held.column(name).to_numpy()[olds]
            first = pa.array([Trigger.STOP.value, Trigger.HAVING.value])
            again = _mask(pc.is_in(_take(self._held, "trigger", olds), first))
            if self._trigger is not Trigger.STOP:
                why[there] = np.where(again, 0, np.where(fewer, 2, 1))
        never = self._hidden.copy()  # and was not visible before
        never[there] &= self._was_hidden[self._before_rows[there]]
        why[never] = 3
        triggers = [each.value for each in (self._trigger, Trigger.LATE, Trigger.RETRACTION, Trigger.HAVING)]
        return pa.array(triggers, pa.string()).take(pa.array(why))

    def _supersedes(self) -> pa.Array:
        ids = self._ids.take(pa.array(self._rows))
        if not self._successors.named:
            offsets = pa.array(np.zeros(len(ids) + 1, np.int32))
            return pa.ListArray.from_arrays(offsets, pa.array([], pa.string()))
        return pa.array([self._successors.superseded_by(name) for name in ids.to_pylist()], _LISTS)

    def withdrawn(self) -> pa.Table:
        """The results that are withdrawn."""
        held = self._held.take(pa.array(self._gone))
        count = held.num_rows
        kept = ("window_id", "start", "end", "tenant", *self._group)
        nothing = pa.array(np.zeros(count, np.int64))
        columns: dict[str, pa.Array | pa.ChunkedArray] = {name: held.column(name) for name in kept}
        columns |= dict.fromkeys(("rows", "late_rows", "bytes", "slices"), nothing)
        columns |= {
            "revision": pc.add(held.column("revision"), 1),
            "trigger": pa.array([why.value for why in self._why], pa.string()),
            "hash": pa.array([NOTHING] * count, pa.string()),
            "supersedes": pa.array([[]] * count, _LISTS),
            "superseded_by": pa.array(self._by, pa.string()),
            "withdrawn": pa.array(np.ones(count, np.bool_)),
        }
        return self._table(columns, count)

    def _table(self, columns: dict[str, pa.Array | pa.ChunkedArray], count: int) -> pa.Table:
        arrays = []
        for triggers in self._schema:
            column = columns.get(triggers.name)
            arrays.append(pa.nulls(count, triggers.type) if column is None else column.cast(triggers.type))
        return pa.Table.from_arrays(arrays, schema=self._schema)


def _mask(column: pa.ChunkedArray | pa.Array) -> Mask:
    values: Mask = np.asarray(one(column).to_numpy(zero_copy_only=False), np.bool_)
    return values


def _alike(a: pa.ChunkedArray, b: pa.ChunkedArray, *, near: bool) -> Mask:
    """Where both are equal; null equals null, and NaN equals NaN. `near`: values that were rounded on the way
    are compared to twelve digits."""
    equal = pc.or_(pc.fill_null(pc.equal(a, b), False), pc.and_(pc.is_null(a), pc.is_null(b)))
    if pa.types.is_floating(a.type):
        equal = pc.or_(equal, pc.fill_null(pc.and_(pc.is_nan(a), pc.is_nan(b)), False))
    if near:
        bound = pc.multiply(pc.max_element_wise(pc.abs(a), pc.abs(b)), 1e-12)
        equal = pc.or_(equal, pc.fill_null(pc.less_equal(pc.abs(pc.subtract(a, b)), bound), False))
    return _mask(equal)


def _take(table: pa.Table, name: str, rows: Ints) -> pa.ChunkedArray:
    return table.column(name).take(pa.array(rows))


@dataclass(frozen=True, slots=True)
class FreshWindow:
    """A fresh window."""

    id: str
    start: int
    end: int
    open: bool
    written: bool  # something of it is published now


@dataclass(frozen=True, slots=True)
class WithdrawnWindow:
    """A window that lost a result."""

    id: str
    key: Key
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Successor:
    overlapped: bool  # a fresh window overlaps it
    by: str | None  # the window that replaced it


@dataclass(slots=True)
class Successors:
    """Fresh windows by key, those of each key in order: starts and ends ascend."""

    live: Mapping[Key, Sequence[FreshWindow]]
    named: dict[str, list[WithdrawnWindow]] = field(default_factory=dict)  # by the window that replaced them

    def of(self, gone: WithdrawnWindow) -> Successor:
        windows = self.live.get(gone.key, ())
        low = bisect_right(windows, gone.start, key=lambda window: window.end)
        high = bisect_left(windows, gone.end, key=lambda window: window.start)
        over = windows[low:high]
        successors = [window for window in over if window.id != gone.id and (window.written or window.open)]
        # It still has another group: nothing replaced it.
        lives_on = any(window.id == gone.id for window in over)
        if lives_on or not successors:
            return Successor(bool(over), None)
        return Successor(
            True, min(successors, key=lambda window: window.open).id
        )  # the first one that is published

    def name(self, by: str, gone: Iterable[WithdrawnWindow]) -> None:
        self.named.setdefault(by, []).extend(gone)

    def superseded_by(self, window: str) -> list[str]:
        """Ids of the windows that a window replaced, oldest first."""
        found = {(gone.start, gone.id) for gone in self.named.get(window, ())}
        return [name for _, name in sorted(found)]
