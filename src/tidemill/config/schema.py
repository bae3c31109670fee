"""The typed fields of a stream: what a record may contain, as declared in `tidemill.yaml`.

A column is a path of names joined by dots. Records are not read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, StrictBool, StrictInt, model_validator

from tidemill.config.values import wrong

FieldType = Literal["string", "integer", "decimal", "float", "boolean", "timestamp", "object", "array", "any"]
ItemType = Literal["string", "integer", "decimal", "float", "boolean", "timestamp"]
FIELD_TYPES: Final[tuple[FieldType, ...]] = get_args(FieldType)
KEY_TYPES: Final[tuple[FieldType, ...]] = ("string", "integer", "boolean")  # types that identify things
MAX_SCALE: Final = 15
DECIMAL_DIGITS: Final = 18  # so that an unscaled value fits 64 bits

SECTION: Final = ConfigDict(frozen=True, extra="forbid", defer_build=True)
"""How every section of the file is read: unknown keys are errors, and nothing changes afterwards.
Validators are built for what is read as a whole: at import, each section would get one that nobody uses."""

ABSENT: Final = pydantic.Field(default={}, validate_default=True)
"""The default of a section: what the file would mean by an empty one."""


def without_empty(cls: type, data: object) -> object:
    """Read a section whose keys are all commented out as absent."""
    if isinstance(data, dict):
        return {key: value for key, value in data.items() if value is not None}
    return data


_COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_COLUMN_HINT: Final = "use letters, digits and _, not starting with a digit; dots lead into objects"


def is_column(name: object) -> bool:
    """Whether a text is a valid column name."""
    return isinstance(name, str) and bool(_COLUMN.fullmatch(name)) and len(name) <= 255


def _column(name: str) -> str:
    if not is_column(name):
        raise wrong(f"column name {name!r} is not allowed", _COLUMN_HINT)
    return name


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


ColumnName = Annotated[str, AfterValidator(_column)]

ColumnList = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]
"""Names of columns, or one of them."""


class Field(pydantic.BaseModel):
    """One column: `{type: integer, required: true}`, or just `integer`."""

    model_config = SECTION

    type: FieldType
    required: StrictBool = False
    scale: Annotated[StrictInt, pydantic.Field(ge=0, le=MAX_SCALE)] | None = None
    items: ItemType | None = None  # type of the elements of an array; None: the array stays JSON
    unit: str = ""  # from here on: documentation that is attached to the column everywhere
    description: str = ""
    standard_name: str = ""
    metadata: Mapping[str, str] = {}

    @property
    def described(self) -> str:
        """Its type, for people."""
        if self.scale is not None and self.items is None:
            return f"{self.type} of scale {self.scale}"
        return f"{self.type} of {self.items}" if self.items is not None else self.type

    @property
    def notes(self) -> dict[str, str]:
        """The documentation of the column; Delta, Arrow and Spark call it field metadata."""
        notes = {"unit": self.unit, "comment": self.description, "standard_name": self.standard_name}
        return {**self.metadata, **{key: text for key, text in notes.items() if text}}

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: object) -> object:
        if data is None:
            raise wrong("the column has no type", f"types: {', '.join(FIELD_TYPES)}")
        return {"type": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _items_belong_to_arrays(self) -> Field:
        if self.items is not None and self.type != "array":
            raise wrong(f"a field of type {self.type} has no items", "leave items out, or use type: array")
        return self

    @model_validator(mode="after")
    def _scale_belongs_to_decimals(self) -> Field:
        is_decimal = "decimal" in (self.type, self.items)
        if is_decimal and self.scale is None:
            raise wrong(
                "a decimal needs its scale",
                f"write {{type: decimal, scale: 3}} for thousandths; 0 to {MAX_SCALE}, "
                f"{DECIMAL_DIGITS} digits in all",
            )
        if not is_decimal and self.scale is not None:
            raise wrong(f"a field of type {self.type} has no scale", "leave scale out, or use type: decimal")
        return self
