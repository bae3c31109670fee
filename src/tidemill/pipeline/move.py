"""Moves a warehouse from a folder to a bucket: all its files are sent there, and the folder stays as it is.

The state stays behind. `tidemill recover` makes a new one from the bucket once the project names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidemill.ingest.gateway.log_folders import live_folders
from tidemill.ingest.interrupted_landings import adopt
from tidemill.model.errors import BusyError, ConflictError, DamageError, InputError
from tidemill.pipeline.rounds import take_up_logs
from tidemill.pipeline.scrub import scrub_all
from tidemill.storage.bucket_path import BucketPath
from tidemill.storage.sending import ToSend, check_sent, check_target, send, to_send

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemill.pipeline.workers import Workers

_TRIES: Final = 8  # how often files that changed meanwhile are sent again


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What is sent to a bucket."""

    url: str
    files: int
    bytes: int
    there: int  # files of an earlier try, which may be sent again


@dataclass(frozen=True, slots=True)
class Moved:
    """What was sent."""

    plan: MovePlan
    sent: int  # files; those that were there and whose names state their content are not among them


def plan_move(workers: Workers, url: str) -> MovePlan:
    """What `move` would send. InputError if the warehouse is not a folder; ConflictError if there are other
    objects at the address."""
    if isinstance(workers.root, BucketPath):
        raise InputError(
            f"the warehouse is in a bucket already: {workers.root.as_uri()}",
            hint="only a warehouse in a folder can be moved; copy objects with the tools of the provider",
        )
    return _plan(url, to_send(workers.root, url))


def _plan(url: str, files: Mapping[str, ToSend]) -> MovePlan:
    return MovePlan(url, len(files), sum(one.size for one in files.values()), len(check_target(url, files)))


def move(workers: Workers, url: str, now: int) -> Moved:
    """Send all files to a bucket. The caller must hold all leases. What a dead process left is landed first;
    a warehouse with damaged files is refused. What lands meanwhile is sent, too."""
    plan_move(workers, url)
    if live := live_folders(workers.root):
        raise BusyError(
            f"gateway {live[0].name} is running on this warehouse; cannot move it now",
            where=str(workers.root),
            hint="stop `tidemill serve` or `tidemill up`, then run the same again",
        )
    adopt(workers.root, workers.state)
    take_up_logs(workers, now)
    damages = scrub_all(workers.warehouse, None).damages
    if damages:
        raise DamageError(damages[0].reason, where=damages[0].file)
    files, sent = to_send(workers.root, url), 0
    plan = _plan(url, files)
    for _ in range(_TRIES):
        sent += send(url, files, check_target(url, files))
        before, files = files, to_send(workers.root, url)
        if files == before:
            check_sent(url, files)
            return Moved(plan, sent)
    raise ConflictError(
        "files of the warehouse change all the time",
        where=str(workers.root),
        hint="stop everything that lands in it, then run the same again",
    )
