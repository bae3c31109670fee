"""The events about a dataset: a revision of it is available, or was withdrawn.

Pure: it makes the events that a build or an evaluation enters in the outbox, and never sends one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pydantic import ValidationError

from tidemill.config.stream import Link, Stream
from tidemill.model.time import format_instant, iso_duration
from tidemill.model.windows import (
    DATASET_AVAILABLE,
    DATASET_WITHDRAWN,
    Dataset,
    DeltaStats,
    OutboxEvent,
    WindowKey,
)


def available(
    key: WindowKey,
    dataset: Dataset,
    supersedes: int | None,
    trigger: str,
    now: int,
    metadata: Mapping[str, object],
    rejected: int = 0,
    ignored: int | None = 0,
) -> OutboxEvent:
    """The event that a revision can be read. `rejected`: records of its slices that were not accepted;
    `ignored`: slices that were too late for it, None if that is no longer known."""
    data: dict[str, object] = {
        **_window(key),
        "revision": dataset.revision,
        "supersedes": supersedes,
        "location": dataset.file,
        "rows": dataset.rows,
        "bytes": dataset.bytes,
        "hash": dataset.hash,
        "slices": len(dataset.slices),
        "rejected": rejected,
        "ignored": ignored,
        "trigger": trigger,
        "dataset": dict(metadata),
    }
    if dataset.deltas is not None:
        data["deltas"] = _batch(dataset, dataset.deltas)
    event_id = _id(DATASET_AVAILABLE, key, dataset.revision, dataset.hash)
    return OutboxEvent(0, event_id, DATASET_AVAILABLE, key.stream, now, data)


def withdrawn(key: WindowKey, revision: int, reason: str, now: int) -> OutboxEvent:
    """The event that a revision contains retracted data and has not been replaced yet."""
    data: dict[str, object] = {**_window(key), "revision": revision, "reason": reason}
    return OutboxEvent(0, _id(DATASET_WITHDRAWN, key, revision, ""), DATASET_WITHDRAWN, key.stream, now, data)


def dataset_metadata(stream: Stream, texts: Sequence[str | None]) -> dict[str, object]:
    """The metadata of a dataset as its stream declares it; description, keywords and links are those of the
    newest slice that has them. `texts` is the JSON that senders attached to slices, in ledger order."""
    metadata: dict[str, object] = {
        "name": stream.name,
        "aggregation_span": iso_duration(stream.aggregation_span or 0),
        "subject_to_change_window": iso_duration(stream.subject_to_change_window),
        "description": stream.description,
        "source_links": [_link(link) for link in stream.source_links],
        "keywords": list(stream.keywords),
    }
    for text in texts:
        if text is not None:
            metadata |= _valid_metadata(text)
    return metadata


def _batch(dataset: Dataset, of: DeltaStats) -> dict[str, object]:
    """What was merged into a batch of deltas, and its size."""
    return {
        "received": of.received,
        "vectors": of.vectors,
        "average": round(dataset.average, 1),
        "duration": iso_duration(of.duration),
    }


def _window(key: WindowKey) -> dict[str, object]:
    return {
        "stream": key.stream,
        "window_id": key.id,
        "start": format_instant(key.start),
        "end": format_instant(key.end),
    }


def _id(kind: str, key: WindowKey, revision: int, content: str) -> str:
    """An id that is equal for the same event, however often it is made; no part may contain a line end."""
    parts = (kind, key.stream, key.start, key.span, revision, content)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def _valid_metadata(text: str) -> dict[str, object]:
    """The valid part of what a sender attached. The rest is ignored: metadata must not block a dataset."""
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if isinstance(metadata, dict) and isinstance(metadata.get("dataset"), dict):
        metadata = metadata["dataset"]  # nested as in an IngestDataCommand
    if not isinstance(metadata, dict):
        return {}
    usable: dict[str, object] = {}
    description, keywords, links = (metadata.get(k) for k in ("description", "keywords", "source_links"))
    if _is_text(description):
        usable["description"] = description
    if isinstance(keywords, list) and all(_is_text(keyword) for keyword in keywords):
        usable["keywords"] = keywords
    if isinstance(links, list):
        with suppress(ValidationError):
            usable["source_links"] = [_link(Link.model_validate(link)) for link in links]
    return usable


def _link(link: Link) -> dict[str, object]:
    return {"href": link.href, "title": link.title}


def _is_text(value: object) -> bool:
    """Whether a text can be encoded as UTF-8, which half of a surrogate pair cannot."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)
