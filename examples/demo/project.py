"""The folder that the demo lives in: its `tidemill.yaml`, and how it starts afresh.

It never removes anything from a folder that an earlier demo did not make.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemill.config import load_project
from tidemill.config.loading import parse_project
from tidemill.model.errors import ConfigError, InputError, StorageError
from tidemill.model.names import BUCKETS, bucket_folder
from tidemill.storage.bucket_path import BucketPath, warehouse_path
from tidemill.storage.files import storage_errors

STREAM: Final = "requests"
TIME_TYPE: Final = "unixtimestamp_ms"
MARK: Final = "# Written by the Tidemill demo, which starts afresh each time: keep nothing of yours here.\n"
_CONFIG: Final = f"""\
{MARK}version: 1
warehouse: WAREHOUSE

streams:
  {STREAM}:
    description: Web requests of the tenants acme, globex and initech
    schema:
      event_id: {{type: string, required: true}}
      ts: {{type: integer, required: true}}
      event_type: string
      tenant: {{type: string, required: true}}
      api: string
      region: string
      status: integer
      latency_ms: {{type: decimal, scale: 3}}
      bytes: integer
      user_agent: string
      trace: string

    # Only this type of event is accepted.
    event_type: {{column: event_type, allowed: [request]}}
    # When it happened. An event is late when it is more than 2s behind the newest one seen.
    event_time: {{column: ts, type: {TIME_TYPE}, late_tolerance: 2s}}
    # What makes it one event: the same again is a duplicate, with other content a conflict.
    identity: event_id
    tenant: {{column: tenant}}
    # A time more than a day ahead of the arrival is wrong.
    skew: {{future: 1d}}

    # Counted and summed exactly at 5s, 1m, 1h, 1d and 7d.
    metrics:
      {STREAM}: {{kind: counter, dimensions: [api, region, status], measures: [latency_ms]}}

    # One dataset for each hour, once slices cover it and it has been over for a day: files come that much out
    # of order. What comes later makes it come out again, for a week.
    aggregation_span: 1h
    subject_to_change_window: 1d
    late_slices: {{policy: reemit, max_lateness: 7d}}
"""


def config_text(address: str | None = None) -> str:
    """The `tidemill.yaml` of a demo whose warehouse is in its folder, or at the address of a bucket."""
    return _CONFIG.replace("WAREHOUSE", "warehouse" if address is None else json.dumps(address))


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything of one demo is."""

    folder: Path
    address: str | None = None  # of the warehouse, if it is in a bucket

    @property
    def config(self) -> Path:
        return self.folder / "tidemill.yaml"

    @property
    def feed(self) -> Path:
        return self.folder / "feed"

    @property
    def warehouse(self) -> Path:
        if self.address is None:
            return self.folder / "warehouse"
        return warehouse_path(self.local / bucket_folder(self.address))

    @property
    def local(self) -> Path:
        """What a warehouse in a bucket has on this disk."""
        return self.folder / ".tidemill"

    @property
    def shown_warehouse(self) -> str:
        return self.address or shown(self.warehouse)

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def spark_log(self) -> Path:
        return self.folder / "spark.log"


def start_afresh(folder: Path, address: str | None = None) -> Place:
    """An empty demo project in `folder`; what an earlier demo left there goes. Its warehouse is in it, or in
    a bucket at an address that has nothing, or that the demo in this folder had before."""
    place = Place(folder, address)
    if address is not None and not address.startswith(BUCKETS):
        raise InputError(f"{address} is not the address of a bucket", hint="name one: s3://BUCKET/PREFIX")
    text = config_text(address)
    parse_project(text, place.config, {TIME_TYPE}, {})  # the address is one of a bucket
    with disk_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is not a folder", hint="name a folder for the demo")
        if folder.is_dir() and any(folder.iterdir()) and not _is_ours(place.config):
            raise InputError(
                f"{folder} holds something that no demo wrote",
                hint="name a folder that is empty, does not exist, or is of an earlier demo",
            )
    if address is not None:
        _empty_bucket(place)
    with disk_errors(folder):
        # The mark stays to the end, so that a run that was cut short can be started again.
        for path in (folder / "warehouse", place.local, place.feed, place.report, place.spark_log):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        place.config.write_text(text, encoding="utf-8")
    found = load_project(folder, {TIME_TYPE}).warehouse
    if found != Path(os.path.abspath(place.warehouse)):  # noqa: PTH100 - the way the project does it
        raise ConfigError(
            f"the environment moves the warehouse to {found}",
            hint="the demo keeps to its own: unset TIDEMILL_WAREHOUSE and TIDEMILL__WAREHOUSE",
        )
    return place


def _empty_bucket(place: Place) -> None:
    """Delete what the demo of the same folder left at the same address; anything else there is refused."""
    top = place.warehouse
    with storage_errors("empty the bucket", top):
        if not isinstance(top, BucketPath) or not top.bucket.has_any(""):
            return
        line = f"\nwarehouse: {json.dumps(place.address)}\n"
        if not _is_ours(place.config) or line not in place.config.read_text(encoding="utf-8"):
            raise InputError(
                f"{place.address} holds something that no demo of {place.folder} wrote",
                hint="name a prefix that has no objects",
            )
        top.remove_tree()


def _is_ours(config: Path) -> bool:
    if not config.is_file():
        return False
    with config.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A disk that is full or closed to us is told as such."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the demo cannot write: {error.strerror or error}",
            hint="it needs a folder that it may write to, and about 500 MB",
            where=str(error.filename or path),
        ) from error


def tidemill_command() -> str:
    """How the shell that the demo was started from can reach `tidemill`."""
    mine = Path(sys.executable).parent / "tidemill"
    found = shutil.which("tidemill")
    if not mine.exists() or (found is not None and Path(found).resolve() == mine.resolve()):
        return "tidemill"
    return shlex.quote(shown(mine))


def shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)
