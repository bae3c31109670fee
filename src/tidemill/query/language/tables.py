"""The parser of the grammar: from tables that were computed beforehand, or else from the grammar itself.

`scripts/grammar.py` writes `grammar.tables`, beside `grammar.lark`. They are used only when they were made of
this grammar by the version of Lark that is installed: they save time and decide nothing.
"""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from lark import Lark

Start = Literal["query", "search", "expression", "having_either"]
STARTS: Final[tuple[Start, ...]] = ("query", "search", "expression", "having_either")
GRAMMAR: Final = Path(__file__).with_name("grammar.lark")
TABLES: Final = Path(__file__).with_name("grammar.tables")


def parser_with(transformer: object) -> Lark:
    """The parser whose trees go through `transformer`."""
    from lark import Lark

    grammar = GRAMMAR.read_text("utf-8")
    tables = kept()
    if tables["made_of"] == made_of(grammar):
        data, memo = tables["data"], tables["memo"]
        loaded: Lark = Lark._load_from_dict(data, memo, transformer=transformer)  # type: ignore[no-untyped-call]
        return loaded
    return build(grammar, transformer)


def kept() -> dict[str, object]:
    """What `grammar.tables` holds."""
    tables: dict[str, object] = pickle.loads(TABLES.read_bytes())  # noqa: S301 - a file of this package
    return tables


def build(grammar: str, transformer: object = None) -> Lark:
    """The same by computing the tables, which takes ten times as long."""
    from lark import Lark

    return Lark(
        grammar,
        start=list(STARTS),
        parser="lalr",
        lexer="contextual",
        maybe_placeholders=True,
        transformer=transformer,
    )


def made_of(grammar: str) -> str:
    """Names what tables depend on."""
    from lark import __version__

    return f"{hashlib.sha256(grammar.encode()).hexdigest()} {','.join(STARTS)} lark {__version__}"
