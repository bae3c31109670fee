"""What is said of a dataset: everything a reader needs, and the same id for the same thing."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.pipeline.events.conftest import NOON, dataset_of

from tidemill.config.stream import Stream
from tidemill.model.slices import set_hash
from tidemill.model.time import HOUR, SECOND
from tidemill.model.windows import OutboxEvent
from tidemill.outputs.datasets.announce import available, dataset_metadata, withdrawn

WEATHER = Stream.model_validate(
    {
        "name": "weather",
        "description": "Ground weather station observations",
        "keywords": ["weather", "temperature"],
        "source_links": ["https://example.com/stations"],
        "schema": {"id": "string"},
        "identity": "id",
        "aggregation_span": "1h",
        "subject_to_change_window": "6h",
    }
)
DATASET = dataset_of(13, revision=2)


def announced_event(trigger: str = "arrival", now: int = NOON, revision: int = 2) -> OutboxEvent:
    dataset = replace(DATASET, revision=revision)
    return available(DATASET.key, dataset, 1, trigger, now, dataset_metadata(WEATHER, []))


def test_available_says_where_what_and_why() -> None:
    event = announced_event()
    assert (event.seq, event.type, event.stream, event.time) == (
        0,
        "tidemill.dataset.available",
        "weather",
        NOON,
    )
    assert event.data == {
        "stream": "weather",
        "window_id": "807186f78297085ea9a852e3",
        "start": "2024-01-15T13:00:00Z",
        "end": "2024-01-15T14:00:00Z",
        "revision": 2,
        "supersedes": 1,
        "location": "datasets/weather/aggregation/13_1h/r2.arrow",
        "rows": 2013,
        "bytes": 4096,
        "hash": set_hash(["s13"]),
        "slices": 1,
        "rejected": 0,
        "ignored": 0,
        "trigger": "arrival",
        "dataset": {
            "name": "weather",
            "aggregation_span": "PT1H",
            "subject_to_change_window": "PT6H",
            "description": "Ground weather station observations",
            "source_links": [{"href": "https://example.com/stations", "title": ""}],
            "keywords": ["weather", "temperature"],
        },
    }
    assert json.loads(json.dumps(event.data)) == event.data


def test_withdrawn_says_which_revision_and_why() -> None:
    event = withdrawn(DATASET.key, 2, "retracted", NOON)
    assert event.type == "tidemill.dataset.withdrawn"
    assert event.data == {
        "stream": "weather",
        "window_id": "807186f78297085ea9a852e3",
        "start": "2024-01-15T13:00:00Z",
        "end": "2024-01-15T14:00:00Z",
        "revision": 2,
        "reason": "retracted",
    }


def test_the_same_thing_has_the_same_id_whenever_and_why_ever_it_is_told() -> None:
    assert announced_event().id == announced_event(trigger="rebuild", now=NOON + HOUR).id
    assert len(announced_event().id) == 64


def test_another_thing_has_another_id() -> None:
    key = DATASET.key
    others = [
        announced_event().id,
        announced_event(revision=3).id,
        withdrawn(key, 2, "retracted", NOON).id,
        withdrawn(key, 3, "retracted", NOON).id,
        withdrawn(replace(key, start=key.start + SECOND), 2, "retracted", NOON).id,
        withdrawn(replace(key, span=2 * HOUR), 2, "retracted", NOON).id,
        withdrawn(replace(key, stream="rain"), 2, "retracted", NOON).id,
        available(key, replace(DATASET, hash=set_hash(["s"])), 1, "arrival", NOON, {}).id,
    ]
    assert len(set(others)) == len(others)


def test_the_newest_sender_has_the_say_on_description_keywords_and_links_only() -> None:
    older = {"description": "old", "keywords": ["a", "b"], "source_links": ["https://example.com/old"]}
    newer = {
        "name": "mine",
        "aggregation_span": "PT5M",
        "subject_to_change_window": "PT0S",
        "description": "new",
        "source_links": [{"href": "https://example.com/new", "title": "New"}],
        "colour": "blue",
    }
    said = [json.dumps(older), None, json.dumps(newer), None]
    assert dataset_metadata(WEATHER, said) == {
        "name": "weather",
        "aggregation_span": "PT1H",
        "subject_to_change_window": "PT6H",
        "description": "new",
        "source_links": [{"href": "https://example.com/new", "title": "New"}],
        "keywords": ["a", "b"],
    }


def test_what_a_sender_says_wrongly_is_left_out() -> None:
    wrong = [
        "no json",
        "[" * 100_000,
        "[1]",
        '{"description": 7, "keywords": "weather", "source_links": [{"href": "ftp://example.com"}]}',
        '{"description": "\\ud800", "keywords": ["a", 1], "source_links": [{"link": 1}]}',
    ]
    assert dataset_metadata(WEATHER, wrong) == dataset_metadata(WEATHER, [])
