"""Answers of SQL statements, and the views, as plain data.

Only formats. Values of types that JSON lacks are spelled as in ISO 8601.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING

from tidemill.pipeline.documents.shapes import Document, completeness

if TYPE_CHECKING:
    from tidemill.query.plain_sql.service import SqlAnswer


def answer(of: SqlAnswer) -> Document:
    return {
        "columns": of.schema.names,
        "rows": [{name: value(each) for name, each in row.items()} for row in of.table.to_pylist()],
        "completeness": lacks(of),
    }


def lacks(of: SqlAnswer) -> Document:
    """Completeness, by stream that was read."""
    return {stream: completeness(one) for stream, one in of.completeness.items()}


def views(of: Mapping[str, Sequence[tuple[str, str]]]) -> Document:
    return {
        "views": [
            {"view": view, "columns": [{"name": name, "type": kind} for name, kind in columns]}
            for view, columns in of.items()
        ]
    }


def value(of: object) -> object:
    """A value of a row as JSON; instants and decimals are spelled as everywhere."""
    if isinstance(of, Mapping):
        return {str(name): value(each) for name, each in of.items()}
    if isinstance(of, datetime):
        return of if of.tzinfo is not None else of.isoformat()
    if isinstance(of, date | time):
        return of.isoformat()
    if isinstance(of, timedelta):
        return f"PT{of.total_seconds():f}S"
    if isinstance(of, tuple) and hasattr(of, "nanoseconds"):
        months, days, nanoseconds = of
        return f"P{months}M{days}DT{nanoseconds // 10**9}.{nanoseconds % 10**9:09d}S"
    if isinstance(of, list | tuple):
        return [value(each) for each in of]
    return of
