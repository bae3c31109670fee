"""Every path of a warehouse, as functions: the tree that docs/architecture.md shows under "On disk".

What earlier versions wrote must be found under these names, so they change only together with code that moves
the files. Nothing here touches the disk. Names of streams and windows were checked when the project was
loaded; a name from elsewhere must be checked first (`model.names.safe_name`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, Literal, get_args

from tidemill.model.names import safe_name
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, format_duration, format_instant, to_datetime
from tidemill.model.windows import AGGREGATION, WindowKey

TableKind = Literal["raw", "quarantine", "rollups", "index", "chains"]

# Suffixes and fixed names of files; the folder says what a file is for, the suffix says its kind.
RUN_SUFFIX: Final = ".run"  # gate/: accepted ids
KEYS_SUFFIX: Final = ".keys"  # sealed/: ids of events that have expired
OBSERVATIONS_SUFFIX: Final = ".trail"  # trails/: observations of objects
ADMITTED_SUFFIX: Final = ".roster"  # trails/: the keys that a limited metric admitted
TEMPORARY_SUFFIX: Final = ".tmp"  # anywhere: a file that is being written
NOTE_SUFFIX: Final = ".note"  # slices/.inflight/: a landing in progress
OPEN_ROWS_SUFFIX: Final = ".arrow"  # windows/<stream>/<window>/_open/: rows of open windows
OPEN_SUMS_SUFFIX: Final = ".open"  # there too: aggregates of open sessions so far
SLICES: Final = "slices"
LANDINGS: Final = "landings.ndjson"
RETRACTIONS: Final = "retractions.ndjson"
EXPIRIES: Final = "expiries.ndjson"
DECLARATIONS: Final = "declarations.ndjson"
GATEWAYS: Final = "gateways.ndjson"

_DATASETS: Final = "datasets"
_WINDOWS: Final = "windows"
_ORPHANS: Final = "_orphans"
_EMPTY: Final = "_empty"
_STAGING: Final = "_staging"
_OPEN: Final = "_open"
_STATE: Final = "state.db"
_GATEWAY: Final = re.compile(r"[0-9a-f]{12}")
_GONE_SUFFIX: Final = ".gone"
_SEGMENT: Final = re.compile(r"([0-9]{8,})\.wal")
_HISTORY_LOG: Final = "trails.log"
_EMPTY_LOG: Final = "windows.ndjson"
# In a bucket: what stays on the disk of a machine, logs that are appended to, and objects that are replaced
# by others of the same name. Every other file is written once.
OF_A_MACHINE: Final = frozenset({"wal", _STAGING, "_packing"})
IN_NO_BUCKET: Final = frozenset({"wal"})  # of these; the others are, where tasks run on other machines
STATE_FILES: Final = _STATE
APPENDED: Final = frozenset(
    {LANDINGS, RETRACTIONS, EXPIRIES, DECLARATIONS, GATEWAYS, _HISTORY_LOG, _EMPTY_LOG}
)
REPLACED: Final = ("compressed.json", "tokens.json", "_last_checkpoint", ADMITTED_SUFFIX, ".key")
# How many components the relative path of a file has, under a folder for its kind and one for its stream.
_DEPTH: Final = {
    RUN_SUFFIX: 3, KEYS_SUFFIX: 3, OBSERVATIONS_SUFFIX: 3, ADMITTED_SUFFIX: 3, _HISTORY_LOG: 3, _EMPTY_LOG: 4
}  # fmt: skip
_REVISION: Final = re.compile(r"r([1-9][0-9]{0,8})\.arrow")


# -- the warehouse as a whole


def state(warehouse: Path) -> Path:
    return warehouse / _STATE


def fresh_state(warehouse: Path) -> Path:
    """A new state, which then replaces the one in use."""
    return warehouse / f"{_STATE}.new"


def identity(warehouse: Path) -> Path:
    """A name that the warehouse keeps wherever it is mounted: its state on a server is found by it."""
    return warehouse / "warehouse.id"


def state_owner(warehouse: Path) -> Path:
    """Which state a warehouse in a bucket has: a file on one machine, or a schema of a server."""
    return warehouse / "state.owner"


def state_name(warehouse: Path) -> Path:
    """The name of the state in a file on this machine."""
    return warehouse / f"{_STATE}.name"


def machine(warehouse: Path) -> Path:
    """The name of this machine among those that share a warehouse in a bucket."""
    return warehouse / ".machine"


def tick_lock(warehouse: Path) -> Path:
    """The lock that processes of one machine share during rounds, and that work on the whole warehouse holds
    exclusively."""
    return warehouse / ".tick.lock"


def tokens(warehouse: Path) -> Path:
    return warehouse / "access" / "tokens.json"


def seal_key(warehouse: Path) -> Path:
    """The key that encrypts cursors for tenants."""
    return warehouse / "access" / "seal.key"


def damaged(warehouse: Path) -> Path:
    """Damaged files, set aside under the path they had; each with its reason beside it."""
    return warehouse / "_damaged"


def damage_reason(path: Path) -> Path:
    """The note beside a file that was set aside; of a file that was missing there is nothing else."""
    return path.with_name(f"{path.name}.damage.json")


def was_set_aside(warehouse: Path, name: str) -> bool:
    path = damaged(warehouse) / name
    return path.exists() or damage_reason(path).exists()


def relative_name(path: Path) -> str:
    """The name, relative to its warehouse, of a file of a kind that is always found at one depth."""
    depth = 5 if path.parent.name == _OPEN else _DEPTH.get(path.name) or _DEPTH.get(path.suffix)
    return "/".join(path.parts[-depth:]) if depth else str(path)


# -- slices, and the logs beside them


def slices(warehouse: Path) -> Path:
    return warehouse / SLICES


def slices_of_day(stream: str, arrival: int) -> str:
    """The folder of the slices that arrived on the day of an instant, relative to the warehouse."""
    return f"{SLICES}/{safe_name(stream, 'stream')}/{format_instant(arrival)[:10]}"


def orphans(warehouse: Path, stream: str) -> Path:
    """Whole slices of a stream that were never acknowledged, set aside by `recover`."""
    return slices(warehouse) / _ORPHANS / stream


def is_orphan(path: Path) -> bool:
    return _ORPHANS in path.parts


def landing_notes(warehouse: Path) -> Path:
    """Notes about landings in progress."""
    return slices(warehouse) / ".inflight"


def slice_log(warehouse: Path, name: str) -> Path:
    """One of the logs beside the slices: `LANDINGS`, `RETRACTIONS`, `EXPIRIES` or `DECLARATIONS`."""
    return slices(warehouse) / name


def slice_log_copy(warehouse: Path, name: str) -> Path:
    """The copy of a log, in another place than the log and the state."""
    return warehouse / "_log_copies" / name


def compressed_slices(warehouse: Path) -> Path:
    """Up to which slice of each stream files were compressed."""
    return slices(warehouse) / "compressed.json"


def slice_log_lock(warehouse: Path, name: str) -> Path:
    return slices(warehouse) / f".{name}.lock"


def holders(warehouse: Path) -> Path:
    """A file for each holder of leases, locked while its process lives."""
    return warehouse / ".holders"


def sessions(warehouse: Path) -> Path:
    """A file for each process with a Spark session, locked while it lives."""
    return warehouse / ".sessions"


# -- the logs of gateways


def gateway_logs(warehouse: Path) -> Path:
    return warehouse / "wal"


def is_gateway_log(folder: Path) -> bool:
    return _GATEWAY.fullmatch(folder.name) is not None


def removed_gateway_log(folder: Path) -> Path:
    """The name of a gateway's log that is being removed."""
    return folder.with_name(f"{folder.name}{_GONE_SUFFIX}")


def is_removed_gateway_log(folder: Path) -> bool:
    return folder.suffix == _GONE_SUFFIX and _GATEWAY.fullmatch(folder.stem) is not None


def gateway_segment(folder: Path, number: int) -> Path:
    return folder / f"{number:08}.wal"


def gateway_segment_number(path: Path) -> int | None:
    """The number of a segment of a gateway's log; None for any other file."""
    found = _SEGMENT.fullmatch(path.name)
    return int(found[1]) if found else None


def gateway_segments(folder: Path) -> Path:
    """The list of the segments of a gateway's log."""
    return folder / "segments.ndjson"


def gateway_log_end(folder: Path) -> Path:
    """Where a gateway's log ends."""
    return folder / "end"


def gateway_status(folder: Path) -> Path:
    return folder / "status.json"


def damaged_gateway_logs(warehouse: Path) -> Path:
    """Stretches of the logs of gateways that could not be read, a folder for each gateway."""
    return damaged(warehouse) / gateway_logs(warehouse).name


def damaged_stretch(warehouse: Path, segment: Path, at: int) -> Path:
    """Bytes of a segment from `at` on, set aside."""
    return damaged_gateway_logs(warehouse) / segment.parent.name / f"{segment.name}.{at}"


def damage_note(path: Path) -> Path:
    """What is known about something that was set aside."""
    return path.with_name(f"{path.name}.json")


# -- tables


def table(warehouse: Path, kind: TableKind, stream: str) -> Path:
    return warehouse / kind / stream


def raw(warehouse: Path, stream: str) -> Path:
    return table(warehouse, "raw", stream)


def streams_with_raw(warehouse: Path) -> list[str]:
    """The streams with accepted events, whether they are declared or not."""
    folder = raw(warehouse, "any").parent
    return sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []


def quarantine(warehouse: Path, stream: str) -> Path:
    return table(warehouse, "quarantine", stream)


def rollups(warehouse: Path, stream: str) -> Path:
    return table(warehouse, "rollups", stream)


def index(warehouse: Path, stream: str) -> Path:
    return table(warehouse, "index", stream)


def chains(warehouse: Path, stream: str) -> Path:
    return table(warehouse, "chains", stream)


def results(warehouse: Path, stream: str, window: str) -> Path:
    """The table of the results of a streaming window."""
    return warehouse / _WINDOWS / stream / window


def results_of(warehouse: Path, stream: str) -> Path:
    """The folder of the results of all streaming windows of a stream."""
    return warehouse / _WINDOWS / stream


def results_location(stream: str, window: str) -> str:
    """The same, relative to the warehouse: as events and documents name it."""
    return f"{_WINDOWS}/{stream}/{window}"


def is_open_rows(file: Path) -> bool:
    """Whether a file holds rows of open windows, by its path in the warehouse."""
    return file.parts[0] == _WINDOWS and file.parent.name == open_rows(Path()).name


def open_rows(results_table: Path) -> Path:
    """Rows of open windows, beside the results; readers of the table skip the folder."""
    return results_table / _OPEN


def tables_of(warehouse: Path, stream: str) -> list[Path]:
    """The folders of all tables of a stream that there are."""
    kinds: tuple[TableKind, ...] = get_args(TableKind)
    results_tables = results_of(warehouse, stream)
    found = [table(warehouse, kind, stream) for kind in kinds]
    found += sorted(results_tables.iterdir()) if results_tables.is_dir() else []
    return [folder for folder in found if table_log(folder).is_dir()]


# -- in the folder of a table


def in_table(table_root: Path, warehouse: Path, files: Collection[str]) -> frozenset[str]:
    """The paths in a table of those files of the warehouse that are in its folder."""
    folder = table_root.relative_to(warehouse).as_posix() + "/"
    return frozenset(file.removeprefix(folder) for file in files if file.startswith(folder))


def staging(table_root: Path) -> Path:
    """What is being built, a folder for each batch."""
    return table_root / _STAGING


def table_log(table_root: Path) -> Path:
    return table_root / "_delta_log"


def log_sums(table_root: Path) -> Path:
    """Checksums of the files of the log of a table."""
    return table_root / "_log_sums"


def log_copies(table_root: Path) -> Path:
    """Copies of the files of the log of a table."""
    return table_root / "_log_copies"


def torn_log_entries(table_root: Path) -> Path:
    """Entries of the log of a table that a power cut left incomplete, set aside."""
    return staging(table_root) / "torn"


def packing(table_root: Path) -> Path:
    """What packing prepares in the background, a folder for each process."""
    return table_root / "_packing"


# -- the memory of the gate, of what has expired, of state metrics and limited ones


def gate(warehouse: Path, stream: str) -> Path:
    """Runs of accepted ids; made again from raw when missing."""
    return warehouse / "gate" / stream


def sealed(warehouse: Path, stream: str) -> Path:
    """Ids of accepted events that have expired. Unlike the runs of the gate, they cannot be made again."""
    return warehouse / "sealed" / stream


def state_history(warehouse: Path, stream: str) -> Path:
    """Observations and admitted keys; made again from raw when missing."""
    return warehouse / "trails" / stream


def state_history_log(folder: Path) -> Path:
    """Lists the current files of observations."""
    return folder / _HISTORY_LOG


def admitted_keys(folder: Path, metric: str) -> Path:
    return folder / f"{metric}{ADMITTED_SUFFIX}"


# -- datasets


def datasets(stream: str) -> str:
    """The folder of the windows of a stream that become datasets, relative to the warehouse."""
    return f"{_DATASETS}/{stream}/{AGGREGATION}"


def dataset_folder(key: WindowKey) -> str:
    """Where the revisions of a window are, relative to the warehouse; names sort by time."""
    if MIN_INSTANT <= key.start < MAX_INSTANT:
        moment = to_datetime(key.start)
        start = f"{moment.year:04d}{moment:%m%dT%H%M%S}"
        start += f".{moment.microsecond:06d}Z" if moment.microsecond else "Z"
    else:  # only the window around the very first instant can start before it
        start = f"{key.start}us"
    return f"{datasets(key.stream)}/{start}_{format_duration(key.span)}"


def dataset(key: WindowKey, revision: int) -> str:
    """Relative to the warehouse."""
    return f"{dataset_folder(key)}/{dataset_name(revision)}"


def dataset_name(revision: int) -> str:
    """The name of a revision in the folder of its window."""
    return f"r{revision}.arrow"


def dataset_revision(name: str) -> int | None:
    """The revision of a file in the folder of a window; None if it is not a dataset."""
    found = _REVISION.fullmatch(name)
    return int(found[1]) if found else None


def dataset_staging(warehouse: Path, stream: str) -> Path:
    """Datasets of a stream that are being written."""
    return warehouse / _DATASETS / stream / _STAGING


def empty_datasets(warehouse: Path, stream: str) -> Path:
    """The log of the datasets without rows, and their shared files."""
    return warehouse / _DATASETS / stream / _EMPTY


def empty_datasets_log(folder: Path) -> Path:
    return folder / _EMPTY_LOG


def empty_datasets_lock(folder: Path) -> Path:
    return folder / ".windows.lock"


def empty_dataset(folder: Path, name: str) -> Path:
    return folder / f"{name}.arrow"


def is_empty_dataset(file: str) -> bool:
    """Whether a file is the shared one of all datasets without rows of a declaration."""
    return Path(file).parent.name == _EMPTY
