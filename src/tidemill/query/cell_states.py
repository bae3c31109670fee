"""The observations that a number of a state metric is made from: for objects in a state those that put them
there, for transitions those that made them. Read from the state history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.formats.key_runs import key_ranges, within
from tidemill.model.metrics import NONE_STATE
from tidemill.model.names import PSEUDO_DIMENSIONS
from tidemill.model.time import Interval
from tidemill.outputs.rollups.observation_runs import histories_of, object_spans
from tidemill.outputs.rollups.observations import in_order, joined, no_observations
from tidemill.outputs.rollups.spec import Metric
from tidemill.outputs.rollups.transitions import Histories, entered_last, histories, transitions_at
from tidemill.query.dimensions import FROM, STATE, TENANT, TO, MetricRows
from tidemill.storage.bucket_path import size_of
from tidemill.storage.checksums import read_arrow

if TYPE_CHECKING:
    from tidemill.outputs.rollups.state_history import Recollection
    from tidemill.query.plan import Plan

STATE_TEXTS: Final = (*PSEUDO_DIMENSIONS, "rule")  # what an entry says beside its event
_BYTES_AT_ONCE: Final = 128 << 20  # of observations
_IN_STATE, _FROM, _TO, _RULE = STATE_TEXTS

Chooses = Callable[[Mapping[str, pa.Array]], Mask]


@dataclass(frozen=True, slots=True)
class StateEntries:
    """For one state metric: objects in states, or the transitions of one rule."""

    metric: Metric
    rows: MetricRows
    known: Recollection
    plan: Plan

    def within(self, span: Interval, chooses: Chooses) -> Iterator[pa.Table]:
        """The entries of a cell: event_time, tenant, event_id, seq, and the states."""
        files = self.known.observation_files.get(self.metric.name, ())
        size = sum(size_of(path) for path in files)
        for keys in key_ranges(1 + size // _BYTES_AT_ONCE):
            history = self._history(files, keys, span)
            if history.num_rows:
                renamed = self.known.renamed(self.metric.name, history)
                yield self._entries(renamed, histories(self.metric, renamed), span, chooses)

    def _history(self, files: Sequence[str], keys: tuple[int, int], span: Interval) -> pa.Table:
        """The sorted observations of the objects up to the end of the cell; for transitions only of objects
        that were seen in it."""
        runs = [within(read_arrow(path), *keys) for path in files]
        found = [self._seen(run, span.end) for run in runs]
        held = [run for run in found if run.num_rows]
        if not held:
            return no_observations(self.metric)
        if self.rows.in_state:
            return in_order(joined(held))
        inside = [run.filter(pc.greater_equal(run.column("time"), span.start)) for run in held]
        seen = [run for run in inside if run.num_rows]
        if not seen:
            return no_observations(self.metric)
        objects = object_spans(in_order(joined(seen)))
        return self._seen(histories_of(self.metric, files, objects, keys, self._until), span.end)

    @property
    def _until(self) -> int | None:
        """The ledger offset that slices must come before."""
        return None if self.plan.past is None else self.plan.past.offset + 1

    def _seen(self, run: pa.Table, end: int) -> pa.Table:
        keep = pc.less(run.column("time"), end)
        if self._until is not None:
            keep = pc.and_(keep, pc.less(run.column("seq"), self._until))
        if self.plan.tenant is not None:
            tenants = one(run.column("tenant"))
            keep = pc.and_(keep, pc.equal(tenants.cast(pa.string()), self.plan.tenant))
        return run.filter(keep).combine_chunks()

    def _entries(self, history: pa.Table, known: Histories, span: Interval, chooses: Chooses) -> pa.Table:
        at, before = self._counted(history, known, span)
        texts = pa.array([*known.texts, NONE_STATE], pa.string())
        to, left = texts.take(pa.array(known.state[at])), None
        columns = {each.column: f"k{i}" for i, each in enumerate(self.metric.dimensions)}
        rows = history.take(pa.array(at))
        values = {name: one(rows.column(key)) for name, key in columns.items()}
        values[TENANT.column] = one(rows.column("tenant"))
        if before is None:
            values[STATE] = to
        else:
            left = texts.take(pa.array(before))
            values |= {FROM: left, TO: to}
        keep = chooses(values)
        nothing = pa.nulls(at.size, pa.string())
        described = {
            "event_time": one(rows.column("time")),
            **{name: one(rows.column(name)).cast(pa.string()) for name in ("tenant", "event_id")},
            "seq": one(rows.column("seq")),
            _IN_STATE: to if left is None else nothing,
            _FROM: nothing if left is None else left,
            _TO: nothing if left is None else to,
            _RULE: nothing if left is None else pa.array([self.rows.rule] * at.size, pa.string()),
        }
        return pa.table(described).filter(pa.array(keep))

    def _counted(self, history: pa.Table, known: Histories, span: Interval) -> tuple[Ints, Ints | None]:
        """Which observations count, and for transitions the state that each leaves."""
        if self.rows.in_state:
            return entered_last(known), None
        assert self.metric.following is not None
        rule = next(each for each in self.metric.following.rules if each.name == self.rows.rule)
        time: Ints = one(history.column("time")).to_numpy()
        at, before = transitions_at(known, rule, (time >= span.start) & (time < span.end))
        keep = np.ones(at.size, np.bool_)
        texts = np.array([*known.texts, NONE_STATE], object)
        for states, codes in ((self.rows.from_states, before), (self.rows.to_states, known.state[at])):
            if states is not None:
                keep &= np.isin(texts[codes].astype(str), np.array(list(states), str))
        return at[keep], before[keep]
