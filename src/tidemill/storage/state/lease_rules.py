"""The rules of leases on streams: who gets a lease that is requested.

Pure functions; nothing here knows how leases are stored, or reads a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a stream, or to do a job of a round."""

    name: str  # of the stream, or of the job, which begins with `@`
    number: int  # greater for each holder than for all before it
    holder: str | None  # None: the last one gave it back
    until: int  # when it ends unless it is renewed, by the clock of the database
    length: int  # by how much a renewal extends it
    contested: bool = False  # whether a holder before it may still have a commit under way


@dataclass(frozen=True, slots=True)
class Granted:
    """What came of a request: all leases, or none."""

    leases: Sequence[Lease] = ()
    left: Mapping[str, str] = field(default_factory=dict)  # by name, the holder that did not give it back
    blocked_by: frozenset[str] = frozenset()  # the holders that block the request
    follows: Mapping[str, int] = field(default_factory=dict)  # by name, the number of one that was given back


def is_live(lease: Lease, now: int) -> bool:
    """Whether the lease is in force. A lease that ends later than a renewal could reach was taken before the
    clock was set back, and is not."""
    return lease.holder is not None and now < lease.until <= now + lease.length


def grant(
    known: Mapping[str, Lease],
    names: Collection[str],
    holder: str,
    now: int,
    length: int,
    gone: Collection[str] = (),
    ended: Collection[str] = (),
) -> Granted:
    """The answer to a request for all these names at once. The holders in `gone` are known to be dead; those
    in `ended` have no commit under way either."""
    before = {name: known[name] for name in names if name in known}
    live = (one.holder for one in before.values() if is_live(one, now))
    blocked = frozenset(one for one in live if one is not None and one not in gone)
    if blocked:
        return Granted(blocked_by=blocked)
    until, taken = now + length, list[Lease]()
    for name in names:
        one = before.get(name)
        taken.append(Lease(name, next_number(one, now), holder, until, length, is_contested(one, ended)))
    left = {name: one.holder for name, one in before.items() if one.holder is not None}
    given_back = {
        name: one.number for name, one in before.items() if one.holder is None and not one.contested
    }
    return Granted(taken, left, follows=given_back)


def is_contested(before: Lease | None, ended: Collection[str]) -> bool:
    """Whether a commit may still be under way: of the last holder, if it did not give the lease back, or of
    an earlier one that the last holder did not shut out."""
    if before is None:
        return False
    return before.contested or (before.holder is not None and before.holder not in ended)


def next_number(before: Lease | None, now: int) -> int:
    """The number of the next lease. Numbers follow the clock, so that those of a recovered state are higher
    than those of the lost one."""
    return now if before is None else max(now, before.number + 1)


def lost(kept: Mapping[str, int], held: Mapping[str, int]) -> list[str]:
    """Of the leases that a holder took, by name and number, those that it has lost; `kept` are the ones
    recorded as its own."""
    return sorted(name for name, number in held.items() if kept.get(name) != number)
