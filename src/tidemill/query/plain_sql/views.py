"""The views that a statement can read: one for each table of a stream, with columns for people.

`raw.<stream>`, `rollups.<stream>`, `datasets.<stream>`, `windows.<stream>_<window>` and its `_history`, and
`quarantine.<stream>`. Names come from the configuration; whatever becomes SQL here is quoted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal

from tidemill.model.names import HISTOGRAM_COLUMNS, STATE_COLUMNS, quoted
from tidemill.query.plain_sql.statement_check import ViewKey

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.config import Stream
    from tidemill.model.completeness import Missing, Pending
    from tidemill.model.metrics import Bins
    from tidemill.outputs.rollups.spec import RollupSpec
    from tidemill.query.plain_sql.file_scan import FileScan

Schema = Literal["raw", "rollups", "datasets", "windows", "quarantine"]
HISTORY: Final = "_history"
_STATE_NAMES: Final = ("state", "transition", "from_state", "to_state")
_BINS: Final = "bins"
_WINDOW_NAMES: Final = {"start": "window_start", "end": "window_end"}
_INTERNAL_RESULTS: Final = ("batch",)  # numbers of commits
_PAYLOAD_TEXT: Final = "payload_text"


@dataclass(frozen=True, slots=True)
class View:
    """One view by its name; `window` is set for the views of a streaming window."""

    schema: Schema
    name: str
    stream: str
    window: str = ""
    is_history: bool = False

    @property
    def key(self) -> ViewKey:
        return self.schema, self.name.lower()

    def __str__(self) -> str:
        name = self.name if self.name.isidentifier() else quoted(self.name)
        return f"{self.schema}.{name}"


@dataclass(frozen=True, slots=True)
class OpenView:
    """A view at one snapshot: what is scanned, its columns, and what it lacks."""

    view: View
    rows: FileScan | pa.Table
    columns: Sequence[tuple[str, str]]  # name, and expression over the columns of `rows`
    of: str = ""  # what to add to the SELECT, if anything
    missing: Sequence[Missing] = field(default=())
    pending: Sequence[Pending] = field(default=())

    def sql(self, source: str) -> str:
        """The SELECT over the relation with the name of `rows`."""
        picked = ", ".join(f"{expression} AS {quoted(name)}" for name, expression in self.columns)
        return f"SELECT {picked} FROM {quoted(source)}{self.of}"


def declared_views(streams: Mapping[str, Stream]) -> dict[ViewKey, View]:
    """All views of a project, in its order."""
    found: list[View] = []
    for name, stream in streams.items():
        found.append(View("raw", name, name))
        if stream.kept_metrics:
            found.append(View("rollups", name, name))
        if stream.aggregation_span is not None:
            found.append(View("datasets", name, name))
        found.append(View("quarantine", name, name))
    found += _window_views(streams)
    return {view.key: view for view in found}


def _window_views(streams: Mapping[str, Stream]) -> Iterable[View]:
    """`<stream>_<window>`; if two would have the same name, `<stream>.<window>`, which is unique."""
    pairs = [(stream.name, window) for stream in streams.values() for window in stream.windows]
    used = Counter(f"{stream}_{window}{end}" for stream, window in pairs for end in ("", HISTORY))
    for stream, window in pairs:
        short = f"{stream}_{window}"
        is_clear = used[short] == used[short + HISTORY] == 1
        name = short if is_clear else f"{stream}.{window}"
        yield View("windows", name, stream, window)
        yield View("windows", name + HISTORY, stream, window, is_history=True)


# -- columns


def plain_columns(names: Iterable[str]) -> list[tuple[str, str]]:
    """The columns as they are. (No two differ only in case: the configuration refuses that.)"""
    return [(name, quoted(name)) for name in names]


def renamed(names: Sequence[str], new: Mapping[str, str]) -> list[tuple[str, str]]:
    """The columns, some with another name; one that is taken gets `_` appended."""
    taken = {name.lower() for name in names if name not in new}
    return [(free_name(new[name], taken) if name in new else name, quoted(name)) for name in names]


def free_name(name: str, taken: Collection[str]) -> str:
    while name.lower() in taken:
        name += "_"
    return name


def rollup_columns(spec: RollupSpec) -> list[tuple[str, str]]:
    """The columns of the table; states and bins of a metric in readable form."""
    order = ["level", "bucket", "metric", "tenant"]
    left_out = {*order, *HISTOGRAM_COLUMNS}
    names = [*order, *(name for name in spec.schema.names if name not in left_out)]
    columns = renamed(names, dict(zip(STATE_COLUMNS, _STATE_NAMES, strict=True)))
    histograms = {metric.name: metric for metric in spec.metrics if metric.bins is not None}
    if histograms:
        taken = {name.lower() for name, _ in columns}
        cases = [
            f"WHEN {_text(name)} THEN {_decoded(metric.bins, metric.measures[0].scale)}"
            for name, metric in histograms.items()
            if metric.bins is not None
        ]
        columns.append((free_name(_BINS, taken), f"CASE metric {' '.join(cases)} END"))
    return columns


def of_metrics(spec: RollupSpec) -> str:
    """Without rows of metrics that are no longer declared, and those that count values that do not fit."""
    return f" WHERE metric IN ({', '.join(_text(metric.name) for metric in spec.declared_metrics)})"


def _decoded(bins: Bins, scale: int) -> str:
    """A list of the lower and upper bound of each bin (null: none), and its count."""
    if bins.bounds is not None:
        numbers = range(len(bins.bounds) + 1)
        lows = _numbers([None, *(bins.span(number)[0] for number in numbers[1:])], scale)
        highs = _numbers([*(bins.span(number)[1] for number in numbers[:-1]), None], scale)
        low, high = f"({lows})[p[1] + 1]", f"({highs})[p[1] + 1]"
    else:
        assert bins.edges is not None
        nearest = _numbers([0, *(bins.span(number)[0] for number in range(1, len(bins.edges)))], scale)
        near, far = f"({nearest})[abs(p[1]) + 1]", f"({_numbers(bins.edges, scale)})[abs(p[1]) + 1]"
        low = f"CASE WHEN p[1] < 0 THEN -{far} ELSE {near} END"
        high = f"CASE WHEN p[1] < 0 THEN -{near} ELSE {far} END"
    pairs = f"list_zip({', '.join(map(quoted, HISTOGRAM_COLUMNS))})"
    return f"list_transform({pairs}, lambda p: {{'low': {low}, 'high': {high}, 'count': p[2]}})"


def _numbers(values: Sequence[int | None], scale: int) -> str:
    """A list of decimals. Samples are integers: the value times 10^scale."""
    listed = ("NULL" if value is None else format(Decimal(value).scaleb(-scale), "f") for value in values)
    return f"[{', '.join(listed)}]::DECIMAL(38, {scale})[]"


def result_columns(names: Sequence[str], *, is_history: bool) -> list[tuple[str, str]]:
    left_out = {*_INTERNAL_RESULTS, *(() if is_history else ("withdrawn",))}
    return renamed([name for name in names if name not in left_out], _WINDOW_NAMES)


def of_current(groups: Sequence[str]) -> str:
    """The newest revision of each window and group, unless it was withdrawn. (Start and tenant are part of a
    window's id: named here, conditions on them reach the files.)"""
    key = ", ".join(quoted(name) for name in ("window_id", "start", "tenant", *groups))
    newest = f"row_number() OVER (PARTITION BY {key} ORDER BY revision DESC) = 1"
    return f" QUALIFY {newest} AND NOT withdrawn"


def quarantine_columns(names: Sequence[str]) -> list[tuple[str, str]]:
    """The payload as bytes, verbatim, and as text where it is UTF-8."""
    return [*plain_columns(names), (_PAYLOAD_TEXT, "TRY(decode(payload))")]


def _text(value: str) -> str:
    """A constant."""
    return "'" + value.replace("'", "''") + "'"
