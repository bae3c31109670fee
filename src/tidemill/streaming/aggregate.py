"""Exact aggregates of assigned rows: one result for each window and group.

Sums of integers and decimals are exact; those of floats are the exactly rounded sum (`math.fsum`), so no result depends
on the order of addition. avg and stddev (of a sample) are the nearest double of the exact value for integers and
decimals. Percentiles are nearest-rank: a value that occurred. Nulls do not count, except for count without a column.
"""

from __future__ import annotations

import pyarrow as pa

from tidemill.config.stream import Stream
from tidemill.model.streaming import Aggregate, WindowSpec
from tidemill.streaming.assign import Assigned


def value_type(aggregate: Aggregate) -> pa.DataType:
    """Of its column: count int64; sum decimal128(38, scale) or float64; avg, stddev float64; others as the field."""
    raise NotImplementedError


def fresh_schema(spec: WindowSpec, stream: Stream) -> pa.Schema:
    """tenant; start, end (int64); ordinal (int64); `WindowSpec.grouped_by` as `g.`+column, typed as the fields are;
    rows, late_rows, first_time, last_time, bytes, slices (int64; how many); hash (string, `set_hash` of the names of the
    slices its rows came from); closed (bool); then the aggregates as `a.`+name."""
    raise NotImplementedError


def aggregate(spec: WindowSpec, stream: Stream, rows: pa.Table, assigned: Assigned) -> pa.Table:
    """Results of all windows, open ones too, by (start, tenant, ordinal, group); nulls of a group come first."""
    raise NotImplementedError
