"""Values as the Lua script of the Redis state is told them, and its answers as values. Pure: no server.

An instant that the script compares is text that sorts as it does: Lua's numbers and the scores of sorted
sets are doubles, which do not hold every int64.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemill.model.gateway import Receipt
from tidemill.model.slices import SliceEntry, contribution_name, contribution_of
from tidemill.model.tiles import BaseTile, TileKey, TileState
from tidemill.model.time import SECOND
from tidemill.model.windows import Member, OutboxEvent
from tidemill.state.phases import Kept
from tidemill.state.protocol import NO_PROGRESS, BatchRecord, ClockState, Progress, SliceResult, TileBuild
from tidemill.state.redis_link import Reply
from tidemill.state.rows import SLICE_COLUMNS, Value, from_row, receipt_row, rejects_text, to_row
from tidemill.state.window_rows import WINDOW_COLUMNS, event_from, event_row, kept_from, kept_row

Row = dict[str, str]

OFFSET: Final = 1 << 63
ORDERED: Final = frozenset({"start", "check_at", "not_before", "lease_until"})  # columns of windows
RETRY: Final = frozenset({"retry_at"})  # … of the ledger
TEXTS: Final = frozenset(
    {
        "id", "stream", "source", "name", "format", "codec", "path", "status", "rejects", "batch", "error",
        "metadata", "retract_reason", "phase", "reason", "detail", "desired", "observed", "file", "trigger",
        "owner", "building", "type", "data", "failed_as",
    }
)  # fmt: skip
DECIDES: Final = (
    "status", "records", "accepted", "duplicate", "conflict", "rejected", "late", "rejects",
    "observed_start", "observed_end", "watermark", "batch", "error", "judgement", "accepted_before",
    "retry_at", "failed_as",
)  # fmt: skip
PROGRESS_COUNTS: Final = ("emitted", "buffered_rows", "buffered_bytes", "released_early")
EVENT_COLUMNS: Final = ("id", "type", "stream", "time", "data")


def ordered(instant: int) -> str:
    """20 digits that sort as the instants do."""
    return f"{instant + OFFSET:020d}"


def instant(text: str) -> int:
    return int(text) - OFFSET


# -- what is said and answered


def text(reply: Reply) -> str:
    assert isinstance(reply, bytes), reply
    return reply.decode("utf-8")


def number(reply: Reply) -> int:
    assert isinstance(reply, int | bytes), reply
    return int(reply)


def items(reply: Reply) -> list[Reply]:
    assert isinstance(reply, list), reply
    return reply


def texts(reply: Reply) -> list[str]:
    return [text(item) for item in items(reply)]


def pairs(reply: Reply) -> dict[str, str]:
    """A hash, as Redis lists it: key, value, key, value …"""
    flat = items(reply)
    return {
        text(name): str(value) if isinstance(value, int) else text(value)
        for name, value in zip(flat[::2], flat[1::2], strict=True)
    }


def _said(columns: Sequence[str], values: Iterable[Value]) -> Row:
    """A row for the script: texts only, nulls left out."""
    given = zip(columns, values, strict=True)
    return {
        column: ordered(value) if column in ORDERED | RETRY and isinstance(value, int) else str(value)
        for column, value in given
        if value is not None
    }


def _heard(columns: Sequence[str], row: Mapping[str, str], sorts: frozenset[str]) -> tuple[Value, ...]:
    def value(column: str) -> Value:
        found = row.get(column)
        if found is None or column in TEXTS:
            return found
        return instant(found) if column in sorts else int(found)

    return tuple(value(column) for column in columns)


def json_row(reply: Reply) -> Row:
    row: Row = json.loads(text(reply))
    return row


# -- the ledger


def entry_said(entry: SliceEntry) -> Row:
    return _said(SLICE_COLUMNS, to_row(entry))


def entry_heard(reply: Reply) -> SliceEntry:
    return from_row(_heard(SLICE_COLUMNS, json_row(reply), RETRY))


def entries_heard(reply: Reply) -> list[SliceEntry]:
    return [entry_heard(item) for item in items(reply)]


def batch_said(record: BatchRecord) -> dict[str, object]:
    return {
        **wanted_said(record.stream, record.tiles),
        "batch": record.batch,
        "versions": {"raw": str(record.raw_version), "quarantine": str(record.quarantine_version)},
        "decides": DECIDES,
        "results": [{"id": result.slice, "row": _decided(record.batch, result)} for result in record.results],
        "clocks": clocks_said(record.clocks),
        "progress": progress_said(record.progress),
        "runs": list(record.runs),
    }


def _decided(batch: str, result: SliceResult) -> Row:
    counts, observed = result.counts, result.observed
    return _said(
        DECIDES,
        (
            "accepted" if result.error is None else "failed",
            counts.records, counts.accepted, counts.duplicate, counts.conflict, counts.rejected, counts.late,
            rejects_text(counts.rejects), observed.start if observed else None,
            observed.end if observed else None, result.watermark, batch, result.error, result.judgement, None,
            result.retry_at, result.failed_as,
        ),
    )  # fmt: skip


def clocks_said(clocks: Iterable[ClockState]) -> list[list[str]]:
    return [
        [clock.source, ordered(clock.max_seen), ordered(clock.watermark), ordered(clock.arrival)]
        for clock in clocks
    ]


def clocks_heard(reply: Reply) -> list[ClockState]:
    found = sorted(pairs(reply).items())
    return [ClockState(source, *map(instant, value.split(" "))) for source, value in found]


def progress_said(progress: Progress) -> Row:
    row = {name: str(getattr(progress, name)) for name in PROGRESS_COUNTS}
    return row if progress.watermark is None else row | {"watermark": ordered(progress.watermark)}


def progress_heard(reply: Reply) -> Progress:
    row = pairs(reply)
    if not row:
        return NO_PROGRESS
    watermark = instant(row["watermark"]) if "watermark" in row else None
    return Progress(watermark, *(int(row[name]) for name in PROGRESS_COUNTS))


# -- tiles


def wanted_said(stream: str, tiles: Mapping[int, frozenset[str]]) -> dict[str, object]:
    ids = _numbered(slice_id for those in tiles.values() for slice_id in those)
    return {
        "stream": stream,
        "ids": list(ids),
        "tiles": [[ordered(start), [ids[each] for each in those]] for start, those in tiles.items()],
    }


def tiles_said(stream: str, version: int, builds: Sequence[TileBuild]) -> dict[str, object]:
    ids = _numbered(contribution_of(name)[0] for build in builds for name in build.slices)
    return {
        "stream": stream,
        "version": str(version),
        "ids": list(ids),
        "builds": [_tile_said(build, ids) for build in builds],
    }


def _tile_said(build: TileBuild, ids: Mapping[str, int]) -> dict[str, object]:
    row = {"hash": build.hash, "revision": str(build.revision), "rows": str(build.rows)}
    if build.part is not None:
        row["part"] = build.part
    slices = [contribution_of(name) for name in build.slices]
    return {
        "level": build.key.level,
        "start": ordered(build.key.start),
        "row": row,
        "slices": [[ids[slice_id], str(judgement)] for slice_id, judgement in slices],
    }


def _numbered(ids: Iterable[str]) -> dict[str, int]:
    """Each id once, with its place in Lua's lists: the same slices are in many tiles."""
    return {slice_id: place for place, slice_id in enumerate(dict.fromkeys(ids), start=1)}


def tile_heard(level: str, start: str, reply: Reply) -> TileState:
    row = json_row(reply)
    return TileState(
        TileKey(level, instant(start)),
        hash=row.get("hash"),
        revision=int(row["revision"]),
        part=row.get("part"),
        rows=int(row["rows"]),
    )


def base_tiles_heard(level: str, tiles: Reply, ids: Reply) -> list[BaseTile]:
    known = pairs(ids)
    return [_base_tile(level, items(tile), known) for tile in items(tiles)]


def _base_tile(level: str, tile: Sequence[Reply], ids: Mapping[str, str]) -> BaseTile:
    start, row, members = tile
    flags = {short_heard(short, ids): flag for short, flag in pairs(members).items()}
    return BaseTile(
        tile_heard(level, text(start), row),
        desired=frozenset(name for name, flag in flags.items() if flag[0] == "1"),
        observed=frozenset(name for name, flag in flags.items() if flag[1] == "1"),
    )


def short_heard(short: str, ids: Mapping[str, str]) -> str:
    """The name of a slice that a tile calls by its place in the ledger."""
    place, _, judgement = short.partition("~")
    return contribution_name(ids[place], int(judgement or 0))


# -- windows


@dataclass(frozen=True, slots=True)
class Mark:
    """What a window knows of a slice: `observed` is the judgement of it that the window was built with."""

    member: bool
    desired: bool
    observed: int | None
    judgement: int
    ignored: str | None = None

    def said(self) -> str:
        if not self.member and self.observed is None:
            return ""  # nothing: it is left out
        built = "" if self.observed is None else str(self.observed)
        return f"{int(self.member)},{int(self.desired)},{built},{self.judgement},{self.ignored or ''}"

    @staticmethod
    def heard(flag: str) -> Mark:
        member, desired, built, judgement, ignored = flag.split(",", 4)
        return Mark(
            member == "1", desired == "1", int(built) if built else None, int(judgement), ignored or None
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """A window as it was found; it is changed only if it still has the stamp."""

    kept: Kept
    stamp: str
    marks: Mapping[int, Mark] = field(default_factory=dict)  # by place in the ledger
    entries: Mapping[int, SliceEntry] = field(default_factory=dict)  # of those, and of others

    def members(self) -> list[Member]:
        """By place in the ledger."""
        return [self.member(place) for place, mark in sorted(self.marks.items()) if mark.member]

    def member(self, place: int) -> Member:
        mark, entry = self.marks[place], self.entries[place]
        return Member(
            slice=entry.id,
            seq=place,
            name=entry.name,
            arrival=entry.slice.arrival,
            bounds=entry.bounds,
            desired=mark.desired,
            observed=mark.observed == entry.judgement,
            ignored=mark.ignored,
            metadata=entry.slice.metadata,
        )


def kept_said(kept: Kept) -> Row:
    row = _said(WINDOW_COLUMNS, kept_row(kept, kept.window.version))
    del row["priority"]
    return row | {"end_seconds": str(kept.window.key.end // SECOND)}


def kept_heard(row: Row) -> Kept:
    end = int(row["end_seconds"])
    return kept_from(_heard(WINDOW_COLUMNS, row | {"priority": str(-end)}, ORDERED))


def windows_heard(windows: Reply, slices: Reply) -> list[Seen]:
    """Windows with their marks, and the ledger's rows of the slices marked."""
    entries = {entry.seq: entry for entry in entries_heard(slices)}
    found: list[Seen] = []
    for window in items(windows):
        reply, flags = items(window)
        row = json_row(reply)
        marks = {int(place): Mark.heard(flag) for place, flag in pairs(flags).items()}
        found.append(Seen(kept_heard(row), row["stamp"], marks, entries))
    return found


# -- events


def event_said(event: OutboxEvent) -> Row:
    return _said(EVENT_COLUMNS, event_row(event))


def event_heard(reply: Reply) -> OutboxEvent:
    return event_from(_heard(("seq", *EVENT_COLUMNS), json_row(reply), frozenset()))


# -- receipts


def receipt_said(receipt: Receipt) -> str:
    """As it is kept: the script never looks into it."""
    return json.dumps(receipt_row(receipt), ensure_ascii=False, separators=(",", ":"))


def receipt_heard(reply: Reply) -> Receipt:
    return Receipt(*json.loads(text(reply)))
