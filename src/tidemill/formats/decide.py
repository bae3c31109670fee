"""The rules for one record, in plain Python: the order in which they apply and the reason each gives.

This is the definition. The vectorised path in `read` accepts only records that would pass here with the same
values, and passes all others on to this module, so speed matters little here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final

import orjson

from tidemill.eventtime import Parser, iso8601_in, read_time, resolve
from tidemill.formats.hashing import (
    SEED_ARRAY,
    SEED_FALSE,
    SEED_KEY,
    SEED_NULL,
    SEED_NUMBER,
    SEED_OBJECT,
    SEED_STRING,
    SEED_TRUE,
    closed_int,
    element_int,
    hash_bytes,
    member_int,
    number_int,
)
from tidemill.formats.json_values import HUGE, at, exact_parts_of, no_constant, parts_of, unique_members
from tidemill.formats.read_plan import (
    MAX_ID_BYTES,
    MAX_TENANT_BYTES,
    ColumnRule,
    DeltaRule,
    MessageRule,
    ReadPlan,
)
from tidemill.model.deltas import Op
from tidemill.model.slices import Reject
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, format_duration, format_instant

OPS: Final = frozenset(op.value for op in Op)
INT64: Final = range(-(2**63), 2**63)
MAX_DECIMAL: Final = 10**18
_INTEGER_DIGITS: Final = 40
_PLAIN_DIGITS: Final = 20
_FAR: Final = 10**6
_EXACT: Final = Context(prec=400, rounding=ROUND_HALF_EVEN)
_DEEP: Final = 1000  # nesting limit where only the id is read for display; the gate's is lower


class Number:
    """A JSON number as it was spelled; its value is computed only where a rule needs it."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def parts(self) -> tuple[str, int, bool]:
        """Significant digits, exponent, sign; zero is ("", 0, False). An absurd exponent is cut."""
        return parts_of(self.text)

    def content(self) -> int:
        """The hash of its value."""
        digits, exponent, negative = exact_parts_of(self.text)
        if not -HUGE < exponent < HUGE:  # equal values must still have equal hashes
            return number_int(digits, hash_bytes(str(exponent).encode(), SEED_NUMBER), negative)
        return number_int(digits, int(exponent), negative)

    def integer(self) -> int | None:
        """Its value if that is an integer of 64 bits, else None."""
        digits, exponent, negative = self.parts()
        if exponent < 0 or len(digits) + exponent > 19:
            return None
        value = int(digits or "0") * 10**exponent * (-1 if negative else 1)
        return value if value in INT64 else None

    def scaled(self, scale: int) -> int | None:
        """Its value times 10**scale, rounded half to even, if that fits 18 digits, else None."""
        digits, exponent, negative = self.parts()
        if len(digits) + exponent + scale > 19:
            return None
        if len(digits) + exponent + scale < -1:
            return 0
        exact = Decimal((int(negative), tuple(map(int, digits or "0")), exponent + scale))
        value = int(exact.to_integral_value(rounding=ROUND_HALF_EVEN, context=_EXACT))
        return value if abs(value) < MAX_DECIMAL else None

    def plain(self) -> int | Decimal:
        """Its value for an event-time parser; a number far outside of all instants is replaced by a smaller
        one."""
        if len(self.text) <= _PLAIN_DIGITS and self.text.lstrip("-").isdigit():
            return int(self.text)
        digits, exponent, negative = self.parts()
        size = len(digits) + exponent
        if abs(size) > _FAR:
            exponent = (_FAR if size > 0 else -_FAR) - len(digits)
        exact = Decimal((int(negative), tuple(map(int, digits or "0")), exponent))
        return int(exact) if exponent >= 0 and size <= _INTEGER_DIGITS else exact


@dataclass(frozen=True, slots=True)
class DecidedRecord:
    """A record that passed, as the columns that the engine keeps of it."""

    tenant: str
    event_id: str
    time: int
    event_type: str | None
    dimensions: tuple[str | int | bool | None, ...]
    measures: tuple[int | None, ...]  # scaled integers
    content: int


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that was refused, with the first rule that it broke."""

    reason: Reject
    detail: str
    tenant: str | None = None  # the tenant it names, whatever else is wrong with it


class RuleError(Exception):
    """A record broke a rule; the first rule broken decides."""

    def __init__(self, reason: Reject, detail: str) -> None:
        self.refused = RefusedRecord(reason, detail)


_DECODER = json.JSONDecoder(
    object_pairs_hook=unique_members, parse_float=Number, parse_int=Number, parse_constant=no_constant
)


def _depth(value: object) -> int:
    deepest, stack = 0, [(value, 1)]
    while stack:
        item, level = stack.pop()
        if isinstance(item, dict):
            deepest = max(deepest, level)
            stack.extend((child, level + 1) for child in item.values())
        elif isinstance(item, list):
            deepest = max(deepest, level)
            stack.extend((child, level + 1) for child in item)
    return deepest


def _text(record: bytes) -> str:
    try:
        return record.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RuleError(Reject.ENCODING, f"not UTF-8 at byte {error.start}") from None


def parse(record: bytes, max_depth: int) -> dict[str, object]:
    """The record as one strict JSON object; numbers stay as they were spelled."""
    text = _text(record)
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise RuleError(Reject.MALFORMED, f"nested deeper than {max_depth}") from None
    except json.JSONDecodeError as error:
        raise RuleError(Reject.MALFORMED, f"not JSON: {error.msg}: character {error.pos + 1}") from None
    except ValueError as error:
        raise RuleError(Reject.MALFORMED, str(error)) from None
    if not isinstance(value, dict):
        raise RuleError(Reject.MALFORMED, "not a JSON object")
    if text.count("{") + text.count("[") > max_depth and _depth(value) > max_depth:
        raise RuleError(Reject.MALFORMED, f"nested deeper than {max_depth}")
    if "\\u" in text or "\\U" in text:
        try:
            json.dumps(value, ensure_ascii=False, default=lambda n: n.text).encode("utf-8")
        except UnicodeEncodeError:
            raise RuleError(Reject.ENCODING, "half of a surrogate pair") from None
    return value


def content_hash(value: object) -> int:
    """The hash of a JSON value as `scan` computes it, independent of key order and number spelling."""
    match value:
        case None:
            return closed_int(0, SEED_NULL)
        case True:
            return closed_int(0, SEED_TRUE)
        case False:
            return closed_int(0, SEED_FALSE)
        case str():
            return hash_bytes(value.encode(), SEED_STRING)
        case Number():
            return value.content()
        case list():
            total = 0
            for item in value:
                total = element_int(total, content_hash(item))
            return closed_int(total, SEED_ARRAY)
        case dict():
            total = 0
            for key, item in value.items():
                total += member_int(hash_bytes(key.encode(), SEED_KEY), content_hash(item))
            return closed_int(total & (2**64 - 1), SEED_OBJECT)
    raise AssertionError(type(value))


def identity(value: object, columns: Sequence[str]) -> str:
    parts: list[str | int] = []
    for column in columns:
        found = at(value, column)
        if isinstance(found, str) and found:
            parts.append(found)
        elif isinstance(found, Number) and (whole := found.integer()) is not None:
            parts.append(whole)
        else:
            problem = "is missing" if found is None else "is not a non-empty string or an integer"
            raise RuleError(Reject.MISSING_ID, f"{column} {problem}")
    joined = id_text(parts)
    if len(joined.encode()) > MAX_ID_BYTES:
        raise RuleError(Reject.MISSING_ID, f"the id is longer than {MAX_ID_BYTES} bytes")
    return joined


def id_text(parts: Sequence[str | int]) -> str:
    """The id of an event, from the values of its identity columns."""
    return str(parts[0]) if len(parts) == 1 else json.dumps(parts, separators=(",", ":"), ensure_ascii=False)


def id_of(record: bytes, columns: Sequence[str]) -> str | None:
    """The id of a record, spelled as the gate spells it, for display; None if it has none or is not JSON."""
    if not columns:
        return None
    try:
        value = orjson.loads(record)
    except orjson.JSONDecodeError:
        return None
    found = (at(value, column) for column in columns)
    parts = [part for part in found if isinstance(part, str | int) and part and part is not True]
    if len(parts) < len(columns):  # missing, or a number that needs exact reading
        return _exact_id(record, columns)
    joined = id_text(parts)
    return joined if len(joined.encode()) <= MAX_ID_BYTES else None


def _exact_id(record: bytes, columns: Sequence[str]) -> str | None:
    try:
        return identity(parse(record, _DEEP), columns)
    except RuleError:
        return None


def _tenant(value: object, plan: ReadPlan) -> str:
    if plan.tenant_column is None:
        return plan.tenant_value
    found = at(value, plan.tenant_column)
    if not isinstance(found, str) or not found:
        raise RuleError(Reject.MISSING_FIELD, f"{plan.tenant_column} names no tenant")
    if len(found.encode()) > MAX_TENANT_BYTES:
        raise RuleError(Reject.WRONG_TYPE, f"{plan.tenant_column} is longer than {MAX_TENANT_BYTES} bytes")
    return found


def _claimed(value: object, plan: ReadPlan) -> str | None:
    try:
        return _tenant(value, plan)
    except RuleError:
        return None


def _event_type(value: object, plan: ReadPlan) -> str | None:
    if plan.type_column is None:
        return None
    found = at(value, plan.type_column)
    if found is None:
        raise RuleError(Reject.MISSING_FIELD, f"{plan.type_column} is missing")
    if not isinstance(found, str):
        raise RuleError(Reject.WRONG_TYPE, f"{plan.type_column} is not a string")
    if found not in plan.types:
        known = ", ".join(sorted(plan.types))
        raise RuleError(Reject.UNKNOWN_TYPE, f"event type {found[:80]!r} is not declared; declared: {known}")
    return found


def _instant(found: object, label: str, type: str, parser: Parser | None, zone: str | None) -> int:
    """The value of a column as an instant; `label` names the column in errors."""
    if found is None:
        raise RuleError(Reject.BAD_TIME, f"{label} is missing")
    if isinstance(found, Number):
        found = found.plain()
    try:
        instant = read_time(parser or (iso8601_in(zone) if type == "iso8601" else resolve(type)), found)
    except ValueError as error:
        raise RuleError(Reject.BAD_TIME, f"{label} is no {type}: {error}") from None
    if not MIN_INSTANT <= instant < MAX_INSTANT:
        raise RuleError(Reject.BAD_TIME, f"{label} lies outside the years 1 to 9999")
    return instant


def message_time(messages: Iterable[object], rule: MessageRule) -> int | None:
    """The time of the first message whose stream has an event time; None if there is none. Later messages are
    not read, even if that one is refused."""
    for number, message in enumerate(messages, start=1):
        name = at(message, rule.stream)
        time = rule.times.get(name) if isinstance(name, str) else None
        if time is not None:
            body = message if rule.body is None else at(message, rule.body)
            label = f"{time.column} of message {number}, of stream {name},"
            return _instant(at(body, time.column), label, time.type, time.parser, time.zone)
    return None


def _time(value: object, plan: ReadPlan, arrival: int) -> int:
    if plan.messages is not None:
        held = at(value, plan.messages.column)
        of_message = message_time(held, plan.messages) if isinstance(held, list) else None
        if of_message is not None:
            return of_message
        if plan.time_column is None:
            known = ", ".join(sorted(plan.messages.times))
            raise RuleError(
                Reject.BAD_TIME, f"no message of it has an event time; streams that have one: {known}"
            )
    if plan.time_column is None:
        return arrival
    found = at(value, plan.time_column)
    return _instant(found, plan.time_column, plan.time_type, plan.time_parser, plan.time_zone)


def instant_in(found: object, zone: str | None) -> int | None:
    """The instant of a timestamp, to the microsecond, read as an event time of type iso8601."""
    try:
        instant = iso8601_in(zone)(found)
    except ValueError:
        return None
    return instant if MIN_INSTANT <= instant < MAX_INSTANT else None


def _fits(found: object, rule: ColumnRule) -> bool:
    match rule.type:
        case "string":
            return isinstance(found, str)
        case "integer":
            return isinstance(found, Number) and found.integer() is not None
        case "decimal":
            return isinstance(found, Number) and found.scaled(rule.scale) is not None
        case "float":
            return isinstance(found, Number)
        case "boolean":
            return isinstance(found, bool)
        case "timestamp":
            return instant_in(found, rule.zone) is not None
        case "object":
            return isinstance(found, dict)
        case "array":
            return isinstance(found, list)
    return True


def _schema(value: object, plan: ReadPlan) -> None:
    for rule in plan.rules:
        found = at(value, rule.name)
        if found is None:
            if rule.required:
                raise RuleError(Reject.MISSING_FIELD, f"{rule.name} is required")
        elif not _fits(found, rule):
            raise RuleError(Reject.WRONG_TYPE, f"{rule.name} is not of type {rule.type}")


def vector_id(value: object, rule: DeltaRule) -> str:
    """The vector that a delta changes: a string, or the digits of an integer."""
    found = at(value, rule.id)
    if found is None:
        raise RuleError(Reject.MISSING_FIELD, f"{rule.id} is required: it names the vector")
    if isinstance(found, str) and found:
        if len(found.encode()) > MAX_ID_BYTES:
            raise RuleError(Reject.WRONG_TYPE, f"{rule.id} is longer than {MAX_ID_BYTES} bytes")
        return found
    if isinstance(found, Number) and (whole := found.integer()) is not None:
        return str(whole)
    raise RuleError(Reject.WRONG_TYPE, f"{rule.id} is not a non-empty string or an integer")


def _delta(value: object, rule: DeltaRule) -> None:
    """Check that a record is a delta of a vector of this dimension."""
    vector_id(value, rule)
    op = _op(value, rule)
    indices = _indices(value, rule)
    if indices is not None and op in (Op.REPLACE, Op.DELETE):
        scope = "all components" if op is Op.REPLACE else "the whole vector"
        raise RuleError(Reject.WRONG_TYPE, f"{op} is about {scope} and takes no {rule.indices}")
    _values(value, rule, op, indices)


def _op(value: object, rule: DeltaRule) -> Op:
    found = at(value, rule.op)
    known = ", ".join(op.value for op in Op)
    if found is None:
        raise RuleError(Reject.MISSING_FIELD, f"{rule.op} is required: {known}")
    if not isinstance(found, str) or found not in OPS:
        shown = repr(found[:80]) if isinstance(found, str) else "what it is"
        raise RuleError(Reject.WRONG_TYPE, f"{rule.op} cannot be {shown}; it is one of {known}")
    return Op(found)


def _indices(value: object, rule: DeltaRule) -> int | None:
    """How many components the delta names; None: all."""
    found = at(value, rule.indices)
    if found is None:
        return None
    if not isinstance(found, list):
        raise RuleError(Reject.WRONG_TYPE, f"{rule.indices} is not of type array")
    seen: set[int] = set()
    for position, item in enumerate(found):
        index = item.integer() if isinstance(item, Number) else None
        if index is None or not 0 <= index < rule.dimension:
            valid = f"a whole number from 0 to {rule.dimension - 1}"
            raise RuleError(Reject.WRONG_TYPE, f"{rule.indices}[{position}] is not {valid}")
        if index in seen:
            raise RuleError(Reject.WRONG_TYPE, f"{rule.indices}[{position}] is {index} again; list each once")
        seen.add(index)
    return len(seen)


def _values(value: object, rule: DeltaRule, op: Op, indices: int | None) -> None:
    found = at(value, rule.values)
    takes = sizes_of(op, indices, rule.dimension)
    if found is None:
        if 0 in takes:
            return
        raise RuleError(Reject.MISSING_FIELD, f"{rule.values} is required: {op} takes {_numbers(takes)}")
    if not isinstance(found, list):
        raise RuleError(Reject.WRONG_TYPE, f"{rule.values} is not of type array")
    if len(found) not in takes:
        meant = f" for {indices} {rule.indices}" if indices is not None and op is not Op.OFFSET else ""
        problem = f"{op} takes {_numbers(takes)}{meant}, and there are {len(found)}"
        raise RuleError(Reject.WRONG_TYPE, f"{rule.values}: {problem}")
    for position, item in enumerate(found):
        if not isinstance(item, Number) or not math.isfinite(float(item.text)):
            raise RuleError(Reject.WRONG_TYPE, f"{rule.values}[{position}] is not a finite number of 64 bits")


def sizes_of(op: Op, indices: int | None, dimension: int) -> tuple[int, ...]:
    """The allowed numbers of values for an operation."""
    match op:
        case Op.DELETE:
            return (0,)
        case Op.OFFSET:
            return (1,)
        case Op.SCALE if indices is None:
            return (1, dimension)
    return (dimension if indices is None else indices,)


def _numbers(sizes: Sequence[int]) -> str:
    counts = " or ".join(str(size) for size in dict.fromkeys(sizes)) if any(sizes) else "no"
    return f"{counts} value{'s' if counts != '1' else ''}"


def _skew(instant: int, plan: ReadPlan, arrival: int) -> None:
    if plan.skew_future is not None and instant > arrival + plan.skew_future:
        limit = format_duration(plan.skew_future)
        raise RuleError(
            Reject.SKEW, f"{format_instant(instant)} is more than {limit} after {format_instant(arrival)}"
        )
    if plan.skew_past is not None and instant < arrival - plan.skew_past:
        limit = format_duration(plan.skew_past)
        raise RuleError(
            Reject.TOO_OLD, f"{format_instant(instant)} is more than {limit} before {format_instant(arrival)}"
        )


def _sealed(instant: int, plan: ReadPlan) -> None:
    if plan.sealed_before is not None and instant < plan.sealed_before:
        sealed = format_instant(plan.sealed_before)
        raise RuleError(Reject.SEALED, f"{format_instant(instant)} is before {sealed}, where raw has expired")


def _dimension(found: object) -> str | int | bool | None:
    if isinstance(found, Number):
        return found.integer()
    return found if isinstance(found, str | bool) else None


def _measure(found: object, rule: ColumnRule) -> int | None:
    if not isinstance(found, Number):
        return None
    return found.integer() if rule.type == "integer" else found.scaled(rule.scale)


def _check_size(record: bytes, plan: ReadPlan) -> None:
    if len(record) > plan.record_bytes:
        raise RuleError(Reject.TOO_LARGE, f"{len(record)} bytes; at most {plan.record_bytes} are taken")


def refuse(record: bytes, plan: ReadPlan, problem: str) -> RefusedRecord:
    """Refuse what its format says is no record, unless a rule before that one is broken."""
    refused = RefusedRecord(Reject.MALFORMED, problem)
    try:
        _check_size(record, plan)
        _text(record)
    except RuleError as broken:
        refused = broken.refused
    return replace(refused, tenant=_claimed(None, plan))


def decide(record: bytes, plan: ReadPlan, arrival: int) -> DecidedRecord | RefusedRecord:
    """Check one record against the rules, in their order."""
    value: object = None
    try:
        _check_size(record, plan)
        value = parse(record, plan.depth)
        event_id = identity(value, plan.identity) if plan.gated else ""
        tenant = _tenant(value, plan)
        event_type = _event_type(value, plan)
        instant = _time(value, plan, arrival)
        if plan.delta is not None:
            _delta(value, plan.delta)
        _schema(value, plan)
        _skew(instant, plan, arrival)
        _sealed(instant, plan)
    except RuleError as broken:
        return replace(broken.refused, tenant=_claimed(value, plan))
    return DecidedRecord(
        tenant=tenant,
        event_id=event_id,
        time=instant,
        event_type=event_type,
        dimensions=tuple(_dimension(at(value, name)) for name in plan.dimensions),
        measures=tuple(_measure(at(value, name), plan.rule(name)) for name in plan.measures),
        content=content_hash(value),
    )


__all__ = [
    "DecidedRecord",
    "Number",
    "RefusedRecord",
    "RuleError",
    "at",
    "content_hash",
    "decide",
    "id_of",
    "id_text",
    "identity",
    "message_time",
    "parse",
    "refuse",
    "sizes_of",
    "vector_id",
]
