"""The Redis state as plain rows in a defined order: the same tables and rows that the SQLite state dumps.

Only reads an answer of the script; what is left out, and why, is said in `dump`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Final

from tidemill.model.levels import BASE
from tidemill.model.slices import SliceStatus, contribution_name, set_hash
from tidemill.model.windows import Phase
from tidemill.state.protocol import NO_PROGRESS
from tidemill.state.redis_link import Reply
from tidemill.state.redis_rows import (
    Mark,
    clocks_heard,
    entries_heard,
    event_heard,
    instant,
    items,
    json_row,
    kept_heard,
    number,
    pairs,
    progress_heard,
    text,
    texts,
    tile_heard,
)
from tidemill.state.rows import SLICE_COLUMNS, TRIES, mark, to_row
from tidemill.state.window_rows import WINDOW_COLUMNS, kept_row

Row = dict[str, object]
Part = tuple[str, str, Reply]  # stream; level or start; what is kept

_OUTCOME: Final = SLICE_COLUMNS[SLICE_COLUMNS.index("records") : SLICE_COLUMNS.index("error") + 1]
_WINDOW: Final = (
    "stream", "start", "span", "phase", "reason", "detail", "check_at", "ready", "desired", "observed",
    "revision", "sealed", "seal", "file", "rows", "bytes",
)  # fmt: skip


def dump_heard(reply: Reply) -> dict[str, list[Row]]:
    parts: dict[str, list[Part]] = {}
    for part in items(reply):
        name, stream, content = items(part)
        table, _, of = text(name).partition(" ")
        parts.setdefault(table, []).append((text(stream), of, content))
    ids = {str(row["seq"]): str(row["id"]) for row in _slices(parts["slices"])}
    base = list(_tile_slices(parts.get("tile_slices", []), ids))
    return {
        "slices": _sorted(_slices(parts["slices"]), "seq"),
        "totals": _sorted(_named(parts.get("totals", []), "name", "value", zeros=False), "stream", "name"),
        "batches": _sorted(_listed(parts.get("batches", []), "batch"), "stream", "batch"),
        "versions": _sorted(_named(parts.get("versions", []), "part_of", "version"), "stream", "part_of"),
        "clocks": _sorted(_clocks(parts.get("clocks", [])), "stream", "source"),
        "progress": _sorted(_progress(parts.get("progress", [])), "stream"),
        "runs": _sorted(_runs(parts.get("runs", [])), "stream", "place"),
        "tiles": _sorted(_tiles(parts.get("tiles", []), base), "stream", "level", "start"),
        "tile_slices": _sorted(base, "stream", "start", "slice"),
        "retractions": [{"applied": number(items(content)[0])} for _, _, content in parts["retractions"]],
        "layouts": _sorted(_layouts(parts["layouts"]), "stream"),
        "unlaid": [
            {"stream": stream, "slice": ids[place]}
            for stream, _, content in sorted(parts.get("unlaid", []), key=lambda part: part[0])
            for place in texts(content)
        ],
        "windows": _sorted(_windows(parts.get("windows", [])), "stream", "start"),
        "window_slices": _sorted(
            _window_slices(parts.get("window_slices", []), ids), "stream", "start", "slice"
        ),
        "outbox": _sorted(_events(parts["outbox"]), "stream", "type", "id"),
    }


def _sorted(rows: Iterator[Row] | list[Row], *columns: str) -> list[Row]:
    return sorted(rows, key=lambda row: [row[column] for column in columns])


def _slices(parts: list[Part]) -> Iterator[Row]:
    for _, _, content in parts:
        for entry in entries_heard(content):
            row: Row = dict(zip(SLICE_COLUMNS, to_row(entry), strict=True))
            if entry.status is SliceStatus.RETRACTED:
                row |= dict.fromkeys(_OUTCOME)
            elif entry.status is SliceStatus.FAILED and entry.retry_at is not None:
                row["error"] = None
            yield {column: value for column, value in row.items() if column not in TRIES}


def _named(parts: list[Part], name: str, value: str, *, zeros: bool = True) -> Iterator[Row]:
    for stream, _, content in parts:
        for key, amount in pairs(content).items():
            if zeros or int(amount):
                yield {"stream": stream, name: key, value: int(amount)}


def _listed(parts: list[Part], name: str) -> Iterator[Row]:
    for stream, _, content in parts:
        for value in texts(content):
            yield {"stream": stream, name: value}


def _clocks(parts: list[Part]) -> Iterator[Row]:
    for stream, _, content in parts:
        for clock in clocks_heard(content):
            yield {
                "stream": stream,
                "source": clock.source,
                "max_seen": clock.max_seen,
                "watermark": clock.watermark,
                "arrival": clock.arrival,
            }


def _progress(parts: list[Part]) -> Iterator[Row]:
    for stream, _, content in parts:
        progress = progress_heard(content)
        if progress != NO_PROGRESS:  # none is as good as that
            yield {"stream": stream, **asdict(progress)}


def _runs(parts: list[Part]) -> Iterator[Row]:
    for stream, _, content in parts:
        for place, name in enumerate(texts(content)):
            yield {"stream": stream, "place": place, "name": name}


def _tiles(parts: list[Part], members: list[Row]) -> Iterator[Row]:
    wanted: dict[tuple[object, object], list[str]] = {}
    for member in members:
        if marked := int(str(member["desired"])):
            name = contribution_name(str(member["slice"]), marked - mark(0))
            wanted.setdefault((member["stream"], member["start"]), []).append(name)
    for stream, level, content in parts:
        flat = items(content)
        for start, row in zip(flat[::2], flat[1::2], strict=True):
            tile = tile_heard(level, text(start), row)
            desired = set_hash(wanted.get((stream, tile.key.start), ())) if level == BASE.name else None
            yield {
                "stream": stream,
                "level": level,
                "start": tile.key.start,
                "desired": desired,
                "hash": tile.hash,
                "revision": tile.revision,
                "part": tile.part,
                "rows": tile.rows,
            }


def _tile_slices(parts: list[Part], ids: Mapping[str, str]) -> Iterator[Row]:
    for stream, start, content in parts:
        marks: dict[str, list[int]] = {}  # place -> desired and observed, as the judgements of the slice
        for short, flag in pairs(content).items():
            place, _, judgement = short.partition("~")
            both = marks.setdefault(place, [0, 0])
            for which in (0, 1):
                both[which] = mark(int(judgement or 0)) if flag[which] == "1" else both[which]
        for place, (desired, observed) in marks.items():
            yield {
                "stream": stream,
                "start": instant(start),
                "slice": ids[place],
                "desired": desired,
                "observed": observed,
            }


def _layouts(parts: list[Part]) -> Iterator[Row]:
    for _, _, content in parts:
        for stream, span in pairs(content).items():
            yield {"stream": stream, "span": int(span)}


def _windows(parts: list[Part]) -> Iterator[Row]:
    for _, _, content in parts:
        kept = kept_heard(json_row(items(content)[0]))
        row = dict(zip(WINDOW_COLUMNS, kept_row(kept, kept.window.version), strict=True))
        if kept.window.phase in (Phase.BUILDING, Phase.FAILED):
            row["phase"] = Phase.QUEUED.value
        yield {column: row[column] for column in _WINDOW}


def _window_slices(parts: list[Part], ids: Mapping[str, str]) -> Iterator[Row]:
    for stream, start, content in parts:
        for place, flag in pairs(content).items():
            heard = Mark.heard(flag)
            yield {
                "stream": stream,
                "start": instant(start),
                "slice": ids[place],
                "member": int(heard.member),
                "desired": int(heard.desired),
                "observed": 0 if heard.observed is None else mark(heard.observed),
                "ignored": heard.ignored,
            }


def _events(parts: list[Part]) -> Iterator[Row]:
    for _, _, content in parts:
        for event in map(event_heard, items(content)):
            yield {"id": event.id, "type": event.type, "stream": event.stream}
