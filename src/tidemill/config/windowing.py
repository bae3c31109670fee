"""Streaming windows of a stream as declared in `tidemill.yaml`, and the flat `WindowSpec` made from them.

Each window is validated by itself here; `checks_windowing` checks its columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Final, Literal

import pydantic
from pydantic import AfterValidator, StrictBool, StrictInt, model_validator

from tidemill.config.schema import ABSENT, SECTION, ColumnList
from tidemill.config.stream_sections import LateRows
from tidemill.config.values import Condition, PositiveDuration, Step, wrong
from tidemill.model.conditions.declared import DeclaredCondition, parse_condition
from tidemill.model.errors import InputError
from tidemill.model.streaming import Aggregate, Close, Function, LateBy, LatePolicy, WindowKind, WindowSpec
from tidemill.model.suggestions import choices
from tidemill.model.time import format_duration

if TYPE_CHECKING:
    from tidemill.config.stream import Stream

KindName = Literal["tumbling", "fixed", "sliding", "session", "count", "state"]
MAX_OVERLAP: Final = 20_000  # windows that one row may be in, to limit how rows multiply

_NEEDED: Final[Mapping[WindowKind, tuple[str, ...]]] = {
    WindowKind.TUMBLING: ("size",),
    WindowKind.SLIDING: ("size", "step"),
    WindowKind.SESSION: ("gap",),
    WindowKind.COUNT: ("n",),
    WindowKind.STATE: ("open", "emit"),
    WindowKind.PER_ROW: ("size", "step"),
}
_OPTIONAL: Final[Mapping[WindowKind, tuple[str, ...]]] = {
    WindowKind.SESSION: ("key",),
    WindowKind.COUNT: ("key",),
    WindowKind.STATE: ("emit_on_open", "key"),
    WindowKind.PER_ROW: ("lookahead", "key"),
}
# Which of these keys a window has depends on its kind.
_OF_KINDS: Final = ("size", "step", "lookahead", "gap", "n", "open", "emit", "emit_on_open", "key")

FUNCTIONS: Final = (*(str(one) for one in Function if one is not Function.PERCENTILE), "p50")
_FUNCTIONS_HINT: Final = "(p and a percentage, such as p99.9)"
_CALL: Final = re.compile(r"\s*([A-Za-z0-9_.]+)\s*(?:\(\s*([^()]*?)\s*\))?\s*")
_PERCENTILE: Final = re.compile(r"p([0-9]{1,30}(?:\.[0-9]{1,30})?)")
_AGGREGATE_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class Formula:
    """A parsed aggregate: `sum(amount)`, `count` or `p99.9(ms)`."""

    function: Function
    column: str | None = None
    percent: str | None = None


def parse_aggregate(text: str) -> Formula:
    match = _CALL.fullmatch(text)
    if match is None:
        raise InputError(
            f"{text!r} is not an aggregate",
            hint=f"write sum(COLUMN), or count; functions: {', '.join(FUNCTIONS)} {_FUNCTIONS_HINT}",
        )
    word, column = match.group(1).lower(), match.group(2) or None
    function, percent = _function(word)
    if function is Function.COUNT and column == "*":
        column = None
    if column is None and function is not Function.COUNT:
        raise InputError(f"{word} needs a column", hint=f"write {word}(COLUMN)")
    return Formula(function, column, percent)


def _function(word: str) -> tuple[Function, str | None]:
    if match := _PERCENTILE.fullmatch(word):
        percent = Decimal(match.group(1))
        if not 0 < percent <= 100:
            raise InputError(f"there is no percentile {word}", hint="use more than p0, and p100 at most")
        return Function.PERCENTILE, format(percent.normalize(), "f")
    if word not in FUNCTIONS:
        hint = f"{choices(word, FUNCTIONS, 'functions')} {_FUNCTIONS_HINT}"
        raise InputError(f"there is no function {word!r}", hint=hint)
    return Function(word), None


def _aggregate(text: str) -> str:
    try:
        parse_aggregate(text)
    except InputError as error:
        raise wrong(error.message, error.hint) from None
    return text


def _aggregate_name(name: str) -> str:
    if not _AGGREGATE_NAME.fullmatch(name):
        hint = "use a letter, then letters, digits or _ (63 characters at most)"
        raise wrong(f"{name!r} cannot be the name of a column", hint)
    return name


AggregateName = Annotated[str, AfterValidator(_aggregate_name)]
AggregateText = Annotated[str, AfterValidator(_aggregate)]


class Gap(pydantic.BaseModel):
    """What ends a session: `30m`, or `{duration: 30m, inclusive: false}`."""

    model_config = SECTION

    duration: PositiveDuration
    inclusive: StrictBool = True  # whether rows exactly this far apart are in one session

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: object) -> object:
        return data if isinstance(data, dict) else {"duration": data}


class WindowDeclaration(pydantic.BaseModel):
    """A streaming window. Which of size, step, gap, n, open, emit and key it has depends on its kind."""

    model_config = SECTION

    kind: KindName
    size: PositiveDuration | None = None
    step: Step | None = None
    lookahead: PositiveDuration | None = None
    gap: Gap | None = None
    n: Annotated[StrictInt, pydantic.Field(ge=1, le=1_000_000_000)] | None = None
    open: Condition | None = None
    emit: Condition | None = None
    emit_on_open: StrictBool | None = None
    key: ColumnList = ()
    group_by: ColumnList = ()
    aggregates: Mapping[AggregateName, AggregateText] = {"count": "count"}
    having: Condition | None = None
    close: Literal["watermark", "complete"] = "watermark"
    late: LateRows = ABSENT

    @model_validator(mode="before")
    @classmethod
    def _empty_is_absent(cls, data: object) -> object:
        """Treat empty sections as absent; `aggregates: {}` too: rows are counted then."""
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None and value != {}}
        return data

    @model_validator(mode="after")
    def _has_what_its_kind_has(self) -> WindowDeclaration:
        needed = _NEEDED[self.window_kind]
        optional = _OPTIONAL.get(self.window_kind, ())
        valid = f"a {self.kind} window needs {' and '.join(needed)}"
        if optional:
            valid += ", and may have " + " and ".join("a key" if one == "key" else one for one in optional)
        set_keys = [name for name in _OF_KINDS if getattr(self, name) not in (None, ())]
        if extra := [name for name in set_keys if name not in (*needed, *optional)]:
            if "key" in extra:
                valid += "; group_by separates results within a window"
            raise wrong(f"a {self.kind} window has no {' or '.join(extra)}", valid)
        if missing := [name for name in needed if name not in set_keys]:
            verb = "is" if len(missing) == 1 else "are"
            raise wrong(f"{' and '.join(missing)} {verb} missing", valid)
        return self

    @model_validator(mode="after")
    def _steps_leave_no_holes(self) -> WindowDeclaration:
        if self.kind == "sliding" and self.size is not None and isinstance(self.step, int):
            if self.step > self.size:
                raise wrong(
                    f"a step of {format_duration(self.step)} leaves holes between windows of "
                    f"{format_duration(self.size)}",
                    "make step as long as size, or shorter",
                )
            overlap = -(-self.size // self.step)
            if overlap > MAX_OVERLAP:
                raise wrong(
                    f"every row would be in {overlap} windows",
                    f"make step longer or size shorter: {MAX_OVERLAP} windows are the most",
                )
        return self

    @model_validator(mode="after")
    def _complete_needs_slices(self) -> WindowDeclaration:
        if self.close == "complete":
            if not self.window_kind.by_time:
                raise wrong(
                    f"a {self.kind} window cannot close when it is complete: its end depends on its rows",
                    "use close: watermark; close: complete is for tumbling and sliding windows",
                )
            if "late" in self.model_fields_set:
                raise wrong(
                    "a window that closes when it is complete has no late rows",
                    "leave late out: late_slices of the stream decides about slices that come late",
                )
        return self

    @model_validator(mode="after")
    def _late_for_a_window_that_time_ends(self) -> WindowDeclaration:
        if self.late.by == "window" and not self.window_kind.ends_by_time:
            raise wrong(
                f"no row is late for a {self.kind} window: its rows end it, not the time",
                "use late: {by: row}; by: window is for tumbling, sliding and session windows",
            )
        return self

    @property
    def window_kind(self) -> WindowKind:
        if self.kind == "sliding" and self.step == "row":
            return WindowKind.PER_ROW
        return WindowKind.TUMBLING if self.kind == "fixed" else WindowKind(self.kind)


def spec_of(stream: Stream, name: str, declared: WindowDeclaration) -> WindowSpec:
    """The window as a flat spec; its columns are those of the stream's schema."""
    kind = declared.window_kind
    size = declared.size or 0
    return WindowSpec(
        stream=stream.name,
        name=name,
        kind=kind,
        size=size,
        step=size if kind is WindowKind.TUMBLING else declared.step if isinstance(declared.step, int) else 0,
        lookahead=declared.lookahead or 0,
        gap=declared.gap.duration if declared.gap is not None else 0,
        inclusive=declared.gap.inclusive if declared.gap is not None else True,
        count=declared.n or 0,
        open=_condition(declared.open),
        emit=_condition(declared.emit),
        emit_on_open=declared.emit_on_open is not False,
        key=declared.key,
        group_by=declared.group_by,
        aggregates=tuple(_aggregate_of(stream, name, text) for name, text in declared.aggregates.items()),
        having=_condition(declared.having),
        close=Close(declared.close),
        late=LatePolicy(declared.late.policy),
        max_lateness=declared.late.max_lateness or 0,
        late_by=LateBy(declared.late.by),
    )


def _condition(text: str | None) -> DeclaredCondition | None:
    return parse_condition(text) if text is not None else None


def _aggregate_of(stream: Stream, name: str, text: str) -> Aggregate:
    formula = parse_aggregate(text)
    if formula.column is None:
        return Aggregate(name, formula.function)
    field = stream.fields[formula.column]
    return Aggregate(name, formula.function, formula.column, field.type, field.scale or 0, formula.percent)
