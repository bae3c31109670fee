"""The names on disk: those that earlier versions wrote are found for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.model.errors import InputError
from tidemill.model.time import HOUR, parse_instant
from tidemill.model.windows import WindowKey
from tidemill.storage import layout

ROOT = Path("w")
NOON = parse_instant("2024-01-15T12:00:00Z")
NOON_WINDOW = WindowKey("requests", NOON, HOUR)
LOG = layout.gateway_logs(ROOT) / "3f9c0d2b7a11"
DISK = {
    "state.db": layout.state(ROOT),
    "state.db.new": layout.fresh_state(ROOT),
    "warehouse.id": layout.identity(ROOT),
    ".tick.lock": layout.tick_lock(ROOT),
    "access/tokens.json": layout.tokens(ROOT),
    "access/seal.key": layout.seal_key(ROOT),
    "wal/3f9c0d2b7a11/00000007.wal": layout.gateway_segment(LOG, 7),
    "wal/3f9c0d2b7a11/status.json": layout.gateway_status(LOG),
    "wal/3f9c0d2b7a11.gone": layout.removed_gateway_log(LOG),
    "slices": layout.slices(ROOT),
    "slices/requests/2024-01-15": ROOT / layout.slices_of_day("requests", NOON),
    "slices/_orphans/requests": layout.orphans(ROOT, "requests"),
    "slices/.inflight": layout.landing_notes(ROOT),
    "slices/landings.ndjson": layout.slice_log(ROOT, layout.LANDINGS),
    "slices/compressed.json": layout.compressed_slices(ROOT),
    "slices/.landings.ndjson.lock": layout.slice_log_lock(ROOT, layout.LANDINGS),
    "slices/retractions.ndjson": layout.slice_log(ROOT, layout.RETRACTIONS),
    "slices/expiries.ndjson": layout.slice_log(ROOT, layout.EXPIRIES),
    "slices/declarations.ndjson": layout.slice_log(ROOT, layout.DECLARATIONS),
    "gate/requests": layout.gate(ROOT, "requests"),
    "sealed/requests": layout.sealed(ROOT, "requests"),
    "trails/requests": layout.state_history(ROOT, "requests"),
    "trails/requests/trails.log": layout.state_history_log(layout.state_history(ROOT, "requests")),
    "trails/requests/users.roster": layout.admitted_keys(layout.state_history(ROOT, "requests"), "users"),
    "raw/requests": layout.raw(ROOT, "requests"),
    "raw/requests/_staging": layout.staging(layout.raw(ROOT, "requests")),
    "raw/requests/_staging/torn": layout.torn_log_entries(layout.raw(ROOT, "requests")),
    "raw/requests/_packing": layout.packing(layout.raw(ROOT, "requests")),
    "quarantine/requests": layout.quarantine(ROOT, "requests"),
    "rollups/requests": layout.rollups(ROOT, "requests"),
    "index/requests": layout.index(ROOT, "requests"),
    "chains/requests": layout.chains(ROOT, "requests"),
    "windows/requests/visits": layout.results(ROOT, "requests", "visits"),
    "windows/requests/visits/_open": layout.open_rows(layout.results(ROOT, "requests", "visits")),
    "datasets/requests/aggregation": ROOT / layout.datasets("requests"),
    "datasets/requests/aggregation/20240115T120000Z_1h": ROOT / layout.dataset_folder(NOON_WINDOW),
    "datasets/requests/aggregation/20240115T120000Z_1h/r3.arrow": ROOT / layout.dataset(NOON_WINDOW, 3),
    "datasets/requests/_staging": layout.dataset_staging(ROOT, "requests"),
    "datasets/requests/_empty": layout.empty_datasets(ROOT, "requests"),
    "datasets/requests/_empty/windows.ndjson": layout.empty_datasets_log(
        layout.empty_datasets(ROOT, "requests")
    ),
    "datasets/requests/_empty/.windows.lock": layout.empty_datasets_lock(
        layout.empty_datasets(ROOT, "requests")
    ),
    "datasets/requests/_empty/ab.arrow": layout.empty_dataset(layout.empty_datasets(ROOT, "requests"), "ab"),
}


@pytest.mark.parametrize("name", DISK)
def test_paths_are_those_of_earlier_versions(name: str) -> None:
    assert DISK[name] == ROOT / name


def test_suffixes_are_those_of_earlier_versions() -> None:
    assert (layout.RUN_SUFFIX, layout.KEYS_SUFFIX, layout.NOTE_SUFFIX) == (".run", ".keys", ".note")
    assert (layout.OBSERVATIONS_SUFFIX, layout.ADMITTED_SUFFIX) == (".trail", ".roster")
    assert (layout.OPEN_ROWS_SUFFIX, layout.OPEN_SUMS_SUFFIX) == (".arrow", ".open")


@pytest.mark.parametrize("stream", ["../other", "a/b", "", ".."])
def test_a_stream_that_is_no_name_has_no_folder_for_slices(stream: str) -> None:
    with pytest.raises(InputError):
        layout.slices_of_day(stream, NOON)


def test_names_are_told_from_others() -> None:
    assert layout.is_gateway_log(LOG)
    assert not layout.is_gateway_log(layout.removed_gateway_log(LOG))
    assert layout.is_removed_gateway_log(layout.removed_gateway_log(LOG))
    assert not layout.is_removed_gateway_log(LOG.with_name("other.gone"))
    assert layout.gateway_segment_number(layout.gateway_segment(LOG, 123_456_789)) == 123_456_789
    assert layout.gateway_segment_number(layout.gateway_status(LOG)) is None
    assert layout.dataset_revision(layout.dataset_name(12)) == 12
    assert [layout.dataset_revision(name) for name in ("r0.arrow", "r1.arrow.tmp", "1.arrow")] == [None] * 3
    assert layout.is_empty_dataset("datasets/requests/_empty/ab.arrow")
    assert not layout.is_empty_dataset(layout.dataset(NOON_WINDOW, 1))
    assert layout.is_orphan(layout.orphans(ROOT, "requests") / "ab.ndjson")
