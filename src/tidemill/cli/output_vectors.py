"""What commands say of vectors: the part of both outputs that knows these words.

It prints only through what it is handed, so that one place decides where results and advice go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tidemill.cli.shown import shown
from tidemill.cli.voice import Voice
from tidemill.pipeline.documents import vectors as plain

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.outputs.vectors.chainer import Batches, ChainRound
    from tidemill.outputs.vectors.keeper import Step
    from tidemill.outputs.vectors.view import ChainView


class VectorsOutput(Protocol):
    """One method for each thing that a command can say of vectors."""

    def vector(self, stream: str, found: pa.Table, at: int | None) -> None: ...
    def chain(self, chain: ChainView) -> None: ...
    def batches(self, stream: str, found: Batches) -> None: ...
    def compacted(self, done: Mapping[str, ChainRound]) -> None: ...
    def planned(self, plans: Mapping[str, Sequence[Step]]) -> None: ...


class JsonVectors:
    """One document a command."""

    def __init__(self, document: Callable[[object], None]) -> None:
        self._print = document

    def vector(self, stream: str, found: pa.Table, at: int | None) -> None:
        self._print(plain.vector(stream, found, at))

    def chain(self, chain: ChainView) -> None:
        self._print(plain.chain(chain))

    def batches(self, stream: str, found: Batches) -> None:
        self._print(plain.batches(stream, found))

    def compacted(self, done: Mapping[str, ChainRound]) -> None:
        self._print(plain.compacted(done))

    def planned(self, plans: Mapping[str, Sequence[Step]]) -> None:
        self._print(plain.planned(plans))


class TextVectors:
    """Tables and lines."""

    def __init__(self, voice: Voice) -> None:
        self._say = voice

    def vector(self, stream: str, found: pa.Table, at: int | None) -> None:
        from tidemill.cli.tables_vectors import SHOWN, vector_table

        said = plain.vector(stream, found, at)
        self._say.table(vector_table(said))
        values = said["values"]
        if isinstance(values, list) and len(values) > SHOWN:
            self._say.note("--output json shows all components, with every bit")

    def chain(self, chain: ChainView) -> None:
        from tidemill.cli.tables_vectors import chain_table, links_table

        self._say.table(chain_table(chain))
        self._say.table(links_table(chain))

    def batches(self, stream: str, found: Batches) -> None:
        from tidemill.cli.tables_vectors import batches_table

        if found.found:
            self._say.table(batches_table(found.found))
        else:
            self._say.line((shown(stream), "bold"), ": no batches")
        if found.more:
            self._say.note(f"the newest {len(found.found):,}; --limit 0 shows all")

    def compacted(self, done: Mapping[str, ChainRound]) -> None:
        from tidemill.cli.tables_vectors import compacted_words

        for stream, of in done.items():
            self._say.line((shown(stream), "bold"), f": {compacted_words(of)}")
        if not done:
            self._say.note("no stream of `kind: delta` is declared")

    def planned(self, plans: Mapping[str, Sequence[Step]]) -> None:
        from tidemill.cli.tables_vectors import plan_table

        for stream, steps in plans.items():
            if steps:
                self._say.table(plan_table(stream, steps))
            else:
                self._say.line((shown(stream), "bold"), ": nothing to compact")
        if not plans:
            self._say.note("no stream of `kind: delta` is declared")
