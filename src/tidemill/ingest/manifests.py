"""A raw manifest: what a collector requested from a request/response feed, and the status of each response.

Pure: it reads text from outside and reports mistakes with their positions. It opens no response, and a name
in it never leads out of the folder of the manifest.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath, PurePosixPath
from typing import Final

from tidemill.formats.json_values import unique_members
from tidemill.ingest.arguments import json_object, parse_bound
from tidemill.model.errors import InputError
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval
from tidemill.storage.state.protocol import State

FILE_NAME: Final = "manifest.json"
MAX_BYTES: Final = 64 << 20
MAX_SLICES: Final = 250_000
MILLISECOND: Final = 1000
_FACTS: Final = ("source", "kind", "symbol", "interval", "limit")
_HINT: Final = 'one JSON object with "slices": [{"hash", "status", "start_ms", "end_ms", "response"}]'
_BOUNDS: Final = "bounds are half-open: start_ms and end_ms in milliseconds, or start and end as instants"
_INSIDE: Final = "name a file in the folder of the manifest, such as responses/e901567f.json"
_HASH: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LIMIT: Final = re.compile(r"limit=([0-9]{1,9})")


class RawStatus(StrEnum):
    """The status of a response; only OK is complete."""

    OK = "ok"  # all of it is there
    PARTIAL = "partial"  # some of it, so far
    FAILED = "failed"
    EMPTY = "empty"  # there was nothing
    MISSING = "missing"  # not requested yet, or lost


@dataclass(frozen=True, slots=True)
class RawDataset:
    """The dataset of the feed, as far as it is known."""

    source: str | None = None
    kind: str | None = None
    symbol: str | None = None
    interval: str | None = None
    limit: int | None = None

    @property
    def facts(self) -> dict[str, str | int]:
        found = (("source", self.source), ("kind", self.kind), ("symbol", self.symbol))
        fields: dict[str, str | int] = {key: value for key, value in found if value is not None}
        if self.interval is not None:
            fields["interval"] = self.interval
        if self.limit is not None:
            fields["limit"] = self.limit
        return fields

    @property
    def name(self) -> str:
        """The source name of its slices: each dataset has its own watermark."""
        return "/".join(f"limit={v}" if k == "limit" else str(v) for k, v in self.facts.items()) or "manifest"


@dataclass(frozen=True, slots=True)
class RawSlice:
    """A response, or the lack of one. One that is OK has bounds and a response."""

    hash: str
    status: RawStatus
    declared: Interval | None
    response: PurePosixPath  # relative to the folder of the manifest, and inside it
    where: str  # its position in the manifest
    error: str | None = None  # the error that the collector recorded


@dataclass(frozen=True, slots=True)
class RawManifest:
    """A manifest that was read: its valid parts, and what is wrong with the rest."""

    dataset: RawDataset
    slices: Sequence[RawSlice]
    wrong: Sequence[InputError] = ()

    @property
    def counts(self) -> Mapping[str, int]:
        """Slices by status, in the order of `RawStatus`, without zeros."""
        found = Counter(one.status for one in self.slices)
        return {status.value: found[status] for status in RawStatus if found[status]}


def metadata_of(dataset: RawDataset, hash_: str) -> str:
    """What the ledger keeps of a slice from a manifest, as canonical JSON."""
    fields = {"dataset": dataset.facts, "slice_hash": hash_}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def is_from_manifest(hash_: str, metadata: str | None) -> bool:
    """Whether `metadata_of` made it for this hash."""
    return metadata is not None and metadata.endswith(f'"slice_hash":"{hash_}"}}')


def facts_of(metadata: str | None) -> dict[str, object]:
    """The facts of the dataset in what `metadata_of` made; nothing if it was not made there."""
    try:
        fields = json.loads(metadata or "null")
    except (ValueError, RecursionError):
        return {}
    facts = fields.get("dataset") if isinstance(fields, dict) and "slice_hash" in fields else None
    return {key: facts[key] for key in _FACTS if key in facts} if isinstance(facts, dict) else {}


def read_manifest(text: bytes, where: str, folder: PurePath) -> RawManifest:
    """Parse the manifest in a JSON text from `folder`. InputError if it is not one; a mistake in one of its
    slices is listed, and does not affect the others."""
    whole = _parse(text, where)
    listed = whole.get("slices")
    if not isinstance(listed, list | dict):
        what = "is missing" if listed is None else "is neither a list nor an object"
        raise InputError(f"slices {what}", where=where, hint=_HINT)
    if len(listed) > MAX_SLICES:
        raise InputError(
            f"has {len(listed):,} slices", where=where, hint=f"at most {MAX_SLICES:,} of one dataset are read"
        )
    dataset = _dataset(whole.get("dataset"), where, folder)
    slices: dict[str, RawSlice] = {}
    wrong: list[InputError] = []
    for offset, entry in _entries(listed):
        try:
            one = _slice(entry, f"{where}: {offset}")
            if one.hash in slices:
                first = slices[one.hash].where.removeprefix(f"{where}: ")
                raise _wrong(
                    one.where, f"hash {one.hash} is repeated; it is first at {first}", "list it once"
                )
            slices[one.hash] = one
        except InputError as error:
            wrong.append(error)
    return RawManifest(dataset, tuple(slices.values()), tuple(wrong))


def dataset_of_folder(folder: PurePath) -> RawDataset:
    """The facts in `…/source/kind/raw/SYMBOL/interval/limit=N`; nothing for another folder."""
    parts = folder.parts[len(folder.anchor) > 0 :][-6:]
    limit = _LIMIT.fullmatch(parts[-1]) if len(parts) == 6 and parts[2] == "raw" else None
    if limit is None:
        return RawDataset()
    source, kind, _, symbol, interval, _ = parts
    return RawDataset(source, kind, symbol, interval, int(limit[1]))


def _parse(text: bytes, where: str) -> dict[str, object]:
    if len(text) > MAX_BYTES:
        hint = f"at most {MAX_BYTES >> 20} MiB are read: keep what is older in a folder of its own"
        raise InputError("is too large for a manifest", where=where, hint=hint)
    return json_object(text, where=where, hint=_HINT, members=unique_members)


def _entries(listed: list[object] | dict[str, object]) -> Iterator[tuple[str, object]]:
    """Each with its position. In an object the keys are the hashes."""
    if isinstance(listed, list):
        yield from ((f"slices[{number}]", entry) for number, entry in enumerate(listed))
        return
    for hash_, entry in listed.items():
        offset = f"slices[{json.dumps(hash_[:40])}]"
        if isinstance(entry, dict) and entry.get("hash", hash_) == hash_:
            yield offset, {**entry, "hash": hash_}
        else:
            yield offset, {"hash": None, "said": entry}


def _wrong(where: str, what: str, hint: str) -> InputError:
    return InputError(what, where=where, hint=hint)


def _slice(entry: object, where: str) -> RawSlice:
    if not isinstance(entry, dict):
        raise _wrong(where, "is not an object", _HINT)
    hash_ = entry.get("hash")
    if not isinstance(hash_, str) or not _HASH.fullmatch(hash_):
        raise _wrong(
            f"{where}.hash", "is no hash", "1 to 128 letters, digits, _, . or -; its key in an object"
        )
    status = _status(entry.get("status"), f"{where}.status")
    declared = _bounds(entry, where)
    if declared is None and status is RawStatus.OK:
        raise _wrong(where, "does not say which time it covers", _BOUNDS)
    error = entry.get("error")
    message = error if isinstance(error, str) or error is None else json.dumps(error, ensure_ascii=False)
    response = _response(entry.get("response"), hash_, f"{where}.response")
    return RawSlice(hash_, status, declared, response, where, message)


def _status(value: object, where: str) -> RawStatus:
    try:
        return RawStatus(value.lower() if isinstance(value, str) else "")
    except ValueError:
        what = "is missing" if value is None else f"is {str(value)[:40]!r}"
        raise _wrong(where, what, f"statuses: {', '.join(RawStatus)}") from None


def _bounds(entry: Mapping[str, object], where: str) -> Interval | None:
    start, end = (_instant(entry, key, where) for key in ("start", "end"))
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise _wrong(where, f"has no {'start' if start is None else 'end'}", _BOUNDS)
    if end <= start:
        raise _wrong(where, "ends before it starts, or covers no time", _BOUNDS)
    return Interval(start, end)


def _instant(entry: Mapping[str, object], key: str, where: str) -> int | None:
    """In milliseconds, or as text; if both are there they must agree."""
    in_ms, text = entry.get(f"{key}_ms"), entry.get(key)
    found: list[int] = []
    if in_ms is not None:
        if not isinstance(in_ms, int) or isinstance(in_ms, bool):
            raise _wrong(f"{where}.{key}_ms", "is not a whole number of milliseconds", _BOUNDS)
        if not MIN_INSTANT <= in_ms * MILLISECOND <= MAX_INSTANT:
            raise _wrong(
                f"{where}.{key}_ms", "is out of range", "milliseconds since 1970, not micro- or nano-"
            )
        found.append(in_ms * MILLISECOND)
    if text is not None:
        if not isinstance(text, str):
            raise _wrong(f"{where}.{key}", "is not an instant such as 2024-01-15T12:00:00Z", _BOUNDS)
        try:
            found.append(parse_bound(text))
        except InputError as error:
            raise _wrong(f"{where}.{key}", f"is wrong: {error.message}", error.hint) from None
    if len(set(found)) > 1:
        raise _wrong(f"{where}.{key}", f"is another instant than {key}_ms", "give one of the two")
    return found[0] if found else None


def _response(value: object, hash_: str, where: str) -> PurePosixPath:
    if value is None:
        return PurePosixPath("responses", f"{hash_}.json")
    if not isinstance(value, str) or not value.strip() or len(value) > 1024:
        raise _wrong(where, "is not the name of a file", _INSIDE)
    path = PurePosixPath(value)
    if "\0" in value or "\\" in value or "://" in value or path.is_absolute() or ".." in path.parts:
        raise _wrong(where, f"leads out of the folder: {value[:80]!r}", _INSIDE)
    return path


def _dataset(value: object, where: str, folder: PurePath) -> RawDataset:
    """From the manifest; what it leaves out, from the names of its folders."""
    from_folder = dataset_of_folder(folder)
    if value is None:
        return from_folder
    if not isinstance(value, dict):
        raise InputError("dataset is not an object", where=where, hint='{"source", "kind", "symbol", …}')
    limit = value.get("limit", from_folder.limit)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise InputError(
            "dataset.limit is not a number of rows", where=where, hint="write 500, or leave it out"
        )
    return RawDataset(
        source=_text_of(value, "source", from_folder.source, where),
        kind=_text_of(value, "kind", from_folder.kind, where),
        symbol=_text_of(value, "symbol", from_folder.symbol, where),
        interval=_text_of(value, "interval", from_folder.interval, where),
        limit=limit,
    )


def _text_of(values: Mapping[str, object], key: str, otherwise: str | None, where: str) -> str | None:
    found = values.get(key)
    if found is None:
        return otherwise
    if not isinstance(found, str) or not found.strip() or len(found) > 128 or not found.isprintable():
        raise InputError(
            f"dataset.{key} is not a short string", where=where, hint="write some, or leave it out"
        )
    return found


def dataset_facts(state: State, stream: str) -> Mapping[str, object]:
    """The dataset of a stream's feed: source, kind, symbol, interval, limit. Nothing if it comes from
    several."""
    if len(state.clocks(stream)) != 1:
        return {}
    newest = state.slices(stream, newest=True, limit=1)
    return facts_of(newest[0].slice.metadata) if newest else {}
