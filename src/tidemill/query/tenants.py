"""Which tenant a question is about: one, unless all are requested. The same rule for every interface.

It reads the statistics of tables; a part is opened only if they do not show whether it has a tenant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tidemill.model.errors import InputError, NotFoundError
from tidemill.model.levels import LEVELS
from tidemill.model.suggestions import closest
from tidemill.storage.tables.parts import open_part
from tidemill.storage.tables.stats import STRING_LIMIT

if TYPE_CHECKING:
    from tidemill.storage.tables.snapshot import Part, Snapshot

COLUMN: Final = "tenant"
MOST_LISTED: Final = 20
_LEVEL: Final = "level"
_COARSEST_FIRST: Final = {level.name: position for position, level in enumerate(reversed(LEVELS))}


def tenant_for(
    stream: str,
    tenant: str | None,
    declared: str | None,
    tables: Iterable[Snapshot],
    *,
    all_tenants: bool,
) -> str | None:
    """The tenant, None for all. `declared` is the one that all events of the stream belong to, if there is
    one; otherwise a caller that names none means the only one there is. No more `tables` are opened than
    needed."""
    if all_tenants:
        if tenant is not None:
            raise InputError(
                "both one tenant and all tenants are requested",
                hint="use --tenant NAME (tenant=) or --all-tenants (all_tenants=true)",
            )
        return None
    if tenant is None:
        return declared if declared is not None else _only_one(stream, list(tables))
    if tenant == declared:
        return tenant
    seen = []
    for table in tables:
        if _has(table, tenant):
            return tenant
        seen.append(table)
    if declared is None and not any(_parts(seen)):
        return tenant  # nothing is known yet, which the answer reports
    raise _unknown(stream, tenant, sorted(tenants_of(seen) | ({declared} if declared is not None else set())))


def tenants_of(tables: Sequence[Snapshot]) -> frozenset[str]:
    """All tenants with a row in one of the tables."""
    return frozenset(name for table in tables for part in _of(table) for name in _names(table, part))


@dataclass(frozen=True, slots=True)
class Tenants:
    """Some of the tenants, by name, and how many more there are."""

    names: Sequence[str]
    more: int = 0

    @classmethod
    def of(cls, names: Sequence[str]) -> Tenants:
        return cls(names[:MOST_LISTED], max(0, len(names) - MOST_LISTED))

    def __str__(self) -> str:
        more = f" and {self.more:,} more" if self.more else ""
        return f"{', '.join(name[:100] for name in self.names)}{more}"


def known_tenants(tables: Iterable[Snapshot], tenant: str | None) -> Tenants:
    """The tenants that have events; for a caller of one tenant only that one."""
    found = list(tables)
    if tenant is not None:
        return Tenants((tenant,) if any(_has(table, tenant) for table in found) else ())
    return Tenants.of(sorted(tenants_of(found)))


def _only_one(stream: str, tables: Sequence[Snapshot]) -> str | None:
    """The only tenant; None if there is none yet, so that all of them are meant."""
    bounds = {side.get(COLUMN) for part in _parts(tables) for side in (part.mins, part.maxs)}
    if len(bounds) == 1 and None not in bounds:
        return str(bounds.pop())
    if not bounds:
        return None
    found = sorted(tenants_of(tables))
    if len(found) == 1:
        return found[0]
    raise InputError(
        f"stream {stream!r} has events of several tenants, and none is named",
        hint="name one with --tenant NAME (tenant=), or ask for all with --all-tenants (all_tenants=true); "
        f"{_listed(found)}",
    )


def _has(table: Snapshot, tenant: str) -> bool:
    near = [part for part in _of(table) if part.may_hold(COLUMN, tenant, tenant)]
    ends = (end for part in near for end in (part.mins.get(COLUMN), part.maxs.get(COLUMN)))
    if len(tenant) < STRING_LIMIT and any(tenant == end for end in ends):
        return True
    return any(tenant in _names(table, part) for part in near)


def _parts(tables: Sequence[Snapshot]) -> Iterator[Part]:
    return (part for table in tables for part in _of(table))


def _of(table: Snapshot) -> list[Part]:
    """Its parts with rows, those of coarse levels first: they are few, and have all tenants."""
    parts = [part for part in table.parts if part.rows]
    return sorted(parts, key=lambda part: _COARSEST_FIRST.get(part.partition.get(_LEVEL, ""), 0))


def _names(table: Snapshot, part: Part) -> frozenset[str]:
    least, most = part.mins.get(COLUMN), part.maxs.get(COLUMN)
    if isinstance(least, str) and least == most and len(least) < STRING_LIMIT:
        return frozenset({least})
    return _read(f"{table.root}/{part.path}")


@lru_cache(maxsize=256)
def _read(path: str) -> frozenset[str]:
    """The tenants in a part, which never changes."""
    import pyarrow.compute as pc

    with open_part(path, [COLUMN]) as file:
        found = (
            file.read_row_group(group, columns=[COLUMN]).column(COLUMN)
            for group in range(file.metadata.num_row_groups)
        )
        return frozenset(
            name for column in found for name in pc.unique(column).to_pylist() if name is not None
        )


def _unknown(stream: str, tenant: str, known: Sequence[str]) -> NotFoundError:
    near = closest(tenant, known)
    guess = f"did you mean {near}? " if near is not None else ""
    return NotFoundError(
        f"stream {stream!r} has no events of a tenant {tenant[:100]!r}", hint=f"{guess}{_listed(known)}"
    )


def _listed(names: Sequence[str]) -> str:
    return f"tenants: {Tenants.of(names)}"
