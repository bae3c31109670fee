"""What the rollups must hold for metrics of all kinds, said as simply as it can be: every event, every time.

It never imports the engine and never merges anything: each level is computed from the events themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Final, NamedTuple

from tests.support.oracles.kinds import (
    OracleCounter,
    OracleGauge,
    OracleHistogram,
    OracleKept,
    OracleRatio,
    OracleState,
    OracleTerm,
    measures_of,
)
from tests.support.oracles.oracle import Dimensions, Event, Value, lookup
from tests.support.oracles.stream import OracleStream
from tests.support.oracles.strictjson import Number

from tidemill.model.conditions.declared import parse_condition
from tidemill.model.levels import LEVELS, TileKey, level_named
from tidemill.model.metrics import NONE_STATE, OTHER, Bins, TransitionRule, percentile
from tidemill.model.names import column_name
from tidemill.model.time import Interval, align
from tidemill.testing.conditions import condition_is

_EXACT: Final = Context(prec=60)

Cell = Value | Decimal | tuple[int, ...]
Row = dict[str, Cell]
"""A row of the rollups table by column, without `level` and without what is null. Instants are microseconds,
lists are tuples."""


class Counted(NamedTuple):
    """An event that a metric counts, under the key that it counts for."""

    event: Event
    key: Dimensions


class Change(NamedTuple):
    """What one observation of an object adds to the rows of its bucket."""

    tenant: str
    time: int
    key: Dimensions
    state: str | None  # of a net row,
    rule: str | None  # or else of a row of transitions
    from_: str | None
    to: str | None
    by: int


class Standing(NamedTuple):
    """Objects that are in a state."""

    tenant: str
    key: Dimensions
    state: str


class MetricOracle:
    """The metrics of a stream over its accepted events, in ledger order (`Oracle.accepted`)."""

    def __init__(self, stream: OracleStream, events: Sequence[Event]) -> None:
        self.stream = stream
        self.events = tuple(events)

    @property
    def kept(self) -> dict[str, OracleKept]:
        """The metrics that have rows, by name."""
        plain = {name: OracleCounter(*metric) for name, metric in self.stream.metrics.items()}
        kinds = {n: kind for n, kind in self.stream.kinds.items() if not isinstance(kind, OracleRatio)}
        return dict(sorted((plain | kinds).items()))

    # -- the rows of the table

    def rows(self, level: str) -> list[Row]:
        """Every row of a level, in no particular order."""
        width = level_named(level).width
        return [row for name in self.kept for row in self._rows(name, width)]

    def tiles(self) -> dict[TileKey, list[Row]]:
        """The rows of all levels by the tile that holds them; tiles without rows are not there."""
        found: dict[TileKey, list[Row]] = {}
        for level in LEVELS:
            for row in self.rows(level.name):
                bucket = row["bucket"]
                assert isinstance(bucket, int)
                found.setdefault(TileKey(level.name, level.tile_of(bucket)), []).append(row)
        return found

    def _rows(self, name: str, width: int) -> list[Row]:
        metric = self.kept[name]
        if isinstance(metric, OracleState):
            return self._state_rows(name, metric, width)
        cells: dict[tuple[str, Dimensions, int], list[Event]] = {}
        for event, key in self.counted(name):
            cells.setdefault((event.tenant, key, align(event.ts, width)), []).append(event)
        return [
            _row(name, metric, tenant, key, bucket) | self._kept_of(metric, events)
            for (tenant, key, bucket), events in cells.items()
        ]

    def _kept_of(self, metric: OracleKept, events: Sequence[Event]) -> Row:
        """What a cell keeps of its events."""
        row: Row = {"count": len(events)}
        for measure in measures_of(metric):
            stem = column_name(measure)
            samples = self.samples(measure, events)
            row[f"{stem}__count"] = len(samples)
            row[f"{stem}__sum"] = self._unscaled(measure, sum(sample for _, _, sample in samples))
            if samples:
                row[f"{stem}__min"] = self._unscaled(measure, min(sample for _, _, sample in samples))
                row[f"{stem}__max"] = self._unscaled(measure, max(sample for _, _, sample in samples))
            if samples and isinstance(metric, OracleGauge):
                for end, (time, event_id, sample) in (("first", min(samples)), ("last", max(samples))):
                    row[f"{stem}__{end}"] = self._unscaled(measure, sample)
                    row[f"{stem}__{end}_time"] = time
                    row[f"{stem}__{end}_id"] = event_id
            if isinstance(metric, OracleHistogram):
                bins = self._bins(metric)
                counts = Counter(bins.of(sample) for _, _, sample in samples)
                row["histogram__bins"] = tuple(sorted(counts))
                row["histogram__counts"] = tuple(counts[bin] for bin in sorted(counts))
        return row

    def _state_rows(self, name: str, metric: OracleState, width: int) -> list[Row]:
        totals: Counter[Change] = Counter()
        for change in self.changes(name):
            totals[change._replace(time=align(change.time, width), by=0)] += change.by
        found = []
        for change, count in totals.items():
            keys = {
                "state__is": change.state,
                "state__rule": change.rule,
                "state__from": change.from_,
                "state__to": change.to,
            }
            row = _row(name, metric, change.tenant, change.key, change.time) | {"count": count}
            if count:
                found.append(row | {column: text for column, text in keys.items() if text is not None})
        return found

    # -- which events a metric counts, and under which key

    def counted(self, name: str) -> list[Counted]:
        """In ledger order. Beyond the limit, keys that are new are the key of all others."""
        metric = self.kept[name]
        admitted: dict[str, set[Dimensions]] = {}
        found = []
        for event in self.events:
            if not self._counts(metric, event):
                continue
            key = tuple(self._plain(event, column) for column in metric.dimensions)
            known = admitted.setdefault(event.tenant, set())
            if metric.limit is None or len(known) < metric.limit:
                known.add(key)
            found.append(Counted(event, key if key in known else self._other(metric)))
        return found

    def _counts(self, metric: OracleKept, event: Event) -> bool:
        if isinstance(metric, OracleState):
            both = (lookup(event.fields, metric.object), lookup(event.fields, metric.state))
            if None in both:
                return False
        if metric.filter is None:
            return True
        condition = parse_condition(metric.filter).condition
        return condition_is(condition, lambda column: self._given(event, column)) is True

    def _other(self, metric: OracleKept) -> Dimensions:
        types = [self.stream.fields[column].type for column in metric.dimensions]
        return tuple(OTHER if type == "string" else None for type in types)

    # -- states

    def changes(self, name: str) -> list[Change]:
        """What every observation adds, replayed object by object in order of (event time, event id)."""
        metric = self.kept[name]
        assert isinstance(metric, OracleState)
        objects: dict[tuple[str, Value], list[Counted]] = {}
        for counted in self.counted(name):
            whose = (counted.event.tenant, self._plain(counted.event, metric.object))
            objects.setdefault(whose, []).append(counted)
        return [
            change
            for observations in objects.values()
            for change in self._replayed(
                metric, sorted(observations, key=lambda o: (o.event.ts, o.event.event_id))
            )
        ]

    def _replayed(self, metric: OracleState, observations: Sequence[Counted]) -> Iterable[Change]:
        before: list[tuple[str, Dimensions]] = []  # states of this object so far, with their keys
        for event, key in observations:
            state = self._text(event, metric.state)
            blank = Change(event.tenant, event.ts, key, None, None, None, None, 1)
            if not before or before[-1] != (state, key):
                if before:
                    yield blank._replace(state=before[-1][0], key=before[-1][1], by=-1)
                yield blank._replace(state=state)
            seen = [known for known, _ in before]
            for rule in metric.rules:
                for left in left_by(rule, seen, state):
                    yield blank._replace(rule=rule.name, from_=left, to=state)
            before.append((state, key))

    def states_at(self, name: str, instant: int) -> dict[Standing, int]:
        """How many objects are in which state just before an instant: the last observation of each tells."""
        metric = self.kept[name]
        assert isinstance(metric, OracleState)
        last: dict[tuple[str, Value], Counted] = {}
        for counted in sorted(self.counted(name), key=lambda o: (o.event.ts, o.event.event_id)):
            if counted.event.ts < instant:
                last[counted.event.tenant, self._plain(counted.event, metric.object)] = counted
        return dict(Counter(Standing(e.tenant, key, self._text(e, metric.state)) for e, key in last.values()))

    # -- what can be asked of a span

    def percentile(self, name: str, quantile: Fraction, span: Interval, tenant: str | None = None) -> Decimal:
        """Of all samples in the span, as well as the bins tell; there must be one."""
        metric = self.kept[name]
        assert isinstance(metric, OracleHistogram)
        samples = self.samples_in(name, span, tenant)
        bins = self._bins(metric)
        counts = Counter(bins.of(sample) for sample in samples)
        found = percentile(bins, counts, quantile, min(samples), max(samples))
        scaled = found / 10 ** self._scale(metric.value)
        return _EXACT.divide(Decimal(scaled.numerator), Decimal(scaled.denominator))

    def samples_in(self, name: str, span: Interval, tenant: str | None = None) -> list[int]:
        """The samples of a gauge or histogram in the span, scaled, ascending."""
        (measure,) = measures_of(self.kept[name])
        inside = [
            event
            for event, _ in self.counted(name)
            if span.holds(event.ts) and tenant in (None, event.tenant)
        ]
        return sorted(sample for _, _, sample in self.samples(measure, inside))

    def ratio(self, name: str, span: Interval, tenant: str | None = None) -> Fraction | None:
        """None where there is nothing to divide by."""
        kind = self.stream.kinds[name]
        assert isinstance(kind, OracleRatio)
        above = sum(self._count_of(term, span, tenant) for term in kind.numerator)
        below = sum(self._count_of(term, span, tenant) for term in kind.denominator)
        return Fraction(above, below) if below else None

    def _count_of(self, term: OracleTerm, span: Interval, tenant: str | None) -> int:
        if not isinstance(self.kept[term.metric], OracleState):
            return sum(
                span.holds(event.ts) and tenant in (None, event.tenant)
                for event, _ in self.counted(term.metric)
            )
        return sum(
            change.by
            for change in self.changes(term.metric)
            if change.rule == (term.transition or "change")
            and (term.from_ is None or change.from_ in term.from_)
            and (term.to is None or change.to in term.to)
            and span.holds(change.time)
            and tenant in (None, change.tenant)
        )

    # -- values of events

    def samples(self, measure: str, events: Iterable[Event]) -> list[tuple[int, str, int]]:
        """Time, id and scaled value of those events that have a value."""
        found = []
        for event in events:
            value = lookup(event.fields, measure)
            if isinstance(value, Number):
                scaled = value.rounded(self._scale(measure))
                assert scaled is not None
                found.append((event.ts, event.event_id, scaled))
        return found

    def _plain(self, event: Event, column: str) -> Value:
        value = lookup(event.fields, column)
        if isinstance(value, Number):
            return value.integer()
        assert value is None or isinstance(value, str | bool), value
        return value

    def _text(self, event: Event, column: str) -> str:
        value = self._plain(event, column)
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _given(self, event: Event, column: str) -> str | bool | int | Decimal | None:
        """A value as its column has it: decimals are rounded to their scale."""
        value = lookup(event.fields, column)
        if isinstance(value, Number) and self.stream.fields[column].type == "decimal":
            scaled = value.rounded(self._scale(column))
            assert scaled is not None
            return self._unscaled(column, scaled)
        return self._plain(event, column)

    def _scale(self, column: str) -> int:
        return self.stream.fields[column].scale or 0

    def _unscaled(self, column: str, value: int) -> Decimal:
        return _EXACT.scaleb(Decimal(value), -self._scale(column))

    def _bins(self, metric: OracleHistogram) -> Bins:
        return metric.bins(self._scale(metric.value))


def left_by(rule: TransitionRule, seen: Sequence[str], state: str) -> list[str]:
    """The states that a rule counts a transition from, when an object seen in these is seen in another."""
    is_change = not seen or seen[-1] != state
    is_over = any(known in rule.until for known in seen)
    if not is_change or is_over or (rule.to is not None and state not in rule.to):
        return []
    if rule.from_last:
        return [seen[-1] if seen else NONE_STATE]
    return sorted({s for s in seen if s != state and (rule.from_states is None or s in rule.from_states)})


def _row(name: str, metric: OracleKept, tenant: str, key: Dimensions, bucket: int) -> Row:
    row: Row = {"metric": name, "tenant": tenant, "bucket": bucket}
    columns = [column_name(column) for column in metric.dimensions]
    return row | {c: value for c, value in zip(columns, key, strict=True) if value is not None}
