"""Observations of every object in immutable sorted files, merged in tiers so that they stay few.

A file is in Arrow format and has the observations of one metric, sorted by object and time. They can be made
again from raw. A log beside them says which files are current.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidemill.formats.arrays import Ints, Words
from tidemill.formats.arrow import one
from tidemill.formats.key_runs import positions, within
from tidemill.model.errors import DamageError
from tidemill.outputs.rollups.observations import in_order, joined, no_observations, observation_schema
from tidemill.outputs.rollups.spec import Metric
from tidemill.storage import layout
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.checksums import read_arrow, write_arrow
from tidemill.storage.files import append, atomic_write, make_folder, storage_errors, sync_folder
from tidemill.storage.leases import check_commit
from tidemill.storage.log_chain import EMPTY_LOG, ChainReader, LogHead, chained, chained_all
from tidemill.storage.state.protocol import Logs

FAN_IN: Final = 12  # sets of files of similar size that are merged
_LINES: Final = 200  # lines of the log beyond the current ones, before it is rewritten


def write_observations(path: Path, observations: pa.Table) -> None:
    """Write and sync a file; the log names it only after that."""
    write_arrow(path, observations)


# -- looking up


@dataclass(frozen=True, slots=True)
class ObjectSpans:
    """Objects by key, ascending, each with a span of time."""

    high: Words
    low: Words
    first: Ints
    last: Ints


def object_spans(observations: pa.Table) -> ObjectSpans:
    """The objects of sorted observations, each from its first to its last."""
    high, low, time = (one(observations.column(name)).to_numpy() for name in ("high", "low", "time"))
    begins = np.ones(high.size, np.bool_)
    begins[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], high.size) - 1 if high.size else first
    return ObjectSpans(high[first], low[first], time[first], time[last])


def histories_of(
    metric: Metric,
    observation_files: Sequence[str],
    objects: ObjectSpans,
    keys: tuple[int, int],
    before: int | None = None,
) -> pa.Table:
    """The observations of these objects, whose keys lie in the range; sorted. With `before`, only those at
    ledger offsets below it. If all rules of the metric are local, only those in the span, with one neighbour
    on either side."""
    assert metric.following is not None
    found = []
    for path in observation_files:
        run = within(read_arrow(path), *keys)
        if before is not None:
            run = run.filter(pc.less(run.column("seq"), before)).combine_chunks()
        if not run.num_rows or not objects.high.size:
            continue
        high, low, time = (one(run.column(name)).to_numpy() for name in ("high", "low", "time"))
        since, until = _extents(
            high, low, time, positions(high, objects.high),
            objects.high, objects.low, objects.first, objects.last, metric.following.is_local,
        )  # fmt: skip
        many = until - since
        if not many.any():
            continue
        starts = np.repeat(since - (np.cumsum(many) - many), many)
        found.append(run.take(pa.array(starts + np.arange(starts.size))))
    return in_order(joined(found)) if found else no_observations(metric)


@njit(cache=True, nogil=True)
def _extents(
    high: Words, low: Words, time: Ints, at: Ints,
    keys_high: Words, keys_low: Words, first: Ints, last: Ints, local: bool,
) -> tuple[Ints, Ints]:  # fmt: skip
    """The rows of each object; if `local`, from the last before `first` to the first after `last`."""
    since, until = np.zeros(at.size, np.int64), np.zeros(at.size, np.int64)
    for i in range(at.size):
        a = at[i]
        while a < high.size and high[a] == keys_high[i] and low[a] < keys_low[i]:
            a += 1
        b = a
        while b < high.size and high[b] == keys_high[i] and low[b] == keys_low[i]:
            b += 1
        if local and b > a:
            start, stop = a, b
            while start < stop:  # the first that is not before
                middle = (start + stop) // 2
                if time[middle] < first[i]:
                    start = middle + 1
                else:
                    stop = middle
            begin = max(a, start - 1)
            stop = b
            while start < stop:  # the first that is after
                middle = (start + stop) // 2
                if time[middle] <= last[i]:
                    start = middle + 1
                else:
                    stop = middle
            a, b = begin, min(b, start + 1)
        since[i], until[i] = a, b
    return since, until


# -- merging


@dataclass(frozen=True, slots=True)
class MergeObservations:
    """Observation files of one metric to merge, and what to take from each: a range of keys and, if set, only
    what came before a ledger offset."""

    metric: Metric
    observation_files: Sequence[str]
    low: int
    high: int
    target: str
    before: int | None = None


def merge_observations(unit: MergeObservations) -> Iterator[str]:
    tables = [within(read_arrow(path), unit.low, unit.high) for path in unit.observation_files]
    if unit.before is not None:
        tables = [table.filter(pc.less(table.column("seq"), unit.before)) for table in tables]
    whole = in_order(joined([observation_schema(unit.metric).empty_table(), *tables]))
    write_observations(warehouse_path(unit.target), whole)
    yield unit.target


# -- the log

Touched = Mapping[int, frozenset[str]]
"""5s tile start -> ids of slices that changed rows in it which are due to others."""


@dataclass(frozen=True, slots=True)
class ObservationSet:
    """Files that were made together from some batches, and the tiles that those touched."""

    name: str
    batches: Mapping[str, tuple[int, int]]  # with the first and last ledger offset of their slices
    files: Mapping[str, Sequence[str]]  # metric -> file names, one for each range of keys
    touched: Touched = field(default_factory=dict)

    @property
    def names(self) -> Iterator[str]:
        for names in self.files.values():
            yield from names


@dataclass(frozen=True, slots=True)
class MadeFor:
    """The declarations that observations are made for."""

    metrics: Mapping[str, str]  # metric -> hash of its declaration
    earlier: str = ""  # all of them, as logs of earlier versions recorded them

    def is_all_of(self, recorded: object) -> bool:
        return recorded in (self.metrics, self.earlier)

    def unchanged(self, recorded: object) -> dict[str, str]:
        """The metrics that are declared as they were."""
        before = recorded if isinstance(recorded, dict) else {}
        return {metric: core for metric, core in self.metrics.items() if before.get(metric) == core}


class ObservationLog:
    """Which sets of files are current: a line for each new set, with those it replaces.

    `made_for` identifies the declarations that the files were made for; if it changes, none is current or,
    with `keep`, only those of metrics that are declared as before: the others are `lacking`. The state, if
    given, knows the length of the log. DamageError if a line of it is missing or changed.
    """

    def __init__(
        self,
        folder: Path,
        made_for: MadeFor | None,
        state: Logs | None = None,
        *,
        keep: bool = False,
        known: LogHead | None = None,
    ) -> None:
        """A reader passes no state (but may pass a known head) and never repairs what another process left or
        is writing; with `made_for` None it reads any log."""
        self.folder = folder
        self._path = layout.state_history_log(folder)
        self._name = layout.relative_name(self._path)
        self._made_for = made_for
        self._keep = keep
        self._held = dict(made_for.metrics) if made_for is not None else {}  # metrics that it is complete for
        self._state = state
        self._head = EMPTY_LOG
        self._lines = 0  # 0: there is no log for these declarations
        self.sets: dict[str, ObservationSet] = {}
        self._read(known if state is None else state.log_head(self._name))

    def _read(self, known: LogHead | None) -> None:
        texts, whole = self._texts()
        chain = ChainReader()
        for number, text in enumerate(texts, 1):
            if not chain.read(text + b"\n"):
                # Not recorded in the state yet: torn.
                if known is not None and chain.head.lines >= known.lines:
                    texts, whole = texts[: number - 1], False
                    break
                raise DamageError(f"line {number} is not the one that was written there", where=self._name)
            if known is not None and chain.head.lines == known.lines and chain.head != known:
                raise DamageError("it is not the log that the state knows", where=self._name)
        if known is not None and chain.head.lines < known.lines:
            what = f"it has {chain.head.lines} lines, and {known.lines} were written to it"
            raise DamageError(what, where=self._name)
        lines = self._parsed(texts)
        recorded = lines[0].get("made_for") if lines else None
        is_whole = self._made_for is None or self._made_for.is_all_of(recorded)
        held = self._made_for.unchanged(recorded) if self._made_for is not None and self._keep else {}
        if not lines or not (is_whole or held):
            return
        for line in lines[1:]:
            self._apply(line)
        if not is_whole:
            self._held = held
            self.sets = {name: _only_of(held, each) for name, each in self.sets.items()}
        self._lines, self._head = len(lines), chain.head
        # A process died while writing, and its line does not count; or an earlier version wrote the file; or
        # other metrics are declared.
        is_ours = whole and chain.is_chained and recorded == self._held
        if self._state is not None and not is_ours:
            self._rewrite()

    def _texts(self) -> tuple[list[bytes], bool]:
        """The lines, and whether the last one is complete."""
        try:
            *texts, rest = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return [], True
        return texts, not rest

    def _parsed(self, texts: Sequence[bytes]) -> list[dict[str, object]]:
        """The lines without what the chain adds to them."""
        try:
            lines = [json.loads(text) for text in texts]
        except ValueError as error:
            raise DamageError(f"a line is not valid JSON: {error}", where=self._name) from error
        for line in lines:
            line.pop("chain", None)
        return lines

    @property
    def exists(self) -> bool:
        return self._lines > 0

    @property
    def lacking(self) -> frozenset[str]:
        """Declared metrics that the current files do not have."""
        metrics = self._made_for.metrics if self._made_for is not None else {}
        return frozenset(metrics.keys() - self._held.keys())

    def complete(self) -> None:
        """Record durably that the files have all declared metrics."""
        assert self._made_for is not None
        self._held = dict(self._made_for.metrics)
        self._rewrite()

    def is_newest(self) -> bool:
        """Whether no other process has written to it since it was read."""
        known = self._state.log_head(self._name) if self._state is not None else None
        return known is None or known == self._head

    def _apply(self, line: Mapping[str, object]) -> None:
        gone = line["gone"]
        assert isinstance(gone, list)
        for name in gone:
            self.sets.pop(name, None)
        entry = line["set"]
        if isinstance(entry, dict):
            self.sets[entry["name"]] = ObservationSet(
                name=entry["name"],
                batches={batch: (low, high) for batch, (low, high) in entry["batches"].items()},
                files=entry["files"],
                touched={
                    int(start): frozenset(entry["slices"][i] for i in which)
                    for start, which in entry["touched"].items()
                },
            )

    def enter(self, new: ObservationSet | None, gone: Iterable[str] = ()) -> None:
        """In one durable step: `new` becomes current, and `gone` no longer is."""
        line = _line(new, sorted(gone))
        self._apply(line)
        if not self._lines or self._lines > 2 * len(self.sets) + _LINES:
            self._rewrite()
            return
        text, self._head = chained(self._head, _spelled(line))
        with storage_errors("read", self._path):
            size = self._path.stat().st_size
        check_commit(self.folder)
        append(self._path, text, size)
        self._lines += 1
        self._record()

    def _rewrite(self) -> None:
        make_folder(self.folder, top=self.folder.parents[1])
        lines: list[dict[str, object]] = [{"made_for": self._held}]
        lines += [_line(each, []) for each in self.sets.values()]
        content, self._head = chained_all(EMPTY_LOG, map(_spelled, lines))
        if self._state is not None:  # the state must know no other log than this one
            self._state.forget_log(self._name)
        atomic_write(self._path, content)
        self._lines = len(lines)
        self._record()

    def _record(self) -> None:
        if self._state is not None:
            self._state.record_log(self._name, self._head)

    def sweep(self, keep: frozenset[str] = frozenset()) -> None:
        """Delete files that are not current."""
        if not self.folder.is_dir():
            return
        current = {name for each in self.sets.values() for name in each.names} | keep
        gone = [
            p
            for p in self.folder.iterdir()
            if p.suffix in (layout.OBSERVATIONS_SUFFIX, layout.TEMPORARY_SUFFIX) and p.name not in current
        ]
        for path in gone:
            path.unlink(missing_ok=True)
        if gone:
            sync_folder(self.folder)


def _only_of(metrics: Collection[str], of: ObservationSet) -> ObservationSet:
    return replace(of, files={metric: names for metric, names in of.files.items() if metric in metrics})


def drop_log(folder: Path, state: Logs) -> None:
    """Forget the log because it is lost: nothing is current."""
    path = layout.state_history_log(folder)
    state.forget_log(layout.relative_name(path))
    path.unlink(missing_ok=True)


def _line(new: ObservationSet | None, gone: Sequence[str]) -> dict[str, object]:
    if new is None:
        return {"gone": gone, "set": None}
    slices = sorted({name for names in new.touched.values() for name in names})
    at = {name: i for i, name in enumerate(slices)}
    return {
        "gone": gone,
        "set": {
            "name": new.name,
            "batches": new.batches,
            "files": new.files,
            "slices": slices,
            "touched": {start: sorted(at[name] for name in names) for start, names in new.touched.items()},
        },
    }


def _spelled(line: Mapping[str, object]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode()
