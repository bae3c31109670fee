"""Whose a record in quarantine is, by itself or by what its window recorded."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tidemill.raw.quarantine_tenants import rows_of_tenant, unnamed_lines
from tidemill.raw.tables import QUARANTINE

WINDOW = json.dumps({"window": {"id": "w", "unnamed": [[2, "acme"], [3, "globex"], [4, "acme"]]}})


def rows(*reported: tuple[str, int, str | None]) -> pa.Table:
    named = [dict(zip(("slice", "line", "tenant"), one, strict=True)) for one in reported]
    return pa.Table.from_pylist(named, schema=QUARANTINE)


def places(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table.column("slice").to_pylist(), table.column("line").to_pylist(), strict=True))


def test_a_row_is_of_the_tenant_it_names_whoever_sent_it() -> None:
    """The gateway lets nobody name another; what an operator landed is whose it says."""
    found = rows_of_tenant("acme", lambda _: WINDOW)(
        rows(("s", 1, "acme"), ("s", 2, "globex"), ("s", 3, "acme"))
    )
    assert places(found) == [("s", 1), ("s", 3)]


def test_a_row_that_names_nobody_is_of_who_sent_it_or_nobodys() -> None:
    reported = rows(("s", 1, None), ("s", 2, None), ("s", 3, None), ("s", 4, None), ("other", 2, None))
    metadata = {"s": WINDOW, "other": None}
    assert places(rows_of_tenant("acme", metadata.get)(reported)) == [("s", 2), ("s", 4)]
    assert places(rows_of_tenant("globex", metadata.get)(reported)) == [("s", 3)]
    assert places(rows_of_tenant("initech", metadata.get)(reported)) == []


def test_no_rows_are_no_rows() -> None:
    assert rows_of_tenant("acme", lambda _: None)(QUARANTINE.empty_table()).num_rows == 0


@pytest.mark.parametrize(
    "metadata",
    [
        None, "", "no JSON", "7", "[]", "{}", '{"window": 1}', '{"window": {}}', '{"window": {"unnamed": 3}}',
        '{"window": {"unnamed": [3, [1], ["2", "acme"], [1, "acme", 2], [1, null]]}}',
    ],
)  # fmt: skip
def test_metadata_of_another_kind_names_nobody(metadata: str | None) -> None:
    assert unnamed_lines(metadata, "acme") == frozenset()
