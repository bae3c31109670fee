"""Checks a SQL statement: one SELECT over views that exist, calling functions that only compute.

DuckDB's own parser parses the text, and every node of its tree must be of an allowed kind: a list of what is
known to be harmless, not of what is known to be dangerous. Nothing is opened or run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidemill.model.conditions.scanner import check_characters
from tidemill.model.errors import NotFoundError, QueryError
from tidemill.model.suggestions import choices, closest
from tidemill.query.plain_sql.functions import FUNCTIONS, OPERATORS, TABLE_FUNCTIONS

if TYPE_CHECKING:
    import duckdb

MOST_LETTERS: Final = 100_000  # of a statement
ViewKey = tuple[str, str]  # schema and name, in lower case
Tree = Mapping[str, object]

_ONLY: Final = (
    "one SELECT, WITH, FROM, VALUES, DESCRIBE, SUMMARIZE, SHOW TABLES or EXPLAIN statement can be run"
)
_EXPLAIN: Final = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*explain\b(\s+analyze\b)?", re.I | re.S)
_NODES: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_TABLES: Final = frozenset({"SUBQUERY", "JOIN", "EXPRESSION_LIST", "EMPTY", "PIVOT"})
_MODIFIERS: Final = frozenset(
    {"ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER"}
    | {"ORDER_DEFAULT", "ASCENDING", "DESCENDING"}
)
_HARMLESS: Final = _NODES | _TABLES | _MODIFIERS
_TYPE_INFO: Final = "_TYPE_INFO"
_EXPRESSIONS: Final = frozenset(
    {"COLUMN_REF", "OPERATOR", "COMPARISON", "CONJUNCTION", "CASE", "CAST", "BETWEEN", "STAR", "SUBQUERY"}
    | {"LAMBDA", "LAMBDA_REF", "COLLATE", "POSITIONAL_REFERENCE", "FUNCTION", "WINDOW"}
)
_BUILT_IN: Final = ("", "main")  # schemas of functions
_LISTINGS: Final = frozenset({"tables", "__show_tables_expanded"})


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that may be run, and the views that it reads."""

    text: str
    views: frozenset[ViewKey]
    is_listing: bool = False  # SHOW TABLES: which views there are


def check(text: str, views: Collection[ViewKey], engine: duckdb.DuckDBPyConnection) -> Statement:
    """The statement, if it may be run; else QueryError or NotFoundError with the reason."""
    check_characters(text, "statement", MOST_LETTERS)
    explain = _EXPLAIN.match(text)
    body = text[explain.end() :] if explain else text
    tree = _only_one(_parsed(body, engine))
    if _is_listing(tree):
        return Statement(body, frozenset(), is_listing=True)
    walk = _Walk(views)
    try:
        walk.visit(tree, frozenset())
    except RecursionError:
        raise QueryError("the statement is nested too deeply", hint="split it with WITH") from None
    prefix = f"EXPLAIN{explain[1] or ''} " if explain else ""
    return Statement(prefix + body, frozenset(walk.found))


def _parsed(text: str, engine: duckdb.DuckDBPyConnection) -> Sequence[Tree]:
    options = "skip_null := true, skip_empty := true, skip_default := true"
    found = engine.execute(f"SELECT json_serialize_sql($1::VARCHAR, {options})", [text]).fetchone()
    assert found is not None
    try:
        result = json.loads(found[0])
    except RecursionError:
        raise QueryError("the statement is nested too deeply", hint="split it with WITH") from None
    if not result["error"]:
        statements: Sequence[Tree] = result["statements"]
        return statements
    if result["error_type"] == "parser":
        position = result.get("position")
        raise QueryError(
            str(result["error_message"]),
            hint=f"the SQL is that of DuckDB; {_ONLY}",
            position=int(position) if position is not None else None,
        )
    raise QueryError(
        "this is not a statement that only reads", hint=f"{_ONLY}; PIVOT needs its values in IN (…)"
    )


def _only_one(statements: Sequence[Tree]) -> Tree:
    if len(statements) != 1:
        raise QueryError(f"there are {len(statements)} statements", hint=_ONLY)
    return statements[0]


def _is_listing(statement: Tree) -> bool:
    """Whether it is SHOW TABLES, SHOW ALL TABLES or DESCRIBE without a name."""
    node = statement.get("node")
    table = node.get("from_table") if isinstance(node, dict) else None
    if not isinstance(table, dict) or table.get("type") != "SHOW_REF" or "query" in table:
        return False
    name = str(table.get("table_name", "")).strip('"').lower()
    if name in _LISTINGS and "schema_name" not in table and "catalog_name" not in table:
        return True
    raise QueryError(f"SHOW {name.upper()[:40]} is not available", hint="SHOW TABLES lists the views")


class _Walk:
    """Visits every node of a tree, and collects the views it names."""

    def __init__(self, views: Collection[ViewKey]) -> None:
        self._views = views
        self.found: set[ViewKey] = set()

    def visit(self, value: object, scope: frozenset[str]) -> None:
        """`scope`: the names of WITH that are visible here."""
        if isinstance(value, list):
            for each in value:
                self.visit(each, scope)
        elif isinstance(value, dict):
            self._node(value, scope)

    def _node(self, node: Tree, scope: frozenset[str]) -> None:
        if "cte_map" in node:
            scope = self._with(node["cte_map"], scope)
        kind = node.get("type")
        if kind in ("RECURSIVE_CTE_NODE", "CTE_NODE"):
            scope |= {str(node.get("cte_name", "")).lower()}
        left_out = {"cte_map"}
        if "class" in node:
            if node["class"] == "CONSTANT":
                return
            self._expression(node)
        elif isinstance(kind, str):
            left_out |= self._table(kind, node, scope)
        for key, child in node.items():
            if key not in left_out:
                self.visit(child, scope)

    def _with(self, ctes: object, scope: frozenset[str]) -> frozenset[str]:
        """The scope with these names; each sees those before it."""
        entries = ctes.get("map", []) if isinstance(ctes, dict) else []
        for entry in entries:
            self.visit(entry["value"], scope)
            scope |= {str(entry["key"]).lower()}
        return scope

    def _table(self, kind: str, node: Tree, scope: frozenset[str]) -> set[str]:
        """Check a node that is not an expression; returns which of its children need no visit."""
        if kind == "BASE_TABLE":
            self._view(node, scope)
        elif kind == "TABLE_FUNCTION":
            called = node.get("function")
            assert isinstance(called, dict), node
            _check_function(called, TABLE_FUNCTIONS, "table function")
            self.visit(called.get("children", []), scope)
            return {"function"}
        elif kind == "SHOW_REF":
            if "query" not in node:
                raise QueryError("SHOW TABLES cannot be a part of a statement", hint="run it alone")
        elif kind not in _HARMLESS and not kind.endswith(_TYPE_INFO):
            raise _refused(kind, node)
        return set()

    def _expression(self, node: Tree) -> None:
        kind = str(node["class"])
        if kind == "PARAMETER":
            raise QueryError("there are no values for parameters", hint="write the values into the statement")
        if kind not in _EXPRESSIONS:
            raise _refused(kind, node)
        if "function_name" in node:
            _check_function(node, FUNCTIONS, "function")

    def _view(self, node: Tree, scope: frozenset[str]) -> None:
        schema, name = (str(node.get(key, "")) for key in ("schema_name", "table_name"))
        key = (schema.lower(), name.lower())
        if "catalog_name" in node or "at_clause" in node:
            whole = f"{node['catalog_name']}.{schema}.{name}" if "catalog_name" in node else f"{name} AT"
            raise _unknown_view(whole, self._views, node)
        if not schema and key[1] in scope:
            return
        if key not in self._views:
            raise _unknown_view(f"{schema}.{name}" if schema else name, self._views, node)
        self.found.add(key)


def _check_function(node: Tree, allowed: frozenset[str], what: str) -> None:
    name = str(node.get("function_name", ""))
    is_known = name.lower() in allowed or (bool(node.get("is_operator")) and name in OPERATORS)
    built_in = str(node.get("schema", "")).lower() in _BUILT_IN
    if is_known and built_in and str(node.get("catalog", "")).lower() in ("", "system"):
        return
    if what == "table function":
        hint = choices(name, sorted(allowed), "table functions")
    else:
        near = closest(name.lower(), allowed, cutoff=0.8)
        hint = f"did you mean {near}? " if near else ""
        hint += "functions that compute something from their arguments are available: docs/sql.md"
    raise QueryError(f"the {what} {name[:60]!r} is not available", hint=hint, position=_position(node))


def _refused(kind: str, node: Tree) -> QueryError:
    return QueryError(
        f"{kind.replace('_', ' ').lower()} is not available here", hint=_ONLY, position=_position(node)
    )


def _unknown_view(name: str, views: Collection[ViewKey], node: Tree) -> NotFoundError:
    known = [f"{schema}.{view}" for schema, view in sorted(views)]
    same = [one for one in known if one.partition(".")[2] == name.lower()]
    same.sort(key=lambda one: not one.startswith("raw."))  # the name of a stream alone means its events
    hint = choices(name, known, "views")
    if same and not hint.startswith(f"did you mean {same[0]}"):
        hint = f"did you mean {same[0]}? views: {', '.join(known)}"
    at = _position(node)
    where = "" if at is None else f"character {at + 1}"
    return NotFoundError(f"there is no view {name[:200]!r}", hint=hint, where=where)


def _position(node: Tree) -> int | None:
    found = node.get("query_location")
    return found if isinstance(found, int) else None
