"""A raw manifest as text: what is read of it, and every mistake by its place."""

from __future__ import annotations

import json
from pathlib import PurePath, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.ingest import manifests
from tidemill.ingest.manifests import (
    RawDataset,
    RawManifest,
    RawSlice,
    RawStatus,
    dataset_of_folder,
    facts_of,
    is_from_manifest,
    metadata_of,
    read_manifest,
)
from tidemill.model.errors import InputError
from tidemill.model.time import Interval, parse_instant

FOLDER = PurePath("/feed/binance/klines/raw/BTCUSDT/1m/limit=500")
TEN, ELEVEN = parse_instant("2024-01-15T10:00:00Z"), parse_instant("2024-01-15T11:00:00Z")
BTC = RawDataset("binance", "klines", "BTCUSDT", "1m", 500)


def entry(hash_: str = "e901567f", status: str | None = "ok", **changes: object) -> dict[str, object]:
    whole: dict[str, object] = {
        "hash": hash_,
        "status": status,
        "start_ms": TEN // 1000,
        "end_ms": ELEVEN // 1000,
        "response": f"responses/{hash_}.json",
    }
    return {key: value for key, value in (whole | changes).items() if value is not None}


def read(*entries: object, **changes: object) -> RawManifest:
    whole = {"slices": list(entries)} | changes
    return read_manifest(json.dumps(whole).encode(), "manifest.json", FOLDER)


def mistake(of: object) -> tuple[str, str]:
    """Where it is, and what; there is one, and nothing of the entry is taken."""
    found = read(of)
    assert found.slices == ()
    (error,) = found.wrong
    assert error.hint
    return error.where.removeprefix("manifest.json: "), error.message


def test_an_entry_has_a_hash_a_status_bounds_and_a_response() -> None:
    found = read(entry(), dataset={"source": "kraken", "limit": 720})
    assert found.wrong == ()
    assert found.slices == (
        RawSlice(
            hash="e901567f",
            status=RawStatus.OK,
            declared=Interval(TEN, ELEVEN),
            response=PurePosixPath("responses/e901567f.json"),
            where="manifest.json: slices[0]",
        ),
    )
    assert found.dataset == RawDataset("kraken", "klines", "BTCUSDT", "1m", 720)


def test_all_statuses_are_read_and_counted() -> None:
    found = read(*(entry(f"h{number}", status) for number, status in enumerate(RawStatus)), entry("x", "OK"))
    assert [one.status for one in found.slices] == [*RawStatus, RawStatus.OK]
    assert found.counts == {"ok": 2, "partial": 1, "failed": 1, "empty": 1, "missing": 1}


def test_what_is_not_complete_needs_no_bounds_and_keeps_its_error() -> None:
    (one,) = read(entry(status="failed", start_ms=None, end_ms=None, error="HTTP 503")).slices
    assert (one.declared, one.error) == (None, "HTTP 503")
    (reported,) = read(entry(status="failed", error={"code": -1121})).slices
    assert reported.error == '{"code": -1121}'


def test_bounds_as_instants_and_a_response_by_its_hash() -> None:
    times = {"start": "2024-01-15T10:00:00Z", "end": "2024-01-15T12:00:00+01:00"}
    (one,) = read(entry(start_ms=None, end_ms=None, response=None, **times)).slices
    assert one.declared == Interval(TEN, ELEVEN)
    assert one.response == PurePosixPath("responses/e901567f.json")
    assert read(entry(**times)).wrong == ()  # both say the same


def test_entries_by_hash_are_the_same_as_a_list_of_them() -> None:
    listed = read(entry("aa"), entry("bb", "partial"))
    by_hash = {"aa": entry("aa", hash=None), "bb": entry("bb", "partial")}
    found = read_manifest(json.dumps({"slices": by_hash}).encode(), "manifest.json", FOLDER)
    assert [(s.hash, s.status, s.declared) for s in found.slices] == [
        (s.hash, s.status, s.declared) for s in listed.slices
    ]
    assert found.slices[0].where == 'manifest.json: slices["aa"]'
    other = read_manifest(json.dumps({"slices": {"aa": entry("bb")}}).encode(), "m", FOLDER)
    assert [error.where for error in other.wrong] == ['m: slices["aa"].hash']


def test_keys_that_nobody_knows_are_left_alone() -> None:
    assert read(entry(url="https://example.com", rows=500), made_by="a collector").wrong == ()


@pytest.mark.parametrize(
    ("of", "place", "what"),
    [
        (7, "slices[0]", "is not an object"),
        (entry(hash=None), "slices[0].hash", "is no hash"),
        (entry("../up"), "slices[0].hash", "is no hash"),
        (entry(".hidden"), "slices[0].hash", "is no hash"),
        (entry(status="done"), "slices[0].status", "is 'done'"),
        (entry(status=None), "slices[0].status", "is missing"),
        (entry(start_ms=None), "slices[0]", "has no start"),
        (entry(end_ms=None), "slices[0]", "has no end"),
        (entry(start_ms=None, end_ms=None), "slices[0]", "does not say which time it covers"),
        (entry(end_ms=TEN // 1000), "slices[0]", "ends before it starts, or covers no time"),
        (entry(start_ms=1.5), "slices[0].start_ms", "is not a whole number of milliseconds"),
        (entry(start_ms=True), "slices[0].start_ms", "is not a whole number of milliseconds"),
        (entry(start_ms=TEN * 1000), "slices[0].start_ms", "is out of range"),
        (entry(start=5), "slices[0].start", "is not an instant such as 2024-01-15T12:00:00Z"),
        (entry(start="2024-01-15T10:00:01Z"), "slices[0].start", "is another instant than start_ms"),
        (entry(response=""), "slices[0].response", "is not the name of a file"),
        (entry(response="/etc/passwd"), "slices[0].response", "leads out of the folder: '/etc/passwd'"),
        (entry(response="a/../../b"), "slices[0].response", "leads out of the folder: 'a/../../b'"),
        (entry(response="..\\b"), "slices[0].response", "leads out of the folder: '..\\\\b'"),
        (entry(response="s3://a/b"), "slices[0].response", "leads out of the folder: 's3://a/b'"),
    ],
)
def test_every_mistake_is_told_by_its_place(of: object, place: str, what: str) -> None:
    assert mistake(of) == (place, what)


def test_a_mistake_keeps_no_other_entry_out() -> None:
    found = read(entry("aa"), entry("bb", "done"), entry("cc"), entry("aa", "partial"))
    assert [(one.hash, one.status) for one in found.slices] == [("aa", "ok"), ("cc", "ok")]
    assert [str(error) for error in found.wrong] == [
        "manifest.json: slices[1].status: is 'done'",
        "manifest.json: slices[3]: hash aa is repeated; it is first at slices[0]",
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"slices": [', "is not JSON"),
        (b'{"slices": [NaN]}', "is not JSON: NaN is not a number in JSON"),
        (b'{"slices": {"a": {}, "a": {}}}', "is not JSON: key 'a' is repeated in one object"),
        (b'{"slices": ["\\ud800"]}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"{}", "slices is missing"),
        (b'{"slices": 5}', "slices is neither a list nor an object"),
        (b'{"slices": [], "dataset": []}', "dataset is not an object"),
        (b'{"slices": [], "dataset": {"limit": "many"}}', "dataset.limit is not a number of rows"),
        (b'{"slices": [], "dataset": {"symbol": ""}}', "dataset.symbol is not a short string"),
    ],
)
def test_what_is_no_manifest_is_refused_as_a_whole(text: bytes, what: str) -> None:
    with pytest.raises(InputError) as raised:
        read_manifest(text, "manifest.json", FOLDER)
    assert raised.value.message.startswith(what)
    assert raised.value.where == "manifest.json"


def test_its_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_SLICES", 2)
    assert len(read(entry("a"), entry("b")).slices) == 2
    with pytest.raises(InputError, match="has 3 slices"):
        read(entry("a"), entry("b"), entry("c"))
    monkeypatch.setattr(manifests, "MAX_BYTES", 10)
    with pytest.raises(InputError, match="too large"):
        read()


def test_the_folders_say_what_the_dataset_leaves_out() -> None:
    assert read().dataset == dataset_of_folder(FOLDER) == BTC
    assert BTC.name == "binance/klines/BTCUSDT/1m/limit=500"
    for other in ("/feed/raw/BTCUSDT/1m/limit=500", "/a/b/agg/S/1m/limit=5", "/a/b/raw/S/1m/5", "/"):
        assert dataset_of_folder(PurePath(other)) == RawDataset()
    assert RawDataset().name == "manifest"


def test_a_slice_tells_its_dataset_and_hash() -> None:
    said = metadata_of(BTC, "e901567f")
    assert json.loads(said) == {
        "dataset": {
            "source": "binance",
            "kind": "klines",
            "symbol": "BTCUSDT",
            "interval": "1m",
            "limit": 500,
        },
        "slice_hash": "e901567f",
    }
    assert is_from_manifest("e901567f", said)
    assert facts_of(said) == BTC.facts
    assert [facts_of(other) for other in (None, "{", "[]", '{"dataset": {"name": "a"}}')] == [{}, {}, {}, {}]
    assert not is_from_manifest("901567f", said)
    assert not is_from_manifest("e901567f", None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["hash", "status", "start_ms", "end_ms", "start", "end", "response", "error"])


@given(st.lists(st.dictionaries(FIELDS, JSON | st.just("ok")) | JSON, max_size=4), JSON)
def test_whatever_comes_is_read_or_told(entries: list[object], dataset: object) -> None:
    text = json.dumps({"slices": entries, "dataset": dataset}).encode()
    try:
        found = read_manifest(text, "manifest.json", FOLDER)
    except InputError:
        return
    assert len(found.slices) + len(found.wrong) == len(entries)
    for one in found.slices:
        assert not one.response.is_absolute()
        assert ".." not in one.response.parts
