"""The statistics of a part as Delta's JSON, and back: pure rules about bounds.

A bound may be wider than the data, never narrower: a reader that excludes parts by it must not lose a row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Final

import pyarrow as pa

from tidemill.model.time import MAX_INSTANT, MILLISECOND, MIN_INSTANT, format_instant, parse_instant

STRING_LIMIT: Final = 64  # code points kept of a bound
_LAST_CHARACTER: Final = "\U0010ffff"

Bound = int | float | str | Decimal | date
Bounds = dict[str, Bound]


def lower_text(text: str) -> str:
    """A prefix sorts at or before the whole."""
    return text[:STRING_LIMIT]


def upper_text(text: str) -> str:
    """A prefix followed by the last code point sorts after every string that begins with the prefix
    (unless that string goes on with the last code point itself, hence the loop)."""
    end = STRING_LIMIT
    while end < len(text) and text[end] == _LAST_CHARACTER:
        end += 1
    return text if len(text) <= end else text[:end] + _LAST_CHARACTER


def _instant(us: int) -> str | None:
    if not MIN_INSTANT <= us < MAX_INSTANT:
        return None
    text = format_instant(us)
    return text if "." in text else f"{text[:-1]}.000Z"


def lower_instant(us: int) -> str | None:
    """Delta keeps milliseconds: the bound goes down to one."""
    return _instant(us - us % MILLISECOND)


def upper_instant(us: int) -> str | None:
    return _instant(us + -us % MILLISECOND)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same distinct values in a type that min_max knows."""
    if pa.types.is_dictionary(column.type):
        import pyarrow.compute as pc

        # a dictionary may hold values that no row uses: they would widen the bounds for nothing
        used = [chunk.dictionary.take(pc.unique(chunk.indices).drop_null()) for chunk in column.chunks]
        return _plain(pa.chunked_array(used, type=column.type.value_type))
    if pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    return column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _pair(column: pa.ChunkedArray) -> tuple[str | None, str | None]:
    """Minimum and maximum as JSON texts; None if there is none that every reader understands."""
    import pyarrow.compute as pc  # not needed by readers of bounds

    values = _plain(column)
    kind = values.type
    known = (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date32(kind)
        or _is_text(kind)
    )
    if not known:
        return None, None
    both = pc.min_max(values)
    low, high = both["min"], both["max"]
    if not low.is_valid:
        return None, None
    if pa.types.is_timestamp(kind):
        assert (kind.unit, kind.tz) == ("us", "UTC"), kind
        return _quoted(lower_instant(low.value)), _quoted(upper_instant(high.value))
    if _is_text(kind):
        return _quoted(lower_text(low.as_py())), _quoted(upper_text(high.as_py()))
    if pa.types.is_decimal(kind):
        return format(low.as_py(), "f"), format(high.as_py(), "f")
    if pa.types.is_date32(kind):
        return _quoted(low.as_py().isoformat()), _quoted(high.as_py().isoformat())
    if pa.types.is_floating(kind):
        # engines disagree on where NaN sorts, and JSON has no infinity
        if pc.any(pc.is_nan(values)).as_py() or math.isinf(low.as_py()) or math.isinf(high.as_py()):
            return None, None
        return repr(low.as_py()), repr(high.as_py())
    return str(low.as_py()), str(high.as_py())


def _quoted(text: str | None) -> str | None:
    # not as \u escapes: the reader in deltalake decodes surrogate pairs wrongly (U+10FFFF as U+FFFFF)
    return None if text is None else json.dumps(text, ensure_ascii=False)


def delta_stats(table: pa.Table, columns: Sequence[str]) -> str:
    """numRecords, and for each of `columns` minValues, maxValues and nullCount."""
    mins: list[str] = []
    maxs: list[str] = []
    nulls: list[str] = []
    for name in columns:
        column = table.column(name)
        key = json.dumps(name, ensure_ascii=False)
        low, high = _pair(column)
        if low is not None:
            mins.append(f"{key}:{low}")
        if high is not None:
            maxs.append(f"{key}:{high}")
        nulls.append(f"{key}:{column.null_count}")
    return (
        f'{{"numRecords":{table.num_rows},"minValues":{{{",".join(mins)}}},'
        f'"maxValues":{{{",".join(maxs)}}},"nullCount":{{{",".join(nulls)}}}}}'
    )


def _bound(value: object, kind: pa.DataType) -> Bound | None:
    if pa.types.is_timestamp(kind):
        return parse_instant(str(value))
    if pa.types.is_date(kind):
        return date.fromisoformat(str(value))
    if pa.types.is_decimal(kind):
        return Decimal(str(value))
    if pa.types.is_floating(kind):
        return float(str(value))
    if isinstance(value, int | str):
        return value
    return None


def bounds(stats: str, schema: pa.Schema) -> tuple[Bounds, Bounds]:
    """(mins, maxs) of a stats text, typed by `schema`; instants as integer microseconds."""
    parsed = json.loads(stats, parse_float=Decimal)
    both: list[Bounds] = []
    for key in ("minValues", "maxValues"):
        found: Bounds = {}
        for name, value in parsed.get(key, {}).items():
            bound = _bound(value, schema.field(name).type) if name in schema.names else None
            if bound is not None:
                found[name] = bound
        both.append(found)
    return both[0], both[1]
