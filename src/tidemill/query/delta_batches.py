"""Published batches of deltas: the datasets of the windows that their stream declares.

It reads what `outputs/datasets` wrote and describes it in terms of `outputs/vectors`; it changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from tidemill.model.time import Interval
from tidemill.model.windows import Window
from tidemill.outputs.datasets.catalog import dataset_of, open_dataset
from tidemill.outputs.datasets.damage import damage_of
from tidemill.outputs.datasets.export import pieces
from tidemill.outputs.datasets.reader import WindowReader
from tidemill.outputs.vectors.batches import BatchStats
from tidemill.outputs.vectors.chainer import Batched, Batches, Published, file_name
from tidemill.storage.state.protocol import Windows
from tidemill.storage.writers import whole_file


def published_batches(
    root: Path,
    window_reader: WindowReader,
    state: Windows,
    stream: str,
    span: Interval,
    folder: Path | None,
    limit: int | None,
) -> Batches:
    """The newest `limit` batches whose windows start in the span; each is copied to the folder, if there is
    one."""
    windows = window_reader.datasets(stream, span)
    kept = windows if limit is None else windows[-limit:]
    counts = state.member_counts([window.key for window in kept])
    found = [_batched(root, one, counts[one.key].ignored, folder) for one in kept]
    return Batches(found, more=len(kept) < len(windows))


def _batched(root: Path, window: Window, ignored: int, folder: Path | None) -> Batched:
    key, damage = window.key, damage_of(root, window)
    assert window.file is not None, key
    stats, file = None, Path(window.file)
    if damage is None:
        dataset = dataset_of(root, window)
        of = dataset.deltas
        if of is not None:  # None: built before it was a delta stream; the next round builds it again
            stats = BatchStats(of.received, 0, dataset.rows, of.vectors, dataset.bytes, of.first, of.last)
        if folder is not None:
            file = folder / file_name(key.start, key.end)
            with whole_file(file) as target, target.open("wb") as out:
                out.writelines(pieces(open_dataset(root, dataset), "arrow"))
    return Batched(key.start, key.end, stats, file, Published(window, ignored, damage))
