"""What was packed or would be, and what is in packed parts, for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.cli.shown import shown
from tidemill.cli.views.layout import View, line, many, size

if TYPE_CHECKING:
    from tidemill.raw.compaction.packer import Packed, PackLook, PackStep


def packing(steps: Sequence[PackStep], done: Sequence[Packed] | None, waiting: Mapping[str, int]) -> View:
    """The plan, group by group; or what became of it. Then what waits."""
    if done is None:
        for step in steps:
            days = step.days[0] if len(step.days) == 1 else f"{step.days[0]} to {step.days[-1]}"
            parts = f"{many(step.rows, 'row')} in {many(step.parts_before, 'part')}, {size(step.bytes)}"
            slices = many(len(step.slices), "slice")
            yield line((step.stream, "bold"), f": {slices} to pack, {parts}, of {days}")
    for one in done or ():
        before, after = size(one.bytes_before), size(one.bytes_after)
        text = f"{many(len(one.slices), 'slice')}, {many(one.rows, 'row')} in {many(len(one.parts), 'part')}"
        yield line(("packed ", "green"), (one.stream, "bold"), f": {text}, {before} before, {after} now")
    if not steps:
        yield line("nothing to pack")
    for stream, count in waiting.items():
        if count:
            verb = "waits" if count == 1 else "wait"
            yield line((stream, "bold"), f": {many(count, 'slice')} {verb} until there are enough")


def manifest(manifest: Mapping[str, object]) -> View:
    """JSON, with its lines indented."""
    yield line(shown(json.dumps(manifest, indent=2), lines=True))


def look_words(of: PackLook) -> str:
    """What a round packed: `128 slices packed, 4,000 rows in 2 parts`."""
    slices = sum(len(one.slices) for one in of.packed)
    rows, parts = sum(one.rows for one in of.packed), sum(len(one.parts) for one in of.packed)
    return f"{many(slices, 'slice')} packed, {many(rows, 'row')} in {many(parts, 'part')}"
