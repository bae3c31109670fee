"""Faults of one stream stay there: plugins that misbehave, a table that somebody deleted. The others go on,
it is logged once and tried again later, and `status` and the metrics show it."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.pipeline import CONFIG, NOON, NewPlant, Plant, ndjson, request

from tidemill import eventtime
from tidemill.ingest.landing_log import as_fields
from tidemill.mill import Mill, recover
from tidemill.model.errors import ConfigError, StorageError
from tidemill.model.failpoints import observed
from tidemill.model.slices import SliceStatus
from tidemill.model.time import MINUTE, SECOND

SECOND_STREAM = CONFIG + CONFIG.split("streams:\n")[1].replace(
    "  requests:\n    schema", "  visits:\n    schema"
)
CUSTOM = SECOND_STREAM.replace("unixtimestamp_ms", "beats", 1)


def beats(value: object) -> int:
    """A parser with every fault a third party's can have."""
    match value:
        case 1:
            return {}[value]  # type: ignore[no-any-return]
        case 2:
            return 1.5  # type: ignore[return-value]
        case 3:
            return True
        case 4:
            raise RuntimeError
    return NOON - int(str(value)) * SECOND


@pytest.fixture
def with_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventtime.registry, "_parsers", dict(eventtime.registry._parsers))
    eventtime.register("beats", beats)


@pytest.mark.usefixtures("with_beats")
def test_a_parser_that_raises_or_returns_no_whole_number_rejects_that_record(new_plant: NewPlant) -> None:
    plant = new_plant(CUSTOM)
    with plant.open() as mill:
        mill.land("requests", ndjson(*(request(number, ts=number) for number in range(1, 7))))
        mill.land("visits", ndjson(request(1)))
        (report, *_) = mill.run_until_idle()
        assert report.faults == []
        assert {s.stream: (s.totals["accepted"], s.totals["rejected"]) for s in mill.status()} == {
            "requests": (2, 4),
            "visits": (1, 0),
        }
        rejected = mill.quarantine("requests").select(["reason", "detail"]).to_pylist()
    assert [(row["reason"], row["detail"]) for row in rejected] == [
        ("bad_time", "ts is no beats: the parser failed with KeyError: 1"),
        ("bad_time", "ts is no beats: the parser returned 1.5, not whole microseconds"),
        ("bad_time", "ts is no beats: the parser returned True, not whole microseconds"),
        ("bad_time", "ts is no beats: the parser failed with RuntimeError: "),
    ]


@pytest.fixture
def absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package whose parser and trigger are not there."""
    info = tmp_path / "tidemill_gone-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tidemill-gone\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tidemill.eventtime]\nbeats = tidemill_gone:beats\n[tidemill.triggers]\ntide = tidemill_gone:tide\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return


@pytest.mark.usefixtures("absent")
def test_a_plugin_that_cannot_be_loaded_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "tidemill.yaml"
    file.write_text(CUSTOM.replace("version: 1", "version: 1\ngateway: {triggers: {custom: [tide]}}"))
    with pytest.raises(ConfigError) as caught:
        Mill.open(tmp_path)
    reported = str(caught.value)
    assert "streams.requests.event_time.type: event-time type 'beats' cannot be loaded from" in reported
    assert "No module named 'tidemill_gone'" in reported
    assert "gateway.triggers.custom[0]: trigger 'tide' cannot be loaded from tidemill_gone:tide" in reported
    assert f"{file}:" in reported


# -- a stream whose raw is gone


@pytest.fixture
def broken(new_plant: NewPlant) -> Plant:
    """Two streams with a batch each; then the raw table of the first is deleted, and more lands in both."""
    plant = new_plant(SECOND_STREAM)
    with plant.open() as mill:
        for stream in ("requests", "visits"):
            mill.land(stream, ndjson(request(1)))
        mill.run_until_idle()
    shutil.rmtree(plant.warehouse / "raw" / "requests")
    with plant.open() as mill:
        for stream in ("requests", "visits"):
            mill.land(stream, ndjson(request(2)))
    return plant


def test_a_broken_stream_does_not_hide_the_work_of_the_others(broken: Plant) -> None:
    with broken.open() as mill:
        report = mill.tick()
        assert [done.stream for done in report.streams if not done.idle] == ["visits"]
        (fault,) = report.faults
        assert (fault.stream, fault.code, fault.attempts) == ("requests", "damaged", 1)
        assert (fault.since, fault.next_try) == (NOON, NOON + SECOND)
        assert "raw" in fault.message
        assert fault.hint
        assert report.errors[0].message in fault.message
        meter = mill.meter
        meter.tick(report)
        assert 'tidemill_stream_fault{code="damaged",output="raw",stream="requests"} 1.0' in meter.text()
        labels = '{code="damaged",output="raw",stream="requests"}'
        assert f"tidemill_stream_faults_total{labels} 1.0" in meter.text()
        assert 'tidemill_records_total{outcome="accepted",stream="visits"} 1.0' in meter.text()
    with broken.open() as mill:  # another process sees it
        assert {one.stream: one.faults for one in mill.status()} == {"requests": [fault], "visits": []}


def test_a_daemon_logs_it_once_and_waits_longer_each_time(
    broken: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    with broken.open() as mill, caplog.at_level(logging.INFO, "tidemill.storage.state.faults"):
        tried = []
        for second in range(40):
            broken.clock.set(NOON + second * SECOND)
            tried += [second for fault in mill.tick(patient=True).faults if fault.stream == "requests"]
        assert tried == [0, 1, 3, 7, 15, 31]
        reported = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert [getattr(record, "stream", None) for record in reported] == ["requests"]
        for _ in range(10):
            broken.clock.advance(5 * MINUTE)
            mill.tick(patient=True)
        (fault,) = mill.tick().faults  # at once, for somebody who asks for it
        assert fault.next_try == broken.clock() + 5 * MINUTE
        assert fault.since == NOON


def test_a_stream_that_works_again_has_no_fault(
    new_plant: NewPlant, caplog: pytest.LogCaptureFixture
) -> None:
    plant = new_plant(SECOND_STREAM)
    with plant.open() as mill:
        mill.land("requests", ndjson(request(1)))
        mill.run_until_idle()
        raw = plant.warehouse / "raw" / "requests"
        raw.rename(plant.root / "aside")
        mill.land("requests", ndjson(request(2)))
    with plant.open() as mill, caplog.at_level(logging.INFO, "tidemill.storage.state.faults"):
        assert len(mill.tick().faults) == 1
        shutil.rmtree(raw, ignore_errors=True)
        (plant.root / "aside").rename(raw)
    with plant.open() as mill, caplog.at_level(logging.INFO, "tidemill.storage.state.faults"):
        assert mill.run_until_idle()[-1].faults == []
        assert mill.status()[0].faults == []
        assert mill.status()[0].totals["accepted"] == 2
    assert any("works again" in record.getMessage() for record in caplog.records)


def test_a_retraction_that_cannot_be_finished_holds_up_its_own_stream_only(new_plant: NewPlant) -> None:
    plant = new_plant(SECOND_STREAM)

    def die(point: str) -> None:
        if point == "retract.after_log":
            raise RuntimeError("it died here")

    with plant.open() as mill:
        entry = mill.land("requests", ndjson(request(1))).entry
        mill.land("visits", ndjson(request(1)))
        mill.run_until_idle()
        with observed(die), pytest.raises(RuntimeError):
            mill.retract(mill.plan_retraction(entry.id, "wrong file"))
    hidden = (plant.warehouse / "raw" / "requests").rename(plant.root / "hidden")
    with plant.open() as mill:
        mill.land("visits", ndjson(request(2)))
        report = mill.tick()
        assert [fault.stream for fault in report.faults] == ["requests"]
        assert mill.state.totals("visits")["accepted"] == 2
        assert mill.verify("visits").ok
    shutil.rmtree(plant.warehouse / "raw" / "requests", ignore_errors=True)
    hidden.rename(plant.warehouse / "raw" / "requests")
    with plant.open() as mill:
        mill.run_until_idle()
        assert mill.slice(entry.id).status is SliceStatus.RETRACTED
        assert mill.verify().ok


def interrupted(new_plant: NewPlant) -> tuple[Plant, str, str]:
    """A retraction in one stream that died, and cannot be finished since its raw is not there; and a slice
    of each stream."""
    plant = new_plant(SECOND_STREAM)

    def die(point: str) -> None:
        if point == "retract.after_log":
            raise RuntimeError("it died here")

    with plant.open() as mill:
        broken = mill.land("requests", ndjson(request(1))).entry.id
        sound = mill.land("visits", ndjson(request(1), b"{")).entry.id
        mill.land("visits", ndjson(request(2)))
        mill.run_until_idle()
        with observed(die), pytest.raises(RuntimeError):
            mill.retract(mill.plan_retraction(broken, "wrong file"))
    (plant.warehouse / "raw" / "requests").rename(plant.root / "hidden")
    return plant, broken, sound


def test_a_slice_is_retracted_while_a_retraction_of_another_stream_cannot_be_finished(
    new_plant: NewPlant,
) -> None:
    plant, broken, sound = interrupted(new_plant)
    with plant.open() as mill:
        mill.retract(mill.plan_retraction(sound, "wrong file, too"))
        assert mill.slice(sound).status is SliceStatus.RETRACTED
        assert mill.slice(broken).status is SliceStatus.ACCEPTED
        mill.tick()
        assert mill.verify("visits").ok
        assert mill.state.totals("visits")["accepted"] == 1
    shutil.rmtree(plant.warehouse / "raw" / "requests", ignore_errors=True)
    (plant.root / "hidden").rename(plant.warehouse / "raw" / "requests")
    with plant.open() as mill:
        mill.run_until_idle()
        assert mill.slice(broken).status is SliceStatus.RETRACTED
        assert mill.verify().ok
        before = mill.state.dump()
    recover(plant.root, spark=plant.spark)
    with plant.open() as mill:
        assert mill.state.dump() == before


def test_a_state_that_is_lost_beside_two_retractions_knows_both(new_plant: NewPlant) -> None:
    plant, broken, sound = interrupted(new_plant)
    with plant.open() as mill:
        mill.retract(mill.plan_retraction(sound, "wrong file, too"))
    shutil.rmtree(plant.warehouse / "raw" / "requests", ignore_errors=True)
    (plant.root / "hidden").rename(plant.warehouse / "raw" / "requests")
    recover(plant.root, spark=plant.spark)
    with plant.open() as mill:
        assert {entry.id for entry in mill.ledger(status="retracted")} == {broken, sound}
        mill.run_until_idle()
        assert mill.verify().ok
        assert mill.state.totals("requests")["accepted"] == 0


def test_commands_over_all_streams_go_on_past_one_that_fails(new_plant: NewPlant) -> None:
    """`requests` comes first; what is done for `visits` is done all the same, and the fault is reported."""
    plant, _, _ = interrupted(new_plant)
    with plant.open() as mill:
        mill.land("visits", ndjson(request(3)))
        with pytest.raises(StorageError, match="raw"):
            mill.pack()
        assert mill.state.totals("visits")["accepted"] == 3
        audit = mill.verify()
        assert {(finding.stream, finding.what) for finding in audit.findings} == {("requests", "stream")}
        assert [(one.stream, one.raw_rows) for one in audit.streams] == [("requests", 0), ("visits", 3)]
        assert len(mill.replay("visits")) == 1


def test_what_a_dead_process_left_in_one_stream_does_not_hold_up_the_others(new_plant: NewPlant) -> None:
    plant = new_plant(SECOND_STREAM)
    with plant.open() as mill:
        landed = mill.land("visits", ndjson(request(1))).entry.slice
    left = plant.warehouse / "slices" / "requests" / "left.ndjson"
    left.parent.mkdir()
    left.write_bytes(b"{}\n")
    new = replace(landed, id="f" * 64, stream="requests", path="slices/requests/left.ndjson", size=3)
    note = plant.warehouse / "slices" / ".inflight" / "0123456789abcdef.note"
    lines = [{"folder": "slices/requests/2024-01-15"}, as_fields(new)]  # a folder that somebody removed
    note.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with plant.open() as mill:
        report = mill.tick()
        assert [fault.stream for fault in report.faults] == ["requests"]
        assert mill.state.totals("visits")["accepted"] == 1
