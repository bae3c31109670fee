"""A cache of decoded columns of parts: a part never changes.

Bounded in bytes; least recently used columns are dropped first. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidemill.storage.tables.part_checksums import check_part

if TYPE_CHECKING:
    import pyarrow as pa

# Imports inside functions keep start-up short: an answer from rollups loads neither Numba nor what reads raw.

BUDGET: Final = 192 << 20  # bytes
_FEW: Final = 128  # strings that a byte can encode
Columns = dict[str, "pa.Array | None"]  # by name; None: the part has no such column


class KeptColumns:
    """The columns of parts, or of their rows of one metric. Strings are dictionary-encoded."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._guard = threading.Lock()
        self._kept: OrderedDict[tuple[str, str | None], Columns] = OrderedDict()
        self._bytes = 0
        self._used_before = False

    @property
    def is_used(self) -> bool:
        """True from the second answer on: a process that answers once gains nothing from decoding."""
        return self._used_before and self._budget > 0

    def use(self) -> None:
        self._used_before = True

    def read(
        self, path: str, names: Sequence[str], texts: Collection[str] = (), metric: str | None = None
    ) -> Mapping[str, pa.Array]:
        """The columns of `names` that the part has; `texts` are those that hold strings. DamageError if the
        file is not what was written, however long it has been cached."""
        check_part(path)
        key = path, metric
        with self._guard:
            known = dict(self._kept.get(key, {}))
            if known:
                self._kept.move_to_end(key)
        new = [name for name in names if name not in known]
        if new:
            read = _decoded(path, new, [name for name in new if name in texts], metric)
            known |= read
            self._keep(key, read)
        return {name: column for name in names if (column := known[name]) is not None}

    def _keep(self, key: tuple[str, str | None], read: Columns) -> None:
        with self._guard:
            kept = self._kept.setdefault(key, {})
            self._kept.move_to_end(key)
            new = {name: column for name, column in read.items() if name not in kept}
            kept |= new
            self._bytes += _size(new)
            while self._bytes > self._budget:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= _size(gone)


def _size(columns: Columns) -> int:
    return sum(column.nbytes for column in columns.values() if column is not None)


def _decoded(path: str, names: Sequence[str], texts: Sequence[str], metric: str | None) -> Columns:
    from tidemill.formats.arrow import one
    from tidemill.storage.tables.parts import open_part

    of = ["metric"] if metric is not None else []
    with open_part(path, [*texts, *of]) as file:
        there = set(file.schema_arrow.names)
        found = file.read([*of, *(name for name in names if name in there)], use_threads=False)
    if metric is not None:
        import pyarrow.compute as pc

        found = found.filter(pc.equal(found.column("metric"), metric))
    return {name: _compact(one(found.column(name))) if name in there else None for name in names}


def _compact(column: pa.Array) -> pa.Array:
    """With few strings, codes take a byte for each row."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type) or len(column.dictionary) > _FEW:
        return column
    return pa.DictionaryArray.from_arrays(column.indices.cast(pa.int8()), column.dictionary)
