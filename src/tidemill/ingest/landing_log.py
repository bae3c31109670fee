"""The landing log `slices/landings.ndjson`: one durable line for each landing, in ledger order. A slice that
failed and is tried again gets a new offset, so that has a line here too.

It makes the ledger rebuildable. The order of slices is decided once, when a slice enters the ledger, and is
not recorded in the slice itself; so under one lock a landing is first appended here and synced, then entered
in the state. Hence the state never knows a landing that the log does not, and reading the log from its start
gives the same sequence numbers and the same count of landings. A slice's line is written after its file has
its final name, so a line always has its bytes.

It costs one sync per landing (or per group of them). An acknowledged line is never lost: only an unreadable
tail, which is what a crash leaves of an append, is cut off.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tidemill.ingest.append_log import LineFile, Tail
from tidemill.model.errors import DamageError, StorageError
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import Codec, Format, NewSlice, SliceEntry
from tidemill.model.time import Interval
from tidemill.storage import layout
from tidemill.storage.bucket_path import BucketPath
from tidemill.storage.state.protocol import Ledger, Logs

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Line:
    """Landing number `n`, appended together with all since number `group`."""

    n: int
    group: int
    slice: NewSlice
    again: bool = False  # nothing landed: the slice had failed, and got the next offset to be tried again


class LandingLog:
    """The log of one warehouse. Every method opens the file again: any number of processes may use it."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._file = LineFile(warehouse, layout.LANDINGS, _parse)

    def commit(self, state: Ledger, news: Sequence[NewSlice]) -> list[SliceEntry]:
        """Append to the log, then enter in the ledger, in the order given and atomically."""
        with self._file.locked(state):
            settled = self._settle(state)
            self._check_files_exist(state, news)
            first = settled.last + 1
            lines = [_text(Line(first + i, first, new)) for i, new in enumerate(news)]
            head = self._file.append(lines, settled.tail, "record the landing")
            failpoint("landing.after_log")
            return state.enter_all(news, head)

    def commit_again(self, state: Ledger, failed: Sequence[SliceEntry]) -> list[SliceEntry]:
        """Give failed slices new offsets after all others, in the order given; they are pending there."""
        with self._file.locked(state):
            settled = self._settle(state)
            first = settled.last + 1
            lines = (Line(first + i, first, entry.slice, again=True) for i, entry in enumerate(failed))
            act = "record that slices are tried again"
            head = self._file.append([_text(line) for line in lines], settled.tail, act)
            failpoint("retry.after_log")
            return state.send_again([entry.id for entry in failed], head)

    def settle(self, state: Ledger) -> None:
        """Bring the ledger up to the log after a crash between the two."""
        with self.settled(state):
            pass

    @contextmanager
    def settled(self, state: Ledger) -> Iterator[None]:
        """Inside it, the ledger has all that is in the log, and nothing lands on any machine."""
        with self._file.locked(state):
            self._settle(state)
            yield

    def _check_files_exist(self, state: Ledger, news: Sequence[NewSlice]) -> None:
        """In a bucket, `recover` on another machine sees no notes of landings here: it may have set a slice
        aside that no log knew. The caller must hold the lock, as the one who sets aside does."""
        if not isinstance(self._warehouse, BucketPath):
            return
        for new in news:
            if state.slice(new.id) is None and not (self._warehouse / new.path).is_file():
                raise StorageError(
                    "the slice was set aside by `tidemill recover` on another machine while it landed",
                    where=new.path,
                    hint="it does not count; land the same again",
                )

    def lines(self, state: Logs | None = None) -> Iterator[Line]:
        """All lines from the first; an unreadable tail that the state does not know is left out. DamageError
        if a line is missing or changed."""
        yield from self._file.all(state.log_head(self._file.name) if state is not None else None)

    def repair(self, state: Ledger) -> bool:
        """If the log is damaged, rewrite it from the ledger, which has the same facts; whether it was."""
        with self._file.locked(state):
            damaged = self._file.is_damaged(state)
            if damaged:
                self._rewrite(state)
            else:
                self._settle(state)
        return damaged

    def rewrite(self, state: Ledger) -> None:
        """Rewrite it from a ledger that was made from more than the log."""
        with self._file.locked(state):
            self._rewrite(state)

    def record(self, state: Ledger) -> None:
        """Record the head of the log in the state, after `recover` made a new one."""
        with self._file.locked(state):
            head = self._file.head()
            if head is not None:
                state.record_log(self._file.name, head)

    def _settle(self, state: Ledger) -> _Settled:
        """The last line and the number of the last landing, once log and ledger agree on it."""
        head = state.log_head(self._file.name)
        try:
            tail = self._file.tail(head)
        except DamageError as error:
            if head is None or self._file.is_another(head):
                raise
            log.warning("the landing log is rewritten from the ledger: %s", error)
            return self._rewrite(state)
        logged, known = (tail.line.n if tail.line else 0), state.landings()
        if known > logged:
            return self._rewrite(state)
        if tail.line and known < logged:
            if known < tail.line.group - 1:
                raise StorageError(
                    f"the state knows {known} landings, the warehouse has {logged}",
                    where=str(self._file.path),
                    hint="run `tidemill recover`: it rebuilds the state from the warehouse",
                )
            lines = self._file.last(logged - known)
            if tail.line.again:  # those of one group are of one kind
                state.send_again([line.slice.id for line in lines], tail.head)
            else:
                state.enter_all([line.slice for line in lines], tail.head)
        return _Settled(tail, logged)

    def _rewrite(self, state: Ledger) -> _Settled:
        """Rewrite the log from a state that knows more: the log was lost, changed, or is an old copy. Until
        that is done, the state records no head that the new log does not have."""
        entries = state.slices()
        landed = [(entry.slice, again) for entry, again in landings_in(entries)]
        landed += [(entry.slice, False) for entry in entries for _ in range(entry.landings - 1)]
        state.forget_log(self._file.name)
        head = self._file.replace([_text(Line(n, n, *landing)) for n, landing in enumerate(landed, 1)])
        if not landed:
            return _Settled(Tail(None, None), 0)
        state.record_log(self._file.name, head)
        last = Line(len(landed), len(landed), *landed[-1])
        return _Settled(Tail(last, head), len(landed))


@dataclass(frozen=True, slots=True)
class _Settled:
    tail: Tail[Line]
    last: int  # the number of the last landing


def landings_in(entries: Sequence[SliceEntry]) -> Iterator[tuple[SliceEntry, bool]]:
    """How each offset of a ledger was taken, by a first landing or a retry. The former offsets of a retried
    slice are not known any more, only how often it was retried: any gap before it will do."""
    moved = {entry.id: entry.retried for entry in entries if entry.retried}
    begun: set[str] = set()
    offset = 0
    for number, entry in enumerate(entries):
        for _ in range(offset + 1, entry.seq):
            one = next(other for other in entries[number:] if moved.get(other.id, 0))
            moved[one.id] -= 1
            yield one, one.id in begun
            begun.add(one.id)
        yield entry, entry.id in begun
        offset = entry.seq


def scan_slices(warehouse: Path) -> list[SliceEntry]:
    """The ledger according to the log, all slices pending: same sequence numbers, same landings."""
    entries: dict[str, SliceEntry] = {}
    last = 0
    for line in LandingLog(warehouse).lines():
        known = entries.get(line.slice.id)
        if known is not None and not line.again:
            entries[known.id] = replace(known, landings=known.landings + 1)
            continue
        last += 1
        entries[line.slice.id] = (
            SliceEntry(seq=last, slice=line.slice)
            if known is None
            else replace(known, seq=last, retried=known.retried + 1)
        )
    return sorted(entries.values(), key=lambda entry: entry.seq)


def as_fields(new: NewSlice) -> dict[str, object]:
    declared = [new.declared.start, new.declared.end] if new.declared else None
    extra = {"metadata": new.metadata} if new.metadata is not None else {}
    if new.replays is not None:
        extra["replays"] = new.replays
    return {
        "id": new.id,
        "stream": new.stream,
        "source": new.source,
        "name": new.name,
        "format": new.format.value,
        "codec": new.codec.value,
        "path": new.path,
        "size": new.size,
        "arrival": new.arrival,
        "declared": declared,
        **extra,
    }


def from_fields(fields: dict[str, object]) -> NewSlice:
    """The inverse of `as_fields`; ValueError, KeyError or TypeError if they are invalid."""
    declared, metadata, replays = fields["declared"], fields.get("metadata"), fields.get("replays")
    if declared is not None and not isinstance(declared, list):
        raise TypeError("declared is no pair")
    return NewSlice(
        id=str(fields["id"]),
        stream=str(fields["stream"]),
        source=str(fields["source"]),
        name=str(fields["name"]),
        format=Format(str(fields["format"])),
        codec=Codec(str(fields["codec"])),
        path=str(fields["path"]),
        size=int(str(fields["size"])),
        arrival=int(str(fields["arrival"])),
        declared=Interval(int(declared[0]), int(declared[1])) if declared else None,
        metadata=str(metadata) if metadata is not None else None,
        replays=str(replays) if replays is not None else None,
    )


def _text(line: Line) -> bytes:
    again = {"again": True} if line.again else {}
    fields = {"n": line.n, "group": line.group, **again, **as_fields(line.slice)}
    return json.dumps(fields, separators=(",", ":")).encode()


def _parse(text: bytes) -> Line | None:
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            return None
        again = fields.get("again") is True
        return Line(int(fields["n"]), int(fields["group"]), from_fields(fields), again)
    except (ValueError, KeyError, TypeError, IndexError):
        return None
