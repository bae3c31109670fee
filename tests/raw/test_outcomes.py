"""What became of an ingestion, told from the tables that a real mill filled."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.pipeline import CONFIG, NOON, NewPlant, Plant, ndjson, request

from tidemill.ingest.landing import Landing
from tidemill.mill import Mill
from tidemill.model.errors import StorageError
from tidemill.model.gateway import Receipt
from tidemill.model.slices import Format
from tidemill.model.time import DAY
from tidemill.raw.outcomes import Decided, EventOutcome, Outcomes, Status, decided
from tidemill.storage.tables.table import Table

ID = "0123456789ab-1"


def receipt_of(slice_id: str, records: int, first: int = 1, *, repeated: bool = False) -> Receipt:
    return Receipt(ID, "requests", None, slice_id, first, records, "window", NOON, repeated)


def land(mill: Mill, *records: Mapping[str, object] | bytes, metadata: str | None = None) -> Receipt:
    landed = Landing(mill.project.warehouse, mill.state).land_bytes(
        "requests",
        ndjson(*records),
        arrival=mill.clock(),
        format=Format.NDJSON,
        source="http",
        name="window",
        metadata=metadata,
    )
    return receipt_of(landed.entry.id, len(records))


def described(found: Decided) -> list[tuple[str | None, str, str | None]]:
    return [(one.event_id, one.outcome, one.code) for one in found.outcomes]


def mixed(mill: Mill) -> tuple[Receipt, Receipt]:
    """A slice of two events, and one with every outcome there is."""
    first = land(mill, request(1), request(2))
    mill.tick()
    second = land(
        mill,
        request(3),
        request(3),  # twice in one slice
        request(1),  # of the slice before
        request(2, api="/other"),  # contradicts the slice before
        request(4, api="/one"),
        request(4, api="/other"),  # contradicts this one
        b'{"event_id": "cut',
        request(5, event_type="other"),
        request(6, ts="soon"),
        request(7, event_id=None),
        request(8, ts=(NOON + 2 * DAY) // 1000),
        request(9, tenant=None),
        request(10, status="fine"),
        b"[1]",
        request(11),
    )
    mill.tick()
    return first, second


def test_each_event_of_an_ingestion_has_its_outcome(plant: Plant) -> None:
    with plant.open() as mill:
        first, second = mixed(mill)
        assert decided(mill.warehouse, first) == Decided(
            Status.DECIDED,
            {"accepted": 2},
            (EventOutcome(0, "e-000001", "accepted"), EventOutcome(1, "e-000002", "accepted")),
        )
        found = decided(mill.warehouse, second)
    assert found.status is Status.DECIDED
    assert found.counts == {"accepted": 3, "duplicate": 2, "conflict": 2, "rejected": 8}
    assert described(found) == [
        ("e-000003", "accepted", None),
        ("e-000003", "duplicate", None),
        ("e-000001", "duplicate", None),
        ("e-000002", "conflict", "conflict"),
        ("e-000004", "accepted", None),
        ("e-000004", "conflict", "conflict"),
        (None, "rejected", "malformed"),
        ("e-000005", "rejected", "unknown_type"),
        ("e-000006", "rejected", "bad_time"),
        (None, "rejected", "missing_id"),
        ("e-000008", "rejected", "skew"),
        ("e-000009", "rejected", "missing_field"),
        ("e-000010", "rejected", "wrong_type"),
        (None, "rejected", "malformed"),
        ("e-000011", "accepted", None),
    ]
    assert [one.index for one in found.outcomes] == list(range(15))
    assert found.outcomes[9].detail == "event_id is missing"


def test_a_conflict_has_both_hashes_and_says_where_the_other_is(plant: Plant) -> None:
    with plant.open() as mill:
        first, second = mixed(mill)
        found = decided(mill.warehouse, second).outcomes
        hashes = {row["line"]: row for row in plant.quarantine() if row["outcome"] == "conflict"}
    before, here = found[3], found[5]
    assert before.detail == f"another payload was accepted from slice {first.slice[:12]} line 2"
    assert here.detail == f"another payload was accepted from slice {second.slice[:12]} line 5"
    for one, line in ((before, 4), (here, 6)):
        assert one.content_hash == hashes[line]["content_hash"]
        assert one.accepted_hash == hashes[line]["accepted_hash"]
        assert len({one.content_hash, one.accepted_hash}) == 2
    assert {(one.content_hash, one.accepted_hash) for one in found if one.outcome != "conflict"} == {
        (None, None)
    }


def test_an_ingestion_is_told_of_its_own_lines_only(plant: Plant) -> None:
    with plant.open() as mill:
        _, second = mixed(mill)
        part = decided(mill.warehouse, replace(second, first=3, records=5))
        assert part.counts == {"accepted": 1, "duplicate": 1, "conflict": 2, "rejected": 1}
        assert [(one.index, one.event_id, one.outcome) for one in part.outcomes] == [
            (0, "e-000001", "duplicate"),
            (1, "e-000002", "conflict"),
            (2, "e-000004", "accepted"),
            (3, "e-000004", "conflict"),
            (4, None, "rejected"),
        ]
        assert decided(mill.warehouse, replace(second, first=15, records=1), each=False) == Decided(
            Status.DECIDED, {"accepted": 1}, ()
        )


def test_what_was_accepted_from_another_window_is_a_duplicate_here(plant: Plant) -> None:
    """The same bytes are one slice, however often they come."""
    with plant.open() as mill:
        first, second = mixed(mill)
        again = decided(mill.warehouse, replace(first, repeated=True))
        assert again.counts == {"duplicate": 2}
        assert described(again) == [("e-000001", "duplicate", None), ("e-000002", "duplicate", None)]
        found = decided(mill.warehouse, replace(second, repeated=True))
        assert found.counts == {"duplicate": 5, "conflict": 2, "rejected": 8}
        assert found.outcomes[3] == decided(mill.warehouse, second).outcomes[3]


def test_before_the_gate_an_ingestion_has_landed(plant: Plant) -> None:
    with plant.open() as mill:
        receipt = land(mill, request(1))
        assert decided(mill.warehouse, receipt) == Decided(Status.LANDED, {}, ())
        mill.tick()
        assert decided(mill.warehouse, receipt).counts == {"accepted": 1}


@pytest.mark.parametrize("format", [Format.PARQUET, Format.ARROW, Format.JSON, Format.CSV])
def test_a_slice_of_another_format_is_told_of_as_well(plant: Plant, format: Format) -> None:
    rows = [request(1), request(2), request(1), request(2, region="moon"), request(3, event_type="x")]
    with plant.open() as mill:
        mill.land("requests", ndjson(request(1)))
        landed = mill.land("requests", content_of(rows, format), format=format)
        mill.tick()
        found = decided(mill.warehouse, receipt_of(landed.entry.id, 5))
    assert described(found) == [
        ("e-000001", "duplicate", None),
        ("e-000002", "accepted", None),
        ("e-000001", "duplicate", None),
        ("e-000002", "conflict", "conflict"),
        ("e-000003", "rejected", "unknown_type"),
    ]


def content_of(rows: Sequence[Mapping[str, object]], format: Format) -> bytes:
    if format is Format.JSON:
        return json.dumps(rows, indent=1).encode()
    if format is Format.CSV:
        lines = [rows[0].keys(), *(row.values() for row in rows)]
        return "".join(",".join(map(str, line)) + "\n" for line in lines).encode()
    table, sink = pa.Table.from_pylist(list(rows)), io.BytesIO()
    if format is Format.PARQUET:
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
    return sink.getvalue()


def test_a_slice_that_cannot_be_read_is_rejected_with_its_error(plant: Plant) -> None:
    with plant.open() as mill:
        broken = mill.land("requests", b"event_id,event_id\n1,2\n3,4\n", name="broken.csv").entry
        receipt = Receipt("i1", "requests", None, broken.id, 1, 2, "w1", NOON, repeated=False)
        mill.tick()
        error = mill.slice(broken.id).error
        found = decided(mill.warehouse, receipt)
    assert error is not None
    assert found.status is Status.FAILED
    assert found.counts == {"rejected": 2}
    assert found.outcomes == (
        EventOutcome(0, None, "rejected", "malformed", error),
        EventOutcome(1, None, "rejected", "malformed", error),
    )


def test_what_was_taken_back_has_no_outcomes_and_what_it_stood_against_is_judged_anew(plant: Plant) -> None:
    with plant.open() as mill:
        first = land(mill, request(1), request(2))
        mill.tick()
        second = land(mill, request(1), request(2, api="/other"))
        mill.tick()
        assert decided(mill.warehouse, second).counts == {"duplicate": 1, "conflict": 1}
        mill.retract(mill.plan_retraction(first.slice, "wrong"))
        assert decided(mill.warehouse, first) == Decided(Status.RETRACTED, {}, ())
        assert decided(mill.warehouse, second).status is Status.LANDED
        mill.tick()
        assert decided(mill.warehouse, second).counts == {"accepted": 2}


def test_a_slice_that_is_being_taken_back_has_landed(plant: Plant) -> None:
    """Its batch has left raw; the ledger does not say so yet."""
    with plant.open() as mill:
        receipt = land(mill, request(1), request(1))
        mill.tick()
        raw = Table.existing(plant.warehouse / "raw" / "requests")
        assert raw is not None
        raw.commit([], list(raw.snapshot().parts), info={}, now=NOON)
        assert decided(mill.warehouse, receipt) == Decided(Status.LANDED, {}, ())


def test_a_ledger_that_does_not_know_the_slice_is_an_error(plant: Plant) -> None:
    with plant.open() as mill, pytest.raises(StorageError, match="does not know slice"):
        decided(mill.warehouse, receipt_of("f" * 64, 1))


# -- what the tables do not hold any more


RETAINED = CONFIG + "    retention: {raw: 1d, quarantine: 1d}\n"


def test_accepted_events_whose_rows_have_expired_are_no_duplicates(new_plant: NewPlant) -> None:
    plant = new_plant(RETAINED)
    with plant.open() as mill:
        alone = land(mill, request(1), request(2))
        shared = land(mill, request(2), request(3))
        newer = land(mill, request(2), request(13_000), request(4, event_type="x"))
        mill.tick()
        plant.clock.set(NOON + 3 * DAY)
        mill.land("requests", ndjson(request(60_000)))
        mill.tick()
        mill.retention.expire(mill.retention.plan())
        found = [decided(mill.warehouse, one) for one in (alone, shared, newer)]
    assert described(found[0]) == [("e-000001", "accepted", None), ("e-000002", "accepted", None)]
    assert described(found[1]) == [("e-000002", "unknown", None), ("e-000003", "unknown", None)]
    assert found[1].counts == {"unknown": 2}
    assert "expired" in str(found[1].outcomes[0].detail)
    assert described(found[2]) == [  # its second event is of a day that is kept
        ("e-000002", "unknown", None),
        ("e-013000", "accepted", None),
        ("e-000004", "unknown", None),
    ]


def test_events_that_left_quarantine_are_no_duplicates(plant: Plant) -> None:
    with plant.open() as mill:
        only_bad = land(mill, request(1, event_type="x"), request(2, event_type="y"))
        conflict = land(mill, request(3), request(3, api="/other"))
        both = land(mill, request(3), request(4, event_type="x"))
        mill.tick()
        mill.replay("requests")
        found = [decided(mill.warehouse, one) for one in (only_bad, conflict, both)]
    assert described(found[0]) == [
        ("e-000001", "rejected", "unknown_type"),
        ("e-000002", "rejected", "unknown_type"),
    ]
    assert described(found[1]) == [("e-000003", "accepted", None), ("e-000003", "conflict", "conflict")]
    assert described(found[2]) == [("e-000003", "unknown", None), ("e-000004", "unknown", None)]


def test_what_was_told_before_is_remembered_when_it_leaves_quarantine(plant: Plant) -> None:
    with plant.open() as mill:
        receipt = land(mill, request(3), request(3), request(4, event_type="x"))
        mill.tick()
        before = decided(mill.warehouse, receipt)
        mill.replay("requests")
        assert decided(mill.warehouse, receipt) == before
        assert before.counts == {"accepted": 1, "duplicate": 1, "rejected": 1}


def test_a_stream_that_knows_no_repeats_has_no_ids_to_tell(new_plant: NewPlant) -> None:
    plant = new_plant(CONFIG.replace("identity: event_id", "identity: event_id\n    gate: none"))
    with plant.open() as mill:
        receipt = land(mill, request(1), request(1), request(2, event_type="x"))
        mill.tick()
        assert described(decided(mill.warehouse, receipt)) == [
            (None, "accepted", None),
            (None, "accepted", None),
            (None, "rejected", "unknown_type"),
        ]


@pytest.mark.parametrize(
    ("identity", "changes", "id"),
    [
        ("event_id", {"event_id": 'a "b" \u00e9'}, 'a "b" \u00e9'),
        ("status", {"status": 7}, "7"),
        ("status", {"status": 0}, "0"),
        ("[event_id, status]", {"event_id": "\u00e9", "status": -3}, '["\u00e9",-3]'),
    ],
)
def test_a_duplicate_has_the_id_that_the_accepted_event_has(
    new_plant: NewPlant, identity: str, changes: Mapping[str, object], id: str
) -> None:
    plant = new_plant(CONFIG.replace("identity: event_id", f"identity: {identity}"))
    with plant.open() as mill:
        spelled = json.dumps(request(1, **changes)).replace('"status": 7', '"status": 7.0').encode()
        receipt = land(mill, request(1, **changes), spelled)
        mill.tick()
        assert described(decided(mill.warehouse, receipt)) == [
            (id, "accepted", None),
            (id, "duplicate", None),
        ]


def test_a_slice_that_is_gone_still_tells_outcomes_without_the_ids_that_only_it_had(plant: Plant) -> None:
    with plant.open() as mill:
        receipt = land(mill, request(1), request(1))
        mill.tick()
        (plant.warehouse / mill.slice(receipt.slice).slice.path).unlink()
        assert described(decided(mill.warehouse, receipt)) == [
            ("e-000001", "accepted", None),
            (None, "duplicate", None),
        ]


# -- many askers


def test_what_is_asked_for_again_is_not_read_again(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask at once, within the memory that is allowed."""
    with plant.open() as mill:
        receipts = [land(mill, *(request(100 * n + i) for i in range(50))) for n in range(6)]
        mill.tick()
        reads: list[str] = []
        monkeypatch.setattr(pq, "read_table", _counting(reads))
        desk = Outcomes(mill.warehouse)
        answers: list[Decided] = []
        threads = [
            threading.Thread(target=lambda: answers.append(desk.decided(receipts[0]))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [decided(mill.warehouse, receipts[0])] * 8
        once = len(reads) // 2  # by the desk, and by the one of the mill
        reads.clear()
        one = desk.held
        small = Outcomes(mill.warehouse, cache_bytes=3 * one)
        for receipt in receipts:
            assert small.decided(receipt).counts == {"accepted": 50}
        assert len(reads) == 6 * once
        assert 2 * one <= small.held <= 3 * one
        reads.clear()
        assert small.decided(receipts[-1], each=False).counts == {"accepted": 50}
        assert reads == []
        assert small.decided(receipts[0]).counts == {"accepted": 50}
        assert len(reads) == once


def _counting(reads: list[str]) -> object:
    plain = pq.read_table

    def read_table(source: str, **how: object) -> pa.Table:
        reads.append(source)
        return plain(source, **how)

    return read_table


def test_only_parts_of_its_own_batch_are_read(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    with plant.open() as mill:
        receipts = []
        for n in range(8):
            receipts += [land(mill, request(10 * n)), land(mill, request(10 * n + 1))]
            mill.tick()
        reads: list[str] = []
        monkeypatch.setattr(pq, "read_table", _counting(reads))
        assert decided(mill.warehouse, receipts[5]).counts == {"accepted": 1}
        batch = mill.slice(receipts[5].slice).batch
    assert [Path(path).name.split("-")[0] for path in reads] == [batch]


def test_a_large_slice_is_named_as_far_as_is_cheap(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.raw.accept.decisions.READ_BYTES", 1)
    monkeypatch.setattr("tidemill.raw.accept.decisions._CHUNK", 400)
    with plant.open() as mill:
        receipt = land(mill, *([request(1)] * 10))
        mill.tick()
        found = decided(mill.warehouse, receipt)
    assert found.counts == {"accepted": 1, "duplicate": 9}
    named = [one.event_id for one in found.outcomes]
    assert named[0] == named[1] == "e-000001"
    assert named[-1] is None


# -- whose it is that was not accepted


def test_a_refused_record_is_of_the_tenant_that_it_names(plant: Plant) -> None:
    """Whatever else is wrong with it; one that can be read in two ways names nobody."""
    with plant.open() as mill:
        land(
            mill,
            request(1, tenant="acme", event_type="x"),
            request(2, tenant="globex", event_id=None),
            request(3, tenant="acme"),
            request(3, tenant="acme", api="/other"),
            request(4, tenant=None),
            request(5, tenant=7),
            b'{"tenant": "acme", "cut',
            b'{"tenant": "acme", "tenant": "globex"}',
        )
        mill.tick()
        described = [(row["reason"], row["tenant"]) for row in plant.quarantine()]
    assert described == [
        ("unknown_type", "acme"),
        ("missing_id", "globex"),
        ("conflict", "acme"),
        ("missing_field", None),
        ("missing_field", None),
        ("malformed", None),
        ("malformed", None),
    ]


def test_all_that_is_refused_of_a_stream_of_one_tenant_is_its_own(new_plant: NewPlant) -> None:
    plant = new_plant(CONFIG.replace("tenant: {column: tenant}", "tenant: {value: acme}"))
    with plant.open() as mill:
        land(mill, request(1, tenant="globex", event_type="x"), b"no JSON")
        mill.tick()
        assert [row["tenant"] for row in plant.quarantine()] == ["acme", "acme"]


def test_a_tenant_is_shown_what_it_sent_and_what_names_it(plant: Plant) -> None:
    """By the row itself, else by whose token brought it, as the window recorded it; else it is nobody's."""
    unnamed = json.dumps({"window": {"id": "w", "unnamed": [[2, "acme"], [3, "globex"]]}})
    with plant.open() as mill:
        land(
            mill,
            request(1, tenant="acme", event_type="x"),
            b"acme's",
            b"globex's",
            b"nobody's",
            request(2, tenant="globex", event_type="x"),
            metadata=unnamed,
        )
        mill.tick()
        lines = {
            tenant: mill.quarantine("requests", tenant=tenant).column("line").to_pylist()
            for tenant in ("acme", "globex", "initech", None)
        }
        some = mill.quarantine("requests", tenant="acme", reason="malformed", limit=1)
    assert lines == {"acme": [1, 2], "globex": [3, 5], "initech": [], None: [1, 2, 3, 4, 5]}
    assert some.column("payload").to_pylist() == [b"acme's"]


def test_what_is_replayed_stays_with_who_sent_it(plant: Plant) -> None:
    unnamed = json.dumps({"window": {"id": "w", "unnamed": [[1, "acme"], [3, "globex"]]}})
    with plant.open() as mill:
        land(mill, b"acme's", request(1, tenant="acme", event_type="x"), b"globex's", metadata=unnamed)
        land(mill, b"nobody's")
        mill.tick()
        for _ in range(2):
            assert mill.replay("requests")
            mill.tick()
            payloads = {
                tenant: sorted(mill.quarantine("requests", tenant=tenant).column("payload").to_pylist())[:1]
                for tenant in ("acme", "globex", "initech")
            }
            assert payloads == {"acme": [b"acme's"], "globex": [b"globex's"], "initech": []}
            assert mill.quarantine("requests", tenant="acme").num_rows == 2
            assert mill.quarantine("requests").num_rows == 4
