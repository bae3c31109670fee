"""Which state a warehouse in a bucket has: `state.owner` names it, and a process that works with another one
is refused.

Leases are rows of a state, so they say nothing about a machine that works with another state. `recover` on
such a machine must not wait for them: it claims the bucket first. From then on every commit and every line of
a log that is based on another state fails, also if its process began before.
"""

from __future__ import annotations

import platform
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from tidemill.model.errors import LeaseLostError, StorageError
from tidemill.storage import layout
from tidemill.storage.bucket_path import BucketPath, guard_deletes
from tidemill.storage.files import atomic_write, storage_errors

_CLAIM: Final = "the `tidemill recover` on "  # how the name of an owner begins that has no state yet
_SHARE: Final = (
    "several machines share a state on a server (`state: {url: postgresql://…}`); or run "
    "`tidemill recover` here, which makes a new state that replaces the other one"
)
_WAIT: Final = "wait for it, then run the same again; if it was interrupted, run `tidemill recover`"
_expected: Final[dict[Path, str]] = {}  # by warehouse, the owner that this process works for


def own(warehouse: Path, title: str | None) -> None:
    """Work with the state on a server that has this title, or with the file on this machine. StorageError if
    the warehouse has another one. A second machine with a state in a file of its own would know nothing of
    what the first one lands, and would number the same slices differently."""
    owner = layout.state_owner(warehouse)
    if not isinstance(owner, BucketPath):
        return
    name = _name_of_state(warehouse, title)
    with storage_errors("look for the state", owner):
        if not owner.bucket.put_new(owner.key, name.encode()):
            raise _elsewhere(owner, owner.read_text())
    _work_for(warehouse, name)


def _work_for(warehouse: Path, name: str) -> None:
    _expected[warehouse] = name
    guard_deletes(warehouse, partial(confirm, warehouse))  # what an old state does not know may be of a newer


def confirm(warehouse: Path) -> None:
    """LeaseLostError if the warehouse has another state by now than this process works with. For a commit,
    the caller must have read the version that it commits on before."""
    owner = layout.state_owner(warehouse)
    expected = _expected.get(warehouse)
    if expected is None or not isinstance(owner, BucketPath):
        return
    with storage_errors("look for the state", owner):
        found = _read(owner)
    if found != expected:
        raise _lost(owner, found)


@contextmanager
def claimed(warehouse: Path, title: str | None) -> Iterator[bool]:
    """Inside the block a new state is made, and commits that are based on another state are refused. Yields
    whether there was another state: some of its commits may be under way. Call `settle` at the end of the
    body. If it raises, the old state is in use again."""
    owner = layout.state_owner(warehouse)
    if not isinstance(owner, BucketPath):
        yield False
        return
    claim = f"{_CLAIM}{platform.node()}, {secrets.token_hex(8)}"
    with storage_errors("record where the state is", owner):
        before = _read(owner)
        owner.write_bytes(claim.encode())
    _work_for(warehouse, claim)
    try:
        yield before not in (None, _name_of_state(warehouse, title))
    except BaseException:
        _put_back(owner, claim, before)
        raise
    finally:
        if _expected.get(warehouse) == claim:
            del _expected[warehouse]


def settle(warehouse: Path, title: str | None) -> None:
    """The new state is in its place: the warehouse has it from now on."""
    owner = layout.state_owner(warehouse)
    if isinstance(owner, BucketPath):
        name = _name_of_state(warehouse, title)
        with storage_errors("record where the state is", owner):
            owner.write_bytes(name.encode())
        _work_for(warehouse, name)


def _put_back(owner: BucketPath, claim: str, before: str | None) -> None:
    """If the bucket cannot be reached, the claim stays: then the next `recover` makes a state."""
    with suppress(OSError):
        if _read(owner) != claim:
            return  # another machine has claimed it since
        if before is None:
            owner.bucket.delete(owner.key)
        else:
            owner.write_bytes(before.encode())


def _read(owner: BucketPath) -> str | None:
    try:
        return owner.bucket.read(owner.key).decode()
    except FileNotFoundError:
        return None


def _elsewhere(owner: BucketPath, found: str) -> StorageError:
    is_claim = found.startswith(_CLAIM)
    return StorageError(
        f"{found} is making a new state of this warehouse"
        if is_claim
        else f"this warehouse has its state elsewhere: {found}",
        where=owner.as_uri(),
        hint=_WAIT if is_claim else _SHARE,
    )


def _lost(owner: BucketPath, found: str | None) -> LeaseLostError:
    """As `_elsewhere`; it ends a whole round."""
    error = _elsewhere(owner, found or "`state.owner` is missing")
    return LeaseLostError(
        f"{error.message}; what this process was doing was not committed", where=error.where, hint=error.hint
    )


def _name_of_state(warehouse: Path, title: str | None) -> str:
    """What a state is called in its bucket; a file on this machine is given a name once."""
    if title is not None:
        return title
    path = layout.state_name(warehouse)
    with storage_errors("name the state", path):
        if not path.exists():
            atomic_write(path, f"a file on {platform.node()}, {secrets.token_hex(8)}".encode())
        return path.read_text()
