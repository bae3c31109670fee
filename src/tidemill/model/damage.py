"""Kinds of files that can be damaged, and how a damaged file is described."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FileKind(StrEnum):
    """Every kind of file whose loss or change would be noticed; the value is what a person reads."""

    SLICE = "slice"
    SLICE_LOG = "log of slices"  # landings, retractions, expiries, declarations
    GATEWAY_LOG = "log of a gateway"
    RAW = "part of raw"
    QUARANTINE = "part of the quarantine"
    ROLLUP = "part of rollups"
    RESULT = "part of streaming results"
    INDEX = "part of the index"
    CHAIN = "part of chains"
    TABLE_LOG = "log of a table"
    ACCEPTED_IDS = "accepted ids"
    EXPIRED_IDS = "ids of expired events"
    OBSERVATIONS = "observations of objects"
    ADMITTED_KEYS = "admitted keys"
    DATASET = "dataset"
    EMPTY_DATASETS = "log of datasets without rows"
    OPEN_WINDOWS = "open windows"
    STATE = "state"


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """One file that is not what was written."""

    file: str  # relative to the warehouse
    kind: FileKind
    stream: str  # "" when it belongs to no single stream
    reason: str  # what is wrong with it, in words


@dataclass(frozen=True, slots=True, order=True)
class KnownDamage:
    """Damage that was found and not repaired yet."""

    damage: Damage
    since: int  # when it was found first
