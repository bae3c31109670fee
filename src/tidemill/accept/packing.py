"""Packs raw: the rows of the slices of a group, out of small parts, into one large part for each day.

The raw commit is the commit point; what a crash leaves before it is thrown away. No row is changed, dropped
or judged, and a slice is packed once: what is packed, the parts that the log names say.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.accept.choosing import Group, PackedPart
from tidemill.accept.recall import PACKED, Held, Told, held_told, told_as
from tidemill.accept.rewrite import RewriteUnit, Rewritten, rewrite
from tidemill.accept.standins import (
    HOLDS,
    batch_of,
    is_rest,
    is_shared,
    is_word,
    names_in,
    packed_footer,
    progress_now,
    write_word,
)
from tidemill.lake.parts import StagedPart, read_footer
from tidemill.lake.snapshot import Part, Snapshot
from tidemill.model.errors import TidemillError
from tidemill.model.failpoints import failpoint
from tidemill.model.names import PACKED_PART, REST_PART
from tidemill.model.slices import SliceEntry, set_hash

if TYPE_CHECKING:
    from tidemill.accept.batch import Acceptor

WORD_BYTES: Final = 1 << 20  # words below this are said again by the next one of their day


@dataclass(frozen=True, slots=True)
class PackedParts:
    """What became of a group: one part for each day that its slices have rows in."""

    slices: tuple[str, ...]
    parts: tuple[PackedPart, ...]
    rows: int
    bytes_before: int  # about
    bytes_after: int


def pack_groups(acceptor: Acceptor, chosen: Sequence[Group], now: int) -> list[PackedParts]:
    """Pack the groups in one commit; those without a row in raw are passed over. Who calls holds the lock of
    a tick, has caught up, and nothing is being retracted or judged again."""
    acceptor.raw.refresh()
    return _Packing(acceptor, chosen, now).run()


class _Packing:
    def __init__(self, acceptor: Acceptor, chosen: Sequence[Group], now: int) -> None:
        self._acceptor = acceptor
        self._raw = acceptor.raw
        self._snapshot: Snapshot = acceptor.raw.snapshot()
        self._chosen = chosen
        self._now = now
        self._wanted = {name for group in chosen for name in group.slices}
        self._entries: dict[str, SliceEntry] = {}

    def run(self) -> list[PackedParts]:
        facts = self._facts()
        if not facts:
            return []
        tag = set_hash([*facts, *(set_hash(group.slices) for group in self._chosen)])[:24]
        folder = self._raw.staging(f"{PACKED_PART}-{tag}")
        try:
            return self._pack(facts, tag, folder)
        except TidemillError:  # nothing is left behind, and the next time does it all
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _pack(self, facts: Mapping[str, Held], tag: str, folder: Path) -> list[PackedParts]:
        replaced = [part for part in self._snapshot.parts if part.path in facts]
        packed, rest = self._units(replaced, facts, tag, folder)
        size = sum(part.size for part in replaced)
        units = [*(unit for _, unit in packed), *rest]
        done = self._acceptor.engine.run(rewrite, units, "pack", size)
        words, spoken = self._words(replaced, facts, folder)
        failpoint("pack.after_build")
        written = [one.part for one in done if one.part is not None]
        assert sum(part.rows for part in written) == sum(part.rows for part in replaced), "no row is lost"
        self._commit([*written, *words], [*replaced, *spoken], tag)
        return self._told([group for group, _ in packed], units, done)

    # -- what is replaced

    def _facts(self) -> dict[str, Held]:
        """What is in the parts that have a row of a chosen slice, and in those that have none at all."""
        live = self._snapshot.by_path
        named = {path for group in self._chosen for path in group.parts}
        # What waited when the groups were chosen may have been left over by a commit since.
        named.update(part.path for part in self._snapshot.parts if is_rest(part))
        parts = [live[path] for path in sorted(named) if path in live]
        held = self._look(parts, "slices of raw parts")
        held = {path: fact for path, fact in held.items() if not self._wanted.isdisjoint(fact.accepted)}
        if not held:
            return {}
        mute = [part for part in self._snapshot.parts if not part.rows and batch_of(part) is not None]
        return {**held, **self._look(mute, "raw parts without rows")}

    def _look(self, parts: Sequence[Part], label: str) -> dict[str, Held]:
        paths = self._snapshot.paths(parts)
        found = self._acceptor.engine.run(held_told, paths, label, sum(part.size for part in parts))
        by_path = {fact.path: fact for fact in found}
        return {part.path: by_path[path] for part, path in zip(parts, paths, strict=True)}

    def _entry(self, name: str) -> SliceEntry:
        if name not in self._entries:
            entry = self._acceptor.state.slice(name)
            assert entry is not None, name
            assert entry.batch is not None, name
            self._entries[name] = entry
        return self._entries[name]

    # -- what is written

    def _units(
        self, replaced: Sequence[Part], facts: Mapping[str, Held], tag: str, folder: Path
    ) -> tuple[list[tuple[int, RewriteUnit]], list[RewriteUnit]]:
        """The parts of the groups, each with the number of its group, and those for what waits."""
        by_day: dict[str, list[Part]] = {}
        for part in replaced:
            by_day.setdefault(part.partition["day"], []).append(part)
        packed, rest = [], []
        for day, parts in sorted(by_day.items()):
            held = {part.path: facts[part.path] for part in parts if part.rows}
            for number, group in enumerate(self._chosen):
                name = f"{PACKED_PART}-{tag}-{number:04d}.parquet"
                unit = self._unit(held, set(group.slices), day, folder, name, packed=True)
                if unit is not None:
                    packed.append((number, unit))
            waiting = {name for fact in held.values() for name in fact.accepted} - self._wanted
            unit = self._unit(held, waiting, day, folder, f"{REST_PART}-{tag}.parquet", packed=False)
            if unit is not None:
                rest.append(unit)
        return sorted(packed, key=lambda one: one[0]), rest

    def _unit(
        self,
        held: Mapping[str, Held],
        slices: Collection[str],
        day: str,
        folder: Path,
        name: str,
        *,
        packed: bool,
    ) -> RewriteUnit | None:
        """The part with the rows of these slices on a day; None when they have none."""
        inputs = [fact for fact in held.values() if not fact.accepted.keys().isdisjoint(slices)]
        if not inputs:
            return None
        there = sorted({name for fact in inputs for name in fact.accepted if name in slices})
        bounds = [fact.bounds[each] for fact in inputs for each in there if each in fact.bounds]
        entries = {each: self._entry(each) for each in there}
        batches = {each: str(entry.batch) for each, entry in entries.items()}
        target = folder / day  # a name is once in a folder
        target.mkdir(exist_ok=True)
        return RewriteUnit(
            inputs=[fact.path for fact in inputs],
            seqs={each: entry.seq for each, entry in entries.items()},
            span=(min(low for low, _ in bounds), max(high for _, high in bounds)),
            day=day,
            folder=str(target),
            name=name,
            footer=packed_footer(self._acceptor.stream.name, batches, self._now, packed=packed),
        )

    def _words(
        self, replaced: Sequence[Part], facts: Mapping[str, Held], folder: Path
    ) -> tuple[list[StagedPart], list[Part]]:
        """What the replaced parts said, in one part for each day, and the words that it says again. One at
        least is new: it says how far the stream has come by this version of raw."""
        state, stream = self._acceptor.state, self._acceptor.stream.name
        progress = progress_now(state.progress(stream), self._raw.version + 1)
        words: list[StagedPart] = []
        spoken: list[Part] = []
        for day in sorted({part.partition["day"] for part in replaced}):
            new: list[Told] = [
                {"path": part.path, **facts[part.path].told}
                for part in replaced
                if part.partition["day"] == day and not is_shared(part)
            ]
            old = self._said_again(day, new=bool(new))
            told = [one for part in old for one in told_as(read_footer(self._raw.root / part.path), PACKED)]
            if told or new:
                target = folder / day
                target.mkdir(exist_ok=True)
                words.append(write_word(target, stream, day, [*told, *new], progress))
                spoken.extend(old)
        return words, spoken

    def _said_again(self, day: str, *, new: bool) -> list[Part]:
        """Words of a day that the next one says as well: the small ones, so that they stay few."""
        there = [part for part in self._snapshot.parts if is_word(part) and part.partition["day"] == day]
        small = [part for part in there if part.size < WORD_BYTES]
        if new or len(small) > 1:
            return small
        return sorted(there, key=lambda part: part.size)[:1]

    # -- the commit

    def _commit(self, staged: Sequence[StagedPart], removes: Sequence[Part], tag: str) -> None:
        raw, stream = self._raw, self._acceptor.stream.name
        before = raw.version
        published = raw.publish(staged)
        failpoint("pack.before_commit")
        version = raw.commit(published, removes, info={PACKED: tag}, now=self._now, data_change=False)
        failpoint("pack.after_commit")
        self._acceptor.state.saw(stream, {"raw": version})
        self._acceptor.moved_on(before, version)
        raw.clean_staging()

    def _told(
        self, numbers: Sequence[int], units: Sequence[RewriteUnit], done: Sequence[Rewritten]
    ) -> list[PackedParts]:
        parts: dict[int, list[PackedPart]] = {}
        for number, unit, one in zip(numbers, units, done, strict=False):  # those of what waits come last
            if one.part is not None:
                path = f"day={unit.day}/{unit.name}"
                slices = tuple(names_in(unit.footer, HOLDS))
                told = PackedPart(path, slices, one.part.rows, one.part.size, one.first, one.last, self._now)
                parts.setdefault(number, []).append(told)
        return [
            PackedParts(
                slices=self._chosen[number].slices,
                parts=tuple(found),
                rows=sum(one.rows for one in found),
                bytes_before=self._chosen[number].bytes,
                bytes_after=sum(one.bytes for one in found),
            )
            for number, found in sorted(parts.items())
        ]
