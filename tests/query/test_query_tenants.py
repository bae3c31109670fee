"""Whose events a question is about: one rule, told by statistics where they can tell."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemill.model.errors import InputError, NotFoundError
from tidemill.query import tenants
from tidemill.query.tenants import tenant_for, tenants_of
from tidemill.storage.tables.parts import write_part
from tidemill.storage.tables.snapshot import Snapshot
from tidemill.storage.tables.table import Table

LONG = "x" * 100


SCHEMA = pa.schema([("level", pa.string()), ("tenant", pa.string())])


@pytest.fixture
def table(tmp_path):
    """A table with a part for each of the lists of tenants."""

    def make(*parts: list[str]) -> Snapshot:
        found = Table.open(
            tmp_path / "rollups", schema=SCHEMA, partition_by=("level",), name="t", description=""
        )
        folder = found.staging("made")
        staged = [
            write_part(
                folder,
                f"{found.version}-{n}.parquet",
                pa.table({"tenant": pa.array(sorted(names), pa.string())}),
                partition={"level": "7d"},
                footer={"kind": "tiles"},
                stats_columns=("tenant",),
            )
            for n, names in enumerate(parts)
        ]
        found.commit(found.publish(staged), list(found.snapshot().parts), info={})
        return found.snapshot()

    return make


def whose(tables: list[Snapshot], tenant: str | None = None, declared: str | None = None, **more: bool):
    return tenant_for("visits", tenant, declared, tables, **{"all_tenants": False, **more})


def test_the_only_tenant_need_not_be_named(table, monkeypatch):
    monkeypatch.setattr(tenants, "_read", None)  # statistics tell
    assert whose([table(["acme"], ["acme", "acme"])]) == "acme"
    assert whose([], declared="acme") == "acme"
    assert whose([]) is None


def test_a_name_too_long_for_statistics_is_looked_up(table):
    assert whose([table([LONG])]) == LONG
    assert whose([table([LONG, f"{LONG}y"])], f"{LONG}y") == f"{LONG}y"
    with pytest.raises(NotFoundError):
        whose([table([LONG])], f"{LONG}y")


def test_of_several_one_is_named_or_all_are_asked_for(table):
    several = [table(["acme", "globex", "initech"])]
    with pytest.raises(InputError, match="has events of several tenants") as caught:
        whose(several)
    assert caught.value.hint.endswith("tenants: acme, globex, initech")
    assert whose(several, all_tenants=True) is None
    assert [whose(several, name) for name in ("acme", "globex")] == ["acme", "globex"]
    with pytest.raises(InputError, match="both"):
        whose(several, "acme", all_tenants=True)


def test_one_that_is_not_there_is_refused_with_those_that_are(table):
    with pytest.raises(NotFoundError, match="has no events of a tenant 'glbex'") as caught:
        whose([table(["acme", "globex", "initech"])], "glbex")
    assert caught.value.hint == "did you mean globex? tenants: acme, globex, initech"
    with pytest.raises(NotFoundError) as caught:
        whose([table([f"t{n:03}" for n in range(50)])], "zzz")
    assert caught.value.hint == f"tenants: {', '.join(f't{n:03}' for n in range(20))} and 30 more"
    with pytest.raises(NotFoundError) as caught:
        whose([], "globex", declared="acme")
    assert caught.value.hint == "tenants: acme"
    assert whose([], "globex") == "globex"  # nothing is known yet


def test_a_tenant_of_any_table_is_there(table, tmp_path):
    rollups = table(["acme", "globex"])
    (tmp_path / "raw").mkdir()
    raw = Snapshot(tmp_path / "raw", 0, ())
    assert whose([raw, rollups], "globex") == "globex"
    assert tenants_of([raw, rollups]) == {"acme", "globex"}
