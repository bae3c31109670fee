"""Which Arrow schema a Delta table can have so that every stock reader reads it, and how it may grow.

Pure: nothing here opens a table.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidemill.model.errors import ConfigError

_ELEMENT = "element"  # what Delta calls the values of a list, so that a schema that is read back is the same
_HINT = (
    "use int8 to int64, float32, float64, bool, string, binary, date32, decimal128, timestamp[us, UTC], "
    "or lists and structs of them"
)


def _stored(kind: pa.DataType, column: str) -> pa.DataType:
    """The type as the table stores it, without Arrow's variants in memory (dictionary, large, view)."""
    if pa.types.is_dictionary(kind):
        return _stored(kind.value_type, column)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field(_ELEMENT, _stored(kind.value_type, column)))
    if pa.types.is_struct(kind):
        return pa.struct([_field(field, column) for field in kind])
    if pa.types.is_timestamp(kind):
        if (kind.unit, kind.tz) == ("us", "UTC"):
            return kind
    elif (
        pa.types.is_signed_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_decimal128(kind)
    ):
        return kind
    raise ConfigError(f"column {column!r} cannot be of type {kind} in a table", hint=_HINT)


def _field(field: pa.Field, column: str) -> pa.Field:
    return pa.field(field.name, _stored(field.type, column), metadata=field.metadata)


def stored_schema(schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
    """`schema` as a table stores it.

    Every column is nullable: older parts have no values in a column that is added later, and required fields
    are checked where records are accepted.
    """
    stored = pa.schema([_field(field, field.name) for field in schema])
    for column in partition_by:
        if column not in stored.names or stored.field(column).type != pa.string():
            raise ConfigError(
                f"the partition column {column!r} is not a string column of the table",
                hint=f"columns: {', '.join(stored.names)}",
            )
    return stored


def added_columns(
    table: pa.Schema, wanted: pa.Schema, table_partition: Sequence[str], partition_by: Sequence[str]
) -> list[pa.Field]:
    """The columns that `wanted` has in addition to `table`; ConfigError if the table would have to drop or
    retype one."""
    problems = [f"column {field.name!r} is missing" for field in table if field.name not in wanted.names] + [
        f"column {field.name!r} is {wanted.field(field.name).type} instead of {field.type}"
        for field in table
        if field.name in wanted.names and wanted.field(field.name).type != field.type
    ]
    if list(table_partition) != list(partition_by):
        problems.append(f"partitioned by {list(partition_by)} instead of {list(table_partition)}")
    if problems:
        raise ConfigError(
            f"the table cannot take this schema: {'; '.join(problems)}",
            hint="columns can be added, never dropped or retyped: give a changed column a new name",
        )
    return [field for field in wanted if field.name not in table.names]
