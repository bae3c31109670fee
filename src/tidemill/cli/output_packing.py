"""What commands say of packing: the part of both outputs that knows these words.

It prints only through what it is handed, so that one place decides where results and advice go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tidemill.cli.shown import shown
from tidemill.cli.voice import Voice
from tidemill.pipeline.documents import packing as plain

if TYPE_CHECKING:
    from tidemill.raw.compaction.packer import Packed, PackStep


class PackingOutput(Protocol):
    """One method for each thing that a command can say of packing."""

    def packing(
        self, steps: Sequence[PackStep], done: Sequence[Packed] | None, waiting: Mapping[str, int]
    ) -> None:
        """The plan; with what became of it, once it was carried out."""
        ...

    def manifest(self, manifest: Mapping[str, object]) -> None: ...


class JsonPacking:
    """One document a command."""

    def __init__(self, document: Callable[[object], None]) -> None:
        self._print = document

    def packing(
        self, steps: Sequence[PackStep], done: Sequence[Packed] | None, waiting: Mapping[str, int]
    ) -> None:
        self._print(plain.packing(steps, done, waiting))

    def manifest(self, manifest: Mapping[str, object]) -> None:
        self._print(manifest)


class TextPacking:
    """Lines; a manifest is JSON for people, too, with its lines indented."""

    def __init__(self, voice: Voice) -> None:
        self._say = voice

    def packing(
        self, steps: Sequence[PackStep], done: Sequence[Packed] | None, waiting: Mapping[str, int]
    ) -> None:
        from tidemill.cli.tables_packing import packing_lines

        for line in packing_lines(steps, done, waiting):
            self._say.line(*line)

    def manifest(self, manifest: Mapping[str, object]) -> None:
        self._say.line(shown(json.dumps(manifest, indent=2), lines=True))
