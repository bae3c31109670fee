"""Checks names from outside, so that they can never become paths or SQL."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from tidemill.model.errors import InputError

_SAFE = re.compile(r"[a-z][a-z0-9_]{0,62}")
NAME_HINT = "use a lower-case letter, then letters, digits or _ (63 characters at most)"


def is_safe_name(name: str) -> bool:
    return _SAFE.fullmatch(name) is not None


def safe_name(name: str, what: str) -> str:
    """Return `name` if it is safe for a folder and a column, else raise an error that says why."""
    if not is_safe_name(name):
        raise InputError(f"{what} name {name!r} is not allowed", hint=NAME_HINT)
    return name


def is_unicode(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, which nothing can store or send."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_unicode(text: str) -> str:
    """The text with � for each half of a surrogate pair: what Python makes of bytes that are not UTF-8."""
    return text if is_unicode(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


BUCKETS: Final = ("s3://", "gs://", "az://")  # how the address of a warehouse in a bucket begins
BUCKET_FOLDER: Final = "bucket~"  # how the local folder of such a warehouse begins; the address follows
# Set where tasks run on other machines than the process that started them: then a bucket is all that they
# share, and what one step of a job leaves for the next is in it as well.
SHARED_STAGING: Final = "TIDEMILL_SHARED_STAGING"
MOST_ADDRESS: Final = 180  # bytes of such an address: the name of a folder has at most 255


def bucket_folder(url: str) -> str:
    """The name of the local folder of a warehouse in a bucket. Its paths show where its files really are: a
    process on any machine that is given only a path knows the bucket."""
    return BUCKET_FOLDER + base64.urlsafe_b64encode(url.rstrip("/").encode()).decode().rstrip("=")


def bucket_address(folder: str) -> str | None:
    """The address of the bucket whose local folder has this name; None if it is not such a folder."""
    if not folder.startswith(BUCKET_FOLDER):
        return None
    text = folder.removeprefix(BUCKET_FOLDER)
    try:
        url = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return url if url.startswith(BUCKETS) else None


def quoted(identifier: str) -> str:
    """A name as an identifier of SQL, whatever is in it."""
    return '"' + identifier.replace('"', '""') + '"'


def literal_path(path: str) -> str:
    """The path with its glob characters escaped: DuckDB would expand them."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)


ROLLUP_COLUMNS: Final = ("level", "metric", "tenant", "bucket", "count")
ROLLUPS: Final = "rollups:"  # followed by the name of a level: how the log of expiries names its tiles
# How the names of raw parts begin that are not named for their batch: of those that packing made (rows of the
# slices of a group, rows of slices that wait), and of stand-ins, which have no rows and replace removed
# parts.
PACKED_PART: Final = "packed"
REST_PART: Final = "rest"
TOMBSTONE_PART: Final = "told"
EXPIRED_PART: Final = "expired"
LARGE_PART: Final = "large"  # how the name of a part ends that was large enough when it was accepted
MEASURE_COLUMNS: Final = ("count", "sum", "min", "max")
END_COLUMNS: Final = ("first", "first_time", "first_id", "last", "last_time", "last_id")  # more, of a gauge
# How the names of rows of rollups begin that count events with a value that its type cannot hold: after all
# names of metrics, so that the statistics of a part say whether it has such rows.
UNFIT: Final = "~"
STATE_COLUMNS: Final = ("state__is", "state__rule", "state__from", "state__to")  # if there is a state metric
HISTOGRAM_COLUMNS: Final = ("histogram__bins", "histogram__counts")  # and a histogram
PSEUDO_DIMENSIONS: Final = ("state", "from_state", "to_state")  # what queries call those of a state metric
DATASET_COLUMNS: Final = ("event_time", "tenant", "event_id")  # the first ones of every dataset
RESULT_COLUMNS: Final = (  # of the results of a streaming window, beside its group and its aggregates
    "window_id", "start", "end", "tenant", "revision", "rows", "late_rows", "first_time", "last_time",
    "bytes", "trigger", "watermark", "hash", "slices", "supersedes", "superseded_by", "withdrawn", "batch",
)  # fmt: skip


def column_name(field: str) -> str:
    """Return a field path as a column name, without dots."""
    return field.replace(".", "__")


def measure_column(field: str, kept: str) -> str:
    """Return the column of the count, sum, min or max of a measure, or of the first or last of a gauge."""
    return f"{column_name(field)}__{kept}"


def unfit_rows(metric: str, field: str) -> str:
    """The name of the rows that count events of a metric whose value of a field does not fit its type."""
    return f"{UNFIT}{metric} {field}"


def unfit_column(field: str) -> str:
    """The column of events that says where they have such a value."""
    return f"{UNFIT}{field}"
