"""A project whose state is on a PostgreSQL server: the same warehouse, reports and results as with a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.pipeline import NOON, STREAMING, ndjson, request, slice_of
from tests.support.postgres_server import PostgresServer

from tidemill.mill import Mill, recover
from tidemill.model.errors import StorageError
from tidemill.testing import FakeClock

CONFIG = STREAMING + "    aggregation_span: 1h\n"
QUERY = "SELECT count FROM requests USING ROLLUP 1m GROUP BY region SINCE 10d"


def project(root: Path, state: str) -> Path:
    root.mkdir()
    (root / "tidemill.yaml").write_text(CONFIG + state)
    return root


def drive(root: Path) -> None:
    """Slices with late, repeated and bad records, one that fails, one that is retracted."""
    clock = FakeClock(NOON)
    with Mill.open(root, clock=clock) as mill:
        for number in range(4):
            mill.land("requests", slice_of(number), name=f"slice {number}")
            mill.tick()
        mill.land("requests", b"event_id,event_id\n1,2\n", name="broken.csv")
        gone = mill.land("requests", ndjson(request(9001), request(0)), name="gone")
        mill.run_until_idle()
        mill.retract(mill.plan_retraction(gone.entry.id, "sent by mistake"))
        mill.run_until_idle()


@pytest.fixture(scope="module")
def both(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    folder = tmp_path_factory.mktemp("both")
    schema = postgres_server.new_schema()
    on_server = f"state: {{url: {postgres_server.url}, schema: {schema}}}\n"
    roots = [project(folder / "file", ""), project(folder / "server", on_server)]
    for root in roots:
        drive(root)
    yield roots
    postgres_server.execute(f"DROP SCHEMA {schema} CASCADE")


def open_at(root: Path) -> Mill:
    return Mill.open(root, clock=FakeClock(NOON))


def seen(root: Path) -> dict[str, object]:
    """What commands, the console and the API read, without the names of files, which are drawn."""
    with open_at(root) as mill:
        [status] = mill.status()
        timeline = mill.timeline("requests")
        return {
            "ledger": [(entry.seq, entry.slice.name, entry.status, entry.counts) for entry in mill.ledger()],
            "totals": dict(mill.state.totals("requests")),
            "status": status,
            "windows": [
                (window.key, window.phase, window.desired, window.rows)
                for window in mill.state.windows("requests")
            ],
            "timeline": (timeline.total, timeline.extent, timeline.gaps),
            "answer": mill.ask(QUERY, all_tenants=True).table.to_pylist(),
            "verified": mill.verify().ok,
            "events": [(event.type, event.stream) for event in mill.state.outbox()],
        }


def test_a_server_and_a_file_say_the_same(both: list[Path]) -> None:
    file, server = map(seen, both)
    assert file == server
    assert file["verified"]
    assert not (both[1] / "warehouse" / "state.db").exists()


def test_a_new_and_empty_server_is_filled_by_recover(
    both: list[Path], postgres_server: PostgresServer
) -> None:
    root = both[1]
    before = seen(root)
    with open_at(root) as mill:
        dumped, schema = mill.state.dump(), mill.project.state.schema_name
    postgres_server.execute(f"DROP SCHEMA {schema} CASCADE")
    with pytest.raises(
        StorageError, match=rf"no state in postgresql://127.0.0.1:\d+/postgres schema {schema}"
    ):
        open_at(root)
    recovered = recover(root, clock=FakeClock(NOON))
    assert recovered.state.endswith(f"schema {schema}")
    assert not recovered.left
    with open_at(root) as mill:
        mill.run_until_idle()
        again = mill.state.dump()
    for dump in (dumped, again):
        dump["outbox"].sort(key=lambda event: str(event["id"]))
    assert again == dumped
    after = seen(root)
    assert {**after, "events": 0} == {**before, "events": 0}
    left = postgres_server.execute(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}_new'")
    assert left == []
