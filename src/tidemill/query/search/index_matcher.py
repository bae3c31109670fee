"""Finds the rows for which a condition is true, by the entries of an index: `evaluation.truth` for all rows
at once.

Only what is needed is read: rows where a condition is false are looked up only under NOT. Unknown is neither
true nor false.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Final, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Ints, Mask
from tidemill.model.conditions.ast import (
    All,
    Among,
    AnyOf,
    Compare,
    Condition,
    IsNull,
    Like,
    Literally,
    Not,
    Path,
    Scalar,
    Within,
)
from tidemill.model.conditions.like import like, lowered
from tidemill.outputs.index.entries import Edge, EntryGroup, EntrySource, Values
from tidemill.outputs.index.numbers import Key, key_of_decimal, value_of
from tidemill.outputs.index.table import BOOLEAN, KINDS, NUMBER, STRING

Share = Literal["none", "some", "all"]
ValueTest = (
    Compare[Path, Literally] | Among[Path, Literally] | Like[Path, Literally] | Within[Path, Literally]
)
_TEXT_ORDER: Final[dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]]] = {
    "=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


class Test(Protocol):
    """A test that values of one kind must pass."""

    def share(self, low: Edge, high: Edge) -> Share:
        """The share of the values between these, both included, that can pass."""

    def passed(self, values: Values) -> Mask: ...


def name_of(path: Path) -> str:
    """A path as declared: steps joined by dots."""
    return ".".join(path.segments)


def kind_of(value: Scalar) -> str:
    return STRING if isinstance(value, str) else BOOLEAN if isinstance(value, bool) else NUMBER


class Matcher:
    """Conditions over one source."""

    def __init__(self, source: EntrySource) -> None:
        self._source = source
        self._has: dict[tuple[str, str], Mask] = {}

    def rows(self, condition: Condition) -> Mask:
        """The rows for which it is true."""
        return self._mask(condition, truth=True)

    def would_read(self, condition: Condition, *, truth: bool = True) -> tuple[int, int]:
        """Groups and entries that `rows` reads at most."""
        found = [group for groups in self._needed(condition, truth=truth) for group in groups]
        return len(found), sum(group.size for group in found)

    # -- all rows where a condition is true (wanted), or false

    def _mask(self, condition: Condition, *, truth: bool) -> Mask:
        match condition:
            case Not(term):
                return self._mask(term, truth=not truth)
            case All(terms):
                return self._every(terms, truth=True) if truth else self._some(terms, truth=False)
            case AnyOf(terms):
                return self._some(terms, truth=True) if truth else self._every(terms, truth=False)
            case IsNull(path, negated):
                has = self._any_value(path)
                return has if negated is truth else ~has
            case Compare() | Among() | Like() | Within():
                tests, negated = _tests(condition)
                name = name_of(condition.operand)
                return self._passing(name, tests) if truth is not negated else self._failing(name, tests)

    def _every(self, terms: Sequence[Condition], *, truth: bool) -> Mask:
        """The term that reads least comes first; once no row is left, nothing more is read."""
        ordered = sorted(terms, key=lambda term: self.would_read(term, truth=truth)[1])
        found = np.ones(self._source.size, np.bool_)
        for term in ordered:
            found &= self._mask(term, truth=truth)
            if not found.any():
                break
        return found

    def _some(self, terms: Sequence[Condition], *, truth: bool) -> Mask:
        found = np.zeros(self._source.size, np.bool_)
        for term in terms:
            found |= self._mask(term, truth=truth)
        return found

    def _passing(self, path: str, tests: dict[str, Test]) -> Mask:
        found = np.zeros(self._source.size, np.bool_)
        for group in self._source.of(path):
            if group.kind in tests:
                found[_passing_rows(group, tests[group.kind])] = True
        return found

    def _failing(self, path: str, tests: dict[str, Test]) -> Mask:
        """Rows with values that all fail: one of another kind, or a null, makes it unknown."""
        if len(tests) > 1:  # no value can be compared with all of them
            return np.zeros(self._source.size, np.bool_)
        (kind,) = tests
        found = self._holding(path, kind) & ~self._passing(path, tests)
        for other in {group.kind for group in self._source.of(path)} - {kind}:
            found &= ~self._holding(path, other)
        return found

    def _any_value(self, path: Path) -> Mask:
        found = np.zeros(self._source.size, np.bool_)
        for kind in KINDS:
            found |= self._holding(name_of(path), kind)
        return found

    def _holding(self, path: str, kind: str) -> Mask:
        """Rows that have a value of a kind at a path."""
        if (path, kind) not in self._has:
            found = np.zeros(self._source.size, np.bool_)
            for group in self._source.of(path):
                if group.kind == kind:
                    found[group.rows()] = True
            self._has[path, kind] = found
        return self._has[path, kind]

    # -- what would be read

    def _needed(self, condition: Condition, *, truth: bool) -> Iterator[Sequence[EntryGroup]]:
        match condition:
            case Not(term):
                yield from self._needed(term, truth=not truth)
            case All(terms) | AnyOf(terms):
                for term in terms:
                    yield from self._needed(term, truth=truth)
            case IsNull(path):
                yield self._source.of(name_of(path))
            case Compare() | Among() | Like() | Within():
                tests, negated = _tests(condition)
                groups = self._source.of(name_of(condition.operand))
                if truth is not negated:
                    yield [g for g in groups if g.kind in tests and _share(g, tests[g.kind]) != "none"]
                elif len(tests) == 1:
                    yield groups


def _share(group: EntryGroup, test: Test) -> Share:
    if group.low is None or group.high is None:
        return "some"
    return test.share(group.low, group.high)


def _passing_rows(group: EntryGroup, test: Test) -> Ints:
    match _share(group, test):
        case "none":
            return np.empty(0, np.int64)
        case "all":
            return group.rows()
        case "some":
            passed = test.passed(group.values())
            return group.rows()[passed] if passed.any() else np.empty(0, np.int64)


# -- tests


def _tests(condition: ValueTest) -> tuple[dict[str, Test], bool]:
    """The test for each kind, and whether the condition is that none passes."""
    match condition:
        case Compare(_, "!=", literal):
            return {kind_of(literal.value): _compare("=", literal.value)}, True
        case Compare(_, operator, literal):
            return {kind_of(literal.value): _compare(operator, literal.value)}, False
        case Among(_, literals, negated):
            return _one_of(literals), negated
        case Like(_, pattern, negated, any_case):
            text = str(pattern.value)
            return {STRING: _AnyCase(text) if any_case else _Like(text)}, negated
        case Within(_, low, high, negated):
            return _between(low.value, high.value), negated


def _compare(operator: str, value: Scalar) -> Test:
    match value:
        case bool():
            return _Text(operator, b"true" if value else b"false")
        case str():
            return _Text(operator, value.encode("utf-8", "surrogatepass"))
        case _:
            return _Number(operator, key_of_decimal(value))


def _one_of(literals: Sequence[Literally]) -> dict[str, Test]:
    by_kind: dict[str, list[Scalar]] = {}
    for literal in literals:
        by_kind.setdefault(kind_of(literal.value), []).append(literal.value)
    return {
        kind: _TextAmong(values) if kind == STRING else _OneOf([_compare("=", value) for value in values])
        for kind, values in by_kind.items()
    }


def _between(low: Scalar, high: Scalar) -> dict[str, Test]:
    assert kind_of(low) == kind_of(high), "the language refuses other bounds"
    return {kind_of(low): _Both(_compare(">=", low), _compare("<=", high))}


def _share_of(operator: str, low: Edge, high: Edge, value: Edge) -> Share:
    """For values that are known exactly; `low` and `high` have the kind of `value`."""
    assert isinstance(low, type(value))
    assert isinstance(high, type(value))
    below = high < value  # type: ignore[operator]
    above = low > value  # type: ignore[operator]
    if operator == "=":
        return "none" if below or above else "all" if low == high else "some"
    if operator in ("<", "<="):
        passes, fails = (
            below or (operator == "<=" and high == value),
            above or (operator == "<" and low == value),
        )
    else:
        passes, fails = (
            above or (operator == ">=" and low == value),
            below or (operator == ">" and high == value),
        )
    return "all" if passes else "none" if fails else "some"


class _Text:
    """By bytes of UTF-8, which is the order of code points."""

    def __init__(self, operator: str, value: bytes) -> None:
        self._operator = operator
        self._value = value

    def share(self, low: Edge, high: Edge) -> Share:
        return _share_of(self._operator, low, high, self._value)

    def passed(self, values: Values) -> Mask:
        assert values.text is not None
        found = _TEXT_ORDER[self._operator](values.text.view(pa.binary()), pa.scalar(self._value))
        return np.asarray(found)


class _Number:
    """By doubles; numbers with the same double are compared exactly."""

    def __init__(self, operator: str, key: Key) -> None:
        self._operator = operator
        self._key = key

    def share(self, low: Edge, high: Edge) -> Share:
        nearest = self._key[0]
        assert isinstance(low, float)
        assert isinstance(high, float)
        if low <= nearest <= high:
            return "some"
        return _share_of(self._operator, low, high, nearest)

    def passed(self, values: Values) -> Mask:
        assert values.number is not None
        assert values.exact is not None
        nearest = self._key[0]
        found: Mask = np.zeros(values.number.size, np.bool_)
        if "<" in self._operator:
            found = values.number < nearest
        elif ">" in self._operator:
            found = values.number > nearest
        same = np.flatnonzero(values.number == nearest)
        if same.size:
            exact = values.exact.take(pa.array(same)).dictionary_encode(null_encoding="encode")
            keys: list[Key] = [(nearest, text) for text in exact.dictionary.to_pylist()]
            passes = np.array([self._passes(key) for key in keys], np.bool_)
            found[same] = passes[exact.indices.to_numpy()]
        return found

    def _passes(self, key: Key) -> bool:
        if key == self._key:
            return "=" in self._operator
        value: Decimal = value_of(key)
        exact = value_of(self._key)
        return ("<" in self._operator and value < exact) or (">" in self._operator and value > exact)


class _TextAmong:
    def __init__(self, values: Sequence[Scalar]) -> None:
        self._values = sorted({str(value).encode("utf-8", "surrogatepass") for value in values})
        self._set = pa.array(self._values, pa.binary())

    def share(self, low: Edge, high: Edge) -> Share:
        assert isinstance(low, bytes)
        assert isinstance(high, bytes)
        first = bisect_left(self._values, low)
        if first == len(self._values) or self._values[first] > high:
            return "none"
        return "all" if low == high else "some"

    def passed(self, values: Values) -> Mask:
        assert values.text is not None
        return np.asarray(pc.is_in(values.text.view(pa.binary()), value_set=self._set))


class _Both:
    def __init__(self, one: Test, other: Test) -> None:
        self._tests = (one, other)

    def share(self, low: Edge, high: Edge) -> Share:
        shares = {test.share(low, high) for test in self._tests}
        return "none" if "none" in shares else "some" if "some" in shares else "all"

    def passed(self, values: Values) -> Mask:
        one, other = self._tests
        return one.passed(values) & other.passed(values)


class _OneOf:
    def __init__(self, tests: Sequence[Test]) -> None:
        self._tests = tests

    def share(self, low: Edge, high: Edge) -> Share:
        shares = {test.share(low, high) for test in self._tests}
        return "all" if "all" in shares else "some" if "some" in shares else "none"

    def passed(self, values: Values) -> Mask:
        found = self._tests[0].passed(values)
        for test in self._tests[1:]:
            found = found | test.passed(values)
        return found


class _AnyCase:
    """ILIKE; upper and lower case are apart in the order, so no group is excluded by its bounds."""

    def __init__(self, pattern: str) -> None:
        self._matches = like(lowered(pattern))

    def share(self, low: Edge, high: Edge) -> Share:
        return "some"

    def passed(self, values: Values) -> Mask:
        return _matching(values, lambda text: self._matches(lowered(text)))


class _Like:
    def __init__(self, pattern: str) -> None:
        self._matches = like(pattern)
        self._prefix = _prefix(pattern)

    def share(self, low: Edge, high: Edge) -> Share:
        assert isinstance(low, bytes)
        assert isinstance(high, bytes)
        outside = high < self._prefix or low[: len(self._prefix)] > self._prefix
        return "none" if outside else "some"

    def passed(self, values: Values) -> Mask:
        return _matching(values, self._matches)


def _matching(values: Values, matches: Callable[[str], bool]) -> Mask:
    assert values.text is not None
    coded = values.text.dictionary_encode()
    passes = [matches(text) for text in coded.dictionary.to_pylist()]
    found: Mask = np.array(passes or [False], np.bool_)[coded.indices.to_numpy()]
    return found


def _prefix(pattern: str) -> bytes:
    """The constant beginning of the pattern."""
    found: list[str] = []
    characters = iter(pattern)
    for char in characters:
        if char in "%_":
            break
        found.append(next(characters) if char == "\\" else char)
    return "".join(found).encode("utf-8", "surrogatepass")
